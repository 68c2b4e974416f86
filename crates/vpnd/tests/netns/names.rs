//! Behaviour: the most ordinary installation, a gateway that clients know by a name and that pushes
//! DNS servers, heals as one that is known by its address does; and without a tunnel the machine
//! has the DNS servers that it had before.
//!
//! The name server before the tunnel is at the edge of `net`, beyond the client's own network; the
//! pushed one on the campus.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::gateway::{Gateway, Login, edit_toml, strings};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, GATEWAY_V6, Lab, eventually};
use crate::namespace::Namespace;
use crate::process::{self, Process};
use crate::relay::PORT;
use crate::reload::{Arrivals, PUSHES, push};
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
pub(crate) const NAME: &str = "gateway.example";
/// The machine's name server without a tunnel.
pub(crate) const PROVIDERS: &str = "198.18.0.1";
/// Its name server in the tunnel.
pub(crate) const PUSHED: &str = "10.200.0.2";

/// A real name server that knows the gateway by this address, and nothing else.
pub(crate) fn name_server(lab: &Lab, place: &Namespace, listen: &str, gateway: &str) -> Process {
    name_server_at(lab, place, &[listen], &[gateway])
}

/// Starts one at several addresses, for a gateway with several.
pub(crate) fn name_server_at(lab: &Lab, place: &Namespace, listen: &[&str], gateway: &[&str]) -> Process {
    name_server_of(lab, place, listen, NAME, gateway)
}

/// A real name server that knows these addresses of a name, and nothing else.
pub(crate) fn name_server_of(
    lab: &Lab,
    place: &Namespace,
    listen: &[&str],
    name: &str,
    addresses: &[&str],
) -> Process {
    let mut command: Command = process::command(lab, place, "dnsmasq");
    command.args([
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--no-resolv",
        "--no-hosts",
        "--pid-file=",
    ]);
    command.args([
        "--user=root",
        "--bind-interfaces",
        "--log-queries",
        "--log-facility=-",
        "--local=/example/",
    ]);
    command.args(listen.iter().map(|address| format!("--listen-address={address}")));
    command.args(addresses.iter().map(|address| format!("--address=/{name}/{address}")));
    let mut server = Process::start(lab, "dnsmasq", command);
    eventually("the name server listens", 5 * SECOND, || {
        server.assert_running();
        server.output().contains("started").then_some(())
    });
    server
}

/// A gateway that pushes a name server, and a user who knows it by its name alone.
pub(crate) fn gateway<'l>(lab: &'l Lab, routes: &str) -> (Gateway<'l>, Login) {
    gateway_with(lab, routes, |gateway| gateway.configure("push.dns", strings(&[PUSHED])))
}

/// Makes a gateway with another configuration.
pub(crate) fn gateway_with<'l>(
    lab: &'l Lab,
    routes: &str,
    configure: impl FnOnce(&Gateway<'l>),
) -> (Gateway<'l>, Login) {
    let mut gateway = Gateway::init(lab);
    configure(&gateway);
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| {
        profile["server"]["addresses"] = strings(&[&format!("{NAME}:{PORT}")]);
        profile["tunnel"]["routes"] = routes.into();
    });
    fs::write(process::etc(lab, &lab.clients[0]).join("resolv.conf"), format!("nameserver {PROVIDERS}\n"))
        .unwrap();
    gateway.start();
    (gateway, ann)
}

/// Whether the machine of client 1 asks this name server.
pub(crate) fn asks(lab: &Lab, server: &str) -> bool {
    let text = fs::read_to_string(process::etc(lab, &lab.clients[0]).join("resolv.conf"));
    let text = text.unwrap_or_default();
    text.lines().any(|line| line == format!("nameserver {server}"))
}

/// A user works, and goes on trying, until the machine asks `server`.
fn work_until_it_asks(lab: &Lab, client: &Client<'_>, server: &str, limit: Duration) {
    eventually(&format!("the machine asks {server}"), limit, || {
        ping(client.namespace(), CAMPUS_V4.into(), 56, SECOND / 5);
        asks(lab, server).then_some(())
    });
}

#[test]
fn a_restart_heals_and_leaves_the_machine_its_dns_meanwhile() {
    let Some(lab) = Lab::new(1) else { return };
    let providers = name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    let _pushed = name_server(&lab, &lab.campus, PUSHED, "192.0.2.1");
    let (mut gateway, ann) = gateway(&lab, "pushed");
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    work_until_it_asks(&lab, &client, PUSHED, 5 * SECOND);
    assert!(!asks(&lab, PROVIDERS));
    assert!(providers.output().contains(NAME), "it was asked for the name");
    for announced in [true, false] {
        if announced {
            gateway.terminate()
        } else {
            gateway.kill()
        }
        // Until the tunnel counts as lost, only look-ups use the machine's own.
        let (down, mut since) = (Instant::now(), Instant::now());
        while since.elapsed() < 8 * SECOND {
            assert!(!ping(client.namespace(), CAMPUS_V4.into(), 56, SECOND / 5), "the gateway is down");
            if !asks(&lab, PROVIDERS) {
                since = Instant::now();
            }
            assert!(down.elapsed() < 30 * SECOND, "through attempts to connect");
        }
        gateway.start();
        let up = Instant::now();
        ping_until(client.namespace(), CAMPUS_V4.into(), 20 * SECOND);
        println!("announced: {announced}; traffic {:?} after the gateway is up", up.elapsed());
        work_until_it_asks(&lab, &client, PUSHED, 5 * SECOND);
    }
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 0, "nobody had to log in");
}

