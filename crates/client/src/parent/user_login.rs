//! The user and credentials of a login: from the arguments and the profile, or typed by a person.

use anyhow::ensure;
use zeroize::Zeroizing;

use super::console::Console;
use crate::args::ConnectArgs;
use crate::person::credentials::{self, CredentialsError, MAX_PASSWORD, Source};
use crate::user_messages::Ask;
use vpnd_config::profile::{LOGIN_NAME_RULE, Profile, is_login_name};
use vpnd_sys::text::harmless;

/// How the user logs in.
pub(super) struct UserLogin {
    /// Empty if the browser says it.
    pub(super) user: String,
    /// Empty for a machine.
    pub(super) password: Zeroizing<String>,
    pub(super) browser: bool,
}

impl UserLogin {
    /// Asks a person for what neither the arguments nor the profile say.
    pub(super) async fn ask(
        args: &ConnectArgs,
        profile: &Profile,
        console: &Console,
    ) -> anyhow::Result<Self> {
        // A machine has no password, so a file of one says nothing.
        if let Some(machine) = profile.user.as_ref().filter(|_| profile.machine)
            && args.login.is_none()
            && !args.browser
        {
            return Ok(Self { user: machine.clone(), password: Zeroizing::default(), browser: false });
        }
        let has_password = args.credentials.is_some() || args.password_fd.is_some();
        if args.browser || (profile.browser && !has_password) {
            let user = args.login.as_ref().or(profile.user.as_ref()).cloned().unwrap_or_default();
            return Ok(Self { user, password: Zeroizing::default(), browser: true });
        }
        let user = user_name(args, profile, console).await?;
        let password = password(args, profile, &user, console).await?;
        Ok(Self { user, password, browser: false })
    }
}

/// The name to log in with: as given, as in the profile, or as a person types it.
async fn user_name(args: &ConnectArgs, profile: &Profile, console: &Console) -> anyhow::Result<String> {
    if let Some(name) = args.login.as_ref().or(profile.user.as_ref()) {
        return Ok(name.clone());
    }
    let name = console.ask(Ask::Name { gateway: profile.server_name.clone() }).await?;
    let name = name.trim();
    ensure!(is_login_name(name), "'{}' can't be a user's name: it has {LOGIN_NAME_RULE}", harmless(name));
    Ok(name.to_owned())
}

async fn password(
    args: &ConnectArgs,
    profile: &Profile,
    user: &str,
    console: &Console,
) -> Result<Zeroizing<String>, CredentialsError> {
    let source = match (&args.credentials, args.password_fd) {
        (Some(file), _) => Source::File(file.clone()),
        (None, Some(fd)) => Source::Descriptor(fd),
        (None, None) => {
            let ask = Ask::Password { user: user.to_owned(), gateway: profile.server_name.clone() };
            let typed = console.ask(ask).await?;
            let from = || "the user's terminal".to_owned();
            return match typed.len() {
                0 => Err(CredentialsError::Empty(from())),
                1..=MAX_PASSWORD => Ok(typed),
                _ => Err(CredentialsError::TooLong(from())),
            };
        }
    };
    credentials::read(&source)
}
