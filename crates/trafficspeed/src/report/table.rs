//! The report of experiment 1.

use super::document::Document;
use super::grid::Grid;
use super::noise::{far, percent};
use super::pictures::pictures;
use super::problems::{place, problems};
use super::summary::{Summary, baseline, labels, summarise};
use super::{headline, published, systems};
use crate::experiment::outcome::observations::{GOODPUT, case};
use crate::experiment::outcome::{Campaign, RemoteEnd, Run};
use crate::stats::Spread;
use crate::unit::Unit;
use crate::unit::significant;

/// Stands below every table.
const DEFINITIONS: &str = "\
Goodput: bytes received, each byte once (what iperf3 users expect).
Communication throughput: bytes received + bytes sent by all measuring hosts, per second (the definition of \
TrafficSpeed, 2006).
Medians of n runs, the lowest and the highest in parentheses.
Fairness: Jain's index over all connections, 1 = all equal.
CPU: CPU seconds per second of the VPN processes, user and system; CPU s/Gbit: CPU seconds per Gbit of goodput that \
went through the tunnel.
Steal, others: the most of the machine that the hypervisor took and that processes without a part in the measurement \
used.
Only runs count in which each client's tunnel device carried at least 95 % of its bytes, each way, by the kernel's own \
counters.";

/// Stands below the figures of clients that measured with partners.
const PARTNERS: &str = "\
Each client measured with a partner at the gateway, which stands between an untrusted segment and a trusted one: every byte \
crossed its tunnel once.";

/// Stands below the figures of gateways with a CPU limit.
const LIMIT: &str = "\
Of the limit: CPU time of the gateway's VPN processes, in percent of what --gateway-cpu gave them. * Less than 90 %: \
something else held this system back, so its figure is not what it makes of so much CPU time.";

/// Stands below a table of ratios.
const RATIOS: &str = "\
Ratios of goodput, each formed within one round at one number of clients; median, lowest and highest of the rounds in \
parentheses.
A/A: a system that is measured a second time in each round, against itself: what such a comparison shows where there \
is no difference.
A difference counts where the median lies further from 1 than any ratio of A/A did, and all rounds went the same way.";

/// The report of a campaign, throughput in `unit`. The order is that of a paper: result, pictures,
/// figures, systems, what was published before beside ours.
pub fn document(campaign: &Campaign, unit: Unit) -> Document<'_> {
    let summaries = summarise(campaign);
    let title = format!("TrafficSpeed: {}", labels(campaign).join("; "));
    let lead = lead(campaign, &summaries);
    let mut document = Document::new(&title, "TrafficSpeed", lead, &campaign.environment);
    (document.interrupted, document.problems) = (campaign.interrupted, problems(campaign));
    document.lines(headline::sentences(campaign));
    document.remarks(headline::missing(campaign));
    document.pictures(pictures(campaign));
    if !summaries.is_empty() {
        document.section("Figures");
        document.table(grid(&summaries, unit));
        document.words(DEFINITIONS);
        document.lines(has_limit(&summaries).then(|| LIMIT.to_owned()).into_iter().collect());
        let has_partners = campaign.settings.far == RemoteEnd::Gateway;
        document.lines(has_partners.then(|| PARTNERS.to_owned()).into_iter().collect());
        document.remarks(outliers(campaign, &summaries, unit));
    }
    let are_compared = |s: &Summary| s.control.is_some() || (s.repeats > 1 && s.ratio_to_plain.is_some());
    if campaign.baseline.is_some() || summaries.iter().any(are_compared) {
        document.section("Ratios");
        document.table(ratios(&summaries, baseline(campaign).as_deref()));
        document.words(RATIOS);
    }
    document.remarks(incomplete(campaign, unit));
    document.section("Systems");
    let systems = systems::systems(campaign);
    document.texts(systems::described(&systems));
    document.beyond(systems::programs(&systems));
    document.lines(systems::common_buffers(campaign).into_iter().collect());
    document.section("Pairs of the first run at the largest number of clients");
    document.beyond(systems::pairs(campaign));
    document.published(published::SOURCE, published::beside(campaign, &summaries), &[]);
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

/// What was measured until a run broke. One that went past the VPN gives no figure of it, not even
/// an incomplete one.
fn incomplete(campaign: &Campaign, unit: Unit) -> Vec<String> {
    let is_incomplete =
        |run: &&Run| !run.is_whole() && !run.superseded && run.goodput() > 0.0 && run.bypass().is_none();
    let line = |run: &Run| {
        let (communication, goodput) = (unit.figure(run.communication()), unit.figure(run.goodput()));
        format!("{}: incomplete: {communication} {} ({goodput} goodput)", place(run), unit.name())
    };
    campaign.runs.iter().filter(is_incomplete).map(line).collect()
}

