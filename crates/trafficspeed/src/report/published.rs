//! The findings of the experiment's authors, as text to compare our own results with. Nothing here
//! is ever a result.

pub mod aead;
pub mod board;
pub mod ipsec;

use serde::Serialize;

use super::pictures::is_plain;
use crate::experiment::outcome::Campaign;
use crate::experiment::outcome::observations::{COMMUNICATION, GOODPUT, case};
use crate::observation::{Observations, Quantity};
use crate::stats::{CLAIM_ROUNDS, Spread, distinct, range};
use crate::system::{AGAIN, Cipher, Priority, Subject};

/// A table of published figures.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    /// The columns, with units.
    pub caption: &'static str,
    /// The head of each column.
    pub head: &'static [&'static str],
    pub rows: &'static [&'static [&'static str]],
}

pub const SOURCE: &str = "Sato, Nakai, Yamaguchi, Itano (University of Tsukuba), 2006: Performance measurement \
experiments for a development of a high-performance and flexible network resource allocable VPN system";

/// The set-up and findings, one sentence each.
pub const FINDINGS: [&str; 5] = [
    "One VPN server and 2 to N clients on a switch; 32 TCP connections per pair of clients, half each way, random \
     data, all pairs at once for 60 s; with and without encryption.",
    "PacketiX VPN 2.0, OpenVPN 2.0 (UDP) and MS-PPTP on a 64-bit Opteron 270 with 10 Gbit Ethernet and a 32-bit \
     Xeon 3.2 GHz, on Windows and Linux.",
    "Without encryption, throughput was 1 to 2 times that with encryption.",
    "Every curve peaked at 8 clients and then fell: the overhead of managing sessions grows with the clients.",
    "PacketiX was the fastest everywhere, OpenVPN the slowest.",
];

/// Each finding that can be compared: what it is about, then, and here. Findings that these
/// measurements say nothing about are left out: of fewer rounds than a claim takes, or disturbed,
/// which on an emulated processor all of them are.
pub fn compared(campaign: &Campaign) -> Vec<[String; 3]> {
    let table = campaign.observations();
    // A second measurement is a control, and no separate system.
    let is_system = |label: &String| !label.contains(AGAIN) && !is_plain(campaign, label);
    let vpns: Vec<String> = campaign.labels().into_iter().filter(is_system).collect();
    let mut counts = campaign.counts();
    counts.retain(|&clients| !table.is_disturbed(&case(clients)));
    let cases: Vec<String> = counts.iter().copied().map(case).collect();
    let mut rows = Vec::new();
    let mut row = |about: &str, original: &str, found: Vec<String>| {
        if !found.is_empty() {
            rows.push([about.to_owned(), original.to_owned(), found.join("; ")]);
        }
    };
    let curve = |label| Curve::of(label, &campaign.settings.congestion.to_string(), &counts, &table);
    let curves: Vec<Curve<'_>> = vpns.iter().filter_map(|label| curve(label)).collect();
    let peaks = curves.iter().map(|curve| {
        let peak = if curve.falls { curve.peak.to_string() } else { "none shown".to_owned() };
        format!("{}: {peak}", curve.label)
    });
    row("Clients at which throughput is highest", "8, for every server", peaks.collect());
    let ends = curves.iter().map(|curve| {
        let share = curve.share.scaled(0.01).text(|percent| format!("{percent:.0}"));
        let shown = if curve.falls { "" } else { ", no difference beyond A/A" };
        format!("{}: {share} % of its highest at {} clients{shown}", curve.label, curve.last)
    });
    row("Throughput with more clients than that", "falls, for every server", ends.collect());
    row(
        "Throughput without encryption, as a multiple of that with it",
        "1 to 2",
        unprotected(campaign, &cases, &table),
    );
    row(
        "Fastest and slowest VPN at the most clients, each if it differs from the next by more than A/A",
        "PacketiX and OpenVPN",
        extremes(campaign, &vpns, &cases, &table),
    );
    rows
}

/// The values of a case if they are enough to claim something.
fn claimable(table: &Observations, label: &str, case: &str, quantity: Quantity) -> Option<Spread> {
    table.spread(label, case, quantity).filter(|found| found.n >= CLAIM_ROUNDS)
}

/// The communication throughput of one system over the numbers of clients.
struct Curve<'a> {
    label: &'a str,
    /// The clients with which it is highest, and the most.
    peak: u32,
    last: u32,
    /// Throughput with the most clients divided by the highest, and whether that is a difference.
    share: Spread,
    falls: bool,
}

impl<'a> Curve<'a> {
    /// `None` unless two numbers of clients or more can be compared.
    fn of(label: &'a str, congestion: &str, counts: &[u32], table: &Observations) -> Option<Self> {
        let median = |clients| Some(claimable(table, label, &case(clients), COMMUNICATION)?.median);
        let places: Vec<(u32, f64)> =
            counts.iter().filter_map(|&clients| Some((clients, median(clients)?))).collect();
        let &[_, .., (last, _)] = &places[..] else { return None };
        let (peak, _) = places.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let [of_peak, of_last] = [peak, last].map(case);
        let share = table.ratio_of((label, &of_last), (label, &of_peak), COMMUNICATION)?;
        let same = |case: &str| table.control(congestion, label, case, COMMUNICATION);
        let falls = share.differs_beyond(same(&of_peak)?)? && share.differs_beyond(same(&of_last)?)?;
        Some(Self { label, peak, last, share, falls })
    }
}

