//! The report of experiment 1.

use super::document::Document;
use super::noise::TAKEN;
use super::pictures::pictures;
use super::{headline, observed, published, systems};
use crate::experiment::outcome::observations::{
    COMMUNICATION, GATEWAY_COST, GOODPUT, LIMIT_USED, ROUND_TRIP_50, ROUND_TRIP_99, STREAM_FAIRNESS,
    UNANSWERED, VPN_COST,
};
use crate::experiment::outcome::{Campaign, RemoteEnd, Run};
use crate::experiment::problems::said_once;
use crate::experiment::quantities::{BUSY, CLIENT_CPU, GATEWAY_CPU, OTHERS, STEAL};
use crate::observation::{Observations, Quantity};
use crate::unit::Unit;

/// Stands below the figures.
const DEFINITIONS: &str = "\
Goodput: bytes received, each byte once (what iperf3 users expect).
Communication: bytes received + bytes sent by all measuring hosts, per second (the definition of TrafficSpeed, 2006).
Fairness: Jain's index over all connections, 1 = all equal.
Gateway CPU per Gbit, VPN CPU per Gbit: CPU seconds (user and system) of the gateway's and of all VPN processes per Gbit of goodput that \
went through the tunnel. Gateway CPU, client CPU: of one CPU.
Round trip: of requests that the first pair sends through the tunnel while the load runs, 64 bytes over UDP every 20 ms (--probe), from \
when each was due to its answer; half of all were answered within p50, 99 % within p99. They take 0.03 Mbit/s each way and are in no \
throughput.
CPU limit used: CPU time of the gateway's VPN processes, in percent of what --gateway-cpu gave them.
Only runs count in which each client's tunnel device carried at least 95 % of its bytes, each way, by the kernel's own \
counters.";

/// Stands below the figures of clients that measured with partners.
const PARTNERS: &str = "\
Each client measured with a partner at the gateway, which stands between an untrusted segment and a trusted one: every byte \
crossed its tunnel once.";

/// A gateway that used less of its CPU limit, in percent, was held back by something else.
const LIMITED_FROM_PERCENT: f64 = 90.0;

/// The columns of the figures.
pub(super) const FIGURES: [Quantity; 14] = [
    GOODPUT,
    GATEWAY_COST,
    ROUND_TRIP_50,
    ROUND_TRIP_99,
    UNANSWERED,
    STREAM_FAIRNESS,
    VPN_COST,
    STEAL,
    OTHERS,
    COMMUNICATION,
    GATEWAY_CPU,
    CLIENT_CPU,
    BUSY,
    LIMIT_USED,
];

