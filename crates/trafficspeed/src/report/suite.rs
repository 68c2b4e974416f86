//! The report of a suite: one table for each of its parts, with a column for each system, beside what was published.

pub mod html;
pub mod sweep;

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::{Value, json};

use super::published::{self, Figures as Published};
use crate::csv_table;
use crate::experiment::suite::aead::{self, Verdict};
use crate::experiment::suite::{Quantity, Row, SuiteCampaign};
use crate::stats::range;
use crate::system::vpnd::Code;
use crate::unit::significant;

/// The version of the JSON report's layout.
const FORMAT: u32 = 1;

/// Stands below the tables.
pub const DEFINITIONS: &str = "\
Means of the repeats; ± half the distance between the lowest and the highest. Throughput is payload that arrived. The other
end is where each load is received. Lost: of the messages that were sent; delivered: of those that the rate asked for. Loss, jitter (RFC 3550) and one-way delay by number and time stamp of each message; the
lab has one clock. Only what the kernel's counters saw in the tunnel counts. Systems but plain routing are vpnd with the cipher named.
Between real hosts clocks are compared before each measurement, and a system is what the user called the network between them.";

/// One part of the report: rows of cases and quantities, columns of systems.
pub struct Section {
    pub name: String,
    pub columns: Vec<String>,
    pub rows: Vec<SectionRow>,
}

/// One case and quantity.
pub struct SectionRow {
    pub case: String,
    pub quantity: Quantity,
    /// The repeats' values for each column.
    pub values: Vec<Vec<f64>>,
}

impl SectionRow {
    /// Case and quantity as a row's head.
    pub fn head(&self) -> String {
        let (name, unit) = self.quantity.name();
        format!("{}: {name}, {unit}", self.case)
    }

    /// Each column as text.
    pub fn cells(&self) -> Vec<String> {
        self.values.iter().map(|values| cell(values)).collect()
    }
}

fn cell(values: &[f64]) -> String {
    let Some((low, high)) = range(values) else { return "–".into() };
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    if values.len() < 2 {
        significant(mean)
    } else {
        format!("{} ± {}", significant(mean), significant((high - low) / 2.0))
    }
}

/// The parts of a campaign, in the order in which they were measured.
pub fn sections(campaign: &SuiteCampaign) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for row in &campaign.rows {
        let name = row.case.section.clone();
        let at = sections.iter().position(|section| section.name == name).unwrap_or_else(|| {
            sections.push(Section { name, columns: Vec::new(), rows: Vec::new() });
            sections.len() - 1
        });
        sections[at].add(row);
    }
    for section in &mut sections {
        let columns = section.columns.len();
        section.rows.iter_mut().for_each(|row| row.values.resize(columns, Vec::new()));
    }
    sections
}

impl Section {
    fn add(&mut self, row: &Row) {
        let column = self.columns.iter().position(|label| *label == row.label).unwrap_or_else(|| {
            self.columns.push(row.label.clone());
            self.columns.len() - 1
        });
        for &quantity in &row.case.quantities {
            let same = |known: &SectionRow| known.case == row.case.name && known.quantity == quantity;
            let at = self.rows.iter().position(same).unwrap_or_else(|| {
                self.rows.push(SectionRow { case: row.case.name.clone(), quantity, values: Vec::new() });
                self.rows.len() - 1
            });
            let values = &mut self.rows[at].values;
            if values.len() <= column {
                values.resize(column + 1, Vec::new());
            }
            values[column].extend(row.value(quantity));
        }
    }
}

/// The published findings of this experiment.
pub fn published(campaign: &SuiteCampaign) -> (&'static str, &'static [Published]) {
    if campaign.name == "aead" {
        (published::aead::SOURCE, &published::aead::FIGURES)
    } else {
        (published::ipsec::SOURCE, &published::ipsec::FIGURES)
    }
}

