//! `vpnd status`, `vpnd kick`, `vpnd drain`, `vpnd reload`, `vpnd source confirm` and `vpnd server
//! --upgrade`.

pub mod drain;
mod fleet_table;
pub(crate) mod table;

use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::admin_store::{Opening, Stores};
use crate::cli::{AdminArgs, KickArgs, SourceConfirmArgs, StatusArgs};
use crate::commands::orders::{self, Carried};
use table::{ID_DIGITS, Rates, render};
use vpnd_config::DEFAULT_CONFIG;
use vpnd_config::{ConfigError, ServerConfig};
use vpnd_gateway::args::ServerArgs;
use vpnd_ipc::admin::client::{Client, ClientError};
use vpnd_ipc::admin::{Kicked, Status};
use vpnd_store::Kick;
use vpnd_store::audit::AuditEntry;
use vpnd_sys::clock::wall_s;

/// Pause between two looks of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Fewest digits of a session's id that `vpnd kick` takes for one: fewer are more likely a user's
/// name.
const MIN_ID_DIGITS: usize = 8;
/// Cursor to the top left, and the screen empty from there.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The configuration that should name the socket can't be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The gateway can't be reached or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("no session of a user {0:?} and none with that id: `vpnd status` shows all")]
    NoSuchSession(String),
    #[error(
        "sessions of this gateway were ended: {own}; the other gateways of the fleet were not told: {why}"
    )]
    NotElsewhere { own: usize, why: String },
    #[error(
        "sessions were ended: {ended}; but these have not confirmed that theirs have: {gateways}. They end theirs once \
         this gateway or the database reaches them"
    )]
    NotConfirmed { ended: usize, gateways: String },
    #[error(
        "sessions were ended: {0}; but neither the user store nor the state directory keeps that. Their devices stay out \
         while the gateway runs, which tries again until the store does; a restart or upgrade before that lets them in \
         again. The gateway's log says what is wrong with both"
    )]
    NotKept(usize),
    #[error("several sessions have ids that begin with {0:?}: give more digits")]
    Ambiguous(String),
    #[error("the source {0:?} shows all users with sessions: there is nothing to confirm")]
    NobodyMissing(String),
    #[error("can't write the result: {0}")]
    Output(#[from] io::Error),
    #[error("that time has passed already")]
    Past,
    #[error("the drain was cancelled by another command, so logins are accepted again")]
    Cancelled,
    #[error("the gateway is drained and was not stopped: {0}; stop it as you have started it")]
    NotStopped(io::Error),
}

