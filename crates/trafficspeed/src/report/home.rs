//! The report of real paths: tables for people, JSON, CSV; [`page`] makes the page.

mod csv;
pub mod groups;
pub mod page;
pub mod ratios;

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::grid::Grid;
use super::noise::percent;
use crate::experiment::figures::Figures;
use crate::experiment::home::flow::{Case, Datagrams, Flow, LATE_AFTER_MS, VIDEO, VOICE, pages_in_words};
use crate::experiment::home::results::{CaseResult, HomeCampaign, HomeRun, HomeSettings, LinkCounts};
use crate::experiment::link_check::Way;
use crate::experiment::outcome::{CpuUse, Taken};
use crate::load::delays::DelaySummary;
use crate::stats::Spread;
use crate::unit::significant;
pub use csv::csv;
use groups::{CaseGroup, FlowGroup};

/// The version of the JSON report's layout.
const FORMAT: u32 = 1;

/// Stands below the tables.
pub const DEFINITIONS: &str = "\
Medians of n rounds, the lowest and the highest in parentheses.
Download, upload: payload that arrived; % of the link: of its rate in that direction, which headers and the other flows need too.
Voice, video: each packet is due at a fixed instant and leaves then, whatever became of those before; its one-way delay counts \
from that instant. Lost: never came, of those that were due. Missed: lost, or later than 150 ms (ITU-T G.114), so of no use to a \
listener. Left late: how long after it was due 99 % of the packets left, at most; the generator's own part of the delay.
Variation: the difference of every two neighbouring packets' delays (RFC 3393); packets of one picture follow each other closely.
Out of order: came after a later one (RFC 4737), all rounds together. The emulated link keeps the order unless --reorder is given.
Pages: from the instant at which a page is due, whether the one before has come or not, to its last byte. p50, p95: of the pages \
of all rounds together; those that never came whole count with the time until they were given up.
CPU: of one CPU, of the VPN's processes at the gateway, of the client's, and of the generators (both ends).
Link: the emulator's own account of all frames of the measurement, warm-up included: lost because --loss asks for it, dropped \
because the queue was full. Dropped at the VPN's sockets, at generators: by the kernels of client and gateway, since datagrams were \
not taken in time; all rounds.
Steal, others: the most of the machine that the hypervisor took and that processes without a part in the measurement used.";

/// One table of the report.
pub struct Section {
    pub name: &'static str,
    pub grid: Grid,
}

/// The tables that have rows.
pub fn sections(campaign: &HomeCampaign) -> Vec<Section> {
    let all = [
        ("Download and upload", streams(campaign)),
        ("Call", calls(campaign)),
        ("Pages", pages(campaign)),
        ("CPU and link", costs(campaign)),
        ("Differences", ratios::grid(campaign)),
    ];
    let sections = all.into_iter().map(|(name, grid)| Section { name, grid });
    sections.filter(|section| !section.grid.rows.is_empty()).collect()
}

/// The results as text, tables at most so wide.
pub fn table(campaign: &HomeCampaign, width: Option<usize>) -> String {
    let mut text = String::new();
    let mut say = |line: &str| writeln!(text, "{line}").expect("writing to a string");
    say(&lead(&campaign.settings));
    for Section { name, grid } in sections(campaign) {
        say(name);
        say(&grid.text(width));
    }
    say(DEFINITIONS);
    say(ratios::DEFINITIONS);
    ratios::remarks(campaign).iter().for_each(|line| say(line));
    link_lines(campaign).iter().chain(&system_lines(campaign)).for_each(|line| say(line));
    campaign.problems().iter().for_each(|problem| say(&format!("Problem: {problem}")));
    if campaign.interrupted {
        say("Interrupted: the figures are of what was measured until then.");
    }
    text
}

