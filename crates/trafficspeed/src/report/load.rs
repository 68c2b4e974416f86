//! The report of the generators' own commands: a table for people, JSON with iperf3's names, CSV.

pub mod clients;
mod figures_csv;
pub mod ratios;
pub mod searched;

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::grid::Grid;
use super::noise::{far, percent};
use crate::experiment::figures::{Figures, Point};
use crate::experiment::generate::{LoadCampaign, LoadRun, NamedTask, Second};
use crate::experiment::outcome::{CpuUse, Taken};
use crate::load::task::{Protocol, Task};
use crate::stats::{Spread, median};
use crate::unit::Unit;
use crate::unit::significant;
pub use figures_csv::csv;

/// The version of the JSON report's layout.
const FORMAT: u32 = 1;

/// Less than this share of the messages that a rate asked for is said, in percent.
const LEAST_DELIVERED: f64 = 99.0;

/// `bits_per_second` in `unit`, or else in the one that suits it.
pub fn rate(unit: Option<Unit>, bits_per_second: f64) -> String {
    let unit = unit.unwrap_or_else(|| suitable(bits_per_second));
    format!("{} {}", unit.figure(bits_per_second), unit.name())
}

fn suitable(bits_per_second: f64) -> Unit {
    match bits_per_second.abs() {
        rate if rate >= 1e9 => Unit::Gbit,
        rate if rate >= 1e6 => Unit::Mbit,
        _ => Unit::Kbit,
    }
}

/// Stands below the table.
pub const DEFINITIONS: &str = "\
Received: payload that arrived per second.
Lost, reordered (RFC 4737), jitter (RFC 3550): by the messages' numbers and time stamps.
Delay: one way for messages, the round trip for requests; 50 % and 99 % of them were at most this long.
Up to 10,000 datagrams per second at a rate each leaves when it is due and its delay counts from then; else, and over \
TCP, it counts from when it was sent.
The lab has one clock; real hosts' clocks are compared before each measurement, and a delay is known as well as both \
of them together.
Variation: the difference of every two neighbouring messages' delays (RFC 3393), of which jitter is the smoothed value \
at the end.
Medians of n runs, the lowest and the highest in parentheses.
Delivered: of the messages that the rate asked for.
CPU: CPU seconds per second of the gateway's VPN, the clients' VPN, and the generator (both ends).
Steal, others: the most of the machine that the hypervisor took and that processes without a part in the measurement \
used.";

/// The results as text, tables at most so wide.
pub fn table(campaign: &LoadCampaign, unit: Option<Unit>, width: Option<usize>) -> String {
    let mut text = String::new();
    let groups = groups(campaign);
    let several = clients::title(campaign);
    text.extend(several.iter().map(|title| format!("{title}\n")));
    if !groups.is_empty() {
        writeln!(text, "{}", grid(&groups, unit).text(width)).expect("writing to a string");
        writeln!(text, "{DEFINITIONS}").expect("writing to a string");
        text.extend(several.map(|_| format!("{}\n", clients::DEFINITIONS)));
    }
    if let Some(grid) = ratios::grid(campaign) {
        writeln!(text, "{}\n{}", grid.text(width), ratios::DEFINITIONS).expect("writing to a string");
    }
    if let Some(grid) = searched::grid(campaign) {
        writeln!(text, "{}\n{}", searched::TITLE, grid.text(width)).expect("writing to a string");
    }
    for group in &groups {
        let rates: Vec<f64> = group.values(|figures| Some(figures.received_bits_per_second));
        let of = format!("{}, {}", group.label, group.load);
        if let Some(line) = far(&of, &rates, |bits| rate(unit, bits)) {
            writeln!(text, "{line}").expect("writing to a string");
        }
    }
    for run in &campaign.runs {
        notes(&mut text, campaign, run);
    }
    if campaign.interrupted {
        writeln!(text, "Interrupted: the figures are of what was measured until then.")
            .expect("writing to a string");
    }
    text
}

/// The figures of each system under each load.
pub fn figures(campaign: &LoadCampaign, unit: Option<Unit>) -> Grid {
    grid(&groups(campaign), unit)
}

/// All runs of one system under one load.
struct Group<'a> {
    label: &'a str,
    load: &'a str,
    runs: Vec<(&'a LoadRun, &'a Figures)>,
}

