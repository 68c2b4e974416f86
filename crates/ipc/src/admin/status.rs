//! A gateway's status: the types behind `vpnd status`, its JSON and the metrics.
//!
//! INVARIANT: names of fields are an interface. A field that comes after 0.1 needs a default, so
//! that an older daemon's answer parses.

mod fleet;
mod offloads;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};
use vpnd_packet::ecn::Unused;
use vpnd_proto::gateway;
use vpnd_proto::plane::{self, DropReason};
use vpnd_proto::pmtu::oversize::IPV6_MIN_MTU;
use vpnd_proto::session::LocalSuite;
use vpnd_proto::time::Time;
use vpnd_proto::wire::HEADER_LEN;
use vpnd_proto::wireguard::Sealer;

pub use fleet::{FleetGateway, FleetMember};
pub use offloads::{Offloads, Tun, Udp};
use vpnd_sys::sandbox::Protections;

/// The state of a gateway at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    /// Version of its privileged process, which stays the same through an upgrade.
    pub parent_version: String,
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Outer UDP address.
    pub listen: SocketAddr,
    pub shards: usize,
    /// Mechanism by which the kernel selects a datagram's shard.
    pub steering: Steering,
    pub offloads: Offloads,
    /// Cipher suites on offer, in the order of the configuration.
    pub suites: Vec<Suite>,
    /// Protections of the daemon's unprivileged processes.
    pub processes: Vec<Process>,
    /// For how long the gateway's certificate is good yet, seconds, 0 if it has expired.
    pub certificate_left_s: u64,
    /// Pools of inner addresses; empty if the auth process gave no answer.
    pub pools: Vec<Pool>,
    /// Sources of identities besides the store of this gateway.
    pub sources: Vec<Source>,
    /// The audit file; `None` if nothing is to be recorded, or the auth process gave no answer.
    pub audit: Option<Audit>,
    /// The web pages; `None` if they are off, or the auth process gave no answer.
    #[serde(default)]
    pub portal: Option<Portal>,
    /// The gateway's firewall table; `None` with `mode = "none"`.
    pub firewall: Option<Firewall>,
    /// Digests of the settings in force, by section and key.
    pub settings: BTreeMap<String, String>,
    /// Its place in a fleet, if it has one.
    #[serde(default)]
    pub fleet: Option<FleetMember>,
    /// Present if no client is let in.
    pub drain: Option<Drain>,
    /// Events counted since the start, upgrades included.
    pub counters: Counters,
    /// WireGuard devices that were not let in lately, the latest first; not more than 100.
    #[serde(default)]
    pub refused_devices: Vec<RefusedDevice>,
    /// Everyone who has a session.
    pub sessions: Vec<Session>,
}

/// A WireGuard device that has shown its key and was not let in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedDevice {
    /// The beginning of its public key, as `vpnd device list` shows it.
    pub key: String,
    pub why: String,
    /// Whether a renewal lets it in again.
    pub walled: bool,
    /// Attempts since it was let in last, or since the worker started.
    pub times: u64,
    /// Seconds since the last attempt.
    pub last_s: u64,
}

/// One of the daemon's processes and its protections, as read back from the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its role in the daemon.
    pub name: String,
    #[serde(flatten)]
    pub protections: Protections,
}

impl Process {
    /// A process by its part's name.
    pub fn new(name: &str, protections: &Protections) -> Self {
        Self { name: name.to_owned(), protections: protections.clone() }
    }
}

/// A gateway that is being drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Sessions that are in use: with a connection or keys.
    pub in_use: usize,
    /// Seconds until those are closed; `None` if the gateway waits for them.
    pub left_s: Option<u64>,
    /// No client is connected any more.
    pub over: bool,
}

/// State of the audit file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// Why nothing is recorded now.
    pub failure: Option<String>,
}

/// State of the portal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Portal {
    /// Whether its process is there.
    pub up: bool,
    /// Browsers whose users have logged in.
    pub visits: u64,
    /// TCP connections that carry datagrams.
    #[serde(default)]
    pub relays: u64,
    /// For how long its certificate is good yet, seconds, 0 if it has none or that has expired;
    /// `None` if that is not known.
    #[serde(default)]
    pub certificate_left_s: Option<u64>,
}

