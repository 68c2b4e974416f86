//! The findings of the experiment's authors, as text to compare our own results with. Nothing here
//! is ever a result.

pub mod aead;
pub mod board;
pub mod ipsec;

use serde::Serialize;

use super::pictures::is_plain;
use crate::experiment::outcome::Campaign;
use crate::experiment::outcome::observations::{COMMUNICATION, GOODPUT, case};
use crate::observation::Observations;
use crate::system::{AGAIN, Cipher, Subject};

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
/// measurements say nothing about are left out; on an emulated processor that is all of them.
pub fn compared(campaign: &Campaign) -> Vec<[String; 3]> {
    if campaign.environment.is_emulated() {
        return Vec::new();
    }
    let table = campaign.observations();
    // A second measurement is a control, and no separate system.
    let is_system = |label: &String| !label.contains(AGAIN) && !is_plain(campaign, label);
    let vpns: Vec<String> = campaign.labels().into_iter().filter(is_system).collect();
    let mut rows = Vec::new();
    let mut row = |about: &str, original: &str, found: Vec<String>| {
        if !found.is_empty() {
            rows.push([about.to_owned(), original.to_owned(), found.join("; ")]);
        }
    };
    let curves: Vec<Curve<'_>> = vpns.iter().filter_map(|label| Curve::of(label, campaign, &table)).collect();
    let peaks = curves.iter().map(|curve| format!("{}: {}", curve.label, curve.peak.0));
    row("Clients at which throughput is highest", "8, for every server", peaks.collect());
    let ends = curves.iter().map(|curve| {
        let share = 100.0 * curve.last.1 / curve.peak.1;
        format!("{}: {share:.0} % of its highest at {} clients", curve.label, curve.last.0)
    });
    row("Throughput with more clients than that", "falls, for every server", ends.collect());
    row(
        "Throughput without encryption, as a multiple of that with it",
        "1 to 2",
        unprotected(campaign, &table),
    );
    row(
        "Fastest and slowest VPN at the most clients",
        "PacketiX; OpenVPN",
        extremes(campaign, &vpns, &table),
    );
    rows
}

/// A number of clients, and the communication throughput with them.
type Place = (u32, f64);

/// One system over the numbers of clients.
struct Curve<'a> {
    label: &'a str,
    peak: Place,
    last: Place,
}

