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

/// Paths of this tree that a page names: text between back-ticks that begins with one of the tree's own entries,
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

/// Load in vpnd's own protocol is `swarm`; the tool itself measures all VPNs the same way.
#[test]
fn the_measuring_tool_speaks_no_vpns_protocol() {
    has_none_of("trafficspeed", &["tokio", "quinn", "rustls", "vpnd-proto"]);
}

/// The folders of vpnd that are one process each. Whatever one of them needs of another it asks for by a message; code that
/// several processes run belongs to none of these.
const PROCESSES: [&str; 8] = [
    "gateway/parent",
    "gateway/worker",
    "gateway/auth",
    "gateway/idp",
    "gateway/acme",
    "client/parent",
    "client/worker",
    "client/lookup",
];
/// Modules that begin processes, and those of tests.
const MAY_USE_ALL: [&str; 3] = ["lib.rs", "main.rs", "fuzzing.rs"];
/// Shared modules with the only processes that may use them.
const RESERVED: [(&str, &[&str]); 5] = [
    ("store::sqlite", &["gateway/auth", "admin_store", "store"]),
    ("journal", &["gateway/parent", "client/parent", "cli", "config"]),
    ("sys::change", &["gateway/parent", "client/parent", "journal", "sys"]),
    ("sys::nft", &["gateway/parent", "client/parent", "sys"]),
    ("shard", &["gateway/worker", "client/worker", "admin"]),
];

/// The source files of vpnd without their tests, by their path in `src`.
fn sources() -> Vec<(String, String)> {
    let src = root().join("crates/vpnd/src");
    let (mut folders, mut files) = (vec![src.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of sources is readable") {
            let path = entry.expect("and so are its entries").path();
            let name = path.strip_prefix(&src).expect("it lies there").display().to_string();
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") && !name.ends_with("testing.rs") {
                let text = fs::read_to_string(&path).expect("a source file is text");
                let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
                let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
                files.push((name, lines.collect::<Vec<_>>().join("\n")));
            }
        }
    }
    files
}

