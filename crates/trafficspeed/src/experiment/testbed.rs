//! One system under test, up in a lab, with an agent at each end of the measured path.
//!
//! ```text
//!   near: client 1 ══ tunnel ══ gateway :far            or, with a second client,
//!   near: client 1 ══ tunnel ══ gateway ══ tunnel ══ client 2 :far
//! ```
//!
//! The near end connects, the far end listens. Many measurements can be made one after the other. Before each the
//! kernel must say that it would send through the tunnel, and after it the tunnel's devices must have carried what
//! arrived: otherwise there is no result.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::cpu::CpuMeter;
use super::figures::arrived;
use super::outcome::CpuUse;
use super::pair_run::{Heard, Mark, Moment, Observer, PairError, PairRun, Times, run_pair};
use super::tunnel::{LEAST_SHARE, ROUTE_TIMEOUT, wait_for_route};
use crate::coordinate::fleet::{Fleet, FleetError};
use crate::interrupt::Interrupt;
use crate::lab::device::{Counters, Device, towards};
use crate::lab::namespace::Namespace;
use crate::lab::{Lab, LabError, LinkSettings};
use crate::load::task::Task;
use crate::system::{ClientAddress, Facts, System, SystemError};

/// Where the far end is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum RemoteEnd {
    /// On the gateway, at its inner address: every byte crosses the tunnel once.
    #[default]
    Gateway,
    /// A second client: every byte crosses the gateway's tunnel twice.
    Client,
}

/// Why a system could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// The lab failed.
    #[error("{0}")]
    Lab(#[from] LabError),
    /// The system did not come up.
    #[error("{0}")]
    System(#[from] SystemError),
    /// An agent did not come up.
    #[error("{0}")]
    Fleet(#[from] FleetError),
    /// The two ends could not do the work.
    #[error("{0}")]
    Pair(#[from] PairError),
    /// An end cannot be reached through the system.
    #[error("{end} has no IPv{ip} address inside this system")]
    NoAddress {
        /// Which end.
        end: &'static str,
        /// The IP version.
        ip: u8,
    },
    /// The measurement would go past the VPN.
    #[error(
        "nothing was measured: {end} would reach {address} through {found}, not through {tunnel}; check the routes"
    )]
    Past {
        /// Which end.
        end: String,
        /// The other end.
        address: IpAddr,
        /// Where the kernel would send.
        found: String,
        /// Where it should.
        tunnel: String,
    },
    /// The measurement went past the VPN.
    #[error("only {percent} % of the bytes {what} went through the tunnel device {tunnel}; check the routes")]
    Bypassed {
        /// How much went through, rounded down.
        percent: u32,
        /// Which bytes.
        what: &'static str,
        /// The device.
        tunnel: String,
    },
}

/// One end of the path.
struct End {
    name: &'static str,
    namespace: Namespace,
    address: ClientAddress,
    agent: usize,
}

/// A system that is up, with its lab and agents.
pub struct Testbed {
    // Agents end before the system, the system before the lab.
    fleet: Fleet,
    near: End,
    far: End,
    far_is: RemoteEnd,
    system: Box<dyn System>,
    facts: Facts,
    lab: Lab,
}

/// What to measure on a testbed.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The load.
    pub tasks: Vec<Task>,
    /// IP version inside.
    pub ip: u8,
    /// When.
    pub times: Times,
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What the two ends reported.
    pub heard: Heard,
    /// CPU time within the measurement.
    pub cpu: CpuUse,
}

impl Testbed {
    /// Builds a lab and brings `system` up in it.
    ///
    /// # Errors
    /// Any of [`TestbedError`]; whatever was made is removed again.
    pub fn build(
        mut system: Box<dyn System>,
        far_is: RemoteEnd,
        links: LinkSettings,
        interrupt: &Interrupt,
    ) -> Result<Self, TestbedError> {
        system.check()?;
        let lab = Lab::build(if far_is == RemoteEnd::Client { 2 } else { 1 }, links)?;
        let made = Self::join(system.as_mut(), &lab, far_is, interrupt);
        let (fleet, near, far) = match made {
            Ok(made) => made,
            Err(error) => {
                system.down();
                return Err(error);
            }
        };
        let facts = system.facts();
        Ok(Self { fleet, near, far, far_is, system, facts, lab })
    }

