//! The hosts of a measurement, in pairs, as every experiment between real hosts needs them.
//!
//! A host that cannot be reached, or is lost later, takes out its pair only, and the pair says why.
//! Clocks are compared again before each measurement: they drift, and a one-way delay is known only
//! as well as they are.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{LEAD, PairSpec};
use crate::coordinate::fleet::{Fleet, FleetError};
use crate::coordinate::token::Token;
use crate::experiment::pair_run::{Observer, PairResult, PairRun, Times, run_pairs};
use crate::interrupt::Interrupt;
use crate::load::task::Task;
use crate::observe::HostInfo;

/// The hosts that measure, and the name of the network between them in reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPairsPlan {
    /// The pairs; the second host of each is the near end, the client.
    pub pairs: Vec<PairSpec>,
    /// The network between them.
    pub label: String,
    /// The file with the token that all of them hold.
    pub token_file: PathBuf,
}

/// One host as reports have it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostEnd {
    /// Its name, as the user wrote it.
    pub name: String,
    pub host: HostInfo,
    /// Its clock less the coordinator's, in milliseconds.
    pub clock_offset_ms: f64,
    /// The true offset lies within this of it, in milliseconds.
    pub clock_uncertainty_ms: f64,
}

impl HostEnd {
    /// An agent of `fleet`.
    pub fn of(fleet: &Fleet, agent: usize) -> Self {
        let offset = fleet.offset(agent);
        Self {
            name: fleet.name(agent).to_owned(),
            host: fleet.host(agent).clone(),
            clock_offset_ms: offset.ns as f64 / 1e6,
            clock_uncertainty_ms: offset.uncertainty_ns as f64 / 1e6,
        }
    }

    /// The host in a line.
    pub fn words(&self) -> String {
        let Self { name, host, clock_offset_ms: offset, clock_uncertainty_ms: within } = self;
        format!(
            "{name}: {}, {} × {}; its clock {offset:+.3} ms from the coordinator's, within {within:.3} ms",
            host.system, host.cpus, host.cpu
        )
    }
}

/// A pair of hosts that were reached.
#[derive(Debug)]
struct HostPair {
    near: usize,
    far: usize,
    /// Where the far end listens.
    address: IpAddr,
}

/// All pairs of hosts, also those that could not be reached.
pub struct HostPairs {
    fleet: Fleet,
    pairs: Vec<(String, Result<HostPair, FleetError>)>,
}

impl HostPairs {
    /// # Errors
    /// When no pair at all can be had.
    pub fn connect(plan: &HostPairsPlan, token: &Token) -> Result<Self, FleetError> {
        let HostPairsPlan { pairs: specs, label, .. } = plan;
        let mut fleet = Fleet::default();
        let mut pairs = Vec::new();
        for spec in specs {
            let name = if specs.len() == 1 {
                label.to_owned()
            } else {
                format!("{label}: {} = {}", spec.a.text, spec.b.text)
            };
            pairs.push((name, connect(&mut fleet, spec, token)));
        }
        if pairs.iter().any(|(_, pair)| pair.is_ok()) {
            return Ok(Self { fleet, pairs });
        }
        let first = pairs.into_iter().find_map(|(_, pair)| pair.err());
        first.map_or_else(|| Ok(Self { fleet: Fleet::default(), pairs: Vec::new() }), Err)
    }

    /// The names of all pairs in reports.
    pub fn names(&self) -> Vec<String> {
        self.pairs.iter().map(|(name, _)| name.clone()).collect()
    }

    /// The IP version of the measured connections.
    pub fn ip(&self) -> u8 {
        let first = self.pairs.iter().find_map(|(_, pair)| pair.as_ref().ok());
        if first.is_some_and(|pair| pair.address.is_ipv6()) { 6 } else { 4 }
    }

    /// Whether every pair has lost a host.
    pub fn is_over(&self) -> bool {
        let is_present =
            |pair: &HostPair| ![pair.near, pair.far].iter().any(|&host| self.fleet.is_lost(host));
        !self.pairs.iter().any(|(_, pair)| pair.as_ref().is_ok_and(is_present))
    }

    /// The hosts of pair number `at`, the near one first; none if it never came.
    pub fn hosts(&self, at: usize) -> Vec<HostEnd> {
        let host_end = |agent| HostEnd::of(&self.fleet, agent);
        self.pairs[at].1.iter().flat_map(|pair| [host_end(pair.near), host_end(pair.far)]).collect()
    }

    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Why pairs could not be reached.
    pub fn problems(&self) -> impl Iterator<Item = &FleetError> {
        self.pairs.iter().filter_map(|(_, pair)| pair.as_ref().err())
    }

    fn reached(&self) -> impl Iterator<Item = &HostPair> {
        self.pairs.iter().filter_map(|(_, pair)| pair.as_ref().ok())
    }

    /// The number of pairs that were reached.
    pub fn count(&self) -> usize {
        self.reached().count()
    }

    /// The runs of the pairs that were reached, each with its work.
    pub fn runs<'a>(&self, tasks: impl Fn(usize) -> &'a [Task]) -> Vec<PairRun<'a>> {
        let run = |(&HostPair { near, far, address }, at): (&HostPair, usize)| PairRun {
            near,
            far,
            address,
            bind: address,
            tasks: tasks(at),
        };
        self.reached().zip(0..).map(run).collect()
    }

    /// Makes one measurement with all `runs` at once.
    pub fn run(
        &mut self,
        runs: &[PairRun<'_>],
        times: Times,
        observer: &mut dyn Observer,
        interrupt: &Interrupt,
    ) -> Vec<PairResult> {
        for host in runs.iter().flat_map(|run| [run.far, run.near]) {
            if !self.fleet.is_lost(host) {
                // This also passes over what is left of an earlier measurement. A host that does
                // not answer shows as lost.
                let _ = self.fleet.compare_clocks(host);
            }
        }
        run_pairs(&mut self.fleet, runs, times, LEAD, observer, interrupt)
    }

    /// Makes one measurement with all pairs at once: what each gave, or why it did not take part.
    pub fn measure(
        &mut self,
        tasks: &[Task],
        times: Times,
        interrupt: &Interrupt,
    ) -> Vec<Result<PairResult, String>> {
        let mut results = self.run(&self.runs(|_| tasks), times, &mut (), interrupt).into_iter();
        let states = self.pairs.iter().map(|(_, pair)| match pair {
            Ok(_) => results.next().ok_or_else(|| "the pair was not measured".to_owned()),
            Err(error) => Err(error.to_string()),
        });
        states.collect()
    }
}

fn connect(fleet: &mut Fleet, spec: &PairSpec, token: &Token) -> Result<HostPair, FleetError> {
    let address = spec.a.data_address()?;
    let far = fleet.add_host(&spec.a.text, &spec.a.control, token)?;
    let near = fleet.add_host(&spec.b.text, &spec.b.control, token)?;
    Ok(HostPair { near, far, address })
}