/// The work in words.
pub fn lead(settings: &HomeSettings) -> String {
    let datagrams = |name: &str, of: Datagrams| {
        let together = if of.at_once > 1 { format!(", {} at once", of.at_once) } else { String::new() };
        format!("{name} of {} packets/s with {} bytes of payload each way{together}", of.per_second, of.bytes)
    };
    let alone = if settings.alone_seconds > 0.0 {
        format!(", then each part alone for {} s", settings.alone_seconds)
    } else {
        String::new()
    };
    format!(
        "At once, for {} s after {} s of warm-up: a download and an upload ({} TCP connection{} each, {}); {}; {}; {}{alone}. IPv{} \
         inside; {} rounds, systems in turns.",
        settings.seconds,
        settings.warmup_seconds,
        settings.streams,
        if settings.streams == 1 { "" } else { "s" },
        settings.congestion,
        datagrams("voice", VOICE),
        datagrams("video", VIDEO),
        pages_in_words(settings),
        settings.ip,
        settings.repeats
    )
}

/// The link by itself, and what it did below the systems.
pub fn link_lines(campaign: &HomeCampaign) -> Vec<String> {
    let mut lines: Vec<String> =
        campaign.environment.links.iter().map(|links| format!("Links: {links}")).collect();
    if let Some(link) = &campaign.link {
        lines.extend(
            ["up", "down"].into_iter().zip([&link.up, &link.down]).map(|(name, way)| link_line(name, way)),
        );
    }
    let late = campaign.runs.iter().filter_map(|run| Some((run.link.late_p99_us()?, run)));
    if let Some((us, run)) = late.max_by(|a, b| a.0.total_cmp(&b.0)) {
        let cpu = campaign.runs.iter().map(|run| run.link.cpu_seconds()).fold(0.0, f64::max);
        lines.push(format!(
            "Emulator below the systems: 99 % of the frames left at most {} ms after the instant that it had decided on, in the round \
             where it was latest ({}, round {}); at most {} CPU s in a round.",
            significant(us / 1e3),
            run.label,
            run.repeat,
            significant(cpu)
        ));
    }
    lines
}

fn link_line(name: &str, way: &Way) -> String {
    let ms = |us: f64| significant(us / 1e3);
    let Way { asked, probes, bits_per_second, emulator } = way;
    let rate = asked.bits_per_second.map_or_else(
        || format!("{} Mbit/s by one TCP connection", significant(bits_per_second / 1e6)),
        |rate| format!("{} of {} Mbit/s", significant(bits_per_second / 1e6), significant(rate as f64 / 1e6)),
    );
    let late = emulator.map_or(String::new(), |emulator| {
        format!("; frames left {} ms late (99 %)", ms(emulator.late_p99_us))
    });
    format!(
        "Link alone, {name}: delay {} ± {} ms asked for; mean {} ms, p50 {}, p99 {} got; lost {:.3} % asked for, {} of {} got; {} out of \
         order; {rate}{late}.",
        ms(asked.delay_us),
        ms(asked.jitter_us),
        ms(probes.delay.mean_us),
        ms(probes.delay.p50_us),
        ms(probes.delay.p99_us),
        asked.loss_percent,
        probes.sent.saturating_sub(probes.arrived),
        probes.sent,
        probes.overtaken
    )
}

/// Every system by its own account.
pub fn system_lines(campaign: &HomeCampaign) -> Vec<String> {
    let first = |label: &str| campaign.runs.iter().find(|run| run.label == label && run.error.is_none());
    let line = |run: &HomeRun| {
        let facts = &run.facts;
        let mtu = facts.mtu.map_or_else(String::new, |mtu| format!(", MTU {mtu} when it came up"));
        let segments: Vec<String> = [Flow::Download, Flow::Upload]
            .into_iter()
            .filter_map(|flow| {
                Some(format!("; TCP segments of the {}: {}", flow.name(), mss(campaign, run, flow)?))
            })
            .collect();
        let words: Vec<&str> = [&facts.version, &facts.cipher]
            .into_iter()
            .map(String::as_str)
            .filter(|word| !word.is_empty())
            .collect();
        let notes: Vec<String> = facts.notes.iter().map(|note| format!("; {note}")).collect();
        format!("{}: {}{mtu}{}{}", run.label, words.join(", "), segments.concat(), notes.concat())
    };
    campaign.labels().into_iter().filter_map(first).map(line).collect()
}

/// The largest segments of a flow beside all others in bytes of payload, as the sender's kernel had them, in all rounds.
fn mss(campaign: &HomeCampaign, run: &HomeRun, flow: Flow) -> Option<String> {
    let group = FlowGroup::of(campaign, &run.label, Case::AtOnce, flow);
    let bytes = group.spread(|figures| figures.mss.map(f64::from))?;
    let least = if bytes.low < bytes.high { format!("{} to ", bytes.low) } else { String::new() };
    Some(format!("{least}{} bytes", bytes.high))
}

