//! Agents in the namespaces of a system that is up, and measurements between them.
//!
//! Before each measurement the kernel must say that it would send through the tunnels; after it the
//! tunnels' devices and the links below have been read, so that what went past the VPN is never
//! taken for its figure.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::cpu::CpuMeter;
use super::figures::arrived;
use super::outcome::CpuUse;
use super::pair_run::{IntervalSamples, Mark, Observer, PairError, PairResult, PairRun, Times, run_pairs};
use super::tunnel::{Carried, Payload, Reading, wait_for_route};
use super::watched::Watched;
use crate::coordinate::fleet::{Fleet, FleetError};
use crate::interrupt::Interrupt;
use crate::lab::device::{Device, towards};
use crate::lab::namespace::Namespace;
use crate::lab::topology::{Lan, TunnelEnd};
use crate::lab::{Lab, LabError};
use crate::load::task::Task;
use crate::system::{ClientAddress, System, SystemError};

/// Time that routes may take to follow the addresses.
const ROUTE_TIMEOUT: Duration = Duration::from_secs(3);

/// Why there is no result of a system in a lab.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    #[error("{0}")]
    Lab(#[from] LabError),
    #[error("{0}")]
    System(#[from] SystemError),
    #[error("{0}")]
    Fleet(#[from] FleetError),
    #[error("{0}")]
    Pair(#[from] PairError),
    #[error("{end} has no IPv{ip} address inside this system")]
    NoAddress { end: String, ip: u8 },
    /// The measurement would go past the VPN.
    #[error(
        "nothing was measured: {from} would reach {to} at {address} through {found}, not through the tunnel device \
         {tunnel}; check the routes"
    )]
    Past { from: String, to: String, address: IpAddr, found: String, tunnel: String },
    #[error("nothing was measured: {0}; check the routes")]
    NoRoute(#[source] LabError),
    /// The measurement went past the VPN, in words.
    #[error("{0}")]
    Bypassed(String),
    /// Bytes were lost, or an end reported a fault, in words.
    #[error("{0}")]
    Faulty(String),
    /// The VPN did not live as long as the measurement.
    #[error("process {0} of the VPN ended before the measurement did, which is therefore no result")]
    Ended(u32),
}

impl TestbedError {
    /// Whether what was built can serve no other measurement: late reports of its ends would be
    /// taken for those of the next one, or the VPN is gone.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Pair(_) | Self::Ended(_))
    }
}

/// An agent and its place in the lab.
struct LabAgent {
    /// In results, such as `c1`.
    name: String,
    /// In messages, such as `client 1`.
    title: String,
    /// The gateway's tunnel device may serve others, so its counters prove nothing.
    is_client: bool,
    /// Where its tunnel ends.
    namespace: Namespace,
    address: ClientAddress,
    /// The host behind that namespace where it runs, if it does not run there itself.
    lan: Option<Lan>,
}

impl LabAgent {
    fn address(&self, ip: u8) -> Result<IpAddr, TestbedError> {
        let found = if ip == 4 { self.address.v4.map(IpAddr::V4) } else { self.address.v6.map(IpAddr::V6) };
        found.ok_or_else(|| TestbedError::NoAddress { end: self.title.clone(), ip })
    }

    /// The address that it listens on, which is not the one that others come to if there is a
    /// router between.
    fn own_address(&self, ip: u8) -> Result<IpAddr, TestbedError> {
        self.lan.as_ref().map_or_else(|| self.address(ip), |lan| Ok(lan.host_address(ip)))
    }
}

/// Lets the host behind a tunnel's end, if there is one, use the tunnel.
fn open_lan(lab: &Lab, number: usize, address: &ClientAddress) -> Result<Option<Lan>, LabError> {
    let Some(lan) = lab.lan(number) else { return Ok(None) };
    let ClientAddress { v4, v6, device } = address;
    lan.open(TunnelEnd { device, v4: *v4, v6: *v6 })?;
    Ok(Some(lan.clone()))
}

/// Agents of all clients that have an address; perhaps one of the gateway after them.
#[derive(Default)]
pub struct LabAgents {
    // INVARIANT: agent `n` of the fleet is number `n` of `agents`.
    fleet: Fleet,
    agents: Vec<LabAgent>,
}

/// When a measurement begins and how long it goes on.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// From the last connection to the start.
    pub lead: Duration,
    pub times: Times,
}

pub struct Measured {
    /// In the order of the pairs.
    pub results: Vec<PairResult>,
    /// Within the measurement; `None` if it did not begin and end.
    pub cpu: Option<CpuUse>,
    /// The account of each client's devices.
    pub carried: Vec<Carried>,
    /// A process of the VPN that ended meanwhile.
    pub ended: Option<u32>,
}