/// A gateway's firewall table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
pub struct Firewall {
    /// Its name in nftables, of the family `inet`.
    #[n(0)]
    pub table: String,
    /// A digest of its rules; `None` while it is not in force, or can't be read.
    #[n(1)]
    pub rules: Option<String>,
    /// How often it was put back after another program had removed or changed it.
    #[n(2)]
    pub renewals: u64,
    /// Packets that would have begun more connections than a client may have.
    #[n(3)]
    pub over_limit: u64,
}

/// A pool of inner addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Its network.
    pub pool: String,
    /// Addresses that sessions have, those whose device is away included.
    pub taken: u64,
    /// Addresses that can be leased.
    pub total: u64,
}

/// A source of identities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    pub name: String,
    /// Whether the last login there was answered; `None` before the first.
    pub up: Option<bool>,
    /// Seconds since the last answer.
    pub last_answer_s: Option<u64>,
    /// Seconds since the first login after that got no answer; `None` while it answers.
    pub silent_s: Option<u64>,
    /// Present if its sessions are accounted for.
    pub accounting: Option<Accounting>,
    /// Users with sessions whom it shows no more: too many at once, so their sessions go on until
    /// `vpnd source confirm`.
    pub missing: u64,
}

/// Records of accounting, since the start or the last upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounting {
    /// Those that a server has.
    pub sent: u64,
    /// Those that no server will have.
    pub lost: u64,
    /// Those on their way.
    pub waiting: u64,
}

/// Mechanism by which the kernel selects a datagram's shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steering {
    /// By a classic BPF program that reads the receiver index.
    Cbpf,
    /// By a hash of the addresses; shards pass datagrams on, which is correct and slower.
    Hash,
}

/// A cipher suite on offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suite {
    pub suite: String,
    pub backend: String,
    /// Its measured speed here, MB/s.
    pub mbps: u32,
}

/// Events counted since the start. An upgrade carries them on, by name: versions may count
/// different things.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
pub struct Counters {
    /// Packets and datagrams dropped, by reason.
    #[n(0)]
    pub drops: BTreeMap<String, u64>,
    /// Attempts to log in or to attach, by outcome.
    #[n(1)]
    pub logins: BTreeMap<String, u64>,
    #[n(2)]
    pub handshakes: BTreeMap<String, u64>,
    /// Sessions that have ended, and what they carried: `sessions`, `rx_bytes`, `tx_bytes`.
    #[n(3)]
    pub ended: BTreeMap<String, u64>,
    /// Packets whose congestion mark and their datagram's are an unused combination (RFC 6040), by
    /// combination.
    #[n(4)]
    pub unused_marks: BTreeMap<String, u64>,
    /// Logins that a source has answered, by source.
    #[n(5)]
    pub source_answers: BTreeMap<String, u64>,
    /// Logins to which a source gave no answer, by source.
    #[n(6)]
    pub source_failures: BTreeMap<String, u64>,
    /// Events of the audit file: `lost` are those that were not recorded.
    #[n(7)]
    pub audit: BTreeMap<String, u64>,
    /// Sessions that have ended, by reason.
    #[n(8)]
    pub ends: BTreeMap<String, u64>,
    /// Waits in which shards looked for packets instead of sleeping, by how they ended, and
    /// `time_ms`: other threads' turns in between count. Nothing but 0 without `busy_poll_us`.
    #[n(9)]
    pub polling: BTreeMap<String, u64>,
    /// TCP connections that have carried datagrams (`begun`), and datagrams to their clients that
    /// found no room (`dropped`).
    #[serde(default)]
    #[cbor(n(10), default)]
    pub relays: BTreeMap<String, u64>,
    /// Refusals of the web pages: connections, forms, and logins by reason.
    #[serde(default)]
    #[cbor(n(11), default)]
    pub portal_refusals: BTreeMap<String, u64>,
}