/// Shows a running gateway on standard output.
///
/// # Errors
/// [`CommandError`]. A closed pipe is no error.
pub fn status(args: &StatusArgs) -> Result<(), CommandError> {
    let mut client = Client::connect(&socket(&args.admin)?)?;
    let mut out = io::stdout().lock();
    if args.fleet {
        let gateways = client.fleet()?;
        let text = if args.json { json(&gateways)? } else { fleet_table::render(&gateways) };
        return Ok(write_all(&mut out, &text)?);
    }
    let shown = match (args.watch, args.json) {
        (false, false) => write_all(&mut out, &render(&client.status()?, None)),
        (false, true) => write_all(&mut out, &json(&client.status()?)?),
        (true, json) => watch(&mut client, &mut out, json)?,
    };
    match shown {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Ends sessions, those of a user at all gateways of the fleet, and prints how many there were.
///
/// # Errors
/// [`CommandError`], also if there was no such session, or a gateway has not confirmed that its own
/// have ended.
pub fn kick(args: &KickArgs, stores: &dyn Stores) -> Result<(), CommandError> {
    let mut client = Client::connect(&socket(&args.admin)?)?;
    let status = client.status()?;
    let target = target(&status, &args.target)?;
    let Kicked { sessions: own, is_kept } = client.kick(&target)?;
    // A session of this gateway's, by its id, is at no other one.
    let is_session = status.sessions.iter().any(|session| session.id == target);
    let is_everywhere = status.fleet.is_some() && !is_session;
    let elsewhere = is_everywhere.then(|| kick_elsewhere(&args.admin, stores, &target));
    // The kick itself is kept then, and is written once the store can be.
    let is_kept = is_kept || matches!(elsewhere, Some(Ok(_)));
    let carried = elsewhere.as_ref().and_then(|left| left.as_ref().ok());
    let ended = own + carried.map_or(0, Carried::ended);
    let missing = carried.filter(|carried| !carried.is_confirmed()).map(Carried::unconfirmed);
    if ended > 0 || missing.is_some() {
        let detail = args.reason.behind(target);
        record(stores, &args.admin.config, &args.admin.socket, "kicked", &detail);
    }
    match (elsewhere, missing, ended) {
        (Some(Err(why)), ..) => Err(CommandError::NotElsewhere { own, why }),
        (_, Some(gateways), ended) => Err(CommandError::NotConfirmed { ended, gateways }),
        (.., 0) => Err(CommandError::NoSuchSession(args.target.clone())),
        (.., n) if !is_kept => Err(CommandError::NotKept(n)),
        (.., 1) => Ok(write_all(&mut io::stdout(), "1 session ended\n")?),
        (.., n) => Ok(write_all(&mut io::stdout(), &format!("{n} sessions ended\n"))?),
    }
}

/// Has the running gateway end the sessions that a user has at the other gateways of the fleet,
/// which it does without the database, and waits for their confirmations.
fn kick_elsewhere(args: &AdminArgs, stores: &dyn Stores, user: &str) -> Result<Carried, String> {
    if args.socket.is_some() {
        return Err("give --config in place of --socket, and the state directory is found".to_owned());
    }
    let config = ServerConfig::load(&args.config).map_err(|error| error.to_string())?;
    let (id, user, at_s) = (rand::random(), user.to_owned(), wall_s());
    let kick = Kick { id, user, at_s, ..Kick::default() };
    orders::give(&config, stores, &kick, || ()).map_err(|error| error.to_string())
}

/// Has a running gateway end the sessions of users whom a source no longer shows, and prints how
/// many users these are.
///
/// # Errors
/// [`CommandError`], also if the source shows all of them.
pub fn confirm_absences(args: &SourceConfirmArgs, stores: &dyn Stores) -> Result<(), CommandError> {
    let users = Client::connect(&socket(&args.admin)?)?.confirm_absences(&args.name)?;
    if users == 0 {
        return Err(CommandError::NobodyMissing(args.name.clone()));
    }
    record(stores, &args.admin.config, &args.admin.socket, "absences-confirmed", &args.name);
    let text = format!("the sessions of {users} users end now, unless the source shows them after all\n");
    Ok(write_all(&mut io::stdout(), &text)?)
}

/// Has a running gateway read its configuration again and prints what has changed.
///
/// # Errors
/// [`CommandError`]; the gateway goes on with what it had then.
pub fn reload(args: &AdminArgs, stores: &dyn Stores) -> Result<(), CommandError> {
    let report = Client::connect(&socket(args)?)?.reload()?;
    record(stores, &args.config, &args.socket, "reloaded", "");
    Ok(write_all(&mut io::stdout(), &format!("{}\n", report.trim_end()))?)
}

/// Has the program that is installed now replace a running gateway, and prints the result.
///
/// # Errors
/// [`CommandError`]; if the gateway gives a reason, it goes on as it was.
pub fn upgrade(args: &ServerArgs, stores: &dyn Stores) -> Result<(), CommandError> {
    let config = ServerConfig::load(&args.config)?;
    let report = Client::connect(&config.admin.socket)?.upgrade()?;
    record(stores, &args.config, &None, "upgraded", env!("CARGO_PKG_VERSION"));
    Ok(write_all(&mut io::stdout(), &format!("{}\n", report.trim_end()))?)
}

/// Records in the gateway's audit file what was done. The gateway's worker, which does it, is not
/// believed about that. A failure is said, and undoes nothing.
pub(super) fn record(
    stores: &dyn Stores,
    config: &Path,
    socket: &Option<PathBuf>,
    event: &str,
    detail: &str,
) {
    let work = || -> Result<(), String> {
        if socket.is_some() {
            return Err("give --config in place of --socket, and it is found".to_owned());
        }
        let config = ServerConfig::load(config).map_err(|error| error.to_string())?;
        if !config.audit.enabled {
            return Ok(());
        }
        let mut store = stores.open(&config, Opening::Audit).map_err(|error| error.to_string())?;
        let (event, detail) = (event.to_owned(), detail.to_owned());
        let (user, source, by) = Default::default();
        let entry = AuditEntry { at_s: wall_s(), event, user, source, detail, by };
        store.audit(entry).map_err(|error| error.to_string())
    };
    if let Err(error) = work() {
        eprintln!("vpnd: it is done, but not recorded in the audit file: {}", vpnd_sys::text::plain(&error));
    }
}

/// Shows the status once a second. Ends when the gateway does or the pipe is closed.
fn watch(client: &mut Client, out: &mut impl Write, as_json: bool) -> Result<io::Result<()>, CommandError> {
    let redraw = !as_json && io::stdout().is_terminal();
    let mut earlier: Option<(Instant, Status)> = None;
    loop {
        let status = client.status()?;
        let now = Instant::now();
        let text = if as_json {
            serde_json::to_string(&status).map_err(io::Error::from)? + "\n"
        } else {
            let rates = earlier.as_ref().map(|(then, before)| Rates::between(before, &status, now - *then));
            let text = render(&status, Some(&rates.unwrap_or_default()));
            if redraw { format!("{CLEAR_SCREEN}{text}") } else { text + "\n" }
        };
        if let Err(error) = write_all(out, &text) {
            return Ok(Err(error));
        }
        earlier = Some((now, status));
        std::thread::sleep(WATCH_INTERVAL);
    }
}

fn json(shown: &impl Serialize) -> Result<String, CommandError> {
    Ok(serde_json::to_string_pretty(shown).map_err(io::Error::from)? + "\n")
}

fn write_all(out: &mut impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The socket that the arguments mean. A machine without the default configuration gets the default
/// socket.
fn socket(args: &AdminArgs) -> Result<PathBuf, ConfigError> {
    if let Some(socket) = &args.socket {
        return Ok(socket.clone());
    }
    match ServerConfig::load(&args.config) {
        Ok(config) => Ok(config.admin.socket),
        Err(ConfigError::Read { source, .. })
            if source.kind() == io::ErrorKind::NotFound && args.config == Path::new(DEFAULT_CONFIG) =>
        {
            Ok(default_socket())
        }
        Err(error) => Err(error),
    }
}

/// Path of the socket in the default configuration, if that can be read, else the default path.
fn default_socket() -> PathBuf {
    vpnd_sys::secret_file::parent(Path::new(DEFAULT_CONFIG)).join("state").join("admin.sock")
}

/// Resolves `wanted` to a session or user: the digits of an id that the table shows stand for the
/// whole id. Names of users win, and an unknown name goes to the gateway unchanged.
fn target(status: &Status, wanted: &str) -> Result<String, CommandError> {
    if status.sessions.iter().any(|session| session.user == wanted) || wanted.len() < MIN_ID_DIGITS {
        return Ok(wanted.to_owned());
    }
    let mut ids = status.sessions.iter().map(|session| &session.id).filter(|id| id.starts_with(wanted));
    match (ids.next(), ids.next()) {
        (Some(id), None) => Ok(id.clone()),
        (Some(_), Some(_)) => Err(CommandError::Ambiguous(wanted.to_owned())),
        (None, _) => Ok(wanted.to_owned()),
    }
}

const _: () = assert!(ID_DIGITS >= MIN_ID_DIGITS, "what the table shows must be enough to kick");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin_store::InThisProcess;
    use crate::cli::ReasonArgs;
    use vpnd_ipc::admin::testing::status;

    #[test]
    fn digits_of_an_id_stand_for_it_and_names_win() {
        let mut status = status();
        let id = status.sessions[0].id.clone();
        assert_eq!(target(&status, &id[..ID_DIGITS]).unwrap(), id);
        assert_eq!(target(&status, &id[..MIN_ID_DIGITS - 1]).unwrap(), &id[..MIN_ID_DIGITS - 1]);
        assert_eq!(target(&status, "nobody-here").unwrap(), "nobody-here");
        status.sessions[1].id = format!("{}{}", &id[..16], "f".repeat(16));
        assert!(matches!(target(&status, &id[..16]), Err(CommandError::Ambiguous(_))));
        assert_eq!(target(&status, &id[..17]).unwrap(), id);
        status.sessions[1].user = id[..8].to_owned();
        assert_eq!(target(&status, &id[..8]).unwrap(), &id[..8]);
    }

    #[test]
    fn the_socket_comes_from_the_arguments_the_configuration_or_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("server.toml");
        let args = |socket: Option<&str>, config: &Path| AdminArgs {
            socket: socket.map(PathBuf::from),
            config: config.to_owned(),
        };
        assert_eq!(socket(&args(Some("/x.sock"), &config)).unwrap(), Path::new("/x.sock"));
        assert!(matches!(socket(&args(None, &config)), Err(ConfigError::Read { .. })), "no such file");
        std::fs::write(&config, "[admin]\nsockets = 1\n").unwrap();
        assert!(matches!(socket(&args(None, &config)), Err(ConfigError::Invalid(_))));
        let least = "[tls]\ncertificate = 'c'\nkey = 'k'\n[tunnel]\npool_v4 = '10.86.0.0/16'\n";
        std::fs::write(&config, format!("{least}[admin]\nsocket = 'my.sock'\n")).unwrap();
        assert_eq!(socket(&args(None, &config)).unwrap(), dir.path().join("my.sock"));
        let implied = ServerConfig::parse(least, DEFAULT_CONFIG, Path::new("/etc/vpnd")).unwrap();
        assert_eq!(default_socket(), implied.admin.socket);
    }

    #[test]
    fn a_kick_of_no_session_is_an_error_as_is_one_that_is_not_kept() {
        use std::io::{BufRead as _, BufReader, Write as _};

        use vpnd_ipc::admin::Response;

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let gateway = std::thread::spawn(move || {
            for ended in [Response::Ended(0), Response::Ended(1), Response::EndedForNow(2)] {
                let (stream, _) = listener.accept().unwrap();
                let mut requests = BufReader::new(&stream).lines();
                for answer in [Response::Status(Box::new(status())), ended] {
                    requests.next().unwrap().unwrap();
                    writeln!(&stream, "{}", serde_json::to_string(&answer).unwrap()).unwrap();
                }
            }
        });
        let args = |target: &str| KickArgs {
            target: target.to_owned(),
            reason: ReasonArgs { reason: None },
            admin: AdminArgs { socket: Some(path.clone()), config: PathBuf::new() },
        };
        let error = kick(&args("eve"), &InThisProcess).unwrap_err();
        assert!(matches!(&error, CommandError::NoSuchSession(name) if name == "eve"), "{error}");
        kick(&args("ann"), &InThisProcess).unwrap();
        let error = kick(&args("ann"), &InThisProcess).unwrap_err();
        assert!(matches!(error, CommandError::NotKept(2)), "{error}");
        gateway.join().unwrap();
    }
}