/// Whether two lines of a report differ in nothing but their ciphers.
fn is_same_but_for_cipher(one: Subject, other: Subject) -> bool {
    Subject { cipher: other.cipher, ..one } == other
}

/// Whether packets are encrypted, which authentication alone does not.
fn is_encrypted(subject: &Subject) -> bool {
    !matches!(subject.cipher, Cipher::None | Cipher::AuthOnly)
}

/// For each system that was measured with and without encryption and all else the same, the lowest
/// and highest ratio over the clients. The second measurement of a system is its control, and no
/// separate system.
fn unprotected(campaign: &Campaign, cases: &[String], table: &Observations) -> Vec<String> {
    let subjects = campaign.runs.iter().filter_map(|run| run.subject).filter(|subject| !subject.again);
    let mut subjects: Vec<Subject> = subjects.collect();
    subjects.sort_by_key(|subject| subject.label());
    subjects.dedup();
    let mut lines = Vec::new();
    for bare in subjects.iter().filter(|subject| subject.cipher == Cipher::None) {
        for with in subjects.iter().filter(|s| is_encrypted(s) && is_same_but_for_cipher(**s, *bare)) {
            let labels = (bare.label(), with.label());
            let ratio = |case: &String| table.ratio((&labels.0, &labels.1), case, GOODPUT);
            let ratios = cases.iter().filter_map(ratio).filter(|ratio| ratio.n >= CLAIM_ROUNDS);
            if let Some((low, high)) = range(&ratios.map(|ratio| ratio.median).collect::<Vec<_>>()) {
                lines.push(format!("{}: {low:.2} to {high:.2}", with.label()));
            }
        }
    }
    lines
}

/// The fastest and the slowest of the VPNs that encrypt and authenticate, where they are known,
/// with the same share of the CPU and the same priority. A system that takes no priority has a
/// place in both.
fn extremes(campaign: &Campaign, vpns: &[String], cases: &[String], table: &Observations) -> Vec<String> {
    let all = vpns.iter().map(|label| (label.as_str(), campaign.subject(label)));
    let all: Vec<(&str, Option<Subject>)> =
        all.filter(|(_, system)| system.is_none_or(|system| system.cipher.protects())).collect();
    let taken = |system: Option<Subject>| {
        system.filter(|system| system.kind.profile().has_priority).map(|system| system.priority)
    };
    let mut priorities = distinct(all.iter().filter_map(|(_, system)| taken(*system)));
    priorities.extend(priorities.is_empty().then_some(Priority::Own));
    let share = |system: Option<Subject>| system.and_then(|system| system.gateway_cpu);
    let mut lines = Vec::new();
    for gateway_cpu in distinct(all.iter().map(|(_, system)| share(*system))) {
        for priority in &priorities {
            let is_alike = |(_, system): &&(&str, Option<Subject>)| {
                share(*system) == gateway_cpu && taken(*system).is_none_or(|own| own == *priority)
            };
            let labels: Vec<&str> = all.iter().filter(is_alike).map(|(label, _)| *label).collect();
            lines.extend(fastest_and_slowest(campaign, &labels, cases, table));
        }
    }
    lines
}

