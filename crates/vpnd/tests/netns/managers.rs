//! Behaviour: network managers of a machine that start, restart and end during a full tunnel, the
//! real ones, take nothing of it away for good, and nothing leaves in clear meanwhile.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::Client;
use crate::full::{in_clear, ordinary, speak, watch};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab, eventually};
use crate::names::{PROVIDERS, PUSHED};
use crate::process::{self, Process};
use crate::renewal::own_rules;
use crate::resolved;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
const NETWORKD: &str = "/lib/systemd/systemd-networkd";
/// The address has no broadcast address, as in the laboratory: networkd 252 would set it over and
/// over to change that.
const NETWORK: &str = "[Match]\nName=up0\n[Network]\nAddress=fd18:1::2/64\nGateway=198.18.1.1\nGateway=fd18:1::1\n\
                       IPv6AcceptRA=no\nLLMNR=no\n[Address]\nAddress=198.18.1.2/24\nBroadcast=no\n";
const NETWORK_MANAGER: &str = "usr/sbin/NetworkManager";
/// Its name server is the laboratory's: the client may look up the gateway's name there while the
/// uplink comes back, which [`watch`] knows.
const CONNECTION: &str = "[connection]\nid=up\ntype=ethernet\ninterface-name=up0\n\
                          [ipv4]\nmethod=manual\naddress1=198.18.1.2/24,198.18.1.1\ndns=198.18.0.1\n\
                          [ipv6]\nmethod=manual\naddress1=fd18:1::2/64,fd18:1::1\n";
/// It manages interfaces without udev where `/sys` can't be written, as in a container.
const AS_IN_A_CONTAINER: &str = "mount --bind /sys /sys && mount -o remount,bind,ro /sys && exec \"$0\"";

/// Starts a manager and restarts it. Everything goes into the tunnel after each, and nothing leaves
/// in clear. Returns the one that runs.
fn start_and_restart<'l>(
    lab: &'l Lab,
    client: &Client<'l>,
    start: impl Fn() -> Process,
    ready: impl Fn(&mut Process),
) -> Process {
    let started = || {
        let mut daemon = start();
        ready(&mut daemon);
        daemon
    };
    let mut daemon = started();
    watch(lab);
    through(lab, client, "started");
    end(daemon);
    daemon = started();
    through(lab, client, "restarted");
    daemon
}

/// Ends it in order, or not: dhcpcd 9.4 may wait for one of its processes for good.
fn end(mut daemon: Process) {
    daemon.signal(Signal::TERM);
    let patience = Instant::now() + 10 * SECOND;
    while daemon.ended().is_none() && Instant::now() < patience {
        thread::sleep(SECOND / 20);
    }
}

fn through<'l>(lab: &'l Lab, client: &Client<'l>, what: &str) {
    for campus in [CAMPUS_V4.into(), CAMPUS_V6.into()] {
        let answers = || ping(client.namespace(), campus, 56, SECOND / 5).then_some(());
        eventually(&format!("{what}: {campus} answers"), 20 * SECOND, answers);
    }
    speak(client.namespace());
    assert_eq!(in_clear(lab), 0, "{what}");
}

#[test]
fn systemd_networkd_starts_and_restarts_beside_a_full_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    if !Path::new(NETWORKD).exists() {
        let word = "SKIPPED: there is no systemd-networkd here\n";
        assert!(std::env::var_os("CI").is_none(), "{word}");
        std::io::stderr().write_all(word.as_bytes()).expect("standard error is open");
        return;
    }
    let (_providers, _gateway, ann) = ordinary(&lab);
    let machine = &lab.clients[0];
    let run = process::share_run(&lab, machine, Path::new("/"));
    let _bus = resolved::bus(&lab, machine);
    fs::create_dir_all(run.join("systemd/network")).expect("the laboratory is ours");
    fs::write(run.join("systemd/network/up.network"), NETWORK).expect("the laboratory is ours");
    let start = || {
        let mut command = process::command(&lab, machine, "sh");
        command.args(["-c", AS_IN_A_CONTAINER, NETWORKD]);
        Process::start(&lab, "networkd", command)
    };
    let configured = |daemon: &mut Process| {
        eventually("it manages the uplink", 20 * SECOND, || {
            daemon.assert_running();
            daemon.output().contains("up0: Configuring").then_some(())
        });
    };
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
    let _daemon = start_and_restart(&lab, &client, start, configured);
    // The client is not needed for that: networkd leaves the tunnel's rules alone.
    client.process().signal_all(Signal::STOP);
    told(&lab, "networkctl", &["reconfigure", "up0"]);
    thread::sleep(SECOND);
    speak(machine);
    assert_eq!(in_clear(&lab), 0, "reconfigured while the client stands still");
    client.process().signal_all(Signal::CONT);
    for arguments in [&["reload"][..], &["reconfigure", "up0"], &["down", "up0"], &["up", "up0"]] {
        told(&lab, "networkctl", arguments);
        if arguments[0] != "down" {
            through(&lab, &client, arguments[0]);
        }
    }
}

