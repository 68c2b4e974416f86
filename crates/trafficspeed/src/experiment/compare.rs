//! A comparison of systems: rounds of the plain experiment, saved after every measurement, resumed
//! after a break.
//!
//! Within a round every number of clients is measured with one system after the other, in
//! shuffled order, so that drift of the machine hits all alike and ratios can be
//! formed within a round. A measurement during which the machine was shared with others more than
//! allowed is repeated. It knows the journal and the schedule, nothing of how results are shown.

pub mod journal;
pub mod quiet;
pub mod same;
pub mod schedule;

use super::environment::Environment;
use super::outcome::{Campaign, Run};
use super::progress::Progress;
use super::traffic::{Slot, TrafficPlan, run_one};
use crate::interrupt::Interrupt;
use crate::system::vpnd::keep_choice;

use journal::{Journal, JournalError};
use quiet::Limits;
use same::Changed;

#[derive(Debug)]
pub struct ComparePlan {
    pub traffic: TrafficPlan,
    /// When a measurement is repeated.
    pub limits: Limits,
    /// Which system the others are compared with, besides plain routing: its label.
    pub baseline: Option<String>,
}

/// Why a comparison could not go on; what was measured is in the journal.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A result could not be saved.
    #[error("{0}")]
    Journal(#[from] JournalError),
    /// A system became another while the comparison ran.
    #[error("{0}")]
    Changed(#[from] Changed),
}

/// A comparison that ended, in order or not.
#[derive(Debug)]
pub struct Compared {
    /// All that was measured, earlier sessions included.
    pub campaign: Campaign,
    /// Why it ended before all was measured, other than by the user.
    pub error: Option<CompareError>,
}

/// Measures whatever `earlier` runs leave to be measured, and saves each result in `journal` before
/// the next begins.
pub fn run(
    plan: &ComparePlan,
    journal: &mut Journal,
    environment: Environment,
    earlier: Vec<Run>,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Compared {
    let mut runs = earlier;
    for (subject, cipher) in runs.iter().filter_map(|run| Some((run.subject?, &run.facts.cipher))) {
        keep_choice(&plan.traffic.programs, subject, cipher);
    }
    let left = schedule::left(&plan.traffic.slots(), &runs, plan.limits.attempts);
    let mut error = None;
    for (at, &slot) in left.iter().enumerate() {
        let of_slot = |runs: &[Run]| {
            let known = schedule::time_left(&left[at..], &plan.traffic.settings, runs);
            progress.part(at + 1, left.len(), known)
        };
        if let Err(reason) = fill(plan, slot, journal, &mut runs, of_slot, interrupt) {
            error = Some(reason);
            break;
        }
        if interrupt.is_set() {
            break;
        }
    }
    quiet::settle(&mut runs);
    let (settings, baseline) = (plan.traffic.settings.clone(), plan.baseline.clone());
    let campaign = Campaign::new(settings, environment, runs, interrupt.is_set(), baseline);
    Compared { campaign, error }
}

/// Measures one slot until an attempt is quiet or there were enough of them.
fn fill(
    plan: &ComparePlan,
    slot: Slot,
    journal: &mut Journal,
    runs: &mut Vec<Run>,
    progress: impl Fn(&[Run]) -> Progress,
    interrupt: &Interrupt,
) -> Result<(), CompareError> {
    let done = runs.iter().filter(|run| schedule::is_of(run, slot) && run.is_complete()).count() as u32;
    for attempt in done + 1..=plan.limits.attempts.max(done + 1) {
        let progress = progress(runs);
        let mut run = run_one(&plan.traffic, slot, attempt, &progress, interrupt);
        run.disturbance = plan.limits.disturbance(&run);
        // Measurements of another program must not get into the journal.
        same::check_system(runs, &run)?;
        journal.append(&run)?;
        let again = run.is_complete() && run.disturbance.is_some() && attempt < plan.limits.attempts;
        if let Some(disturbance) = &run.disturbance {
            let next = if again { "measuring again" } else { "no attempts are left" };
            progress.note(&format!("disturbed: {disturbance}; {next}"));
        }
        runs.push(run);
        if !again || interrupt.is_set() {
            break;
        }
    }
    Ok(())
}
