//! Behaviour: a gateway beside the programs that ordinary machines manage their firewalls with: what nftables' unit, ufw and firewalld run
//! leaves the gateway's table in force, or it is back before long, and no stranger gets through meanwhile.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::client::Client;
use crate::continuity::behind_nat;
use crate::firewall::{Stranger, lab_with_stranger, lines};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process::{self, Process};
use crate::resolved;
use crate::traffic::ping_until;

const LIMIT: Duration = Duration::from_secs(60);
const UNIT: &str = "/lib/systemd/system/nftables.service";

/// Gives the gateway's box its own copy of the settings of these programs, and a `/run` that they share.
fn prepare(lab: &Lab) {
    let etc = process::etc(lab, &lab.gateway);
    for name in ["ufw", "default", "firewalld", "nftables.conf", "alternatives", "services"] {
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

/// What systemd runs to restart Debian's `nftables.service`.
fn restart_of_nftables() -> Vec<String> {
    let unit = std::fs::read_to_string(UNIT).expect("./x setup installs nftables");
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

#[test]
fn programs_that_manage_firewalls_open_the_gateway_to_nobody() {
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
        // These close the gateway's port and clients' way to the campus, which is their administrator's affair.
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
