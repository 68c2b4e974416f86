//! The control socket: an administrator's requests to a running gateway, for its status or for a
//! change.
//!
//! One Unix socket, JSON lines: each line a [`Request`], answered by one line, a [`Response`].
//! Invariants: only root and the daemon's own user are answered; a request and the time it takes
//! are bounded; the JSON is an interface, so keys are added, never renamed. These modules must not
//! know how the gateway works: the implementation of [`Handler`] does.

pub mod client;
pub mod status;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::future::Future;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use status::{FleetGateway, Session, Status};

/// The longest request, in bytes with its line break.
pub const MAX_REQUEST: usize = 4_096;
/// The longest response that a client reads, in bytes: the status of 100,000 sessions fits.
pub const MAX_RESPONSE: usize = 64 << 20;

/// A request of an administrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    Status,
    Kick {
        /// A user's name, or a session's id in full.
        target: String,
    },
    Reload,
    /// Let the program that is installed now go on instead.
    Upgrade,
    /// Let no client in any more, and ask clients to use another gateway.
    Drain {
        /// Seconds after which those that are left are closed.
        within_s: Option<u64>,
        /// Not if it is the fleet's last gateway.
        #[serde(default)]
        fleet_safe: bool,
    },
    /// The gateways of the fleet.
    Fleet,
    /// Accept logins again.
    CancelDrain,
    /// End the sessions of the users whom this source shows no more.
    ConfirmAbsences {
        source: String,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::Fleet`].
    Fleet(Vec<FleetGateway>),
    /// To [`Request::Kick`]: how many sessions were ended.
    Ended(usize),
    /// To [`Request::Kick`], where neither the user store nor the state directory keeps that all
    /// have ended.
    EndedForNow(usize),
    /// To [`Request::Reload`]: what has changed, in words.
    Reloaded(String),
    /// To [`Request::Upgrade`]: what goes on, in words.
    Upgraded(String),
    /// To [`Request::Drain`] and [`Request::CancelDrain`].
    Done,
    /// To [`Request::ConfirmAbsences`]: how many users these are.
    Confirmed(u64),
    /// The request was refused or failed, and why.
    Error(String),
}

/// Sessions that were ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kicked {
    pub sessions: usize,
    /// Whether that lasts: if not, clients may be let in again, as if nothing had been done.
    pub is_kept: bool,
}

impl From<Kicked> for Response {
    fn from(Kicked { sessions, is_kept }: Kicked) -> Self {
        if is_kept { Self::Ended(sessions) } else { Self::EndedForNow(sessions) }
    }
}

/// Answers the requests. Errors are sentences for the administrator.
pub trait Handler: Send + Sync + 'static {
    fn status(&self) -> impl Future<Output = Result<Status, String>> + Send;

    /// Ends all sessions of the user or the one session that `target` names.
    fn kick(&self, target: String) -> impl Future<Output = Result<Kicked, String>> + Send;

    /// Reads the configuration again; what has changed, in words.
    fn reload(&self) -> impl Future<Output = Result<String, String>> + Send;

    /// The gateways of the fleet, by name.
    fn fleet(&self) -> impl Future<Output = Result<Vec<FleetGateway>, String>> + Send;

    /// Lets no client in any more, asks clients to use another gateway, and closes those that are
    /// left after `within`; with `fleet_safe` only if another gateway of the fleet can take them.
    fn drain(
        &self,
        within: Option<Duration>,
        fleet_safe: bool,
    ) -> impl Future<Output = Result<(), String>> + Send;

    /// Takes the users whom this source shows no more for gone; how many there are.
    fn confirm_absences(&self, source: String) -> impl Future<Output = Result<u64, String>> + Send;

    /// Lets clients in again.
    fn cancel_drain(&self) -> impl Future<Output = Result<(), String>> + Send;

    /// Lets the program that is installed now go on instead; what goes on, in words.
    fn upgrade(&self) -> impl Future<Output = Result<String, String>> + Send;
}
