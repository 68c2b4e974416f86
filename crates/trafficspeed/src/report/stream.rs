//! Results as they happen: one JSON object per line, `{"event": …, "data": …}` as iperf3's
//! `--json-stream`.
//!
//! `start` and `end` hold what `report::json` has under these names for the whole campaign;
//! `run_start`, `interval` and `run_end` come for every measurement between them. The data of other
//! experiments' events are made by the module that makes their JSON report.

use serde_json::{Value, json};

use super::json::{interval_json, observed_json, run_json, start_json};
use super::{home, load, suite};
use crate::experiment::environment::Environment;
use crate::experiment::event::Event;
use crate::experiment::outcome::{Campaign, Interval, Run, Settings};

pub fn start(settings: &Settings, environment: &Environment) -> String {
    event("start", start_json(settings, environment))
}

/// An event of an experiment as a line.
pub fn line(of: &Event<'_>) -> String {
    match of {
        Event::RunStarted(run) => run_start(run),
        Event::Interval { number, totals } => interval(*number, *totals),
        Event::RunEnded(run) => run_end(run),
        Event::LoadStarted(campaign) => event("start", load::start_json(campaign)),
        Event::LoadRunStarted(run) => event("run_start", load::run_start_json(run)),
        Event::LoadRunEnded(campaign, run) => event("run_end", load::run_json(campaign, run)),
        Event::LoadEnded(campaign) => event("end", load::end_json(campaign)),
        Event::HomeStarted(campaign) => event("start", home::start_json(campaign)),
        Event::HomeRunEnded(run) => event("run_end", json!(run)),
        Event::HomeEnded(campaign) => event("end", home::end_json(campaign)),
        Event::SuiteStarted(campaign) => event("start", suite::start_json(campaign)),
        Event::SuiteRowEnded(row) => event("run_end", json!(row)),
        Event::SuiteEnded(campaign) => event("end", suite::end_json(campaign)),
        Event::Second(second) => event("interval", load::second_json(second)),
    }
}

fn run_start(run: &Run) -> String {
    let data = json!({
        "system": run.label,
        "clients": run.clients,
        "repeat": run.repeat,
        "attempt": run.attempt,
        "timestamp": { "time": run.started },
    });
    event("run_start", data)
}

fn interval(number: usize, interval: Interval) -> String {
    event("interval", interval_json((&interval, number as u32)))
}

fn run_end(run: &Run) -> String {
    event("run_end", run_json(run))
}

/// The campaign is over.
pub fn end(campaign: &Campaign) -> String {
    event("end", json!({ "interrupted": campaign.interrupted, "observed": observed_json(campaign) }))
}

/// Any event as a line.
pub fn event(name: &str, data: Value) -> String {
    json!({ "event": name, "data": data }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;

    #[test]
    fn every_event_is_one_line_of_json_with_its_name() {
        let campaign = samples::campaign();
        let run = &campaign.runs[0];
        for (line, name, pointer) in [
            (start(&campaign.settings, &campaign.environment), "start", "/data/test_start/num_streams"),
            (run_start(run), "run_start", "/data/clients"),
            (interval(3, run.intervals[0]), "interval", "/data/sum_received/bits_per_second"),
            (run_end(run), "run_end", "/data/end/sum_sent/bytes"),
            (end(&campaign), "end", "/data/observed/summary/0/median"),
        ] {
            assert!(!line.contains('\n'));
            let value: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(value["event"], name);
            assert!(value.pointer(pointer).is_some_and(Value::is_number), "{pointer} in {line}");
        }
    }
}
