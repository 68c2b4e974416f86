//! `vpnd up`, `down`, `list`, `import`, `forget`, `password`, `log`, `captive-portal`, and `status`
//! of a machine that is a client: what a user does without root, through the client service.
//!
//! Invariants: nothing is sent to a socket that is not root's; a question is asked at this terminal
//! and a page is opened as this user; text of others does not play with the terminal.

mod captive_portal;
mod import;
mod notify;
mod saved_password;
mod table;

use std::io::{self, Write as _};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use minicbor::Encode;
use tokio::net::UnixStream;
use vpnd_proto::control::{AsText, UserName};
use zeroize::Zeroizing;

pub use captive_portal::{OpenPortalArgs, captive_portal};
pub use import::{ForgetArgs, ImportArgs, forget, import};
use saved_password::{Account, Passwords, Place};
use table::render;
use vpnd_client::args::user_name;
use vpnd_client::frames::{self, MAX_FROM_SERVICE, Reader, Writer};
use vpnd_client::person::browser;
use vpnd_client::person::credentials::{self, Source};
use vpnd_client::person::{session, terminal};
use vpnd_client::user_messages::{
    Ask, DEFAULT_GROUP, DEFAULT_SOCKET, Down, FindGateway, Gateway, Lines, List, ListedProfile, Log, Login,
    ProfileName, Profiles, Request, ServiceReply, Status, TunnelStatus, Tunnels, Typed, Up, UsedBy,
    UserRequest,
};
use vpnd_config::profile::Profile;
use vpnd_ipc::spawn::ChildError;
use vpnd_sys::clock::wall_s;
use vpnd_sys::text::harmless;

/// The program that opens a page on a desktop.
const OPENER: &str = "xdg-open";
/// Pause between two looks of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Cursor to the top left, and the screen empty from there.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";

/// Where the client service is.
#[derive(Args, Clone, Debug)]
pub struct ServiceSocket {
    /// The socket of the client service
    #[arg(long, default_value = DEFAULT_SOCKET, value_name = "P")]
    pub socket: PathBuf,
}

/// Arguments of `vpnd up`.
#[derive(Args, Debug)]
pub struct UpArgs {
    /// The profile, as `vpnd list` shows it [default: the only one]
    pub profile: Option<String>,
    /// The name to log in with [default: the profile's, or a prompt]
    #[arg(long, value_name = "NAME", value_parser = user_name)]
    pub login: Option<String>,
    /// File with the password in its first line, readable by its owner alone
    #[arg(long, value_name = "FILE", conflicts_with = "password_fd")]
    pub credentials: Option<PathBuf>,
    /// Read the password from this file descriptor, up to the first line break
    #[arg(long, value_name = "N")]
    pub password_fd: Option<RawFd>,
    /// Log in in a browser, on the gateway's web pages [default: as the profile says]
    #[arg(long, conflicts_with_all = ["credentials", "password_fd"])]
    pub browser: bool,
    /// Keep the password for the next time, once it has led to a tunnel: in the session's keyring,
    /// or without one in a file that only this user can read. One that is kept already is asked for
    /// again
    #[arg(long, conflicts_with = "browser")]
    pub save_password: bool,
    #[command(flatten)]
    pub service: ServiceSocket,
}

/// Arguments of `vpnd log`.
#[derive(Args, Debug)]
pub struct LogArgs {
    #[command(flatten)]
    pub tunnels: OwnTunnelsArgs,
    /// Show messages that come from now on as notifications of the desktop
    #[arg(long, conflicts_with = "profile")]
    pub notify: bool,
}

/// Arguments of `vpnd down`, and of `vpnd log`.
#[derive(Args, Debug)]
pub struct OwnTunnelsArgs {
    /// The profile of the tunnel [default: all of this user's; as root: all]
    pub profile: Option<String>,
    #[command(flatten)]
    pub service: ServiceSocket,
}

/// Arguments of `vpnd password`.
#[derive(Args, Debug)]
pub struct OwnPasswordArgs {
    /// The profile of the gateway, as `vpnd list` shows it [default: the only one]
    pub profile: Option<String>,
    /// Remove the passwords that `vpnd up --save-password` has kept for this gateway
    #[arg(long)]
    pub forget: bool,
    #[command(flatten)]
    pub service: ServiceSocket,
}

