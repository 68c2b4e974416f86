//! Behaviour: who follows the README line by line, with a gateway that has a name, DNS servers for
//! its clients, and NAT as `init` writes it, gets a VPN that works; and Ctrl-C, or `vpnd cleanup`
//! after a power cut, gives the machine back.
//!
//! No option stands here that the README does not name, but for files in place of typed passwords:
//! all paths are the defaults, in directories of each machine's own.

use std::fs;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::cleanup::{Machine, look_at};
use crate::gateway::{VPND, edit_toml, must, strings, write_secret};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, GATEWAY_V6, Lab, eventually};
use crate::names::{self, NAME, PROVIDERS, PUSHED};
use crate::namespace::Namespace;
use crate::process::{self, Process};
use crate::traffic::{ping, ping_until};
use crate::without_ipv6::switch_off;

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(30);

/// A machine whose `/run` and `/var/lib` outlive its programs.
pub(crate) struct Newcomer<'l> {
    lab: &'l Lab,
    pub(crate) place: &'l Namespace,
}

impl<'l> Newcomer<'l> {
    pub(crate) fn at(lab: &'l Lab, place: &'l Namespace) -> Self {
        process::share_run(lab, place, "/".as_ref());
        let this = Self { lab, place };
        fs::create_dir(this.var_lib()).expect("the laboratory's directory is writable");
        this
    }

    fn var_lib(&self) -> std::path::PathBuf {
        self.lab.path(format!("lib-{}", self.place.name()))
    }

    /// A program and its words, in the laboratory's directory as if at home.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = process::command(self.lab, self.place, "sh");
        command.args(["-c", "mount --bind \"$0\" /var/lib && exec \"$@\""]).arg(self.var_lib());
        command.args(words.iter().map(|word| if *word == "vpnd" { VPND } else { word }));
        command.current_dir(self.lab.path(""));
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> String {
        process::text(&must(process::run(self.command(words))))
    }

    /// Starts a program that goes on, and waits until it says `line`.
    pub(crate) fn start(&self, words: &[&str], line: &str) -> Process {
        let mut process = Process::start(self.lab, words[1], self.command(words));
        eventually(line, LIMIT, || {
            process.assert_running();
            process.output().contains(line).then_some(())
        });
        process
    }
}

/// "A gateway" of the README.
fn gateway(lab: &Lab) -> (Newcomer<'_>, Process) {
    // Without NAT there is no way back.
    lab.campus.ip_batch("route del default via 10.200.0.1\nroute del default via fd20::1\n");
    let gateway = Newcomer::at(lab, &lab.gateway);
    gateway.run(&["vpnd", "init", "--dir", "/etc/vpnd", "--name", NAME]);
    edit_toml(&process::etc(lab, &lab.gateway).join("vpnd/server.toml"), |config| {
        let push = config["push"].as_table_mut().expect("a section");
        push.insert("routes".to_owned(), strings(&["10.200.0.0/24", "fd20::/64"]));
        push.insert("dns".to_owned(), strings(&[PUSHED]));
    });
    let checked = gateway.run(&["vpnd", "check", "/etc/vpnd/server.toml"]);
    // It warns of what comes next: there is no user yet.
    assert!(checked.contains("no error") && checked.contains("vpnd user add"), "{checked}");
    write_secret(&lab.path("password"), "alice's password\n");
    gateway.run(&[
        "vpnd",
        "user",
        "add",
        "alice",
        "--profile-out",
        "alice.toml",
        "--password-file",
        "password",
    ]);
    let server = gateway.start(&["vpnd", "server"], "the gateway is up");
    (gateway, server)
}

fn asked(lab: &Lab) -> String {
    fs::read_to_string(process::etc(lab, &lab.clients[0]).join("resolv.conf")).expect("it is there")
}

/// "A client" of the README: connected, with names looked up in the tunnel; a machine as before
/// when it ends.
fn client(lab: &Lab, gateway: &Newcomer<'_>, campus: &[std::net::IpAddr]) {
    fs::write(process::etc(lab, &lab.clients[0]).join("resolv.conf"), format!("nameserver {PROVIDERS}\n"))
        .expect("it is the laboratory's");
    let client = Newcomer::at(lab, &lab.clients[0]);
    let before: Machine = look_at(lab, client.place);
    for is_killed in [false, true] {
        let connect = ["vpnd", "connect", "alice.toml", "--credentials", "password"];
        let mut connected = client.start(&connect, "the tunnel is set up");
        for to in campus {
            ping_until(client.place, *to, LIMIT);
        }
        eventually("names are looked up in the tunnel", LIMIT, || asked(lab).contains(PUSHED).then_some(()));
        let found = client.run(&["getent", "ahosts", NAME]);
        assert!(found.contains("192.0.2.1"), "the pushed name server is asked: {found}");
        let own = client.run(&["vpnd", "status"]);
        assert!(own.contains("this machine is a client:") && own.contains(": connected"), "{own}");
        let status = gateway.run(&["vpnd", "status"]);
        assert!(status.contains("alice"), "{status}");
        if is_killed {
            connected.kill();
            client.run(&["vpnd", "cleanup"]);
        } else {
            connected.signal(Signal::INT);
            assert!(connected.wait(LIMIT).success(), "{}", connected.output());
        }
        assert!(!ping(client.place, campus[0], 56, SECOND / 5), "the campus is out of reach again");
        assert_eq!(look_at(lab, client.place), before, "killed: {is_killed}");
    }
}

#[test]
fn the_steps_of_the_readme_make_a_vpn() {
    let Some(lab) = Lab::new(1) else { return };
    let outer = [GATEWAY_V4.to_string(), GATEWAY_V6.to_string()];
    let _providers =
        names::name_server_at(&lab, &lab.net, &[PROVIDERS], &[outer[0].as_str(), outer[1].as_str()]);
    let _pushed = names::name_server(&lab, &lab.campus, PUSHED, "192.0.2.1");
    let (gateway, mut server) = gateway(&lab);
    client(&lab, &gateway, &[CAMPUS_V4.into(), CAMPUS_V6.into()]);
    // Then the administrator disables her.
    gateway.run(&["vpnd", "user", "disable", "alice"]);
    gateway.run(&["vpnd", "reload"]);
    server.signal(Signal::INT);
    assert!(server.wait(LIMIT).success(), "{}", server.output());
}

#[test]
fn the_steps_of_the_readme_make_a_vpn_without_ipv6() {
    let Some(lab) = Lab::new(1) else { return };
    switch_off(&lab.gateway);
    switch_off(&lab.clients[0]);
    let _providers = names::name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    let _pushed = names::name_server(&lab, &lab.campus, PUSHED, "192.0.2.1");
    let (gateway, _server) = gateway(&lab);
    client(&lab, &gateway, &[CAMPUS_V4.into()]);
}