/// Network managers keep the file below `/run`, behind a link, or a link to a link.
#[test]
fn a_gateways_name_is_looked_up_where_resolv_conf_is_a_link() {
    let Some(lab) = Lab::new(1) else { return };
    let _providers = name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    let (_gateway, ann) = gateway_with(&lab, "pushed", |_| ());
    let machine = &lab.clients[0];
    let (etc, run) = (process::etc(&lab, machine), process::share_run(&lab, machine, Path::new("/")));
    fs::create_dir(etc.join("resolvconf")).unwrap();
    symlink("/run/resolvconf", etc.join("resolvconf/run")).unwrap();
    let links = [
        ("NetworkManager/resolv.conf", "/run/NetworkManager/resolv.conf"),
        ("resolvconf/resolv.conf", "/etc/resolvconf/run/resolv.conf"),
        ("netconfig/resolv.conf", "../run/netconfig/resolv.conf"),
        ("connman/resolv.conf", "/var/run/connman/resolv.conf"),
    ];
    for (file, link) in links {
        let file = run.join(file);
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(&file, format!("nameserver {PROVIDERS}\n")).unwrap();
        fs::remove_file(etc.join("resolv.conf")).unwrap();
        symlink(link, etc.join("resolv.conf")).unwrap();
        Client::connect(&lab, 1, &ann).interrupt();
    }
}

#[test]
fn datagrams_that_are_lost_for_long_cost_no_more_than_that() {
    let Some(lab) = Lab::new(1) else { return };
    let _providers = name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    let _pushed = name_server(&lab, &lab.campus, PUSHED, "192.0.2.1");
    let (_gateway, ann) = gateway(&lab, "pushed");
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    lab.net.nft(&format!(
        "add table inet hole\n\
         add chain inet hole forward {{ type filter hook forward priority 0; }}\n\
         add rule inet hole forward udp dport {PORT} drop\n\
         add rule inet hole forward udp sport {PORT} drop\n",
    ));
    work_until_it_asks(&lab, &client, PROVIDERS, 30 * SECOND);
    lab.net.nft("delete table inet hole\n");
    let over = Instant::now();
    ping_until(client.namespace(), CAMPUS_V4.into(), 20 * SECOND);
    println!("traffic {:?} after the outage", over.elapsed());
    work_until_it_asks(&lab, &client, PUSHED, 20 * SECOND);
}

/// A silence that ends before the gateway's name is looked up: the look-up goes on, and no process
/// waits for it any more.
#[test]
fn a_look_up_that_is_given_up_leaves_the_tunnels_name_servers() {
    let Some(lab) = Lab::new(1) else { return };
    let _providers = name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    let _pushed = name_server(&lab, &lab.campus, PUSHED, "192.0.2.1");
    let (_gateway, ann) = gateway(&lab, "pushed");
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    work_until_it_asks(&lab, &client, PUSHED, 5 * SECOND);
    let drop_from_client = |what: &str| {
        format!(
            "add table inet {what}\n\
             add chain inet {what} in {{ type filter hook prerouting priority -300; }}\n\
             add rule inet {what} in iifname {} udp dport {what} drop\n",
            Lab::port(1)
        )
        .replace("dport dns", "dport 53")
        .replace("dport hole", &format!("dport {PORT}"))
    };
    lab.net.nft(&drop_from_client("dns"));
    lab.net.nft(&drop_from_client("hole"));
    work_until_it_asks(&lab, &client, PROVIDERS, 30 * SECOND);
    lab.net.nft("delete table inet hole\n");
    ping_until(client.namespace(), CAMPUS_V4.into(), 20 * SECOND);
    let up = Instant::now();
    work_until_it_asks(&lab, &client, PUSHED, 30 * SECOND);
    println!("name servers of the tunnel {:?} after it carries again", up.elapsed());
}

/// Name servers of the tunnel that are silent are asked one after the other for seconds, by a
/// process whose packets leave outside the tunnel once names are looked up there.
#[test]
fn a_trial_of_the_tunnels_names_is_over_before_names_are_looked_up_outside() {
    let Some(lab) = Lab::new(1) else { return };
    let _providers = name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    lab.campus.nft(
        "add table inet silent\n\
         add chain inet silent in { type filter hook input priority 0; }\n\
         add rule inet silent in udp dport 53 drop\n",
    );
    let (mut gateway, ann) = gateway_with(&lab, "pushed", |gateway| push(gateway, PUSHES[2]));
    let client = Client::connect(&lab, 1, &ann);
    work_until_it_asks(&lab, &client, PUSHED, 5 * SECOND);
    let in_clear = Arrivals::count(&lab, &lab.net, &Lab::port(1), &["ip daddr 10.200.0.0/16"]);
    gateway.terminate();
    eventually("names are looked up outside", 20 * SECOND, || asks(&lab, PROVIDERS).then_some(()));
    thread::sleep(5 * SECOND);
    assert_eq!(in_clear.packets(), 0, "questions for the tunnel's name server in clear");
}

/// All of the machine's traffic is for the tunnel, which is dead: but not the question for the
/// gateway's new address.
#[test]
fn a_gateway_that_moves_is_found_by_its_name_from_a_full_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let providers = name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    let _pushed = name_server(&lab, &lab.campus, PUSHED, "192.0.2.1");
    let (_gateway, ann) = gateway(&lab, "all");
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    drop(providers);
    let _moved = name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V6.to_string());
    lab.net.nft(&format!(
        "add table ip old\n\
         add chain ip old forward {{ type filter hook forward priority 0; }}\n\
         add rule ip old forward udp dport {PORT} drop\n\
         add rule ip old forward udp sport {PORT} drop\n",
    ));
    let moved = Instant::now();
    ping_until(client.namespace(), CAMPUS_V4.into(), 60 * SECOND);
    println!("traffic {:?} after the move", moved.elapsed());
    work_until_it_asks(&lab, &client, PUSHED, 5 * SECOND);
}