impl Counters {
    /// Adds what was counted before.
    #[must_use]
    pub fn after(mut self, before: &Self) -> Self {
        let kinds = [
            (&mut self.drops, &before.drops),
            (&mut self.logins, &before.logins),
            (&mut self.handshakes, &before.handshakes),
            (&mut self.ended, &before.ended),
            (&mut self.unused_marks, &before.unused_marks),
            (&mut self.source_answers, &before.source_answers),
            (&mut self.source_failures, &before.source_failures),
            (&mut self.audit, &before.audit),
            (&mut self.ends, &before.ends),
            (&mut self.polling, &before.polling),
            (&mut self.relays, &before.relays),
            (&mut self.portal_refusals, &before.portal_refusals),
        ];
        for (counts, before) in kinds {
            for (name, count) in before {
                let sum = counts.entry(name.clone()).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
        self
    }

    /// The count with this name; 0 if this version does not count it.
    pub fn of(counts: &BTreeMap<String, u64>, name: &str) -> u64 {
        counts.get(name).copied().unwrap_or_default()
    }
}

/// One client's stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// 32 hexadecimal digits.
    pub id: String,
    pub user: String,
    /// The name that the user's device gave itself, 32 hexadecimal digits.
    pub device: String,
    pub inner_v4: Option<Ipv4Addr>,
    pub inner_v6: Option<Ipv6Addr>,
    /// The client's outer addresses: one for each of its ports in use.
    pub outer: Vec<SocketAddr>,
    /// Whether its datagrams come over TCP; `outer` has the ports of that then.
    #[serde(default)]
    pub over_tcp: bool,
    /// Whether it has a control connection; a WireGuard client has keys instead.
    pub connected: bool,
    /// The protocol of its client.
    #[serde(default)]
    pub protocol: Protocol,
    /// Seconds since two devices with its one WireGuard configuration were noticed.
    #[serde(default)]
    pub two_devices_s: Option<u64>,
    /// Suite of the current epoch.
    pub suite: Option<String>,
    /// Implementation of that suite.
    pub backend: Option<String>,
    /// Number of the current epoch.
    pub epoch: Option<u32>,
    /// Bytes of inner packets received from the client.
    pub rx_bytes: u64,
    /// Bytes of inner packets sent to the client.
    pub tx_bytes: u64,
    /// Inner packets received from the client.
    pub rx_packets: u64,
    /// Inner packets sent to the client.
    pub tx_packets: u64,
    /// Seconds since the session began, or was restored after a restart.
    pub connected_s: u64,
    /// Seconds since the newest keys were made.
    pub last_handshake_s: Option<u64>,
    /// Seconds since the client last sent an inner packet, or since the session began.
    pub idle_s: u64,
    /// The largest outer datagram that the client has found its path to carry, bytes; `None` until
    /// it has stated one.
    pub path_datagram: Option<u16>,
    /// The largest inner packet that such a datagram carries, bytes.
    pub path_mtu: Option<u16>,
    /// Inner packets sent to the client in two halves, because the path carries no whole one.
    pub tx_halved: u64,
    /// Inner packets received from the client in two halves.
    pub rx_halved: u64,
    /// Inner packets sent to the client outside batches, because batches are lost on the way.
    #[serde(default)]
    pub tx_single: u64,
    /// Its rate limit from the client, bytes of inner packets per second; 0 is none.
    pub rx_limit: u64,
    /// Its rate limit to the client, bytes of inner packets per second; 0 is none.
    pub tx_limit: u64,
    /// The rate limit of all sessions of its user together, from the client, bytes of inner packets
    /// per second; 0 is none.
    pub user_rx_limit: u64,
    /// The limit to the client.
    pub user_tx_limit: u64,
    /// Whether it shares the limits of a group with the group's other sessions.
    pub group_limit: bool,
    /// Its access profile, where profiles are configured.
    pub profile: Option<String>,
}

/// The protocol of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Our own protocol.
    #[default]
    Vpnd,
    /// WireGuard.
    WireGuard,
}