impl<'a> Curve<'a> {
    /// `None` unless there are at least two places.
    fn of(label: &'a str, campaign: &Campaign, table: &Observations) -> Option<Self> {
        let place = |clients| Some((clients, table.spread(label, &case(clients), COMMUNICATION)?.median));
        let places: Vec<Place> = campaign.counts().into_iter().filter_map(place).collect();
        let peak = places.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
        (places.len() > 1).then_some(Self { label, peak, last: *places.last()? })
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
fn unprotected(campaign: &Campaign, table: &Observations) -> Vec<String> {
    let subjects = campaign.runs.iter().filter_map(|run| run.subject).filter(|subject| !subject.again);
    let mut subjects: Vec<Subject> = subjects.collect();
    subjects.sort_by_key(|subject| subject.label());
    subjects.dedup();
    let mut lines = Vec::new();
    for bare in subjects.iter().filter(|subject| subject.cipher == Cipher::None) {
        for with in subjects.iter().filter(|s| is_encrypted(s) && is_same_but_for_cipher(**s, *bare)) {
            let labels = (bare.label(), with.label());
            let ratio = |case: String| Some(table.ratio((&labels.0, &labels.1), &case, GOODPUT)?.median);
            let ratios = campaign.cases().into_iter().filter_map(ratio).filter(|ratio| ratio.is_finite());
            if let Some((low, high)) = crate::stats::range(&ratios.collect::<Vec<_>>()) {
                lines.push(format!("{}: {low:.2} to {high:.2}", with.label()));
            }
        }
    }
    lines
}

/// Among those that encrypt and authenticate, where the systems are known.
fn extremes(campaign: &Campaign, vpns: &[String], table: &Observations) -> Vec<String> {
    let protects = |label: &&String| {
        let run = campaign.runs.iter().find(|run| run.label == **label);
        run.and_then(|run| run.subject).is_none_or(|subject| subject.cipher.protects())
    };
    let at = |case: String| -> Vec<(f64, String)> {
        let goodput = |label: &String| Some((table.spread(label, &case, GOODPUT)?.median, label.clone()));
        vpns.iter().filter(protects).filter_map(goodput).collect()
    };
    let mut most_first = campaign.cases().into_iter().rev().map(at);
    let mut last = most_first.find(|found| !found.is_empty()).unwrap_or_default();
    last.sort_by(|a, b| b.0.total_cmp(&a.0));
    match &last[..] {
        [fastest, .., slowest] => vec![fastest.1.clone(), slowest.1.clone()],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::{Run, samples};
    use crate::system::{Kind, Priority};

    #[test]
    fn published_findings_are_compared_with_our_curves() {
        let mut campaign = samples::campaign();
        for clients in [2, 4] {
            let mut bare = samples::run(Kind::Vpnd, clients, 1, 1_530_000_000);
            bare.subject = Some(Subject::new(Kind::Vpnd, Cipher::None));
            bare.label = "vpnd, no encryption".into();
            campaign.runs.push(bare);
        }
        let rows = compared(&campaign);
        let measured: Vec<&str> = rows.iter().map(|row| row[2].as_str()).collect();
        assert_eq!(
            measured,
            [
                "vpnd, aes-256-gcm: 8; vpnd, no encryption: 4",
                "vpnd, aes-256-gcm: 100 % of its highest at 8 clients; \
                 vpnd, no encryption: 100 % of its highest at 4 clients",
                "vpnd, aes-256-gcm: 1.51 to 1.51",
            ],
            "one VPN at the most clients is neither the fastest nor the slowest"
        );
    }

    #[test]
    fn encryption_is_compared_with_none_of_the_same_system() {
        let mut campaign = samples::campaign();
        campaign.runs.clear();
        let with = |cipher, priority| Subject { priority, ..Subject::new(Kind::Vpnd, cipher) };
        for (subject, bytes) in [
            (with(Cipher::None, Priority::Own), 6_000_000),
            (with(Cipher::Aes256Gcm, Priority::Own), 4_000_000),
            (with(Cipher::Aes256Gcm, Priority::Own).again(), 5_000_000),
            (with(Cipher::AuthOnly, Priority::Own), 1_000_000),
            (with(Cipher::None, Priority::Same), 3_000_000),
            (with(Cipher::Aes256Gcm, Priority::Same), 1_500_000),
        ] {
            let mut run = samples::run(Kind::Vpnd, 2, 1, bytes);
            (run.subject, run.label) = (Some(subject), subject.label());
            campaign.runs.push(run);
        }
        let lines = unprotected(&campaign, &campaign.observations());
        let expected = ["vpnd, aes-256-gcm: 1.50 to 1.50", "vpnd, aes-256-gcm, no priority: 2.00 to 2.00"];
        assert_eq!(lines, expected);
    }

    #[test]
    fn neither_a_control_nor_what_protects_nothing_is_the_fastest() {
        let mut campaign = samples::campaign();
        campaign.runs.clear();
        let vpnd = Subject::new(Kind::Vpnd, Cipher::Aes256Gcm);
        let openvpn = Subject::new(Kind::Openvpn, Cipher::Auto);
        let bare = Subject::new(Kind::Vpnd, Cipher::None);
        for (subject, bytes) in
            [(vpnd, 3_000_000), (openvpn, 1_000_000), (vpnd.again(), 4_000_000), (bare, 9_000_000)]
        {
            let run = samples::run(subject.kind, 8, 1, bytes);
            campaign.runs.push(Run { subject: Some(subject), label: subject.label(), ..run });
        }
        let rows = compared(&campaign);
        let extremes = rows.iter().find(|row| row[0].starts_with("Fastest and slowest")).expect("a row");
        assert_eq!(extremes[2], "vpnd, aes-256-gcm; OpenVPN");
    }

    #[test]
    fn nothing_measured_answers_nothing() {
        let mut campaign = samples::campaign();
        campaign.runs.retain(|run| run.label == "plain routing");
        assert_eq!(compared(&campaign), [[""; 3]; 0]);
    }
}
