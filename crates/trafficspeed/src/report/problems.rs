//! Everything that went wrong in a campaign, each thing said once.

use crate::experiment::outcome::{Campaign, Run};

/// One line for each problem of each system, in the order they appeared; a problem that came again
/// and again says how often instead of where.
pub fn problems(campaign: &Campaign) -> Vec<String> {
    let mut lines = Vec::new();
    for label in campaign.labels() {
        let mut seen: Vec<(String, Vec<&Run>)> = Vec::new();
        for run in campaign.runs.iter().filter(|run| run.label == label) {
            for problem in run.problems() {
                match seen.iter_mut().find(|(known, _)| *known == problem) {
                    Some((_, runs)) => runs.push(run),
                    None => seen.push((problem, vec![run])),
                }
            }
        }
        lines.extend(seen.into_iter().map(|(problem, runs)| match runs[..] {
            [run] => format!("{}: {problem}", place(run)),
            _ => format!("{label} ({} measurements): {problem}", runs.len()),
        }));
    }
    lines
}

/// Which measurement a run is, for people.
pub fn place(run: &Run) -> String {
    let attempt = if run.attempt > 1 { format!(", attempt {}", run.attempt) } else { String::new() };
    format!("{}, {} clients, run {}{attempt}", run.label, run.clients, run.repeat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;
    use crate::system::Kind;

    #[test]
    fn a_problem_is_said_once_with_its_place_or_how_often_it_came() {
        let mut campaign = samples::campaign();
        campaign.runs.retain(|run| run.error.is_some());
        for repeat in 1..=3 {
            let mut run = samples::run(Kind::None, 2, repeat, 1);
            run.error = Some("is not installed".into());
            campaign.runs.push(run);
        }
        campaign.runs[0].attempt = 2;
        let mut broken_off = samples::run(Kind::Vpnd, 4, 2, 1);
        (broken_off.error, broken_off.interrupted) = (Some("interrupted before it was up".into()), true);
        campaign.runs.push(broken_off);
        assert_eq!(
            problems(&campaign),
            [
                "vpnd, aes-256-gcm, 16 clients, run 1, attempt 2: vpnd <did> not come up & \"died\"",
                "vpnd, aes-256-gcm, 4 clients, run 2: unfinished: interrupted before it was up",
                "plain routing (3 measurements): is not installed",
            ]
        );
    }
}
