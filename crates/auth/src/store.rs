//! The gateway's store as the auth process has it: the embedded one, or a database to which the
//! privileged parent makes the connections.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError, mpsc};
use std::time::Duration;

use anyhow::anyhow;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use vpnd_config::ServerConfig;
use vpnd_ipc::channel::{Channel, ChannelError};
use vpnd_ipc::gateway::auth::{GatewayState, MAX_ADDRESSES};
use vpnd_ipc::gateway::database::{self, DatabaseLaunch, DialOutcome};
use vpnd_proto::control::Text;
use vpnd_store::postgres::{Access, Dial, Dialled, Holder, Postgres};
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
        let holder = holder.of_fleet(config.fleet.as_ref());
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

/// A gateway's report, as the store has it.
pub(crate) fn reported(state: vpnd_store::GatewayState) -> GatewayState {
    GatewayState {
        name: Text::cut(&state.name),
        is_here: state.is_here,
        is_alive: state.is_alive(),
        heard_s: state.heard_s,
        address: state.address,
        version: Text::cut(&state.version),
        sessions: state.sessions,
        load_percent: state.load_percent,
        is_draining: state.is_draining,
        held: state.held,
        addresses: state.addresses.into_iter().take(MAX_ADDRESSES).collect(),
    }
}

/// Callers that wait for connections, by the numbers of their requests; `None` once there are none
/// any more.
type Waiting = Arc<StdMutex<Option<HashMap<u64, mpsc::SyncSender<io::Result<Dialled>>>>>>;

/// Has the parent connect.
struct ByParent {
    channel: Arc<Mutex<Channel>>,
    waiting: Waiting,
    last: AtomicU64,
    runtime: Handle,
}

impl ByParent {
    fn new(dialling: OwnedFd) -> io::Result<Self> {
        let channel = Channel::new(dialling.into(), database::MAX_FRAME)?;
        let waiting = Waiting::new(StdMutex::new(Some(HashMap::new())));
        tokio::spawn(hand_on(channel.clone(), Arc::clone(&waiting)));
        let channel = Arc::new(Mutex::new(channel));
        Ok(Self { channel, waiting, last: AtomicU64::new(0), runtime: Handle::current() })
    }
}

impl Dial for ByParent {
    fn dial(&self, host: usize) -> io::Result<Dialled> {
        let host = u8::try_from(host).map_err(io::Error::other)?;
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::sync_channel(1);
        match &mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(waiting) => drop(waiting.insert(number, sender)),
            None => return Err(gone()),
        }
        let channel = Arc::clone(&self.channel);
        self.runtime.spawn(async move {
            if let Err(error) = channel.lock().await.send(&database::Dial { host, number }, &[]).await {
                tracing::error!(%error, "no connection to the user database can be asked for");
            }
        });
        let dialled = receiver.recv_timeout(DIAL_TIMEOUT);
        if let Some(waiting) = &mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) {
            waiting.remove(&number);
        }
        dialled.map_err(io::Error::other)?
    }
}

fn gone() -> io::Error {
    io::Error::other("the daemon's first process has ended")
}

/// Hands connections to those who asked for them, until there are no more.
async fn hand_on(channel: Channel, waiting: Waiting) {
    let handed = async {
        while let Some(received) = channel.receive::<database::Dialled>().await? {
            let (database::Dialled { number, outcome }, connection) = received.into_parts()?;
            let dialled = match (outcome, connection) {
                (DialOutcome::Connected(files), Some(socket)) => {
                    Ok(Dialled { socket, files: Some(files.files()) })
                }
                (DialOutcome::Failed(why), None) => Err(io::Error::other(why)),
                _ => {
                    return Err(ChannelError::Broken(
                        "another number of descriptors than there are connections",
                    ));
                }
            };
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            // A caller that no longer waits lets the connection go.
            if let Some(caller) = waiting.as_mut().and_then(|waiting| waiting.remove(&number)) {
                let _ = caller.send(dialled);
            }
        }
        Ok(())
    };
    if let Err(error) = handed.await {
        tracing::error!(%error, "there are no more connections to the user database: restart the gateway");
    }
    *waiting.lock().unwrap_or_else(PoisonError::into_inner) = None;
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
