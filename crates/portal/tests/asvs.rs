//! The table of docs/ASVS.md: each requirement once, in order, with tests that exist or a reason.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

/// How a row without a test begins.
const REASONS: [&str; 4] = ["not applicable: ", "not met: ", "documented: ", "without a test: "];

/// A requirement of the table.
struct Row<'t> {
    number: Vec<u32>,
    words: &'t str,
    evidence: &'t str,
}

fn rows(text: &str) -> Vec<Row<'_>> {
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.splitn(3, " | ");
        let (number, words, evidence) = (cells.next()?, cells.next()?, cells.next()?);
        let number = number.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>().ok()?;
        Some(Row { number, words, evidence })
    });
    rows.collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files that may have a test of this path, whose first part is a crate.
fn files(path: &[&str]) -> Vec<PathBuf> {
    let (krate, modules) = path.split_first().unwrap();
    let without_tests = modules.strip_suffix(&["tests"]).unwrap_or(modules);
    let places = [modules, without_tests].map(|modules| modules.join("/"));
    let directory = root().join("crates").join(krate);
    let mut files = Vec::new();
    for place in places {
        let src = if place.is_empty() { "lib".to_owned() } else { place.clone() };
        files.push(directory.join(format!("src/{src}.rs")));
        files.push(directory.join(format!("tests/{place}.rs")));
    }
    files
}

/// Whether there is a test of this name, such as `auth::portal::visits::tests::a_visit_ends`.
fn is_test(name: &str) -> bool {
    let path: Vec<&str> = name.split("::").collect();
    let Some((function, modules)) = path.split_last() else { return false };
    let has_it = |text: String| {
        let Some((before, _)) = text.split_once(&format!("fn {function}()")) else { return false };
        let attributes = before.trim_end().trim_end_matches("async").trim_end();
        let kinds = ["#[test]", "#[tokio::test]", "#[tokio::test(start_paused = true)]"];
        kinds.iter().any(|kind| attributes.ends_with(kind))
    };
    modules.len() > 1 && files(modules).iter().any(|file| fs::read_to_string(file).is_ok_and(has_it))
}

fn table() -> String {
    fs::read_to_string(root().join("docs/ASVS.md")).unwrap()
}

#[test]
fn each_requirement_is_there_once_with_tests_that_exist_or_a_reason() {
    let text = table();
    let rows = rows(&text);
    assert!(rows.len() >= 130, "{} requirements", rows.len());
    assert!(rows.windows(2).all(|pair| pair[0].number < pair[1].number), "in order, each once");
    let mut tests = 0;
    for Row { number, words, evidence } in &rows {
        assert_eq!(number.len(), 3, "{number:?}");
        assert!((2..=12).contains(&words.split_whitespace().count()), "{number:?}: in a few words: {words}");
        if let Some(reason) = REASONS.iter().find_map(|kind| evidence.strip_prefix(kind)) {
            assert!(reason.len() > 10, "{number:?}: {reason}");
            continue;
        }
        for named in evidence.split(", ") {
            let name = named.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
            let name = name.unwrap_or_else(|| panic!("{number:?}: neither a test nor a reason: {named}"));
            assert!(is_test(name), "{number:?}: there is no test {name}");
            tests += 1;
        }
    }
    assert!(tests >= 100, "{tests} tests");
}

#[test]
fn a_test_that_is_not_there_is_noticed() {
    assert!(is_test("portal::asvs::a_test_that_is_not_there_is_noticed"));
    assert!(is_test(
        "portal::login_turns::tests::login_turns_are_limited_per_host_and_fair_between_networks"
    ));
    for wrong in [
        "portal::asvs::another",
        "portal::asvs::table",
        "portal::login_turns::one_host",
        "auth::login_turns::tests::login_turns_are_limited_per_host_and_fair_between_networks",
        "login_turns_are_limited_per_host_and_fair_between_networks",
        "",
    ] {
        assert!(!is_test(wrong), "{wrong}");
    }
}

#[test]
fn documents_that_are_named_exist() {
    for target in table().split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        if file.starts_with("https:") {
            continue;
        }
        let text = fs::read_to_string(root().join("docs").join(file)).unwrap_or_else(|_| panic!("{target}"));
        let slug = |line: &str| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            title.replace(' ', "-").replace([':', ',', '`', '.'], "")
        };
        let has_it = text.lines().filter(|line| line.starts_with('#')).any(|line| slug(line) == anchor);
        assert!(anchor.is_empty() || has_it, "{target}");
    }
}
