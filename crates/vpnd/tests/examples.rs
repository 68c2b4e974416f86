//! The files in `config/` are read with the real parsers: an example that does not work teaches
//! mistakes.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and helper functions of integration tests are not known as tests"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser as _;
use vpnd::cli::Cli;
use vpnd_config::JOURNAL_DIRECTORY as DEFAULT_DIRECTORY;
use vpnd_config::ServerConfig;
use vpnd_config::profile::{Profile, Trust};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config").canonicalize().unwrap()
}

fn read(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap()
}

fn server(text: &str) -> ServerConfig {
    ServerConfig::parse(text, "server.toml", Path::new("/etc/vpnd")).unwrap()
}

/// Lines such as `# mtu = 1420` without the mark; examples that are no defaults stay comments.
fn with_defaults(text: &str) -> String {
    let not_defaults = [
        "dns",
        "search",
        "outgoing_interface",
        "addresses",
        "metrics ",
        "client_crl",
        "action",
        "from",
        "to ",
        "protocol",
        "ports",
        "suites = [",
        "user ",
        "more_ports ",
        "name = \"students\"",
        "rate_",
        "session_rate_down = \"1",
        "session_rate_up = \"2",
        "user_rate_down = \"2",
        "user_rate_up = \"4",
    ];
    let line = |line: &str| match line.strip_prefix("# ") {
        Some(bare) if is_setting(bare) && !not_defaults.iter().any(|key| bare.starts_with(key)) => {
            bare.to_owned()
        }
        _ => line.to_owned(),
    };
    text.lines().map(|text| line(text) + "\n").collect()
}

/// The text up to what is there only where it is configured; before that, sections have defaults.
fn sections(text: &str) -> &str {
    text.split("# [acme]").next().unwrap()
}

fn is_setting(line: &str) -> bool {
    let Some((key, value)) = line.split_once(" = ") else { return false };
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    !key.is_empty() && key.chars().all(is_allowed) && !value.is_empty()
}

#[test]
fn the_server_example_is_good_and_its_comments_show_the_defaults() {
    let text = read("server.toml");
    let text = sections(&text).to_owned();
    let defaults = with_defaults(&text);
    let shown = defaults.lines().count() - defaults.lines().filter(|line| line.starts_with('#')).count();
    assert!(shown > 50, "the comments show too few settings for this test to mean something: {shown}");
    let (plain, mut explicit) = (server(&text), server(&defaults));
    explicit.places = plain.places.clone();
    assert_eq!(format!("{plain:#?}"), format!("{explicit:#?}"));
}

const SECTIONS: [&str; 19] = [
    "server",
    "tls",
    "tunnel",
    "push",
    "nat",
    "policy",
    "crypto",
    "offload",
    "limits",
    "timeouts",
    "audit",
    "admin",
    "process",
    "log",
    "wireguard",
    "portal",
    "acme",
    "store",
    "fleet",
];

#[test]
fn every_setting_of_the_server_is_in_the_example() {
    let text = read("server.toml");
    let all: String = text
        .lines()
        .map(|line| {
            line.strip_prefix("# ").filter(|bare| is_setting(bare) || bare.starts_with('[')).unwrap_or(line)
        })
        .filter(|line| !line.starts_with("suites = \"auto\""))
        // One public address has no blocks for a /16.
        .map(|line| {
            line.replace("10.86.0.0/16", "10.86.0.0/27").replace("10.86.16.0/20", "10.86.0.16/28") + "\n"
        })
        .collect();
    let configured = server(&all);
    // Each kind of source has its own keys.
    let starts: Vec<usize> = all.match_indices("[[source]]").map(|(at, _)| at).collect();
    let ends = starts.iter().copied().skip(1).chain([all.len()]);
    assert!(starts.len() >= 3, "{starts:?}");
    for kind in ends.map(|end| &all[..end]) {
        let wrong = format!("{kind}zzzz = 1\n");
        let problem = ServerConfig::parse(&wrong, "x", Path::new("/")).unwrap_err().to_string();
        let known = problem.split("it knows ").nth(1).unwrap();
        for key in known.lines().next().unwrap().split(", ").map(|key| key.trim_matches('\'')) {
            let shown = text.contains(&format!("# {key} = "));
            assert!(shown, "'{key}' of [[source]] is not in config/server.toml");
        }
    }
    let wrong = all.replace("[[profile]]\n", "[[profile]]\nzzzz = 1\n");
    let problem = ServerConfig::parse(&wrong, "x", Path::new("/")).unwrap_err().to_string();
    for key in problem.split("it knows ").nth(1).unwrap().lines().next().unwrap().split(", ") {
        let key = key.trim_matches('\'');
        let shown = text.contains(&format!("# {key} = ")) || text.contains(&format!("# [[profile.{key}]]"));
        assert!(shown, "'{key}' of [[profile]] is not in config/server.toml");
    }
    assert!(configured.profiles.are_configured());
    // Each key of a source that has a default shows it.
    let defaults = [
        "keep_realm",
        "timeout_ms",
        "max_logins",
        "filter ",
        "subject",
        "group_attribute ",
        "group_attributes",
        "max_groups",
        "nested_groups",
        "nas_identifier",
        "max_waiting",
        "recheck_s",
        "recheck_grace_s",
        "push_timeout_s",
    ];
    let bare = all.lines().filter(|line| !defaults.iter().any(|key| line.starts_with(key)));
    let bare = bare.map(|line| line.to_owned() + "\n").collect::<String>();
    assert_eq!(server(&bare).sources, configured.sources);
    // The error for an unknown key lists all keys of the section.
    for section in SECTIONS {
        let wrong = all.replace(&format!("[{section}]\n"), &format!("[{section}]\nzzzz = 1\n"));
        let problem = ServerConfig::parse(&wrong, "x", Path::new("/")).unwrap_err().to_string();
        let known = problem.split("it knows ").nth(1).unwrap();
        for key in known.lines().next().unwrap().split(", ").map(|key| key.trim_matches('\'')) {
            let shown = all
                .lines()
                .any(|line| line.starts_with(&format!("{key} = ")) || line.contains(&format!(".{key}]]")));
            assert!(shown, "'{key}' of [{section}] is not in config/server.toml");
        }
    }
}

