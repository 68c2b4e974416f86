//! The report of the generators' own commands: a table for people, JSON with iperf3's names, CSV.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::{Value, json};

use crate::csv_table;
use crate::experiment::figures::{Figures, Point};
use crate::experiment::generate::{LoadCampaign, LoadRun, NamedTask, Second};
use crate::load::delays::DelaySummary;
use crate::load::task::{Protocol, Task};
use crate::stats::{median, range};
use crate::unit::Unit;
use crate::unit::significant;

/// The version of the JSON report's layout.
const FORMAT: u32 = 1;

/// Less than this share of the messages that a rate asked for is said, in percent.
const LEAST_DELIVERED: f64 = 99.0;

/// `bits_per_second` in `unit`, or else in the one that suits it.
pub fn rate(unit: Option<Unit>, bits_per_second: f64) -> String {
    let unit = unit.unwrap_or(match bits_per_second.abs() {
        rate if rate >= 1e9 => Unit::Gbit,
        rate if rate >= 1e6 => Unit::Mbit,
        _ => Unit::Kbit,
    });
    format!("{} {}", unit.figure(bits_per_second), unit.name())
}

/// Stands below the table.
pub const DEFINITIONS: &str = "\
Received: payload that arrived per second. Lost, reordered (RFC 4737), jitter (RFC 3550): by the messages' numbers and time stamps.
Delay: one way for messages, the round trip for requests; 50 % and 99 % of them were at most this long. The lab has one clock;
real hosts' clocks are compared before each measurement, and a delay is known as well as both of them together.
CPU: CPU seconds per second of the gateway's VPN, the clients' VPN, and the generator (both ends).";

