//! The client service: starts clients for users of this machine who are not root.
//!
//! It listens on a Unix socket that a group may open, and runs a client for each tunnel by a
//! profile that root has placed on the machine, or for the gateway of one by a profile of the user
//! ([`profiles`]). While no user has a tunnel, it runs one for the machine itself, if there is a
//! profile for that ([`machine`]). Questions of a login and the address of a page pass to the
//! user's own command, which asks at the user's terminal and opens the user's browser.
//!
//! Invariants: who a user is, is the kernel's word (`SO_PEERCRED`); what one may do is decided in
//! [`tunnels`] and [`own_profile`] alone; nothing of a user but a profile's name, who logs in and
//! answers has an effect, and no path or address of a user is opened here; connections, frames and
//! times are bounded for each user. A client ends in order when the service does, however that
//! ends: it watches its end of the channel. This process talks to no network.

mod conversation;
mod former_users;
mod machine;
mod own_profile;
mod profiles;
mod running;
mod tunnels;

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::Args;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::members::{Admission, Members};
use crate::options::ServiceOptions;
use crate::user_socket::{REFUSAL_INTERVAL, accepted, listen};
use former_users::ThisMachine;
use running::Handle;
use tunnels::Tunnels;
use vpnd_client::args::DEFAULT_CLIENT_STATE;
use vpnd_client::user_messages::DEFAULT_SOCKET;
use vpnd_journal::JournalDirectory;
use vpnd_sys::log_limit::LogLimit;
use vpnd_sys::netlink::Netlink;
use vpnd_sys::process::{self, Capability};
use vpnd_sys::service_manager;

/// Default directory of the profiles.
pub const DEFAULT_PROFILES: &str = "/etc/vpnd/profiles.d";

/// Time for all clients to end in order: each informs its gateway and undoes its changes.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// Shortest interval between two looks for users who are gone.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Arguments of `vpnd client-service`.
#[derive(Args, Clone, Debug)]
pub struct ServiceArgs {
    /// Socket on which users' commands arrive
    #[arg(long, default_value = DEFAULT_SOCKET, value_name = "P")]
    pub socket: PathBuf,
    /// Directory of the profiles, NAME.toml each; only root may write there
    #[arg(long, default_value = DEFAULT_PROFILES, value_name = "D")]
    pub profiles: PathBuf,
    /// Directory of what is kept for each user: the keys by which gateways recognise this device,
    /// and profiles
    #[arg(long, default_value = DEFAULT_CLIENT_STATE, value_name = "D")]
    pub state_dir: PathBuf,
    #[command(flatten)]
    pub options: ServiceOptions,
}

/// State that all conversations share.
struct Service {
    args: ServiceArgs,
    members: Members,
    tunnels: Mutex<Tunnels<Handle>>,
    /// The tasks of running clients.
    clients: Mutex<JoinSet<()>>,
    /// Lines about users who were refused.
    refusals: LogLimit,
    /// Looks for former users.
    sweeps: LogLimit,
    machines_turn: machine::Turn,
}

impl Service {
    fn tunnels(&self) -> MutexGuard<'_, Tunnels<Handle>> {
        self.tunnels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clients(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Undoes what clients that were killed have left on the machine.
    async fn clean_up(&self) -> anyhow::Result<()> {
        let directory = JournalDirectory::create(&self.args.options.journal_dir)?;
        Ok(vpnd_journal::undo_what_was_left(&directory, &Netlink::open()?).await?)
    }

    /// The directory with one for each user.
    fn users(&self) -> PathBuf {
        self.args.state_dir.join("users")
    }

    /// Begins to remove what is kept for users who have no account any more, unless that was done
    /// lately.
    fn forget_former_users(self: &Arc<Self>) {
        if !self.sweeps.admits() {
            return;
        }
        let service = Arc::clone(self);
        // The machine's users may be far away.
        tokio::task::spawn_blocking(move || {
            let has_tunnel = |uid| service.tunnels().is_owner(uid);
            match former_users::remove(&service.users(), &ThisMachine, has_tunnel, SystemTime::now()) {
                Ok(removed) => removed.iter().for_each(|name| {
                    tracing::info!("the keys and profiles of {name} are removed: there is no such account");
                }),
                Err(error) => tracing::warn!(%error, "what is kept of former users can't be looked through"),
            }
        });
    }

    /// Logs that a user gets nothing.
    fn log_refusal(&self, uid: u32, why: &str) {
        if self.refusals.admits() {
            tracing::warn!(uid, "refused: {why}");
        }
    }
}

/// Runs it until it gets SIGTERM or SIGINT.
///
/// # Errors
/// The failure and a remedy, for the log.
pub async fn run(args: ServiceArgs) -> anyhow::Result<()> {
    process::require(Capability::NetAdmin)?;
    process::forbid_core_dumps()
        .context("core dumps can't be switched off, and they could hold passwords")?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let members = Members::of(&args.options.group)?;
    if members.group().is_none() {
        tracing::warn!(
            "there is no group '{}', so only root may connect: `groupadd --system {0}`",
            args.options.group
        );
    }
    let listener = listen(&args.socket, members.group())?;
    let service = Arc::new(Service {
        members,
        tunnels: Mutex::new(Tunnels::new()),
        clients: Mutex::new(JoinSet::new()),
        refusals: LogLimit::new(64, REFUSAL_INTERVAL),
        sweeps: LogLimit::new(1, SWEEP_INTERVAL),
        machines_turn: machine::Turn::default(),
        args,
    });
    service.clean_up().await?;
    service.forget_former_users();
    tracing::info!(socket = %service.args.socket.display(), "users may connect");
    service_manager::ready("users may connect");
    let machine = tokio::spawn(machine::keep(Arc::clone(&service)));
    let mut conversations = JoinSet::new();
    let name = loop {
        while conversations.try_join_next().is_some() {}
        tokio::select! {
            _ = terminate.recv() => break "SIGTERM",
            _ = interrupt.recv() => break "SIGINT",
            stream = accepted(&listener) => {
                if let Some((stream, admission)) = admit(&service, stream) {
                    conversations.spawn(conversation::hold(Arc::clone(&service), stream, admission));
                }
            }
        }
    };
    tracing::info!(reason = name, "the service stops, and its clients with it");
    service_manager::stopping();
    machine.abort();
    // Nothing starts a client any more.
    let _ = machine.await;
    end(&service, conversations).await;
    let _ = fs::remove_file(&service.args.socket);
    Ok(())
}

/// Takes a connection of a user who may have one.
fn admit(service: &Service, stream: UnixStream) -> Option<(UnixStream, Admission)> {
    let uid = match stream.peer_cred() {
        Ok(peer) => peer.uid(),
        Err(error) => {
            tracing::warn!(%error, "the kernel does not name the user who has connected");
            return None;
        }
    };
    match service.members.admit(uid) {
        Ok(admission) => Some((stream, admission)),
        Err(why) => {
            service.log_refusal(uid, &why.to_string());
            None
        }
    }
}

/// Ends all clients in order. That is no user's end of a tunnel.
async fn end(service: &Service, mut conversations: JoinSet<()>) {
    // Before the conversations, whose end would be taken for their users'.
    service.tunnels().handles().for_each(Handle::leave);
    conversations.abort_all();
    while conversations.join_next().await.is_some() {}
    let mut clients = std::mem::take(&mut *service.clients());
    let all = async { while clients.join_next().await.is_some() {} };
    if tokio::time::timeout(END_TIMEOUT, all).await.is_err() {
        tracing::warn!("not all clients have ended in time; `vpnd cleanup` undoes what they leave");
    }
}
