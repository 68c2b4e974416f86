//! Connections to the user database for the auth process, which may make none.
//!
//! INVARIANT: the auth process chooses among the configured servers by number, and gets nothing
//! else of the network; what is sent over a connection this process never sees.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::LazyLock;
use std::time::Duration;

use vpnd_config::database::{DatabaseHost, PostgresSettings};
use vpnd_ipc::channel::{self, Channel};
use vpnd_ipc::gateway::database::{DatabaseLaunch, Dial, Dialled, MAX_FRAME};
use vpnd_sys::allowance::Allowance;
use vpnd_sys::clock::now;

/// Connections at once, and time for each further one: an honest process has 4, and tries each
/// configured server once a second for each of them.
const BURST: u32 = 32;
const INTERVAL: Duration = Duration::from_millis(50);

/// This start of the gateway, by which a database knows its processes.
static INSTANCE: LazyLock<[u8; 16]> = LazyLock::new(rand::random);

/// What an auth process needs of a database: for its first message, and its channel.
pub(super) fn of_auth(
    settings: Option<&PostgresSettings>,
) -> anyhow::Result<(Option<DatabaseLaunch>, Option<OwnedFd>)> {
    let Some(settings) = settings else { return Ok((None, None)) };
    let launch = DatabaseLaunch::new(settings.read_files()?, Some(*INSTANCE));
    let (ours, theirs) = channel::pair()?;
    tokio::spawn(serve(ours, settings.hosts.clone()));
    Ok((Some(launch), Some(theirs.into())))
}

/// Dials for one auth process until that has ended.
async fn serve(stream: UnixStream, hosts: Vec<DatabaseHost>) {
    let served = async {
        let channel = Channel::new(stream, MAX_FRAME)?;
        let mut allowance = Allowance::new(BURST, INTERVAL);
        while let Some(received) = channel.receive::<Dial>().await? {
            let Dial { host } = received.alone()?;
            let dialled = match hosts.get(usize::from(host)) {
                _ if !allowance.take(now()) => Err("there were too many connections of late".to_owned()),
                None => Err("no such server is configured".to_owned()),
                Some(host) => dial(host.clone()).await,
            };
            match dialled {
                Ok(connection) => channel.send(&Dialled::Connected, &[connection.as_fd()]).await?,
                Err(why) => channel.send(&Dialled::Failed(why), &[]).await?,
            }
        }
        anyhow::Ok(())
    };
    if let Err(error) = served.await {
        tracing::error!(%error, "the auth process gets no more connections to the user database");
    }
}

async fn dial(host: DatabaseHost) -> Result<OwnedFd, String> {
    let dialled = tokio::task::spawn_blocking(move || host.dial()).await;
    dialled.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_configured_servers_are_dialled_and_not_without_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server");
        let _server = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (ours, theirs) = channel::pair().unwrap();
        tokio::spawn(serve(ours, vec![DatabaseHost::Socket(path)]));
        let channel = Channel::new(theirs, MAX_FRAME).unwrap();
        let ask = async |host| {
            channel.send(&Dial { host }, &[]).await.unwrap();
            channel.receive::<Dialled>().await.unwrap().unwrap()
        };
        let connected = ask(0).await;
        assert!(matches!(connected.message, Dialled::Connected) && connected.descriptors.len() == 1);
        let other = ask(1).await;
        assert!(matches!(&other.message, Dialled::Failed(why) if why.contains("no such server")));
        assert!(other.descriptors.is_empty());
        let mut refused = false;
        for _ in 0..BURST * 2 {
            let answer = ask(0).await;
            refused |= matches!(&answer.message, Dialled::Failed(why) if why.contains("too many"));
        }
        assert!(refused);
    }
}
