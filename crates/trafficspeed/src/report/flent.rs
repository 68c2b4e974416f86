//! Results as files for flent, which draws them over time: one for each run, with the rate each way
//! and the round trips of the same intervals, as flent's own test `tcp_bidirectional` has them.

use serde_json::{Value, json};

use super::results::Results;
use crate::experiment::figures::{Figures, Point};
use crate::experiment::home::flow::{Case, Flow};
use crate::experiment::home::results::{CaseResult, HomeRun};
use crate::experiment::outcome::Interval;
use crate::load::task::Task;
use crate::load::tcp::Way;

/// The version of flent's layout.
const VERSION: u32 = 4;
const TEST: &str = "tcp_bidirectional";
const DOWN: &str = "TCP download";
const UP: &str = "TCP upload";
const PING: &str = "Ping (ms) ICMP";

/// Time in seconds and value, of each interval that has one.
type Series = Vec<(f64, Option<f64>)>;

/// One run as flent sees it.
struct Run<'a> {
    label: &'a str,
    case: String,
    repeat: u32,
    started: &'a str,
    series: Vec<(&'static str, Series)>,
}

/// The files, each with its name; none of results without a course over time.
pub fn files(results: &Results) -> Vec<(String, String)> {
    let runs: Vec<Run<'_>> = match results {
        Results::Traffic(found) => found
            .runs
            .iter()
            .map(|run| Run {
                label: &run.label,
                case: format!("{} clients", run.clients),
                repeat: run.repeat,
                started: &run.started,
                series: of_pairs(run.whole_seconds(&found.settings), run.probe.as_ref()),
            })
            .collect(),
        Results::Load(found) => found
            .runs
            .iter()
            .map(|run| Run {
                label: &run.label,
                case: found.command.clone(),
                repeat: run.repeat,
                started: &run.started,
                series: found
                    .settings
                    .tasks
                    .iter()
                    .zip(&run.figures)
                    .filter_map(|(named, figures)| of_task(&named.task, figures))
                    .collect(),
            })
            .collect(),
        Results::Home(found) => found.runs.iter().filter_map(of_home).collect(),
        Results::Suite(_) | Results::Model(_) | Results::Block(_) | Results::BlockSweep(_) => Vec::new(),
    };
    let with_course = runs.iter().filter(|run| run.series.iter().any(|(_, series)| !series.is_empty()));
    with_course.zip(1..).map(|(run, number)| (format!("{number:03}.flent"), run.text())).collect()
}

fn rate(series: &[Point]) -> Series {
    series.iter().map(|point| (point.end, Some(point.received_bits_per_second / 1e6))).collect()
}

fn delay(series: &[Point]) -> Series {
    series.iter().map(|point| (point.end, point.delay_mean_us.map(|us| us / 1e3))).collect()
}

/// Those of experiment 1: the hosts that connect are taken for the clients.
fn of_pairs(intervals: &[Interval], probe: Option<&Figures>) -> Vec<(&'static str, Series)> {
    let way = |bytes: fn(&Interval) -> u64| {
        let second =
            |(second, total): (u32, &Interval)| (f64::from(second), Some(8.0 * bytes(total) as f64 / 1e6));
        (1..).zip(intervals).map(second).collect()
    };
    let mut all = vec![(DOWN, way(|total| total.received - total.forward)), (UP, way(|total| total.forward))];
    all.extend(probe.map(|probe| (PING, delay(&probe.series))));
    all
}

fn of_task(task: &Task, figures: &Figures) -> Option<(&'static str, Series)> {
    let backward = match task {
        Task::Bulk(job) => job.shape.way == Way::Backward,
        Task::Messages(work) => work.backward,
        Task::Exchange(_) => return Some((PING, delay(&figures.series))),
        Task::Pages(_) => return None,
    };
    Some((if backward { DOWN } else { UP }, rate(&figures.series)))
}

/// Everything at once; the round trip is the voice's delay both ways.
fn of_home(run: &HomeRun) -> Option<Run<'_>> {
    let case: &CaseResult = run.cases.iter().find(|case| case.case == Case::AtOnce)?;
    let series_of = |wanted: Flow| {
        let found = case.flows.iter().find(|(flow, _)| *flow == wanted);
        found.map_or(&[][..], |(_, figures)| &figures.series[..])
    };
    type Moment = (f64, Option<f64>);
    let sum = |((end, down), (_, up)): (Moment, Moment)| (end, down.zip(up).map(|(down, up)| down + up));
    let trips = delay(series_of(Flow::VoiceDown)).into_iter().zip(delay(series_of(Flow::VoiceUp)));
    let series = vec![
        (DOWN, rate(series_of(Flow::Download))),
        (UP, rate(series_of(Flow::Upload))),
        (PING, trips.map(sum).collect()),
    ];
    let case = case.case.name().to_owned();
    Some(Run { label: &run.label, case, repeat: run.repeat, started: &run.started, series })
}

