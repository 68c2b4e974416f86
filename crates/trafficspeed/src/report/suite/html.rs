//! A suite's page: tables and time series, self-contained as the other reports' pages are.

use std::fmt::Write as _;

use super::{Section, SuiteCampaign, published, sections, sentences, verdicts};
use crate::experiment::suite::Row;
use crate::report::chart::{Horizontal, LineChart, Point, Series, escape};

const STYLE: &str = include_str!("../page.css");

/// The page of a campaign.
pub fn html(campaign: &SuiteCampaign) -> String {
    let mut page = String::new();
    let title = format!("TrafficSpeed: suite {}", campaign.name);
    put(
        &mut page,
        &format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n\
             </head>\n<body>\n<main>\n<h1>{title}</h1>\n<p class=\"lead\">{}</p>",
            escape(&campaign.about)
        ),
    );
    problems(&mut page, campaign);
    for sentence in sentences(&verdicts(campaign)) {
        put(&mut page, &format!("<p>{}</p>", escape(&sentence)));
    }
    for section in sections(campaign) {
        results(&mut page, &section);
        pictures(&mut page, campaign, &section.name);
    }
    let definitions = escape(super::DEFINITIONS).replace('\n', " ");
    put(&mut page, &format!("<p class=\"note\">{definitions}</p>"));
    systems(&mut page, campaign);
    before(&mut page, campaign);
    environment(&mut page, campaign);
    put(&mut page, "</main>\n</body>\n</html>");
    page
}

fn problems(page: &mut String, campaign: &SuiteCampaign) {
    if campaign.interrupted {
        put(page, "<p class=\"warning\">Interrupted: the figures are of what was measured until then.</p>");
    }
    let lines: Vec<String> =
        campaign.problems().iter().map(|problem| format!("<li>{}</li>", escape(problem))).collect();
    if !lines.is_empty() {
        put(page, &format!("<h2>What went wrong</h2>\n<ul class=\"problems\">{}</ul>", lines.join("\n")));
    }
}

fn results(page: &mut String, section: &Section) {
    put(page, &format!("<h2>{}</h2>", escape(&section.name)));
    let head: Vec<&str> = std::iter::once("").chain(section.columns.iter().map(String::as_str)).collect();
    let rows: Vec<Vec<String>> =
        section.rows.iter().map(|row| std::iter::once(row.head()).chain(row.cells()).collect()).collect();
    table(page, &head, &rows);
}

/// For the cases that are about time: throughput and delay of each system's first measurement.
fn pictures(page: &mut String, campaign: &SuiteCampaign, section: &str) {
    if !section.contains("over time") && !section.contains("video") {
        return;
    }
    let mine = |row: &&Row| row.case.section == section && row.repeat == 1 && row.error.is_none();
    let mut names: Vec<&str> = campaign.rows.iter().filter(mine).map(|row| row.case.name.as_str()).collect();
    names.dedup();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let rows: Vec<&Row> = campaign.rows.iter().filter(mine).filter(|row| row.case.name == name).collect();
        let throughput =
            chart(name, "throughput, Mbit/s", &rows, |point| Some(point.received_bits_per_second / 1e6));
        let delay =
            chart(name, "mean one-way delay, ms", &rows, |point| point.delay_mean_us.map(|us| us / 1e3));
        for svg in [throughput, delay].into_iter().flatten() {
            put(page, &format!("<figure>{svg}<figcaption>{}</figcaption></figure>", escape(name)));
        }
    }
}

fn chart(
    name: &str,
    y_label: &str,
    rows: &[&Row],
    y: impl Fn(&crate::experiment::figures::Point) -> Option<f64>,
) -> Option<String> {
    let mut end: f64 = 0.0;
    let mut series = Vec::new();
    for (row, style) in rows.iter().zip(0..) {
        let all = row.figures.iter().flat_map(|figures| &figures.series);
        let points: Vec<Point> =
            all.filter_map(|point| Some(Point { x: point.end, y: y(point)?, range: None })).collect();
        end = points.iter().map(|point| point.x).fold(end, f64::max);
        series.push(Series { label: row.label.clone(), style, points });
    }
    let title = format!("{y_label} over time: {name}");
    LineChart {
        title,
        x_label: "seconds".into(),
        y_label: y_label.into(),
        horizontal: Horizontal::Linear(end),
        series,
    }
    .svg()
}

