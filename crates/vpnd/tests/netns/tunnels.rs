//! Behaviour: several clients on one machine, each with its own gateway. They leave each other
//! alone; what both could carry goes through the newest, and its own datagrams through the older
//! ones where their routes lead there.
//!
//! The second gateway is a neighbour of the first client, in the place of client 2; behind it is
//! `SECOND_CAMPUS`.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::cleanup::look_at;
use crate::client::{self, TUN};
use crate::full::{check_sources, looks_back_with_marks};
use crate::gateway::{Gateway, Login, edit_toml, must, strings};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab, eventually};
use crate::names;
use crate::process::{self, Process};
use crate::relay::PORT;
use crate::reload::Arrivals;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
/// Addresses of the second gateway on the Internet, and of the host behind it.
const SECOND_GATEWAY: &str = "198.18.2.2";
const SECOND_CAMPUS: Ipv4Addr = Ipv4Addr::new(10, 210, 0, 1);
const TUNNELS: [&str; 2] = [TUN, "vpn1"];

/// Two gateways, each with its own user who takes `routes` into the tunnel.
struct Two<'l> {
    lab: &'l Lab,
    _gateways: [Gateway<'l>; 2],
    users: [Login; 2],
}

impl<'l> Two<'l> {
    fn start(lab: &'l Lab, pushed: [&[&str]; 2], routes: &str) -> Self {
        let second = &lab.clients[1];
        second.ip_batch(&format!("addr add {SECOND_CAMPUS}/32 dev lo\n"));
        lab.campus.ip_batch("route del default via 10.200.0.1\nroute del default via fd20::1\n");
        let mut gateways =
            [Gateway::init(lab), Gateway::init_elsewhere(lab, "second", second, &[SECOND_GATEWAY])];
        gateways[1].configure("tunnel.pool_v4", "10.87.0.0/16");
        gateways[1].configure("tunnel.pool_v6", "fd87::/64");
        let (users, name_servers) = (["ann", "bob"], [CAMPUS_V4, SECOND_CAMPUS]);
        let users = [0, 1].map(|n| {
            gateways[n].configure("push.routes", strings(pushed[n]));
            gateways[n].configure("push.dns", strings(&[&name_servers[n].to_string()]));
            gateways[n].configure("nat.mode", "nftables");
            let user = gateways[n].add_user(users[n]);
            edit_toml(&user.profile, |profile| profile["tunnel"]["routes"] = routes.into());
            gateways[n].start();
            user
        });
        Self { lab, _gateways: gateways, users }
    }

    /// `vpnd connect` to one of the gateways, on the machine of client 1.
    fn command(&self, login: &Login, tunnel: &str) -> Command {
        let mut words = client::arguments(self.lab, 1, login);
        *words.last_mut().expect("the name of the device") = tunnel.into();
        let mut command = process::command(self.lab, &self.lab.clients[0], &words[0]);
        command.args(&words[1..]);
        command
    }

    fn connect(&self, number: usize) -> Process {
        let mut process =
            Process::start(self.lab, TUNNELS[number], self.command(&self.users[number], TUNNELS[number]));
        eventually(&format!("{} is set up", TUNNELS[number]), 20 * SECOND, || {
            process.assert_running();
            process.output().contains("the tunnel is set up").then_some(())
        });
        process
    }

    fn reaches(&self, to: impl Into<IpAddr>) {
        ping_until(&self.lab.clients[0], to.into(), 20 * SECOND);
    }

    /// The interface that the machine's own packets to an address leave by.
    fn way_to(&self, to: &str) -> String {
        let route = self.lab.clients[0].ip(&["route", "get", to]);
        let mut words = route.split_whitespace().skip_while(|word| *word != "dev");
        words.nth(1).unwrap_or_else(|| panic!("{route}")).to_owned()
    }
}

/// Ends a client as Ctrl-C does.
fn interrupt(mut client: Process) {
    client.signal(Signal::INT);
    let status = client.wait(10 * SECOND);
    assert!(status.success(), "{status}:\n{}", client.output());
}

/// Counts a client's searches for its gateway.
fn changes(client: &Process) -> usize {
    client.output().matches("the machine's network changed").count()
}

#[test]
fn disjoint_and_overlapping_tunnels_leave_each_other_alone() {
    let Some(lab) = Lab::new(2) else { return };
    let pushed: [&[&str]; 2] =
        [&["10.200.0.0/24", "fd20::/64", "10.210.0.0/16"], &["10.210.0.0/24", "10.220.0.0/16"]];
    let two = Two::start(&lab, pushed, "pushed");
    let machine = &lab.clients[0];
    let before = look_at(&lab, machine);
    for order in [[0, 1], [1, 0]] {
        let [one, other] = order.map(|number| two.connect(number));
        let says =
            |client: &Process| client.output().contains("leads to 10.210.0.0/24, too: this one is newer");
        assert!(!says(&one) && says(&other), "{}", other.output());
        two.reaches(CAMPUS_V4);
        two.reaches(CAMPUS_V6);
        if order == [0, 1] {
            two.reaches(SECOND_CAMPUS);
        }
        assert_eq!(two.way_to("10.210.0.1"), TUNNELS[order[1]], "both lead there: the newest does");
        assert_eq!([two.way_to("10.200.0.9"), two.way_to("10.220.0.9")], TUNNELS);

        // A refused client comes and goes, as do other devices.
        let wrong = Login { credentials: two.users[1].credentials.clone(), ..two.users[0].clone() };
        let (code, output) = client::ended(&lab, two.command(&wrong, "vpn2"));
        assert!(code != 0 && output.contains("refuse"), "{output}");
        for _ in 0..10 {
            machine.ip_batch(
                "link add noise0 type veth peer name noise1\nlink set noise0 up\naddr add 172.31.9.1/24 dev noise0\n",
            );
            thread::sleep(SECOND / 10);
            machine.ip_batch("link del noise0\n");
        }
        thread::sleep(SECOND);
        assert_eq!([changes(&one), changes(&other)], [0, 0], "{}\n{}", one.output(), other.output());

        interrupt(one);
        two.reaches(if order[1] == 0 { CAMPUS_V4 } else { SECOND_CAMPUS });
        interrupt(other);
    }
    assert_eq!(look_at(&lab, machine), before, "the machine is as it was");
}