impl Session {
    /// Converts the core's status of a session; points in time become ages at `now`.
    pub fn at(now: Time, core: &gateway::SessionStatus) -> Self {
        let age_s = |then: Time| now.since(then).as_secs();
        Self {
            id: core.id.to_string(),
            user: core.user.to_string(),
            device: core.device.to_string(),
            inner_v4: core.addresses.ipv4,
            inner_v6: core.addresses.ipv6,
            outer: core.endpoints.iter().map(|endpoint| canonical(endpoint.remote)).collect(),
            over_tcp: false,
            connected: core.connection.is_some() || core.wireguard,
            protocol: if core.wireguard { Protocol::WireGuard } else { Protocol::Vpnd },
            two_devices_s: core.two_places.map(age_s),
            suite: core.suite.map(|local| local.suite.to_string()),
            backend: core.suite.map(|local| local.backend.to_string()),
            epoch: core.epoch,
            rx_bytes: core.activity.rx_bytes,
            tx_bytes: core.activity.tx_bytes,
            rx_packets: core.activity.rx_packets,
            tx_packets: core.activity.tx_packets,
            connected_s: age_s(core.since),
            last_handshake_s: core.last_handshake.map(age_s),
            idle_s: age_s(core.since.max(core.activity.last_rx_packet)),
            path_datagram: core.path_size,
            path_mtu: core.path_size.and_then(|size| largest_packet(size, core)),
            tx_halved: core.activity.tx_halved,
            rx_halved: core.activity.rx_halved,
            tx_single: core.activity.tx_single,
            rx_limit: core.limits.rates.up,
            tx_limit: core.limits.rates.down,
            user_rx_limit: core.limits.user.up,
            user_tx_limit: core.limits.user.down,
            group_limit: core.limits.group.is_some(),
            profile: None,
        }
    }

    /// Whether the path is so narrow that full packets of IPv6 travel in halves.
    pub fn is_narrow(&self) -> bool {
        self.path_mtu.is_some_and(|mtu| mtu < IPV6_MIN_MTU)
    }
}

/// The largest inner packet of a session in a datagram of `size` bytes.
fn largest_packet(size: u16, core: &gateway::SessionStatus) -> Option<u16> {
    let datagram = |packet: usize| match core.suite {
        Some(local) => Some(HEADER_LEN + local.suite.sealed_len(packet)),
        None => core.wireguard.then(|| Sealer::message_len(packet)),
    };
    datagram(0)?;
    let fits = |packet: &u16| datagram((*packet).into()).is_some_and(|len| len <= size.into());
    Some((0..=size).rev().find(fits).unwrap_or(0))
}

/// A socket for both protocol versions names IPv4 peers by their mapped addresses, which are hard
/// to read.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl From<&plane::Counters> for Counters {
    fn from(counters: &plane::Counters) -> Self {
        let drop = |reason: &DropReason| (reason.name().to_owned(), counters.dropped(*reason));
        let unused = |one: Unused| (one.name().to_owned(), counters.unused_marks(one));
        Self {
            drops: DropReason::ALL.iter().map(drop).collect(),
            unused_marks: Unused::ALL.map(unused).into(),
            ..Self::default()
        }
    }
}

