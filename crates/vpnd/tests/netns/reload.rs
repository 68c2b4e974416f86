//! Behaviour: a reload changes what clients are given without a moment in between: nothing for the
//! campus leaves in clear, nothing is lost, and every socket has the source that the tunnel gives
//! it.
//!
//! The installation is the ordinary one: a gateway known by its name, pushed DNS servers, NAT, IPv4
//! and IPv6. What leaves in clear is counted by the router next to the client, for any port.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Client, TUN};
use crate::continuity::download;
use crate::gateway::{Gateway, must, strings};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, Lab, UPLINK, eventually};
use crate::names::{self, PROVIDERS, PUSHED};
use crate::namespace::Namespace;
use crate::ordinary::Over;
use crate::process;
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);
const RELOADS: usize = 20;
/// Between two packets of a flow.
const PACE: Duration = Duration::from_millis(2);

/// Settings pushed after each reload: routes, DNS servers, search domains. All of them lead to the
/// campus.
pub(crate) const PUSHES: [(&[&str], &[&str], &[&str]); 7] = [
    (&["10.200.0.0/24", "fd20::/64"], &[PUSHED], &[]),
    (&["10.200.0.0/24", "fd20::/64", "10.201.0.0/24", "fd21::/64"], &[PUSHED], &["example.org"]),
    (&["10.200.0.0/16", "fd20::/48"], &["10.200.0.3", PUSHED], &["example.org"]),
    (&["0.0.0.0/0", "::/0"], &[PUSHED], &[]),
    (&["10.200.0.0/25", "fd20::/96", "0.0.0.0/0", "::/0"], &["fd20::2", PUSHED], &["example.net"]),
    (&["10.200.0.2/32", "fd20::2/128"], &["10.200.0.3"], &[]),
    (&["0.0.0.0/0", "fd20::/64"], &[], &[]),
];

/// Counts what comes to a box.
pub(crate) struct Arrivals<'l> {
    lab: &'l Lab,
    place: &'l Namespace,
}

impl<'l> Arrivals<'l> {
    /// Counts what comes by `interface`, if any of these expressions of nftables is true for it.
    pub(crate) fn count(lab: &'l Lab, place: &'l Namespace, interface: &str, matches: &[&str]) -> Self {
        let mut script = "add table inet count\n\
             add counter inet count seen\n\
             add chain inet count arrivals { type filter hook prerouting priority raw; }\n"
            .to_owned();
        for expression in matches {
            script +=
                &format!("add rule inet count arrivals iifname {interface} {expression} counter name seen\n");
        }
        place.nft(&script);
        Self { lab, place }
    }

    /// Counts packets from client 1 to `net` for the campus, or from an inner address.
    fn in_clear(lab: &'l Lab) -> Self {
        let matches = [
            "ip daddr 10.200.0.0/15",
            "ip6 daddr { fd20::/48, fd21::/48 }",
            "ip saddr 10.86.0.0/16",
            "ip6 saddr fd86::/64",
            "ip saddr 10.96.0.0/16",
            "ip6 saddr fd96::/64",
        ];
        Self::count(lab, &lab.net, &Lab::port(1), &matches)
    }

    pub(crate) fn packets(&self) -> u64 {
        counter(self.lab, self.place, "count", "seen")
    }
}

/// The packets that a named counter of a table has seen.
pub(crate) fn counter(lab: &Lab, place: &Namespace, table: &str, name: &str) -> u64 {
    let mut command = process::command(lab, place, "nft");
    command.args(["list", "counter", "inet", table, name]);
    let listed = process::text(&process::run(command));
    let mut words = listed.split_whitespace().skip_while(|word| *word != "packets");
    words.nth(1).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{listed}"))
}

/// Losses of a flow of numbered datagrams.
#[derive(Debug, Default)]
struct Flow {
    sent: usize,
    lost: usize,
    longest_gap: Duration,
    wrong_sources: Vec<IpAddr>,
}

