//! Experiment 3: the stages as `vpnd-stages` measures them, kernel and all, what their sum says,
//! and the real `vpnd`.

use std::path::Path;

use serde_json::Value;

use super::vpn::real_vpnd;
use super::{PROGRAM, can_run, measured, number, report_again};

const SUM: [&str; 2] = ["sum of stages", "error of the sum"];
const MEASURED: [&str; 2] = ["VPN CPU per Gbit", "throughput"];

#[test]
fn stages_are_measured_and_compared_with_the_real_vpnd() {
    if !can_run() {
        return;
    }
    let Some(vpnd) = real_vpnd() else { return };
    let stages = Path::new(PROGRAM).with_file_name("vpnd-stages");
    assert!(stages.is_file(), "run `cargo build -p vpnd-benches`, or test the whole workspace");
    let out = tempfile::tempdir().expect("a directory");
    let line = format!(
        "model --cipher none,aes-256-gcm --packet 1280 -P 1,2 --millis 1 -t 0.5 -O 0.2 --repeat 1 --target 1mbit --target 10000gbit \
         --vpnd {} --program vpnd-stages={} --out {} -J",
        vpnd.display(),
        stages.display(),
        out.path().display()
    );
    let report = measured(&line);
    assert_eq!(report["whole"], true, "{report:#}");
    let median = |suite: &str, case: &str, quantity: &str| {
        let all = report["observed"]["summary"].as_array().expect("a summary").iter();
        let mut found =
            all.filter(|one| one["system"] == suite && one["case"] == case && one["quantity"] == quantity);
        found.next().map(|one| number(&one["median"]))
    };
    for suite in ["none", "aes-256-gcm"] {
        for case in ["1280 bytes, streams: 1", "1280 bytes, streams: 2"] {
            let figure = |quantity: &str| median(suite, case, quantity);
            for quantity in MEASURED.into_iter().chain([SUM[0]]) {
                assert!(figure(quantity) > Some(0.0), "{suite}, {case}, {quantity}: {report:#}");
            }
            assert!(figure(SUM[1]) > Some(-1.0), "{report:#}");
        }
    }
    stages_of_the_kernel_have_costs(&report);
    let about = report["about"].as_str().expect("a sentence");
    assert!(about.contains("The sums are off by "), "{about}");
    let targets = report["sums"][0]["targets"].as_array().expect("targets");
    assert_eq!(
        (&targets[0]["reached"], &targets[1]["reached"]),
        (&true.into(), &false.into()),
        "{targets:#?}"
    );
    assert_eq!(report_again(out.path(), &report), ["model-cost.svg"]);
}

/// Each system call that the data and their acknowledgements pass costs something, fitted from
/// enough sizes.
fn stages_of_the_kernel_have_costs(model: &Value) {
    let costs = model["costs"].as_array().expect("stages");
    for stage in [
        "TUN read",
        "UDP send",
        "UDP receive",
        "TUN write into the receiving TCP",
        "TUN write of acknowledgements into the sending TCP",
    ] {
        let cost = costs.iter().find(|cost| cost["stage"] == stage).unwrap_or_else(|| panic!("no {stage}"));
        let terms = cost["terms"].as_array().expect("terms");
        let whole: f64 = terms.iter().map(|term| number(&term[1])).sum();
        assert!(whole > 0.0 && number(&cost["sizes"]) >= 3.0, "{cost:#}");
    }
}
