//! A gateway for tests that has a status and no network.
#![allow(clippy::unwrap_used, clippy::new_without_default, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use super::status::{
    Accounting, Audit, Counters, Drain, Firewall, Offloads, Pool, Portal, Process, Protocol, Session, Source,
    Status, Steering, Suite, Tun, Udp,
};
use super::{FleetGateway, Handler, Kicked};
use vpnd_sys::sandbox::{Landlock, Protections};

/// Answers with what it was given; only `ann` can be kicked, once.
pub struct Fake {
    pub status: Mutex<Result<Status, String>>,
}

impl Fake {
    pub fn new() -> Self {
        Self { status: Mutex::new(Ok(status())) }
    }
}

impl Handler for Fake {
    async fn status(&self) -> Result<Status, String> {
        self.status.lock().unwrap().clone()
    }

    async fn kick(&self, target: String) -> Result<Kicked, String> {
        let mut status = self.status.lock().unwrap();
        let sessions = &mut status.as_mut().map_err(|error| error.clone())?.sessions;
        let before = sessions.len();
        sessions.retain(|session| session.user != target && session.id != target);
        Ok(Kicked { sessions: before - sessions.len(), is_kept: true })
    }

    async fn reload(&self) -> Result<String, String> {
        Err("server.toml:3: unknown key 'prot'".to_owned())
    }

    async fn fleet(&self) -> Result<Vec<FleetGateway>, String> {
        Err("this gateway is of no fleet".to_owned())
    }

    async fn drain(&self, within: Option<Duration>, fleet_safe: bool) -> Result<(), String> {
        if fleet_safe {
            return Err("this gateway is of no fleet".to_owned());
        }
        let mut status = self.status.lock().unwrap();
        let status = status.as_mut().map_err(|error| error.clone())?;
        let left_s = within.map(|within| within.as_secs());
        status.drain = Some(Drain { in_use: status.sessions.len(), left_s, over: false });
        Ok(())
    }

    async fn cancel_drain(&self) -> Result<(), String> {
        self.status.lock().unwrap().as_mut().map_err(|error| error.clone())?.drain = None;
        Ok(())
    }

    async fn confirm_absences(&self, source: String) -> Result<u64, String> {
        let status = self.status.lock().unwrap();
        let status = status.as_ref().map_err(|error| error.clone())?;
        let source = status.sources.iter().find(|listed| listed.name == source);
        source.map(|source| source.missing).ok_or_else(|| "there is no such source".to_owned())
    }

    async fn upgrade(&self) -> Result<String, String> {
        Ok("vpnd 9 goes on".to_owned())
    }
}

/// A gateway with one client that is there and one that went away.
pub fn status() -> Status {
    let suite =
        |suite: &str, backend: &str, mbps| Suite { suite: suite.into(), backend: backend.into(), mbps };
    let count = |counts: &[(&str, u64)]| -> BTreeMap<String, u64> {
        counts.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
    };
    Status {
        version: "0.1.0".to_owned(),
        parent_version: "0.1.0".to_owned(),
        pid: 812,
        uptime_s: 183_600,
        listen: "[::]:4433".parse().unwrap(),
        shards: 2,
        steering: Steering::Cbpf,
        certificate_left_s: 1_900_000,
        settings: BTreeMap::new(),
        processes: vec![Process::new(
            "worker",
            &Protections {
                uid: 990,
                no_capabilities: true,
                no_new_privs: true,
                seccomp: true,
                landlock: Landlock::Partial,
                undumpable: true,
            },
        )],
        offloads: Offloads {
            tun: Tun { checksum: true, tso4: true, tso6: true, ..Tun::default() },
            udp: Udp {
                gso_segments: 64,
                gso_gave_up: false,
                gro: true,
                recv_buffer: 4 << 20,
                send_buffer: 4 << 20,
                may_fragment: false,
            },
        },
        suites: vec![suite("aes-256-gcm", "aws-lc", 9_800), suite("chacha20-poly1305", "ring", 1_900)],
        counters: Counters {
            drops: count(&[("replayed", 7), ("bad_header", 0)]),
            logins: count(&[("accepted", 2), ("wrong_password", 1)]),
            handshakes: count(&[("retried", 8), ("accepted", 4), ("ignored", 0)]),
            ended: count(&[("sessions", 1), ("rx_bytes", 5_000), ("tx_bytes", 7)]),
            unused_marks: count(&[("ce_in_ect1", 3), ("not_ect_in_ce", 0)]),
            source_answers: count(&[("campus", 12)]),
            source_failures: count(&[("campus", 3)]),
            audit: count(&[("lost", 2)]),
            ends: count(&[("kicked", 1)]),
            polling: count(&[("expired", 0), ("found", 9), ("time_ms", 12), ("yielded", 0)]),
            relays: count(&[("begun", 5), ("dropped", 6)]),
            portal_refusals: count(&[("form", 4), ("login_throttled", 8)]),
        },
        audit: Some(Audit { failure: None }),
        portal: Some(Portal { up: true, visits: 3, relays: 2, certificate_left_s: Some(2_000_000) }),
        firewall: Some(Firewall {
            table: "vpnd_vpnd0".to_owned(),
            rules: Some("0123456789abcdef".to_owned()),
            renewals: 2,
            over_limit: 30,
        }),
        drain: None,
        fleet: None,
        pools: vec![
            Pool { pool: "10.86.0.0/16".to_owned(), taken: 2, total: 65_533 },
            Pool { pool: "fd00::/64".to_owned(), taken: 1, total: 1 << 20 },
        ],
        sources: sources(),
        refused_devices: vec![],
        sessions: vec![ann(), bob()],
    }
}