/// The report of a campaign, throughput in `unit`. The order is that of a paper: result, pictures,
/// figures, systems, and what was published before.
pub fn document(campaign: &Campaign, unit: Unit) -> Document<'_> {
    let table = campaign.observations();
    let title = format!("TrafficSpeed: {}", campaign.labels().join("; "));
    let lead = lead(campaign, &table);
    let mut document = Document::new(&title, "TrafficSpeed", lead, &campaign.environment);
    (document.interrupted, document.problems) = (campaign.interrupted, problems(campaign));
    document.lines(headline::sentences(campaign));
    document.remarks(headline::missing(campaign));
    document.pictures(pictures(campaign));
    let cases = campaign.cases();
    let figures = observed::grid(&table, &cases, &FIGURES, Some(unit));
    if !figures.rows.is_empty() {
        document.section("Figures");
        document.table(figures.without_empty());
        document.words(observed::MEDIANS);
        document.words(DEFINITIONS);
        document.words(TAKEN);
        let has_partners = campaign.settings.far == RemoteEnd::Gateway;
        document.lines(has_partners.then(|| PARTNERS.to_owned()).into_iter().collect());
        let wanted: Vec<_> = cases.iter().map(|case| (case.clone(), GOODPUT)).collect();
        document.remarks(observed::remarks(&table, &wanted, Some(unit)));
        document.remarks(below_limit(&table, &cases));
    }
    for comparisons in campaign.comparisons(&table).iter().filter(|found| !found.is_empty()) {
        document.section("Differences");
        document.table(observed::differences(comparisons));
        document.words(observed::RATIOS);
    }
    document.section("Systems");
    let systems = systems::systems(campaign);
    document.texts(systems::described(&systems));
    document.beyond(systems::programs(&systems));
    document.lines(systems::common_buffers(campaign).into_iter().collect());
    document.section("Pairs of the first run at the largest number of clients");
    document.beyond(systems::pairs(campaign));
    document.published(published::SOURCE, published::compared(campaign), &[]);
    document.words(&published::FINDINGS.join("\n"));
    let s = &campaign.settings;
    let payload = if s.verify { "every received byte checked" } else { "discarded unread by the receiver" };
    document.set_up = [
        ("Congestion control", s.congestion.to_string()),
        ("Bytes per send call", s.write_bytes.to_string()),
        ("Generator threads per host", s.threads.to_string()),
        ("Payload", format!("random bytes, seed {}, {payload}", s.seed)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    document
}

/// Everything that went wrong, system by system.
fn problems(campaign: &Campaign) -> Vec<String> {
    let of_run = |run: &Run| {
        let attempt = if run.attempt > 1 { format!(", attempt {}", run.attempt) } else { String::new() };
        let place = format!("{} clients, run {}{attempt}", run.clients, run.repeat);
        let label = run.label.clone();
        run.problems().into_iter().map(move |problem| (label.clone(), place.clone(), problem))
    };
    let labels = campaign.labels();
    let runs = labels.iter().flat_map(|label| campaign.runs.iter().filter(move |run| run.label == *label));
    said_once(runs.flat_map(of_run))
}

/// Gateways whose CPU limit was not what held them back.
fn below_limit(table: &Observations, cases: &[String]) -> Vec<String> {
    let places = table
        .systems_and_controls()
        .into_iter()
        .flat_map(|label| cases.iter().map(move |case| (label, case)));
    let line = |(label, case): (&str, &String)| {
        let used = table.spread(label, case, LIMIT_USED)?.median;
        (used < LIMITED_FROM_PERCENT).then(|| {
            format!(
                "Look at {label}, {case}: its gateway used {used:.1} % of its CPU limit, so something else held this system back"
            )
        })
    };
    places.filter_map(line).collect()
}

/// How often it was measured, of the results that there are: fewer than were asked for where
/// measurements failed, or were never made.
fn times(asked: u32, table: &Observations) -> String {
    let goodputs = table.summaries().into_iter().filter(|one| one.quantity == GOODPUT.name);
    let rounds: Vec<u32> = goodputs.map(|one| one.spread.n as u32).collect();
    match (rounds.iter().min().copied().unwrap_or(0), rounds.iter().max().copied().unwrap_or(0)) {
        (1, 1) if asked == 1 => "once".to_owned(),
        (least, most) if least == asked && most == asked => format!("{asked} times, systems taking turns"),
        (least, most) if least == most => format!("{most} of {asked} times, systems taking turns"),
        (least, most) => format!("{least} to {most} of {asked} times, systems taking turns"),
    }
}

fn lead(campaign: &Campaign, table: &Observations) -> String {
    let s = &campaign.settings;
    let times = times(s.repeats, table);
    let pair = match s.far {
        RemoteEnd::Client => "pair of clients",
        RemoteEnd::Gateway => {
            "client with its partner behind the gateway (every byte crosses the tunnel once)"
        }
    };
    format!(
        "What a VPN carries as its clients grow. {} TCP connections per {pair}, half each way, seeded random \
         data, all pairs at once for {} s after {} s of warm-up, IPv{}, measured {times}.",
        s.streams, s.seconds, s.warmup_seconds, s.ip
    )
}

/// Whether a ratio is a difference, in a word; `None` if that is not judged.
pub(super) fn difference(differs: Option<bool>) -> &'static str {
    match differs {
        Some(true) => "yes",
        Some(false) => "none beyond A/A",
        None => "–",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;
    use crate::system::{Kind, Subject};

    fn text(campaign: &Campaign, unit: Unit, wide: bool) -> String {
        document(campaign, unit).text(wide, true)
    }

    #[test]
    fn the_table_holds_medians_spread_ratios_definitions_and_failures() {
        let text = text(&samples::campaign(), Unit::Gbit, false);
        for expected in [
            "vpnd, aes-256-gcm",
            "plain routing",
            "16.3 (16.2–16.5) Gbit/s",
            "0.340 (0.337–0.343)",
            "Jain",
            "did> not come up",
        ] {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
        assert!(!text.contains("Interrupted") && !text.contains("relative to vpnd"));
    }

    #[test]
    fn another_unit_and_a_baseline_are_shown() {
        let mut campaign = samples::campaign();
        campaign.baseline = Some("vpnd, aes-256-gcm".into());
        campaign.runs[0].facts.version = "vpnd 9".into();
        campaign.runs[0].facts.mtu = Some(1420);
        let text = text(&campaign, Unit::Mbit, true);
        for expected in ["16320 (16160–16480) Mbit/s", "relative to vpnd", "2.94", "vpnd 9", "MTU 1420"] {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
    }

    #[test]
    fn a_gateway_that_did_not_use_up_its_limit_is_pointed_at() {
        let mut campaign = samples::campaign();
        let shown = |campaign: &Campaign| text(campaign, Unit::Gbit, true);
        assert!(!shown(&campaign).contains("CPU limit used, %"), "there is none");
        // All gateways used half a core.
        campaign.environment.gateway_cpu = Some("0.5".parse().unwrap());
        let full = shown(&campaign);
        assert!(full.contains("100.0 (100.0–100.0)") && !full.contains("held this system back"), "{full}");
        campaign.environment.gateway_cpu = Some("2".parse().unwrap());
        let idle = shown(&campaign);
        assert!(
            idle.contains("used 25.0 % of its CPU limit, so something else held this system back"),
            "{idle}"
        );
    }

    #[test]
    fn the_buffers_of_all_systems_are_said_once_if_they_were_set() {
        let mut campaign = samples::campaign();
        assert!(!text(&campaign, Unit::Gbit, true).contains("Buffers:"), "not of a file from before");
        campaign.environment.links = Some(format!("links; {}", crate::system::buffers::METHOD));
        assert_eq!(text(&campaign, Unit::Gbit, true).matches("Buffers: each UDP socket of a VPN").count(), 1);
    }

    #[test]
    fn a_run_outside_the_vpn_shows_its_problem_and_no_figure() {
        let mut campaign = samples::campaign();
        campaign.runs.truncate(1);
        campaign.runs[0].carried[0].tunnel.sent.bytes = 0;
        let text = text(&campaign, Unit::Gbit, false);
        assert!(text.contains("only 75 % of the bytes went through the tunnel"), "{text}");
        assert!(!text.contains("Gbit/s"), "{text}");
    }

    #[test]
    fn nothing_measured_is_said_without_an_empty_table() {
        let mut campaign = samples::campaign();
        campaign.runs.retain(|run| run.error.is_some());
        campaign.interrupted = true;
        let text = text(&campaign, Unit::Gbit, false);
        assert!(!text.contains("communication,") && text.contains("Interrupted"), "{text}");
        campaign.runs.clear();
        let page = document(&campaign, Unit::Gbit).page();
        assert!(page.contains("Interrupted") && !page.contains("<svg"));
    }

    #[test]
    fn a_run_far_from_the_others_and_a_difference_within_the_control_are_said() {
        let mut campaign = samples::campaign_of(5);
        campaign.runs.retain(|run| run.clients == 2);
        let mut runs = Vec::new();
        for repeat in 1..=5 {
            let bytes = if repeat == 3 { 4_000_000_000 } else { 1_000_000_000 + u64::from(repeat) };
            let mut run = samples::run(Kind::Vpnd, 2, repeat, bytes);
            run.subject = run.subject.map(Subject::again);
            run.label = run.subject.unwrap().label();
            runs.push(run);
        }
        campaign.runs.extend(runs);
        let text = text(&campaign, Unit::Gbit, false);
        let line = "Look at vpnd, aes-256-gcm (again), 2 clients, goodput: 32.0 Gbit/s is far from the median of 8.00 Gbit/s";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("none beyond A/A") && text.contains("(0.952–3.88)"), "{text}");
    }

    #[test]
    fn the_page_holds_pictures_figures_set_up_and_the_publication() {
        let mut campaign = samples::campaign();
        campaign.baseline = Some("vpnd, aes-256-gcm".into());
        campaign.environment.command_line = "trafficspeed compare --clients '2 & 4'".into();
        let page = document(&campaign, Unit::Gbit).page();
        assert_eq!(page.matches("<svg").count(), 8);
        for expected in [
            "Communication throughput",
            "16.3",
            "0.337–0.343",
            "relative to vpnd, aes-256-gcm",
            "Congestion control",
            "--clients &#39;2 &amp; 4&#39;",
            "PacketiX",
            "Text for comparison",
        ] {
            assert!(page.contains(expected), "{expected} is missing");
        }
    }

    #[test]
    fn the_lead_counts_the_rounds_that_were_measured() {
        let mut campaign = samples::campaign();
        assert!(document(&campaign, Unit::Gbit).page().contains("measured 3 times, systems taking turns."));
        campaign.settings.repeats = 5;
        assert!(document(&campaign, Unit::Gbit).page().contains("measured 3 of 5 times, systems"));
        campaign.runs.retain(|run| run.repeat == 1 || run.clients == 2);
        assert!(document(&campaign, Unit::Gbit).page().contains("measured 1 to 3 of 5 times, systems"));
        campaign.settings.repeats = 1;
        campaign.runs.retain(|run| run.repeat == 1);
        assert!(document(&campaign, Unit::Gbit).page().contains("measured once."));
    }
}
