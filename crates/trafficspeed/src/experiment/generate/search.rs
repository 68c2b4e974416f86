//! One measurement of a plan, or the search for the highest rate at which hardly anything is lost: trial after trial.
//!
//! Where the trials run is the caller's business: in the lab or between real hosts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{LoadPlan, LoadRun, fresh};
use crate::experiment::figures::Figures;
use crate::experiment::pair_run::Times;
use crate::interrupt::Interrupt;
use crate::load::search::RateSearch;
use crate::load::task::Task;

/// How near the limits of a search come.
const RESOLUTION: f64 = 0.02;
/// A sender that reaches less of the rate it was told than this was itself the limit.
const LEAST_SENT: f64 = 0.97;
/// The longest that a single trial of a search warms up.
const SEARCH_WARMUP: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SearchOutcome {
    /// Messages per second of the best trial that was carried; zero if none was.
    pub packets_per_second: f64,
    pub bits_per_second: f64,
    /// The sender could not do more, so the path may.
    pub limited_by_sender: bool,
    pub trials: Vec<SearchTrial>,
}

/// One trial of a search.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct SearchTrial {
    /// The rate that was asked for, payload; absent: as fast as possible.
    pub asked_bits_per_second: Option<f64>,
    /// Messages that were sent, per second.
    pub sent_per_second: f64,
    /// Messages that arrived, per second.
    pub received_per_second: f64,
    pub lost_percent: f64,
    /// Whether it counts as carried.
    pub carried: bool,
}

/// Measures tasks for a time and puts what came out into the run.
pub type Attempt<'a, E> = dyn FnMut(Vec<Task>, Times, &mut LoadRun) -> Result<(), E> + 'a;

/// Measures the plan's tasks once, or searches if the plan says so.
///
/// # Errors
/// The first of `attempt`.
pub fn or_once<E>(
    plan: &LoadPlan,
    run: &mut LoadRun,
    attempt: &mut Attempt<'_, E>,
    interrupt: &Interrupt,
) -> Result<(), E> {
    let tasks: Vec<Task> = plan.tasks.iter().map(|named| fresh(&named.task)).collect();
    let Some(allowed) = plan.search else { return attempt(tasks, plan.times, run) };
    run.search = Some(search(plan, &tasks[0], allowed, run, attempt, interrupt)?);
    Ok(())
}

/// The highest rate at which at most `allowed` percent of the messages are lost.
fn search<E>(
    plan: &LoadPlan,
    task: &Task,
    allowed: f64,
    run: &mut LoadRun,
    attempt: &mut Attempt<'_, E>,
    interrupt: &Interrupt,
) -> Result<SearchOutcome, E> {
    let times = Times { warmup: plan.times.warmup.min(SEARCH_WARMUP), ..plan.times };
    let mut outcome = SearchOutcome::default();
    let mut attempt = |rate: Option<f64>, run: &mut LoadRun| {
        let mut task = fresh(task);
        if let Task::Messages(work) = &mut task {
            // Less than one bit per second is no rate.
            work.bits_per_second = rate.map(|rate| (rate as u64).max(1) / u64::from(work.streams));
        }
        attempt(vec![task], times, run)?;
        Ok(SearchTrial::of(rate, &run.figures[0]))
    };
    let mut first = attempt(None, run)?;
    if first.lost_percent <= allowed {
        first.carried = true;
        return Ok(SearchOutcome {
            packets_per_second: first.received_per_second,
            bits_per_second: run.figures[0].received_bits_per_second,
            limited_by_sender: true,
            trials: vec![first],
        });
    }
    let mut limits = RateSearch::new(run.figures[0].sent_bits_per_second, RESOLUTION);
    outcome.trials.push(first);
    while let Some(rate) = limits.next().filter(|_| !interrupt.is_set()) {
        let mut trial = attempt(Some(rate), run)?;
        let full = run.figures[0].sent_bits_per_second >= LEAST_SENT * rate;
        // A sender that cannot keep the pace says nothing against the path: what it sent is what is judged.
        trial.carried = trial.lost_percent <= allowed;
        if trial.carried && trial.received_per_second > outcome.packets_per_second {
            outcome.packets_per_second = trial.received_per_second;
            outcome.bits_per_second = run.figures[0].received_bits_per_second;
            outcome.limited_by_sender = !full;
        }
        limits.record(trial.carried);
        outcome.trials.push(trial);
    }
    Ok(outcome)
}

impl SearchTrial {
    fn of(rate: Option<f64>, figures: &Figures) -> Self {
        Self {
            asked_bits_per_second: rate,
            sent_per_second: figures.sent_per_second.unwrap_or_default(),
            received_per_second: figures.received_per_second.unwrap_or_default(),
            // Nothing sent is no proof of anything.
            lost_percent: figures.lost_percent.unwrap_or(100.0),
            carried: false,
        }
    }
}