#[test]
fn network_manager_starts_and_restarts_beside_a_full_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let Some(root) = resolved::programs(NETWORK_MANAGER) else { return };
    let (_providers, _gateway, ann) = ordinary(&lab);
    let machine = &lab.clients[0];
    process::share_run(&lab, machine, &root);
    let _bus = resolved::bus(&lab, machine);
    let settings = process::etc(&lab, machine).join("NetworkManager");
    let connections = settings.join("system-connections");
    fs::create_dir_all(&connections).expect("the laboratory is ours");
    fs::write(settings.join("NetworkManager.conf"), "[main]\nplugins=keyfile\nauth-polkit=false\n")
        .expect("the laboratory is ours");
    let connection = connections.join("up.nmconnection");
    fs::write(&connection, CONNECTION).expect("the laboratory is ours");
    fs::set_permissions(&connection, fs::Permissions::from_mode(0o600)).expect("the laboratory is ours");
    let start = || {
        let mut command = process::command(&lab, machine, "sh");
        let state = format!("mount -t tmpfs state /var/lib && {AS_IN_A_CONTAINER} \"$@\"");
        command.args(["-c", &state]).arg(root.join(NETWORK_MANAGER)).arg("--debug");
        Process::start(&lab, "network-manager", command)
    };
    let activated = |daemon: &mut Process| {
        eventually("it manages the uplink", 20 * SECOND, || {
            daemon.assert_running();
            daemon.output().contains("device (up0): Activation: successful").then_some(())
        });
    };
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
    let _daemon = start_and_restart(&lab, &client, start, activated);
    for arguments in [&["connection", "up", "up"][..], &["networking", "off"], &["networking", "on"]] {
        told(&lab, "nmcli", arguments);
        if arguments[1] != "off" {
            through(&lab, &client, &arguments.join(" "));
        }
    }
    let resolv_conf = process::etc(&lab, machine).join("resolv.conf");
    let name_servers = |what, words: &[&str]| {
        eventually(what, 20 * SECOND, || {
            let text = fs::read_to_string(&resolv_conf).ok()?;
            words.iter().all(|word| text.contains(word)).then_some(())
        });
    };
    name_servers("names are for the tunnel", &[PUSHED]);
    client.interrupt();
    name_servers("the manager's file is back", &["Generated by NetworkManager", PROVIDERS]);
}

/// Runs a command of a manager, which has to succeed.
fn told(lab: &Lab, program: &str, arguments: &[&str]) {
    let mut command = process::command(lab, &lab.clients[0], program);
    command.args(arguments);
    let output = process::run(command);
    assert!(output.status.success(), "{program} {arguments:?}: {}", process::text(&output));
}

#[test]
fn dhcpcd_starts_and_ends_beside_a_full_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let (_providers, _gateway, ann) = ordinary(&lab);
    let machine = &lab.clients[0];
    let mut server: Command = process::command(&lab, &lab.net, "dnsmasq");
    server.args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--pid-file=", "--user=root"]);
    server.args(["--bind-interfaces", "--log-facility=-", "--leasefile-ro"]);
    server.arg(format!("--interface={}", Lab::port(1)));
    server.arg("--dhcp-range=198.18.1.100,198.18.1.120,255.255.255.0,2m");
    server.arg(format!("--dhcp-option=option:dns-server,{PROVIDERS}"));
    let _server = Process::start(&lab, "dhcp", server);
    process::share_run(&lab, machine, Path::new("/"));
    let etc = process::etc(&lab, machine);
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
    // For all interfaces, the tunnel's among them, as distributions start it.
    let start = || {
        let mut command = process::command(&lab, machine, "sh");
        command.args(["-c", "mount -t tmpfs leases /var/lib/dhcpcd && exec \"$@\"", "sh", "dhcpcd"]);
        command.args([
            "--nobackground",
            "--nodev",
            "--ipv4only",
            "--option",
            "domain_name_servers",
            "--config",
            "/dev/null",
        ]);
        Process::start(&lab, "dhcpcd", command)
    };
    let leased = |daemon: &mut Process| {
        eventually("it has an address", 20 * SECOND, || {
            daemon.assert_running();
            daemon.output().contains("up0: leased 198.18.1.1").then_some(())
        });
    };
    let daemon = start_and_restart(&lab, &client, start, leased);
    eventually("names are for the tunnel", 20 * SECOND, || {
        fs::read_to_string(etc.join("resolv.conf")).ok()?.contains(PUSHED).then_some(())
    });
    client.interrupt();
    end(daemon);
    assert!(own_rules(machine, "-4").is_empty(), "nothing is left");
}
