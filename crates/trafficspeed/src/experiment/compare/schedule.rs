//! The measurements that are left, and the time that they take.

use std::path::Path;
use std::time::Duration;

use super::ComparePlan;
use crate::experiment::outcome::{Run, Settings};
use crate::experiment::traffic::Slot;
use crate::stats::median;

/// The time of a measurement in addition to its own seconds while none has been made: the lab,
/// bringing a system up, draining.
const OVERHEAD_SECONDS: f64 = 2.0;
/// The overhead for each client.
const OVERHEAD_PER_CLIENT_SECONDS: f64 = 0.25;

/// Whether `run` is an attempt at `slot`.
pub fn is_of(run: &Run, slot: Slot) -> bool {
    run.subject == Some(slot.subject) && run.clients == slot.clients && run.repeat == slot.repeat
}

/// The slots that have no result yet: no complete attempt, or only disturbed ones with attempts
/// left.
pub fn left(slots: &[Slot], runs: &[Run], attempts: u32) -> Vec<Slot> {
    let is_done = |slot: Slot| {
        let complete: Vec<&Run> = runs.iter().filter(|run| is_of(run, slot) && run.is_complete()).collect();
        complete.iter().any(|run| run.disturbance.is_none())
            || (!complete.is_empty() && complete.len() >= attempts as usize)
    };
    slots.iter().copied().filter(|slot| !is_done(*slot)).collect()
}

/// Time that `slots` take, judged by what earlier `runs` took and by how often they had to be
/// repeated.
pub fn time_left(slots: &[Slot], settings: &Settings, runs: &[Run]) -> Duration {
    let window = settings.warmup_seconds + settings.seconds;
    let overhead = |slot: &Slot| {
        let alike = runs.iter().filter(|run| {
            run.subject == Some(slot.subject) && run.clients == slot.clients && run.is_complete()
        });
        let seen: Vec<f64> = alike.map(|run| (run.took_seconds - window).max(0.0)).collect();
        median(&seen).unwrap_or(OVERHEAD_SECONDS + OVERHEAD_PER_CLIENT_SECONDS * f64::from(slot.clients))
    };
    let seconds: f64 = slots.iter().map(|slot| window + overhead(slot)).sum();
    Duration::try_from_secs_f64(seconds * attempts_each(runs)).unwrap_or(Duration::MAX)
}

/// Complete attempts for each measurement that has one.
fn attempts_each(runs: &[Run]) -> f64 {
    let complete = || runs.iter().filter(|run| run.is_complete());
    let is_first = |run: &&Run| run.attempt <= 1;
    match complete().filter(is_first).count() {
        0 => 1.0,
        measured => (complete().count() as f64 / measured as f64).max(1.0),
    }
}

/// The announcement before the first measurement: how many there are, how long they take, where
/// they go.
pub fn announcement(plan: &ComparePlan, earlier: &[Run], directory: &Path) -> String {
    let settings = &plan.traffic.settings;
    let slots = plan.traffic.slots();
    let left = left(&slots, earlier, plan.limits.attempts);
    let made = match slots.len() - left.len() {
        0 => String::new(),
        made => format!(", {made} of them made already"),
    };
    format!(
        "{} measurements of {} s{made}; this takes about {} if none has to be repeated. Results: {}",
        slots.len(),
        settings.seconds,
        for_people(time_left(&left, settings, earlier)),
        directory.display()
    )
}