/// The results as text.
pub fn table(campaign: &LoadCampaign, unit: Option<Unit>) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    let head =
        ["system", "load", "run", "received", "per second", "lost", "reordered", "jitter", "p50", "p99"];
    table.set_header(head.into_iter().chain(["CPU gateway/clients/generator"]));
    let mut text = String::new();
    for run in &campaign.runs {
        for (named, figures) in campaign.settings.tasks.iter().zip(&run.figures) {
            table.add_row(row(run, named, figures, unit));
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    if table.row_count() > 0 {
        writeln!(text, "{table}").expect("writing to a string");
        text.push_str(&medians(campaign, unit));
        writeln!(text, "{DEFINITIONS}").expect("writing to a string");
    }
    for run in &campaign.runs {
        notes(&mut text, run);
    }
    if campaign.interrupted {
        writeln!(text, "Interrupted: the figures are of what was measured until then.")
            .expect("writing to a string");
    }
    text
}

fn row(run: &LoadRun, named: &NamedTask, figures: &Figures, unit: Option<Unit>) -> Vec<String> {
    let none = || "–".to_owned();
    let number = |value: Option<u64>| value.map_or_else(none, |value| value.to_string());
    let micros = |value: Option<f64>| value.map_or_else(none, |value| format!("{} µs", significant(value)));
    let delay = figures.delay.as_ref().or(figures.round_trip.as_ref());
    let each = figures.transactions_per_second.or(figures.received_per_second);
    vec![
        run.label.clone(),
        named.name.clone(),
        run.repeat.to_string(),
        rate(unit, figures.received_bits_per_second),
        each.map_or_else(none, |each| format!("{each:.0}")),
        figures.lost_percent.map_or_else(none, |lost| format!("{lost:.3} %")),
        number(figures.reordered),
        micros(figures.jitter_us),
        micros(delay.map(|delay| delay.p50_us)),
        micros(delay.map(|delay| delay.p99_us)),
        run.cpu.filter(|cpu| cpu.seconds > 0.0).map_or_else(none, |cpu| {
            let [gateway, clients, own] =
                [cpu.gateway, cpu.clients, cpu.generators].map(|used| significant(used / cpu.seconds));
            format!("{gateway} / {clients} / {own}")
        }),
    ]
}

/// One line for each system and load that was measured more than once; empty if none was.
fn medians(campaign: &LoadCampaign, unit: Option<Unit>) -> String {
    let mut groups: Vec<(&str, &str, Vec<&Figures>)> = Vec::new();
    for run in campaign.runs.iter().filter(|run| run.is_whole()) {
        for (named, figures) in campaign.settings.tasks.iter().zip(&run.figures) {
            match groups.iter_mut().find(|(label, load, _)| *label == run.label && *load == named.name) {
                Some((_, _, all)) => all.push(figures),
                None => groups.push((&run.label, &named.name, vec![figures])),
            }
        }
    }
    let several = groups.iter().filter(|(_, _, all)| all.len() > 1);
    let mut text = String::new();
    for (label, load, all) in several {
        let spread = |of: &dyn Fn(&Figures) -> Option<f64>, show: &dyn Fn(f64) -> String| {
            let values: Vec<f64> = all.iter().filter_map(|figures| of(figures)).collect();
            let (low, high) = range(&values)?;
            Some(format!("{} ({} to {})", show(median(&values)?), show(low), show(high)))
        };
        let in_unit = |value: f64| rate(unit, value);
        let received = spread(&|figures| Some(figures.received_bits_per_second), &in_unit);
        let per_second = |value: f64| format!("{value:.0}/s");
        let each =
            spread(&|figures| figures.transactions_per_second.or(figures.received_per_second), &per_second);
        let shown: Vec<String> = received.into_iter().chain(each).collect();
        writeln!(text, "Median of {} runs (least to most), {label}, {load}: {}", all.len(), shown.join(", "))
            .expect("writing to a string");
    }
    text
}

fn notes(text: &mut String, run: &LoadRun) {
    let name = format!("{}, run {}", run.label, run.repeat);
    let mut say = |line: String| writeln!(text, "{name}: {line}").expect("writing to a string");
    if let Some(search) = &run.search {
        let limit = if search.limited_by_sender { "; the generator could not send more" } else { "" };
        say(format!(
            "highest rate without more loss than allowed: {:.0} packets/s ({}), found with {} trials{limit}; the row \
             above is of the last trial",
            search.packets_per_second,
            rate(None, search.bits_per_second),
            search.trials.len(),
        ));
    }
    for delivered in run.figures.iter().filter_map(|figures| figures.delivered_percent) {
        if delivered < LEAST_DELIVERED {
            say(format!(
                "only {delivered:.1} % of the messages that the rate asked for arrived; `lost` counts those that were sent, and \
                 a sender that gets no CPU skips some"
            ));
        }
    }
    if run.socket_drops > 0 {
        say(format!(
            "{} datagrams arrived but were dropped because the generator was too slow",
            run.socket_drops
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
        "repeat": run.repeat,
        "timestamp": { "time": run.started },
        "facts": run.facts,
        "hosts": run.hosts,
        "whole": run.is_whole(),
        "problems": run.problems(),
        "cpu_seconds": run.cpu,
        "socket_drops": run.socket_drops,
        "search": run.search,
        "tasks": tasks.map(|(named, figures)| task_json(campaign, named, figures)).collect::<Vec<_>>(),
    })
}

fn task_json(campaign: &LoadCampaign, named: &NamedTask, figures: &Figures) -> Value {
    let settings = &campaign.settings;
    let (protocol, streams, length, reverse) = match &named.task {
        Task::Bulk(job) => (Protocol::Tcp, job.streams, job.write_bytes, !job.connector_sends(0)),
        Task::Messages(work) => (work.protocol, work.streams, work.length, work.backward),
        Task::Exchange(work) => (work.protocol, work.streams, work.request, false),
    };
    json!({
        "name": named.name,
        "start": { "test_start": {
            "protocol": protocol,
            "num_streams": streams,
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

const CSV_HEAD: [&str; 28] = [
    "system",
    "congestion",
    "cipher",
    "mtu",
    "load",
    "repeat",
    "received_bits_per_second",
    "sent_bits_per_second",
    "received_per_second",
    "sent_per_second",
    "transactions_per_second",
    "lost_percent",
    "delivered_percent",
    "duplicates",
    "reordered",
    "timeouts",
    "jitter_us",
    "delay_p50_us",
    "delay_p99_us",
    "delay_max_us",
    "round_trip_p50_us",
    "round_trip_p99_us",
    "round_trip_max_us",
    "searched_packets_per_second",
    "gateway_cpu_seconds",
    "client_cpu_seconds",
    "generator_cpu_seconds",
    "whole",
];

/// One line for each task of each run.
pub fn csv(campaign: &LoadCampaign) -> String {
    let tasks = &campaign.settings.tasks;
    let of = |run: &'_ LoadRun| -> Vec<_> {
        tasks.iter().zip(&run.figures).map(|(named, figures)| csv_cells(run, named, figures)).collect()
    };
    csv_table::text(CSV_HEAD, campaign.runs.iter().flat_map(of))
}

fn csv_cells(run: &LoadRun, named: &NamedTask, figures: &Figures) -> [String; 28] {
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
    let count = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    let [delay, trip] = [&figures.delay, &figures.round_trip].map(|delays| {
        let of = |figure: fn(&DelaySummary) -> f64| number(delays.as_ref().map(figure));
        [of(|delay| delay.p50_us), of(|delay| delay.p99_us), of(|delay| delay.max_us)]
    });
    let [delay_p50, delay_p99, delay_max] = delay;
    let [trip_p50, trip_p99, trip_max] = trip;
    [
        run.label.clone(),
        run.congestion.to_string(),
        run.facts.cipher.clone(),
        run.facts.mtu.map_or_else(String::new, |mtu| mtu.to_string()),
        named.name.clone(),
        run.repeat.to_string(),
        number(Some(figures.received_bits_per_second)),
        number(Some(figures.sent_bits_per_second)),
        number(figures.received_per_second),
        number(figures.sent_per_second),
        number(figures.transactions_per_second),
        number(figures.lost_percent),
        number(figures.delivered_percent),
        count(figures.duplicates),
        count(figures.reordered),
        count(figures.timeouts),
        number(figures.jitter_us),
        delay_p50,
        delay_p99,
        delay_max,
        trip_p50,
        trip_p99,
        trip_max,
        number(run.search.as_ref().map(|search| search.packets_per_second)),
        number(run.cpu.map(|cpu| cpu.gateway)),
        number(run.cpu.map(|cpu| cpu.clients)),
        number(run.cpu.map(|cpu| cpu.generators)),
        run.is_whole().to_string(),
    ]
}
