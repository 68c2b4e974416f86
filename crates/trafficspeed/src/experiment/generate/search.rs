//! The search for the highest rate at which hardly anything is lost: trial after trial, then a
//! measurement at that rate.
//!
//! Where the trials run is the caller's business: in the lab or between real hosts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{LoadPlan, LoadRun, fresh};
use crate::experiment::figures::Figures;
use crate::experiment::outcome::Taken;
use crate::experiment::pair_run::Times;
use crate::interrupt::Interrupt;
use crate::load::search::RateSearch;
use crate::load::task::Task;

/// How near the limits of a search come.
pub const RESOLUTION: f64 = 0.02;
/// A sender that reaches less of the rate it was told than this was itself the limit.
pub(in crate::experiment) const LEAST_SENT: f64 = 0.97;
/// The longest that a single trial of a search warms up.
const SEARCH_WARMUP: Duration = Duration::from_millis(200);

/// How often the rate is lowered where more is lost in the measurement than in the trials, and by
/// how much.
const STEPS_DOWN: u32 = 5;
const STEP_DOWN: f64 = 0.95;

/// Rates above the one that was found at which the delivered share is tried, too, as multiples of
/// it: a search has few trials there, and how a path collapses is a curve.
const ABOVE: [f64; 4] = [1.25, 1.5, 2.0, 4.0];
/// Rates that differ by less than this share of them are one point of the curve.
const SAME_POINT: f64 = 0.1;