fn systems(page: &mut String, campaign: &SuiteCampaign) {
    put(page, "<h2>Systems</h2>");
    let mut rows: Vec<Vec<String>> = Vec::new();
    for stage in campaign.stages.iter().filter(|stage| stage.error.is_none()) {
        let facts = &stage.facts;
        let mtu = facts.mtu.map_or("–".into(), |mtu| mtu.to_string());
        let row = vec![
            stage.label.clone(),
            facts.version.clone(),
            facts.cipher.clone(),
            stage.link_mtu.map_or("–".into(), |mtu| mtu.to_string()),
            mtu,
            facts.notes.join("; "),
        ];
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    table(
        page,
        &["System", "Version", "Cipher in use", "MTU of the links", "MTU of the tunnel", "Notes"],
        &rows,
    );
}

fn before(page: &mut String, campaign: &SuiteCampaign) {
    let (source, tables) = published(campaign);
    let note =
        format!("<p class=\"note\">{}. Text for comparison, not results of this run.</p>", escape(source));
    put(page, &format!("<h2>What was published before</h2>\n{note}"));
    for figures in tables {
        put(page, &format!("<h3>{}</h3>", escape(figures.caption)));
        let rows: Vec<Vec<String>> =
            figures.rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect();
        table(page, figures.head, &rows);
    }
}

fn environment(page: &mut String, campaign: &SuiteCampaign) {
    let e = &campaign.environment;
    let rows = [
        ("Command", e.command_line.clone()),
        ("Begun", e.started.clone()),
        ("Program", e.host.program.clone()),
        ("Kernel", e.host.system.clone()),
        ("CPU", format!("{} × {}", e.host.cpus, e.host.cpu)),
        ("CPU flags for ciphers", e.cpu_flags.join(" ")),
        ("Memory", format!("{} MiB", e.memory_mib)),
        ("Links", e.links.clone().unwrap_or_default()),
    ];
    put(page, "<h2>Set-up</h2>\n<table class=\"facts\">");
    let sysctls = e.sysctls.iter().map(|(name, value)| (name.as_str(), value.clone()));
    for (name, value) in rows.into_iter().chain(sysctls) {
        put(page, &format!("<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(name), escape(&value)));
    }
    put(page, "</table>");
}

fn table(page: &mut String, head: &[&str], rows: &[Vec<String>]) {
    let cells = |kind: &str, cells: &mut dyn Iterator<Item = &str>| -> String {
        cells.map(|cell| format!("<{kind}>{}</{kind}>", escape(cell))).collect()
    };
    let head = cells("th", &mut head.iter().copied());
    put(page, &format!("<div class=\"wide\"><table><thead><tr>{head}</tr></thead><tbody>"));
    for row in rows {
        put(page, &format!("<tr>{}</tr>", cells("td", &mut row.iter().map(String::as_str))));
    }
    put(page, "</tbody></table></div>");
}

fn put(page: &mut String, text: &str) {
    writeln!(page, "{text}").expect("writing to a string");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::suite::tests::campaign;

    #[test]
    fn the_page_stands_alone_and_holds_tables_time_series_and_the_publication() {
        let page = html(&campaign());
        for expected in ["45.0 ± 5.00", "KAME", "60.86 / 60.57", "Set-up", "throughput, Mbit/s"] {
            assert!(page.contains(expected), "{expected} is missing");
        }
        assert_eq!(page.matches("<svg").count(), 2, "throughput of two cases; no delay was measured");
        for outside in ["<script", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "the page needs nothing from elsewhere, but has {outside}");
        }
        assert!(page.contains("c1: &lt;gone&gt;") && !page.contains("<gone>"));
    }
}
