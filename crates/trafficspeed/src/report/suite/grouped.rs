//! The original's figures 6 to 11: streams, datagrams, transactions and flows of every system side
//! by side, a picture for each IP version and quantity, with every single run.

use super::pictures::{scaled, style};
use super::{Section, SectionRow, SuiteCampaign};
use crate::experiment::suite::Quantity;
use crate::experiment::suite::flows::SHORT_FLOWS;
use crate::experiment::suite::ipsec::UDP_SECTION;
use crate::report::chart::{BoxChart, BoxSeries};
use crate::report::page::Picture;

/// The sections that are drawn so, each with its quantity.
const DRAWN: [(&str, Quantity); 4] = [
    ("TCP stream", Quantity::Throughput),
    (UDP_SECTION, Quantity::Throughput),
    ("Request and response", Quantity::Transactions),
    (SHORT_FLOWS, Quantity::Flow50),
];

pub fn pictures(campaign: &SuiteCampaign, section: &Section, number: usize) -> Vec<Picture> {
    let Some((_, quantity)) = DRAWN.iter().find(|(name, _)| *name == section.name) else { return Vec::new() };
    let picture = |version: &str| {
        let begin = format!("{version}, ");
        let rows: Vec<&SectionRow> = section
            .rows
            .iter()
            .filter(|row| row.quantity == *quantity && row.case.starts_with(&begin))
            .collect();
        let values = rows.iter().flat_map(|row| &row.cells).flat_map(|cell| cell.values.values());
        let (scale, measure) = scaled(*quantity, values.copied().reduce(f64::max)?);
        let series = section.columns.iter().zip(0..).map(|(label, at)| BoxSeries {
            label: label.clone(),
            style: style(campaign, label),
            groups: rows
                .iter()
                .map(|row| row.cells[at].values.values().map(|value| value / scale).collect())
                .collect(),
        });
        let title = format!("{}, {version}", section.name);
        let svg = BoxChart {
            title: title.clone(),
            x_label: section.name.clone(),
            measure,
            groups: rows.iter().map(|row| short(row.case.trim_start_matches(&begin))).collect(),
            series: series.collect(),
        }
        .svg()?;
        let caption = "Each dot is one run, marker and line are the median, whiskers go from the lowest to the highest.";
        Some(Picture::new(format!("suite-{number}-{}", version.to_lowercase()), &title, caption, svg))
    };
    ["IPv4", "IPv6"].into_iter().filter_map(picture).collect()
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
    fn each_ip_version_has_a_picture_of_all_systems() {
        let mut campaign = campaign();
        for row in &mut campaign.rows {
            row.case.section = "TCP stream".into();
            row.case.name = format!("{}, socket buffers of 57344 bytes", row.case.name);
        }
        let drawn = pictures(&campaign, &sections(&campaign)[0], 2);
        let names: Vec<&str> = drawn.iter().map(|picture| picture.name.as_str()).collect();
        assert_eq!(names, ["suite-2-ipv4", "suite-2-ipv6"]);
        assert!(drawn[0].svg.contains(">plain routing: 100, beyond this axis</text>"), "{}", drawn[0].svg);
        for picture in &drawn {
            assert_well_formed(&picture.svg);
            assert!(picture.svg.contains(">57344 bytes</text>") && picture.svg.contains("higher is better"));
        }
        assert_eq!(drawn[0].svg.matches("class=\"dot").count(), 2, "every run that stands");
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