impl LabAgents {
    /// Starts an agent in the namespace of each client, or on the host behind it. The lab may have
    /// more namespaces than there are addresses: then the first are the clients.
    pub fn start(lab: &Lab, clients: &[ClientAddress]) -> Result<Self, TestbedError> {
        let mut all = Self::default();
        for ((namespace, address), number) in lab.clients().iter().zip(clients).zip(1..) {
            let name = format!("c{number}");
            let lan = open_lan(lab, number, address)?;
            all.fleet.add_child(&name, lan.as_ref().map_or(namespace, Lan::host).agent())?;
            all.agents.push(LabAgent {
                name,
                title: format!("client {number}"),
                is_client: true,
                namespace: namespace.clone(),
                address: address.clone(),
                lan,
            });
        }
        Ok(all)
    }

    /// Starts an agent on the gateway, or on the campus host behind it, at the address by which the
    /// first client reaches it through `system`, and returns its number.
    pub fn add_gateway(
        &mut self,
        lab: &Lab,
        system: &mut dyn System,
        interrupt: &Interrupt,
    ) -> Result<usize, TestbedError> {
        self.add_at_gateway(lab, system, &[], interrupt)
    }

    /// Agents with a target of blocks, which are written to `place`; it shares the CPU limit of
    /// the VPN's programs there.
    pub fn add_target(
        &mut self,
        lab: &Lab,
        system: &mut dyn System,
        place: &Path,
        interrupt: &Interrupt,
    ) -> Result<usize, TestbedError> {
        self.add_at_gateway(lab, system, &["--block-place".as_ref(), place.as_os_str()], interrupt)
    }

    fn add_at_gateway(
        &mut self,
        lab: &Lab,
        system: &mut dyn System,
        words: &[&OsStr],
        interrupt: &Interrupt,
    ) -> Result<usize, TestbedError> {
        let address = gateway_address(lab, system, &self.agent(0, 4)?.address, interrupt)?;
        let lan = open_lan(lab, 0, &address)?;
        self.add_behind(lab, "gateway", (address, lan), words)
    }

    /// Starts an agent for each client on the gateway, or on the campus host behind it, at the
    /// address by which that client reaches it; in the order of the clients.
    pub fn add_partners(
        &mut self,
        lab: &Lab,
        system: &mut dyn System,
        interrupt: &Interrupt,
    ) -> Result<(), TestbedError> {
        let own = system.gateway_address(lab, interrupt)?;
        let mut devices: Vec<String> = Vec::new();
        for client in 0..self.count() {
            let towards_client = || device_address(lab, &self.agent(client, 4)?.address);
            let address = own.clone().map_or_else(towards_client, Ok)?;
            let lan = if devices.contains(&address.device) {
                lab.lan(0).cloned()
            } else {
                open_lan(lab, 0, &address)?
            };
            devices.push(address.device.clone());
            self.add_behind(lab, &format!("g{}", client + 1), (address, lan), &[])?;
        }
        Ok(())
    }

    fn add_behind(
        &mut self,
        lab: &Lab,
        name: &str,
        (address, lan): (ClientAddress, Option<Lan>),
        words: &[&OsStr],
    ) -> Result<usize, TestbedError> {
        let mut command = lan.as_ref().map_or(lab.gateway(), Lan::host).agent();
        command.args(words);
        let number = self.fleet.add_child(name, command)?;
        let (title, namespace) = ("gateway".to_owned(), lab.gateway().clone());
        self.agents.push(LabAgent { name: name.into(), title, is_client: false, namespace, address, lan });
        Ok(number)
    }

    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    pub fn fleet_mut(&mut self) -> &mut Fleet {
        &mut self.fleet
    }

    /// The number of agents.
    pub fn count(&self) -> usize {
        self.agents.len()
    }

