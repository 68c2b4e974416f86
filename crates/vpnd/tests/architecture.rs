//! The map is checked against the ground: every path that ARCHITECTURE.md and README.md name
//! exists, and the crates depend on each other in one direction only. This test must not know what
//! the modules do.

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

/// Paths of this tree that a page names: text between back-ticks that begins with one of the tree's
/// own entries, and the targets of links that stay in the tree.
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
fn every_test_that_the_list_of_traps_names_exists() {
    let page = read("docs/WIREGUARD.md");
    let mut files = Vec::new();
    rust_files(&root().join("crates"), &mut files);
    files.retain(|file| file.extension().is_some_and(|kind| kind == "rs"));
    let text = |file| fs::read_to_string(file).expect("a source file is text");
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let sources: String = files.into_iter().map(text).map(words).collect();
    let forms = ["#[test] fn", "#[tokio::test] async fn"];
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert!(rows.len() >= 20, "{} traps", rows.len());
    for row in rows {
        let tests = row.trim_end_matches('|').rsplit('|').next().expect("a row has cells");
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(
            tests.trim().starts_with("none: ") || !names.is_empty(),
            "neither a test nor a reason: {row}"
        );
        for name in names {
            let is_there = match name.strip_suffix('*').and_then(|start| start.rsplit_once('/')) {
                Some((folder, start)) => {
                    fs::read_dir(root().join(folder)).expect("the folder is there").any(|file| {
                        file.expect("so are its files").file_name().to_string_lossy().starts_with(start)
                    })
                }
                None => forms.iter().any(|form| sources.contains(&format!("{form} {name}("))),
            };
            assert!(is_there, "docs/WIREGUARD.md names a test that does not exist: {name}");
        }
    }
}