    fn join(
        system: &mut dyn System,
        lab: &Lab,
        far_is: RemoteEnd,
        interrupt: &Interrupt,
    ) -> Result<(Fleet, End, End), TestbedError> {
        let mut addresses = system.up(lab, interrupt)?.into_iter();
        let mut fleet = Fleet::default();
        let mut end = |name, namespace: &Namespace, address| {
            let agent = fleet.add_child(name, namespace.agent())?;
            Ok::<_, FleetError>(End { name, namespace: namespace.clone(), address, agent })
        };
        let none = || TestbedError::NoAddress { end: "client", ip: 4 };
        let near = end("client 1", &lab.clients()[0], addresses.next().ok_or_else(none)?)?;
        let far = match far_is {
            RemoteEnd::Client => end("client 2", &lab.clients()[1], addresses.next().ok_or_else(none)?)?,
            RemoteEnd::Gateway => end("gateway", lab.gateway(), gateway_address(lab, &near.address)?)?,
        };
        Ok((fleet, near, far))
    }

    /// What the system says of itself.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The lab that it is in.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Makes one measurement; `listen` hears every interval's number and samples.
    ///
    /// # Errors
    /// [`TestbedError::NoAddress`], [`TestbedError::Past`], [`TestbedError::Bypassed`], [`TestbedError::Pair`].
    pub fn measure(
        &mut self,
        trial: &Trial,
        listen: &mut dyn FnMut(usize, &Moment),
        interrupt: &Interrupt,
    ) -> Result<Measured, TestbedError> {
        let ip = trial.ip;
        let address = self.far.at(ip).ok_or(TestbedError::NoAddress { end: self.far.name, ip })?;
        let near_address = self.near.at(ip).ok_or(TestbedError::NoAddress { end: self.near.name, ip })?;
        self.near.leads_to(address, interrupt)?;
        if self.far_is == RemoteEnd::Client {
            self.far.leads_to(near_address, interrupt)?;
        }
        let before = self.counters()?;
        let mut observer = TestbedObserver { cpu: CpuMeter::new(self.system.processes()), listen };
        let pair = PairRun { near: self.near.agent, far: self.far.agent, address, tasks: &trial.tasks };
        let heard = run_pair(&mut self.fleet, pair, trial.times, &mut observer, interrupt)?;
        let after = self.counters()?;
        for (end, (before, after)) in self.ends().into_iter().zip(before.iter().zip(&after)) {
            end.carried(after.since(*before), &trial.tasks, &heard)?;
        }
        let mut cpu = observer.cpu.used().unwrap_or_default();
        cpu.generators = heard.ends.iter().map(|end| end.cpu_seconds).sum();
        Ok(Measured { heard, cpu })
    }

    /// The ends whose tunnel devices are looked at: the gateway's device may serve others.
    fn ends(&self) -> Vec<&End> {
        if self.far_is == RemoteEnd::Client { vec![&self.near, &self.far] } else { vec![&self.near] }
    }

    fn counters(&self) -> Result<Vec<Counters>, LabError> {
        let of = |end: &End| {
            let all: HashMap<String, Counters> = Counters::read(&end.namespace)?;
            Ok(all.get(&end.address.device).copied().unwrap_or_default())
        };
        self.ends().into_iter().map(of).collect()
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.fleet = Fleet::default();
        self.system.down();
    }
}

impl End {
    fn at(&self, ip: u8) -> Option<IpAddr> {
        if ip == 4 { self.address.v4.map(IpAddr::V4) } else { self.address.v6.map(IpAddr::V6) }
    }

    /// Makes sure that the kernel sends to `address` through the tunnel; routes may take a moment.
    fn leads_to(&self, address: IpAddr, interrupt: &Interrupt) -> Result<(), TestbedError> {
        let (deadline, tunnel) = (Instant::now() + ROUTE_TIMEOUT, &self.address.device);
        match wait_for_route(&self.namespace, address, tunnel, deadline, interrupt)? {
            None => Ok(()),
            Some(found) => {
                Err(TestbedError::Past { end: self.name.to_owned(), address, found, tunnel: tunnel.clone() })
            }
        }
    }

