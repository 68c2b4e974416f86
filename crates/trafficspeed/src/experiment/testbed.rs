//! One system under test, up in a lab, with its agents ([`LabAgents`]).
//!
//! ```text
//!   near: client 1 ══ tunnel ══ gateway :far            or, with more clients,
//!   near: client 1 ══ tunnel ══ gateway ══ tunnel ══ client 2 :far
//! ```
//!
//! The near end connects, the far end listens. Many measurements can be made one after the other.
//! Where several clients measure at once, each has its own far end at the gateway, or on the
//! host behind it.

use std::path::Path;
use std::time::Duration;

pub use super::lab_agents::TestbedError;
use super::lab_agents::{LabAgents, Schedule};
use super::outcome::CpuUse;
pub use super::outcome::RemoteEnd;
use super::pair_run::{EndReports, LEAD, PairRun, Times};
use super::tunnel;
use crate::interrupt::Interrupt;
use crate::lab::emulator::Emulator;
use crate::lab::{Lab, LinkSettings};
use crate::load::task::Task;
use crate::system::{System, SystemInfo};

/// From the last connection to the start of several clients: enough for the command to reach every
/// process of a busy machine.
const CLIENTS_LEAD: Duration = Duration::from_millis(400);

/// A system that is up, with its lab and agents.
pub struct Testbed {
    // Agents end before the system, the system before the lab.
    agents: LabAgents,
    system: Box<dyn System>,
    facts: SystemInfo,
    lab: Lab,
}

/// A measurement of one pair: the first client, and the gateway or the second client.
#[derive(Clone, Debug)]
pub struct Trial {
    pub tasks: Vec<Task>,
    /// IP version inside.
    pub ip: u8,
    pub times: Times,
}

/// A measurement of several clients at once, each with its partner at the gateway.
#[derive(Clone, Debug)]
pub struct ClientsTrial {
    pub tasks: Vec<Vec<Task>>,
    /// IP version inside.
    pub ip: u8,
    pub times: Times,
}

#[derive(Clone, Debug)]
pub struct TrialResult {
    pub reports: EndReports,
    /// CPU time within the measurement.
    pub cpu: CpuUse,
}

impl Testbed {
    /// Builds a lab of one pair and brings `system` up in it.
    ///
    /// # Errors
    /// Any of [`TestbedError`]; whatever was made is removed again.
    pub fn build(
        system: Box<dyn System>,
        far: RemoteEnd,
        links: LinkSettings,
        interrupt: &Interrupt,
    ) -> Result<Self, TestbedError> {
        match far {
            RemoteEnd::Client => Self::with_clients(system, 2, links, interrupt),
            RemoteEnd::Gateway => {
                let mut testbed = Self::with_clients(system, 1, links, interrupt)?;
                let Self { agents, system, lab, .. } = &mut testbed;
                agents.add_gateway(lab, system.as_mut(), interrupt)?;
                testbed.facts = testbed.system.facts().clone();
                Ok(testbed)
            }
        }
    }

    /// Builds a lab of one client, and at the gateway a target of blocks, which are written to
    /// `place`.
    ///
    /// # Errors
    /// Any of [`TestbedError`]; whatever was made is removed again.
    pub fn with_target(
        system: Box<dyn System>,
        place: &Path,
        links: LinkSettings,
        interrupt: &Interrupt,
    ) -> Result<Self, TestbedError> {
        let mut testbed = Self::with_clients(system, 1, links, interrupt)?;
        let Self { agents, system, lab, .. } = &mut testbed;
        agents.add_target(lab, system.as_mut(), place, interrupt)?;
        testbed.facts = testbed.system.facts().clone();
        Ok(testbed)
    }

    /// Builds a lab of this many clients and brings `system` up in it.
    ///
    /// # Errors
    /// Any of [`TestbedError`]; whatever was made is removed again.
    pub fn with_clients(
        mut system: Box<dyn System>,
        clients: u32,
        links: LinkSettings,
        interrupt: &Interrupt,
    ) -> Result<Self, TestbedError> {
        system.check()?;
        let lab = Lab::build(clients, links)?;
        let started = system.up(&lab, interrupt).map_err(TestbedError::from);
        match started.and_then(|addresses| LabAgents::start(&lab, &addresses)) {
            Ok(agents) => {
                let facts = system.facts().clone();
                Ok(Self { agents, system, facts, lab })
            }
            Err(error) => {
                system.down();
                Err(error)
            }
        }
    }