impl Group<'_> {
    fn values(&self, of: impl Fn(&Figures) -> Option<f64>) -> Vec<f64> {
        self.runs.iter().filter_map(|(_, figures)| of(figures)).collect()
    }

    /// The spread of a figure as text.
    fn cell(&self, of: impl Fn(&Figures) -> Option<f64>, show: impl Fn(f64) -> String) -> String {
        Spread::of(&self.values(of)).map_or_else(|| "–".into(), |spread| spread.text(show))
    }

    /// The same of a share of the machine's CPU time.
    fn cpu(&self, of: impl Fn(&CpuUse) -> Option<f64>) -> Option<Spread> {
        let values = self.runs.iter().filter_map(|(run, _)| of(run.cpu.as_ref()?));
        Spread::of(&values.collect::<Vec<_>>())
    }
}

/// The runs of each system under each load. Broken ones count where there are no others.
fn groups(campaign: &LoadCampaign) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for run in &campaign.runs {
        for (named, figures) in campaign.settings.tasks.iter().zip(&run.figures) {
            match groups.iter_mut().find(|group| group.label == run.label && group.load == named.name) {
                Some(group) => group.runs.push((run, figures)),
                None => {
                    let (label, load) = (&run.label, &named.name);
                    groups.push(Group { label, load, runs: vec![(run, figures)] });
                }
            }
        }
    }
    for group in &mut groups {
        if group.runs.iter().any(|(run, _)| run.is_whole()) {
            group.runs.retain(|(run, _)| run.is_whole());
        }
    }
    groups
}