#[test]
fn the_client_example_is_good() {
    let profile = Profile::parse(&read("client.toml"), "client.toml").unwrap();
    assert_eq!((profile.user.as_deref(), profile.trust), (Some("ann"), Trust::System));
}

const UNITS: [&str; 5] = [
    "vpnd-server.service",
    "vpnd-connect@.service",
    "vpnd-client.service",
    "vpnd-kill-switch.service",
    BROWSERS_UNIT,
];
/// The one with a browser in it, which compiles scripts and has namespaces and a screen.
const BROWSERS_UNIT: &str = "vpnd-captive-portal.service";

#[test]
fn units_call_commands_that_exist() {
    let mut commands = 0;
    for unit in UNITS {
        for line in read(unit).lines().filter(|line| line.starts_with("Exec")) {
            let (_, command) = line.split_once('=').unwrap();
            let words = command.replace("%i", "work");
            let parsed = Cli::try_parse_from(words.split_whitespace());
            assert!(parsed.is_ok(), "{unit}: {line}: {}", parsed.err().unwrap());
            commands += 1;
        }
    }
    assert_eq!(commands, 8);
}

/// The exit code of the main process alone decides what systemd does not try again.
#[test]
fn units_with_an_exit_code_that_ends_them_start_with_their_main_process() {
    for unit in UNITS {
        let text = read(unit);
        let ends = !directive(&text, "RestartPreventExitStatus").is_empty();
        assert!(!ends || directive(&text, "ExecStartPre").is_empty(), "{unit}");
    }
}

/// Checks a unit's exposure as systemd counts it (in tenths), where systemd is installed.
#[test]
fn units_leave_little_exposed() {
    let dir = tempfile::tempdir().unwrap();
    for name in UNITS {
        let most = if name == BROWSERS_UNIT { "--threshold=58" } else { "--threshold=30" };
        let is_closed = |text: &str| {
            let unit = dir.path().join(name);
            fs::write(&unit, text).unwrap();
            let mut analyze = Command::new("systemd-analyze");
            analyze.args(["security", "--offline=yes", "--no-pager", most]).arg(unit).output()
        };
        let text = read(name);
        match is_closed(&text) {
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "systemd-analyze: {error}");
                eprintln!("SKIPPED: there is no systemd-analyze here");
                return;
            }
            Ok(output) => {
                assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stdout));
            }
        }
        let open = is_closed(&text.replace("CapabilityBoundingSet=", "# ")).unwrap();
        assert!(!open.status.success(), "{name}: it counts for nothing that all capabilities are there");
    }
}

/// The values of a directive in a unit.
fn directive<'u>(unit: &'u str, name: &str) -> Vec<&'u str> {
    let lines = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).collect()
}

#[test]
fn units_keep_undo_journals_where_no_other_process_writes_and_no_stop_removes_them() {
    for unit in UNITS {
        let text = read(unit);
        let state = directive(&text, "StateDirectory");
        assert!(
            state.iter().any(|name| Path::new("/var/lib").join(name) == Path::new(DEFAULT_DIRECTORY)),
            "{unit}"
        );
        assert_eq!(directive(&text, "StateDirectoryMode"), ["0700"], "{unit}");
        for path in directive(&text, "ReadWritePaths").into_iter().chain(["/var/lib/vpnd"]) {
            assert!(!Path::new(DEFAULT_DIRECTORY).starts_with(path), "{unit}: {path}");
        }
    }
    let config = server(&read("server.toml"));
    assert_eq!(config.server.journal_dir, Path::new(DEFAULT_DIRECTORY));
    assert!(!config.server.journal_dir.starts_with(&config.server.state_dir));
}