#[test]
fn dependencies_point_one_way() {
    let below = ["vpnd-control-channel", "vpnd-crypto", "vpnd-packet", "vpnd-proto", "vpnd-sys"];
    let shared = ["vpnd-config", "vpnd-ipc", "vpnd-pki"];
    let with = |more: &[&'static str]| [&below[..], &shared, more].concat();
    // A crate may use what stands to the right of it.
    let allowed = BTreeMap::from([
        ("aes-gcm-vaes", vec![]),
        ("chacha20-poly1305-ifma", vec![]),
        ("crypto", vec!["aes-gcm-vaes", "chacha20-poly1305-ifma"]),
        ("packet", vec![]),
        ("proto", vec!["vpnd-crypto", "vpnd-packet"]),
        ("wireguard", vec!["vpnd-crypto", "vpnd-proto"]),
        ("control-channel", vec!["vpnd-crypto", "vpnd-proto"]),
        ("relay", vec![]),
        ("sys", vec!["vpnd-packet", "vpnd-proto"]),
        ("journal", vec!["vpnd-sys"]),
        ("pki", [&below[..], &["vpnd-wireguard"]].concat()),
        ("shard", vec!["vpnd-crypto", "vpnd-packet", "vpnd-proto", "vpnd-sys"]),
        ("config", [&below[..], &["vpnd-pki"]].concat()),
        ("store", [&below[..], &["vpnd-config", "vpnd-pki"]].concat()),
        ("fleet", vec!["vpnd-config", "vpnd-crypto", "vpnd-proto"]),
        ("ipc", [&below[..], &["vpnd-config", "vpnd-shard", "vpnd-wireguard"]].concat()),
        // One crate for each process or its family. They see one another's messages alone, in
        // `ipc`; only auth opens the store.
        ("acme", with(&[])),
        ("idp", with(&[])),
        ("portal", with(&["vpnd-relay"])),
        ("admission", with(&["vpnd-store", "vpnd-wireguard"])),
        ("auth", with(&["vpnd-admission", "vpnd-fleet", "vpnd-store", "vpnd-wireguard"])),
        ("gateway", with(&["trusted-path", "vpnd-fleet", "vpnd-journal", "vpnd-shard", "vpnd-wireguard"])),
        ("client", with(&["vpnd-journal", "vpnd-relay", "vpnd-shard"])),
        ("client-service", with(&["trusted-path", "vpnd-client", "vpnd-journal"])),
        (
            "vpnd",
            with(&[
                "vpnd-acme",
                "vpnd-admission",
                "vpnd-auth",
                "vpnd-client",
                "vpnd-client-service",
                "vpnd-gateway",
                "vpnd-idp",
                "vpnd-portal",
                "vpnd-relay",
                "vpnd-store",
                "vpnd-wireguard",
            ]),
        ),
        ("swarm", [&below[..], &["vpnd-wireguard"]].concat()),
        ("endurance", vec!["trafficspeed", "vpnd-proto", "vpnd-store", "vpnd-swarm"]),
        ("trafficspeed", vec!["trusted-path"]),
        ("trusted-path", vec![]),
    ]);
    for entry in fs::read_dir(root().join("crates")).expect("the crates are readable") {
        let name = entry.expect("and so are their names").file_name().to_string_lossy().into_owned();
        let may_use = allowed.get(name.as_str()).unwrap_or_else(|| panic!("crates/{name} has no place here"));
        let manifest: toml::Table =
            read(&format!("crates/{name}/Cargo.toml")).parse().expect("a manifest is TOML");
        let dependencies = manifest["dependencies"].as_table().expect("a table");
        let ours = dependencies.keys().filter(|key| {
            let own = ["aes-gcm-vaes", "chacha20-poly1305-ifma", "trafficspeed", "trusted-path"];
            key.starts_with("vpnd") || own.contains(&key.as_str())
        });
        for used in ours {
            assert!(may_use.contains(&used.as_str()), "crates/{name} must not depend on {used}");
        }
    }
}

/// Lines of code before the unit tests. The measuring tool is one program, and larger.
#[test]
fn no_crate_is_too_large_to_read() {
    for entry in fs::read_dir(root().join("crates")).expect("the crates are readable") {
        let name = entry.expect("and so are their names").file_name().to_string_lossy().into_owned();
        let limit = if name == "trafficspeed" { 40_000 } else { 14_000 };
        let mut files = Vec::new();
        let src = root().join("crates").join(&name).join("src");
        rust_files(&src, &mut files);
        files.sort();
        files.dedup();
        let is_code = |file: &&PathBuf| {
            let path = file.strip_prefix(&src).expect("it was found there");
            let is_test = path.iter().any(|part| TEST_FILES.iter().any(|name| part == *name));
            !is_test && path.extension().is_some_and(|extension| extension == "rs")
        };
        let lines = |file: &PathBuf| {
            let text = fs::read_to_string(file).expect("a source file is readable");
            code_lines(&text).len()
        };
        let lines: usize = files.iter().filter(is_code).map(lines).sum();
        assert!(lines > 0 && lines <= limit, "crates/{name} has {lines} lines; {limit} are allowed");
    }
}

/// Names of files and folders that are for tests alone.
const TEST_FILES: [&str; 4] = ["tests", "tests.rs", "testing", "testing.rs"];

#[test]
fn helpers_of_tests_are_compiled_for_tests_alone() {
    let mut files = Vec::new();
    rust_files(&root().join("crates"), &mut files);
    let mut found = 0;
    for file in files.iter().filter(|file| file.iter().any(|part| part == "src")) {
        if file.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = fs::read_to_string(file).expect("a source file is text");
        for (before, declaration) in text.lines().zip(text.lines().skip(1)) {
            if declaration.ends_with("mod testing;") {
                found += 1;
                let is_for_tests = before.starts_with("#[cfg(")
                    && ["test)", "test,", "\"testing\")"].iter().any(|part| before.contains(part));
                assert!(is_for_tests, "{}: {before}", file.display());
            }
        }
    }
    assert!(found > 5, "only {found} modules for tests were found");
}

/// The lines of a source file before the inline module of its unit tests. Any other item that is
/// for tests alone is left out, and what follows it counts.
fn code_lines(text: &str) -> Vec<&str> {
    let mut lines = text.lines();
    let mut code = Vec::new();
    while let Some(line) = lines.next() {
        if line.trim_start() != "#[cfg(test)]" {
            code.push(line);
            continue;
        }
        let is_item = |line: &&str| !["#[", "//"].iter().any(|start| line.trim_start().starts_with(start));
        let item = lines.find(is_item).unwrap_or_default();
        if is_inline_module(item) {
            break;
        }
        if !item.ends_with([';', ',', '}']) {
            // rustfmt puts the closing bracket at the depth of the item.
            let is_bracket = |end: &str| end.trim_start().starts_with(['}', ')', ']']);
            let _ = lines.find(|end| depth(end) == depth(line) && is_bracket(end));
        }
    }
    code
}

fn is_inline_module(item: &str) -> bool {
    depth(item) == 0 && item.ends_with(" {") && item.split(' ').any(|word| word == "mod")
}

fn depth(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

#[test]
fn code_is_counted_up_to_the_unit_tests() {
    let declarations = "mod a;\n#[cfg(test)]\nmod tests;\nfn b() {}\n";
    let of_tests = "#[cfg(test)]\nimpl C {\n    fn d() {}\n}\n";
    let method = "impl E {\n    #[cfg(test)]\n    fn f() {\n        g();\n    }\n    fn h() {}\n}\n";
    let module = "#[cfg(test)]\npub(crate) mod samples {\n    fn i() {}\n}\n";
    let text = [declarations, of_tests, method, module, "fn j() {}\n"].concat();
    assert_eq!(code_lines(&text), ["mod a;", "fn b() {}", "impl E {", "    fn h() {}", "}"]);
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
    for name in ["aes-gcm-vaes", "chacha20-poly1305-ifma", "crypto", "fleet", "packet", "proto", "wireguard"]
    {
        has_none_of(name, &["tokio", "quinn", "rustix", "libc", "socket2", "rand"]);
    }
}

/// Load in vpnd's own protocol is `swarm`, its experiments `endurance`; the tool itself measures
/// all VPNs the same way.
#[test]
fn the_measuring_tool_speaks_no_vpns_protocol() {
    has_none_of("trafficspeed", &["tokio", "quinn", "rustls", "vpnd-proto"]);
}

/// Crates with several processes, a module for each. What one of them needs of another it requests
/// by a message.
const PROCESSES: [(&str, &[&str]); 3] = [
    ("gateway", &["parent", "worker"]),
    ("client", &["parent", "worker", "lookup"]),
    ("client-service", &["service", "captive_portal", "user_commands"]),
];
/// Calls that need a right, and the only modules of these crates that may use them.
const RESERVED: [(&str, &[&str]); 4] = [
    // The client service cleans up after a client that was killed.
    ("vpnd_journal", &["parent", "service", "captive_portal"]),
    ("vpnd_sys::change", &["parent", "captive_portal"]),
    ("vpnd_sys::nft", &["parent", "captive_portal"]),
    ("vpnd_shard", &["worker"]),
];

/// The source files of a crate without their tests, by their path in `src`.
fn sources(name: &str) -> Vec<(String, String)> {
    let src = root().join("crates").join(name).join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    let named = files.iter().filter_map(|path| {
        let name = path.strip_prefix(&src).expect("it lies there").display().to_string();
        let is_test = name.ends_with("tests.rs") || name.contains("tests/");
        let text = fs::read_to_string(path).expect("a source file is text");
        let lines = code_lines(&text).into_iter().filter(|line| !line.trim_start().starts_with("//"));
        (!is_test).then(|| (name, lines.collect::<Vec<_>>().join("\n")))
    });
    named.collect()
}

/// Whether the file belongs to this module.
fn is_in(file: &str, module: &str) -> bool {
    file.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Whether `code` names the path, whole.
fn names(code: &str, path: &str) -> bool {
    let ends = |at: usize| !code[at..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
    code.match_indices(path).any(|(at, _)| ends(at + path.len()))
}

#[test]
fn no_process_uses_the_code_of_another() {
    for (name, processes) in PROCESSES {
        let sources = sources(name);
        assert!(sources.len() > 15, "crates/{name} has only {} files", sources.len());
        for process in processes {
            assert!(sources.iter().any(|(file, _)| is_in(file, process)), "there is no {process}");
            let strangers = sources.iter().filter(|(file, _)| !is_in(file, process) && file != "lib.rs");
            let using = strangers.filter(|(file, code)| {
                names(code, &format!("crate::{process}"))
                    || (!file.contains('/') && names(code, &format!("super::{process}")))
            });
            let using: Vec<_> = using.map(|(file, _)| file).collect();
            assert!(
                using.is_empty(),
                "{process} of {name} is a process of its own, and these use its code: {using:?}"
            );
        }
    }
}

#[test]
fn what_takes_a_right_is_used_where_that_right_is() {
    for (name, _) in PROCESSES {
        let sources = sources(name);
        for (path, users) in RESERVED {
            let is_stranger = |file: &str| !users.iter().any(|user| is_in(file, user));
            let others = sources.iter().filter(|(file, code)| is_stranger(file) && names(code, path));
            let using: Vec<_> = others.map(|(file, _)| file).collect();
            assert!(using.is_empty(), "{path} is for {users:?}, and these of {name} use it: {using:?}");
        }
    }
    for (path, users) in RESERVED {
        let uses = |user: &&str| {
            let all = PROCESSES.iter().flat_map(|(name, _)| sources(name));
            all.into_iter().any(|(file, code)| is_in(&file, user) && names(&code, path))
        };
        let idle: Vec<_> = users.iter().filter(|user| !uses(user)).collect();
        assert!(idle.is_empty(), "{path} is reserved for {idle:?}, which do not use it");
    }
}

/// The client service starts clients as separate processes.
#[test]
fn the_client_service_runs_no_clients_code() {
    for (file, code) in sources("client-service") {
        for process in ["parent", "worker", "lookup"] {
            assert!(!names(&code, &format!("vpnd_client::{process}")), "{file} uses a client's {process}");
        }
    }
}

#[test]
fn a_module_is_found_by_its_name() {
    assert!(names("crate::worker::run()", "crate::worker"));
    assert!(!names("use crate::worker_pool;", "crate::worker"));
    assert!(is_in("parent.rs", "parent") && is_in("parent/reload.rs", "parent"));
    assert!(!is_in("parent_client.rs", "parent"));
}

/// Files below these paths run for each batch of packets.
const DATA_PATH: [&str; 6] = [
    "crates/crypto/src",
    "crates/proto/src",
    "crates/wireguard/src",
    "crates/shard/src",
    "crates/sys/src/tun",
    "crates/sys/src/udp",
];

/// Everything there that threads share and write, and why it costs a shard nothing in steady state.
const SHARED: [(&str, &str); 12] = [
    (
        "crates/proto/src/flows.rs",
        "a session's flows: one write in four seconds for each, and none where policy asks for none",
    ),
    (
        "crates/proto/src/flows/fragments.rs",
        "packets in fragments that a session has sent or is sent: one write for the first fragment of each",
    ),
    (
        "crates/proto/src/plane/shared_path.rs",
        "what is known of a session's path: a write for each large datagram that is confirmed, and none for small ones",
    ),
    (
        "crates/proto/src/wireguard.rs",
        "the one counter that WireGuard has for each direction: one addition for a batch",
    ),
    ("crates/proto/src/rate.rs", "buckets of limits: a slice of 5 ms at a time, and none without limits"),
    (
        "crates/sys/src/udp/singles.rs",
        "addresses to which batches were refused: none on most machines, read without a lock and seldom written",
    ),
    (
        "crates/shard/src/quic_forwarder.rs",
        "a bounded queue to QUIC where the kernel does not steer; in steady state it is empty",
    ),
    (
        "crates/shard/src/handshake_queue.rs",
        "a bounded queue of WireGuard's handshakes where the kernel does not steer",
    ),
    (
        "crates/shard/src/lib.rs",
        "channels of control messages and of misdirected datagrams; in steady state they are empty",
    ),
    ("crates/shard/src/hand_off.rs", "the other end of the channels of misdirected datagrams"),
    ("crates/shard/src/shard.rs", "the other end of the channel of events, of which packets make none"),
    (
        "crates/shard/src/stir.rs",
        "a flag that is read once for each batch; a gateway never sets it, and a client at most four times a second",
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
        let lines = code_lines(&text).into_iter().filter(|line| !line.trim_start().starts_with("//"));
        lines.into_iter().any(|line| words.iter().any(|word| line.contains(word)))
    };
    let found: Vec<String> = files
        .iter()
        .filter(|path| {
            !["tests", "testing.rs"].iter().any(|name| path.to_string_lossy().contains(name)) && shares(path)
        })
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
