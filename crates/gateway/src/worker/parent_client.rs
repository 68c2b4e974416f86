//! The worker's requests to the privileged parent, on behalf of administrators who wait for the
//! result.

use std::net::IpAddr;

use vpnd_ipc::channel::Channel;
use vpnd_ipc::gateway::{FromWorker, HostRouteChanges};
use vpnd_ipc::request::Request;
use vpnd_ipc::requests::{Gone, NoReply, Requests};

/// For an administrator: the changes, or why there are none.
pub(super) type AdminResult = Result<String, String>;

/// Read the configuration again and put it into force.
struct Reload;

/// Replace the daemon by the program that is installed now.
struct Upgrade;

/// Have the kernel forget the connections of these addresses.
struct Release(Vec<IpAddr>);

/// Announce addresses of clients, or no longer.
struct SetHosts(HostRouteChanges);

impl From<Reload> for FromWorker {
    fn from(_: Reload) -> Self {
        Self::ReadConfiguration
    }
}

impl From<Upgrade> for FromWorker {
    fn from(_: Upgrade) -> Self {
        Self::Upgrade
    }
}

impl From<Release> for FromWorker {
    fn from(Release(addresses): Release) -> Self {
        Self::Released(addresses)
    }
}

impl From<SetHosts> for FromWorker {
    fn from(SetHosts(changes): SetHosts) -> Self {
        Self::Hosts(changes)
    }
}

impl Request for Reload {
    type Message = FromWorker;
    type Reply = AdminResult;
}

impl Request for Upgrade {
    type Message = FromWorker;
    type Reply = AdminResult;
}

impl Request for Release {
    type Message = FromWorker;
    type Reply = ();
}

impl Request for SetHosts {
    type Message = FromWorker;
    type Reply = bool;
}

/// The channel to the parent. Its replies have no numbers; they come in the order of the requests
/// of their kind.
pub(super) struct ParentClient {
    requests: Requests<FromWorker>,
    upgrading: tokio::sync::Mutex<()>,
}

impl ParentClient {
    pub(super) fn start(channel: Channel) -> Self {
        let requests = Requests::start(channel, |_, message| message);
        Self { requests, upgrading: tokio::sync::Mutex::default() }
    }

    /// Has the configuration read again and put into force.
    pub(super) async fn reload(&self) -> AdminResult {
        self.requests.request(Reload).await.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// The configuration was read again. Gives the outcome back if no command waits for it: SIGHUP
    /// has the same effect.
    pub(super) fn reload_finished(&self, outcome: AdminResult) -> Result<(), AdminResult> {
        self.requests.reply_to_oldest::<Reload>(outcome)
    }

    /// Has the daemon replaced.
    pub(super) async fn upgrade(&self) -> AdminResult {
        let lock = self.upgrading.try_lock();
        // The requester may have gone meanwhile, but the upgrade goes on.
        if lock.is_err() || self.requests.is_under_way::<Upgrade>() {
            return Err("an upgrade is under way already".to_owned());
        }
        self.requests.request(Upgrade).await.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// The upgrade is over.
    pub(super) fn upgraded(&self, outcome: AdminResult) {
        // The requester may have gone meanwhile.
        let _ = self.requests.reply_to_oldest::<Upgrade>(outcome);
    }

    /// Has the kernel forget the connections of these addresses.
    pub(super) async fn release(&self, addresses: Vec<IpAddr>) -> Result<(), NoReply> {
        self.requests.request(Release(addresses)).await
    }

    /// It has.
    pub(super) fn released(&self) {
        // An answer to the worker before this one is dropped.
        let _ = self.requests.reply_to_oldest::<Release>(());
    }

    /// Has addresses of clients announced, or no longer; whether all of it is done.
    pub(super) async fn set_hosts(&self, changes: HostRouteChanges) -> Result<bool, NoReply> {
        self.requests.request(SetHosts(changes)).await
    }

    /// It is, or not.
    pub(super) fn hosts_set(&self, is_set: bool) {
        // An answer to the worker before this one is dropped.
        let _ = self.requests.reply_to_oldest::<SetHosts>(is_set);
    }

    /// Sends a message that is not answered.
    pub(super) async fn send(&self, message: FromWorker) -> Result<(), Gone> {
        self.requests.send(message).await
    }
}
