//! The map is checked against the ground: every path that ARCHITECTURE.md and README.md name exists, and the crates
//! depend on each other in one direction only. This test must not know what the modules do.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the crate lies in the workspace")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What a page names as paths of this tree: text between back-ticks that begins with one of the tree's own entries,
/// and the targets of links that stay in the tree.
fn named_paths(page: &str) -> Vec<String> {
    let entries: Vec<String> = fs::read_dir(root())
        .expect("the workspace is readable")
        .map(|entry| entry.expect("and so are its entries").file_name().to_string_lossy().into_owned())
        .collect();
    let spans = page.split('`').skip(1).step_by(2);
    let in_ticks = spans.filter(|span| {
        let first = span.split('/').next().expect("split yields at least one part");
        let is_path = span.contains('/') || span.ends_with(".md");
        is_path && !span.contains(' ') && entries.iter().any(|entry| entry == first)
    });
    let links = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let in_tree = links.filter(|link| !link.contains("://"));
    in_ticks.chain(in_tree).map(|path| path.split('#').next().unwrap_or(path).to_owned()).collect()
}

#[test]
fn every_named_path_exists() {
    for (page, least) in [("ARCHITECTURE.md", 10), ("README.md", 4), ("CONTRIBUTING.md", 4)] {
        let paths = named_paths(&read(page));
        assert!(
            paths.len() >= least,
            "{page} names too few paths for this check to mean something: {paths:?}"
        );
        let missing: Vec<_> = paths.iter().filter(|path| !root().join(path).exists()).collect();
        assert!(missing.is_empty(), "{page} names paths that do not exist: {missing:?}");
    }
}

#[test]
fn dependencies_point_one_way() {
    // A crate may use what stands to the right of it.
    let allowed = BTreeMap::from([
        ("crypto", vec![]),
        ("proto", vec!["vpnd-crypto"]),
        ("control-channel", vec!["vpnd-crypto", "vpnd-proto"]),
        ("vpnd", vec!["vpnd-control-channel", "vpnd-crypto", "vpnd-proto"]),
        ("swarm", vec!["vpnd-control-channel", "vpnd-crypto", "vpnd-proto"]),
        ("trafficspeed", vec!["vpnd-crypto", "vpnd-swarm"]),
    ]);
    for (name, may_use) in allowed {
        let manifest: toml::Table =
            read(&format!("crates/{name}/Cargo.toml")).parse().expect("a manifest is TOML");
        let dependencies = manifest["dependencies"].as_table().expect("a table");
        let ours = dependencies.keys().filter(|key| key.starts_with("vpnd") || *key == "trafficspeed");
        for used in ours {
            assert!(may_use.contains(&used.as_str()), "crates/{name} must not depend on {used}");
        }
    }
}

/// The crate `name` depends on none of `these`.
fn has_none_of(name: &str, these: &[&str]) {
    let manifest: toml::Table =
        read(&format!("crates/{name}/Cargo.toml")).parse().expect("a manifest is TOML");
    let dependencies = manifest["dependencies"].as_table().expect("a table");
    for shell in these {
        assert!(!dependencies.contains_key(*shell), "crates/{name} must not depend on {shell}");
    }
}

#[test]
fn the_core_has_no_runtime() {
    for name in ["crypto", "proto"] {
        has_none_of(name, &["tokio", "quinn", "rustix", "libc", "socket2", "rand"]);
    }
}

/// Load that speaks vpnd's protocol is `swarm`; the tool itself measures all VPNs the same way.
#[test]
fn the_measuring_tool_speaks_no_vpns_protocol() {
    has_none_of("trafficspeed", &["tokio", "quinn", "rustls", "vpnd-proto"]);
}
