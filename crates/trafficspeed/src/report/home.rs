//! The report of real paths.

pub mod pictures;

use super::document::Document;
use super::noise::TAKEN;
use super::observed::{self, Section};
use crate::experiment::home::flow::{Case, Datagrams, Flow, VIDEO, VOICE, pages_in_words};
use crate::experiment::home::observations::{LINK_LOST, LINK_SHARE, QUEUE_DROPPED, compared};
use crate::experiment::home::results::{HomeCampaign, HomeRun, HomeSettings};
use crate::experiment::link_check::Way;
use crate::experiment::quantities as q;
use crate::observation::{Observations, Quantity};
use crate::unit::{Unit, significant};

/// Stands below the tables.
const DEFINITIONS: &str = "\
Received: payload that arrived; share of the link: of its rate in that direction, which headers and the other flows need too.
Voice, video: each packet is due at a fixed instant and leaves then, even if earlier ones are late; its one-way delay counts \
from that instant. Lost: never came, of those that were due. Missed: lost, or later than 150 ms (ITU-T G.114), so of no use to a \
listener. Left late: how long after it was due 99 % of the packets left, at most; the generator's own part of the delay.
Variation: the difference of every two neighbouring packets' delays (RFC 3393); packets of one picture follow each other closely.
Out of order: came after a later one (RFC 4737), all rounds together. The emulated link keeps the order unless --reorder is given.
Pages: from the instant at which a page is due, whether the one before has come or not, to its last byte. Those that never came \
whole (unanswered) count with the time until they were given up.
CPU: of one CPU, of the VPN's processes at the gateway, of the client's, and of the generators (both ends).
Link: the emulator's own account of all frames of the measurement, warm-up included: lost because --loss asks for it, dropped \
because the queue was full. Dropped at the VPN's sockets, at generators: by the kernels of client and gateway, since datagrams were \
not taken in time; all rounds.";

/// The tables that have rows.
fn sections(table: &Observations) -> Vec<Section> {
    let grid = |cases: &[String], quantities: &[Quantity]| {
        observed::grid(table, cases, quantities, Some(Unit::Mbit))
    };
    let streams = [q::RECEIVED, LINK_SHARE];
    let call = [
        q::MESSAGES,
        q::LOST,
        q::MISSED,
        q::OUT_OF_ORDER,
        q::DELAY_50,
        q::DELAY_95,
        q::DELAY_99,
        q::VARIATION_50,
        q::VARIATION_95,
        q::VARIATION_99,
        q::LEFT_LATE,
    ];
    let costs = [
        &[q::GATEWAY_CPU, q::CLIENT_CPU, q::GENERATOR_CPU][..],
        &LINK_LOST,
        &QUEUE_DROPPED,
        &[q::VPN_DROPS, q::GENERATOR_DROPS, q::STEAL, q::OTHERS],
    ];
    let loads = Case::ALL.map(|case| case.name().to_owned());
    observed::sections([
        ("Download and upload", grid(&cases(&[Flow::Download, Flow::Upload]), &streams)),
        ("Call", grid(&cases(&Flow::CALL), &call)),
        ("Pages", grid(&cases(&[Flow::Pages]), &[q::PAGES, q::PAGE_50, q::PAGE_95, q::UNANSWERED])),
        ("CPU and link", grid(&loads, &costs.concat())),
        ("Differences", observed::differences(&table.comparisons(&compared()))),
    ])
}

/// Each of `flows` together with all others, and alone.
fn cases(flows: &[Flow]) -> Vec<String> {
    flows.iter().flat_map(|flow| [flow.in_case(Case::AtOnce), flow.in_case(flow.alone())]).collect()
}

/// The report of a campaign.
pub fn document(campaign: &HomeCampaign) -> Document<'_> {
    let name = "trafficspeed home";
    let mut document = Document::new(name, name, lead(&campaign.settings), &campaign.environment);
    (document.interrupted, document.problems) = (campaign.interrupted, campaign.problems());
    let table = campaign.observations();
    document.lines(observed::claims(&table, &compared()));
    document.pictures(pictures::pictures(campaign, &table));
    document.sections(sections(&table));
    for words in [observed::MEDIANS, DEFINITIONS, TAKEN, observed::RATIOS] {
        document.words(words);
    }
    document.remarks(remarks(&table));
    document.section("Systems");
    document.lines(system_lines(campaign, &table));
    document.section("Link");
    document.lines(link_lines(campaign));
    document
}

fn remarks(table: &Observations) -> Vec<String> {
    observed::remarks(table, &compared(), Some(Unit::Mbit))
}

/// The work in words.
fn lead(settings: &HomeSettings) -> String {
    let datagrams = |name: &str, Datagrams { at_once, per_second, bytes }: Datagrams| {
        let together = if at_once > 1 { format!(", {at_once} at once") } else { String::new() };
        format!("{name} of {per_second} packets/s with {bytes} bytes of payload each way{together}")
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
fn link_lines(campaign: &HomeCampaign) -> Vec<String> {
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

/// Lines about every system.
fn system_lines(campaign: &HomeCampaign, table: &Observations) -> Vec<String> {
    let line = |run: &HomeRun| {
        let facts = &run.facts;
        let mtu = facts.mtu.map_or_else(String::new, |mtu| format!(", MTU {mtu} when it came up"));
        let segments = |flow: Flow| {
            let segment = table.spread(&run.label, &flow.in_case(Case::AtOnce), q::SEGMENT)?;
            let least =
                if segment.low < segment.high { format!("{} to ", segment.low) } else { String::new() };
            Some(format!("; TCP segments of the {}: {least}{} bytes", flow.name(), segment.high))
        };
        let segments: Vec<String> = [Flow::Download, Flow::Upload].into_iter().filter_map(segments).collect();
        let words: Vec<&str> = [&facts.version, &facts.cipher]
            .into_iter()
            .map(String::as_str)
            .filter(|word| !word.is_empty())
            .collect();
        let notes: Vec<String> = facts.notes.iter().map(|note| format!("; {note}")).collect();
        format!("{}: {}{mtu}{}{}", run.label, words.join(", "), segments.concat(), notes.concat())
    };
    let first = |label| campaign.runs.iter().find(|run| run.label == label && run.error.is_none());
    table.systems().into_iter().filter_map(first).map(line).collect()
}

#[cfg(test)]
mod tests;