/// How often it was measured, of the results that there are: fewer than were asked for where
/// measurements failed, or were never made.
fn times(asked: u32, summaries: &[Summary]) -> String {
    let found = || summaries.iter().map(|summary| summary.repeats);
    match (found().min().unwrap_or(0), found().max().unwrap_or(0)) {
        (1, 1) if asked == 1 => "once".to_owned(),
        (least, most) if least == asked && most == asked => format!("{asked} times, systems taking turns"),
        (least, most) if least == most => format!("{most} of {asked} times, systems taking turns"),
        (least, most) => format!("{least} to {most} of {asked} times, systems taking turns"),
    }
}

fn lead(campaign: &Campaign, summaries: &[Summary]) -> String {
    let s = &campaign.settings;
    let times = times(s.repeats, summaries);
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

/// Runs that are far from the others of their system, one line for each system.
fn outliers(campaign: &Campaign, summaries: &[Summary], unit: Unit) -> Vec<String> {
    let table = campaign.observations();
    let line = |s: &Summary| {
        let show = |rate: f64| format!("{} {}", unit.figure(rate), unit.name());
        let rates = table.values(&s.label, &case(s.clients), GOODPUT);
        far(&format!("{}, {} clients", s.label, s.clients), &rates, show)
    };
    summaries.iter().filter_map(line).collect()
}

/// Whether a gateway had a CPU limit.
fn has_limit(summaries: &[Summary]) -> bool {
    summaries.iter().any(|s| s.gateway_limit_percent.is_some())
}

/// The share of its CPU limit that a gateway used, with a mark if that was not what held it back.
fn of_limit(s: &Summary) -> String {
    format!("{}{}", percent(s.gateway_limit_percent), if s.is_below_limit() { " *" } else { "" })
}

/// The figures of each system at each number of clients.
fn grid(summaries: &[Summary], unit: Unit) -> Grid {
    let has_limit = has_limit(summaries);
    let mut table = Grid::new(
        2,
        [
            "system",
            "clients",
            "n",
            &format!("goodput, {}", unit.name()),
            "fairness",
            "gateway CPU s/Gbit",
            "all CPU s/Gbit",
            "steal",
            "others",
            &format!("communication, {}", unit.name()),
            "gateway CPU",
            "client CPU",
            "busy",
        ],
    );
    table.head.extend(has_limit.then(|| "of the limit".to_owned()));
    for s in summaries {
        // A system that has no processes used no time of theirs.
        let cpu = |value: Option<f64>| optional(value.filter(|_| s.gateway_seconds_per_gbit.is_some()));
        let rate = |spread: Spread| spread.text(|rate| unit.figure(rate));
        let mut row = vec![
            s.label.clone(),
            s.clients.to_string(),
            s.repeats.to_string(),
            rate(s.goodput),
            optional(s.stream_fairness),
            spread(s.gateway_seconds_per_gbit),
            spread(s.vpn_seconds_per_gbit),
            percent(s.steal_percent),
            percent(s.foreign_percent),
            rate(s.communication),
            cpu(s.gateway_cpus),
            cpu(s.client_cpus),
            percent(s.busy_percent),
        ];
        row.extend(has_limit.then(|| of_limit(s)));
        table.rows.push(row);
    }
    table
}

/// How the systems compare with plain routing and the baseline.
fn ratios(summaries: &[Summary], baseline: Option<&str>) -> Grid {
    let mut head: Vec<String> =
        ["system", "clients", "rounds", "A/A", "of plain", "difference"].map(Into::into).into();
    head.extend(baseline.iter().flat_map(|name| [format!("of {name}"), "difference".into()]));
    let mut table = Grid::new(2, head);
    for s in summaries {
        let mut row = vec![s.label.clone(), s.clients.to_string(), s.repeats.to_string(), spread(s.control)];
        row.extend([spread(s.ratio_to_plain), difference(s.differs(s.ratio_to_plain)).to_owned()]);
        if baseline.is_some() {
            row.extend([spread(s.ratio_to_baseline), difference(s.differs(s.ratio_to_baseline)).to_owned()]);
        }
        table.rows.push(row);
    }
    table
}

/// Whether a ratio is a difference, in a word; `None` if nothing says so.
pub(super) fn difference(differs: Option<bool>) -> &'static str {
    match differs {
        Some(true) => "yes",
        Some(false) => "none beyond A/A",
        None => "–",
    }
}

fn spread(spread: Option<Spread>) -> String {
    spread.map_or("–".into(), |spread| spread.text(significant))
}

