//! The arrows between the crate's modules point one way: load ← coordinate, lab ← system ←
//! experiment ← report ← main. [`LAYERS`] has the modules that each may use; this test must not
//! know what the modules do.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A module may use those of the layers above it in this list, and no other of its layer.
const LAYERS: [&[&str]; 12] = [
    &["clock", "csv_table", "interrupt", "line", "observe", "stats", "sys", "terminal", "unit"],
    &["observation"],
    &["load"],
    &["coordinate", "lab"],
    &["system"],
    &["experiment"],
    &["report"],
    &["doctor"],
    &["own_processes"],
    &["cli"],
    &["output"],
    &["main"],
];

fn layer_of(module: &str) -> usize {
    let at = LAYERS.iter().position(|layer| layer.contains(&module));
    at.unwrap_or_else(|| panic!("{module} is in no layer of this test: give it its place here"))
}

/// Every source file with its path below `src`.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the sources are readable") {
            let path = entry.expect("and so are their entries").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source is text");
                files.push((path.strip_prefix(&root).expect("it lies below the root").to_owned(), text));
            }
        }
    }
    files
}

/// The modules of the crate that a source names: `crate::a::b`, and each of `crate::{a::b, c}`.
fn used(text: &str) -> BTreeSet<String> {
    let code: String =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let name = |text: &str| {
        text.trim_start().split(|c: char| c != '_' && !c.is_alphanumeric()).next().map(str::to_owned)
    };
    let mut found = BTreeSet::new();
    for root in ["crate::", "trafficspeed::"] {
        for rest in code.split(root).skip(1) {
            let Some(group) = rest.strip_prefix('{') else {
                found.extend(name(rest));
                continue;
            };
            let mut depth = 0;
            let mut parts = vec![String::new()];
            for c in group.chars() {
                depth += i32::from(c == '{') - i32::from(c == '}');
                match c {
                    _ if depth < 0 => break,
                    ',' if depth == 0 => parts.push(String::new()),
                    _ => parts.last_mut().expect("there is one").push(c),
                }
            }
            found.extend(parts.iter().filter_map(|part| name(part)));
        }
    }
    found
}

/// The longest chain of `super::` in the code before the unit tests.
fn longest_climb(text: &str) -> usize {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    (1..).take_while(|&count| code.contains(&"super::".repeat(count))).count()
}

#[test]
fn modules_use_only_those_below_them() {
    let known: BTreeSet<&str> = LAYERS.iter().copied().flatten().copied().collect();
    let mut seen = BTreeSet::new();
    let mut arrows = 0;
    for (path, text) in sources() {
        let first = path.iter().next().expect("a path has a part").to_string_lossy().into_owned();
        let module = first.trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        let layer = layer_of(module);
        seen.insert(module.to_owned());
        assert!(
            longest_climb(&text) < path.iter().count(),
            "{}: `super::` leads out of {module}; write `crate::`",
            path.display()
        );
        for other in used(&text).iter().filter(|other| known.contains(other.as_str()) && *other != module) {
            arrows += 1;
            assert!(layer_of(other) < layer, "{}: {module} must not use {other}", path.display());
        }
    }
    assert!(
        arrows > 200 && known.iter().all(|module| seen.contains(*module)),
        "{arrows} arrows, modules {seen:?}"
    );
}

#[test]
fn names_are_found_in_every_way_of_writing_them() {
    let text = "use crate::{clock, experiment::environment::{A, B}, load::tcp};\nlet x = crate::stats::median(y);\n\
                // crate::report::in_a_comment\nuse trafficspeed::lab::Lab;\nmod m;";
    let names: Vec<_> = used(text).into_iter().collect();
    assert_eq!(names, ["clock", "experiment", "lab", "load", "stats"]);
    let unit_tests = "#[cfg(test)]\nmod tests {\n    use super::super::super::c;\n}\n";
    let text = ["#[cfg(test)]\nmod a;\nuse super::super::b;\n", unit_tests].concat();
    assert_eq!(longest_climb(&text), 2);
}
