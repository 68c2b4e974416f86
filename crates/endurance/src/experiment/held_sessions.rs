//! vpnd's gateway in a lab, and sessions of it that processes of `vpnd_swarm` hold: what the
//! experiments with such sessions share.
//!
//! It must not know what an experiment measures.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command as Program;
use std::time::Duration;

use vpnd_store::StoreError;
use vpnd_swarm::message::{Credentials, Job};
use vpnd_swarm::processes::Processes;
use vpnd_swarm::tally::Tally;

use trafficspeed::experiment::outcome::{RemoteEnd, Settings};
use trafficspeed::interrupt::Interrupt;
use trafficspeed::lab::namespace::Namespace;
use trafficspeed::lab::{CLIENT_LINK, Lab, LabError, LinkSettings, run_tool};
use trafficspeed::load::congestion::CongestionControl;
use trafficspeed::system::vpnd::{PORT, Vpnd};
use trafficspeed::system::{ClientAddress, System, SystemError};

/// TCP connections of each pair of real clients while the sessions are held: those of experiment 1
/// for two hosts.
pub const REAL_STREAMS: u32 = 32;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum SessionsError {
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error(transparent)]
    System(#[from] SystemError),
    /// The gateway's store took no device.
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("a process that holds sessions can't be started: {0}")]
    Process(#[from] std::io::Error),
    #[error("the gateway has ended by itself")]
    GatewayGone,
}

/// Refuses what this machine can't run, before anything is changed.
///
/// # Errors
/// The first thing that is missing.
pub fn check(links: LinkSettings, system: &Vpnd) -> Result<(), SessionsError> {
    Lab::check(links)?;
    Ok(system.check()?)
}

/// Has `measure` use a gateway with the addresses of its real clients, in a lab with these client
/// namespaces. Both are gone afterwards.
///
/// # Errors
/// If lab or gateway can't be had, and those of `measure`.
pub fn with_gateway<T>(
    (namespaces, links): (u32, LinkSettings),
    system: Vpnd,
    interrupt: &Interrupt,
    measure: impl FnOnce(&Lab, &mut Vpnd, Vec<ClientAddress>) -> Result<T, SessionsError>,
) -> Result<T, SessionsError> {
    let lab = Lab::build(namespaces, links)?;
    // Declared behind the lab: its processes end before their namespaces, whatever happens.
    let mut system = system;
    let addresses = system.up(&lab, interrupt).map_err(SessionsError::from);
    let results = addresses.and_then(|addresses| measure(&lab, &mut system, addresses));
    system.down();
    results
}

/// Adds users for sessions to belong to.
///
/// # Errors
/// [`SystemError`] with what `vpnd user add` said.
pub fn add_users(system: &Vpnd, count: u32) -> Result<Vec<Credentials>, SystemError> {
    let users = (0..count).map(|number| {
        let user = format!("crowd{number}");
        Ok(Credentials { password: system.add_user(&user)?, user })
    });
    users.collect()
}

/// The job of a process that holds `count` sessions from number `first` on and has `at_once` logins
/// under way.
///
/// # Errors
/// [`SystemError::Io`].
pub fn job(
    system: &Vpnd,
    (first, count): (u32, u32),
    at_once: u32,
    users: &[Credentials],
) -> Result<Job, SystemError> {
    Ok(Job {
        gateway: SocketAddr::from((Lab::SERVICE_V4, PORT)),
        others: Vec::new(),
        server_name: Lab::SERVICE_V4.to_string(),
        ca_pem: system.ca_pem()?,
        first,
        count,
        at_once,
        users: users.to_vec(),
        sources: Vec::new(),
        soak: None,
        own_sockets: false,
        campus: None,
        far: None,
    })
}

/// Gives client `number` of the lab, from 1, more addresses, and returns all `count`; the first is
/// the one that the lab gave it.
///
/// # Errors
/// [`LabError`] with what `ip` said.
pub fn add_sources(lab: &Lab, number: u32, count: u8) -> Result<Vec<IpAddr>, LabError> {
    let [a, b, c, d] = Lab::client_v4(number).octets();
    let sources = (0..count).map(|more| Ipv4Addr::new(a, b, c, d + more));
    let namespace = &lab.clients()[number as usize - 1];
    for address in sources.clone().skip(1) {
        let address = format!("{address}/24");
        let add = ["-n", namespace.name(), "addr", "add", &address, "dev", CLIENT_LINK];
        run_tool(Program::new("ip").args(add))?;
    }
    Ok(sources.map(IpAddr::V4).collect())
}

/// The program that holds sessions in `namespace`.
pub fn holder(namespace: &Namespace) -> std::io::Result<Program> {
    let mut program = Program::new(std::env::current_exe()?);
    program.args(["swarm", "--parent", &std::process::id().to_string(), "--netns", namespace.name()]);
    Ok(program)
}

/// Waits for reports of the processes and counts all that are there.
pub fn take_reports(processes: &Processes, tally: &mut Tally, timeout: Duration) {
    let mut next = processes.next(timeout);
    while let Some(report) = next {
        tally.note(report);
        next = processes.next(Duration::ZERO);
    }
}

/// The work of real clients while the sessions are held: that of experiment 1.
pub fn real_work(seconds: f64, warmup_seconds: f64, repeats: u32) -> Settings {
    Settings {
        streams: REAL_STREAMS,
        seconds,
        warmup_seconds,
        repeats,
        ip: 4,
        seed: 1,
        write_bytes: 256 * 1024,
        verify: false,
        congestion: CongestionControl::default(),
        threads: 1,
        far: RemoteEnd::Client,
        probe_every_ms: 0,
        systems: Vec::new(),
    }
}

/// The first session of each process, and how many it holds.
pub fn shares(count: u32, processes: u32) -> Vec<(u32, u32)> {
    let mut first = 0;
    let share = |number| {
        let share = (first, share_of(count, processes, number));
        first += share.1;
        share
    };
    (0..processes).map(share).collect()
}

/// The share of process `number` when `whole` is split as evenly as can be.
pub fn share_of(whole: u32, processes: u32, number: u32) -> u32 {
    whole / processes + u32::from(number < whole % processes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_split_evenly_and_none_is_lost() {
        assert_eq!(shares(10, 3), [(0, 4), (4, 3), (7, 3)]);
        assert_eq!(shares(5_000, 1), [(0, 5_000)]);
        let parts: u32 = (0..7).map(|number| share_of(200, 7, number)).sum();
        assert_eq!(parts, 200);
    }
}
