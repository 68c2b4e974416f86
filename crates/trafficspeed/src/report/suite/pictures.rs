//! A suite's pictures: bars where it is about which cipher is the fastest, time series where time
//! matters.

use super::{Section, SuiteCampaign, grouped, sweep};
use crate::experiment::figures;
use crate::experiment::suite::{Quantity, Row};
use crate::report::chart::{BarChart, Measure, Point};
use crate::report::curves::{Curve, over_time};
use crate::report::page::Picture;
use crate::stats::distinct;
use crate::system::AGAIN;

/// The pictures of a section, which is the one of that number.
pub fn drawn(campaign: &SuiteCampaign, section: &Section, number: usize) -> Vec<Picture> {
    if campaign.name == "aead" {
        bars(campaign, section, number)
    } else if section.name.contains("over time") || section.name.contains("video") {
        course(campaign, section, number)
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
    let systems = campaign.rows.iter().filter(|row| !row.label.ends_with(AGAIN));
    let names = distinct(systems.map(|row| name(&row.label)));
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
            Some((name.clone(), style(campaign, name), Point::of(0.0, row.cells[at].spread()?)))
        };
        let title = format!("{}: {}", section.name, row.case);
        let chart = BarChart {
            title: title.clone(),
            measure: Measure::higher_is_better("throughput, Mbit/s"),
            bars: columns.filter_map(bar).collect(),
        };
        Some(Picture::new(format!("suite-{number}-{at}"), &title, &spread_words(campaign), chart.svg()?))
    };
    rows.filter_map(picture).collect()
}

/// Throughput, delay and jitter of each system's first measurement, a picture each for every case.
fn course(campaign: &SuiteCampaign, section: &Section, number: usize) -> Vec<Picture> {
    let is_drawn = |row: &&Row| {
        let is_first = row.repeat == 1 && row.error.is_none() && !row.label.ends_with(AGAIN);
        is_first && row.case.section == section.name
    };
    let mut names: Vec<&str> =
        campaign.rows.iter().filter(is_drawn).map(|row| row.case.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let pictures = |(case, at): (&str, usize)| {
        let rows = campaign.rows.iter().filter(is_drawn).filter(|row| row.case.name == case);
        let curves: Vec<Curve<'_>> = rows
            .filter_map(|row| Some((style(campaign, &row.label), row.label.as_str(), row.figures.as_ref()?)))
            .collect();
        let points = curves.iter().flat_map(|(_, _, figures)| &figures.series);
        let highest = points.map(|point| point.received_bits_per_second / 1e6).fold(0.0, f64::max);
        let (scale, measure) = scaled(Quantity::Throughput, highest);
        let title = format!("{}: {case}", section.name);
        let throughput =
            over_time(&title, measure, &curves, |point| Some(point.received_bits_per_second / 1e6 / scale));
        let caption = "The first measurement of each system.";
        let throughput =
            throughput.map(|svg| Picture::new(format!("suite-{number}-{at}"), &title, caption, svg));
        let other = |name: &str, axis: &str, words: &str, value: fn(&figures::Point) -> Option<f64>| {
            let title = format!("{}, {name}: {case}", section.name);
            let svg = over_time(&title, Measure::lower_is_better(axis), &curves, value)?;
            let caption = format!("{words}, in the first measurement of each system.");
            Some(Picture::new(format!("suite-{number}-{at}-{name}"), &title, &caption, svg))
        };
        let words = "One-way delay, mean of each interval";
        let delay = other("delay", "mean one-way delay, ms", words, |point| Some(point.delay_mean_us? / 1e3));
        let words = "Jitter at the end of each interval";
        let jitter = other("jitter", "jitter (RFC 3550), ms", words, |point| {
            (point.jitter_us > 0.0).then_some(point.jitter_us / 1e3)
        });
        [throughput, delay, jitter]
    };
    names.into_iter().zip(1..).flat_map(pictures).flatten().collect()
}

#[cfg(test)]
mod tests {
    use crate::report::suite::document;
    use crate::report::suite::tests::campaign;

    #[test]
    fn a_case_over_time_has_a_picture_of_each_quantity_that_was_measured() {
        let pictures = document(&campaign()).into_pictures();
        assert_eq!(pictures.len(), 2, "throughput of two cases; no delay was measured");
        assert!(pictures[0].svg.contains("throughput, Mbit/s"));
    }
}