/// Arguments of `vpnd list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub service: ServiceSocket,
}

/// How `vpnd status` shows tunnels.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    pub json: bool,
    pub watch: bool,
}

/// `vpnd up`.
///
/// # Errors
/// The reason for which there is no tunnel.
pub async fn up(args: &UpArgs) -> anyhow::Result<()> {
    let mut service = ServiceClient::connect(&args.service.socket).await?;
    let login = Login {
        name: args.login.clone().map(UserName::new).transpose()?,
        browser: args.browser,
        has_screen: browser::has_screen(),
        session: session::peers().next().map(AsText),
    };
    let profile = args.profile.as_deref().map(profile_name).transpose()?;
    service.send(Up { profile, login }).await;
    let passwords = Passwords::of_session();
    let mut used: Option<UsedPassword> = None;
    loop {
        match service.receive().await? {
            ServiceReply::Line(line) => say(&line)?,
            ServiceReply::Ask(ask) => {
                let typed = answer(args, &ask, &passwords, &mut used).await?;
                service.answer(Typed::new(typed.as_str())?).await;
            }
            ServiceReply::Browse(url) => browse("log in in a browser on this machine", &url)?,
            reply => {
                let reply = reply_to::<Up>(reply);
                if reply.is_err()
                    && let Some(UsedPassword { from: Some(place), .. }) = &used
                {
                    say(&format!(
                        "the password was that in {place}: `vpnd up --save-password` asks for another"
                    ))?;
                }
                let Tunnels(tunnels) = reply?;
                tunnels.iter().try_for_each(|tunnel| say(&table::connected(tunnel)))?;
                if args.save_password {
                    say(&save(&passwords, used).await?)?;
                }
                return Ok(());
            }
        }
    }
}

/// A password with which a login was tried.
struct UsedPassword {
    account: Account,
    password: Zeroizing<String>,
    /// Its place, if it was kept.
    from: Option<Place>,
}

/// Keeps the password that has led to a tunnel; a line about that.
async fn save(passwords: &Passwords, used: Option<UsedPassword>) -> anyhow::Result<String> {
    let Some(UsedPassword { account, password, .. }) = used else {
        return Ok("no password was asked for, so none is kept".to_owned());
    };
    let kept = passwords.keep(&account, &password).await;
    let place = kept.context("it is connected, but the password is not kept")?;
    Ok(format!("the password is kept in {place}; `vpnd password --forget` removes it"))
}

/// `vpnd down`.
///
/// # Errors
/// If the tunnel is not up or another user's.
pub async fn down(args: &OwnTunnelsArgs) -> anyhow::Result<()> {
    lines(args, Down).await
}

/// `vpnd log`.
///
/// # Errors
/// If there is none of that profile.
pub async fn log(args: &LogArgs) -> anyhow::Result<()> {
    if args.notify {
        return notify::notify(&args.tunnels.service).await;
    }
    lines(&args.tunnels, Log).await
}

/// `vpnd list`.
///
/// # Errors
/// If the service can't be reached.
pub async fn list(args: &ListArgs) -> anyhow::Result<()> {
    let profiles = listed(&args.service).await?;
    if args.json {
        return Ok(say(&serde_json::to_string_pretty(&serde_json::json!({ "profiles": profiles }))?)?);
    }
    if profiles.is_empty() {
        say("this machine has no profile: an administrator adds some")?;
    }
    for profile in profiles {
        let state = match profile.used_by {
            Some(UsedBy::You | UsedBy::Machine) => " (up)",
            Some(UsedBy::AnotherUser) => " (in use by another user)",
            None => "",
        };
        let ownership = match (profile.is_own, profile.machine) {
            (true, _) => " (your own)",
            (_, true) => " (this machine's own)",
            (false, false) => "",
        };
        let detail = profile.gateway.or(profile.problem).unwrap_or_default();
        say(&format!("{}{ownership}{state}: {detail}", profile.name))?;
    }
    Ok(())
}

async fn listed(service: &ServiceSocket) -> anyhow::Result<Vec<ListedProfile>> {
    let Profiles(profiles) = ServiceClient::connect(&service.socket).await?.request(List).await?;
    Ok(profiles)
}

