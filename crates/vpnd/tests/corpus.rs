//! Replays the committed fuzz corpora, with the bodies of the fuzz targets themselves.
#![allow(clippy::unwrap_used, reason = "the bodies are tests, though no test attribute says so")]

#[path = "../../../fuzz/bodies/config.rs"]
mod config;
#[path = "../../../fuzz/bodies/profile.rs"]
mod profile;

#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn configurations() {
    replay("config", config::run);
}

#[test]
fn profiles() {
    replay("profile", profile::run);
}