fn optional(value: Option<f64>) -> String {
    value.map_or("–".into(), significant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;
    use crate::report::chart::markup::assert_well_formed;
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
            "16.3 (16.2–16.5)",
            "0.340 (0.337–0.343)",
            "Jain",
            "did> not come up",
        ] {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
        assert!(!text.contains("Interrupted") && !text.contains("of vpnd"));
    }

    #[test]
    fn another_unit_and_a_baseline_are_shown() {
        let mut campaign = samples::campaign();
        campaign.baseline = Some("vpnd, aes-256-gcm".into());
        campaign.runs[0].facts.version = "vpnd 9".into();
        campaign.runs[0].facts.mtu = Some(1420);
        let text = text(&campaign, Unit::Mbit, true);
        for expected in ["Mbit/s", "16320", "of vpnd", "2.94", "vpnd 9", "MTU 1420"] {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
    }

    #[test]
    fn a_gateway_that_did_not_use_up_its_limit_is_marked_with_a_note() {
        let mut campaign = samples::campaign();
        let of = |campaign: &Campaign| text(campaign, Unit::Gbit, true);
        assert!(!of(&campaign).contains("Of the limit:"), "there is none");
        // All gateways used half a core.
        campaign.environment.gateway_cpu = Some("0.5".parse().unwrap());
        let full = of(&campaign);
        assert!(
            full.contains("Of the limit:") && full.contains("100.0 %") && !full.contains(" % *"),
            "{full}"
        );
        campaign.environment.gateway_cpu = Some("2".parse().unwrap());
        let idle = of(&campaign);
        assert!(idle.contains("25.0 % *") && idle.contains("something else held this system back"), "{idle}");
    }

    #[test]
    fn the_buffers_of_all_systems_are_said_once_if_they_were_set() {
        let mut campaign = samples::campaign();
        assert!(!text(&campaign, Unit::Gbit, true).contains("Buffers:"), "not of a file from before");
        campaign.environment.links = Some(format!("links; {}", crate::system::buffers::METHOD));
        assert_eq!(text(&campaign, Unit::Gbit, true).matches("Buffers: each UDP socket of a VPN").count(), 1);
    }

    #[test]
    fn a_run_that_went_past_the_vpn_shows_its_problem_and_no_figure() {
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
    }

    #[test]
    fn a_run_far_from_the_others_and_a_difference_within_the_control_are_said() {
        let mut campaign = samples::campaign_of(5);
        campaign.runs.retain(|run| run.clients == 2);
        let mut runs = Vec::new();
        for repeat in 1..=5 {
            let bytes = if repeat == 3 { 3_000_000_000 } else { 1_000_000_000 + u64::from(repeat) };
            let mut run = samples::run(Kind::Vpnd, 2, repeat, bytes);
            run.subject = run.subject.map(Subject::again);
            run.label = run.subject.unwrap().label();
            runs.push(run);
        }
        campaign.runs.extend(runs);
        let text = text(&campaign, Unit::Gbit, false);
        let line =
            "Look at vpnd, aes-256-gcm (again), 2 clients: 24.0 Gbit/s is far from the median of 8.00 Gbit/s";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("none beyond A/A") && text.contains("(0.952–2.91)"), "{text}");
    }

    #[test]
    fn the_page_stands_alone_and_holds_pictures_figures_set_up_and_the_publication() {
        let mut campaign = samples::campaign();
        campaign.baseline = Some("vpnd, aes-256-gcm".into());
        campaign.environment.command_line = "trafficspeed compare --clients '2 & 4'".into();
        let page = document(&campaign, Unit::Gbit).page();
        assert_well_formed(&page);
        assert_eq!(page.matches("<svg").count(), 6);
        for expected in [
            "Communication throughput",
            "16.3",
            "0.337–0.343",
            "of vpnd, aes-256-gcm",
            "Congestion control",
            "--clients &#39;2 &amp; 4&#39;",
            "PacketiX",
            "Text for comparison",
        ] {
            assert!(page.contains(expected), "{expected} is missing");
        }
        // The name of SVG's own language is no place to load anything from.
        let page = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for outside in
            ["<script", "<link", "<img", "<iframe", "src=", "href=", "@import", "url(", "http:", "https:"]
        {
            assert!(!page.contains(outside), "the page needs nothing from elsewhere, but has {outside}");
        }
    }

    #[test]
    fn the_lead_says_how_often_it_was_measured_not_how_often_it_was_to_be() {
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

    #[test]
    fn text_from_systems_is_escaped_and_failures_are_shown() {
        let page = document(&samples::campaign(), Unit::Gbit).page();
        assert!(page.contains("vpnd &lt;did&gt; not come up &amp; &quot;died&quot;"));
        assert!(!page.contains("<did>"));
    }

    #[test]
    fn a_page_of_nothing_is_still_a_page() {
        let mut campaign = samples::campaign();
        campaign.runs.clear();
        campaign.interrupted = true;
        let page = document(&campaign, Unit::Gbit).page();
        assert_well_formed(&page);
        assert!(page.contains("Interrupted") && !page.contains("<svg"));
    }
}
