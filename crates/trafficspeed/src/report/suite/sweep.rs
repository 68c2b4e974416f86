//! The pictures of the authors' open questions: what changes with payload, rate, MTU, and with the
//! length of the key.
//!
//! Where a measurement stands on the horizontal axis is taken from what was measured, not from its
//! name.

use crate::experiment::suite::ipsec::UDP_SECTION;
use crate::experiment::suite::{Quantity, Row, SWEEP, SuiteCampaign};
use crate::load::task::Task;
use crate::report::chart::{BarChart, Horizontal, LineChart, Measure, Point, Series};
use crate::report::delivered;
use crate::report::page::Picture;
use crate::report::suite::Section;
use crate::report::suite::pictures::{scaled, spread_words, style};
use crate::stats::{Spread, distinct};

/// The section in which ciphers that differ in the length of the key stand side by side.
const KEYS: &str = "TCP stream";
/// Those ciphers, as their systems' labels end.
const KEY_LENGTHS: [(&str, &str); 2] = [("aes-128-gcm", "128 bits"), ("aes-256-gcm", "256 bits")];

/// The quantity that is swept, and the layout of its axis.
enum Axis {
    Payload,
    Rate,
    Mtu,
}

impl Axis {
    fn of(section: &str) -> Option<Self> {
        match section.strip_prefix(SWEEP)? {
            "payload of datagrams" => Some(Self::Payload),
            "rate" => Some(Self::Rate),
            "MTU" => Some(Self::Mtu),
            _ => None,
        }
    }

    fn label(&self) -> &'static str {
        match self {
            Self::Payload => "payload of a datagram, bytes",
            Self::Rate => "rate that was asked for, Mbit/s",
            Self::Mtu => "MTU of the links, bytes",
        }
    }

    /// Where a measurement stands.
    fn place(&self, row: &Row) -> Option<f64> {
        match (self, &row.case.task) {
            (Self::Payload, Task::Messages(work)) => Some(f64::from(work.length)),
            (Self::Rate, Task::Messages(work)) => Some(work.bits_per_second? as f64 / 1e6),
            (Self::Mtu, _) => row.link_mtu.map(f64::from),
            _ => None,
        }
    }

    fn horizontal(&self, places: &[f64]) -> Option<Horizontal> {
        let high = places.iter().copied().reduce(f64::max)?;
        let low = places.iter().copied().reduce(f64::min)?;
        Some(match self {
            Self::Payload => {
                let powers = low.log2().floor() as i32..=high.log2().ceil() as i32;
                Horizontal::Doubling(powers.map(|power| 2_f64.powi(power)).collect())
            }
            Self::Rate | Self::Mtu => Horizontal::Linear(high),
        })
    }
}

/// The pictures of a section, if it is a sweep or compares keys of two lengths.
pub fn pictures(campaign: &SuiteCampaign, section: &Section, number: usize) -> Vec<Picture> {
    if section.name == UDP_SECTION {
        return shares_delivered(campaign, section, number);
    }
    if section.name == KEYS {
        return keys(campaign, section, number).into_iter().collect();
    }
    let Some(axis) = Axis::of(&section.name) else { return Vec::new() };
    let rows: Vec<&Row> = campaign.rows.iter().filter(|row| row.case.section == section.name).collect();
    let quantities = distinct(rows.iter().flat_map(|row| row.case.quantities.iter().copied()));
    let picture = |(quantity, at): (Quantity, usize)| {
        let (name, _) = quantity.name();
        let title = format!("{}: {name}", section.name);
        let svg = lines(campaign, (&title, &axis), section, &rows, quantity)?;
        Some(Picture::new(format!("suite-{number}-{at}"), &title, &spread_words(campaign), svg))
    };
    quantities.into_iter().zip(1..).filter_map(picture).collect()
}

/// The delivered share over the offered rate, one picture for each case.
fn shares_delivered(campaign: &SuiteCampaign, section: &Section, number: usize) -> Vec<Picture> {
    let cases = distinct(section.rows.iter().map(|row| row.case.as_str()));
    let picture = |(case, at): (&str, usize)| {
        let systems = section.columns.iter().map(|label| {
            let is_mine =
                |row: &&Row| row.label == *label && row.case.name == case && row.case.section == section.name;
            let searches = campaign.rows.iter().filter(is_mine);
            let searches = searches.filter_map(|row| Some((&row.case.task, row.search.as_ref()?)));
            (label.clone(), style(campaign, label), delivered::shares(searches))
        });
        let title = format!("UDP, {case}: delivered of what was offered");
        let svg = delivered::curve(&title, systems)?;
        Some(Picture::new(format!("suite-{number}-delivered-{at}"), &title, delivered::CAPTION, svg))
    };
    cases.into_iter().zip(1..).filter_map(picture).collect()
}

