//! A suite's pictures: bars where it is about which cipher is the fastest, time series where time
//! matters.

use super::{Section, SuiteCampaign, grouped, sweep};
use crate::experiment::figures;
use crate::experiment::suite::{Quantity, Row};
use crate::report::chart::{BarChart, Horizontal, LineChart, Measure, Point, Series};
use crate::report::page::Picture;
use crate::system::AGAIN;

/// The pictures of a section, which is the one of that number.
pub fn drawn(campaign: &SuiteCampaign, section: &Section, number: usize) -> Vec<Picture> {
    if campaign.name == "aead" {
        bars(campaign, section, number)
    } else if section.name.contains("over time") || section.name.contains("video") {
        over_time(campaign, section, number)
    } else {
        let grouped = grouped::pictures(campaign, section, number);
        grouped.into_iter().chain(sweep::pictures(campaign, section, number)).collect()
    }
}

/// The style of a system: the same in all pictures of the campaign, with AES instructions and
/// without.
pub(super) fn style(campaign: &SuiteCampaign, label: &str) -> usize {
    fn name(label: &str) -> &str {
        label.split(", without AES").next().unwrap_or(label)
    }
    let mut names: Vec<&str> = Vec::new();
    for row in campaign.rows.iter().filter(|row| !row.label.ends_with(AGAIN)) {
        if !names.contains(&name(&row.label)) {
            names.push(name(&row.label));
        }
    }
    names.iter().position(|known| *known == name(label)).unwrap_or(0)
}

/// The caption of what was measured several times, or once.
pub(super) fn spread_words(campaign: &SuiteCampaign) -> String {
    match campaign.repeats {
        0 | 1 => "One run each, so no spread is shown.".into(),
        n => format!("Medians of {n} runs, with whiskers from the lowest to the highest."),
    }
}

/// The axis of a quantity whose highest value is `highest`, and what values are to be
/// divided by for it.
pub(super) fn scaled(quantity: Quantity, highest: f64) -> (f64, Measure) {
    let (name, unit) = quantity.name();
    // Figures of five digits would stand in the axis' label.
    let (scale, unit) = match unit {
        _ if highest < 10_000.0 => (1.0, unit.to_owned()),
        "Mbit/s" => (1_000.0, "Gbit/s".to_owned()),
        other => (1_000.0, format!("1000 {other}")),
    };
    let words = format!("{name}, {unit}");
    let measure = match quantity {
        Quantity::Throughput
        | Quantity::Packets
        | Quantity::Delivered
        | Quantity::Transactions
        | Quantity::Flows => Measure::higher_is_better(words),
        Quantity::Loss
        | Quantity::RoundTrip
        | Quantity::Delay
        | Quantity::Delay99
        | Quantity::Jitter
        | Quantity::Variation50
        | Quantity::Variation95
        | Quantity::Variation99
        | Quantity::Flow50
        | Quantity::Flow95
        | Quantity::Flow99 => Measure::lower_is_better(words),
    };
    (scale, measure)
}

/// The throughput of each cipher, one picture for each case.
fn bars(campaign: &SuiteCampaign, section: &Section, number: usize) -> Vec<Picture> {
    let rows = section.rows.iter().filter(|row| row.quantity == Quantity::Throughput).zip(1..);
    let picture = |(row, at): (&super::SectionRow, usize)| {
        let columns = section.columns.iter().zip(0..);
        let bar = |(name, at): (&String, usize)| {
            Some((name.clone(), style(campaign, name), Point::of(0.0, row.spread(at)?)))
        };
        let title = format!("{}: {}", section.name, row.case);
        let chart = BarChart {
            title: title.clone(),
            measure: Measure::higher_is_better("throughput, Mbit/s"),
            bars: columns.filter_map(bar).collect(),
        };
        let caption = spread_words(campaign);
        Some(Picture { name: format!("suite-{number}-{at}"), title, caption, svg: chart.svg()? })
    };
    rows.filter_map(picture).collect()
}

/// Throughput, delay and jitter of each system's first measurement, a picture each for every case.
fn over_time(campaign: &SuiteCampaign, section: &Section, number: usize) -> Vec<Picture> {
    let is_drawn = |row: &&Row| {
        let is_first = row.repeat == 1 && row.error.is_none() && !row.label.ends_with(AGAIN);
        is_first && row.case.section == section.name
    };
    let mut names: Vec<&str> =
        campaign.rows.iter().filter(is_drawn).map(|row| row.case.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let pictures = |(case, at): (&str, usize)| {
        let rows: Vec<&Row> =
            campaign.rows.iter().filter(is_drawn).filter(|row| row.case.name == case).collect();
        let throughput = {
            let title = format!("{}: {case}", section.name);
            let caption = "The first measurement of each system.".to_owned();
            throughput(campaign, &title, &rows).map(|svg| Picture {
                name: format!("suite-{number}-{at}"),
                title,
                caption,
                svg,
            })
        };
        let beside = |name: &str, words: [&str; 2], value: &dyn Fn(&figures::Point) -> Option<f64>| {
            let title = format!("{}, {name}: {case}", section.name);
            let measure = Measure::lower_is_better(words[0]);
            let svg = series(campaign, (&title, measure), &rows, value)?;
            let caption = format!("{}, in the first measurement of each system.", words[1]);
            Some(Picture { name: format!("suite-{number}-{at}-{name}"), title, caption, svg })
        };
        let delay =
            beside("delay", ["mean one-way delay, ms", "One-way delay, mean of each interval"], &|point| {
                Some(point.delay_mean_us? / 1e3)
            });
        let jitter =
            beside("jitter", ["jitter (RFC 3550), ms", "Jitter at the end of each interval"], &|point| {
                (point.jitter_us > 0.0).then_some(point.jitter_us / 1e3)
            });
        [throughput, delay, jitter]
    };
    names.into_iter().zip(1..).flat_map(pictures).flatten().collect()
}

fn throughput(campaign: &SuiteCampaign, title: &str, rows: &[&Row]) -> Option<String> {
    let all = rows.iter().filter_map(|row| row.figures.as_ref()).flat_map(|figures| &figures.series);
    let highest = all.map(|point| point.received_bits_per_second / 1e6).fold(0.0, f64::max);
    let (scale, measure) = scaled(Quantity::Throughput, highest);
    series(campaign, (title, measure), rows, &|point| Some(point.received_bits_per_second / 1e6 / scale))
}

/// One line for each system over time.
fn series(
    campaign: &SuiteCampaign,
    (title, measure): (&str, Measure),
    rows: &[&Row],
    value: &dyn Fn(&figures::Point) -> Option<f64>,
) -> Option<String> {
    let line = |row: &&Row| {
        let all = row.figures.iter().flat_map(|figures| &figures.series);
        let points = all.filter_map(|point| Some(Point { x: point.end, y: value(point)?, range: None }));
        Series { label: row.label.clone(), style: style(campaign, &row.label), points: points.collect() }
    };
    let series: Vec<Series> = rows.iter().map(line).collect();
    let end = series.iter().flat_map(|series| &series.points).map(|point| point.x).fold(0.0, f64::max);
    LineChart {
        title: title.to_owned(),
        x_label: "seconds since the end of the warm-up".into(),
        measure,
        horizontal: Horizontal::Linear(end),
        series,
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use crate::report::suite::document;
    use crate::report::suite::tests::campaign;

    #[test]
    fn the_page_stands_alone_and_holds_tables_time_series_and_the_publication() {
        let page = document(&campaign()).page();
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