/// Sends numbered datagrams until `over`; every second one from its own socket, which must
/// have the address `inner`.
fn flow(from: &Namespace, there: &Namespace, to: IpAddr, inner: IpAddr, over: &AtomicBool) -> Flow {
    let receiver = there.within(|| UdpSocket::bind((to, 0))).unwrap();
    receiver.set_read_timeout(Some(SECOND)).unwrap();
    let address = receiver.local_addr().unwrap();
    let arrivals = thread::spawn(move || {
        let (mut seen, mut buffer) = (Vec::new(), [0; 8]);
        // It ends with the flow.
        while receiver.recv(&mut buffer).is_ok() {
            seen.push((usize::from_be_bytes(buffer), Instant::now()));
        }
        seen
    });
    let mut flow = Flow::default();
    from.within(|| {
        let lasting = bound_for(address);
        assert_eq!(lasting.local_addr().unwrap().ip(), inner);
        while !over.load(Ordering::Relaxed) {
            let number = flow.sent.to_be_bytes();
            let short = (flow.sent % 2 == 1).then(|| bound_for(address));
            let socket = short.as_ref().unwrap_or(&lasting);
            let source = socket.local_addr().unwrap().ip();
            if source != inner {
                flow.wrong_sources.push(source);
            }
            let _ = socket.send(&number);
            flow.sent += 1;
            thread::sleep(PACE);
        }
    });
    let seen = arrivals.join().unwrap();
    flow.longest_gap = seen.windows(2).map(|pair| pair[1].1 - pair[0].1).max().unwrap_or_default();
    let mut numbers: Vec<_> = seen.into_iter().map(|(number, _)| number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    flow.lost = flow.sent - numbers.len();
    flow
}

fn bound_for(to: SocketAddr) -> UdpSocket {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    socket.connect(to).expect("there is a way to the campus");
    socket
}

pub(crate) fn push(gateway: &Gateway<'_>, (routes, dns, search): (&[&str], &[&str], &[&str])) {
    gateway.configure("push.routes", strings(routes));
    gateway.configure("push.dns", strings(dns));
    gateway.configure("push.search", strings(search));
}

/// Counts the client's set-ups of its tunnel.
pub(crate) fn set_up(client: &mut Client<'_>) -> usize {
    client.process().output().matches("the tunnel is set up").count()
}

#[test]
fn reloads_of_every_kind_leak_nothing_and_lose_nothing() {
    let Some(lab) = Lab::new(1) else { return };
    let _providers = names::name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    lab.campus.ip_batch("route del default via 10.200.0.1\nroute del default via fd20::1\n");
    let (gateway, ann) = names::gateway_with(&lab, "pushed", |gateway| {
        gateway.configure("nat.mode", "nftables");
        push(gateway, PUSHES[0]);
    });
    let mut client = Client::connect(&lab, 1, &ann);
    let campus = [IpAddr::from(CAMPUS_V4), CAMPUS_V6.into()];
    campus.iter().for_each(|to| ping_until(client.namespace(), *to, 5 * SECOND));
    let inner = [client.v4(), client.v6()];
    let in_clear = Arrivals::in_clear(&lab);
    let pools = ["ip saddr 10.86.0.0/16", "ip6 saddr fd86::/64"];
    let untranslated = Arrivals::count(&lab, &lab.campus, UPLINK, &pools);
    let over = AtomicBool::new(false);
    let (from, server, ended) = (client.namespace(), &lab.campus, &over);
    let flows = thread::scope(|scope| {
        let flows: Vec<_> = campus
            .into_iter()
            .zip(inner)
            .map(|(to, inner)| scope.spawn(move || flow(from, server, to, inner, ended)))
            .collect();
        let downloads = campus
            .map(|to| scope.spawn(move || download(from, server, to, || !ended.load(Ordering::Relaxed))));
        for reload in 1..=RELOADS {
            push(&gateway, PUSHES[reload % PUSHES.len()]);
            let before = set_up(&mut client);
            must(gateway.ask(&["reload"]));
            eventually("the client has changed its routes", 20 * SECOND, || {
                (set_up(&mut client) > before).then_some(())
            });
        }
        over.store(true, Ordering::Relaxed);
        for download in downloads {
            let received = download.join().unwrap().expect("the connection lives");
            assert!(received > 100_000, "only {received} bytes came");
        }
        flows.into_iter().map(|flow| flow.join().unwrap()).collect::<Vec<_>>()
    });
    println!("{RELOADS} reloads, {} in clear: {flows:?}", in_clear.packets());
    for flow in &flows {
        assert!(flow.sent > 200, "{flow:?}");
        assert_eq!((flow.lost, &flow.wrong_sources[..]), (0, &[][..]), "{flow:?}");
    }
    assert_eq!(in_clear.packets(), 0, "packets left in clear");
    assert_eq!(untranslated.packets(), 0, "the gateway translated all the time");
    // Without the tunnel they do.
    drop(client);
    must(crate::client::cleanup(&lab, 1));
    eventually("the leak is counted", 10 * SECOND, || {
        let _ = from.within(|| bound_for((CAMPUS_V4, 9).into()).send(b"in clear"));
        (in_clear.packets() > 0).then_some(())
    });
}

/// New flows from the campus, which is not to open any, during reloads of the gateway.
#[test]
fn a_reload_opens_the_gateway_for_no_moment() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, mut client) = Client::alone(&lab);
    let inner = client.v4();
    let receiver = client.namespace().within(|| UdpSocket::bind((inner, 0))).unwrap();
    let address = receiver.local_addr().unwrap();
    receiver.set_read_timeout(Some(SECOND / 10)).unwrap();
    let over = AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        let knocks = scope.spawn(|| {
            lab.campus.within(|| {
                let mut sent = 0;
                while !over.load(Ordering::Relaxed) {
                    // The kernel may say that it is not let in.
                    sent += usize::from(bound_for(address).send(b"knock").is_ok());
                    thread::sleep(SECOND / 2_000);
                }
                sent
            })
        });
        for reload in 0..RELOADS {
            push(&gateway, PUSHES[reload % PUSHES.len()]);
            must(gateway.ask(&["reload"]));
        }
        over.store(true, Ordering::Relaxed);
        knocks.join().unwrap()
    });
    println!("{RELOADS} reloads, {sent} knocks");
    assert!(sent > 500, "{sent}");
    assert!(receiver.recv(&mut [0; 8]).is_err(), "one came through");
    client.process().assert_running();
    gateway.configure("policy.campus_to_client", true);
    push(&gateway, PUSHES[0]);
    must(gateway.ask(&["reload"]));
    eventually("the campus may", 5 * SECOND, || {
        let _ = lab.campus.within(|| bound_for(address).send(b"knock"));
        receiver.recv(&mut [0; 8]).ok()
    });
}