impl Run<'_> {
    fn text(&self) -> String {
        let longest = self.series.iter().map(|(_, series)| series).max_by_key(|series| series.len());
        let times: Vec<f64> = longest.into_iter().flatten().map(|(end, _)| *end).collect();
        let values = |series: &Series| -> Vec<Option<f64>> {
            let values = series.iter().map(|(_, value)| *value);
            values.chain(std::iter::repeat(None)).take(times.len()).collect()
        };
        let raw = |series: &Series| -> Vec<Value> {
            let known = series.iter().filter_map(|(end, value)| Some((end, (*value)?)));
            known.map(|(end, value)| json!({ "t": end, "val": value })).collect()
        };
        let map = |value: &dyn Fn(&Series) -> Value| -> Value {
            self.series.iter().map(|(name, series)| ((*name).to_owned(), value(series))).collect()
        };
        let length = times.last().copied().unwrap_or_default();
        let value = json!({
            "version": VERSION,
            "metadata": {
                "NAME": TEST,
                "TITLE": format!("{}, {}, round {}", self.label, self.case, self.repeat),
                "TIME": self.started.replace('Z', ".000000Z"),
                "LOCAL_HOST": "trafficspeed",
                "HOST": self.label,
                "HOSTS": [self.label],
                "LENGTH": length,
                "TOTAL_LENGTH": length,
                "STEP_SIZE": length / times.len().max(1) as f64,
            },
            "x_values": times,
            "results": map(&|series| json!(values(series))),
            "raw_values": map(&|series| json!(raw(series))),
        });
        format!("{value:#}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::home::results::samples;
    use crate::experiment::outcome;

    #[test]
    fn rates_each_way_and_round_trips_stand_at_the_same_instants() {
        let mut campaign = outcome::samples::campaign();
        campaign.runs.truncate(1);
        let total = Interval { received: 3_000_000, sent: 3_000_000, forward: 1_000_000, hosts: 2 };
        // The last one is shorter than a second.
        campaign.settings.seconds = 2.5;
        campaign.runs[0].intervals = vec![total; 3];
        let point = |end| Point { end, delay_mean_us: (end > 1.5).then_some(2_500.0), ..Point::default() };
        campaign.runs[0].probe = Some(Figures { series: vec![point(1.0), point(2.0)], ..Figures::default() });
        let all = files(&Results::Traffic(Box::new(campaign)));
        assert_eq!((all.len(), all[0].0.as_str()), (1, "001.flent"));
        let file: Value = serde_json::from_str(&all[0].1).unwrap();
        assert_eq!(file["x_values"], json!([1.0, 2.0]));
        assert_eq!(file["results"][DOWN], json!([16.0, 16.0]));
        assert_eq!(file["results"][UP], json!([8.0, 8.0]));
        assert_eq!(file["results"][PING], json!([null, 2.5]));
        assert_eq!(file["raw_values"][PING], json!([{ "t": 2.0, "val": 2.5 }]));
        assert_eq!((&file["metadata"]["NAME"], &file["version"]), (&TEST.into(), &4.into()));
        let begun = file["metadata"]["TIME"].as_str().unwrap();
        assert!(begun.ends_with(".000000Z"), "flent reads no time without fractions: {begun}");
    }

    #[test]
    fn a_home_has_its_download_its_upload_and_the_voices_delay_both_ways() {
        let mut campaign = samples::campaign();
        let point = |end| Point { end, delay_mean_us: Some(1_000.0), ..Point::default() };
        for (_, figures) in
            campaign.runs.iter_mut().flat_map(|run| &mut run.cases).flat_map(|case| &mut case.flows)
        {
            figures.series = vec![point(1.0)];
        }
        let all = files(&Results::Home(Box::new(campaign)));
        let file: Value = serde_json::from_str(&all[0].1).unwrap();
        assert_eq!(file["results"][PING], json!([2.0]));
        assert!(file["results"][DOWN].is_array() && file["results"][UP].is_array());
        assert!(files(&Results::BlockSweep(Vec::new())).is_empty());
    }
}
