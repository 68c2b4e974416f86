//! Whether the machine was quiet enough while something was measured, and which attempt stands when
//! it was not.
//!
//! INVARIANT: what stands is decided from all saved attempts alone, so a resumed comparison decides
//! as one that was never interrupted.

use serde::{Deserialize, Serialize};

use crate::experiment::outcome::Run;

/// The share of the machine that a measurement may lose to others before it is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Most of the machine's CPU time that the hypervisor may give to others, in percent.
    pub steal_percent: f64,
    /// Most of it that processes without a part in the measurement may use, in percent.
    pub foreign_percent: f64,
    /// Most attempts at one measurement; the quietest stands if none was quiet.
    pub attempts: u32,
}

impl Limits {
    /// Says what was too much; `None` if the measurement was quiet or nothing is known.
    pub fn disturbance(&self, run: &Run) -> Option<String> {
        let too_much = |percent: Option<f64>, limit: f64, subject: &str| {
            let percent = percent.filter(|percent| *percent > limit)?;
            Some(format!("{subject} {percent:.1} % of the machine ({limit} % are allowed)"))
        };
        let steal = too_much(run.steal_percent(), self.steal_percent, "the hypervisor took");
        let foreign = too_much(run.foreign_percent(), self.foreign_percent, "other processes used");
        let parts: Vec<String> = steal.into_iter().chain(foreign).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Marks the attempts that another one stands for: of the complete attempts at a measurement one
/// stands, the first quiet one, or else the quietest. Attempts that failed stay what they are,
/// unless a later one is complete.
pub fn settle(runs: &mut [Run]) {
    for at in 0..runs.len() {
        let standing = standing(runs, at);
        runs[at].superseded = standing.is_some_and(|standing| standing != at);
    }
}

/// The attempt that stands for the measurement that `runs[at]` is an attempt at.
fn standing(runs: &[Run], at: usize) -> Option<usize> {
    let one = &runs[at];
    let of_same =
        |run: &Run| run.label == one.label && run.clients == one.clients && run.repeat == one.repeat;
    let complete = || runs.iter().enumerate().filter(|(_, run)| of_same(run) && run.is_complete());
    let quiet = complete().find(|(_, run)| run.disturbance.is_none());
    let taken = |run: &Run| run.steal_percent().unwrap_or(0.0) + run.foreign_percent().unwrap_or(0.0);
    let quietest = || complete().min_by(|(_, a), (_, b)| taken(a).total_cmp(&taken(b)));
    quiet.or_else(quietest).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;
    use crate::observe::HostCpu;
    use crate::system::Kind;

    const LIMITS: Limits = Limits { steal_percent: 5.0, foreign_percent: 10.0, attempts: 3 };

    /// A run of one second on a machine with one CPU.
    fn shared(steal: f64, foreign: f64) -> Run {
        let mut run = samples::run(Kind::Vpnd, 2, 1, 1_000);
        let cpu = run.cpu.as_mut().unwrap();
        cpu.foreign = foreign;
        cpu.host = HostCpu { user: 1.0 - steal, steal, ..HostCpu::default() };
        run.disturbance = LIMITS.disturbance(&run);
        run
    }

    #[test]
    fn the_limits_are_allowed_and_more_is_said() {
        assert_eq!(shared(0.05, 0.10).disturbance, None);
        let said = shared(0.06, 0.11).disturbance.unwrap();
        assert_eq!(
            said,
            "the hypervisor took 6.0 % of the machine (5 % are allowed), \
             other processes used 11.0 % of the machine (10 % are allowed)"
        );
        let mut unknown = samples::run(Kind::Vpnd, 2, 1, 1_000);
        unknown.cpu = None;
        assert_eq!(LIMITS.disturbance(&unknown), None);
    }

    fn superseded(mut runs: Vec<Run>) -> Vec<bool> {
        settle(&mut runs);
        runs.iter().map(|run| run.superseded).collect()
    }

    #[test]
    fn the_first_quiet_attempt_stands_or_else_the_quietest() {
        assert_eq!(
            superseded(vec![shared(0.5, 0.0), shared(0.04, 0.0), shared(0.0, 0.0)]),
            [true, false, true]
        );
        assert_eq!(
            superseded(vec![shared(0.5, 0.0), shared(0.1, 0.1), shared(0.3, 0.0)]),
            [true, false, true]
        );
        let mut other = shared(0.9, 0.0);
        other.repeat = 2;
        assert_eq!(superseded(vec![shared(0.0, 0.0), other]), [false, false], "rounds are apart");
    }

    #[test]
    fn a_failure_stands_only_until_an_attempt_is_complete() {
        let mut failed = shared(0.0, 0.0);
        failed.error = Some("no".into());
        assert_eq!(superseded(vec![failed.clone()]), [false]);
        assert_eq!(superseded(vec![failed, shared(0.9, 0.0)]), [true, false]);
    }

    #[test]
    fn superseded_attempts_do_not_count() {
        let mut runs = vec![shared(0.5, 0.0), shared(0.0, 0.0)];
        settle(&mut runs);
        assert!(!runs[0].is_whole() && runs[1].is_whole());
        assert!(runs[0].problems()[0].starts_with("attempt rejected: the hypervisor took 50.0 %"));
        let mut alone = vec![shared(0.5, 0.0)];
        settle(&mut alone);
        assert!(alone[0].is_whole());
        assert!(alone[0].problems()[0].starts_with("stands for want of a quieter attempt: "));
    }
}
