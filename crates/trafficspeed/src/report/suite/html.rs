//! A suite's page: tables, bars where a suite is about which cipher is the fastest, time series where time matters.

use super::{Section, SuiteCampaign, published, sections, sentences, sweep, verdicts};
use crate::experiment::figures;
use crate::experiment::suite::{Quantity, Row};
use crate::report::chart::{BarChart, Point, Series, TimeChart};
use crate::report::html::machine;
use crate::report::page::{Page, Picture};

/// The page of a campaign.
pub fn html(campaign: &SuiteCampaign) -> String {
    let title = format!("trafficspeed suite {}", campaign.name);
    let mut page = Page::new(&title, &title, &campaign.about);
    page.paragraph("meta", &campaign.environment.started);
    if campaign.interrupted {
        page.paragraph("warning", "Interrupted: the figures are of what was measured until then.");
    }
    let problems = campaign.problems();
    if !problems.is_empty() {
        page.section("What went wrong");
        page.list("problems", &problems);
    }
    for sentence in sentences(&verdicts(campaign)) {
        page.paragraph("", &sentence);
    }
    for (section, number) in sections(campaign).iter().zip(1..) {
        page.section(&section.name);
        let grid = section.grid();
        page.table(&grid.head.iter().map(String::as_str).collect::<Vec<_>>(), grid.rows);
        let remarks = section.remarks();
        if !remarks.is_empty() {
            page.list("problems", &remarks);
        }
        drawn(campaign, section, number).iter().for_each(|picture| page.figure(picture));
    }
    page.notes(super::DEFINITIONS.lines());
    systems(&mut page, campaign);
    before(&mut page, campaign);
    page.section("Set-up");
    machine(&mut page, &campaign.environment, []);
    page.finish()
}

/// The pictures of the page.
pub fn pictures(campaign: &SuiteCampaign) -> Vec<Picture> {
    let sections = sections(campaign);
    sections.iter().zip(1..).flat_map(|(section, number)| drawn(campaign, section, number)).collect()
}

fn drawn(campaign: &SuiteCampaign, section: &Section, number: usize) -> Vec<Picture> {
    if campaign.name == "aead" {
        bars(campaign, section, number)
    } else if section.name.contains("over time") || section.name.contains("video") {
        over_time(campaign, section, number)
    } else {
        sweep::pictures(campaign, section, number)
    }
}

/// The caption of what was measured several times, or once.
pub(super) fn spread_words(campaign: &SuiteCampaign) -> String {
    match campaign.repeats {
        0 | 1 => "One run each, so no spread is shown.".into(),
        n => format!("Medians of {n} runs, with whiskers from the lowest to the highest."),
    }
}

/// The throughput of each cipher, one picture for each case.
fn bars(campaign: &SuiteCampaign, section: &Section, number: usize) -> Vec<Picture> {
    let rows = section.rows.iter().filter(|row| row.quantity == Quantity::Throughput).zip(1..);
    let picture = |(row, at): (&super::SectionRow, usize)| {
        let columns = section.columns.iter().zip(0..);
        let bar =
            |(name, style): (&String, usize)| Some((name.clone(), style, Point::of(0.0, row.spread(style)?)));
        let title = format!("{}: {}", section.name, row.case);
        let chart = BarChart {
            title: title.clone(),
            x_label: "throughput, Mbit/s".into(),
            bars: columns.filter_map(bar).collect(),
        };
        let caption = spread_words(campaign);
        Some(Picture { name: format!("suite-{number}-{at}"), title, caption, svg: chart.svg()? })
    };
    rows.filter_map(picture).collect()
}

