//! Behaviour: the ordinary installation (a gateway with a name, behind NAT mode, that pushes DNS
//! servers) through every outage that RELIABILITY.md makes a promise about, with `resolv.conf` and
//! with systemd-resolved: how long nothing is answered, what leaves in clear, and whether a TCP
//! connection that runs all the while lives. The same for changes that are no outage: reloads,
//! upgrades, a path that shrinks, a network that changes from IPv4 to IPv6.
//!
//! `./x heal` runs the long forms: `VPND_HEAL_ORDINARY=1` loses UDP for 100 s and stops the client
//! for 130 s, and holds the gaps of changes against what is promised.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::{Client, TUN};
use crate::continuity::behind_nat;
use crate::families::{PROVIDERS_V6, is_at_ipv6, settle, uplink};
use crate::gateway::{Gateway, Login, edit_toml, must, strings};
use crate::healing::{Form, until_answered};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, GATEWAY_V6, Lab, eventually};
use crate::names::{NAME, PROVIDERS, PUSHED, name_server_at};
use crate::namespace::Namespace;
use crate::process;
use crate::relay::{Faults, PORT, Relay};
use crate::reload::{PUSHES, push, set_up};
use crate::resolved::Resolved;
use crate::shrink::shrink_under_traffic;
use crate::traffic::{ping, ping_until, trickle_while};

const SECOND: Duration = Duration::from_secs(1);
/// Traffic has to be back within this time after an outage, on a machine that is slow and busy.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit for a stall of the running TCP connection: TCP itself waits for as long again as an outage
/// took.
const STALL_LIMIT: Duration = Duration::from_secs(300);
/// Limits of the long form for the gap of a change.
const GATEWAY_CHANGES: Duration = Duration::from_millis(200);
const PATH_SHRINKS: Duration = Duration::from_secs(2);
const FAMILY_CHANGES: Duration = Duration::from_secs(1);

/// The resolver of the client's machine.
#[derive(Clone, Copy, Debug)]
enum Resolver {
    ResolvConf,
    SystemdResolved,
}

/// Where the client's machine has its name servers.
enum NameServers<'l> {
    File(PathBuf),
    Resolved(Resolved<'l>),
}

impl<'l> NameServers<'l> {
    /// Gives it those of its provider. `None` if the resolver is missing.
    fn of_provider(lab: &'l Lab, resolver: Resolver) -> Option<Self> {
        let machine = &lab.clients[0];
        Some(match resolver {
            Resolver::ResolvConf => {
                let path = process::etc(lab, machine).join("resolv.conf");
                let text = format!("nameserver {PROVIDERS}\nnameserver {PROVIDERS_V6}\n");
                fs::write(&path, text).expect("it is writable");
                Self::File(path)
            }
            Resolver::SystemdResolved => {
                Self::Resolved(Resolved::start(lab, machine, &[PROVIDERS, PROVIDERS_V6])?)
            }
        })
    }

    /// Whether the machine asks the pushed name server.
    fn are_pushed(&self) -> bool {
        match self {
            Self::File(path) => fs::read_to_string(path).expect("it is there").contains(PUSHED),
            Self::Resolved(resolved) => resolved.servers(TUN).contains(PUSHED),
        }
    }
}

/// A host on the Internet, which packets reach only in a full tunnel.
const STRANGER: &str = "203.0.113.9";

/// The gateway, and a user who knows it by its name alone and takes these routes into the tunnel.
fn installation<'l>(lab: &'l Lab, routes: &str) -> (Gateway<'l>, Login) {
    let mut gateway = behind_nat(lab);
    gateway.configure("push.dns", strings(&[PUSHED]));
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| {
        profile["server"]["addresses"] = strings(&[&format!("{NAME}:{PORT}")]);
        profile["tunnel"]["routes"] = routes.into();
    });
    gateway.start();
    (gateway, ann)
}

