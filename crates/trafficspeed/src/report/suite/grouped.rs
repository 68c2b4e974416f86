//! The original's figures 6 to 11: streams, datagrams and transactions of every system side by
//! side, a picture for each IP version and quantity, with every single run.

use super::pictures::{scaled, style};
use super::{Section, SectionRow, SuiteCampaign};
use crate::experiment::suite::Quantity;
use crate::experiment::suite::ipsec::UDP_SECTION;
use crate::report::chart::{BoxChart, BoxSeries};
use crate::report::page::Picture;

/// The ceiling, as reports call it.
const PLAIN: &str = "plain routing";
/// The VPNs get a picture of their own beside the one with the ceiling where that is so much
/// higher.
const DWARFS: f64 = 2.0;
/// The sections that are drawn so, each with its quantity.
const DRAWN: [(&str, Quantity); 3] = [
    ("TCP stream", Quantity::Throughput),
    (UDP_SECTION, Quantity::Throughput),
    ("Request and response", Quantity::Transactions),
];

/// The pictures of a section.
pub fn pictures(campaign: &SuiteCampaign, section: &Section, number: usize) -> Vec<Picture> {
    let Some((_, quantity)) = DRAWN.iter().find(|(name, _)| *name == section.name) else { return Vec::new() };
    let picture = |version: &str, with_plain: bool| {
        let begin = format!("{version}, ");
        let rows: Vec<&SectionRow> = section
            .rows
            .iter()
            .filter(|row| row.quantity == *quantity && row.case.starts_with(&begin))
            .collect();
        let is_shown = |at: usize| with_plain || section.columns[at] != PLAIN;
        let most = |is_shown: &dyn Fn(usize) -> bool| {
            let values =
                rows.iter().flat_map(|row| row.values.iter().zip(0..).filter(|(_, at)| is_shown(*at)));
            values.flat_map(|(values, _)| values.values()).copied().reduce(f64::max)
        };
        let highest = most(&is_shown)?;
        if !with_plain && most(&|_| true)? < DWARFS * highest {
            return None;
        }
        let (scale, measure) = scaled(*quantity, highest);
        let shown = section.columns.iter().zip(0..).filter(|(_, at)| is_shown(*at));
        let series = shown.map(|(label, at)| BoxSeries {
            label: label.clone(),
            style: style(campaign, label),
            groups: rows
                .iter()
                .map(|row| row.values[at].values().map(|value| value / scale).collect())
                .collect(),
        });
        let (words, end) = if with_plain { ("", "") } else { (", the VPNs alone", "-vpns") };
        let title = format!("{}, {version}{words}", section.name);
        let svg = BoxChart {
            title: title.clone(),
            x_label: section.name.clone(),
            measure,
            groups: rows.iter().map(|row| short(row.case.trim_start_matches(&begin))).collect(),
            series: series.filter(|series| series.groups.iter().any(|group| !group.is_empty())).collect(),
        }
        .svg()?;
        let caption = "Each dot is one run, marker and line are the median, whiskers go from the lowest to the highest.";
        let name = format!("suite-{number}-{}{end}", version.to_lowercase());
        Some(Picture { name, title, caption: caption.to_owned(), svg })
    };
    let each = ["IPv4", "IPv6"].into_iter().flat_map(|version| [(version, true), (version, false)]);
    each.filter_map(|(version, with_plain)| picture(version, with_plain)).collect()
}

/// A case's name with as many words as fit below a group.
fn short(case: &str) -> String {
    case.replace("socket buffers of ", "").replace("datagrams of ", "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::chart::markup::assert_well_formed;
    use crate::report::suite::sections;
    use crate::report::suite::tests::campaign;

    #[test]
    fn every_system_stands_beside_the_others_in_a_picture_for_each_ip_version() {
        let mut campaign = campaign();
        for row in &mut campaign.rows {
            row.case.section = "TCP stream".into();
            row.case.name = format!("{}, socket buffers of 57344 bytes", row.case.name);
        }
        let drawn = pictures(&campaign, &sections(&campaign)[0], 2);
        let names: Vec<&str> = drawn.iter().map(|picture| picture.name.as_str()).collect();
        assert_eq!(
            names,
            ["suite-2-ipv4", "suite-2-ipv4-vpns", "suite-2-ipv6"],
            "plain routing is twice as fast over IPv4"
        );
        assert!(drawn[0].svg.contains("plain routing") && !drawn[1].svg.contains("plain routing"));
        for picture in &drawn {
            assert_well_formed(&picture.svg);
            assert!(picture.svg.contains(">57344 bytes</text>") && picture.svg.contains("higher is better"));
        }
        assert_eq!(drawn[0].svg.matches("class=\"dot").count(), 3, "every run that stands");
        campaign.rows.iter_mut().for_each(|row| row.case.section = "Live video over UDP".into());
        assert!(pictures(&campaign, &sections(&campaign)[0], 2).is_empty());
    }

    #[test]
    fn a_system_has_one_style_whatever_else_is_in_a_section() {
        let mut campaign = campaign();
        assert_eq!((style(&campaign, "plain routing"), style(&campaign, "aes-256-gcm")), (0, 1));
        campaign.rows[3].label = "aes-256-gcm, without AES instructions".into();
        assert_eq!(style(&campaign, "aes-256-gcm, without AES instructions"), 1);
        campaign.rows[4].label = "auth-only".into();
        assert_eq!(style(&campaign, "auth-only"), 2);
    }
}