fn dash() -> String {
    "–".into()
}

fn spread(spread: Option<Spread>) -> String {
    spread.map_or_else(dash, |spread| spread.text(significant))
}

fn load_name(case: Case) -> &'static str {
    if case == Case::AtOnce { case.name() } else { "alone" }
}

fn streams(campaign: &HomeCampaign) -> Grid {
    let head = [
        "system",
        "load",
        "n",
        "download, Mbit/s",
        "download, % of the link",
        "upload, Mbit/s",
        "upload, % of the link",
    ];
    let mut grid = Grid::new(2, head);
    let [up, down] = campaign.settings.rate;
    for label in groups::labels(campaign) {
        for alone in [false, true] {
            let of = |flow: Flow| {
                FlowGroup::of(campaign, label, if alone { flow.alone() } else { Case::AtOnce }, flow)
            };
            let (download, upload) = (of(Flow::Download), of(Flow::Upload));
            let n = download.runs.len().max(upload.runs.len());
            if n == 0 {
                continue;
            }
            let mut row =
                vec![label.to_owned(), if alone { "alone" } else { "all at once" }.to_owned(), n.to_string()];
            for (group, rate) in [(download, down), (upload, up)] {
                let goodput = group.spread(|figures| Some(figures.received_bits_per_second));
                let share = goodput.zip(rate).map(|(goodput, rate)| goodput.scaled(rate as f64 / 100.0));
                row.push(spread(goodput.map(|goodput| goodput.scaled(1e6))));
                row.push(spread(share));
            }
            grid.rows.push(row);
        }
    }
    grid
}

fn calls(campaign: &HomeCampaign) -> Grid {
    let head = [
        "system",
        "flow",
        "load",
        "n",
        "lost, %",
        "missed, %",
        "out of order",
        "delay p50, ms",
        "delay p95, ms",
        "delay p99, ms",
        "variation p50, ms",
        "variation p95, ms",
        "variation p99, ms",
        "left late p99, ms",
    ];
    let mut grid = Grid::new(3, head);
    for group in groups::flows(campaign, &Flow::CALL) {
        let ms = |of: fn(&Figures) -> Option<&DelaySummary>, share: f64| {
            spread(group.spread(|figures| Some(of(figures)?.at(share) / 1e3)))
        };
        let percent = |of: fn(&Figures) -> Option<f64>| {
            group.spread(of).map_or_else(dash, |all| all.text(|one| format!("{one:.2}")))
        };
        let (late, came) = group.out_of_order();
        let delay: fn(&Figures) -> Option<&DelaySummary> = Figures::delay_of;
        let variation: fn(&Figures) -> Option<&DelaySummary> = |figures| figures.variation.as_ref();
        grid.rows.push(vec![
            group.label.to_owned(),
            group.flow.name().to_owned(),
            load_name(group.case).to_owned(),
            group.runs.len().to_string(),
            percent(|figures| figures.lost_percent),
            percent(|figures| figures.missed_percent),
            format!("{late} of {came}"),
            ms(delay, 0.5),
            ms(delay, 0.95),
            ms(delay, 0.99),
            ms(variation, 0.5),
            ms(variation, 0.95),
            ms(variation, 0.99),
            ms(|figures| figures.lateness.as_ref(), 0.99),
        ]);
    }
    grid
}

fn pages(campaign: &HomeCampaign) -> Grid {
    let head = ["system", "load", "n", "pages", "p50, ms", "p95, ms", "p50 by round, ms", "never whole"];
    let mut grid = Grid::new(2, head);
    for group in groups::flows(campaign, &[Flow::Pages]) {
        let pooled = |share: f64| group.page_ms(share).map_or_else(dash, significant);
        grid.rows.push(vec![
            group.label.to_owned(),
            load_name(group.case).to_owned(),
            group.runs.len().to_string(),
            group.pages().to_string(),
            pooled(0.5),
            pooled(0.95),
            spread(group.spread(|figures| crate::stats::median(&figures.pages_ms))),
            group.runs.iter().filter_map(|figures| figures.timeouts).sum::<u64>().to_string(),
        ]);
    }
    grid
}