fn grid(groups: &[Group<'_>], unit: Option<Unit>) -> Grid {
    let mut grid = Grid::new(
        2,
        [
            "system",
            "load",
            "n",
            "received",
            "per second",
            "p50, µs",
            "p99, µs",
            "lost, %",
            "delivered, %",
            "jitter, µs",
            "variation p50, µs",
            "variation p95, µs",
            "variation p99, µs",
            "reordered",
            "CPU of gateway",
            "clients",
            "generator",
            "steal",
            "others",
        ],
    );
    let delay = |figures: &Figures| figures.delay.clone().or_else(|| figures.round_trip.clone());
    for group in groups {
        let share = |of: fn(&CpuUse) -> f64| {
            let spread = group.cpu(|cpu| (cpu.seconds > 0.0).then(|| of(cpu) / cpu.seconds));
            spread.map_or_else(|| "–".into(), |spread| spread.text(significant))
        };
        let taken = Taken::most(group.runs.iter().filter_map(|(run, _)| run.cpu.as_ref()));
        let variation = |share: f64| {
            group.cell(|figures| figures.variation.as_ref().map(|all| all.at(share)), significant)
        };
        let received = group.values(|figures| Some(figures.received_bits_per_second));
        let unit = unit.unwrap_or_else(|| suitable(median(&received).unwrap_or_default()));
        let received = group.cell(|figures| Some(figures.received_bits_per_second), |rate| unit.figure(rate));
        grid.rows.push(vec![
            group.label.to_owned(),
            group.load.to_owned(),
            group.runs.len().to_string(),
            format!("{received} {}", unit.name()),
            group.cell(
                |figures| figures.transactions_per_second.or(figures.received_per_second),
                |each| format!("{each:.0}"),
            ),
            group.cell(|figures| Some(delay(figures)?.p50_us), significant),
            group.cell(|figures| Some(delay(figures)?.p99_us), significant),
            group.cell(|figures| figures.lost_percent, |lost| format!("{lost:.3}")),
            group.cell(|figures| figures.delivered_percent, |share| format!("{share:.1}")),
            group.cell(|figures| figures.jitter_us, significant),
            variation(0.5),
            variation(0.95),
            variation(0.99),
            group.cell(|figures| figures.reordered.map(|count| count as f64), |count| count.to_string()),
            share(|cpu| cpu.gateway),
            share(|cpu| cpu.clients),
            share(|cpu| cpu.generators),
            percent(taken.steal),
            percent(taken.others),
        ]);
    }
    grid.without_empty()
}

fn notes(text: &mut String, campaign: &LoadCampaign, run: &LoadRun) {
    let name = format!("{}, run {}", run.label, run.repeat);
    let mut say = |line: String| writeln!(text, "{name}: {line}").expect("writing to a string");
    clients::shares(campaign, run).into_iter().for_each(&mut say);
    if let Some(search) = &run.search {
        let limit = if search.limited_by_sender { "; the generator could not send more" } else { "" };
        let lowered = match search.steps_down {
            0 => String::new(),
            steps => format!(" and lowered {steps} times, since measurements lost more than trials"),
        };
        say(format!(
            "highest rate without more loss than allowed: {:.0} packets/s ({}), found with {} trials{limit}{lowered}; the row \
             above was measured at that rate afterwards",
            search.packets_per_second,
            rate(None, search.bits_per_second),
            search.trials.len(),
        ));
    }
    for lateness in run.figures.iter().filter_map(|figures| figures.lateness.as_ref()) {
        say(format!(
            "delays, jitter and variation count from when a message was due; 99 % left at most {} µs after that, the last one {} µs",
            significant(lateness.p99_us),
            significant(lateness.max_us),
        ));
    }
    for unanswered in run.figures.iter().filter_map(|figures| figures.timeouts.filter(|count| *count > 0)) {
        say(format!(
            "{unanswered} requests were not answered in time, or not at all when the measurement ended"
        ));
    }
    // One whose messages leave when they are due skips none; of several clients only the task says so.
    let skips = |named: &&NamedTask| matches!(&named.task, Task::Messages(work) if work.open_loop.is_none());
    let tasks = campaign.settings.tasks.iter().zip(&run.figures);
    let paced = tasks.filter(|(named, _)| skips(named));
    for delivered in paced.filter_map(|(_, figures)| figures.delivered_percent) {
        if delivered < LEAST_DELIVERED {
            say(format!(
                "only {delivered:.1} % of the messages that the rate asked for arrived; `lost` counts those that were sent, and \
                 a sender that gets no CPU skips some"
            ));
        }
    }
    if run.generator_drops > 0 {
        say(format!(
            "{} datagrams arrived but were dropped because the generator was too slow",
            run.generator_drops
        ));
    }
    let others = run.socket_drops.saturating_sub(run.generator_drops);
    if others > 0 {
        say(format!(
            "{others} datagrams were dropped at full sockets that are not the generator's, such as the VPN's"
        ));
    }
    for host in &run.hosts {
        say(host.words());
    }
    run.problems().into_iter().for_each(say);
}

/// The results as JSON: `runs[].{start,intervals,end}` as iperf3 has them.
pub fn json(campaign: &LoadCampaign) -> Value {
    json!({
        "format": FORMAT,
        "experiment": campaign.command,
        "settings": campaign.settings,
        "environment": campaign.environment,
        "interrupted": campaign.interrupted,
        "runs": campaign.runs.iter().map(|run| run_json(campaign, run)).collect::<Vec<_>>(),
        "comparison": ratios::json(campaign),
    })
}

/// The event of a campaign's beginning.
pub fn start_json(campaign: &LoadCampaign) -> Value {
    json!({
        "experiment": campaign.command,
        "settings": campaign.settings,
        "environment": campaign.environment,
    })
}

/// The event of a run's beginning.
pub fn run_start_json(run: &LoadRun) -> Value {
    json!({ "system": run.label, "repeat": run.repeat, "timestamp": { "time": run.started } })
}

/// The event of an interval: `sum` is that of the first task, as iperf3 has but one.
pub fn second_json(second: &Second<'_>) -> Value {
    let task = |(name, point): &(&str, Point)| json!({ "name": name, "sum": point_json(point) });
    json!({
        "system": second.label,
        "repeat": second.repeat,
        "number": second.number,
        "sum": second.points.first().map(|(_, point)| point_json(point)),
        "tasks": second.points.iter().map(task).collect::<Vec<_>>(),
    })
}

/// The event of a campaign's end.
pub fn end_json(campaign: &LoadCampaign) -> Value {
    let run = |run: &LoadRun| {
        let tasks = campaign.settings.tasks.iter().zip(&run.figures);
        let task = |(named, figures): (&NamedTask, &Figures)| json!({ "name": named.name, "end": sums_json(campaign, figures) });
        json!({ "system": run.label, "repeat": run.repeat, "whole": run.is_whole(), "tasks": tasks.map(task).collect::<Vec<_>>() })
    };
    json!({ "interrupted": campaign.interrupted, "runs": campaign.runs.iter().map(run).collect::<Vec<_>>() })
}

/// One run: what its event and its part of the report hold.
pub fn run_json(campaign: &LoadCampaign, run: &LoadRun) -> Value {
    let tasks = campaign.settings.tasks.iter().zip(&run.figures);
    json!({
        "system": run.label,
        "subject": run.subject,
        "congestion": run.congestion,
        "clients": campaign.settings.clients,
        "repeat": run.repeat,
        "timestamp": { "time": run.started },
        "facts": run.facts,
        "hosts": run.hosts,
        "whole": run.is_whole(),
        "problems": run.problems(),
        "cpu_seconds": run.cpu,
        "socket_drops": run.socket_drops,
        "generator_drops": run.generator_drops,
        "search": run.search,
        "tasks": tasks.map(|(named, figures)| task_json(campaign, named, figures)).collect::<Vec<_>>(),
        "by_client": run.by_client,
    })
}

fn task_json(campaign: &LoadCampaign, named: &NamedTask, figures: &Figures) -> Value {
    let settings = &campaign.settings;
    let (protocol, streams, length, reverse) = match &named.task {
        Task::Bulk(job) => (Protocol::Tcp, job.streams, job.write_bytes, !job.connector_sends(0)),
        Task::Messages(work) => (work.protocol, work.streams, work.length, work.backward),
        Task::Exchange(work) => (work.protocol, work.streams, work.request, false),
        Task::Pages(work) => (Protocol::Tcp, work.streams, work.request, false),
    };
    json!({
        "name": named.name,
        "start": { "test_start": {
            "protocol": protocol,
            // Those of all clients, whose figures these are.
            "num_streams": streams * settings.clients,
            "blksize": length,
            "omit": settings.warmup_seconds,
            "duration": settings.seconds,
            "reverse": u8::from(reverse),
        } },
        "intervals": figures.series.iter().map(|point| json!({ "sum": point_json(point) })).collect::<Vec<_>>(),
        "end": sums_json(campaign, figures),
        "figures": figures,
    })
}

/// The whole measurement of a task as iperf3 has it.
fn sums_json(campaign: &LoadCampaign, figures: &Figures) -> Value {
    let seconds = campaign.settings.seconds;
    let total = |rate: f64, sender: bool| {
        json!({
            "seconds": seconds,
            "bytes": (rate * seconds / 8.0) as u64,
            "bits_per_second": rate,
            "sender": sender,
        })
    };
    json!({
        "sum_sent": total(figures.sent_bits_per_second, true),
        "sum_received": total(figures.received_bits_per_second, false),
        "sum": {
            "packets": figures.messages,
            "lost_packets": figures.lost,
            "lost_percent": figures.lost_percent,
            "delivered_percent": figures.delivered_percent,
            "jitter_ms": figures.jitter_us.map(|us| us / 1e3),
            "out_of_order": figures.reordered,
        },
    })
}

fn point_json(point: &Point) -> Value {
    json!({
        "start": point.end - point.seconds,
        "end": point.end,
        "seconds": point.seconds,
        "bits_per_second": point.received_bits_per_second,
        "packets_per_second": point.received_per_second,
        "lost_packets": point.missing,
        "jitter_ms": point.jitter_us / 1e3,
        "delay_mean_us": point.delay_mean_us,
        "delay_max_us": point.delay_max_us,
    })
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use crate::experiment::environment::Environment;
    use crate::experiment::generate::LoadSettings;
    use crate::load::delays::DelaySummary;
    use crate::load::message::Messages;
    use crate::load::task::Sockets;
    use crate::observe::HostCpu;

    /// Two systems, measured three times each, the first of which was once at a third of its rate in bit/s.
    pub(crate) fn campaign(rate: f64) -> LoadCampaign {
        let task = Task::Messages(Messages {
            run_id: 1,
            seed: 1,
            protocol: Protocol::Udp,
            streams: 1,
            backward: false,
            length: 1_200,
            bits_per_second: Some(13_000_000),
            open_loop: None,
            sockets: Sockets::default(),
        });
        let delay = DelaySummary { p50_us: 12_345.6, p99_us: 1_234_567.8, ..DelaySummary::default() };
        let figures = |rate: f64| Figures {
            received_bits_per_second: rate,
            received_per_second: Some(rate / 9_600.0),
            lost_percent: Some(12.345_678),
            delivered_percent: Some(87.654_321),
            reordered: Some(123_456_789),
            jitter_us: Some(1_234.5),
            variation: Some(delay.clone()),
            delay: Some(delay.clone()),
            ..Figures::default()
        };
        let cpu = CpuUse {
            gateway: 1.23,
            gateway_wakes: 1,
            client_wakes: 1,
            clients: 1.23,
            generators: 1.23,
            generator_ends: [0.61, 0.62],
            foreign: 1.0,
            host: HostCpu { steal: 1.0, idle: 8.0, user: 1.0, ..HostCpu::default() },
            seconds: 1.0,
        };
        let run = |label: &str, repeat: u32, rate: f64| LoadRun {
            label: label.into(),
            repeat,
            figures: vec![figures(rate)],
            cpu: Some(cpu),
            ..LoadRun::default()
        };
        LoadCampaign {
            command: "udp".into(),
            settings: LoadSettings {
                far: None,
                clients: 1,
                congestion: Vec::new(),
                ip: 4,
                seconds: 1.0,
                warmup_seconds: 0.1,
                interval_seconds: 1.0,
                tasks: vec![NamedTask { name: "UDP from the client".into(), task }],
                search_loss_percent: None,
            },
            environment: Environment::default(),
            runs: (1..=3)
                .flat_map(|repeat| {
                    let first = if repeat == 2 { rate / 3.0 } else { rate + f64::from(repeat) };
                    [run("vpnd, aes-256-gcm", repeat, first), run("plain routing", repeat, rate)]
                })
                .collect(),
            interrupted: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::grid::NARROW;
    use super::*;
    use crate::experiment::generate::search::SearchOutcome;
    use crate::load::delays::DelaySummary;
    use crate::load::message::open_loop::OpenLoop;

    #[test]
    fn repeats_are_one_row_with_their_spread_and_what_shared_the_machine() {
        let text = table(&samples::campaign(3e9), None, Some(NARROW));
        for expected in
            ["3.00 (1.00–3.00) Gbit/s", "12.346 (12.346–12.346)", "10.0 %", "only 87.7 % of the messages"]
        {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let line = "Look at vpnd, aes-256-gcm, UDP from the client: 1.00 Gbit/s is far from the median of 3.00 Gbit/s";
        assert!(text.contains(line), "{text}");
        assert_eq!(text.matches("Look at").count(), 1);
    }

    #[test]
    fn only_drops_at_its_own_sockets_are_said_to_be_the_generators() {
        let mut campaign = samples::campaign(3e9);
        (campaign.runs[0].socket_drops, campaign.runs[0].generator_drops) = (7, 2);
        campaign.runs[1].socket_drops = 9;
        let text = table(&campaign, None, None);
        for expected in [
            "2 datagrams arrived but",
            "5 datagrams were dropped at full",
            "9 datagrams were dropped at full",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert_eq!(text.matches("the generator was too slow").count(), 1, "{text}");
    }

    #[test]
    fn notes_say_how_a_rate_was_kept_from_when_delays_count_and_what_was_not_answered() {
        let mut campaign = samples::campaign(3e9);
        let run = &mut campaign.runs[0];
        run.search =
            Some(SearchOutcome { packets_per_second: 950.0, steps_down: 2, ..SearchOutcome::default() });
        run.figures[0].lateness =
            Some(DelaySummary { p99_us: 70.0, max_us: 900.0, ..DelaySummary::default() });
        run.figures[0].timeouts = Some(3);
        let text = table(&campaign, None, None);
        for expected in [
            "950 packets/s",
            "lowered 2 times",
            "99 % left at most 70.0 µs after that, the last one 900 µs",
            "3 requests were not answered",
        ] {
            assert_eq!(text.matches(expected).count(), 1, "{expected}: {text}");
        }
    }

    #[test]
    fn only_a_sender_that_skips_is_said_to_skip_also_where_several_clients_have_no_lateness() {
        let mut campaign = samples::campaign(3e9);
        campaign.runs.iter_mut().for_each(|run| run.figures[0].delivered_percent = Some(50.0));
        let says = |campaign: &LoadCampaign| table(campaign, None, None).contains("gets no CPU skips some");
        assert!(says(&campaign));
        let Task::Messages(work) = &mut campaign.settings.tasks[0].task else { panic!("messages") };
        work.open_loop = Some(OpenLoop::EVEN);
        assert!(!says(&campaign), "each left when it was due");
    }

    #[test]
    fn broken_runs_count_only_where_there_are_no_others() {
        let mut campaign = samples::campaign(3e9);
        campaign.runs[0].error = Some("gone".into());
        assert_eq!(groups(&campaign).iter().map(|group| group.runs.len()).collect::<Vec<_>>(), [2, 3]);
        campaign.runs.iter_mut().for_each(|run| run.stopped_early = true);
        for (run, limited_by_sender) in campaign.runs.iter_mut().zip([true, false]) {
            run.search = Some(SearchOutcome { limited_by_sender, ..SearchOutcome::default() });
        }
        assert_eq!(groups(&campaign).iter().map(|group| group.runs.len()).collect::<Vec<_>>(), [3, 3]);
        let csv = csv(&campaign);
        assert_eq!(csv.lines().count(), 1 + 6);
        assert!(csv.contains(",10.000,10.000,false"), "{csv}");
        for found in [",0.000,true,", ",0.000,false,"] {
            assert_eq!(csv.matches(found).count(), 1, "whether the generator was the limit: {csv}");
        }
    }
}
