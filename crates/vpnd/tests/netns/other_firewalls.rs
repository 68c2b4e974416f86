//! Behaviour: a gateway with the programs by which ordinary machines manage their firewalls:
//! what nftables' unit, ufw and firewalld run leaves the gateway's table in force, or it is back
//! before long, and no stranger gets through meanwhile.

use std::fs;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::client::Client;
use crate::continuity::behind_nat;
use crate::doctor::{Finding, examine};
use crate::firewall::{Stranger, lab_with_stranger, lines};
use crate::gateway::Gateway;
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process::{self, Process};
use crate::resolved;
use crate::traffic::ping_until;

const LIMIT: Duration = Duration::from_secs(60);
const UNIT: &str = "/lib/systemd/system/nftables.service";
const DOCKERD: &str = "usr/sbin/dockerd";

/// Gives the gateway's box its own copy of the settings of these programs, and a `/run` that they
/// share.
fn prepare(lab: &Lab) {
    let etc = process::etc(lab, &lab.gateway);
    for name in ["ufw", "default", "firewalld", "nftables.conf", "alternatives", "services", "protocols"] {
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(format!("/etc/{name}")).arg(&etc);
        let output = process::run(copy);
        assert!(output.status.success(), "{name}: {}", process::text(&output));
    }
    process::share_run(lab, &lab.gateway, "/".as_ref());
}

/// Runs a command that has to succeed in the gateway's box.
fn run(lab: &Lab, command: &str) {
    let mut words = command.split_whitespace();
    let mut process = process::command(lab, &lab.gateway, words.next().expect("a program"));
    process.args(words);
    let output = process::run(process);
    assert!(output.status.success(), "{command}: {}", process::text(&output));
}

/// The commands by which systemd restarts Debian's `nftables.service`.
fn restart_of_nftables() -> Vec<String> {
    let unit = fs::read_to_string(UNIT).expect("./x setup installs nftables");
    let line = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)).expect(key).to_owned();
    vec![line("ExecStop="), line("ExecStart=")]
}

/// A running firewalld.
struct Firewalld {
    daemon: Process,
    _bus: Process,
}

impl Firewalld {
    fn start(lab: &Lab) -> Self {
        let bus = resolved::bus(lab, &lab.gateway);
        let mut daemon = process::command(lab, &lab.gateway, "firewalld");
        daemon.args(["--nofork", "--nopid", "--log-file"]).arg(lab.path("firewalld.log"));
        let mut daemon = Process::start(lab, "firewalld", daemon);
        eventually("firewalld answers", LIMIT, || {
            daemon.assert_running();
            let mut state = process::command(lab, &lab.gateway, "firewall-cmd");
            state.arg("--state");
            process::run(state).status.success().then_some(())
        });
        Self { daemon, _bus: bus }
    }

    fn stop(mut self) {
        self.daemon.signal(Signal::TERM);
        self.daemon.wait(LIMIT);
    }
}

/// Starts dockerd with `containerd`, and its own bridge.
fn docker(lab: &Lab) -> Option<Process> {
    let root = resolved::programs(DOCKERD)?;
    let mut command = process::command(lab, &lab.gateway, "sh");
    let cgroups = "mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec \"$0\" \"$@\"";
    command.args(["-c", cgroups]).arg(root.join(DOCKERD));
    let path = std::env::var("PATH").expect("there is one");
    let programs = ["usr/sbin", "usr/bin"].map(|place| root.join(place).display().to_string());
    command.env("PATH", format!("{}:{path}", programs.join(":")));
    for (option, place) in
        [("--data-root", "docker"), ("--exec-root", "docker-run"), ("--pidfile", "docker.pid")]
    {
        command.arg(option).arg(lab.path(place));
    }
    command.arg(format!("--host=unix://{}", lab.path("docker.sock").display()));
    command.arg("--storage-driver=vfs");
    let mut daemon = Process::start(lab, "dockerd", command);
    eventually("dockerd answers", LIMIT, || {
        daemon.assert_running();
        daemon.output().contains("API listen on").then_some(())
    });
    Some(daemon)
}

#[test]
fn docker_opens_no_way_to_the_gateway_in_either_start_order() {
    let Some(lab) = lab_with_stranger() else { return };
    prepare(&lab);
    let mut gateway = behind_nat(&lab);
    let ann = gateway.add_user("ann");
    // Docker forwards, and drops what it has not allowed, where nothing was forwarded before.
    lab.gateway.within(|| {
        fs::write("/proc/sys/net/ipv4/ip_forward", "0").expect("it is the laboratory's");
    });
    let Some(mut daemon) = docker(&lab) else { return };
    gateway.start();
    finds(&lab, &gateway, &["ip filter FORWARD"]);
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    let rules = lines(&lab);
    Stranger::during(&lab, |stranger| {
        daemon.signal(Signal::TERM);
        daemon.wait(LIMIT);
        let _again = docker(&lab);
        assert_eq!((lines(&lab), stranger.arrived()), (rules, 0));
        assert_eq!(obstacles(&gateway).len(), 0);
        ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    });
}

