//! The real programs in real network namespaces: many sessions of `vpnd` from few processes.
//!
//! ```text
//!   one process ── eth0 ─── gateway (vpnd server)
//! ```
//!
//! These tests need root and a `vpnd` beside this package's program. Without them they skip with a
//! loud message, and fail where CI=true.

mod capacity;
mod sessions;
mod soak;
mod wireguard;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_vpnd-endurance");

fn skip(what: &str) {
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{what}");
    eprintln!("\n*** SKIPPED: {what} ***\n");
}

fn can_run() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip("this test needs root to make network namespaces; run the tests with sudo");
    }
    is_root
}

/// The real `vpnd`, which cargo puts beside this package's own program.
fn real_vpnd() -> Option<PathBuf> {
    let path = Path::new(PROGRAM).with_file_name("vpnd");
    if path.is_file() {
        return Some(path);
    }
    skip(&format!("{} is not built; run `cargo build -p vpnd`, or test the whole workspace", path.display()));
    None
}

fn endurance(line: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(line.split_whitespace());
    command
}

fn run(line: &str) -> Output {
    endurance(line).output().expect("the program was built")
}

fn measured(line: &str) -> Value {
    let output = run(line);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {} {words}", output.status);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {words}"))
}

/// The namespaces that process `pid` made.
fn namespaces_of(pid: u32) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/run/netns") else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let (gateway, client, host) = (format!("ts{pid}g"), format!("ts{pid}c"), format!("ts{pid}h"));
    names.filter(|name| *name == gateway || name.starts_with(&client) || name.starts_with(&host)).collect()
}