fn lines(
    campaign: &SuiteCampaign,
    (title, axis): (&str, &Axis),
    section: &Section,
    rows: &[&Row],
    quantity: Quantity,
) -> Option<String> {
    let places: Vec<f64> = rows.iter().filter_map(|row| axis.place(row)).collect();
    // Where nothing was lost there is nothing to see.
    let highest =
        rows.iter().filter_map(|row| row.value(quantity)).reduce(f64::max).filter(|most| *most > 0.0)?;
    let (scale, measure) = scaled(quantity, highest);
    let series = section.columns.iter().map(|label| {
        let style = style(campaign, label);
        let selected: Vec<&Row> = rows.iter().copied().filter(|row| row.label == *label).collect();
        let points = points(axis, &selected, |row| row.value(quantity).map(|value| value / scale));
        Series { label: label.clone(), style, points }
    });
    LineChart {
        title: title.to_owned(),
        x_label: axis.label().into(),
        measure,
        horizontal: axis.horizontal(&places)?,
        series: series.collect(),
    }
    .svg()
}

/// The repeats of one system, place by place.
fn points(axis: &Axis, rows: &[&Row], value: impl Fn(&Row) -> Option<f64>) -> Vec<Point> {
    let placed = rows.iter().filter_map(|row| Some((axis.place(row)?, value(row)?)));
    let mut placed: Vec<(f64, f64)> = placed.collect();
    placed.sort_by(|a, b| a.0.total_cmp(&b.0));
    let point = |same: &[(f64, f64)]| {
        let values: Vec<f64> = same.iter().map(|(_, value)| *value).collect();
        Some(Point::of(same[0].0, Spread::of(&values)?))
    };
    placed.chunk_by(|a, b| a.0 == b.0).filter_map(point).collect()
}