    /// The run of agent `near`, which connects, with agent `far` over IP version `ip`.
    pub fn pair<'a>(
        &self,
        (near, far): (usize, usize),
        ip: u8,
        tasks: &'a [Task],
    ) -> Result<PairRun<'a>, TestbedError> {
        self.agent(near, ip)?.address(ip)?;
        let end = self.agent(far, ip)?;
        Ok(PairRun { near, far, address: end.address(ip)?, bind: end.own_address(ip)?, tasks })
    }

    fn agent(&self, number: usize, ip: u8) -> Result<&LabAgent, TestbedError> {
        let missing = || TestbedError::NoAddress { end: format!("client {}", number + 1), ip };
        self.agents.get(number).ok_or_else(missing)
    }

    /// Makes one measurement with all pairs at once, while `system` carries it.
    ///
    /// # Errors
    /// [`TestbedError::Past`], [`TestbedError::NoRoute`], [`TestbedError::Lab`]. Failures of a pair
    /// are in its result.
    pub fn measure(
        &mut self,
        system: &dyn System,
        pairs: &[PairRun<'_>],
        schedule: Schedule,
        observer: &mut dyn Observer,
        interrupt: &Interrupt,
    ) -> Result<Measured, TestbedError> {
        self.check_routes(pairs, interrupt)?;
        let before = self.read_devices()?;
        let watched = Watched::of_system(system);
        let mut metered = Metered { cpu: CpuMeter::new(system.processes()), observer };
        let Schedule { lead, times } = schedule;
        let results = run_pairs(&mut self.fleet, pairs, times, lead, &mut metered, interrupt);
        // A process that the user breaks off may end before this looks.
        let ended = watched.ended().filter(|_| !interrupt.is_set());
        let mut cpu = metered.cpu.used();
        if let Some(cpu) = &mut cpu {
            let cpu_of = |end: usize| results.iter().map(|pair| pair.reports.ends[end].cpu_seconds).sum();
            cpu.generator_ends = [cpu_of(0), cpu_of(1)];
            cpu.generators = cpu.generator_ends.iter().sum();
        }
        let carried = self.carried(&before, &self.read_devices()?, pairs, &results);
        Ok(Measured { results, cpu, carried, ended })
    }

    /// Makes sure that the clients of every pair would reach the other end through their tunnels.
    pub fn check_routes(&self, pairs: &[PairRun<'_>], interrupt: &Interrupt) -> Result<(), TestbedError> {
        let deadline = Instant::now() + ROUTE_TIMEOUT;
        for pair in pairs {
            let ip = if pair.address.is_ipv4() { 4 } else { 6 };
            for (from, to) in [(pair.far, pair.near), (pair.near, pair.far)] {
                let (from, to) = (&self.agents[from], &self.agents[to]);
                if !from.is_client {
                    continue;
                }
                let (address, tunnel) = (to.address(ip)?, &from.address.device);
                let found = wait_for_route(&from.namespace, address, tunnel, deadline, interrupt);
                if let Some(found) = found.map_err(TestbedError::NoRoute)? {
                    let (from, to, tunnel) = (from.title.clone(), to.title.clone(), tunnel.clone());
                    return Err(TestbedError::Past { from, to, address, found, tunnel });
                }
            }
        }
        Ok(())
    }

    /// The counters of each client's devices.
    pub fn read_devices(&self) -> Result<Vec<Reading>, LabError> {
        self.clients().map(|(_, agent)| Reading::take(&agent.namespace)).collect()
    }

    /// The account of the first client's devices since `before`, while it moved this much.
    pub fn carried_since(&self, before: &[Reading], payload: Payload) -> Result<Vec<Carried>, LabError> {
        let first = self.clients().zip(before.iter().zip(self.read_devices()?)).take(1);
        let carried = first.map(|((_, agent), (before, after))| {
            after.since(before, agent.name.clone(), &agent.address.device, payload)
        });
        Ok(carried.collect())
    }

    fn clients(&self) -> impl Iterator<Item = (usize, &LabAgent)> {
        self.agents.iter().enumerate().filter(|(_, agent)| agent.is_client)
    }

    fn carried(
        &self,
        before: &[Reading],
        after: &[Reading],
        pairs: &[PairRun<'_>],
        results: &[PairResult],
    ) -> Vec<Carried> {
        let mut payloads = vec![Payload::default(); self.agents.len()];
        for (pair, result) in pairs.iter().zip(results) {
            let [at_near, at_far] = arrived(pair.tasks, &result.reports);
            payloads[pair.near] = Payload { sent: at_far, received: at_near };
            payloads[pair.far] = Payload { sent: at_near, received: at_far };
        }
        self.clients()
            .zip(before.iter().zip(after))
            .map(|((at, agent), (before, after))| {
                after.since(before, agent.name.clone(), &agent.address.device, payloads[at])
            })
            .collect()
    }
}

/// Reads CPU time at the two instants of a measurement, and passes everything on.
struct Metered<'a> {
    cpu: CpuMeter,
    observer: &'a mut dyn Observer,
}

impl Observer for Metered<'_> {
    fn mark(&mut self, mark: Mark) {
        self.cpu.read();
        self.observer.mark(mark);
    }

    fn interval(&mut self, number: usize, moment: &IntervalSamples) {
        self.observer.interval(number, moment);
    }

    fn pairs_left(&mut self, count: usize) {
        self.observer.pairs_left(count);
    }
}

/// The gateway's own address inside the system.
fn gateway_address(
    lab: &Lab,
    system: &mut dyn System,
    client: &ClientAddress,
    interrupt: &Interrupt,
) -> Result<ClientAddress, TestbedError> {
    let found = system.gateway_address(lab, interrupt)?;
    found.map_or_else(|| device_address(lab, client), Ok)
}

