//! Everything that went wrong in an experiment, each thing said once.

/// A fault: the system, in which of its measurements, and what went wrong.
pub type Problem = (String, String, String);

/// One line for each problem of each system, in the order in which they appeared: where it came
/// first, and how often it came again.
pub fn said_once(all: impl IntoIterator<Item = Problem>) -> Vec<String> {
    let mut lines: Vec<(Problem, usize)> = Vec::new();
    for problem in all {
        match lines.iter_mut().find(|((system, _, text), _)| (system, text) == (&problem.0, &problem.2)) {
            Some((_, again)) => *again += 1,
            None => lines.push((problem, 0)),
        }
    }
    let line = |((system, place, text), again): (Problem, usize)| {
        let place = if place.is_empty() { system } else { format!("{system}, {place}") };
        let more = if again > 0 { format!(" and {again} more") } else { String::new() };
        format!("{place}{more}: {text}")
    };
    lines.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_listed_once_with_its_first_place_and_count() {
        let problem = |system: &str, place: &str, text: &str| (system.into(), place.into(), text.into());
        let all = [
            problem("vpnd", "run 1", "it died"),
            problem("OpenVPN", "", "is not installed"),
            problem("vpnd", "run 2", "it died"),
            problem("vpnd", "run 3", "no address"),
            problem("vpnd", "run 4", "it died"),
        ];
        let said =
            ["vpnd, run 1 and 2 more: it died", "OpenVPN: is not installed", "vpnd, run 3: no address"];
        assert_eq!(said_once(all), said);
    }
}
