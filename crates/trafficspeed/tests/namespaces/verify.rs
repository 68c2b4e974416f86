//! The comparison with other generators: with stand-ins where they are to be missing or wrong, with
//! the real ones where they are installed.

use serde_json::Value;

use super::{can_run, run};

#[test]
fn without_any_other_generator_nothing_is_compared_and_what_installs_them_is_said() {
    if !can_run() {
        return;
    }
    let output = run(
        "verify --vpn none -t 1 --repeat 1 --program iperf3=/nonexistent/a --program nuttcp=/nonexistent/b",
    );
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("nothing to compare with") && said.contains("/nonexistent/a"), "{said}");
}

#[test]
fn a_generator_that_fails_has_no_figure_and_is_no_agreement() {
    if !can_run() {
        return;
    }
    // It ends at once, so it never listens; and every namespace may have Reno, which nuttcp can't
    // be told to use.
    let line = "verify --vpn none -C reno -t 1 --repeat 2 -q -J --program iperf3=/bin/false --program nuttcp=/nonexistent/b";
    let output = run(line);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let generators = report["measured"]["generators"].as_array().expect("generators");
    let rates = |at: usize| {
        let rates = generators[at]["bits_per_second"].as_array().expect("rates");
        rates.iter().filter(|rate| rate.as_f64() > Some(0.0)).count()
    };
    assert_eq!([rates(0), rates(1), rates(2), rates(3)], [2, 0, 0, 2], "{report:#}");
    let problem = |at: usize| generators[at]["problem"].as_str().unwrap_or_default().to_owned();
    assert!(
        problem(1).contains("iperf3 (server) ended") && problem(2).contains("/nonexistent/b"),
        "{report:#}"
    );
    assert_eq!(report["agrees"], false);
}