fn costs(campaign: &HomeCampaign) -> Grid {
    let head = [
        "system",
        "load",
        "n",
        "gateway CPU, %",
        "client CPU, %",
        "generator CPU, %",
        "link lost up, %",
        "link lost down, %",
        "queue dropped up, %",
        "queue dropped down, %",
        "dropped at the VPN's sockets",
        "dropped at generators",
        "steal",
        "others",
    ];
    let mut grid = Grid::new(2, head);
    for group in groups::cases(campaign) {
        let CaseGroup { label, case, runs } = &group;
        let cpu = |of: fn(&CpuUse) -> f64| {
            let share = |run: &CaseResult| {
                run.cpu.filter(|cpu| cpu.seconds > 0.0).map(|cpu| 100.0 * of(&cpu) / cpu.seconds)
            };
            spread(group.spread(share))
        };
        let link = |way: usize, of: fn(LinkCounts) -> Option<f64>| {
            group.spread(|run| of(run.link[way])).map_or_else(dash, |all| format!("{:.2}", all.median))
        };
        let taken = Taken::most(runs.iter().filter_map(|run| run.cpu.as_ref()));
        let drops = |of: fn(&CaseResult) -> [u64; 2]| runs.iter().flat_map(|run| of(run)).sum::<u64>();
        let (all_drops, at_generators) = (drops(|run| run.socket_drops), drops(|run| run.generator_drops));
        grid.rows.push(vec![
            (*label).to_owned(),
            case.name().to_owned(),
            runs.len().to_string(),
            cpu(|cpu| cpu.gateway),
            cpu(|cpu| cpu.clients),
            cpu(|cpu| cpu.generators),
            link(0, LinkCounts::lost_percent),
            link(1, LinkCounts::lost_percent),
            link(0, LinkCounts::dropped_percent),
            link(1, LinkCounts::dropped_percent),
            all_drops.saturating_sub(at_generators).to_string(),
            at_generators.to_string(),
            percent(taken.steal),
            percent(taken.others),
        ]);
    }
    grid
}

/// The results as JSON.
pub fn json(campaign: &HomeCampaign) -> Value {
    let mut value = start_json(campaign);
    value["format"] = json!(FORMAT);
    value["link"] = json!(campaign.link);
    value["interrupted"] = json!(campaign.interrupted);
    value["problems"] = json!(campaign.problems());
    value["summary"] = summary_json(campaign);
    value["comparison"] = ratios::json(campaign);
    value["runs"] = json!(campaign.runs);
    value
}

/// The event of the beginning.
pub fn start_json(campaign: &HomeCampaign) -> Value {
    json!({
        "experiment": "home",
        "settings": campaign.settings,
        "work": lead(&campaign.settings),
        "late_after_ms": LATE_AFTER_MS,
        "environment": campaign.environment,
    })
}

/// The event of the end.
pub fn end_json(campaign: &HomeCampaign) -> Value {
    json!({ "interrupted": campaign.interrupted, "summary": summary_json(campaign) })
}

fn summary_json(campaign: &HomeCampaign) -> Value {
    let one = |group: FlowGroup<'_>| {
        let delay = |share: f64| group.spread(|figures| Some(Figures::delay_of(figures)?.at(share) / 1e3));
        let is_page = group.flow == Flow::Pages;
        let (late, came) = group.out_of_order();
        json!({
            "system": group.label,
            "load": group.case,
            "flow": group.flow,
            "rounds": group.runs.len(),
            "received_bits_per_second": group.spread(|figures| Some(figures.received_bits_per_second)),
            "lost_percent": group.spread(|figures| figures.lost_percent),
            "missed_percent": group.spread(|figures| figures.missed_percent),
            "out_of_order": (!is_page && came > 0).then_some(late),
            "delay_p50_ms": delay(0.5),
            "delay_p95_ms": delay(0.95),
            "delay_p99_ms": delay(0.99),
            "pages": is_page.then(|| group.pages()),
            "page_p50_ms": group.page_ms(0.5),
            "page_p95_ms": group.page_ms(0.95),
        })
    };
    groups::flows(campaign, &Flow::ALL).into_iter().map(one).collect()
}

#[cfg(test)]
mod tests;
