//! The report of a suite: one table for each of its parts, with a row for each system, and what was
//! published.

mod conditions;
pub mod findings;
pub mod grouped;
pub mod pictures;
mod section;
pub mod sweep;

use super::document::Document;
use super::grid::Grid;
use super::noise::TAKEN;
use super::published::{self, Figures as Published};
use crate::experiment::suite::SuiteCampaign;
use crate::experiment::suite::aead::{self, Verdict};
use crate::observation::Comparison;
use crate::stats::{Spread, distinct};
use crate::system::vpnd::Code;
use crate::unit::significant;

pub use section::{Cell, Section, SectionRow, sections};

/// Stands below the tables.
const DEFINITIONS: &str = "\
Medians of n runs, the lowest and the highest in parentheses.
A/A: a system that is measured a second time in each round / its first measurement: what a comparison shows \
where there is no difference. ≈: no difference from the first system beyond A/A, or not in all rounds.
≥: the sender could not send more in at least one of the runs, so the path carries at least that: UDP that left at less than \
the rate asked for or as fast as possible without more loss than allowed, TCP whose sender used 95 % of its threads' CPU time (in the lab only).
Throughput is payload that arrived.
The other end is where each load is received.
Lost: of the messages that were sent; delivered: of those that the rate asked for.
Loss, jitter (RFC 3550) and one-way delay by number and time stamp of each message, of the live video from when it was due; the \
lab has one clock.
Delay variation: the difference of every two neighbouring messages' delays (RFC 3393), as distribution; jitter is its \
smoothed value at the end.
Flow completion: from the first packet of a TCP connection's handshake to the last byte of the answer. IMIX: UDP whose IPv4 \
packets have 64, 576 and 1,400 bytes, 7 to 4 to 1.
UDP without a rate is measured at the highest rate that a search found to be carried.
Only what the kernel's counters saw in the tunnel counts.
Where only a cipher is named, the system is vpnd.
Between real hosts clocks are compared before each measurement, and a system is what the user called the network \
between them.";

/// The published findings that this experiment repeats, if it repeats one.
fn published(campaign: &SuiteCampaign) -> Option<(&'static str, &'static [Published])> {
    match campaign.name.as_str() {
        "aead" => Some((published::aead::SOURCE, &published::aead::FIGURES)),
        "ipsec" => Some((published::ipsec::SOURCE, &published::ipsec::FIGURES)),
        _ => None,
    }
}

/// How the choice of vpnd turned out, in one sentence each.
pub fn sentences(verdicts: &[Verdict]) -> Vec<String> {
    let mbit = |value: Option<Spread>| {
        value.map_or_else(|| "not measured".into(), |mbit| format!("{} Mbit/s", mbit.text(significant)))
    };
    let sentence = |verdict: &Verdict| {
        let machine = if verdict.code == Code::Native {
            "With this CPU's instructions"
        } else {
            "Without AES instructions"
        };
        let fastest = verdict.fastest.as_deref().unwrap_or("none");
        let right = match verdict.right {
            Some(true) if verdict.chosen.starts_with(fastest) => "right: the fastest",
            Some(true) => "right: none is faster beyond A/A",
            Some(false) => "wrong",
            None => "not judged: too few measurements, no A/A, or a disturbed machine",
        };
        format!(
            "{machine} vpnd chose {} by itself ({}); fastest: {fastest} ({}); {right}.",
            verdict.chosen,
            mbit(verdict.chosen_mbit),
            mbit(verdict.fastest_mbit)
        )
    };
    verdicts.iter().map(sentence).collect()
}

/// The load average with CPU hogs.
pub fn load_averages(campaign: &SuiteCampaign) -> Option<String> {
    let loads: Vec<f64> = campaign.rows.iter().filter_map(|row| row.load_average).collect();
    let spread = Spread::of(&loads)?;
    let hogs = campaign.rows.iter().map(|row| row.case.hogs).max().unwrap_or_default();
    let text = spread.text(|load| format!("{load:.2}"));
    Some(format!(
        "When measurements with {hogs} CPU hogs began, the machine's load average of the last minute was {text}."
    ))
}

/// The verdicts of a campaign that asks for them.
pub fn verdicts(campaign: &SuiteCampaign) -> Vec<Verdict> {
    if campaign.name == "aead" { aead::verdicts(campaign) } else { Vec::new() }
}

/// The report of a campaign.
pub fn document(campaign: &SuiteCampaign) -> Document<'_> {
    let title = format!("trafficspeed suite {}", campaign.name);
    let mut document =
        Document::new(&title, "trafficspeed suite", campaign.about.clone(), &campaign.environment);
    (document.interrupted, document.problems) = (campaign.interrupted, campaign.problems());
    let sections = sections(campaign);
    let judged = sections.iter().flat_map(Section::comparisons).map(|one| one.differs_from_first);
    document.lines(super::claims::lines([&campaign.observations()], judged));
    let choices = sentences(&verdicts(campaign)).into_iter().chain(load_averages(campaign));
    document.lines(choices.chain(conditions::all(campaign)).collect());
    for (section, number) in sections.iter().zip(1..) {
        document.section(&section.name);
        document.table(section.grid());
        if campaign.name == "aead" {
            document.lines(vec!["In the original's form: means of all runs, Mbit/s.".to_owned()]);
            document.table(section.means());
        }
        document.remarks(section.remarks());
        document.pictures(pictures::drawn(campaign, section, number));
    }
    document.words(DEFINITIONS);
    document.words(TAKEN);
    document.section("Systems");
    document.texts(systems(campaign));
    if let Some((source, tables)) = published(campaign) {
        document.published(source, findings::compared(&sections), tables);
    }
    document
}

