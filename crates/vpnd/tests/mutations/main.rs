//! Checks that are made wrong on purpose, one at a time, and the tests that must notice.
//!
//! The lists beside this file name for each mutation a file, a text that stands in it once, what
//! replaces it, and tests. They hold the gravest checks only, invariants and borders between
//! processes: each entry quotes source text and is changed with it. `./x mutants --diff` tries the
//! other checks, as they change.
//!
//! As a part of all tests this program only demands that every mutation can still be made, so that
//! the lists can't rot. `./x mutants [NAME…]` has it make each in a copy of the tree, build that,
//! and run the tests: one that passes all of them has survived, and a test is missing.
#![allow(
    clippy::unwrap_used,
    reason = "a panic is how this test fails, as in a test of the standard harness"
)]

mod list;
mod run;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use list::Mutation;

/// Set by `./x mutants`: names of mutations, or nothing for all of them.
const RUN: &str = "VPND_MUTANTS";
/// Least number of mutations: a list that can't be read must not pass for a short one.
const LEAST: usize = 30;
/// Greatest number of mutations.
const MOST: usize = 80;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    if let Ok(names) = std::env::var(RUN) {
        return run::run(&root, &chosen(&root, &names));
    }
    if asked_for() {
        every_mutation_can_be_made(&root);
        a_list_that_rotted_is_noticed();
        println!("test every_mutation_can_be_made ... ok");
    }
    ExitCode::SUCCESS
}

/// Whether the words after `cargo test --` choose this test, as they do with the standard harness.
fn asked_for() -> bool {
    let mut filters = std::env::args().skip(1).filter(|word| !word.starts_with('-')).peekable();
    filters.peek().is_none() || filters.any(|filter| "mutations".contains(&filter))
}

fn chosen(root: &Path, names: &str) -> Vec<Mutation> {
    let names: Vec<&str> = names.split_whitespace().collect();
    let mut all = list::read(root);
    for name in &names {
        assert!(all.iter().any(|mutation| mutation.name == *name), "there is no mutation `{name}`");
    }
    all.retain(|mutation| names.is_empty() || names.contains(&mutation.name.as_str()));
    all
}

fn every_mutation_can_be_made(root: &Path) {
    let all = list::read(root);
    assert!(all.len() >= LEAST, "there are only {}", all.len());
    assert!(
        all.len() <= MOST,
        "there are {} mutations and at most {MOST} are kept: remove the least grave, for ./x mutants --diff \
         tries what changes",
        all.len()
    );
    let problems: Vec<String> =
        all.iter().filter_map(|mutation| mutation.applied(&source(root, mutation)).err()).collect();
    assert!(
        problems.is_empty(),
        "these checks have changed; make their entries in crates/vpnd/tests/mutations true again, and run \
         ./x mutants with their names:\n{}",
        problems.join("\n")
    );
}

fn source(root: &Path, mutation: &Mutation) -> String {
    let path: PathBuf = root.join(&mutation.file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn a_list_that_rotted_is_noticed() {
    let mutation = Mutation::example("if !right {", "if false {");
    assert_eq!(mutation.applied("if !right { no() }").as_deref(), Ok("if false { no() }"));
    assert!(mutation.applied("if wrong { no() }").is_err(), "the check was rewritten");
    assert!(mutation.applied("if !right { if !right {} }").is_err(), "which of the two?");
    assert!(Mutation::example("same", "same").applied("same").is_err(), "it changes nothing");
}