#[test]
fn units_let_nothing_be_written_but_what_vpnd_changes() {
    let writable: [(&str, &[&str]); 5] = [
        ("vpnd-server.service", &["/etc/vpnd", "/proc/sys/net"]),
        ("vpnd-connect@.service", &["/etc", "-/proc/sys/net/ipv4/conf/all/src_valid_mark"]),
        ("vpnd-client.service", &["/etc", "-/proc/sys/net/ipv4/conf/all/src_valid_mark"]),
        ("vpnd-kill-switch.service", &[]),
        (BROWSERS_UNIT, &[]),
    ];
    let browsers = ["PrivateTmp", "PrivateIPC", "RestrictNamespaces", "MemoryDenyWriteExecute"];
    for (unit, paths) in writable {
        let text = read(unit);
        assert_eq!(directive(&text, "ReadWritePaths"), paths, "{unit}");
        assert_eq!(directive(&text, "ProtectSystem"), ["strict"], "{unit}");
        for name in [
            "NoNewPrivileges",
            "ProtectKernelTunables",
            "ProtectKernelModules",
            "ProtectKernelLogs",
            "ProtectControlGroups",
            "ProtectClock",
            "ProtectHostname",
            "ProtectHome",
            "PrivateTmp",
            "PrivateIPC",
            "RestrictSUIDSGID",
            "RestrictNamespaces",
            "RestrictRealtime",
            "LockPersonality",
            "MemoryDenyWriteExecute",
        ] {
            let wanted: &[&str] =
                if unit == BROWSERS_UNIT && browsers.contains(&name) { &[] } else { &["yes"] };
            assert_eq!(directive(&text, name), wanted, "{unit}: {name}");
        }
    }
}

#[test]
fn units_are_restarted_however_often_they_fail() {
    for unit in UNITS {
        let text = read(unit);
        let before_service = text.split("[Service]").next().unwrap();
        assert!(before_service.contains("\nStartLimitIntervalSec=0\n"), "{unit}");
        assert_eq!(directive(&text, "Restart"), ["on-failure"], "{unit}");
        for (key, least) in [("RestartSec", 1), ("RestartSteps", 2), ("RestartMaxDelaySec", 60)] {
            let value: u32 = directive(&text, key)[0].parse().unwrap();
            assert!(value >= least, "{unit}: {key}");
        }
    }
}

/// systemd's own check, where it is there. Programs are replaced by one that exists on every
/// machine.
#[test]
fn systemd_takes_the_units() {
    let dir = tempfile::tempdir().unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify.arg("verify").arg("--man=no");
    for (unit, instance) in [
        ("vpnd-server.service", "vpnd-server.service"),
        ("vpnd-connect@.service", "vpnd-connect@work.service"),
        ("vpnd-client.service", "vpnd-client.service"),
        ("vpnd-kill-switch.service", "vpnd-kill-switch.service"),
        (BROWSERS_UNIT, BROWSERS_UNIT),
    ] {
        fs::write(dir.path().join(unit), read(unit).replace("/usr/local/bin/vpnd", "/bin/true")).unwrap();
        verify.arg(dir.path().join(instance));
    }
    match verify.output() {
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "systemd-analyze: {error}");
            eprintln!("SKIPPED: there is no systemd-analyze here");
        }
        Ok(output) => {
            let text = String::from_utf8(output.stderr).unwrap();
            // Older ones restart without steps.
            let is_newer =
                |line: &str| ["'RestartSteps'", "'RestartMaxDelaySec'"].iter().any(|key| line.contains(key));
            let ours: Vec<_> =
                text.lines().filter(|line| line.contains("vpnd-") && !is_newer(line)).collect();
            assert!(ours.is_empty(), "{ours:#?}");
        }
    }
}

#[test]
fn the_kernel_knows_the_settings() {
    let text = read("60-vpnd.conf");
    let settings = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut count = 0;
    for line in settings {
        let (key, value) = line.split_once(" = ").unwrap();
        assert!(value.parse::<u64>().is_ok(), "{line}");
        // A network namespace shows only its own settings; those of the machine are not in it.
        let path = Path::new("/proc/sys").join(key.replace('.', "/"));
        assert!(key.starts_with("net.core.") || path.exists(), "{line}");
        count += 1;
    }
    assert!(count > 0);
}

#[test]
fn examples_hold_no_secrets() {
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("PRIVATE KEY"), "{}", path.display());
    }
}

#[test]
fn the_pages_about_other_programs_name_keys_that_exist() {
    let text = read("server.toml");
    let mut section = "";
    let mut known = std::collections::BTreeSet::new();
    for line in text.lines() {
        let bare = line.strip_prefix("# ").unwrap_or(line);
        if let Some(name) = bare.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            section = name;
        } else if is_setting(bare) {
            known.insert(format!("[{section}] {}", bare.split(" = ").next().unwrap()));
        }
    }
    let page = fs::read_to_string(folder().join("../docs/MIGRATION.md")).unwrap();
    let quoted = page.split('`').skip(1).step_by(2);
    let keys: Vec<&str> = quoted.filter(|text| text.starts_with('[') && text.contains("] ")).collect();
    assert!(keys.len() > 40, "{}", keys.len());
    let unknown: Vec<&&str> = keys.iter().filter(|key| !known.contains(**key)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