    /// Makes sure that the tunnel device carried what arrived at this end, and what arrived from it.
    fn carried(&self, counters: Counters, tasks: &[Task], heard: &Heard) -> Result<(), TestbedError> {
        let [at_near, at_far] = arrived(tasks, heard);
        let (here, there) = if self.name == "client 1" { (at_near, at_far) } else { (at_far, at_near) };
        for (what, payload, carried) in
            [("received", here, counters.received.bytes), ("sent", there, counters.sent.bytes)]
        {
            let share = if payload == 0 { 1.0 } else { carried as f64 / payload as f64 };
            if share < LEAST_SHARE {
                let (percent, tunnel) = ((share * 100.0) as u32, self.address.device.clone());
                return Err(TestbedError::Bypassed { percent, what, tunnel });
            }
        }
        Ok(())
    }
}

/// The gateway's own address inside the system: that of the device by which it reaches a client.
pub(super) fn gateway_address(lab: &Lab, client: &ClientAddress) -> Result<ClientAddress, TestbedError> {
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

/// The addresses by which others reach `device`; the link's own are none.
fn addresses_of(namespace: &Namespace, device: &str) -> Result<Vec<IpAddr>, LabError> {
    let mine = Device::all(namespace)?.into_iter().filter(|found| found.name == device);
    Ok(mine.flat_map(|found| found.addresses).filter(|address| !is_link_local(*address)).collect())
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// CPU time at the two instants, and the samples for whoever listens.
struct TestbedObserver<'a> {
    cpu: CpuMeter,
    listen: &'a mut dyn FnMut(usize, &Moment),
}

impl Observer for TestbedObserver<'_> {
    fn mark(&mut self, _mark: Mark) {
        self.cpu.read();
    }

    fn interval(&mut self, _pair: usize, number: usize, moment: &Moment) {
        (self.listen)(number, moment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinate::message::{Measurement, TaskEnd};
    use crate::lab::device::Traffic;
    use crate::load::message::Messages;
    use crate::load::task::{Findings, Protocol, Sockets};

    fn end() -> End {
        let address = ClientAddress { v4: None, v6: None, device: "tun0".into() };
        End { name: "client 1", namespace: Namespace::unmade("none"), address, agent: 0 }
    }

    /// What is said when 1,000 bytes arrived at the far end and the near end's tunnel had sent `carried`.
    fn said(carried: u64) -> Option<String> {
        let found = Findings { bytes_received: 1_000, ..Findings::default() };
        let far =
            Measurement { tasks: vec![TaskEnd { found, ..TaskEnd::default() }], ..Measurement::default() };
        let near = Measurement { tasks: vec![TaskEnd::default()], ..Measurement::default() };
        let heard = Heard { ends: [near, far], samples: Vec::new() };
        let task = Task::Messages(Messages {
            run_id: 1,
            seed: 1,
            protocol: Protocol::Udp,
            streams: 1,
            backward: false,
            length: 100,
            bits_per_second: None,
            sockets: Sockets::default(),
        });
        let sent = Traffic { bytes: carried, ..Traffic::default() };
        let counters = Counters { sent, ..Counters::default() };
        end().carried(counters, &[task], &heard).err().map(|error| error.to_string())
    }

    #[test]
    fn what_went_past_the_tunnel_is_no_result() {
        assert_eq!(said(1_040), None);
        assert_eq!(said(950), None);
        let past = said(949).expect("an error");
        assert!(past.contains("only 94 % of the bytes sent went through the tunnel device tun0"), "{past}");
        assert!(said(0).is_some_and(|said| said.contains("only 0 %")));
    }

    #[test]
    fn only_addresses_that_others_reach_count() {
        assert!(is_link_local("fe80::1".parse().unwrap()) && is_link_local("169.254.0.1".parse().unwrap()));
        assert!(!is_link_local("fd86::1".parse().unwrap()) && !is_link_local("10.86.0.1".parse().unwrap()));
    }
}
