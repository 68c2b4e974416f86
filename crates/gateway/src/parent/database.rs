//! Connections to the user database for the auth process, which may make none.
//!
//! INVARIANT: the auth process chooses among the configured servers by number, and gets nothing
//! else of the network; what is sent over a connection this process never sees.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::JoinSet;

use vpnd_config::database::PostgresSettings;
use vpnd_ipc::channel::{self, Channel, ChannelError};
use vpnd_ipc::gateway::database::{DatabaseLaunch, Dial, DialOutcome, Dialled, MAX_FRAME};
use vpnd_sys::allowance::Allowance;
use vpnd_sys::clock::now;

/// Connections at once, and time for each further one: an honest process has 4, and tries each
/// configured server once a second for each of them.
const BURST: u32 = 32;
const INTERVAL: Duration = Duration::from_millis(50);

/// Connections under way at most.
const MAX_DIALLING: usize = 64;

/// This start of the gateway, by which a database knows its processes.
static INSTANCE: LazyLock<[u8; 16]> = LazyLock::new(|| {
    let mut instance: [u8; 16] = rand::random();
    // The second half is the same for all that one running system makes: no copy of it has that.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = boot.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    if let Ok(number) = u64::from_str_radix(&digits, 16) {
        instance[8..].copy_from_slice(&number.to_be_bytes());
    }
    instance
});

/// An auth process's part of a database: for its first message, and its channel.
pub(super) fn of_auth(
    settings: Option<&PostgresSettings>,
) -> anyhow::Result<(Option<DatabaseLaunch>, Option<OwnedFd>)> {
    let Some(settings) = settings else { return Ok((None, None)) };
    let launch = DatabaseLaunch::new(settings.read_files()?, Some(*INSTANCE));
    let (ours, theirs) = channel::pair()?;
    tokio::spawn(serve(ours, Arc::new(Servers { settings: settings.clone(), last: launch.clone() })));
    Ok((Some(launch), Some(theirs.into())))
}

/// The configured servers.
struct Servers {
    settings: PostgresSettings,
    /// Their files as they were at the start.
    last: DatabaseLaunch,
}

/// Dials for one auth process until that has ended.
async fn serve(stream: UnixStream, servers: Arc<Servers>) {
    let served = async {
        let channel = Channel::new(stream, MAX_FRAME)?;
        let answers = Arc::new(Mutex::new(channel.clone()));
        let mut allowance = Allowance::new(BURST, INTERVAL);
        let mut dialling = JoinSet::new();
        while let Some(received) = channel.receive::<Dial>().await? {
            let Dial { host, number } = received.alone()?;
            while dialling.try_join_next().is_some() {}
            let is_allowed = allowance.take(now()) && dialling.len() < MAX_DIALLING;
            let (servers, answers) = (Arc::clone(&servers), Arc::clone(&answers));
            // One that is switched off keeps no other waiting.
            dialling.spawn(async move {
                let dialled = if is_allowed {
                    servers.dial(host).await
                } else {
                    Err("there were too many connections within a short time".to_owned())
                };
                answer(&*answers.lock().await, number, dialled).await
            });
        }
        anyhow::Ok(())
    };
    if let Err(error) = served.await {
        tracing::error!(%error, "the auth process gets no more connections to the user database");
    }
}

async fn answer(channel: &Channel, number: u64, dialled: Result<(OwnedFd, DatabaseLaunch), String>) {
    let failed = |why| Dialled { number, outcome: DialOutcome::Failed(why) };
    let sent = match dialled {
        Ok((connection, files)) => {
            let connected = Dialled { number, outcome: DialOutcome::Connected(files) };
            match channel.send(&connected, &[connection.as_fd()]).await {
                Err(ChannelError::Broken(why)) => channel.send(&failed(why.to_owned()), &[]).await,
                sent => sent,
            }
        }
        Err(why) => channel.send(&failed(why), &[]).await,
    };
    if let Err(error) = sent {
        tracing::debug!(%error, "the auth process takes no connection to the user database");
    }
}

impl Servers {
    /// Connects to a server, and reads the files again: a password or a certificate may be a new
    /// one by now.
    async fn dial(self: Arc<Self>, host: u8) -> Result<(OwnedFd, DatabaseLaunch), String> {
        let dialled = tokio::task::spawn_blocking(move || {
            let host = self.settings.hosts.get(usize::from(host)).ok_or("no such server is configured")?;
            let connection = host.dial().map_err(|error| error.to_string())?;
            let files = match self.settings.read_files() {
                Ok(files) => DatabaseLaunch::new(files, None),
                Err(error) => {
                    let error = vpnd_sys::text::format_chain(&error);
                    tracing::warn!(error, "the files of [store] are used as they were at the start");
                    self.last.clone()
                }
            };
            Ok((connection, files))
        });
        dialled.await.map_err(|error| error.to_string())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use vpnd_config::database::DatabaseHost;
    use vpnd_config::source::SecretPlace;

    fn servers(socket: PathBuf, password: Option<SecretPlace>) -> Arc<Servers> {
        let settings = PostgresSettings {
            hosts: vec![DatabaseHost::Socket(socket)],
            server_name: None,
            database: String::new(),
            user: String::new(),
            password,
            identity: None,
            ca: None,
        };
        let last = DatabaseLaunch::new(settings.read_files().unwrap(), None);
        Arc::new(Servers { settings, last })
    }

    #[tokio::test]
    async fn only_configured_servers_are_dialled_at_a_limited_rate() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server");
        let _server = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (ours, theirs) = channel::pair().unwrap();
        tokio::spawn(serve(ours, servers(path, None)));
        let channel = Channel::new(theirs, MAX_FRAME).unwrap();
        let ask = async |host| {
            channel.send(&Dial { host, number: u64::from(host) + 7 }, &[]).await.unwrap();
            let answer = channel.receive::<Dialled>().await.unwrap().unwrap();
            assert_eq!(answer.message.number, u64::from(host) + 7);
            (answer.message.outcome, answer.descriptors)
        };
        let (connected, descriptors) = ask(0).await;
        assert!(matches!(connected, DialOutcome::Connected(_)) && descriptors.len() == 1);
        let (other, descriptors) = ask(1).await;
        assert!(matches!(&other, DialOutcome::Failed(why) if why.contains("no such server")));
        assert!(descriptors.is_empty());
        let mut refused = false;
        for _ in 0..BURST * 2 {
            refused |= matches!(ask(0).await.0, DialOutcome::Failed(why) if why.contains("too many"));
        }
        assert!(refused);
    }

    #[tokio::test]
    async fn a_password_is_read_again_for_each_connection_and_the_last_one_stays_without_it() {
        let directory = tempfile::tempdir().unwrap();
        let (path, file) = (directory.path().join("server"), directory.path().join("password"));
        let _server = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let write = |text: &str| {
            use vpnd_sys::secret_file::{Existing, SECRET_MODE};
            vpnd_sys::secret_file::write(&file, text.as_bytes(), SECRET_MODE, Existing::Replace).unwrap();
        };
        write("first");
        let servers = servers(path, Some(SecretPlace::File(file.clone())));
        let password = async || {
            let (_, files) = Arc::clone(&servers).dial(0).await.unwrap();
            files.files().password.unwrap().to_string()
        };
        write("second");
        assert_eq!(password().await, "second");
        std::fs::remove_file(&file).unwrap();
        assert_eq!(password().await, "first");
    }
}
