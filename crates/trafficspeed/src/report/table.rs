//! The tables for people.

use std::fmt::Write as _;

use super::grid::Grid;
use super::headline;
use super::noise::{far, percent};
use super::problems::{place, problems};
use super::summary::{Summary, baseline, labels, summarise};
use crate::experiment::outcome::observations::{GOODPUT, case};
use crate::experiment::outcome::{Campaign, RemoteEnd};
use crate::stats::Spread;
use crate::unit::Unit;
use crate::unit::significant;

/// Stands below every table.
pub const DEFINITIONS: &str = "\
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
pub const LIMIT: &str = "\
Of the limit: CPU time of the gateway's VPN processes, in percent of what --gateway-cpu gave them. * Less than 90 %: \
something else held this system back, so its figure is not what it makes of so much CPU time.";

/// Stands below a table of ratios.
pub const RATIOS: &str = "\
Ratios of goodput, each formed within one round at one number of clients; median, lowest and highest of the rounds in \
parentheses.
A/A: a system that is measured a second time in each round, against itself: what such a comparison shows where there \
is no difference.
A difference counts where the median lies further from 1 than any ratio of A/A did, and all rounds went the same way.";

/// The results of a campaign as text, throughput in `unit`, tables at most so wide.
pub fn table(campaign: &Campaign, unit: Unit, width: Option<usize>) -> String {
    let summaries = summarise(campaign);
    let mut text = String::new();
    let mut say = |line: &str| writeln!(text, "{line}").expect("writing to a string");
    headline::sentences(campaign).iter().for_each(|line| say(line));
    if !summaries.is_empty() {
        say(&grid(&summaries, unit).text(width));
        say(DEFINITIONS);
        if has_limit(&summaries) {
            say(LIMIT);
        }
        if campaign.settings.far == RemoteEnd::Gateway {
            say(PARTNERS);
        }
    }
    let are_compared = |s: &Summary| s.control.is_some() || (s.repeats > 1 && s.ratio_to_plain.is_some());
    let baseline = baseline(campaign);
    if campaign.baseline.is_some() || summaries.iter().any(are_compared) {
        say(&ratios(&summaries, baseline.as_deref()).text(width));
        say(RATIOS);
    }
    outliers(campaign, &summaries, unit).iter().for_each(|line| say(line));
    for label in labels(campaign) {
        if let Some(facts) = facts_line(campaign, &label) {
            say(&facts);
        }
    }
    super::systems::common_buffers(campaign).iter().for_each(|line| say(line));
    // A run that went past the VPN gives no figure of it, not even an incomplete one.
    let incomplete = |run: &&_| !is_shown(run) && run.goodput() > 0.0 && run.bypass().is_none();
    for run in campaign.runs.iter().filter(incomplete) {
        let (communication, goodput) = (unit.figure(run.communication()), unit.figure(run.goodput()));
        say(&format!("{}: incomplete: {communication} {} ({goodput} goodput)", place(run), unit.name()));
    }
    problems(campaign).iter().for_each(|problem| say(problem));
    if campaign.interrupted {
        say("Interrupted: the figures are of what was measured until then.");
    }
    text
}

/// Runs that are far from the others of their system, one line for each system.
pub fn outliers(campaign: &Campaign, summaries: &[Summary], unit: Unit) -> Vec<String> {
    let table = campaign.observations();
    let line = |s: &Summary| {
        let show = |rate: f64| format!("{} {}", unit.figure(rate), unit.name());
        let rates = table.values(&s.label, &case(s.clients), GOODPUT);
        far(&format!("{}, {} clients", s.label, s.clients), &rates, show)
    };
    summaries.iter().filter_map(line).collect()
}

/// Whether a run's figure is in the table, or in that of another attempt.
fn is_shown(run: &crate::experiment::outcome::Run) -> bool {
    run.is_whole() || run.superseded
}

/// Version, ciphers and MTU of a system that ran.
fn facts_line(campaign: &Campaign, label: &str) -> Option<String> {
    let systems = super::systems::systems(campaign);
    let system = systems.iter().find(|system| system.label == label)?;
    let mtu = system.mtu.iter().map(|mtu| format!("MTU {mtu}"));
    let cipher = (!system.cipher.is_empty()).then(|| format!("cipher {}", system.cipher));
    let version = Some(system.version.clone()).filter(|version| !version.is_empty());
    let facts: Vec<String> = version.into_iter().chain(cipher).chain(mtu).collect();
    (!facts.is_empty()).then(|| format!("{label}: {}", facts.join(", ")))
}