/// With the most clients; each is named if it differs from the next one.
fn fastest_and_slowest(
    campaign: &Campaign,
    labels: &[&str],
    cases: &[String],
    table: &Observations,
) -> Option<String> {
    let congestion = campaign.settings.congestion.to_string();
    let median = |label: &str, case: &str| Some(claimable(table, label, case, GOODPUT)?.median);
    let case = cases.iter().rev().find(|case| labels.iter().any(|label| median(label, case).is_some()))?;
    let medians = labels.iter().filter_map(|label| Some((median(label, case)?, *label)));
    let mut found: Vec<(f64, &str)> = medians.collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let named = |(_, label): (f64, &str), (_, next): (f64, &str)| {
        let ratio = table.ratio((label, next), case, GOODPUT);
        let same = table.control(&congestion, label, case, GOODPUT);
        let differs = table.judged((label, next), case, GOODPUT, ratio.zip(same));
        if differs == Some(true) { label.to_owned() } else { "none shown".to_owned() }
    };
    let (&[first, second, ..], &[.., before, last]) = (&found[..], &found[..]) else { return None };
    Some(format!("{} and {}", named(first, second), named(last, before)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::{Run, samples};
    use crate::system::Kind;

    const VPND: Subject = Subject::new(Kind::Vpnd, Cipher::Aes256Gcm);

    /// Five rounds of each system with 2, 4 and 8 clients, in multiples of the same throughput; of
    /// the first also the control.
    fn campaign(systems: &[(Subject, [u64; 3])]) -> Campaign {
        let mut campaign = samples::campaign();
        campaign.runs.clear();
        let (first, of_first) = systems[0];
        for (subject, throughputs) in systems.iter().copied().chain([(first.again(), of_first)]) {
            for (clients, throughput) in [2, 4, 8].into_iter().zip(throughputs) {
                for repeat in 1..=5 {
                    let bytes = throughput * 1_000_000 / u64::from(clients);
                    let run = samples::run(subject.kind, clients, repeat, bytes);
                    campaign.runs.push(Run { subject: Some(subject), label: subject.label(), ..run });
                }
            }
        }
        campaign
    }

    fn measured(campaign: &Campaign) -> Vec<String> {
        compared(campaign).into_iter().map(|[_, _, measured]| measured).collect()
    }

    #[test]
    fn published_findings_are_compared_with_our_curves() {
        let bare = Subject { cipher: Cipher::None, ..VPND };
        let systems = [(VPND, [60, 100, 80]), (bare, [90, 150, 160])];
        assert_eq!(
            measured(&campaign(&systems)),
            [
                "vpnd, aes-256-gcm: 4; vpnd, no encryption: none shown",
                "vpnd, aes-256-gcm: 80 (80–80) % of its highest at 8 clients; \
                 vpnd, no encryption: 100 (100–100) % of its highest at 8 clients, no difference beyond A/A",
                "vpnd, aes-256-gcm: 1.50 to 2.00",
            ],
            "one VPN at the most clients is neither the fastest nor the slowest"
        );
    }

    #[test]
    fn no_peak_is_named_of_few_rounds_of_disturbed_cases_or_within_the_control() {
        let whole = campaign(&[(VPND, [60, 100, 80])]);
        let peak = |campaign: &Campaign| measured(campaign).first().cloned();
        assert_eq!(peak(&whole).as_deref(), Some("vpnd, aes-256-gcm: 4"));
        let mut few = whole.clone();
        few.runs.retain(|run| run.repeat < 5);
        assert_eq!(compared(&few), [[""; 3]; 0]);
        let mut disturbed = whole.clone();
        disturbed.runs[5].disturbance = Some("other processes used 30 % of the machine".into());
        assert_eq!(disturbed.runs[5].clients, 4);
        assert_eq!(peak(&disturbed).as_deref(), Some("vpnd, aes-256-gcm: none shown"), "of 2 and 8 clients");
        let mut noisy = whole;
        let control = noisy.runs.last_mut().expect("that with 8 clients");
        *control = Run {
            subject: control.subject,
            label: control.label.clone(),
            ..samples::run(Kind::Vpnd, 8, 5, 20_000_000)
        };
        assert_eq!(peak(&noisy).as_deref(), Some("vpnd, aes-256-gcm: none shown"));
    }

    #[test]
    fn encryption_is_compared_with_none_of_the_same_system() {
        let with = |cipher, priority| Subject { cipher, priority, ..VPND };
        let campaign = campaign(&[
            (with(Cipher::Aes256Gcm, Priority::Own), [4; 3]),
            (with(Cipher::None, Priority::Own), [6; 3]),
            (with(Cipher::AuthOnly, Priority::Own), [1; 3]),
            (with(Cipher::None, Priority::Same), [3; 3]),
            (with(Cipher::Aes256Gcm, Priority::Same), [2; 3]),
        ]);
        let lines = unprotected(&campaign, &campaign.cases(), &campaign.observations());
        let expected = ["vpnd, aes-256-gcm: 1.50 to 1.50", "vpnd, aes-256-gcm, no priority: 1.50 to 1.50"];
        assert_eq!(lines, expected);
    }

    #[test]
    fn the_fastest_and_the_slowest_protect_and_have_one_share_and_one_priority() {
        let [openvpn, wireguard] =
            [Kind::Openvpn, Kind::WireguardGo].map(|kind| Subject::new(kind, Cipher::Auto));
        let mut systems = vec![
            (VPND, [90; 3]),
            (Subject { priority: Priority::Same, ..VPND }, [40; 3]),
            (wireguard, [50; 3]),
            (openvpn, [10; 3]),
            (Subject { cipher: Cipher::None, ..VPND }, [200; 3]),
            (Subject { gateway_cpu: "0.5".parse().ok(), ..VPND }, [100; 3]),
        ];
        let extremes = |campaign: &Campaign| measured(campaign).pop();
        let expected = "vpnd, aes-256-gcm and OpenVPN; wireguard-go and OpenVPN";
        assert_eq!(extremes(&campaign(&systems)).as_deref(), Some(expected), "of each priority");
        systems[2].1 = [90; 3];
        let expected = "none shown and OpenVPN; wireguard-go and OpenVPN";
        assert_eq!(extremes(&campaign(&systems)).as_deref(), Some(expected), "two are equal");
    }

    #[test]
    fn nothing_measured_answers_nothing() {
        let mut campaign = samples::campaign_of(5);
        campaign.runs.retain(|run| run.label == "plain routing");
        assert_eq!(compared(&campaign), [[""; 3]; 0]);
    }
}