#[test]
fn firewall_managers_do_not_open_the_gateway() {
    let Some(lab) = lab_with_stranger() else { return };
    prepare(&lab);
    let mut gateway = behind_nat(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    let rules = lines(&lab);
    Stranger::during(&lab, |stranger| {
        let reach = || ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
        for command in restart_of_nftables() {
            run(&lab, &command);
            eventually(&command, LIMIT, || (lines(&lab) == rules).then_some(()));
            assert!(stranger.is_kept_out(), "{command}");
            reach();
        }
        // None of the others touches the table, so not one packet passes.
        let untouched_by = |what: &str| {
            assert_eq!((lines(&lab), stranger.arrived()), (rules.clone(), 0), "{what}");
        };
        // These close the gateway's port and clients' way to the campus, which is their
        // administrator's affair.
        for command in ["ufw --force enable", "ufw reload"] {
            run(&lab, command);
            untouched_by(command);
        }
        run(&lab, "ufw --force disable");
        untouched_by("the end of ufw");
        reach();
        let firewalld = Firewalld::start(&lab);
        untouched_by("firewalld");
        for command in ["firewall-cmd --reload", "firewall-cmd --complete-reload"] {
            run(&lab, command);
            untouched_by(command);
        }
        firewalld.stop();
        untouched_by("the end of firewalld");
        reach();
    });
}

/// The firewalls in the way that `vpnd doctor` finds.
fn obstacles(gateway: &Gateway<'_>) -> Vec<Finding> {
    let (_, mut findings) = examine(gateway);
    findings.retain(|finding| finding.check == "firewall" && finding.verdict != "good");
    assert!(findings.iter().all(|finding| finding.verdict == "problem"), "{findings:#?}");
    findings
}

/// Finds these chains in the way, by the beginning of their names, in this order, and none once its
/// advice was followed.
fn finds(lab: &Lab, gateway: &Gateway<'_>, chains: &[&str]) {
    let found = obstacles(gateway);
    assert_eq!(found.len(), chains.len(), "{found:#?}");
    for (finding, chain) in found.iter().zip(chains) {
        assert!(finding.found.contains(&format!("by the chain {chain}")), "{finding:?}");
        let commands = finding.advice.split("; ").filter(|part| !part.starts_with("and "));
        for command in commands.flat_map(|commands| commands.split(" && ")) {
            run(lab, command);
        }
    }
    let left = obstacles(gateway);
    assert!(left.is_empty(), "{left:#?}");
}

#[test]
fn doctor_names_the_chain_that_stands_in_the_way_and_its_advice_helps() {
    let Some(lab) = Lab::new(0) else { return };
    prepare(&lab);
    let mut gateway = behind_nat(&lab);
    gateway.start();
    finds(&lab, &gateway, &[]);
    let before = lab.gateway.ip(&["link", "show"]);
    let all = |commands: &[&str]| commands.iter().for_each(|command| run(&lab, command));
    let replies = "iptables -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";
    let open = ["iptables -F", "iptables -P FORWARD ACCEPT", "iptables -P INPUT ACCEPT"];

    // Red Hat's iptables-services has this rule, and Docker.
    all(&[replies, "iptables -A FORWARD -j REJECT"]);
    finds(&lab, &gateway, &["ip filter FORWARD"]);
    all(&open);
    all(&["iptables -P FORWARD DROP", "iptables -P INPUT DROP"]);
    finds(&lab, &gateway, &["ip filter INPUT", "ip filter FORWARD"]);
    all(&open);
    all(&["iptables-legacy -A FORWARD -j REJECT"]);
    finds(&lab, &gateway, &["iptables-legacy filter FORWARD"]);
    all(&["iptables-legacy -F", "iptables-legacy -X"]);

    // Only one direction, and a service that passes is enough.
    let site = "table inet site {\nchain forward {\ntype filter hook forward priority 10;\n";
    lab.gateway.nft(&format!("{site}iifname campus0 drop\n}}\n}}\n"));
    let found = obstacles(&gateway);
    assert!(found[0].found.starts_with("answers to clients from campus0"), "{found:#?}");
    finds(&lab, &gateway, &["inet site forward"]);
    lab.gateway.nft(&format!("delete table inet site\n{site}meta l4proto udp drop\n}}\n}}\n"));
    finds(&lab, &gateway, &[]);
    lab.gateway.nft("delete table inet site\n");

    run(&lab, "ufw --force enable");
    finds(
        &lab,
        &gateway,
        &["ip filter INPUT", "ip6 filter INPUT", "ip filter FORWARD", "ip6 filter FORWARD"],
    );
    run(&lab, "ufw --force disable");
    let firewalld = Firewalld::start(&lab);
    finds(&lab, &gateway, &["inet firewalld filter_IN", "inet firewalld filter_F"]);
    firewalld.stop();
    assert_eq!(lab.gateway.ip(&["link", "show"]), before, "the copies have left nothing behind");
}