/// Whether a gateway had a CPU limit.
pub(super) fn has_limit(summaries: &[Summary]) -> bool {
    summaries.iter().any(|s| s.gateway_limit_percent.is_some())
}

/// The share of its CPU limit that a gateway used, with a mark if that was not what held it back.
fn of_limit(s: &Summary) -> String {
    format!("{}{}", percent(s.gateway_limit_percent), if s.is_below_limit() { " *" } else { "" })
}

/// The figures of each system at each number of clients.
pub fn grid(summaries: &[Summary], unit: Unit) -> Grid {
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
pub fn ratios(summaries: &[Summary], baseline: Option<&str>) -> Grid {
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
    use crate::report::grid::NARROW;
    use crate::system::{Kind, Subject};

    #[test]
    fn the_table_holds_medians_spread_ratios_definitions_and_failures() {
        let text = table(&samples::campaign(), Unit::Gbit, Some(NARROW));
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
    fn what_a_system_does_not_say_of_itself_is_left_out() {
        let mut campaign = samples::campaign();
        for run in &mut campaign.runs {
            (run.facts.version, run.facts.cipher, run.facts.mtu) = (String::new(), String::new(), None);
        }
        assert_eq!(facts_line(&campaign, "plain routing"), None);
        campaign.runs.iter_mut().for_each(|run| run.facts.mtu = Some(1_420));
        assert_eq!(facts_line(&campaign, "plain routing").as_deref(), Some("plain routing: MTU 1420"));
        campaign.runs.iter_mut().for_each(|run| run.facts.cipher = "aes-128-gcm".into());
        let line = facts_line(&campaign, "plain routing");
        assert_eq!(line.as_deref(), Some("plain routing: cipher aes-128-gcm, MTU 1420"));
    }

    #[test]
    fn another_unit_and_a_baseline_are_shown() {
        let mut campaign = samples::campaign();
        campaign.baseline = Some("vpnd, aes-256-gcm".into());
        campaign.runs[0].facts.version = "vpnd 9".into();
        campaign.runs[0].facts.mtu = Some(1420);
        let text = table(&campaign, Unit::Mbit, None);
        for expected in ["Mbit/s", "16320", "of vpnd", "2.94", "vpnd 9", "MTU 1420"] {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
    }

    #[test]
    fn a_gateway_that_did_not_use_up_its_limit_is_marked_with_a_note() {
        let mut campaign = samples::campaign();
        let of = |campaign: &Campaign| table(campaign, Unit::Gbit, None);
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
        assert!(!table(&campaign, Unit::Gbit, None).contains("Buffers:"), "not of a file from before");
        campaign.environment.links = Some(format!("links; {}", crate::system::buffers::METHOD));
        assert_eq!(
            table(&campaign, Unit::Gbit, None).matches("Buffers: each UDP socket of a VPN").count(),
            1
        );
    }

    #[test]
    fn a_run_that_went_past_the_vpn_shows_its_problem_and_no_figure() {
        let mut campaign = samples::campaign();
        campaign.runs.truncate(1);
        campaign.runs[0].carried[0].tunnel.sent.bytes = 0;
        let text = table(&campaign, Unit::Gbit, Some(NARROW));
        assert!(text.contains("only 75 % of the bytes went through the tunnel"), "{text}");
        assert!(!text.contains("Gbit/s"), "{text}");
    }

    #[test]
    fn nothing_measured_is_said_without_an_empty_table() {
        let mut campaign = samples::campaign();
        campaign.runs.retain(|run| run.error.is_some());
        campaign.interrupted = true;
        let text = table(&campaign, Unit::Gbit, Some(NARROW));
        assert!(!text.contains("communication") && text.contains("Interrupted"), "{text}");
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
        let text = table(&campaign, Unit::Gbit, Some(NARROW));
        let line =
            "Look at vpnd, aes-256-gcm (again), 2 clients: 24.0 Gbit/s is far from the median of 8.00 Gbit/s";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("none beyond A/A") && text.contains("(0.952–2.91)"), "{text}");
    }
}
