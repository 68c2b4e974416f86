//! Experiment 3: the stages as `vpnd-stages` measures them, a prediction from them, and the real `vpnd`.

use std::path::Path;

use serde_json::Value;

use super::vpn::real_vpnd;
use super::{PROGRAM, can_run, measured, report_again};

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

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
        "model --cipher aes-256-gcm --millis 1 -t 0.5 -O 0.2 --repeat 1 --target 10gbit --vpnd {} --stages {} --out {} -J",
        vpnd.display(),
        stages.display(),
        out.path().display()
    );
    let report = measured(&line);
    assert_eq!(report["whole"], true, "{report:#}");
    let summary = &report["summary"][0];
    for figure in ["predicted_seconds_per_gbit", "measured_seconds_per_gbit", "measured_bits_per_second"] {
        assert!(number(&summary[figure]) > 0.0, "{summary:#}");
    }
    let suite = &report["model"]["suites"][0];
    let parts = suite["ahead"]["parts"].as_array().expect("stages");
    for stage in ["TUN read", "seal", "UDP send", "UDP receive", "open", "TUN write"] {
        let part = parts.iter().find(|part| part["stage"] == stage);
        assert!(part.is_some_and(|part| number(&part["ns_per_byte"]) > 0.0), "{stage}: {parts:#?}");
    }
    assert_eq!(suite["targets"][0]["needs"].as_array().map(Vec::len), Some(parts.len()));
    assert_eq!(report_again(out.path(), &report), ["model-cost.svg"]);
    let segment = number(&suite["real"]["shape"]["mss"]);
    assert!((500.0..1500.0).contains(&segment), "the pieces are those of the tunnel: {suite:#}");
}