impl From<&LocalSuite> for Suite {
    fn from(local: &LocalSuite) -> Self {
        Self { suite: local.suite.to_string(), backend: local.backend.to_string(), mbps: local.mbps }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vpnd_crypto::Backend;
    use vpnd_proto::control::UserName;
    use vpnd_proto::plane::{Activity, Endpoint, Slot};
    use vpnd_proto::rate::{RateGroup, Rates, SessionLimits};
    use vpnd_proto::session::{ConnectionId, DeviceId, SessionId};

    use super::*;

    #[test]
    fn a_session_of_the_core_becomes_ages_and_names() {
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let remote = "192.0.2.7:40001".parse().unwrap();
        let mut core = gateway::SessionStatus {
            id: SessionId([0xab; 16]),
            slot: Slot { index: 0, generation: 0 },
            user: UserName::new("ann").unwrap(),
            device: DeviceId([1; 16]),
            addresses: gateway::Addresses { ipv4: Some([10, 86, 0, 2].into()), ipv6: None },
            connection: Some(ConnectionId(7)),
            endpoints: vec![Endpoint { remote, local: None }],
            wireguard: false,
            two_places: None,
            suite: Some(LocalSuite {
                suite: vpnd_crypto::Suite::Aes256Gcm,
                backend: Backend::Ring,
                mbps: 6_500,
            }),
            epoch: Some(3),
            activity: Activity {
                rx_bytes: 10,
                tx_packets: 4,
                tx_halved: 3,
                last_rx_packet: at(80),
                ..Activity::default()
            },
            path_size: Some(1_311),
            profile: vpnd_proto::policy::ProfileId::IMPLIED,
            limits: SessionLimits {
                rates: Rates { down: 2_000, up: 1_000 },
                user: Rates { down: 4_000, up: 3_000 },
                group: None,
            },
            since: at(40),
            last_handshake: Some(at(70)),
            deadline: at(1_000),
        };
        let session = Session::at(at(100), &core);
        assert!(session.is_narrow());
        assert_eq!((session.id, session.user), ("ab".repeat(16), "ann".to_owned()));
        assert_eq!((session.connected_s, session.last_handshake_s, session.idle_s), (60, Some(30), 20));
        assert_eq!((session.rx_bytes, session.tx_packets, session.connected), (10, 4, true));
        assert_eq!(session.outer, [remote]);
        let names = (session.suite.as_deref(), session.backend.as_deref());
        assert_eq!(names, (Some("aes-256-gcm"), Some("ring")));
        assert_eq!(
            (session.path_datagram, session.path_mtu, session.tx_halved),
            (Some(1_311), Some(1_279), 3)
        );
        assert_eq!((session.rx_limit, session.tx_limit, session.group_limit), (1_000, 2_000, false));
        assert_eq!((session.user_rx_limit, session.user_tx_limit), (3_000, 4_000));
        core.limits = SessionLimits { group: Some(RateGroup(0)), ..SessionLimits::default() };
        core.path_size = Some(1_312);
        assert!(!Session::at(at(100), &core).is_narrow(), "a full packet of IPv6 fits");
        core.path_size = None;
        core.activity = Activity::default();
        core.connection = None;
        let silent = Session::at(at(100), &core);
        assert_eq!((silent.idle_s, silent.connected), (60, false), "idle since the session began");
        assert_eq!((silent.path_mtu, silent.is_narrow()), (None, false));
        assert_eq!((silent.rx_limit, silent.tx_limit, silent.group_limit), (0, 0, true));
    }

    #[test]
    fn counts_of_an_earlier_process_are_added_by_name() {
        let counts = |list: &[(&str, u64)]| list.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        let before = Counters {
            logins: counts(&[("accepted", 3), ("gone_by_now", 1)]),
            ended: counts(&[("sessions", u64::MAX)]),
            ..Counters::default()
        };
        let now = Counters {
            logins: counts(&[("accepted", 2), ("new", 4)]),
            ended: counts(&[("sessions", 1)]),
            ..Counters::default()
        };
        let all = now.after(&before);
        assert_eq!(all.logins, counts(&[("accepted", 5), ("gone_by_now", 1), ("new", 4)]));
        assert_eq!((all.ended["sessions"], all.drops.len()), (u64::MAX, 0), "and nothing overflows");
    }

    #[test]
    fn every_reason_to_drop_is_there_by_name() {
        let mut counters = plane::Counters::default();
        counters.drop(DropReason::Replayed);
        let drops = Counters::from(&counters).drops;
        assert_eq!(drops.len(), DropReason::ALL.len());
        assert_eq!((drops["replayed"], drops["send"]), (1, 0));
    }

    #[test]
    fn unused_marks_are_counted_by_combination_over_upgrades() {
        let mut counters = plane::Counters::default();
        counters.count_unused(Unused::CeInEct1);
        let counted = Counters::from(&counters);
        assert_eq!(counted.unused_marks.len(), Unused::ALL.len());
        assert_eq!((counted.unused_marks["ce_in_ect1"], counted.unused_marks["not_ect_in_ce"]), (1, 0));
        assert_eq!(counted.clone().after(&counted).unused_marks["ce_in_ect1"], 2);
        assert!(counted.drops.values().all(|count| *count == 0), "that is no drop");
    }
}
