//! The adapters of OpenVPN, SoftEther, strongSwan and Nebula with stand-ins for their programs:
//! none of the packages is needed.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{can_run, first_problem, namespaces_of, start};

/// A directory for programs. SoftEther's processes would not see one in /tmp, where the sources may
/// be too.
fn programs() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").expect("a directory")
}

fn program(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("executable");
    path
}

/// Measures and returns the report; whatever happened, no namespace is left.
fn report(line: &str) -> Value {
    let child = start(line);
    let pid = child.id();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(namespaces_of(pid), [""; 0]);
    serde_json::from_slice(&output.stdout).expect("a report")
}

#[test]
fn a_peer_that_fails_to_start_shows_its_log_and_others_continue() {
    if !can_run() {
        return;
    }
    let directory = programs();
    let broken = program(directory.path(), "broken", "echo 'no luck today' >&2; exit 3");
    let names = [
        "openvpn",
        "vpnserver",
        "vpnclient",
        "vpncmd",
        "swanctl",
        "charon-systemd",
        "libstrongswan-kernel-libipsec.so",
        "nebula",
        "nebula-cert",
    ];
    let named: String = names.iter().map(|name| format!(" --program {name}={}", broken.display())).collect();
    let report = report(&format!(
        "--clients 2 --vpn openvpn,softether,strongswan,nebula,none -P 2 -t 0.5 -O 0 --json{named}"
    ));
    for (system, what) in [
        ("OpenVPN", "openvpn (server) ended"),
        ("SoftEther", "vpnserver (server) ended"),
        ("strongSwan", "charon (gateway) ended"),
        ("Nebula", "nebula-cert (authority) failed"),
    ] {
        let problem = first_problem(&report, system);
        assert!(problem.starts_with(what) && problem.ends_with("| no luck today"), "{problem}");
    }
    // SoftEther has two, with its own priority and without.
    let other = &report["runs"][5];
    assert_eq!(other["pairs"].as_array().map(Vec::len), Some(1), "the other system goes on: {other:#}");
}

#[test]
fn at_the_same_priority_softethers_server_can_not_raise_its_own() {
    if !can_run() {
        return;
    }
    let directory = programs();
    let broken = program(directory.path(), "broken", "exit 3");
    let server = program(directory.path(), "vpnserver", "nice -n -20 cut -d' ' -f19 /proc/self/stat; exit 3");
    for (priority, raises) in [("own", true), ("same", false)] {
        let report = report(&format!(
            "--clients 2 --vpn softether --priority {priority} -P 2 -t 0.5 -O 0 --json --program vpnserver={} \
             --program vpnclient={broken} --program vpncmd={broken}",
            server.display(),
            broken = broken.display()
        ));
        let problem = first_problem(&report, "SoftEther");
        assert!(problem.starts_with("vpnserver (server) ended (exit status: 3)"), "{problem}");
        assert_eq!(problem.ends_with("| -20"), raises, "{problem}");
    }
}

/// Keeps OpenVPN's log, and negotiates AES-128-GCM in any case; its device leads nowhere.
const STUBBORN: &str = "\
case \"$1 ${2:-}\" in
--version*) echo 'OpenVPN 0 (stand-in)'; exit ;;
*server.conf) ;;
*)
    ip tuntap add dev tun0 mode tun
    ip addr add 10.87.0.2/16 dev tun0
    ip addr add fd87::2/64 dev tun0
    echo \"Data Channel: cipher 'AES-128-GCM', peer-id: 0\"
    ;;
esac
echo 'Initialization Sequence Completed'
exec sleep 1000";

#[test]
fn a_cipher_that_was_not_asked_for_is_no_measurement() {
    if !can_run() {
        return;
    }
    let directory = programs();
    let openvpn = program(directory.path(), "openvpn", STUBBORN);
    let report = report(&format!(
        "--clients 2 --vpn openvpn --cipher aes-256-gcm --program openvpn={} -P 2 -t 0.5 -O 0 --json",
        openvpn.display()
    ));
    let run = &report["runs"][0];
    let problem = first_problem(&report, "OpenVPN");
    assert!(problem.starts_with("openvpn (client1) uses AES-128-GCM, not AES-256-GCM"), "{problem}");
    assert_eq!(run["pairs"].as_array().map(Vec::len), Some(0), "{run:#}");
}