/// Whether the file belongs to this folder, or is the one that opens it.
fn is_in(file: &str, folder: &str) -> bool {
    file.strip_prefix(folder).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Whether `code` names the module: by its whole path or, from within the same daemon, by a relative one.
fn names(file: &str, code: &str, module: &str) -> bool {
    let followed_by_end =
        |text: &str, at: usize| !text[at..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let named = |path: &str| code.match_indices(path).any(|(at, _)| followed_by_end(code, at + path.len()));
    let relative = module.rsplit_once("::").is_some_and(|(daemon, process)| {
        let depth = file.matches('/').count();
        let up = "super::".repeat(depth);
        file.starts_with(daemon) && depth > 0 && named(&format!("use {up}{process}"))
    });
    named(&format!("crate::{module}")) || relative
}

#[test]
fn no_process_uses_the_code_of_another() {
    let sources = sources();
    assert!(sources.len() > 80, "there are only {} files", sources.len());
    for process in PROCESSES {
        assert!(sources.iter().any(|(file, _)| is_in(file, process)), "there is no {process}");
        let module = process.replace('/', "::");
        let strangers = sources.iter().filter(|(file, _)| !is_in(file, process));
        let strangers = strangers.filter(|(file, _)| !MAY_USE_ALL.contains(&file.as_str()));
        let using: Vec<_> = strangers.filter(|(file, code)| names(file, code, &module)).collect();
        let using: Vec<_> = using.iter().map(|(file, _)| file).collect();
        assert!(using.is_empty(), "{process} is a process of its own, and these use its code: {using:?}");
    }
}

#[test]
fn what_takes_a_right_is_used_where_that_right_is() {
    let sources = sources();
    for (module, users) in RESERVED {
        let own = module.replace("::", "/");
        let others = sources
            .iter()
            .filter(|(file, _)| !is_in(file, &own) && !users.iter().any(|user| is_in(file, user)));
        let others = others.filter(|(file, _)| !MAY_USE_ALL.contains(&file.as_str()));
        let using: Vec<_> =
            others.filter(|(file, code)| names(file, code, module)).map(|(file, _)| file).collect();
        assert!(using.is_empty(), "{module} is for {users:?}, and these use it: {using:?}");
    }
}

#[test]
fn a_module_is_found_by_each_of_its_names() {
    let code = "use crate::gateway::auth::service;\nuse super::super::auth::lease;";
    assert!(names("gateway/worker/core.rs", "crate::gateway::auth::run()", "gateway::auth"));
    assert!(names("gateway/worker/core.rs", "use super::super::auth::lease;", "gateway::auth"));
    assert!(names("gateway/messages.rs", "use super::auth::lease;", "gateway::auth"));
    assert!(!names("client/worker/dial.rs", "use super::super::auth::lease;", "gateway::auth"));
    assert!(!names("gateway/worker.rs", "use crate::gateway::auth_client;", "gateway::auth"));
    assert!(names("gateway/worker.rs", code, "gateway::auth"));
    assert!(is_in("gateway/auth.rs", "gateway/auth") && is_in("gateway/auth/lease.rs", "gateway/auth"));
    assert!(!is_in("gateway/auth_client.rs", "gateway/auth"));
}

/// Files below these paths run for each batch of packets.
const DATA_PATH: [&str; 6] = [
    "crates/crypto/src",
    "crates/proto/src",
    "crates/vpnd/src/shard.rs",
    "crates/vpnd/src/shard",
    "crates/vpnd/src/sys/tun",
    "crates/vpnd/src/sys/udp",
];

/// Everything there that threads share and write, and why it costs a shard nothing in steady state.
const SHARED: [(&str, &str); 6] = [
    (
        "crates/proto/src/flows.rs",
        "a session's flows: one write in four seconds for each, and none where policy asks for none",
    ),
    (
        "crates/proto/src/flows/fragments.rs",
        "packets in fragments that a session has sent or is sent: one write for the first fragment of each",
    ),
    (
        "crates/proto/src/plane/confirmations.rs",
        "a session's confirmations: a write for each large datagram that is confirmed, and none for small ones",
    ),
    ("crates/proto/src/rate.rs", "buckets of limits: a slice of 5 ms at a time, and none without limits"),
    (
        "crates/vpnd/src/sys/udp.rs",
        "a list of one shard's socket, there once the kernel has refused an offload",
    ),
    (
        "crates/vpnd/src/shard.rs",
        "channels of control messages and of misdirected datagrams; in steady state they are empty",
    ),
];

#[test]
fn what_shards_share_is_listed() {
    let mut files = Vec::new();
    for place in DATA_PATH {
        rust_files(&root().join(place), &mut files);
    }
    assert!(files.len() > 50, "the places moved: {files:?}");
    let words = [
        "Atomic",
        "Mutex",
        "RwLock",
        "OnceLock",
        "LazyLock",
        "Condvar",
        "thread_local",
        "mpsc::",
        "static mut",
    ];
    let shares = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("a source file");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.into_iter().any(|line| words.iter().any(|word| line.contains(word)))
    };
    let found: Vec<String> = files
        .iter()
        .filter(|path| !path.to_string_lossy().contains("tests") && shares(path))
        .map(|path| path.strip_prefix(root()).expect("it is below").to_string_lossy().into_owned())
        .collect();
    let mut listed: Vec<&str> = SHARED.iter().map(|(path, _)| *path).collect();
    listed.sort_unstable();
    let mut found: Vec<&str> = found.iter().map(String::as_str).collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, listed, "list what is shared, and say why it costs a shard nothing, or keep it out");
}

fn rust_files(place: &Path, files: &mut Vec<PathBuf>) {
    if place.is_file() {
        files.push(place.to_owned());
    } else if place.is_dir() {
        for entry in fs::read_dir(place).expect("readable") {
            rust_files(&entry.expect("an entry").path(), files);
        }
    }
    let module = place.with_extension("rs");
    if place.is_dir() && module.is_file() {
        files.push(module);
    }
}