/// Throughput and delay of each system's first measurement, one picture for each case.
fn over_time(campaign: &SuiteCampaign, section: &Section, number: usize) -> Vec<Picture> {
    let mine = |row: &&Row| row.case.section == section.name && row.repeat == 1 && row.error.is_none();
    let mut names: Vec<&str> = campaign.rows.iter().filter(mine).map(|row| row.case.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let picture = |(name, at): (&str, usize)| {
        let rows: Vec<&Row> = campaign.rows.iter().filter(mine).filter(|row| row.case.name == name).collect();
        let title = format!("{}: {name}", section.name);
        let svg = series(&title, &rows)?;
        let caption =
            "The first measurement of each system. Delay is one way, mean of each interval.".to_owned();
        Some(Picture { name: format!("suite-{number}-{at}"), title, caption, svg })
    };
    names.into_iter().zip(1..).filter_map(picture).collect()
}

fn series(title: &str, rows: &[&Row]) -> Option<String> {
    let points = |row: &Row, y: &dyn Fn(&figures::Point) -> Option<f64>| -> Vec<Point> {
        let all = row.figures.iter().flat_map(|figures| &figures.series);
        all.filter_map(|point| Some(Point { x: point.end, y: y(point)?, range: None })).collect()
    };
    let all = rows.iter().filter_map(|row| row.figures.as_ref()).flat_map(|figures| &figures.series);
    let highest = all.map(|point| point.received_bits_per_second).fold(0.0, f64::max);
    // Figures of five digits would stand in the axis' label.
    let (unit, label) =
        if highest >= 1e9 { (1e9, "throughput, Gbit/s") } else { (1e6, "throughput, Mbit/s") };
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for (row, style) in rows.iter().zip(0..) {
        let throughput = points(row, &|point| Some(point.received_bits_per_second / unit));
        let delay = points(row, &|point| point.delay_mean_us.map(|us| us / 1e3));
        left.push(Series { label: row.label.clone(), style, points: throughput });
        let label = format!("{}: delay", row.label);
        right.push(Series { label, style: rows.len() + style, points: delay });
    }
    [&mut left, &mut right].into_iter().for_each(|all| all.retain(|series| !series.points.is_empty()));
    TimeChart {
        title: title.to_owned(),
        x_label: "seconds since the end of the warm-up".into(),
        end: left.iter().flat_map(|series| &series.points).map(|point| point.x).fold(0.0, f64::max),
        left_label: label.into(),
        left,
        right_label: "mean one-way delay, ms".into(),
        right,
    }
    .svg()
}

fn systems(page: &mut Page, campaign: &SuiteCampaign) {
    page.section("Systems");
    let mut rows: Vec<Vec<String>> = Vec::new();
    for stage in campaign.stages.iter().filter(|stage| stage.error.is_none()) {
        let facts = &stage.facts;
        let mtu = |mtu: Option<u32>| mtu.map_or("–".into(), |mtu| mtu.to_string());
        let row = vec![
            stage.label.clone(),
            facts.version.clone(),
            facts.cipher.clone(),
            mtu(stage.link_mtu),
            mtu(facts.mtu),
            facts.notes.join("; "),
        ];
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    let head = ["System", "Version", "Cipher in use", "MTU of the links", "MTU of the tunnel", "Notes"];
    page.texts(&head, rows);
}

fn before(page: &mut Page, campaign: &SuiteCampaign) {
    let (source, tables) = published(campaign);
    page.section("What was published before");
    page.paragraph("note", &format!("{source}. Text for comparison, not results of this run."));
    for figures in tables {
        page.paragraph("", figures.caption);
        let rows = figures.rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect());
        page.table(figures.head, rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::suite::tests::campaign;

    #[test]
    fn the_page_stands_alone_and_holds_tables_time_series_and_the_publication() {
        let page = html(&campaign());
        for expected in ["45.0 (40.0–50.0)", "KAME", "60.86 / 60.57", "Set-up", "throughput, Mbit/s"] {
            assert!(page.contains(expected), "{expected} is missing");
        }
        assert_eq!(page.matches("<svg").count(), 2, "throughput of two cases; no delay was measured");
        for outside in ["<script", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "the page needs nothing from elsewhere, but has {outside}");
        }
        assert!(page.contains("c1: &lt;gone&gt;") && !page.contains("<gone>"));
    }
}