/// The profile of this name without what is secret in it, from the client service.
///
/// # Errors
/// If there is none, or the service can't be reached.
pub async fn gateway(service: &ServiceSocket, name: &str) -> anyhow::Result<Profile> {
    let request = FindGateway(profile_name(name)?);
    let Gateway(text) = ServiceClient::connect(&service.socket).await?.request(request).await?;
    Ok(Profile::parse(&text, name)?)
}

/// `vpnd password`: shows the page on which the user changes it, for nothing else has the right to,
/// and where it is kept.
///
/// # Errors
/// If the profile names no web pages, or there is none.
pub async fn password(args: &OwnPasswordArgs) -> anyhow::Result<()> {
    let profiles = listed(&args.service).await?;
    let profile = match (&args.profile, profiles.as_slice()) {
        (Some(name), all) => all.iter().find(|profile| profile.name == *name).ok_or_else(|| {
            anyhow::anyhow!("there is no profile '{}': `vpnd list` shows those there are", harmless(name))
        })?,
        (None, [only]) => only,
        (None, []) => bail!("this machine has no profile: an administrator adds some"),
        (None, _) => bail!("there are several profiles: name the one of the gateway (`vpnd list`)"),
    };
    let name = &profile.name;
    let passwords = Passwords::of_session();
    if let Some(gateway) = &profile.gateway {
        if args.forget {
            passwords.forget(gateway).await?;
            return Ok(say(&format!("no password is kept for {gateway}"))?);
        }
        if let Some(place) = passwords.place(gateway).await {
            say(&format!("a password for {gateway} is kept in {place}"))?;
        }
    }
    match (&profile.problem, &profile.pages) {
        (Some(problem), _) => bail!("{}", harmless(problem)),
        (None, Some(pages)) => browse(
            "change your password on the gateway's web pages, once logged in",
            &format!("{pages}/password"),
        ),
        (None, None) => bail!(
            "the profile '{name}' names no web pages of its gateway ('tcp_port'): ask who runs the gateway where passwords are changed"
        ),
    }
}