/// Size of the tunnel's device, as the kernel has it.
fn mtu(place: &Namespace, device: &str) -> u64 {
    let links: serde_json::Value = serde_json::from_str(&place.ip(&["-j", "link", "show", device])).unwrap();
    links[0]["mtu"].as_u64().unwrap()
}

/// MTU, pools and inner addresses are what device, addresses and firewall are made of: a reload
/// leaves them as they are and reports that, a restart changes them at both ends, and nothing
/// leaves in clear meanwhile.
#[test]
fn a_changed_tunnel_waits_for_a_restart() {
    let Some(lab) = Lab::new(1) else { return };
    let _providers = names::name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    lab.campus.ip_batch("route del default via 10.200.0.1\nroute del default via fd20::1\n");
    let (mut gateway, ann) = names::gateway_with(&lab, "all", |gateway| {
        gateway.configure("nat.mode", "nftables");
        push(gateway, PUSHES[3]);
    });
    let mut client = Client::connect(&lab, 1, &ann);
    let campus = [IpAddr::from(CAMPUS_V4), CAMPUS_V6.into()];
    let reaches = || campus.iter().for_each(|to| ping_until(&lab.clients[0], *to, 20 * SECOND));
    reaches();
    let in_clear = Arrivals::in_clear(&lab);
    let before = client.addresses();

    gateway.configure("tunnel.mtu", 1380);
    gateway.configure("tunnel.pool_v4", "10.96.0.0/16");
    gateway.configure("tunnel.pool_v6", "fd96::/64");
    push(&gateway, PUSHES[4]);
    let times = set_up(&mut client);
    let said = process::text(&must(gateway.ask(&["reload"])));
    let left_out = "'mtu' in [tunnel], 'pool_v4' in [tunnel], 'pool_v6' in [tunnel]";
    assert!(said.lines().any(|line| line.ends_with(left_out)), "{said}");
    eventually("the client has the routes of the reload", 10 * SECOND, || {
        (set_up(&mut client) > times).then_some(())
    });
    reaches();
    assert_eq!(client.addresses(), before);
    eventually("the device has the MTU from before", 10 * SECOND, || {
        (mtu(client.namespace(), TUN) == 1420).then_some(())
    });

    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        // A user works all the while.
        scope.spawn(|| {
            client.namespace().within(|| {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                while !over.load(Ordering::Relaxed) {
                    let _ = socket.send_to(b"work", (CAMPUS_V4, 9));
                    thread::sleep(PACE);
                }
            });
        });
        let over = Over(&over);
        gateway.terminate();
        gateway.start();
        eventually("the client has addresses of the new pools, and none else", 30 * SECOND, || {
            let addresses: Vec<_> = client.addresses().iter().map(ToString::to_string).collect();
            let new = |text: &String| text.starts_with("10.96.") || text.starts_with("fd96:");
            (addresses.len() == 2 && addresses.iter().all(new)).then_some(())
        });
        reaches();
        drop(over);
    });
    eventually("the device has the new MTU", 10 * SECOND, || {
        (mtu(client.namespace(), TUN) == 1380).then_some(())
    });
    assert_eq!(mtu(&lab.gateway, "vpnd0"), 1380);
    assert_eq!(in_clear.packets(), 0, "packets left in clear");
}