    /// Builds a lab of this many clients, and for each of them a partner at the gateway.
    ///
    /// # Errors
    /// Any of [`TestbedError`]; whatever was made is removed again.
    pub fn with_partners(
        system: Box<dyn System>,
        clients: u32,
        links: LinkSettings,
        interrupt: &Interrupt,
    ) -> Result<Self, TestbedError> {
        let mut testbed = Self::with_clients(system, clients, links, interrupt)?;
        let Self { agents, system, lab, .. } = &mut testbed;
        agents.add_partners(lab, system.as_mut(), interrupt)?;
        testbed.facts = testbed.system.facts().clone();
        Ok(testbed)
    }

    /// The system's own account of itself.
    pub fn facts(&self) -> &SystemInfo {
        &self.facts
    }

    /// The account of the emulated links, if there are any.
    pub fn emulator_notes(&self) -> Vec<String> {
        self.lab.emulator().map(Emulator::notes).unwrap_or_default()
    }

    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The agents, and the system that carries what they send.
    pub fn parts(&mut self) -> (&mut LabAgents, &dyn System) {
        (&mut self.agents, self.system.as_ref())
    }

    /// Makes one measurement of one pair.
    ///
    /// # Errors
    /// [`TestbedError`]; [`TestbedError::Bypassed`] if the tunnel did not carry what arrived.
    pub fn measure(&mut self, trial: &Trial, interrupt: &Interrupt) -> Result<TrialResult, TestbedError> {
        let pair = self.agents.pair((0, 1), trial.ip, &trial.tasks)?;
        let schedule = Schedule { lead: LEAD, times: trial.times };
        let (mut reports, cpu) = self.run(&[pair], schedule, interrupt)?;
        Ok(TrialResult { reports: reports.pop().unwrap_or_default(), cpu })
    }

    /// Makes one measurement of all clients at once, in a testbed [with
    /// partners](Self::with_partners): the reports of each client and its partner, in the order of
    /// the clients, and the CPU time of all.
    ///
    /// # Errors
    /// Like [`Testbed::measure`], also if a single one of the clients fails: the others would not
    /// be what was asked for.
    pub fn measure_clients(
        &mut self,
        trial: &ClientsTrial,
        interrupt: &Interrupt,
    ) -> Result<(Vec<EndReports>, CpuUse), TestbedError> {
        let clients = trial.tasks.len();
        let pairs = trial
            .tasks
            .iter()
            .zip(0..)
            .map(|(tasks, client)| self.agents.pair((client, clients + client), trial.ip, tasks))
            .collect::<Result<Vec<_>, _>>()?;
        let schedule = Schedule { lead: CLIENTS_LEAD, times: trial.times };
        self.run(&pairs, schedule, interrupt)
    }

    fn run(
        &mut self,
        pairs: &[PairRun<'_>],
        schedule: Schedule,
        interrupt: &Interrupt,
    ) -> Result<(Vec<EndReports>, CpuUse), TestbedError> {
        self.lab.await_few_fragments(interrupt)?;
        let system = self.system.as_ref();
        let measured = self.agents.measure(system, pairs, schedule, &mut (), interrupt)?;
        if let Some(process) = measured.ended {
            return Err(TestbedError::Ended(process));
        }
        let mut reports = Vec::with_capacity(pairs.len());
        for result in measured.results {
            if let Some(error) = result.error {
                return Err(error.into());
            }
            reports.push(result.reports);
        }
        if let Some(reason) = tunnel::bypass(&measured.carried) {
            return Err(TestbedError::Bypassed(reason));
        }
        Ok((reports, measured.cpu.unwrap_or_default()))
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.agents = LabAgents::default();
        self.system.down();
    }
}