/// Counts what leaves the client's machine in clear and belongs into the tunnel: packets for the
/// campus or from inner addresses.
pub(crate) fn watch_for_leaks(lab: &Lab, routes: &str) {
    lab.net.nft(&format!(
        "add table inet leaks\n\
         add counter inet leaks clear\n\
         add chain inet leaks pre {{ type filter hook prerouting priority -300; }}\n\
         add rule inet leaks pre iifname {port} ip daddr 10.200.0.0/24 counter name clear\n\
         add rule inet leaks pre iifname {port} ip saddr 10.86.0.0/16 counter name clear\n\
         add rule inet leaks pre iifname {port} ip6 daddr fd20::/64 counter name clear\n\
         add rule inet leaks pre iifname {port} ip6 saddr fd86::/64 counter name clear\n",
        port = Lab::port(1)
    ));
    if routes == "all" {
        let port = Lab::port(1);
        lab.net
            .nft(&format!("add rule inet leaks pre iifname {port} ip daddr {STRANGER} counter name clear\n"));
    }
}

/// Sends to a host on the Internet until it is over.
fn speak_to_a_stranger(machine: &Namespace, over: &AtomicBool) {
    machine.within(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a port is free");
        while !over.load(Ordering::Relaxed) {
            let _ = socket.send_to(b"hello", (STRANGER, 9));
            thread::sleep(SECOND / 200);
        }
    });
}

pub(crate) fn leaks(lab: &Lab) -> u64 {
    let mut command = process::command(lab, &lab.net, "nft");
    command.args(["-j", "list", "counter", "inet", "leaks", "clear"]);
    let output = process::run(command);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("nft prints JSON");
    let objects = json["nftables"].as_array().expect("a list");
    objects.iter().find_map(|object| object["counter"]["packets"].as_u64()).expect("the counter")
}

/// Ends the running conversation also where the test fails.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Loses what client 1 sends to the gateway's port.
fn lose_udp(lab: &Lab) {
    lab.net.nft(&format!(
        "add table inet hole\n\
             add chain inet hole prerouting {{ type filter hook prerouting priority -400; }}\n\
             add rule inet hole prerouting iifname {} udp dport {PORT} drop\n",
        Lab::port(1)
    ));
}

/// One laboratory through all outages.
struct Run<'l> {
    lab: &'l Lab,
    client: Client<'l>,
    name_servers: NameServers<'l>,
    resolver: Resolver,
}

impl Run<'_> {
    /// A user works and goes on trying.
    fn work(&self, duration: Duration) {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            ping(self.client.namespace(), CAMPUS_V4.into(), 56, SECOND / 5);
        }
    }

    /// Waits for the first answer after an outage that ends now, and says what it has cost.
    fn heals(&self, what: &str, begun: Instant) {
        let over = Instant::now();
        let after = until_answered(&self.client, over);
        let clear = leaks(self.lab);
        let gap = begun.elapsed();
        println!(
            "{:?}, {what}: gap {gap:.2?}, {after:.2?} of it after its end, {clear} packets in clear",
            self.resolver
        );
        assert!(after <= RECOVERY_TIMEOUT, "{what}: {after:?}");
        assert_eq!(clear, 0, "{what}");
        self.asks_in_tunnel_again(what);
    }

    /// Says what a change has cost, which traffic was to survive with no longer gap than this.
    fn survives(&self, what: &str, gap: Duration, limit: Duration) {
        let clear = leaks(self.lab);
        println!("{:?}, {what}: gap {gap:.2?}, {clear} packets in clear", self.resolver);
        assert!(gap <= limit, "{what}: {gap:?}");
        assert_eq!(clear, 0, "{what}");
        self.asks_in_tunnel_again(what);
    }

    fn asks_in_tunnel_again(&self, what: &str) {
        eventually(&format!("{what}: the machine asks in the tunnel"), RECOVERY_TIMEOUT, || {
            ping(self.client.namespace(), CAMPUS_V4.into(), 56, SECOND / 5);
            self.name_servers.are_pushed().then_some(())
        });
    }
}

