//! Dependencies come from one registry, under licences that are allowed, and no release of a crate
//! from before its last known fix. The long form, with advisories and a bill of materials, is `./x
//! supply`.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The only source of crates.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Crates of which an older release that cargo could still choose has a weakness, and the first
/// release without (the list of RustSec: for those that bytes from outside reach up to
/// RUSTSEC-2026-0285, for the gateway's others up to RUSTSEC-2026-0190). Each is there once: of two
/// versions one would go unwatched. This needs no network, unlike the whole list, which `./x
/// supply` asks.
const AT_LEAST: [(&str, [u64; 3]); 22] = [
    ("quinn-proto", [0, 11, 19]),
    ("rustls", [0, 23, 46]),
    ("rustls-webpki", [0, 103, 16]),
    ("ring", [0, 17, 14]),
    ("aws-lc-rs", [1, 16, 0]),
    ("aws-lc-sys", [0, 39, 0]),
    ("bytes", [1, 11, 1]),
    ("libsqlite3-sys", [0, 25, 1]),
    ("rand", [0, 10, 1]),
    ("time", [0, 3, 47]),
    ("tokio", [1, 44, 2]),
    ("tracing-subscriber", [0, 3, 20]),
    ("anyhow", [1, 0, 103]),
    ("enumflags2", [0, 7, 7]),
    ("futures-task", [0, 3, 6]),
    ("futures-util", [0, 3, 7]),
    ("lock_api", [0, 4, 2]),
    ("slab", [0, 4, 11]),
    ("smallvec", [1, 6, 1]),
    ("thread_local", [1, 1, 4]),
    ("tracing", [0, 1, 40]),
    ("zeroize_derive", [1, 2, 0]),
];

/// A package of a lock file.
struct Locked {
    name: String,
    version: [u64; 3],
    source: Option<String>,
    has_checksum: bool,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The packages of a lock file, given by its path in the tree.
fn locked(path: &str) -> Vec<Locked> {
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let lock: toml::Table = text.parse().unwrap();
    let packages = lock["package"].as_array().unwrap().iter().map(|package| Locked {
        name: package["name"].as_str().unwrap().to_owned(),
        version: version(package["version"].as_str().unwrap()),
        source: package.get("source").map(|source| source.as_str().unwrap().to_owned()),
        has_checksum: package.get("checksum").is_some(),
    });
    packages.collect()
}

/// The three numbers of a version; a pre-release counts as what it comes before, less one step.
fn version(text: &str) -> [u64; 3] {
    let (release, pre) = match text.split('+').next().unwrap().split_once('-') {
        Some((release, _)) => (release, true),
        None => (text.split('+').next().unwrap(), false),
    };
    let mut numbers = release.split('.').map(|part| part.parse().unwrap());
    let mut version: [u64; 3] = std::array::from_fn(|_| numbers.next().unwrap());
    if pre {
        version[2] = version[2].saturating_sub(1);
    }
    version
}

/// Names of packages that are not exactly what the registry gives.
fn from_elsewhere(packages: &[Locked]) -> Vec<&str> {
    let ours = |package: &Locked| package.source.is_none() && is_ours(&package.name);
    let good = |package: &Locked| package.source.as_deref() == Some(REGISTRY) && package.has_checksum;
    packages.iter().filter(|p| !ours(p) && !good(p)).map(|p| p.name.as_str()).collect()
}

/// Complaints about the watched crates of a lock file.
fn too_old(packages: &[Locked]) -> Vec<String> {
    let problem = |(name, least): &(&str, [u64; 3])| {
        let found: Vec<_> = packages.iter().filter(|package| package.name == *name).collect();
        match found[..] {
            [one] if one.version >= *least => None,
            _ => Some(format!("{name}: {:?}, wanted once, {least:?} or later", versions(&found))),
        }
    };
    AT_LEAST.iter().filter_map(problem).collect()
}

fn versions(packages: &[&Locked]) -> Vec<[u64; 3]> {
    packages.iter().map(|package| package.version).collect()
}

fn is_ours(name: &str) -> bool {
    ["aes-gcm-vaes", "chacha20-poly1305-ifma", "trafficspeed", "trusted-path", "vpnd"].contains(&name)
        || name.starts_with("vpnd-")
}

#[test]
fn every_crate_comes_from_the_registry_with_its_checksum() {
    for path in ["Cargo.lock", "fuzz/Cargo.lock"] {
        let mut packages = locked(path);
        assert!(packages.len() > 100, "{path} has too few packages for this check to mean something");
        assert_eq!(from_elsewhere(&packages), [""; 0], "{path}");
        let other = packages.iter_mut().find(|package| package.name == "rustls").unwrap();
        other.source = Some("git+https://example.org/rustls".to_owned());
        assert_eq!(from_elsewhere(&packages), ["rustls"], "the check notices another source");
    }
}

#[test]
fn no_crate_is_older_than_its_last_fix() {
    for path in ["Cargo.lock", "fuzz/Cargo.lock"] {
        let mut packages = locked(path);
        assert_eq!(too_old(&packages), [""; 0], "{path}: run cargo update for these");
        let old = packages.iter_mut().find(|package| package.name == "quinn-proto").unwrap();
        old.version[2] -= 1;
        assert_eq!(too_old(&packages).len(), 1, "the check notices an older release");
    }
    assert!(version("0.24.0-dev.1") < [0, 24, 1] && version("1.2.3-rc.1") < [1, 2, 3]);
}

/// Licences that deny.toml allows; `./x supply` uses the same list.
fn allowed_licences() -> BTreeSet<String> {
    let deny: toml::Table = fs::read_to_string(root().join("deny.toml")).unwrap().parse().unwrap();
    let allowed = deny["licenses"]["allow"].as_array().unwrap();
    allowed.iter().map(|licence| licence.as_str().unwrap().to_owned()).collect()
}

fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let parsed = spdx::Expression::parse_mode(expression, spdx::ParseMode::LAX)
        .unwrap_or_else(|error| panic!("{expression}: {error}"));
    parsed.evaluate(|requirement| allowed.contains(&requirement.to_string()))
}

#[test]
fn every_licence_is_allowed() {
    let allowed = allowed_licences();
    assert!(is_allowed("MIT/Apache-2.0", &allowed) && is_allowed("GPL-3.0-only OR MIT", &allowed));
    assert!(!is_allowed("GPL-3.0-only", &allowed) && !is_allowed("MIT AND MPL-2.0", &allowed));

    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &host])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "too few packages for this check to mean something");
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let licence = package["license"].as_str().unwrap_or_else(|| panic!("{name} names no licence"));
        assert!(is_allowed(licence, &allowed), "{name} is under {licence}: deny.toml does not allow that");
    }
}
