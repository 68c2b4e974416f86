//! The gateway's store as the auth process has it: the embedded one, or a database to which the
//! privileged parent makes the connections.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::anyhow;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use vpnd_config::ServerConfig;
use vpnd_ipc::channel::Channel;
use vpnd_ipc::gateway::database::{self, DatabaseLaunch, Dialled};
use vpnd_store::postgres::{Access, Dial, Holder, Postgres};
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{Store, StoreError};
use vpnd_sys::clock::steady_s;

/// A store that can't be written is tried this often.
const CATCH_UP_INTERVAL: Duration = Duration::from_millis(250);
/// Devices whose time is over are looked for this often.
const FORGET_INTERVAL: Duration = Duration::from_secs(3600);
const BACKUP_INTERVAL: Duration = Duration::from_secs(6 * 3600);
/// Limit for the parent's answer.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(crate) enum OpenStore {
    Sqlite(Arc<Sqlite>),
    Postgres(Arc<Postgres>),
}

impl OpenStore {
    /// Opens it; `dialling` leads to the parent where it is a database.
    pub(crate) async fn open(
        config: &ServerConfig,
        launch: Option<&DatabaseLaunch>,
        dialling: Option<OwnedFd>,
    ) -> anyhow::Result<Self> {
        let Some(settings) = config.store.database() else {
            return Ok(Self::Sqlite(Arc::new(Sqlite::open(&config.server.store_path())?)));
        };
        let (Some(launch), Some(dialling)) = (launch, dialling) else {
            // An older parent knows no other store.
            return Err(anyhow!("the user store is a database now: restart the gateway"));
        };
        let access = Access::new(settings, &launch.files()).map_err(|why| anyhow!("[store]: {why}"))?;
        let state_dir = config.server.state_dir.clone();
        let holder = Holder::of_state_dir(&state_dir, launch.instance.map(Into::into))?;
        let dial = Arc::new(ByParent::new(dialling)?);
        let opened = tokio::task::spawn_blocking(move || {
            let store = Postgres::open(&access, dial, holder, &state_dir)?;
            // Timestamps of handshakes count before the first of them.
            store.catch_up(steady_s())?;
            Ok::<_, StoreError>(store)
        });
        let store = opened.await??;
        let facts = store.facts();
        if facts.synchronous_commit == "off" || !facts.fsync {
            tracing::warn!(
                synchronous_commit = facts.synchronous_commit,
                fsync = facts.fsync,
                "the database server may lose what it has acknowledged: 'vpnd doctor' has more"
            );
        }
        Ok(Self::Postgres(Arc::new(store)))
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Sqlite(store) => Arc::clone(store) as _,
            Self::Postgres(store) => Arc::clone(store) as _,
        }
    }

    /// Removes what is no longer needed, and has copies made where a file is the store; never
    /// returns.
    pub(crate) async fn look_after(self, forget_device: Duration) {
        let copies = async {
            if let Self::Sqlite(store) = &self {
                back_up(Arc::clone(store)).await;
            }
        };
        tokio::join!(copies, catch_up(self.clone()), forget_devices(self.store(), forget_device));
    }

    fn catch_up(&self, now_s: u64) -> Result<usize, StoreError> {
        match self {
            Self::Sqlite(store) => store.catch_up(now_s),
            Self::Postgres(store) => store.catch_up(now_s),
        }
    }
}

/// Has the parent connect.
struct ByParent {
    channel: Arc<Mutex<Channel>>,
    runtime: Handle,
}

impl ByParent {
    fn new(dialling: OwnedFd) -> io::Result<Self> {
        let channel = Channel::new(dialling.into(), database::MAX_FRAME)?;
        Ok(Self { channel: Arc::new(Mutex::new(channel)), runtime: Handle::current() })
    }
}

impl Dial for ByParent {
    fn dial(&self, host: usize) -> io::Result<OwnedFd> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let channel = Arc::clone(&self.channel);
        let host = u8::try_from(host).map_err(io::Error::other)?;
        self.runtime.spawn(async move {
            let dialled = request(&*channel.lock().await, host).await;
            // A caller that no longer waits lets the connection go.
            let _ = sender.send(dialled);
        });
        receiver.recv_timeout(DIAL_TIMEOUT).map_err(io::Error::other)?
    }
}

async fn request(channel: &Channel, host: u8) -> io::Result<OwnedFd> {
    let exchanged = async {
        channel.send(&database::Dial { host }, &[]).await?;
        channel.receive::<Dialled>().await
    };
    let gone = || io::Error::other("the daemon's first process has ended");
    let answer = exchanged.await.map_err(io::Error::other)?.ok_or_else(gone)?;
    match answer.into_parts().map_err(io::Error::other)? {
        (Dialled::Connected, Some(connection)) => Ok(connection),
        (Dialled::Failed(why), None) => Err(io::Error::other(why)),
        _ => Err(io::Error::other("the daemon's first process has sent another number of descriptors")),
    }
}

/// Makes postponed changes once the store can be written again; never returns.
async fn catch_up(store: OpenStore) {
    let mut last = String::new();
    loop {
        let store = store.clone();
        match tokio::task::spawn_blocking(move || store.catch_up(steady_s())).await {
            Ok(Ok(0)) | Err(_) => {}
            Ok(Err(error)) if error.is_for_now() => {}
            Ok(Ok(changes)) => {
                tracing::info!(changes, "postponed changes are in the user store now")
            }
            Ok(Err(error)) => {
                let error = error.to_string();
                if error != last {
                    tracing::error!(error, "postponed changes could not be written to the user store yet");
                }
                last = error;
            }
        }
        tokio::time::sleep(CATCH_UP_INTERVAL).await;
    }
}

/// Forgets devices without a recent session; never returns.
async fn forget_devices(store: Arc<dyn Store>, after: Duration) {
    loop {
        let store = Arc::clone(&store);
        let before_s = steady_s().saturating_sub(after.as_secs());
        match tokio::task::spawn_blocking(move || store.forget_leases(before_s)).await {
            Ok(Ok(0)) | Err(_) => {}
            Ok(Ok(leases)) => {
                tracing::info!(leases, "addresses of devices without a recent session were freed")
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "devices without a recent session could not be forgotten")
            }
        }
        tokio::time::sleep(FORGET_INTERVAL).await;
    }
}

/// Keeps a copy of the store, which was just verified, next to it.
async fn back_up(store: Arc<Sqlite>) {
    loop {
        let copied = Arc::clone(&store);
        match tokio::task::spawn_blocking(move || copied.back_up()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the user store has no new backup"),
            Err(error) => tracing::error!(%error, "the user store has no new backup"),
        }
        tokio::time::sleep(BACKUP_INTERVAL).await;
    }
}