#[test]
fn a_full_tunnel_goes_through_an_older_one_and_outlives_it() {
    let Some(lab) = Lab::new(2) else { return };
    let everything: &[&str] = &["0.0.0.0/0", "::/0"];
    let two = Two::start(&lab, [everything, everything], "all");
    let machine = &lab.clients[0];
    let before = look_at(&lab, machine);
    let direct = Arrivals::count(&lab, &lab.net, &Lab::port(1), &[&format!("ip daddr {SECOND_GATEWAY}")]);

    // Its name is known to the name server behind the first.
    let _campus_dns = names::name_server(&lab, &lab.campus, &CAMPUS_V4.to_string(), SECOND_GATEWAY);
    edit_toml(&two.users[1].profile, |profile| {
        profile["server"]["addresses"] = strings(&[&format!("{}:{PORT}", names::NAME)]);
    });

    // The inner one goes first.
    let outer = two.connect(0);
    two.reaches(CAMPUS_V4);
    let inner = two.connect(1);
    two.reaches(SECOND_CAMPUS);
    assert_eq!(two.way_to("192.0.2.1"), TUNNELS[1]);
    assert_eq!(direct.packets(), 0, "the second gateway is reached through the first");
    interrupt(inner);
    two.reaches(CAMPUS_V4);
    assert_eq!(two.way_to("192.0.2.1"), TUNNELS[0]);

    // The outer one goes first, once as asked and once by a power cut.
    let inner = two.connect(1);
    two.reaches(SECOND_CAMPUS);
    assert_eq!(direct.packets(), 0);
    interrupt(outer);
    two.reaches(SECOND_CAMPUS);
    assert!(direct.packets() > 0, "it found the way without the first");
    let mut newest = two.connect(0);
    two.reaches(CAMPUS_V4);
    assert_eq!(two.way_to("192.0.2.1"), TUNNELS[0], "now the other way round");
    newest.kill();
    assert!(!ping(machine, SECOND_CAMPUS.into(), 56, SECOND), "what was a full tunnel stays closed");
    must(client::cleanup(&lab, 1));
    two.reaches(SECOND_CAMPUS);
    assert!(!ping(machine, CAMPUS_V4.into(), 56, SECOND / 5), "the campus of the first is out of reach");
    interrupt(inner);
    assert_eq!(look_at(&lab, machine), before, "the machine is as it was");
}

/// The end of one of two tunnels, and what a person does next.
#[derive(Clone, Copy, Debug)]
enum End {
    Asked,
    KilledAndCleanedUp,
    KilledAndConnectedAgain,
}

/// The kernel's check of sources needs a setting for both; the first that ends must leave it to the
/// other.
#[test]
fn either_of_two_nested_tunnels_outlives_the_other_where_sources_are_checked() {
    let Some(lab) = Lab::new(2) else { return };
    let everything: &[&str] = &["0.0.0.0/0", "::/0"];
    let two = Two::start(&lab, [everything, everything], "all");
    let machine = &lab.clients[0];
    check_sources(machine, "1");
    let before = look_at(&lab, machine);
    for end in [End::Asked, End::KilledAndCleanedUp, End::KilledAndConnectedAgain] {
        for ending in [0, 1] {
            let case = format!("{end:?}, tunnel {ending}");
            let outer = two.connect(0);
            two.reaches(CAMPUS_V4);
            let inner = two.connect(1);
            two.reaches(SECOND_CAMPUS);
            let (mut first, other) = if ending == 0 { (outer, inner) } else { (inner, outer) };
            let mut again = None;
            match end {
                End::Asked => interrupt(first),
                End::KilledAndCleanedUp => {
                    first.kill();
                    must(client::cleanup(&lab, 1));
                }
                End::KilledAndConnectedAgain => {
                    first.kill();
                    again = Some(two.connect(ending));
                }
            }
            assert_eq!(looks_back_with_marks(machine), "1", "{case}: the other needs it");
            let behind = [CAMPUS_V4, SECOND_CAMPUS];
            if let Some(again) = again {
                // It is the innermost now: its datagrams go through the other.
                two.reaches(behind[ending]);
                interrupt(again);
            }
            two.reaches(behind[1 - ending]);
            interrupt(other);
            assert_eq!(looks_back_with_marks(machine), "0", "{case}");
            assert_eq!(look_at(&lab, machine), before, "{case}: the machine is as it was");
        }
    }
}