/// A duration for people: two units at most.
pub fn for_people(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) if m < 10 => format!("{m} min {s:02} s"),
        (0, m, _) => format!("{m} min"),
        (h, m, _) => format!("{h} h {m:02} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;
    use crate::experiment::traffic::TrafficPlan;
    use crate::lab::LinkSettings;
    use crate::system::{Cipher, Kind, Programs, Subject};

    fn plan() -> TrafficPlan {
        let mut settings = samples::campaign().settings;
        settings.repeats = 2;
        TrafficPlan {
            subjects: Subject::all(&[Kind::Vpnd, Kind::None], &[Cipher::Aes256Gcm], 0),
            clients: vec![2, 4],
            settings,
            links: LinkSettings::default(),
            programs: Programs::default(),
        }
    }

    #[test]
    fn systems_take_turns_within_every_round() {
        let slots = plan().slots();
        let turns: Vec<_> = slots.chunks(2).map(|pair| (pair[0].repeat, pair[0].clients)).collect();
        assert_eq!(turns, [(1, 2), (1, 4), (2, 2), (2, 4)]);
        for pair in slots.chunks(2) {
            assert_eq!((pair[0].repeat, pair[0].clients), (pair[1].repeat, pair[1].clients));
            assert_ne!(pair[0].subject, pair[1].subject, "both systems in each turn");
        }
    }

    #[test]
    fn only_what_has_no_result_is_left() {
        let mut slots = plan().slots();
        slots.sort_by_key(|slot| (slot.repeat, slot.clients, slot.subject.kind == Kind::None));
        let whole = samples::run(Kind::Vpnd, 2, 1, 1_000);
        assert!(is_of(&whole, slots[0]));
        let mut failed = samples::run(Kind::None, 2, 1, 1_000);
        failed.error = Some("no".into());
        let mut disturbed = samples::run(Kind::Vpnd, 4, 1, 1_000);
        disturbed.disturbance = Some("noise".into());
        let runs = [whole, failed, disturbed.clone()];
        assert_eq!(left(&slots, &runs, 2), slots[1..], "the disturbed one has an attempt left");
        let runs = [runs.as_slice(), &[disturbed]].concat();
        assert_eq!(left(&slots, &runs, 2), [&slots[1..2], &slots[3..]].concat());
    }

    #[test]
    fn the_time_left_learns_from_what_was_measured() {
        let plan = plan();
        let slots = plan.slots();
        let is_alike = |slot: &&Slot| (slot.subject.kind, slot.clients, slot.repeat) == (Kind::Vpnd, 2, 2);
        let alike = [*slots.iter().find(is_alike).unwrap()];
        // Two seconds of measurement, and 2.5 or 3 around it, for two rounds of two systems.
        let guess = time_left(&slots, &plan.settings, &[]);
        assert!((guess.as_secs_f64() - 4.0 * (4.5 + 5.0)).abs() < 1e-6, "{guess:?}");
        let mut run = samples::run(Kind::Vpnd, 2, 1, 1_000);
        run.took_seconds = 12.0;
        let learned = time_left(&alike, &plan.settings, &[run]);
        assert!((learned.as_secs_f64() - 12.0).abs() < 1e-6, "{learned:?}");
        // Each measurement took three attempts until now.
        let attempts = [1, 2, 3].map(|attempt| {
            let run = samples::run(Kind::Vpnd, 2, 1, 1_000);
            Run { took_seconds: 12.0, attempt, ..run }
        });
        let learned = time_left(&alike, &plan.settings, &attempts);
        assert!((learned.as_secs_f64() - 36.0).abs() < 1e-6, "{learned:?}");
    }

    #[test]
    fn the_work_its_time_and_its_place_are_said_before_it_begins() {
        let limits = crate::experiment::compare::quiet::Limits {
            steal_percent: 5.0,
            foreign_percent: 10.0,
            attempts: 2,
        };
        let plan = ComparePlan { traffic: plan(), limits, baseline: None };
        let said = announcement(&plan, &[], Path::new("out"));
        assert!(said.starts_with("8 measurements of 2 s; this takes about 38 s"), "{said}");
        assert!(said.ends_with("Results: out"), "{said}");
        let said = announcement(&plan, &[samples::run(Kind::Vpnd, 2, 1, 1_000)], Path::new("out"));
        assert!(said.starts_with("8 measurements of 2 s, 1 of them made already; "), "{said}");
    }

    #[test]
    fn durations_read_well() {
        let cases = [(5, "5 s"), (65, "1 min 05 s"), (1800, "30 min"), (3720, "1 h 02 min")];
        for (seconds, text) in cases {
            assert_eq!(for_people(Duration::from_secs(seconds)), text);
        }
    }
}