/// The description that each system gave of itself.
fn systems(campaign: &SuiteCampaign) -> Grid {
    let head = ["system", "version", "cipher", "MTU of the links", "MTU of the tunnel", "notes"];
    let mut grid = Grid::new(1, head);
    let up = campaign.stages.iter().filter(|stage| stage.error.is_none());
    grid.rows = distinct(up.map(|stage| {
        let (facts, mtu) = (&stage.facts, |mtu: Option<u32>| mtu.map_or("–".into(), |mtu| mtu.to_string()));
        let (version, cipher) = (facts.version.clone(), facts.cipher.clone());
        let mtus = [stage.link_mtu, facts.mtu].map(mtu);
        let row: Vec<String> = [stage.label.clone(), version, cipher].into_iter().chain(mtus).collect();
        [row, vec![facts.notes.join("; ")]].concat()
    }));
    grid
}

/// Each system compared with the first of its section.
pub fn comparisons(campaign: &SuiteCampaign) -> Vec<Comparison> {
    sections(campaign).iter().flat_map(Section::comparisons).cloned().collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::experiment::environment::Environment;
    use crate::experiment::figures::{Figures, Point};
    use crate::experiment::generate::SearchOutcome;
    use crate::experiment::pair_run::Times;
    use crate::experiment::suite::{Case, Quantity, Row, StageInfo};
    use crate::experiment::testbed::RemoteEnd;

    use crate::load::task::Task;
    use crate::load::tcp::Job;
    use crate::report::observed;
    use crate::stats::five;
    use crate::system::{Cipher, Kind, Subject};

    fn row(label: &str, name: &str, repeat: u32, mbit: f64) -> Row {
        let second = Duration::from_secs(1);
        let job = Job { write_bytes: 1, ..Job::default() };
        let point = |end| Point { end, received_bits_per_second: mbit * 1e6, ..Point::default() };
        let case = Case {
            section: "One TCP transfer over time".into(),
            name: name.into(),
            task: Task::Bulk(job),
            ip: 4,
            quantities: vec![Quantity::Throughput, Quantity::Loss],
            hogs: 0,
            search: None,
            times: Times { warmup: second, duration: second, interval: second },
        };
        let figures = Figures {
            received_bits_per_second: mbit * 1e6,
            lost_percent: Some(0.5),
            series: vec![point(1.0), point(2.0), point(3.0)],
            ..Figures::default()
        };
        let (subject, figures) = (Subject::new(Kind::Vpnd, Cipher::Aes256Gcm), Some(figures));
        let row = Row::new(label.into(), &case, repeat);
        Row { subject: Some(subject), link_mtu: Some(1500), figures, ..row }
    }

    pub(crate) fn campaign() -> SuiteCampaign {
        let mut broken = row("aes-256-gcm", "IPv6", 2, 900.0);
        broken.error = Some("c1: <gone>".into());
        SuiteCampaign {
            name: "ipsec".into(),
            about: "What protection costs.".into(),
            far: Some(RemoteEnd::Gateway),
            repeats: 2,
            environment: Environment::default(),
            stages: vec![StageInfo { label: "aes-256-gcm".into(), ..StageInfo::default() }],
            rows: vec![
                row("plain routing", "IPv4", 1, 100.0),
                row("aes-256-gcm", "IPv4", 1, 40.0),
                row("aes-256-gcm", "IPv4", 2, 50.0),
                row("aes-256-gcm", "IPv6", 1, 30.0),
                broken,
            ],
            interrupted: false,
        }
    }

    #[test]
    fn each_system_has_a_row_and_broken_runs_do_not_count() {
        let mut loaded = campaign();
        assert_eq!(load_averages(&loaded), None);
        for (row, load) in loaded.rows.iter_mut().zip([1.9, 2.0]) {
            (row.case.hogs, row.load_average) = (2, Some(load));
        }
        assert!(load_averages(&loaded).unwrap().ends_with(
            "with 2 CPU hogs began, the machine's load average of the last minute was 1.95 (1.90–2.00)."
        ));
        let sections = sections(&campaign());
        assert_eq!(
            (sections.len(), &sections[0].columns[..]),
            (1, &["plain routing".into(), "aes-256-gcm".into()][..])
        );
        let rows = sections[0].grid().rows;
        assert_eq!(rows[0][..2], ["plain routing", "100"]);
        assert_eq!(rows[1][..2], ["aes-256-gcm", "45.0 (40.0–50.0)"]);
        assert_eq!((&rows[0][3][..], &rows[1][3][..]), ("–", "30.0"), "what broke is left out");
        assert_eq!(sections[0].means().rows[0], ["IPv4", "100", "45.0"]);
        assert_eq!(rows[2][..2], ["runs, n", "1–2"]);
        assert_eq!(sections[0].rows[1].head(), "IPv4: lost, %");
    }

    #[test]
    fn a_a_decides_what_is_no_difference() {
        let mut campaign = campaign();
        campaign.rows.retain(|row| row.case.name == "IPv4" && row.repeat == 1);
        let again = Subject::new(Kind::Vpnd, Cipher::Aes256Gcm).again();
        let mut rows = Vec::new();
        for ([plain, first, second, chacha], repeat) in
            five([[100.0, 60.0, 66.0, 95.0], [110.0, 60.0, 54.0, 100.0], [90.0, 62.0, 62.0, 88.0]])
                .into_iter()
                .zip(1..)
        {
            rows.push(row("plain routing", "IPv4", repeat, plain));
            rows.push(row("aes-256-gcm", "IPv4", repeat, first));
            rows.push(row("chacha20-poly1305", "IPv4", repeat, chacha));
            let mut control = row("aes-256-gcm (again)", "IPv4", repeat, second);
            control.subject = Some(again);
            rows.push(control);
        }
        campaign.rows = rows;
        let section = sections(&campaign).remove(0);
        assert_eq!(section.columns, ["plain routing", "aes-256-gcm", "chacha20-poly1305"]);
        let cells: Vec<String> = section.rows[0].cells.iter().map(Cell::text).collect();
        assert_eq!(cells, ["100 (90.0–110)", "60.0 (60.0–62.0)", "95.0 (88.0–100) ≈"]);
        let feet = &section.grid().rows[3..];
        assert_eq!(
            feet[1][..2],
            ["A/A: aes-256-gcm against itself".to_owned(), "1.00 (0.900–1.10)".to_owned()]
        );
        let differs = |campaign: &SuiteCampaign| -> Vec<Option<bool>> {
            comparisons(campaign).iter().map(|one| one.differs_from_first).collect()
        };
        let rates = |all: Vec<Option<bool>>| all[..2].to_vec();
        assert_eq!(rates(differs(&campaign)), [Some(true), Some(false)]);
        campaign.rows.retain(|row| row.repeat < 5);
        assert_eq!(rates(differs(&campaign)), [None; 2], "four rounds");
    }

    #[test]
    fn outliers_and_ip_versions_that_differ_are_pointed_at() {
        let mut campaign = campaign();
        campaign.rows = [(1, 61.0), (2, 15.0), (3, 60.0)]
            .into_iter()
            .flat_map(|(repeat, v6)| [row("a", "IPv4", repeat, 10.0), row("a", "IPv6", repeat, v6)])
            .collect();
        let remarks = sections(&campaign)[0].remarks();
        assert_eq!(
            remarks,
            [
                "Look at a, IPv4: throughput, Mbit/s: 10.0 (10.0–10.0), and 60.0 (15.0–61.0) over IPv6",
                "Look at a, IPv6: throughput, Mbit/s: 15.0 is far from the median of 60.0",
            ]
        );
        // A system differs as much from itself.
        let mut noisy = campaign.clone();
        for (repeat, mbit) in [(1, 70.0), (2, 2.0), (3, 10.0)] {
            for name in ["IPv4", "IPv6"] {
                noisy.rows.push(row("a (again)", name, repeat, mbit));
            }
        }
        assert_eq!(sections(&noisy)[0].remarks(), [""; 0]);
        campaign.rows.retain(|row| row.case.name == "IPv4");
        let lost = [0.1, 60.0, 0.2];
        for (row, lost) in campaign.rows.iter_mut().zip(lost) {
            row.figures.as_mut().unwrap().lost_percent = Some(lost);
        }
        assert_eq!(sections(&campaign)[0].remarks(), [""; 0], "losses are no rates");
    }

    #[test]
    fn the_text_holds_results_problems_and_what_was_published() {
        let text = document(&campaign()).text(false, true);
        for expected in
            ["45.0 (40.0–50.0)", "aes-256-gcm, IPv6, run 2: c1: <gone>", "KAME", "60.86 / 60.57", "RFC 3550"]
        {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
        assert!(!text.contains("Interrupted"));
    }

    #[test]
    fn csv_holds_every_value() {
        let mut campaign = campaign();
        let rows = |campaign: &SuiteCampaign, quantity: &str| {
            let text = observed::csv([(campaign.observations(), &campaign.environment)]);
            text.matches(quantity).count()
        };
        assert_eq!([rows(&campaign, ",throughput,Mbit/s,"), rows(&campaign, ",lost,%,")], [5, 5]);
        assert_eq!(rows(&campaign, ",c1: <gone>,cubic,"), 3, "and what broke says so");
        campaign.rows[0].search = Some(SearchOutcome { limited_by_sender: true, ..SearchOutcome::default() });
        assert_eq!(rows(&campaign, ",rates that the sender limited,,1,,cubic,"), 1);
        assert!(document(&campaign).text(true, true).contains("≥ 100"));
    }
}