/// The longest time without an answer to a ping while this is done, and until the first answer
/// after it.
fn longest_gap_while(machine: &Namespace, done: impl FnOnce()) -> Duration {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let pings = scope.spawn(|| {
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            loop {
                let is_last = over.load(Ordering::Relaxed);
                let answered = ping(machine, CAMPUS_V4.into(), 56, SECOND / 20);
                if answered {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
                if is_last && (answered || last.elapsed() > RECOVERY_TIMEOUT) {
                    return longest.max(last.elapsed());
                }
                thread::sleep(SECOND / 500);
            }
        });
        let over = Over(&over);
        done();
        drop(over);
        pings.join().expect("it does not panic")
    })
}

fn outages(resolver: Resolver, routes: &str) {
    let long = std::env::var_os("VPND_HEAL_ORDINARY").is_some();
    let (lost, stopped) = if long { (100, 130) } else { (6, 6) };
    let Some(lab) = Lab::new(1) else { return };
    let providers = name_server_at(&lab, &lab.net, &[PROVIDERS, PROVIDERS_V6], &[&GATEWAY_V4.to_string()]);
    let _pushed = name_server_at(&lab, &lab.campus, &[PUSHED], &["192.0.2.1"]);
    let Some(name_servers) = NameServers::of_provider(&lab, resolver) else { return };
    let relay = Relay::start(&lab, Faults::default());
    let (mut gateway, ann) = installation(&lab, routes);
    let client = Client::connect(&lab, 1, &ann);
    let namespace = client.namespace();
    ping_until(namespace, CAMPUS_V4.into(), 5 * SECOND);
    watch_for_leaks(&lab, routes);
    let mut run = Run { lab: &lab, client, name_servers, resolver };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        // One TCP connection that runs through all of it.
        let talk = scope.spawn(|| {
            trickle_while(namespace, &lab.campus, CAMPUS_V4.into(), STALL_LIMIT, || {
                !over.load(Ordering::Relaxed)
            })
        });
        scope.spawn(|| speak_to_a_stranger(namespace, &over));
        let over = Over(&over);
        thread::sleep(SECOND);

        let begun = Instant::now();
        gateway.terminate();
        gateway.start();
        run.heals("restart in order", begun);

        let begun = Instant::now();
        gateway.kill();
        gateway.start();
        run.heals("kill -9", begun);

        let begun = Instant::now();
        lose_udp(&lab);
        let asked = providers.output().matches(NAME).count();
        run.work(lost * SECOND);
        eventually("the machine asks as without a tunnel", RECOVERY_TIMEOUT, || {
            run.work(SECOND / 5);
            (!run.name_servers.are_pushed()).then_some(())
        });
        eventually("the gateway's name is looked up there", RECOVERY_TIMEOUT, || {
            (providers.output().matches(NAME).count() > asked).then_some(())
        });
        lab.net.nft("delete table inet hole\n");
        run.heals(&format!("{lost} s of lost UDP"), begun);

        let begun = Instant::now();
        run.client.process().signal_all(Signal::STOP);
        thread::sleep(stopped * SECOND);
        run.client.process().signal_all(Signal::CONT);
        run.heals(&format!("{stopped} s of suspend"), begun);

        let begun = Instant::now();
        run.client.change_address(2, 77);
        run.heals("new address", begun);

        let begun = Instant::now();
        relay.rebind();
        run.heals("rebinding of the NAT", begun);
        drop(over);
        talk.join().expect("the TCP connection lives");
    });
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 0, "nobody had to log in again");
}

#[test]
fn outages_with_resolv_conf() {
    outages(Resolver::ResolvConf, "pushed");
}

#[test]
fn outages_with_systemd_resolved() {
    outages(Resolver::SystemdResolved, "pushed");
}