/// A search to make.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Search {
    /// The most that may be lost, in percent.
    pub allowed_percent: f64,
    /// How near its limits come, as a share of the upper one.
    pub resolution: f64,
    /// Counted seconds of a trial; those of the measurement if absent.
    pub trial_seconds: Option<f64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SearchOutcome {
    /// Messages per second of the best trial that was carried; zero if none was. Where the rate was
    /// lowered since, those of the measurement that held.
    pub packets_per_second: f64,
    /// The rate of `packets_per_second`, in bits of payload.
    pub bits_per_second: f64,
    /// The rate that was asked for then; absent: as fast as possible.
    pub asked_bits_per_second: Option<f64>,
    /// The sender could not do more, so the path may.
    pub limited_by_sender: bool,
    /// How often the rate was lowered, since more was lost in the measurement than in the trials.
    pub steps_down: u32,
    /// The measurement lost too much at every rate.
    pub is_unsteady: bool,
    /// The most that others took of the machine in any trial or measurement; lab only.
    #[serde(default)]
    pub taken: Taken,
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

/// Measures the tasks of all clients together for a time and puts what came out into the run.
pub type Attempt<'a, E> = dyn FnMut(Vec<Task>, Times, &mut LoadRun) -> Result<(), E> + 'a;

/// Measures the plan's tasks once, at the rate that a search finds if the plan has one.
///
/// # Errors
/// The first of `attempt`.
pub fn or_once<E>(
    plan: &LoadPlan,
    run: &mut LoadRun,
    attempt: &mut Attempt<'_, E>,
    interrupt: &Interrupt,
) -> Result<(), E> {
    let all = plan.tasks.iter().map(|named| fresh(&named.task.of_clients(plan.clients)));
    let tasks: Vec<Task> = all.collect();
    let Some(allowed_percent) = plan.search else { return attempt(tasks, plan.times, run) };
    let search = Search { allowed_percent, resolution: RESOLUTION, trial_seconds: None };
    let mut taken = Taken::default();
    let mut trial = |task: Task, times: Times| -> Result<Figures, E> {
        attempt(vec![task], times, run)?;
        taken = run.cpu.iter().fold(taken, Taken::with);
        Ok(run.figures.first().cloned().unwrap_or_default())
    };
    let mut found = search.run(&tasks[0], plan.times, &mut trial, interrupt)?;
    // A search that the user ends shows what it has tried.
    if !interrupt.is_set() {
        let mut measure =
            |task: Task, times: Times| -> Result<(Figures, ()), E> { Ok((trial(task, times)?, ())) };
        search.settle(&mut found, (&tasks[0], plan.times), &mut measure, interrupt)?;
    }
    run.faults.extend(found.problem());
    run.search = Some(SearchOutcome { taken, ..found });
    Ok(())
}

impl Search {
    /// The times of a trial, where those of the measurement are `times`.
    pub fn trial_times(&self, times: Times) -> Times {
        let duration = self.trial_seconds.map_or(times.duration, Duration::from_secs_f64);
        Times { warmup: times.warmup.min(SEARCH_WARMUP), duration, interval: times.interval.min(duration) }
    }

    /// Measures `task` at the highest rate that is carried, and again at a lower one while more is
    /// lost than in the trials. `measure` gives the figures of a task, and what else it found.
    ///
    /// # Errors
    /// The first of `measure`.
    pub fn measured<M, E>(
        &self,
        task: &Task,
        times: Times,
        measure: &mut dyn FnMut(Task, Times) -> Result<(Figures, M), E>,
        interrupt: &Interrupt,
    ) -> Result<(SearchOutcome, M), E> {
        let mut attempt = |task: Task, times: Times| Ok(measure(task, times)?.0);
        let mut found = self.run(task, times, &mut attempt, interrupt)?;
        let measured = self.settle(&mut found, (task, times), measure, interrupt)?;
        Ok((found, measured))
    }

    /// The measurement at the rate that was found, or at a lower one that holds.
    fn settle<M, E>(
        &self,
        found: &mut SearchOutcome,
        (task, times): (&Task, Times),
        measure: &mut dyn FnMut(Task, Times) -> Result<(Figures, M), E>,
        interrupt: &Interrupt,
    ) -> Result<M, E> {
        loop {
            let (figures, measured) = measure(at_rate(task, found.asked_bits_per_second), times)?;
            if !found.goes_lower(&figures, self) || interrupt.is_set() {
                return Ok(measured);
            }
        }
    }

    /// The highest rate at which no more than allowed of the messages of `task` are lost, and what
    /// is delivered above it.
    fn run<E>(
        &self,
        task: &Task,
        times: Times,
        attempt: &mut dyn FnMut(Task, Times) -> Result<Figures, E>,
        interrupt: &Interrupt,
    ) -> Result<SearchOutcome, E> {
        let times = self.trial_times(times);
        let mut outcome = SearchOutcome::default();
        let first = attempt(at_rate(task, None), times)?;
        outcome.take(None, &first, self.allowed_percent);
        if outcome.packets_per_second > 0.0 {
            return Ok(outcome);
        }
        let mut limits = RateSearch::new(first.sent_bits_per_second, self.resolution);
        while let Some(rate) = limits.next().filter(|_| !interrupt.is_set()) {
            let figures = attempt(at_rate(task, Some(rate)), times)?;
            limits.record(outcome.take(Some(rate), &figures, self.allowed_percent));
        }
        for rate in outcome.untried_above(first.sent_bits_per_second) {
            if interrupt.is_set() {
                break;
            }
            let figures = attempt(at_rate(task, Some(rate)), times)?;
            outcome.trials.push(SearchTrial::of(Some(rate), &figures, self.allowed_percent));
        }
        Ok(outcome)
    }
}

/// `task` at a payload rate of all its streams together, those of all clients.
fn at_rate(task: &Task, rate: Option<f64>) -> Task {
    let mut task = fresh(task);
    if let Task::Messages(work) = &mut task {
        // The path's capacity is a count, not a delay, and the paced sender reaches higher rates.
        work.open_loop = None;
        // Less than one bit per second is no rate.
        work.bits_per_second = rate.map(|rate| ((rate as u64) / u64::from(work.streams)).max(1));
    }
    task
}

impl SearchOutcome {
    /// Adds a trial, and says whether it was carried.
    fn take(&mut self, rate: Option<f64>, figures: &Figures, allowed_percent: f64) -> bool {
        let trial = SearchTrial::of(rate, figures, allowed_percent);
        if trial.carried && trial.received_per_second > self.packets_per_second {
            self.packets_per_second = trial.received_per_second;
            self.bits_per_second = figures.received_bits_per_second;
            self.asked_bits_per_second = rate;
            self.limited_by_sender = rate.is_none_or(|rate| figures.sent_bits_per_second < LEAST_SENT * rate);
        }
        self.trials.push(trial);
        trial.carried
    }

    /// The multiples of the rate that was found below `most`, the sender's maximum, near
    /// which no trial was.
    fn untried_above(&self, most: f64) -> Vec<f64> {
        let Some(found) = self.asked_bits_per_second else { return Vec::new() };
        let was_tried = |rate: f64| {
            let mut asked = self.trials.iter().filter_map(|trial| trial.asked_bits_per_second);
            asked.any(|asked| (asked - rate).abs() < SAME_POINT * rate)
        };
        let rates = ABOVE.into_iter().map(|times| times * found);
        rates.filter(|rate| *rate < most && !was_tried(*rate)).collect()
    }

    /// Whether a measurement at this rate lost more than the search allows and is to be made again
    /// at a lower one. The measurement is longer than a trial, and a machine is busier at one time
    /// than at another. The figures that were found follow the rate down, since those of a rate
    /// that did not hold are not what the path carries.
    fn goes_lower(&mut self, measured: &Figures, search: &Search) -> bool {
        let lost = measured.lost_percent.unwrap_or(100.0);
        if self.packets_per_second <= 0.0 {
            return false;
        }
        if lost <= search.allowed_percent {
            self.keep(measured);
            return false;
        }
        if self.steps_down == STEPS_DOWN {
            self.is_unsteady = true;
            return false;
        }
        self.steps_down += 1;
        let rate = self.asked_bits_per_second.unwrap_or(self.bits_per_second);
        self.asked_bits_per_second = Some(rate * STEP_DOWN);
        self.packets_per_second *= STEP_DOWN;
        self.bits_per_second *= STEP_DOWN;
        // The path lost what the sender could send.
        self.limited_by_sender = false;
        true
    }

    /// Takes the figures of the measurement that held, if the rate is no longer that of a trial.
    fn keep(&mut self, measured: &Figures) {
        if let Some(packets) = measured.received_per_second.filter(|_| self.steps_down > 0) {
            self.packets_per_second = packets;
            self.bits_per_second = measured.received_bits_per_second;
        }
    }

    /// Why no rate was found, in words.
    pub fn problem(&self) -> Option<String> {
        if self.is_unsteady {
            return Some(format!(
                "more was lost than allowed at the rate that the search found, and after lowering it {STEPS_DOWN} times; the machine \
                 is too busy to measure"
            ));
        }
        (self.packets_per_second <= 0.0).then(|| {
            format!("no rate was found at which little enough is lost, with {} trials", self.trials.len())
        })
    }
}

impl SearchTrial {
    fn of(rate: Option<f64>, figures: &Figures, allowed_percent: f64) -> Self {
        // Nothing sent is no proof of anything.
        let lost_percent = figures.lost_percent.unwrap_or(100.0);
        Self {
            asked_bits_per_second: rate,
            sent_per_second: figures.sent_per_second.unwrap_or_default(),
            received_per_second: figures.received_per_second.unwrap_or_default(),
            lost_percent,
            // A sender that cannot keep the pace says nothing against the path: what it sent is
            // what is judged.
            carried: lost_percent <= allowed_percent,
        }
    }

    /// The offered rate in messages per second, and the share of it that arrived in percent, where
    /// messages have `length` bytes.
    pub fn delivered(&self, length: u32) -> Option<(f64, f64)> {
        let asked = self.asked_bits_per_second.map(|rate| rate / (8.0 * f64::from(length)));
        let offered = asked.unwrap_or(self.sent_per_second);
        (offered > 0.0).then(|| (offered, (100.0 * self.received_per_second / offered).min(100.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::message::Messages;

    fn task() -> Task {
        Task::Messages(Messages { length: 1_000, ..Messages::default() })
    }

    /// A path that carries up to `limit` bit/s and, beyond that, next to nothing; the sender
    /// reaches `most`.
    fn search(limit: f64, most: f64) -> (SearchOutcome, Vec<Times>) {
        let mut asked = Vec::new();
        let mut attempt = |task: Task, times: Times| {
            let Task::Messages(work) = task else { unreachable!() };
            asked.push(times);
            let sent = work.bits_per_second.map_or(most, |rate| rate as f64).min(most);
            let received = if sent <= limit { sent } else { limit / 100.0 };
            Ok::<_, ()>(Figures {
                received_bits_per_second: received,
                sent_bits_per_second: sent,
                received_per_second: Some(received / 8e3),
                sent_per_second: Some(sent / 8e3),
                lost_percent: Some(100.0 * (1.0 - received / sent)),
                ..Figures::default()
            })
        };
        let search = Search { allowed_percent: 0.1, resolution: 0.02, trial_seconds: Some(0.25) };
        let second = Duration::from_secs(1);
        let times = Times { warmup: second, duration: second, interval: second };
        let interrupt = Interrupt::default();
        let outcome = search.run(&task(), times, &mut attempt, &interrupt).unwrap();
        (outcome, asked)
    }

    #[test]
    fn a_path_that_collapses_when_it_is_flooded_is_measured_at_what_it_carries() {
        let (outcome, times) = search(300e6, 1e9);
        assert!((285e6..=300e6).contains(&outcome.bits_per_second), "{outcome:?}");
        let Task::Messages(work) = at_rate(&task(), outcome.asked_bits_per_second) else { unreachable!() };
        assert!((285_000_000..=300_000_000).contains(&work.bits_per_second.unwrap()));
        assert!(!outcome.limited_by_sender && outcome.problem().is_none());
        assert!(times.iter().all(|times| times.duration == Duration::from_millis(250)));
        let (offered, delivered) = outcome.trials[0].delivered(1_000).unwrap();
        assert!(
            (offered - 125_000.0).abs() < 1e-6 && (delivered - 0.3).abs() < 1e-6,
            "{offered} {delivered}"
        );
    }

    #[test]
    fn a_rate_is_that_of_all_clients_together_and_split_equally() {
        let all = at_rate(&task().of_clients(4), Some(12e6));
        for number in 0..4 {
            let Task::Messages(work) = all.of_one(4, number) else { unreachable!() };
            assert_eq!((work.streams, work.bits_per_second), (1, Some(3_000_000)));
        }
    }

    #[test]
    fn rates_above_the_found_one_are_tried_too() {
        let (outcome, _) = search(300e6, 1e9);
        let found = outcome.asked_bits_per_second.unwrap();
        let asked: Vec<f64> = outcome.trials.iter().filter_map(|trial| trial.asked_bits_per_second).collect();
        for times in [1.25, 1.5, 2.0] {
            let near = asked.iter().filter(|rate| (*rate / (times * found) - 1.0).abs() < SAME_POINT);
            assert!((1..=2).contains(&near.count()), "{times}: {asked:?}");
        }
        assert!(asked.iter().all(|rate| *rate <= 1e9), "no more than the sender can do");
        assert_eq!(asked[asked.len() - 2..], [1.5 * found, 2.0 * found], "the last ones, once each");
        assert!(outcome.bits_per_second <= 300e6);
    }

    #[test]
    fn a_lowered_rate_takes_the_figures_of_the_measurement_that_held() {
        let settings = Search { allowed_percent: 0.1, resolution: 0.02, trial_seconds: None };
        let measured = |percent, packets: f64| Figures {
            lost_percent: Some(percent),
            received_per_second: Some(packets),
            received_bits_per_second: packets * 8e3,
            ..Figures::default()
        };
        // At a rate, and as fast as the sender can.
        for mut found in [search(300e6, 1e9).0, search(2e9, 1e9).0] {
            let first = found.clone();
            assert!(!found.goes_lower(&measured(0.0, 1.0), &settings));
            assert_eq!(found.packets_per_second, first.packets_per_second, "the trial's, if its rate holds");
            for _ in 0..2 {
                assert!(found.goes_lower(&measured(3.0, 1.0), &settings));
            }
            let share = 0.95 * 0.95;
            let asked = first.asked_bits_per_second.unwrap_or(first.bits_per_second);
            for (is, was) in [
                (found.asked_bits_per_second.unwrap(), asked),
                (found.bits_per_second, first.bits_per_second),
                (found.packets_per_second, first.packets_per_second),
            ] {
                assert!((is / was - share).abs() < 1e-9, "{is} of {was}");
            }
            assert!(!found.limited_by_sender, "the path lost what was sent");
            assert!(!found.goes_lower(&measured(0.05, 30_000.0), &settings));
            assert_eq!((found.packets_per_second, found.bits_per_second), (30_000.0, 240e6));
        }
    }

    #[test]
    fn a_search_needs_one_trial_below_the_limit_and_fails_where_nothing_is_carried() {
        let (all, times) = search(2e9, 1e9);
        assert!(all.limited_by_sender && times.len() == 1 && all.asked_bits_per_second.is_none(), "{all:?}");
        let settings = Search { allowed_percent: 0.1, resolution: 0.02, trial_seconds: None };
        let lost = |percent| Figures { lost_percent: Some(percent), ..Figures::default() };
        let mut unsteady = search(300e6, 1e9).0;
        let first = unsteady.asked_bits_per_second.unwrap();
        assert!(!unsteady.goes_lower(&lost(0.1), &settings), "it was carried");
        assert!(unsteady.goes_lower(&lost(0.2), &settings));
        assert!((unsteady.asked_bits_per_second.unwrap() / first - 0.95).abs() < 1e-9);
        while unsteady.goes_lower(&lost(40.0), &settings) {}
        assert!(unsteady.problem().is_some_and(|reason| reason.contains("5 times")), "{unsteady:?}");
        let (none, _) = search(1.0, 1e9);
        assert!(none.problem().is_some_and(|reason| reason.contains("no rate was found")), "{none:?}");
    }
}
