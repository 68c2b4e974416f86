//! Replays the committed fuzz corpora, with the bodies of the fuzz targets themselves.
#![allow(clippy::unwrap_used, reason = "the bodies are tests, though no test attribute says so")]

#[path = "../../../fuzz/bodies/config.rs"]
mod config;
#[path = "../../../fuzz/bodies/profile.rs"]
mod profile;

use std::path::Path;

/// Runs `body` on every file of a target's corpus, and on beginnings of it.
fn replay(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files = 0;
    for entry in folder.read_dir().expect("the corpus is committed") {
        let path = entry.expect("the folder can be read").path();
        let data = std::fs::read(&path).expect("the file can be read");
        // Shown only if the body panics.
        println!("{}", path.display());
        (0..data.len()).step_by(1 + data.len() / 200).for_each(|len| body(&data[..len]));
        body(&data);
        files += 1;
    }
    assert!(files > 3, "{} has too few files", folder.display());
}

#[test]
fn configurations() {
    replay("config", config::run);
}

#[test]
fn profiles() {
    replay("profile", profile::run);
}
