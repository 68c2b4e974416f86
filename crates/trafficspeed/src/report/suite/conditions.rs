//! The conditions under which a suite was measured, in words: the links and the congestion control,
//! and for which parts, where these differ.

use crate::experiment::suite::{Row, SuiteCampaign};
use crate::load::task::{Protocol, Task};
use crate::stats::distinct;

/// All of them.
pub(super) fn all(campaign: &SuiteCampaign) -> Vec<String> {
    let links = campaign.environment.links.iter().map(|links| format!("Links: {links}."));
    links.chain(of_parts(campaign)).collect()
}

/// Those that may differ from part to part.
fn of_parts(campaign: &SuiteCampaign) -> Vec<String> {
    let mtu = groups(campaign, |row| row.link_mtu.map(|mtu| mtu.to_string()));
    let congestion =
        groups(campaign, |row| is_over_tcp(&row.case.task).then(|| row.case.task.congestion().to_string()));
    // The one MTU stands with the links.
    let mtu = (mtu.len() > 1).then(|| words("MTU of the links", &mtu));
    let congestion = (!congestion.is_empty())
        .then(|| words("Congestion control of the measured connections", &congestion));
    mtu.into_iter().chain(congestion).collect()
}

fn is_over_tcp(task: &Task) -> bool {
    match task {
        Task::Bulk(_) | Task::Pages(_) => true,
        Task::Messages(work) => work.protocol == Protocol::Tcp,
        Task::Exchange(work) => work.protocol == Protocol::Tcp,
    }
}

/// The parts of a campaign that were measured under the same values.
struct Group<'a> {
    values: Vec<String>,
    parts: Vec<&'a str>,
}

fn groups(campaign: &SuiteCampaign, value: impl Fn(&Row) -> Option<String>) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for part in distinct(campaign.rows.iter().map(|row| row.case.section.as_str())) {
        let rows = campaign.rows.iter().filter(|row| row.case.section == part);
        let mut values = distinct(rows.filter_map(&value));
        // Turns change their order from round to round.
        values.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
        match groups.iter_mut().find(|group| group.values == values) {
            _ if values.is_empty() => {}
            Some(group) => group.parts.push(part),
            None => groups.push(Group { values, parts: vec![part] }),
        }
    }
    groups
}

/// A condition that all parts have in common once, one that differs with the parts that have it.
fn words(condition: &str, groups: &[Group<'_>]) -> String {
    let group = |group: &Group<'_>| {
        let parts = if groups.len() > 1 { format!(" ({})", group.parts.join("; ")) } else { String::new() };
        format!("{}{parts}", group.values.join(", "))
    };
    format!("{condition}: {}.", groups.iter().map(group).collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::suite::tests::campaign;

    #[test]
    fn shared_conditions_are_listed_once() {
        let mut campaign = campaign();
        campaign.environment.links = Some("links of the lab, MTU 1500".into());
        let congestion = "Congestion control of the measured connections: cubic.";
        assert_eq!(all(&campaign), ["Links: links of the lab, MTU 1500.", congestion]);
        for (row, mtu) in campaign.rows[3..].iter_mut().zip([9_000, 1_280]) {
            (row.case.section, row.link_mtu) = ("Sweep: MTU".into(), Some(mtu));
        }
        campaign.rows[4].case.task.set_congestion("reno".parse().unwrap());
        assert_eq!(
            of_parts(&campaign),
            [
                "MTU of the links: 1500 (One TCP transfer over time); 1280, 9000 (Sweep: MTU).",
                "Congestion control of the measured connections: cubic (One TCP transfer over time); reno, cubic (Sweep: MTU).",
            ]
        );
        let text = crate::report::suite::document(&campaign).text(true, true);
        assert!(
            text.contains("Links: links of the lab") && text.contains("1280, 9000 (Sweep: MTU)"),
            "{text}"
        );
        campaign.rows.clear();
        assert_eq!(of_parts(&campaign), [""; 0]);
    }
}
