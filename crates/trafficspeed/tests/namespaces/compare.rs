//! Comparisons with the real program: rounds, interruptions, refusals, a machine that is not quiet.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::vpn::real_vpnd;
use super::{can_run, cleaning, interrupted, listed, measured, namespaces_of, run, trafficspeed, wait_until};

/// Options with which a noisy machine is as good as any.
const ANY_NOISE: &str = "--max-steal 100 --max-foreign 100";

/// The runs that a journal holds, whole lines only.
fn saved(directory: &Path) -> Vec<Value> {
    let text = fs::read_to_string(directory.join("measurements.jsonl")).unwrap_or_default();
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).skip(1);
    lines.map(|line| serde_json::from_str::<Value>(line).expect("JSON")["run"].take()).collect()
}

fn labels(runs: &[Value]) -> Vec<&str> {
    runs.iter().map(|run| run["label"].as_str().expect("a label")).collect()
}

#[test]
fn a_comparison_with_plain_routing_gives_ratios_costs_and_reports() {
    if !can_run() {
        return;
    }
    let Some(program) = real_vpnd() else { return };
    let out = tempfile::tempdir().expect("a directory");
    let line = format!(
        "compare --vpn vpnd,none --vpnd {} --clients 2 -P 2 -t 0.5 -O 0.1 --repeat 2 {ANY_NOISE} --baseline vpnd --priority own \
         --out {}",
        program.display(),
        out.path().display()
    );
    let report = measured(&format!("{line} --json"));
    let runs = saved(out.path());
    for turns in labels(&runs).chunks_mut(3) {
        turns.sort_unstable();
        assert_eq!(*turns, ["plain routing", "vpnd", "vpnd (again)"], "all in each round, in whatever order");
    }
    let shown = report["runs"].as_array().expect("runs").iter().map(|run| run["label"].as_str());
    let order = ["vpnd", "plain routing", "vpnd (again)"].map(Some);
    assert!(shown.eq(order.into_iter().cycle().take(6)), "the order of reports: {report:#}");
    let found = |list: &str, quantity: &str, first: &str| -> Value {
        let all = report["observed"][list].as_array().expect("a list").iter();
        let is_it = |one: &&Value| {
            one["quantity"] == quantity
                && (one["first"] == first || (first.is_empty() && one["system"] == "vpnd"))
        };
        all.into_iter().find(is_it).unwrap_or_else(|| panic!("{quantity} in {report:#}")).clone()
    };
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {report:#}"));
    let ratio = found("comparison", "goodput", "plain routing");
    assert_eq!((&ratio["system"], &ratio["control"]["n"]), (&"vpnd".into(), &2.into()));
    assert!(number(&ratio["control"]["median"]) > 0.0 && ratio["differs_from_first"].is_null(), "two rounds");
    assert!(number(&ratio["ratio_to_first"]["low"]) <= number(&ratio["ratio_to_first"]["median"]));
    assert_eq!(found("comparison", "goodput", "vpnd")["system"], "plain routing", "with the baseline");
    let median = |quantity: &str| number(&found("summary", quantity, "")["median"]);
    assert!(median("VPN CPU per Gbit") > median("gateway CPU per Gbit"));
    assert_eq!(found("summary", "goodput", "")["n"], 2);
    for name in ["report.json", "report.csv", "report.html"] {
        assert!(out.path().join(name).is_file(), "{name}");
    }
    // All is measured: to resume measures nothing, and other settings are refused before anything
    // is changed.
    let resume = format!("compare --resume {}", out.path().display());
    assert_eq!(measured(&format!("{resume} --json"))["runs"].as_array().map(Vec::len), Some(6));
    let other = run(&format!("{resume} --vpn none --clients 2 -P 2 -t 0.5 -O 0.1 --repeat 2 {ANY_NOISE}"));
    let said = String::from_utf8_lossy(&other.stderr);
    assert_eq!(other.status.code(), Some(2), "{said}");
    assert!(said.contains("systems (--vpn, --cipher) is not what it was"), "{said}");
    assert!(
        said.contains("vpnd; plain routing; vpnd (again) then, plain routing; plain routing (again) now"),
        "{said}"
    );
    let again = run(&line);
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(
        again.status.code() == Some(2) && said.contains("--force") && said.contains("--resume"),
        "{said}"
    );
}

/// Starts or goes on with a comparison and waits until it has saved `runs` results and works on the
/// next.
fn start_until(line: &str, directory: &Path, runs: usize) -> Child {
    let mut child = trafficspeed(line)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program was built");
    let pid = child.id();
    let deadline = Instant::now() + Duration::from_secs(60);
    while saved(directory).len() < runs || namespaces_of(pid).len() < 3 {
        let ended = child.try_wait().expect("a child");
        if ended.is_some() || Instant::now() > deadline {
            // The message below says what happened; the child must not outlive it.
            let _ = child.kill();
            panic!("it should be at measurement {runs}, but: {ended:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

#[test]
fn an_interrupted_or_killed_comparison_can_be_resumed() {
    if !can_run() {
        return;
    }
    let _alone = cleaning();
    let out = tempfile::tempdir().expect("a directory");
    let directory = out.path().join("new");
    let begin = format!(
        "compare --vpn none --no-control --clients 2 -P 2 -t 1 -O 0 --repeat 3 {ANY_NOISE} --out {} --json",
        directory.display()
    );
    let child = start_until(&begin, &directory, 1);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(listed(&interrupted(child), "goodput")[0].1, "");

    let first = saved(&directory);
    let resume = format!("compare --resume {} --json", directory.display());
    let mut child = start_until(&resume, &directory, first.len() + 1);
    let busy = run(&resume);
    assert!(String::from_utf8_lossy(&busy.stderr).contains("in use by another"), "{busy:?}");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let kept = saved(&directory);
    assert_eq!(kept[..first.len()], first[..], "what was saved stays as it is");
    let journal = directory.join("measurements.jsonl");
    let torn = [fs::read(&journal).expect("a journal"), b"{\"run\":{\"label\":\"pl".to_vec()].concat();
    fs::write(&journal, torn).expect("a torn line");
    wait_until("namespaces of the killed run are removed", || run("cleanup").status.success());

    let report = measured(&resume);
    let rows = report["observed"]["values"].as_array().expect("values").iter();
    let whole = rows.filter(|row| row["quantity"] == "goodput" && row["problem"] == "");
    let rounds: Vec<_> = whole.map(|row| row["round"].as_u64()).collect();
    assert_eq!(rounds, [Some(1), Some(2), Some(3)], "each round once");
    assert_eq!(report["observed"]["summary"][0]["n"], 3);
}

#[test]
fn a_disturbed_measurement_is_repeated_and_the_quietest_counts() {
    if !can_run() {
        return;
    }
    let out = tempfile::tempdir().expect("a directory");
    let done = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&done);
    // To the program this process is a stranger.
    let noise = std::thread::spawn(move || while !until.load(Ordering::Relaxed) {});
    let line = format!(
        "compare --vpn none --no-control --clients 2 -P 2 -t 0.5 -O 0 --repeat 1 --max-steal 100 --max-foreign 0 --attempts 2 \
         --out {} --json",
        out.path().display()
    );
    let output = run(&line);
    done.store(true, Ordering::Relaxed);
    noise.join().expect("it only counted");
    assert_eq!(output.status.code(), Some(3), "no attempt was quiet");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 2, "{report:#}");
    let whole = listed(&report, "goodput").into_iter().filter(|(_, problem)| problem.is_empty());
    assert_eq!(whole.count(), 1, "{report:#}");
    for run in runs {
        let said = run["disturbance"].as_str().expect("a disturbance");
        assert!(said.starts_with("other processes used ") && said.ends_with("(0 % are allowed)"), "{said}");
    }
    assert_eq!(report["observed"]["summary"][0]["n"], 1, "the quieter attempt is the result");
}