fn keys(campaign: &SuiteCampaign, section: &Section, number: usize) -> Option<Picture> {
    let columns = KEY_LENGTHS.map(|(cipher, bits)| {
        let column = section.columns.iter().position(|label| label.ends_with(cipher));
        column.map(|column| (column, bits))
    });
    let [Some(short), Some(long)] = columns else { return None };
    let rows = section.rows.iter().filter(|row| row.quantity == Quantity::Throughput);
    let bars = rows.flat_map(|row| {
        [short, long].into_iter().filter_map(|(column, bits)| {
            // Elsewhere on the page a colour stands for a system, so it does here.
            let style = style(campaign, section.columns.get(column)?);
            Some((format!("{bits}: {}", row.case), style, Point::of(0.0, row.cells[column].spread()?)))
        })
    });
    let title = "Length of the key: AES-GCM with 128 and with 256 bits".to_owned();
    let bars = bars.collect();
    let measure = Measure::higher_is_better("throughput, Mbit/s");
    let svg = BarChart { title: title.clone(), measure, bars }.svg()?;
    Some(Picture::new(format!("suite-{number}-keys"), &title, &spread_words(campaign), svg))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::message::Messages;

    use crate::report::chart::markup::assert_well_formed;
    use crate::report::delivered::tests::search;
    use crate::report::suite::sections;
    use crate::report::suite::tests::campaign;

    /// The sample with every measurement in `section`, 500 bytes and 20 Mbit/s for the first case,
    /// double for others.
    fn sample(section: &str) -> SuiteCampaign {
        let mut campaign = campaign();
        for row in &mut campaign.rows {
            let factor = if row.case.name == "IPv4" { 1 } else { 2 };
            row.case.section = section.into();
            row.link_mtu = Some(1500 * factor);
            row.case.task = Task::Messages(Messages {
                length: 500 * factor,
                bits_per_second: Some(20_000_000 * u64::from(factor)),
                ..Messages::default()
            });
        }
        campaign
    }

    fn drawn(campaign: &SuiteCampaign) -> Vec<Picture> {
        pictures(campaign, &sections(campaign)[0], 3)
    }

    #[test]
    fn each_quantity_of_a_sweep_is_a_picture_over_what_was_swept() {
        for (section, axis, tick) in [
            ("Sweep: payload of datagrams", "payload of a datagram, bytes", ">1024</text>"),
            ("Sweep: rate", "rate that was asked for, Mbit/s", ">40</text>"),
            ("Sweep: MTU", "MTU of the links, bytes", ">3000</text>"),
        ] {
            let pictures = drawn(&sample(section));
            let names: Vec<_> = pictures.iter().map(|picture| picture.name.as_str()).collect();
            assert_eq!(names, ["suite-3-1", "suite-3-2"], "throughput and loss");
            for picture in &pictures {
                assert_well_formed(&picture.svg);
                assert!(picture.svg.contains(axis) && picture.svg.contains(tick), "{}", picture.svg);
            }
            assert!(pictures[1].svg.contains(">lost, % (lower is better)</text>"));
        }
        assert!(drawn(&sample("Sweep: of the chimney")).is_empty());
    }

    #[test]
    fn the_trials_of_a_search_are_a_curve_of_what_was_delivered() {
        let mut campaign = sample(UDP_SECTION);
        assert!(drawn(&campaign).is_empty(), "nothing was searched");
        for row in &mut campaign.rows {
            // 500 or 1000 bytes: 4 Mbit/s are 1000 or 500 messages a second.
            row.search = Some(search(&[(4e6, 400.0), (2e6, 250.0), (4.1e6, 500.0)]));
        }
        let pictures = drawn(&campaign);
        assert_eq!(pictures.len(), 2, "one for each case");
        for picture in &pictures {
            assert_well_formed(&picture.svg);
            assert!(
                picture.svg.contains("offered rate, Mbit/s")
                    && picture.svg.contains(">delivered, % (higher is better)</text>")
            );
        }
        let row = &campaign.rows[0];
        let shares = delivered::shares(row.search.iter().map(|search| (&row.case.task, search)));
        assert_eq!((shares.len(), shares[0].offered, shares[0].delivered.median), (2, 2.0, 50.0));
        assert!((shares[1].offered - 4.05).abs() < 1e-9 && shares[1].delivered.n == 2, "{shares:?}");
    }

    #[test]
    fn a_quantity_that_is_zero_everywhere_is_no_picture() {
        let mut campaign = sample("Sweep: rate");
        for figures in campaign.rows.iter_mut().filter_map(|row| row.figures.as_mut()) {
            figures.lost_percent = Some(0.0);
        }
        assert_eq!(drawn(&campaign).len(), 1, "throughput alone");
    }

    #[test]
    fn large_figures_are_given_in_a_larger_unit() {
        let mut campaign = sample("Sweep: rate");
        for figures in campaign.rows.iter_mut().filter_map(|row| row.figures.as_mut()) {
            figures.received_bits_per_second *= 1000.0;
        }
        let svg = &drawn(&campaign)[0].svg;
        assert!(
            svg.contains(">throughput, Gbit/s (higher is better)</text>")
                && svg.contains(">50</text>")
                && svg.contains(">plain routing: 100, beyond this axis</text>"),
            "{svg}"
        );
    }

    #[test]
    fn repeats_at_one_place_are_one_point_with_their_range() {
        let campaign = sample("Sweep: MTU");
        let selected: Vec<&Row> = campaign.rows.iter().filter(|row| row.label == "aes-256-gcm").collect();
        let points = points(&Axis::Mtu, &selected, |row| row.value(Quantity::Throughput));
        let expected = [
            Point { x: 1500.0, y: 45.0, range: Some((40.0, 50.0)) },
            Point { x: 3000.0, y: 30.0, range: None },
        ];
        assert_eq!(points, expected, "and what broke is left out");
    }

    #[test]
    fn key_lengths_are_compared_only_if_both_were_measured() {
        let mut campaign = sample("TCP stream");
        assert!(drawn(&campaign).is_empty());
        campaign.rows[0].label = "aes-128-gcm".into();
        let pictures = drawn(&campaign);
        assert_eq!(pictures.len(), 1);
        assert!(pictures[0].svg.contains("128 bits: IPv4") && pictures[0].svg.contains("256 bits: IPv4"));
    }

    #[test]
    fn keys_have_the_colours_of_their_systems_in_the_other_pictures() {
        let mut campaign = sample("TCP stream");
        let mut short = campaign.rows[0].clone();
        short.label = "aes-128-gcm".into();
        campaign.rows.push(short);
        assert_eq!((style(&campaign, "plain routing"), style(&campaign, "aes-128-gcm")), (0, 2));
        let svg = &drawn(&campaign)[0].svg;
        assert!(svg.contains("bar s1") && svg.contains("bar s2") && !svg.contains("bar s0"), "{svg}");
    }
}
