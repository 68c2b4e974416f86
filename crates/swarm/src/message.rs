//! The messages between the coordinator and the processes that hold sessions: one line of JSON
//! each.
//!
//! All of them run on one machine and share its monotonic clock, so instants mean the same to each.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::churn::{Counts, Plan};
use crate::{load, wireguard};

/// From the coordinator to a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Open sessions; comes first and once.
    Open(Job),
    /// Open sessions with clients of stock WireGuard's protocol.
    OpenWireGuard(wireguard::Job),
    /// Send a packet through each of the first sessions, this number of them, until it is answered.
    Verify(u32),
    /// The first sessions, this number of them, send a packet each second.
    Talk(u32),
    /// Watch the first sessions, this number of them, and report those that were watched until now.
    Watch(u32),
    /// From now on sessions leave, move and lose connections by the plan; without one they stay.
    Churn(Option<Plan>),
    /// From now on the first sessions send bulk traffic to each other, by this plan; without one
    /// they stop.
    Load(Option<load::Plan>),
    /// Report that traffic since the last such report.
    CountLoad,
}

/// The sessions of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Address of the gateway at which they log in.
    pub gateway: SocketAddr,
    /// Addresses of the other gateways of its fleet, if it has one.
    pub others: Vec<SocketAddr>,
    /// The name in its certificate.
    pub server_name: String,
    /// The CA of that certificate, PEM.
    pub ca_pem: String,
    /// Number of the first session.
    pub first: u32,
    pub count: u32,
    /// Logins under way at once.
    pub at_once: u32,
    /// Session `n` logs in as the user `n` modulo their number.
    pub users: Vec<Credentials>,
    /// Addresses of the namespace to send from, in turn; any if there are none.
    pub sources: Vec<IpAddr>,
    /// In a soak test: the seed of the devices' keys. The process then reports once a second.
    pub soak: Option<u64>,
    /// Each session has its own socket, as clients have; needed for [`Command::Load`].
    pub own_sockets: bool,
    /// The file of the network namespace in which the campus is; for traffic with it.
    pub campus: Option<PathBuf>,
    /// The host that pings are for; the gateway's address in the tunnel without it.
    pub far: Option<Ipv4Addr>,
}

/// A user of the gateway.
#[derive(Clone, Serialize, Deserialize)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Origin of a session's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeySource {
    Login,
    /// With the token of the connection before.
    Attach,
}

/// From a process to the coordinator. Times are nanoseconds of the monotonic clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// The gateway answered in a session's new keys.
    Up {
        session: u32,
        at_ns: u64,
        by: KeySource,
        /// Nanoseconds since the first datagram of the connection.
        took_ns: u64,
    },
    /// An attempt came to nothing; the client tries again by itself.
    Failed { session: u32, at_ns: u64, reason: String },
    /// A client stopped for good.
    GaveUp {
        session: u32,
        at_ns: u64,
        /// The message that a user would get.
        reason: String,
    },
    /// A packet went through the session and came back.
    Answered { session: u32 },
    /// Packets of the talkers since the last such report.
    Talked { sent: u64, answered: u64 },
    /// Packets of watched sessions.
    Watched {
        sent: u64,
        answered: u64,
        /// The longest time between two answers of each session, in nanoseconds.
        gaps_ns: Vec<u64>,
    },
    /// In a soak test, once a second: sessions that are up and away now, and the counts since the
    /// last such report.
    Status {
        /// The first session of the process.
        first: u32,
        /// Sessions with keys that work.
        up: u32,
        /// Sessions that left for a while.
        away: u32,
        counts: Counts,
    },
    /// Something happened to a session in a soak test that it did not do itself.
    Unexplained {
        session: u32,
        at_ns: u64,
        what: String,
        /// The process had stood still for this number of seconds before, as when a machine is
        /// suspended.
        after_stall_s: Option<f64>,
    },
    /// Bulk traffic since the last such report.
    Loaded(load::Counts),
    /// The process cannot work.
    Broken(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_single_lines_and_passwords_do_not_print() {
        let users = vec![Credentials { user: "ann".into(), password: "se\ncret".into() }];
        let job = Job {
            gateway: "198.18.0.1:4433".parse().unwrap(),
            others: vec![],
            server_name: "198.18.0.1".into(),
            ca_pem: "a\nb\n".into(),
            first: 0,
            count: 1,
            at_once: 1,
            users,
            sources: vec![],
            soak: None,
            own_sockets: false,
            campus: None,
            far: None,
        };
        assert!(!format!("{job:?}").contains("cret"));
        let line = serde_json::to_string(&Command::Open(job)).unwrap();
        assert!(!line.contains('\n'));
        let Ok(Command::Open(back)) = serde_json::from_str(&line) else { panic!("{line}") };
        assert_eq!(back.users[0].password, "se\ncret");
        let up = Report::Up { session: 7, at_ns: 9, by: KeySource::Attach, took_ns: 3 };
        assert_eq!(serde_json::from_str::<Report>(&serde_json::to_string(&up).unwrap()).unwrap(), up);
    }
}
