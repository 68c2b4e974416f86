//! The hosts of a measurement, in pairs, as every experiment between real hosts needs them.
//!
//! A host that cannot be reached, or is lost later, takes out its pair only, and the pair says why. Clocks are compared
//! again before each measurement: they drift, and a one-way delay is known only as well as they are.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{LEAD, PairSpec};
use crate::coordinate::fleet::{Fleet, FleetError};
use crate::coordinate::token::Token;
use crate::experiment::pair_run::{Mark, Moment, Observer, PairResult, PairRun, Times, run_pairs};
use crate::interrupt::Interrupt;
use crate::load::task::Task;
use crate::observe::HostFacts;

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
    pub host: HostFacts,
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
    /// Reaches all hosts.
    ///
    /// # Errors
    /// When no pair at all can be had.
    pub fn connect(hosts_plan: &HostPairsPlan, token: &Token) -> Result<Self, FleetError> {
        let mut fleet = Fleet::default();
        let mut pairs = Vec::new();
        for spec in &hosts_plan.pairs {
            let name = if hosts_plan.pairs.len() == 1 {
                hosts_plan.label.clone()
            } else {
                format!("{}: {} = {}", hosts_plan.label, spec.a.text, spec.b.text)
            };
            pairs.push((name, connect(&mut fleet, spec, token)));
        }
        if pairs.iter().all(|(_, pair)| pair.is_err())
            && let Some((_, Err(error))) = pairs.pop()
        {
            return Err(error);
        }
        Ok(Self { fleet, pairs })
    }

    /// What reports call each pair.
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
        let here = |pair: &HostPair| ![pair.near, pair.far].iter().any(|&host| self.fleet.is_lost(host));
        !self.pairs.iter().any(|(_, pair)| pair.as_ref().is_ok_and(here))
    }

    /// The hosts of pair number `at`, the near one first; none if it never came.
    pub fn hosts(&self, at: usize) -> Vec<HostEnd> {
        let of = |agent| HostEnd::of(&self.fleet, agent);
        self.pairs[at].1.iter().flat_map(|pair| [of(pair.near), of(pair.far)]).collect()
    }

    /// Makes one measurement with all pairs at once: what each gave, or why it did not take part. `tell` hears every
    /// interval of a pair, by the pair's name and the interval's number.
    pub fn measure(
        &mut self,
        tasks: &[Task],
        times: Times,
        tell: impl FnMut(&str, usize, &Moment),
        interrupt: &Interrupt,
    ) -> Vec<Result<PairResult, String>> {
        let (mut runs, mut names) = (Vec::new(), Vec::new());
        for (name, pair) in &self.pairs {
            let &Ok(HostPair { near, far, address }) = pair else { continue };
            for host in [near, far] {
                // A host that does not answer shows as lost when the measurement begins.
                let _ = self.fleet.compare_clocks(host);
            }
            runs.push(PairRun { near, far, address, tasks });
            names.push(name.as_str());
        }
        let mut listener = Listener { names, tell };
        let mut came = run_pairs(&mut self.fleet, &runs, times, LEAD, &mut listener, interrupt).into_iter();
        let each = self.pairs.iter().map(|(_, pair)| match pair {
            Ok(_) => came.next().ok_or_else(|| "the pair was not measured".to_owned()),
            Err(error) => Err(error.to_string()),
        });
        each.collect()
    }
}

/// Tells the intervals of every pair by its name.
struct Listener<'a, F> {
    /// Of the pairs that came, as the runs are numbered.
    names: Vec<&'a str>,
    tell: F,
}

impl<F: FnMut(&str, usize, &Moment)> Observer for Listener<'_, F> {
    fn mark(&mut self, _mark: Mark) {}

    fn interval(&mut self, pair: usize, number: usize, moment: &Moment) {
        (self.tell)(self.names[pair], number, moment);
    }
}

fn connect(fleet: &mut Fleet, spec: &PairSpec, token: &Token) -> Result<HostPair, FleetError> {
    let address = spec.a.data_address()?;
    let far = fleet.add_host(&spec.a.text, &spec.a.control, token)?;
    let near = fleet.add_host(&spec.b.text, &spec.b.control, token)?;
    Ok(HostPair { near, far, address })
}
