//! Experiment 4 between real hosts: one pair; the far host holds the target, in the place that its
//! owner allows.
//!
//! ```text
//!   near: writer ═══ the network ═══ far: target          the blocks that wait go to its address inside the VPN,
//!            └────── the VPN ────────┘                    all others to the one that its agent is reached by
//! ```
//!
//! The delay is what the network has: half of the time in which a connection is made. A host that
//! is lost ends the experiment; what was acknowledged until then is compared as far as the other
//! host can tell, and is in the report.

use std::net::IpAddr;
use std::time::Duration;

use super::PairSpec;
use super::host_pairs::{HostEnd, HostPairsPlan};
use crate::coordinate::fleet::{Fleet, FleetError};
use crate::coordinate::token::Token;
use crate::experiment::block::pair::{BlockPair, milliseconds};
use crate::experiment::block::tally::Work;
use crate::experiment::block::{BlockReport, Route, Writes};
use crate::experiment::progress::Progress;
use crate::interrupt::Interrupt;
use crate::lab::emulator::impairment::Span;

/// Warm-up while the delay is not known yet.
const FIRST_WARMUP: Duration = Duration::from_secs(1);
/// Counted time of measuring without waiting.
const MOST_CALIBRATION: Duration = Duration::from_secs(2);

/// Runs all of it with the only pair of the plan, whose far host has an address inside the VPN (see
/// [`check`]).
///
/// # Errors
/// When nothing at all can be measured; what fails later is in the report.
pub fn run(
    writes: &Writes,
    hosts_plan: &HostPairsPlan,
    token: &Token,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<BlockReport, FleetError> {
    let pair = &hosts_plan.pairs[0];
    let outer = pair.a.control_address()?;
    let inner = pair.a.data.unwrap_or(outer);
    let mut fleet = Fleet::default();
    let far = fleet.add_host(&pair.a.text, &pair.a.control, token)?;
    let near = fleet.add_host(&pair.b.text, &pair.b.control, token)?;
    let mut ends = BlockPair { fleet: &mut fleet, near, far, writes, interrupt };
    let place = ends.place()?;
    let mut report = BlockReport::begin(writes, hosts_plan.label.clone(), place, Vec::new());
    report.hosts = [near, far].map(|host| HostEnd::of(ends.fleet, host)).into();
    report.links = vec![format!("The tunnel was reached at {inner}, everything else went to {outer}.")];
    let mut work = Work::default();
    let times = (FIRST_WARMUP, writes.duration.min(MOST_CALIBRATION));
    if let Some((lower, delay)) = ends.calibrate(outer, times)? {
        work.lower = lower;
        report.asked.0 = vec![milliseconds(delay)];
        progress.note(&format!("one-way delay {delay}, about {} s", writes.estimate(delay).as_secs()));
        run_all(&mut ends, delay, (outer, inner), &mut report, &mut work, progress);
    }
    report.parameters = work.parameters();
    report.interrupted = interrupt.is_set();
    Ok(report)
}

/// Says what is wrong with the pairs.
///
/// # Errors
/// In words, for people.
pub fn check(pairs: &[PairSpec]) -> Result<(), String> {
    let [pair] = pairs else { return Err("a target takes one writer: give --pair once".into()) };
    if pair.a.data.is_none() {
        let far = &pair.a.text;
        return Err(format!(
            "the blocks that wait go through a tunnel: name the address of {far} inside it, as in \
             --pair {far}/10.0.0.1={}",
            pair.b.text
        ));
    }
    Ok(())
}

fn run_all(
    ends: &mut BlockPair<'_>,
    delay: Span,
    (outer, inner): (IpAddr, IpAddr),
    report: &mut BlockReport,
    work: &mut Work,
    progress: &Progress,
) {
    for (block_bytes, way, repeat) in ends.writes.cases() {
        if ends.interrupt.is_set() {
            return;
        }
        progress.live(&format!("run {repeat}, blocks of {block_bytes} bytes, {}", way.name()));
        let blocks = ends.writes.blocks(block_bytes, way.protection());
        let address = if way.route == Route::Tunnel { inner } else { outer };
        let Ok(connected) = ends.connect(way, delay, &blocks, address) else { return };
        let case = connected.case((delay, way, repeat), &blocks, 0.0, work);
        if case.problem.is_some() {
            ends.settle();
        }
        report.cases.push(case);
        if let Some(name) = ends.lost() {
            report.problems.push(format!("{name} dropped out; nothing more was measured"));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pair_with_an_address_inside_the_tunnel_is_needed() {
        let pairs =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<PairSpec>>();
        assert_eq!(check(&pairs(&["a/10.0.0.1=b"])), Ok(()));
        assert!(check(&pairs(&["a=b"])).unwrap_err().contains("--pair a/10.0.0.1=b"));
        assert!(check(&pairs(&["a/10.0.0.1=b", "c/10.0.0.2=d"])).unwrap_err().contains("once"));
    }
}
