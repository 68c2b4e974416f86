//! A client in its box: connected, looked at from outside, ended.
//!
//! Invariants: what a client knows of its inner addresses is read from the kernel, not from the
//! client. This module must not know how the client works inside.

use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value as Json;

use crate::gateway::{Gateway, Login, VPND};
use crate::lab::{CAMPUS_V4, Lab, UPLINK, eventually};
use crate::namespace::Namespace;
use crate::process::{self, Process};
use crate::traffic::ping_until;

/// The client's TUN device.
pub(crate) const TUN: &str = "vpn0";

const CONNECTS: Duration = Duration::from_secs(20);

/// `vpnd connect` in the box of client `n`.
pub(crate) struct Client<'l> {
    lab: &'l Lab,
    number: usize,
    process: Process,
}

impl<'l> Client<'l> {
    /// A gateway as `init` makes it and client 1 of its only user, with a way to the campus.
    pub(crate) fn alone(lab: &'l Lab) -> (Gateway<'l>, Self) {
        let mut gateway = Gateway::init(lab);
        let ann = gateway.add_user("ann");
        gateway.start();
        let one = Self::connect(lab, 1, &ann);
        ping_until(one.namespace(), CAMPUS_V4.into(), Duration::from_secs(5));
        (gateway, one)
    }

    /// Starts it and waits until its tunnel has addresses.
    pub(crate) fn connect(lab: &'l Lab, number: usize, login: &Login) -> Self {
        Self::connect_with(lab, number, login, &[])
    }

    /// Connects with further arguments.
    pub(crate) fn connect_with(lab: &'l Lab, number: usize, login: &Login, arguments: &[&str]) -> Self {
        let process = Process::start(lab, &format!("client{number}"), command(lab, number, login, arguments));
        let mut client = Self { lab, number, process };
        // Its addresses are there before its routes.
        eventually(&format!("client {number} is connected"), CONNECTS, || {
            client.process.assert_running();
            let connected = client.process.output().contains(": connected");
            (connected && !client.addresses().is_empty()).then_some(())
        });
        client
    }

    /// Starts it and waits until it logs this, and goes on trying.
    pub(crate) fn trying(lab: &'l Lab, number: usize, login: &Login, line: &str) -> Self {
        let process = Process::start(lab, &format!("client{number}"), command(lab, number, login, &[]));
        let mut client = Self { lab, number, process };
        eventually(&format!("client {number} logs {line:?}"), CONNECTS, || {
            client.process.assert_running();
            client.process.output().contains(line).then_some(())
        });
        client
    }

    /// Runs it until it ends by itself, as it must when it is refused; both its streams and its
    /// exit code.
    pub(crate) fn refused(lab: &Lab, number: usize, login: &Login, arguments: &[&str]) -> (i32, String) {
        ended(lab, command(lab, number, login, arguments))
    }

    /// Its box.
    pub(crate) fn namespace(&self) -> &'l Namespace {
        namespace(self.lab, self.number)
    }

    /// Gives its machine another outer IPv4 address; `from` and `to` are their last bytes.
    pub(crate) fn change_address(&self, from: u8, to: u8) {
        let net = format!("198.18.{}", self.number);
        self.namespace().ip_batch(&format!(
            "addr del {net}.{from}/24 dev {UPLINK}\n\
             addr add {net}.{to}/24 dev {UPLINK}\n\
             route replace default via {net}.1 dev {UPLINK}\n"
        ));
    }

    /// The firewall rules of its machine.
    pub(crate) fn firewall(&self) -> String {
        let mut command = process::command(self.lab, self.namespace(), "nft");
        command.args(["list", "ruleset"]);
        process::text(&process::run(command))
    }

    /// The inner addresses that the kernel has on its TUN device.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let links: Json =
            serde_json::from_str(&self.namespace().ip(&["-j", "address", "show"])).expect("JSON");
        let tun = links.as_array().expect("a list").iter().find(|link| link["ifname"] == TUN);
        let infos = tun.and_then(|link| link["addr_info"].as_array()).into_iter().flatten();
        let global = infos.filter(|info| info["scope"] == "global");
        global.filter_map(|info| info["local"].as_str()?.parse().ok()).collect()
    }

    /// Its inner IPv4 address.
    pub(crate) fn v4(&self) -> IpAddr {
        self.addresses().into_iter().find(IpAddr::is_ipv4).expect("the pool has IPv4 addresses")
    }

    /// Its inner IPv6 address.
    pub(crate) fn v6(&self) -> IpAddr {
        self.addresses().into_iter().find(IpAddr::is_ipv6).expect("the pool has IPv6 addresses")
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Its process alone.
    pub(crate) fn into_process(self) -> Process {
        self.process
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Ends it as Ctrl-C does; it must say success.
    pub(crate) fn interrupt(&mut self) {
        self.process.signal(Signal::INT);
        let status = self.process.wait(Duration::from_secs(10));
        assert!(status.success(), "{status}:\n{}", self.process.output());
    }
}

/// Waits for the end of a client that is refused; both its streams and its exit code.
pub(crate) fn ended(lab: &Lab, command: Command) -> (i32, String) {
    let mut process = Process::start(lab, "refused", command);
    let status = process.wait(CONNECTS);
    let output = process.output();
    let code = status.code().unwrap_or_else(|| panic!("a signal ended it: {status}\n{output}"));
    assert_ne!(code, 0, "it says that it succeeded:\n{output}");
    (code, output)
}

/// `vpnd cleanup` in the box of client `number`.
pub(crate) fn cleanup(lab: &Lab, number: usize) -> Output {
    let mut command = process::command(lab, namespace(lab, number), VPND);
    command.arg("cleanup").arg("--journal-dir").arg(journal(lab, number));
    process::run(command)
}

/// `vpnd connect`, not started.
pub(crate) fn command(lab: &Lab, number: usize, login: &Login, arguments: &[&str]) -> Command {
    let words = self::arguments(lab, number, login);
    let mut command = process::command(lab, namespace(lab, number), &words[0]);
    command.args(&words[1..]).args(arguments);
    command
}

/// The client as a person starts it, without `--verbose`, and without a user that few machines
/// have.
pub(crate) fn plain_command(lab: &Lab, number: usize, login: &Login) -> Command {
    let words = self::arguments(lab, number, login);
    let mut command = process::command(lab, namespace(lab, number), &words[0]);
    command.args(words[1..].iter().filter(|word| *word != "--verbose")).args(["--user", "nobody"]);
    command
}

/// The words of `vpnd connect`, its program first.
pub(crate) fn arguments(lab: &Lab, number: usize, login: &Login) -> Vec<OsString> {
    let (profile, credentials) = (&login.profile, &login.credentials);
    let (state, journal) = (state(lab, number), journal(lab, number));
    let words: [&OsStr; 11] = [
        VPND.as_ref(),
        "connect".as_ref(),
        "--verbose".as_ref(),
        profile.as_ref(),
        "--credentials".as_ref(),
        credentials.as_ref(),
        "--state-dir".as_ref(),
        state.as_ref(),
        "--journal-dir".as_ref(),
        journal.as_ref(),
        "--tun".as_ref(),
    ];
    words.into_iter().chain([TUN.as_ref()]).map(ToOwned::to_owned).collect()
}

fn state(lab: &Lab, number: usize) -> PathBuf {
    lab.path(format!("state{number}"))
}

/// Path of its undo journal.
pub(crate) fn journal(lab: &Lab, number: usize) -> PathBuf {
    lab.path(format!("journal{number}"))
}

fn namespace(lab: &Lab, number: usize) -> &Namespace {
    &lab.clients[number - 1]
}