#[test]
fn outages_of_a_full_tunnel_with_systemd_resolved() {
    outages(Resolver::SystemdResolved, "all");
}

fn changes(resolver: Resolver, routes: &str) {
    let form = Form::of_environment("VPND_HEAL_ORDINARY", 1);
    let Some(lab) = Lab::new(1) else { return };
    let addresses = [GATEWAY_V4.to_string(), GATEWAY_V6.to_string()];
    let _providers =
        name_server_at(&lab, &lab.net, &[PROVIDERS, PROVIDERS_V6], &addresses.each_ref().map(String::as_str));
    let _pushed = name_server_at(&lab, &lab.campus, &[PUSHED], &["192.0.2.1"]);
    let Some(name_servers) = NameServers::of_provider(&lab, resolver) else { return };
    // It begins with IPv4 alone.
    uplink(&lab, true, false);
    let (gateway, ann) = installation(&lab, routes);
    let client = Client::connect(&lab, 1, &ann);
    let machine = client.namespace();
    let campus = [IpAddr::from(CAMPUS_V4), CAMPUS_V6.into()];
    campus.iter().for_each(|to| ping_until(machine, *to, 5 * SECOND));
    watch_for_leaks(&lab, routes);
    let mut run = Run { lab: &lab, client, name_servers, resolver };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        // A TCP connection of each version, which run through all of it.
        let talks = campus.map(|to| {
            let (lab, over) = (&lab, &over);
            scope.spawn(move || {
                trickle_while(machine, &lab.campus, to, STALL_LIMIT, || !over.load(Ordering::Relaxed))
            })
        });
        scope.spawn(|| speak_to_a_stranger(machine, &over));
        let over = Over(&over);
        thread::sleep(SECOND);

        for pushed in [1, 4, 2, 0] {
            let before = set_up(&mut run.client);
            let gap = longest_gap_while(machine, || {
                push(&gateway, PUSHES[pushed]);
                must(gateway.ask(&["reload"]));
                eventually("the client has changed its routes", RECOVERY_TIMEOUT, || {
                    (set_up(&mut run.client) > before).then_some(())
                });
            });
            run.survives(&format!("reload to {:?}", PUSHES[pushed].0), gap, form.limit(GATEWAY_CHANGES));
        }

        let gap = longest_gap_while(machine, || {
            must(gateway.upgrade());
        });
        run.survives("upgrade", gap, form.limit(GATEWAY_CHANGES));

        let gaps = shrink_under_traffic(&lab, &run.client, 1400);
        let gap = gaps.into_iter().max().expect("there are connections");
        run.survives("path shrinks from 1500 to 1400", gap, form.limit(PATH_SHRINKS));

        uplink(&lab, true, true);
        settle(&run.client);
        assert!(!is_at_ipv6(&gateway), "it stays where it is");
        let gap = longest_gap_while(machine, || {
            uplink(&lab, false, false);
            eventually("the session has moved", RECOVERY_TIMEOUT, || is_at_ipv6(&gateway).then_some(()));
        });
        run.survives("from IPv4 to IPv6", gap, form.limit(FAMILY_CHANGES));
        drop(over);
        for talk in talks {
            talk.join().expect("the TCP connection lives");
        }
    });
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 1, "nobody had to log in again");
    // Without the tunnel they do leave in clear.
    drop(run);
    eventually("the leak is counted", RECOVERY_TIMEOUT, || {
        let _ = machine.within(|| UdpSocket::bind("[::]:0")?.send_to(b"in clear", (CAMPUS_V6, 9)));
        (leaks(&lab) > 0).then_some(())
    });
}

#[test]
fn changes_with_resolv_conf() {
    changes(Resolver::ResolvConf, "pushed");
}

#[test]
fn changes_with_systemd_resolved() {
    changes(Resolver::SystemdResolved, "pushed");
}