/// How the choice of vpnd turned out, in one sentence each.
pub fn sentences(verdicts: &[Verdict]) -> Vec<String> {
    let mbit = |value: Option<f64>| {
        value.map_or_else(|| "not measured".into(), |mbit| format!("{} Mbit/s", significant(mbit)))
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
            Some(true) => "right: none is faster beyond the spread",
            Some(false) => "wrong",
            None => "not judged: too few measurements",
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

/// The verdicts of a campaign that asks for them.
fn verdicts(campaign: &SuiteCampaign) -> Vec<Verdict> {
    if campaign.name == "aead" { aead::verdicts(campaign) } else { Vec::new() }
}

/// The results as text.
pub fn table(campaign: &SuiteCampaign) -> String {
    let mut text = format!("{}\n", campaign.about);
    for section in sections(campaign) {
        let head = std::iter::once(String::new()).chain(section.columns.iter().cloned());
        let rows = section.rows.iter().map(|row| std::iter::once(row.head()).chain(row.cells()).collect());
        put(&mut text, &section.name, &grid(head.collect(), rows.collect()));
    }
    for sentence in sentences(&verdicts(campaign)) {
        put_line(&mut text, &sentence);
    }
    put_line(&mut text, DEFINITIONS);
    let (source, tables) = published(campaign);
    put_line(&mut text, &format!("\nPublished before, for comparison: {source}."));
    for figures in tables {
        let own = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
        let rows = figures.rows.iter().map(|row| own(row)).collect();
        put(&mut text, figures.caption, &grid(own(figures.head), rows));
    }
    for problem in campaign.problems() {
        put_line(&mut text, &problem);
    }
    if campaign.interrupted {
        put_line(&mut text, "Interrupted: the figures are of what was measured until then.");
    }
    text
}

fn grid(head: Vec<String>, rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(head);
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn put(text: &mut String, caption: &str, table: &Table) {
    writeln!(text, "\n{caption}\n{table}").expect("writing to a string");
}

fn put_line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("writing to a string");
}

/// The event of a campaign's beginning.
pub fn start_json(campaign: &SuiteCampaign) -> Value {
    json!({
        "experiment": format!("suite {}", campaign.name),
        "about": campaign.about,
        "repeats": campaign.repeats,
        "environment": campaign.environment,
    })
}

/// The event of a campaign's end.
pub fn end_json(campaign: &SuiteCampaign) -> Value {
    json!({
        "interrupted": campaign.interrupted,
        "problems": campaign.problems(),
        "summary": summary_json(campaign),
        "choices": verdicts(campaign),
    })
}

fn summary_json(campaign: &SuiteCampaign) -> Vec<Value> {
    let section = |section: &Section| {
        let rows: Vec<Value> = section.rows.iter().map(|row| row_json(section, row)).collect();
        json!({ "name": section.name, "rows": rows })
    };
    sections(campaign).iter().map(section).collect()
}

/// The results as JSON.
pub fn json(campaign: &SuiteCampaign) -> Value {
    let (source, tables) = published(campaign);
    json!({
        "format": FORMAT,
        "experiment": format!("suite {}", campaign.name),
        "about": campaign.about,
        "environment": campaign.environment,
        "far": campaign.far,
        "repeats": campaign.repeats,
        "interrupted": campaign.interrupted,
        "problems": campaign.problems(),
        "summary": summary_json(campaign),
        "choices": verdicts(campaign),
        "systems": campaign.stages,
        "rows": campaign.rows,
        "published": { "source": source, "figures": tables },
    })
}

fn row_json(section: &Section, row: &SectionRow) -> Value {
    let (name, unit) = row.quantity.name();
    let column = |(system, values): (&String, &Vec<f64>)| {
        let range = range(values);
        json!({
            "system": system,
            "mean": range.map(|_| values.iter().sum::<f64>() / values.len() as f64),
            "low": range.map(|(low, _)| low),
            "high": range.map(|(_, high)| high),
            "values": values,
        })
    };
    let systems: Vec<Value> = section.columns.iter().zip(&row.values).map(column).collect();
    json!({ "case": row.case, "quantity": name, "unit": unit, "systems": systems })
}

/// One line for each value.
pub fn csv(campaign: &SuiteCampaign) -> String {
    let head = [
        "suite",
        "section",
        "case",
        "ip",
        "hogs",
        "system",
        "without_aes",
        "link_mtu",
        "repeat",
        "quantity",
        "unit",
        "value",
    ];
    let of = |row: &Row| -> Vec<_> {
        row.case.quantities.iter().filter_map(|&of| csv_cells(campaign, row, of)).collect()
    };
    csv_table::text(head, campaign.rows.iter().flat_map(of))
}

/// `None`: the measurement does not stand or has no such value.
fn csv_cells(campaign: &SuiteCampaign, row: &Row, quantity: Quantity) -> Option<[String; 12]> {
    let value = row.value(quantity)?;
    let (name, unit) = quantity.name();
    Some([
        campaign.name.clone(),
        row.case.section.clone(),
        row.case.name.clone(),
        row.case.ip.to_string(),
        row.case.hogs.to_string(),
        row.label.clone(),
        (row.code == Code::WithoutAes).to_string(),
        row.link_mtu.map_or_else(String::new, |mtu| mtu.to_string()),
        row.repeat.to_string(),
        name.to_owned(),
        unit.to_owned(),
        value.to_string(),
    ])
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::experiment::environment::Environment;
    use crate::experiment::figures::{Figures, Point};
    use crate::experiment::pair_run::Times;
    use crate::experiment::suite::{Case, StageInfo};
    use crate::experiment::testbed::RemoteEnd;
    use crate::load::congestion::CongestionControl;
    use crate::load::task::Task;
    use crate::load::tcp::{Job, Shape};
    use crate::system::{Cipher, Kind, Subject};

    fn row(label: &str, name: &str, repeat: u32, mbit: f64) -> Row {
        let second = Duration::from_secs(1);
        let job = Job {
            run_id: 1,
            seed: 1,
            streams: 1,
            threads: 1,
            write_bytes: 1,
            verify: false,
            congestion: CongestionControl::default(),
            shape: Shape::default(),
        };
        let point = |end| Point { end, received_bits_per_second: mbit * 1e6, ..Point::default() };
        Row {
            label: label.into(),
            subject: Some(Subject::new(Kind::Vpnd, Cipher::Aes256Gcm)),
            code: Code::Native,
            link_mtu: Some(1500),
            case: Case {
                section: "One TCP transfer over time".into(),
                name: name.into(),
                task: Task::Bulk(job),
                ip: 4,
                quantities: vec![Quantity::Throughput, Quantity::Loss],
                hogs: 0,
                times: Times { warmup: second, duration: second, interval: second },
            },
            repeat,
            figures: Some(Figures {
                received_bits_per_second: mbit * 1e6,
                lost_percent: Some(0.5),
                series: vec![point(1.0), point(2.0), point(3.0)],
                ..Figures::default()
            }),
            cpu: None,
            error: None,
        }
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
    fn values_stand_under_their_system_and_broken_ones_do_not_count() {
        let sections = sections(&campaign());
        assert_eq!(
            (sections.len(), &sections[0].columns[..]),
            (1, &["plain routing".into(), "aes-256-gcm".into()][..])
        );
        let cells: Vec<Vec<String>> = sections[0].rows.iter().map(SectionRow::cells).collect();
        assert_eq!(cells[0], ["100", "45.0 ± 5.00"]);
        assert_eq!(cells[2], ["–", "30.0"], "what was not measured is a dash, what broke is left out");
        assert_eq!(sections[0].rows[1].head(), "IPv4: lost, %");
    }

    #[test]
    fn the_text_holds_results_problems_and_what_was_published() {
        let text = table(&campaign());
        for expected in
            ["45.0 ± 5.00", "aes-256-gcm, IPv6, run 2: c1: <gone>", "KAME", "60.86 / 60.57", "RFC 3550"]
        {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
        assert!(!text.contains("Interrupted"));
    }

    #[test]
    fn json_and_csv_hold_every_value_that_stands() {
        let value = json(&campaign());
        assert_eq!(value["summary"][0]["rows"][0]["systems"][1]["mean"], 45.0);
        assert_eq!(value["rows"].as_array().unwrap().len(), 5);
        assert_eq!(csv(&campaign()).lines().count(), 1 + 4 * 2);
    }
}