/// The address of the device by which the gateway reaches a client.
fn device_address(lab: &Lab, client: &ClientAddress) -> Result<ClientAddress, TestbedError> {
    let gateway = lab.gateway();
    let mut found = ClientAddress { v4: None, v6: None, device: String::new() };
    for address in [client.v4.map(IpAddr::V4), client.v6.map(IpAddr::V6)].into_iter().flatten() {
        let device = towards(gateway, address)?;
        for own in addresses_of(gateway, &device)? {
            match own {
                IpAddr::V4(v4) => found.v4 = found.v4.or(Some(v4)),
                IpAddr::V6(v6) => found.v6 = found.v6.or(Some(v6)),
            }
        }
        found.device = device;
    }
    Ok(found)
}

/// The addresses by which others reach `device`, which the link's own are not.
fn addresses_of(namespace: &Namespace, device: &str) -> Result<Vec<IpAddr>, LabError> {
    let matching = Device::all(namespace)?.into_iter().filter(|found| found.name == device);
    Ok(matching.flat_map(|found| found.addresses).filter(|address| !is_link_local(*address)).collect())
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::coordinate::message::{Measurement, TaskEnd};
    use crate::experiment::outcome::samples;
    use crate::experiment::pair_run::EndReports;
    use crate::experiment::{bulk_pairs, tunnel};
    use crate::load::task::Findings;

    fn agents(addresses: &[ClientAddress]) -> LabAgents {
        let agent = |(address, number): (&ClientAddress, usize)| LabAgent {
            name: format!("c{number}"),
            title: format!("client {number}"),
            is_client: true,
            namespace: Namespace::unmade("none"),
            address: address.clone(),
            lan: None,
        };
        let agents = addresses.iter().zip(1..).map(agent).collect();
        LabAgents { fleet: Fleet::default(), agents }
    }

    #[test]
    fn a_pair_needs_addresses_at_both_ends_and_a_missing_one_is_named() {
        let v4 =
            |n: u8| ClientAddress { v4: Some(Ipv4Addr::new(10, 0, 0, n)), v6: None, device: "tun0".into() };
        let v6 = ClientAddress { v4: None, v6: Some(Ipv6Addr::LOCALHOST), device: "tun0".into() };
        let pair_of = |addresses: &[ClientAddress], ip| {
            let pair = agents(addresses).pair((1, 0), ip, &[]);
            pair.map(|pair| (pair.near, pair.far, pair.address)).map_err(|error| error.to_string())
        };
        assert_eq!(pair_of(&[v4(1), v4(2)], 4), Ok((1, 0, IpAddr::from([10, 0, 0, 1]))));
        assert_eq!(
            pair_of(&[v4(1), v4(2)], 6),
            Err("client 2 has no IPv6 address inside this system".into())
        );
        assert_eq!(
            pair_of(&[v4(1), v6.clone()], 6),
            Err("client 1 has no IPv6 address inside this system".into())
        );
        assert!(pair_of(&[v6.clone(), v6], 6).is_ok());
    }

    fn reports(at_near: u64, at_far: u64) -> PairResult {
        let end = |bytes_received| Measurement {
            tasks: vec![TaskEnd {
                found: Findings { bytes_received, ..Findings::default() },
                ..TaskEnd::default()
            }],
            ..Measurement::default()
        };
        PairResult {
            reports: EndReports { ends: [end(at_near), end(at_far)], samples: Vec::new() },
            error: None,
        }
    }

    #[test]
    fn payload_counts_where_it_arrived() {
        let address = ClientAddress { v4: Some(Ipv4Addr::LOCALHOST), v6: None, device: "tun0".into() };
        let agents = agents(&[address.clone(), address]);
        let work = bulk_pairs::tasks(&samples::campaign().settings, 1);
        let pair = agents.pair((1, 0), 4, &work[0]).unwrap();
        let readings = || [Reading::default(), Reading::default()];
        let carried = agents.carried(&readings(), &readings(), &[pair], &[reports(10, 300)]);
        let moved: Vec<_> = carried
            .iter()
            .map(|client| (client.client.as_str(), client.payload_sent, client.payload_received))
            .collect();
        assert_eq!(moved, [("c1", 10, 300), ("c2", 300, 10)]);
        assert!(tunnel::bypass(&carried).is_some(), "and nothing carried it");
        // An end that did not report has received nothing that is known of.
        let mut half = reports(10, 300);
        half.reports.ends[1] = Measurement::default();
        let carried = agents.carried(&readings(), &readings(), &[pair], &[half]);
        assert_eq!((carried[0].payload_received, carried[1].payload_sent), (0, 0));
    }

    #[test]
    fn only_addresses_that_others_reach_count() {
        assert!(is_link_local("fe80::1".parse().unwrap()) && is_link_local("169.254.0.1".parse().unwrap()));
        assert!(!is_link_local("fd86::1".parse().unwrap()) && !is_link_local("10.86.0.1".parse().unwrap()));
    }
}