/// `vpnd status` of a client. With `watch` until the service is gone or output is closed.
///
/// # Errors
/// If the service can't be reached.
pub async fn status(socket: &Path, shown: Shown) -> anyhow::Result<()> {
    let mut service = ServiceClient::connect(socket).await?;
    let mut before: Option<(Instant, Vec<TunnelStatus>)> = None;
    loop {
        let Tunnels(tunnels) = service.request(Status).await?;
        let now = Instant::now();
        let text = match (shown.json, shown.watch) {
            (true, false) => serde_json::to_string_pretty(&json(&tunnels))? + "\n",
            (true, true) => serde_json::to_string(&json(&tunnels))? + "\n",
            (false, _) => {
                let earlier = before.as_ref().map(|(at, tunnels)| (now - *at, tunnels.as_slice()));
                render(&tunnels, earlier, wall_s())
            }
        };
        let is_screen = shown.watch && !shown.json && io::IsTerminal::is_terminal(&io::stdout());
        let text = if is_screen { format!("{CLEAR_SCREEN}{text}") } else { text };
        match io::stdout().lock().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        if !shown.watch {
            return Ok(());
        }
        before = Some((now, tunnels));
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

fn json(tunnels: &[TunnelStatus]) -> serde_json::Value {
    serde_json::json!({ "tunnels": tunnels })
}

async fn lines<R: Request<Reply = Lines>>(
    args: &OwnTunnelsArgs,
    request: impl FnOnce(Option<ProfileName>) -> R,
) -> anyhow::Result<()> {
    let mut service = ServiceClient::connect(&args.service.socket).await?;
    let profile = args.profile.as_deref().map(profile_name).transpose()?;
    let Lines(lines) = service.request(request(profile)).await?;
    Ok(lines.iter().try_for_each(|line| say(line))?)
}

/// The name of a profile, which may be of any form: the service decides.
fn profile_name(name: &str) -> anyhow::Result<ProfileName> {
    ProfileName::new(name).map_err(|_| {
        anyhow::anyhow!(
            "the name is longer than that of any profile: `vpnd list` shows those of this machine"
        )
    })
}

/// The person's answer: a password from a file or as it was kept, all else from the terminal.
async fn answer(
    args: &UpArgs,
    ask: &Ask,
    passwords: &Passwords,
    used: &mut Option<UsedPassword>,
) -> anyhow::Result<Zeroizing<String>> {
    let Ask::Password { user, gateway } = ask else { return Ok(terminal::ask(ask)?) };
    let account = Account { gateway: gateway.clone(), user: user.clone() };
    let kept = match (&args.credentials, args.password_fd, args.save_password) {
        (None, None, false) => passwords.find(&account).await?,
        _ => None,
    };
    let (from, password) = match (kept, &args.credentials, args.password_fd) {
        (Some((place, password)), _, _) => {
            say(&format!("the password is that in {place}"))?;
            (Some(place), password)
        }
        (None, Some(file), _) => (None, credentials::read(&Source::File(file.clone()))?),
        (None, None, Some(fd)) => (None, credentials::read(&Source::Descriptor(fd))?),
        (None, None, None) => (None, terminal::ask(ask)?),
    };
    *used = Some(UsedPassword { account, password: password.clone(), from });
    Ok(password)
}

/// Shows a page on which to do something, and opens it if there is a screen.
fn browse(what: &str, url: &str) -> anyhow::Result<()> {
    browser::check(url).map_err(anyhow::Error::msg)?;
    say(&format!("{what}: {url}"))?;
    // No browser runs as root.
    if browser::has_screen() && !rustix::process::geteuid().is_root() {
        let mut opener = std::process::Command::new(OPENER);
        opener.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Err(error) = opener.spawn() {
            say(&format!("the page is not opened by itself: {OPENER} does not run ({error})"))?;
        }
    }
    Ok(())
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", vpnd_sys::text::plain(text))?;
    out.flush()
}

/// The reply to a request `R`, unless it is refused.
fn reply_to<R: Request>(reply: ServiceReply) -> anyhow::Result<R::Reply> {
    R::Reply::try_from(reply).map_err(|other| match other {
        ServiceReply::Refused { why, is_final: true } => ChildError::Refused(harmless(&why)).into(),
        ServiceReply::Refused { why, .. } => anyhow::anyhow!("{}", harmless(&why)),
        _ => anyhow::anyhow!("the client service is of another version than this command"),
    })
}

/// The client service, as a command sees it.
struct ServiceClient {
    reader: Reader,
    writer: Writer,
}

impl ServiceClient {
    async fn connect(path: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(path).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => anyhow::anyhow!(
                "the client service does not run: an administrator starts it (`systemctl enable --now vpnd-client`), or \
                 connects as root with `vpnd connect`"
            ),
            io::ErrorKind::PermissionDenied => anyhow::anyhow!(
                "this user is not in the group that may connect: an administrator adds it (`adduser NAME {DEFAULT_GROUP}`), \
                 then log in to this machine again"
            ),
            _ => anyhow::Error::new(error).context(format!("can't reach the client service at {}", path.display())),
        })?;
        let peer = stream.peer_cred()?.uid();
        ensure!(
            peer == 0,
            "{} is user {peer}'s, and not the client service's: nothing was sent",
            path.display()
        );
        let (reader, writer) = frames::split(stream, MAX_FROM_SERVICE);
        Ok(Self { reader, writer })
    }

    async fn send<R: Request>(&mut self, request: R) {
        self.send_message::<R::Message>(&request.into()).await;
    }

    /// Sends what a person has typed.
    async fn answer(&mut self, typed: Typed) {
        self.send_message(&UserRequest::Answer(Some(typed))).await;
    }

    async fn send_message<M: Encode<()>>(&mut self, message: &M) {
        // A service that has refused and gone says why.
        let _ = self.writer.send(message).await;
    }

    async fn receive(&mut self) -> anyhow::Result<ServiceReply> {
        match self.reader.next().await? {
            Some(reply) => Ok(reply),
            None => bail!("the client service has ended the conversation: see its log"),
        }
    }

    async fn request<R: Request>(&mut self, request: R) -> anyhow::Result<R::Reply> {
        self.send(request).await;
        reply_to::<R>(self.receive().await?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    #[tokio::test]
    async fn nothing_is_sent_to_a_socket_that_is_not_roots() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let error = ServiceClient::connect(&path).await.err().unwrap().to_string();
        assert!(error.contains("does not run"), "{error}");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(ServiceClient::connect(&path).await.is_ok(), is_root);
        // The listener matters, not the file's owner.
        let _ = chown(&path, Some(65_534), None);
        assert_eq!(ServiceClient::connect(&path).await.is_ok(), is_root);
        drop(listener);
    }
}
