//! Replays the committed fuzz corpora, with the bodies of the fuzz targets themselves.

#[path = "../../../fuzz/bodies/control_message.rs"]
mod control_message;
#[path = "../../../fuzz/bodies/handover.rs"]
mod handover;
#[path = "../../../fuzz/bodies/inner_packet.rs"]
mod inner_packet;
#[path = "../../../fuzz/bodies/offload.rs"]
mod offload;
#[path = "../../../fuzz/bodies/outer_header.rs"]
mod outer_header;

#[path = "../../../fuzz/replay.rs"]
mod replay;

use std::fs;
use std::path::Path;

use replay::replay;

#[test]
fn control_messages() {
    replay("control_message", control_message::run);
}

#[test]
fn inner_packets() {
    replay("inner_packet", inner_packet::run);
}

#[test]
fn offloads() {
    replay("offload", offload::run);
}

#[test]
fn outer_headers() {
    replay("outer_header", outer_header::run);
}

#[test]
fn handed_sessions() {
    replay("handover", handover::run);
}

/// The fuzz targets are built by a nightly compiler in a separate workspace, so no other build
/// notices if one of them names a file, a module or a crate that is no more.
#[test]
fn fuzz_targets_name_only_what_exists() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let read =
        |path: &Path| fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let manifest = read(&fuzz.join("Cargo.toml"));
    let mut targets = 0;
    for entry in fuzz.join("fuzz_targets").read_dir().expect("the targets are there") {
        let path = entry.expect("the folder can be read").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        let target = read(&path);
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name} is no target");
        assert!(fuzz.join("corpus").join(&name).is_dir(), "{name} has no corpus");
        let files: Vec<_> = target.lines().filter_map(|line| line.strip_prefix("#[path = \"")).collect();
        for file in files {
            let source = read(&fuzz.join("fuzz_targets").join(file.trim_end_matches("\"]")));
            for line in source.lines().filter_map(|line| line.trim_start().strip_prefix("use ")) {
                let (root, rest) = line.split_once("::").expect("a path");
                let module =
                    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
                let known = match root {
                    "std" | "core" | "super" | "self" => true,
                    _ if source.contains(&format!("mod {root};")) => true,
                    "crate" => target.contains(&format!("mod {module};")),
                    _ => manifest.contains(&format!("\n{} = ", root.replace('_', "-"))),
                };
                assert!(known, "{name} has no {root}::{module}, which {file} uses");
            }
        }
        targets += 1;
    }
    assert_eq!(manifest.matches("[[bin]]").count(), targets, "a target without a file");
}
