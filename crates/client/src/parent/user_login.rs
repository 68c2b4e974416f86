//! Who logs in, and by what: as the arguments and the profile say, or as a person types it.

use anyhow::ensure;
use zeroize::Zeroizing;

use super::credentials::{self, Source};
use crate::args::ConnectArgs;
use vpnd_config::profile::{LOGIN_NAME_RULE, Profile, is_login_name};
use vpnd_sys::text::harmless;

/// How the user logs in.
pub(super) struct UserLogin {
    /// Empty if the browser says it.
    pub(super) user: String,
    pub(super) password: Zeroizing<String>,
    pub(super) browser: bool,
}

impl UserLogin {
    /// Asks a person for what neither the arguments nor the profile say.
    pub(super) fn ask(args: &ConnectArgs, profile: &Profile) -> anyhow::Result<Self> {
        let has_password = args.credentials.is_some() || args.password_fd.is_some();
        if args.browser || (profile.browser && !has_password) {
            let user = args.login.as_ref().or(profile.user.as_ref()).cloned().unwrap_or_default();
            return Ok(Self { user, password: Zeroizing::default(), browser: true });
        }
        let user = user_name(args, profile)?;
        let password = password(args, profile, &user)?;
        Ok(Self { user, password, browser: false })
    }
}

/// The name to log in with: as given, as in the profile, or as a person types it.
fn user_name(args: &ConnectArgs, profile: &Profile) -> anyhow::Result<String> {
    if let Some(name) = args.login.as_ref().or(profile.user.as_ref()) {
        return Ok(name.clone());
    }
    let asked = credentials::ask_openly(&format!("User at {}: ", profile.server_name));
    let name = match asked {
        Err(credentials::CredentialsError::NoTerminal) => Err(credentials::CredentialsError::NoUser)?,
        asked => asked?,
    };
    let name = name.trim();
    ensure!(is_login_name(name), "'{}' can't be a user's name: it has {LOGIN_NAME_RULE}", harmless(name));
    Ok(name.to_owned())
}

fn password(args: &ConnectArgs, profile: &Profile, user: &str) -> anyhow::Result<Zeroizing<String>> {
    let source = match (&args.credentials, args.password_fd) {
        (Some(file), _) => Source::File(file.clone()),
        (None, Some(fd)) => Source::Descriptor(fd),
        (None, None) => Source::Prompt,
    };
    let prompt = format!("Password of {user} at {}: ", profile.server_name);
    Ok(credentials::read(&source, &prompt)?)
}
