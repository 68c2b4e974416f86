//! Several results of experiment 1 in one chart: other server configurations, such as processors
//! with and without AES instructions, kernels, or shares of the CPU.
//!
//! Nothing is compared across them: no round is common to two, and so no ratio is formed.

use super::document::Document;
use super::observed;
use super::pictures::pictures;
use super::table::FIGURES;
use crate::experiment::outcome::Campaign;
use crate::unit::Unit;

/// The pictures of all results; those of ratios and of single runs belong to one result.
const SHARED: [&str; 7] =
    ["goodput", "cost", "cost-gateway", "round-trip", "round-trip-99", "communication", "communication-bare"];

/// The runs of all results as those of one, each system with the name of its result.
pub fn together(all: Vec<(String, Campaign)>) -> Option<Campaign> {
    let mut results = all.into_iter();
    let named = |(name, campaign): (String, Campaign)| {
        let rename = move |label: &String| format!("{label} ({name})");
        let systems: Vec<String> = campaign.labels().iter().map(&rename).collect();
        let mut runs = campaign.runs;
        // A control belongs to its own result only.
        runs.retain(|run| run.subject.is_none_or(|subject| !subject.again));
        for run in &mut runs {
            run.label = rename(&run.label);
            // The environment of the first result is shown as that of all.
            if let Some(subject) = &mut run.subject {
                subject.gateway_cpu = subject.gateway_cpu.or(campaign.environment.gateway_cpu);
            }
        }
        let mut settings = campaign.settings;
        settings.systems = systems;
        Campaign { settings, runs, ..campaign }
    };
    let mut first = named(results.next()?);
    for other in results.map(named) {
        first.settings.systems.extend(other.settings.systems);
        first.runs.extend(other.runs);
        first.interrupted |= other.interrupted;
    }
    let Campaign { settings, environment, runs, interrupted, .. } = first;
    Some(Campaign::new(settings, environment, runs, interrupted, None))
}

/// The report; `machines` says where each was measured.
pub fn document(campaign: &Campaign, machines: Vec<String>, unit: Unit) -> Document<'_> {
    let lead =
        "Several results side by side. No round is common to two of them, so nothing is claimed across them.";
    let mut document = Document::new("TrafficSpeed", "TrafficSpeed", lead.to_owned(), None);
    document.interrupted = campaign.interrupted;
    document.lines(machines);
    let drawn = pictures(campaign).into_iter().filter(|picture| SHARED.contains(&picture.name.as_str()));
    document.pictures(drawn.collect());
    document.section("Figures");
    let table = campaign.observations();
    document.table(observed::grid(&table, &campaign.cases(), &FIGURES, Some(unit)).without_empty());
    document.words(observed::MEDIANS);
    document
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::observations::LIMIT_USED;
    use crate::experiment::outcome::samples;
    use crate::report::chart::markup::assert_well_formed;
    use crate::system::Subject;

    #[test]
    fn each_system_has_a_curve_for_each_result_and_nothing_is_compared() {
        let mut other = samples::campaign();
        let mut again = other.runs[0].clone();
        again.subject = again.subject.map(Subject::again);
        again.label = again.subject.unwrap().label();
        other.runs.push(again);
        other.environment.gateway_cpu = Some("0.5".parse().unwrap());
        let merged = together(vec![("a".into(), samples::campaign()), ("b".into(), other)]).unwrap();
        let limits = ["a", "b"].map(|name| {
            let label = format!("vpnd, aes-256-gcm ({name})");
            merged.observations().values(&label, "2 clients", LIMIT_USED)
        });
        assert!(limits[0].is_empty() && limits[1].len() == 3, "{limits:?}");
        let shown = document(&merged, vec!["a: Machine: one".into()], Unit::Gbit);
        assert_well_formed(&shown.page());
        let text = shown.text(true, false);
        for label in
            ["vpnd, aes-256-gcm (a)", "vpnd, aes-256-gcm (b)", "plain routing (a)", "plain routing (b)"]
        {
            assert!(text.contains(label), "{label}: {text}");
        }
        assert!(!text.contains("A/A") && !text.contains("(again)"), "{text}");
        let names: Vec<String> = shown.into_pictures().into_iter().map(|picture| picture.name).collect();
        assert_eq!(
            names,
            ["cost-gateway", "goodput", "cost", "round-trip", "round-trip-99", "communication"]
        );
        assert!(together(Vec::new()).is_none());
    }
}
