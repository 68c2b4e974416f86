//! Makes mutations in a copy of the tree and runs the tests that must notice them.
//!
//! INVARIANT: the tree itself and what was built from it are never touched. The copy and its target
//! directory stay, so that the next run compiles little.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::list::{self, Mutation};

/// A test that takes longer hangs, which is noticed as well.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// A test failed.
    Caught,
    /// A test did not end.
    Hung,
    /// All tests passed.
    Survived,
    /// It is no mutation: the code does not compile.
    Broken,
}

/// The copy of the tree, and its build directory.
struct Scratch {
    tree: PathBuf,
    target: PathBuf,
    log: PathBuf,
}

/// Runs `mutations`, prints what became of each, and fails unless all were caught.
pub(crate) fn run(root: &Path, mutations: &[Mutation]) -> ExitCode {
    let all = list::read(root);
    let scratch = Scratch::prepare(root, all.iter().map(|mutation| mutation.file.as_str()));
    println!("{} mutations; the copy is {}", mutations.len(), scratch.tree.display());
    scratch.all_pass_unchanged(mutations);
    let mut counts = BTreeMap::new();
    for (number, mutation) in mutations.iter().enumerate() {
        let start = Instant::now();
        let outcome = scratch.judge(mutation);
        *counts.entry(format!("{outcome:?}").to_lowercase()).or_insert(0) += 1;
        let seconds = start.elapsed().as_secs();
        println!("{:3} {:?} {} ({}, {seconds} s)", number + 1, outcome, mutation.name, mutation.file);
    }
    println!("of {}: {counts:?}", mutations.len());
    let caught = ["caught", "hung"].iter().filter_map(|word| counts.get(*word)).sum::<usize>();
    if caught == mutations.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Scratch {
    /// Copies the tree. `mutated` are the files that mutations ever change.
    fn prepare<'a>(root: &Path, mutated: impl Iterator<Item = &'a str>) -> Self {
        let home = root.join("target/mutants");
        let scratch =
            Self { tree: home.join("tree"), target: home.join("target"), log: home.join("last.log") };
        let _ = fs::remove_dir_all(&scratch.tree);
        fs::create_dir_all(&scratch.tree).unwrap();
        let files = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .expect("git lists the tree's files");
        let files = String::from_utf8(files.stdout).expect("names of files are UTF-8");
        let existing = files.split('\0').filter(|file| !file.is_empty() && root.join(file).exists());
        let copied = Command::new("cp")
            .args(["--parents", "--preserve=mode,timestamps", "--no-dereference"])
            .args(existing)
            .arg(&scratch.tree)
            .current_dir(root)
            .status();
        assert!(copied.is_ok_and(|status| status.success()), "the tree can't be copied");
        // An earlier run's last build may hold a mutation, and is younger than the file
        // without it.
        for file in mutated {
            let file = File::options().append(true).open(scratch.tree.join(file)).unwrap();
            file.set_modified(SystemTime::now()).unwrap();
        }
        scratch
    }

    fn cargo_test(&self, package: &str, target: &str) -> Command {
        let mut command = Command::new(env!("CARGO"));
        command.args(["test", "--locked", "--quiet", "-p", package]);
        match target {
            "lib" => command.arg("--lib"),
            other => command.args(["--test", other]),
        };
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target).env("CI", "true");
        command.env_remove(crate::RUN).env("CARGO_INCREMENTAL", "1").stdin(Stdio::null());
        command
    }

    /// Without a mutation all named tests are there and pass: or their failing would mean nothing.
    fn all_pass_unchanged(&self, mutations: &[Mutation]) {
        let mut groups: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for mutation in mutations {
            let group = groups.entry((&mutation.package, &mutation.target)).or_default();
            group.extend(mutation.tests.iter().map(String::as_str));
        }
        for ((package, target), mut tests) in groups {
            tests.sort_unstable();
            tests.dedup();
            let listed = self.cargo_test(package, target).args(["--", "--list"]).output().unwrap();
            let names = String::from_utf8_lossy(&listed.stdout).into_owned();
            assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
            for test in &tests {
                assert!(names.contains(test), "{package}, {target}: there is no test `{test}`");
            }
            let passed = self.ends(self.cargo_test(package, target).arg("--").args(&tests));
            assert_eq!(passed, Some(true), "{package}, {target}: fails as it is; see {}", self.log.display());
            println!("    as it is, {package} ({target}) passes {} of them", tests.len());
        }
    }

    fn judge(&self, mutation: &Mutation) -> Outcome {
        let path = self.tree.join(&mutation.file);
        let before = fs::read_to_string(&path).unwrap();
        fs::write(&path, mutation.applied(&before).unwrap()).unwrap();
        let outcome = self.tests_notice(mutation);
        fs::write(&path, before).unwrap();
        outcome
    }

    fn tests_notice(&self, mutation: &Mutation) -> Outcome {
        let (package, target) = (&mutation.package, &mutation.target);
        if self.ends(self.cargo_test(package, target).arg("--no-run")) != Some(true) {
            return Outcome::Broken;
        }
        match self.ends(self.cargo_test(package, target).arg("--").args(&mutation.tests)) {
            Some(true) => Outcome::Survived,
            Some(false) => Outcome::Caught,
            None => Outcome::Hung,
        }
    }

    /// Whether the command succeeds; `None` if it has to be ended.
    fn ends(&self, command: &mut Command) -> Option<bool> {
        let log = File::create(&self.log).unwrap();
        let mut child = command
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn()
            .expect("cargo is there, for it started this");
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return Some(status.success());
            }
            if Instant::now() > end {
                let group = rustix::process::Pid::from_child(&child);
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                let _ = child.wait();
                return None;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