fn sources() -> Vec<Source> {
    vec![
        Source {
            name: "campus".to_owned(),
            up: Some(false),
            last_answer_s: Some(75),
            silent_s: Some(10),
            accounting: None,
            missing: 12,
        },
        Source {
            name: "guests".to_owned(),
            up: None,
            last_answer_s: None,
            silent_s: None,
            accounting: Some(Accounting { sent: 41, lost: 2, waiting: 1 }),
            missing: 0,
        },
    ]
}

fn ann() -> Session {
    Session {
        id: "0123456789abcdef0123456789abcdef".to_owned(),
        user: "ann".to_owned(),
        device: "11".repeat(16),
        inner_v4: Some([10, 86, 0, 2].into()),
        inner_v6: Some("fd00::2".parse().unwrap()),
        outer: vec!["192.0.2.7:40001".parse().unwrap(), "192.0.2.7:40002".parse().unwrap()],
        over_tcp: false,
        connected: true,
        protocol: Protocol::Vpnd,
        two_devices_s: None,
        suite: Some("aes-256-gcm".to_owned()),
        backend: Some("aws-lc".to_owned()),
        epoch: Some(3),
        rx_bytes: 3 << 29,
        tx_bytes: 2_048,
        rx_packets: 1_200_000,
        tx_packets: 12,
        connected_s: 3_660,
        last_handshake_s: Some(90),
        idle_s: 2,
        path_datagram: Some(1_232),
        path_mtu: Some(1_200),
        tx_halved: 31,
        tx_single: 0,
        rx_halved: 14,
        rx_limit: 0,
        tx_limit: 0,
        user_rx_limit: 0,
        user_tx_limit: 0,
        group_limit: false,
        profile: None,
    }
}

fn bob() -> Session {
    Session {
        id: "ba9876543210fedcba9876543210fedc".to_owned(),
        user: "bob".to_owned(),
        device: "22".repeat(16),
        inner_v4: Some([10, 86, 0, 3].into()),
        inner_v6: None,
        outer: Vec::new(),
        over_tcp: false,
        connected: false,
        protocol: Protocol::Vpnd,
        two_devices_s: None,
        suite: None,
        backend: None,
        epoch: None,
        rx_bytes: 0,
        tx_bytes: 0,
        rx_packets: 0,
        tx_packets: 0,
        connected_s: 5,
        last_handshake_s: None,
        idle_s: 5,
        path_datagram: None,
        path_mtu: None,
        tx_halved: 0,
        tx_single: 0,
        rx_halved: 0,
        rx_limit: 0,
        tx_limit: 0,
        user_rx_limit: 0,
        user_tx_limit: 0,
        group_limit: false,
        profile: None,
    }
}
