//! Behaviour: a full tunnel is full. No route that a local network hands out leads around it, and
//! what it does not carry is refused on the machine, so nothing of either leaves in clear.
//!
//! The local network is hostile: a DHCP server gives routes that are more specific than the
//! tunnel's (option 121, "TunnelVision"), a router advertises such (RFC 4191). The client's kernel
//! takes them, as each test checks; `net` counts what arrives. Each attack is made again without
//! the tunnel, and must then succeed.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::cleanup::look_at;
use crate::client::{Client, TUN, cleanup};
use crate::gateway::{Gateway, edit_toml, must, strings};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, GATEWAY_V6, Lab, UPLINK, eventually};
use crate::names::{self, PROVIDERS, PUSHED};
use crate::namespace::Namespace;
use crate::process::{self, Process};
use crate::relay::PORT;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
/// The router of client 1's network.
const ROUTER: &str = "198.18.1.1";
/// Hosts that do not exist; their packets show where they go.
const ELSEWHERE: [&str; 3] = ["203.0.113.9", "9.9.9.9", "2001:db8::9"];

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Counts in `net` what client 1 sends in clear: neither to the gateway's port, nor what a link
/// needs for itself, nor questions for the gateway's name, which leave outside the tunnel on
/// purpose.
pub(crate) fn watch(lab: &Lab) {
    let port = Lab::port(1);
    lab.net.nft(&format!(
        "table inet watch {{\n\
           set v4 {{ type ipv4_addr . inet_proto . inet_service; flags dynamic; size 64; }}\n\
           set v6 {{ type ipv6_addr . inet_proto . inet_service; flags dynamic; size 64; }}\n\
           chain in {{\n\
             type filter hook prerouting priority raw; policy accept;\n\
             iifname != {port} accept\n\
             ip daddr {GATEWAY_V4} udp dport {PORT} accept\n\
             ip6 daddr {GATEWAY_V6} udp dport {PORT} accept\n\
             ip daddr {PROVIDERS} udp dport 53 accept\n\
             udp dport 67 accept\n\
             meta l4proto igmp accept\n\
             icmpv6 type {{ nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert }} accept\n\
             icmpv6 type {{ mld-listener-query, mld-listener-report, mld-listener-done, mld2-listener-report }} accept\n\
             add @v4 {{ ip daddr . meta l4proto . th dport }}\n\
             add @v6 {{ ip6 daddr . meta l4proto . th dport }}\n\
             counter\n\
           }}\n\
         }}\n"
    ));
}

/// The packets counted until now. What they were is printed.
pub(crate) fn in_clear(lab: &Lab) -> u64 {
    let mut command = process::command(lab, &lab.net, "nft");
    command.args(["list", "table", "inet", "watch"]);
    let listed = process::text(&must(process::run(command)));
    let mut words = listed.split_whitespace().skip_while(|word| *word != "packets");
    let count = words.nth(1).and_then(|count| count.parse().ok());
    let count = count.unwrap_or_else(|| panic!("no counter in {listed}"));
    if count > 0 {
        println!("in clear:\n{listed}");
    }
    count
}

/// Sends something to each of these, and to the campus.
pub(crate) fn speak(from: &Namespace) {
    let campus = [CAMPUS_V4.into(), CAMPUS_V6.into()];
    for to in ELSEWHERE.into_iter().map(address).chain(campus) {
        ping(from, to, 56, SECOND / 20);
        from.within(|| {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).expect("a socket");
            for _ in 0..5 {
                // A refusal is as good as silence here.
                let _ = socket.send_to(b"hello", SocketAddr::new(to, 7));
            }
        });
    }
}

/// The ordinary installation behind NAT, with a name and pushed DNS, and a real name server of the
/// provider.
pub(crate) fn ordinary(lab: &Lab) -> (Process, Gateway<'_>, crate::gateway::Login) {
    let providers = names::name_server(lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    lab.campus.ip_batch("route del default via 10.200.0.1\nroute del default via fd20::1\n");
    let (gateway, ann) = names::gateway_with(lab, "all", |gateway| {
        gateway.configure("push.dns", strings(&[PUSHED]));
        gateway.configure("nat.mode", "nftables");
    });
    (providers, gateway, ann)
}

/// A DHCP server on client 1's network that leads everything, and the campus by name, to itself.
fn rogue_dhcp(lab: &Lab) -> Process {
    let mut command = process::command(lab, &lab.net, "dnsmasq");
    command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--pid-file="]);
    command.args(["--user=root", "--bind-interfaces", "--log-facility=-", "--leasefile-ro"]);
    command.arg(format!("--interface={}", Lab::port(1)));
    command.arg("--dhcp-range=198.18.1.100,198.18.1.120,255.255.255.0,1h");
    let routes = ["0.0.0.0/1", "128.0.0.0/1", "9.9.9.9/32", "10.200.0.0/25", "10.200.0.2/32"];
    let routes = routes.map(|net| format!("{net},198.18.1.1"));
    command.arg(format!("--dhcp-option=121,{}", routes.join(",")));
    let mut server = Process::start(lab, "dhcp", command);
    eventually("the DHCP server listens", 5 * SECOND, || {
        server.assert_running();
        server.output().contains("started").then_some(())
    });
    server
}

/// A real DHCP client takes an address and routes, and stays out of the resolver's file.
fn take_lease(lab: &Lab, client: &Namespace) {
    let script = lab.path("lease.sh");
    let text = "#!/bin/sh\n[ \"$1\" = bound ] || exit 0\n\
                ip address add \"$ip/$mask\" dev \"$interface\"\n\
                set -- $staticroutes\n\
                while [ $# -ge 2 ]; do ip route add \"$1\" via \"$2\" dev \"$interface\" metric 50; shift 2; done\n";
    fs::write(&script, text).expect("the laboratory's directory is writable");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let mut command = process::command(lab, client, "udhcpc");
    command.args(["-f", "-q", "-n", "-t", "10", "-T", "1", "-i", UPLINK, "-O", "staticroutes", "-s"]);
    command.arg(&script);
    must(process::run(command));
    let routes = client.ip(&["route", "show"]);
    assert!(routes.contains("0.0.0.0/1 via") && routes.contains("10.200.0.2 via"), "it has them: {routes}");
}

#[test]
fn dhcp_routes_do_not_bypass_a_full_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let (_providers, _gateway, ann) = ordinary(&lab);
    let _rogue = rogue_dhcp(&lab);
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
    watch(&lab);
    speak(client.namespace());
    assert_eq!(in_clear(&lab), 0, "before the lease");
    take_lease(&lab, client.namespace());
    ping_until(client.namespace(), CAMPUS_V4.into(), 20 * SECOND);
    ping_until(client.namespace(), CAMPUS_V6.into(), 10 * SECOND);
    speak(client.namespace());
    assert_eq!(in_clear(&lab), 0, "with the routes of the lease");
    for to in ELSEWHERE.into_iter().chain(["10.200.0.2"]) {
        let way = client.namespace().ip(&["route", "get", to]);
        assert!(way.contains(TUN), "{to}: {way}");
    }
    client.interrupt();
    speak(&lab.clients[0]);
    assert!(in_clear(&lab) > 0, "without the tunnel it is a leak");
}

/// Does this for the networks that a gateway names, without a full tunnel; and a client that comes
/// after the lease.
#[test]
fn dhcp_routes_do_not_bypass_a_split_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let _rogue = rogue_dhcp(&lab);
    take_lease(&lab, &lab.clients[0]);
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
    watch(&lab);
    for _ in 0..5 {
        assert!(ping(client.namespace(), CAMPUS_V4.into(), 56, 5 * SECOND));
    }
    assert_eq!(in_clear(&lab), 0);
    client.interrupt();
    ping(&lab.clients[0], CAMPUS_V4.into(), 56, SECOND / 10);
    assert!(in_clear(&lab) > 0, "without the tunnel it is a leak");
}

/// With search domains, too, a full tunnel's names are all for its own name server.
#[test]
fn names_of_other_domains_are_not_for_the_local_name_server() {
    let Some(lab) = Lab::new(1) else { return };
    let (providers, gateway, ann) = ordinary(&lab);
    let pushed = names::name_server(&lab, &lab.campus, PUSHED, "192.0.2.1");
    gateway.configure("push.search", strings(&["campus.example"]));
    must(gateway.ask(&["reload"]));
    let mut client = Client::connect(&lab, 1, &ann);
    let ask = |name: &str| {
        let mut command = process::command(&lab, &lab.clients[0], "getent");
        command.args(["ahosts", name]);
        process::run(command);
    };
    eventually("the campus is asked", 20 * SECOND, || {
        ask("first.elsewhere.example");
        pushed.output().contains("first.elsewhere.example").then_some(())
    });
    ask("www.elsewhere.example");
    ask("host.campus.example");
    for name in ["www.elsewhere.example", "host.campus.example"] {
        assert!(pushed.output().contains(name), "{}", pushed.output());
        assert!(!providers.output().contains(name), "{}", providers.output());
    }
    client.interrupt();
    ask("www.elsewhere.example");
    assert!(providers.output().contains("www.elsewhere.example"), "without the tunnel it is asked");
}

/// A router advertisement of high preference, with routes for these networks.
fn advertise(lab: &Lab, routes: &[(Ipv6Addr, u8)]) {
    let option = |(network, length): &(Ipv6Addr, u8)| {
        // Route information: three times eight bytes, the prefix's length, preference "high",
        // lifetime.
        [&[24, 3, *length, 0x08, 0, 0, 7, 8][..], &network.octets()].concat()
    };
    advertise_options(lab, &routes.iter().flat_map(option).collect::<Vec<u8>>());
}

/// A router advertisement of high preference, with these options.
pub(crate) fn advertise_options(lab: &Lab, options: &[u8]) {
    let index = interface_index(&lab.net, &Lab::port(1));
    // Type, code, checksum (by the kernel), hop limit, preference "high", lifetime 1,800 s, two
    // timers.
    let mut packet = vec![134, 0, 0, 0, 64, 0x08, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    packet.extend(options);
    lab.net.within(|| {
        let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)).expect("root may");
        socket.set_multicast_hops_v6(255).expect("a socket");
        socket.set_multicast_if_v6(index).expect("the interface is there");
        let all_nodes = SocketAddrV6::new(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), 0, 0, index);
        socket.send_to(&packet, &all_nodes.into()).expect("the link is up");
    });
}

fn interface_index(namespace: &Namespace, name: &str) -> u32 {
    let link: serde_json::Value =
        serde_json::from_str(&namespace.ip(&["-j", "link", "show", name])).expect("JSON");
    link[0]["ifindex"].as_u64().and_then(|index| index.try_into().ok()).expect("a number")
}

#[test]
fn router_advertisements_do_not_bypass_a_full_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let (_providers, _gateway, ann) = ordinary(&lab);
    // Network managers set this.
    lab.clients[0].sysctl(&format!("net/ipv6/conf/{UPLINK}/accept_ra_rt_info_max_plen"), "128");
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V6.into(), 10 * SECOND);
    watch(&lab);
    let taken = [("2001:db8::", 32), ("fd20::", 64), ("fd20::2", 128)];
    let taken = taken.map(|(network, length)| (network.parse().expect("an address"), length));
    eventually("the client's kernel takes the routes", 10 * SECOND, || {
        advertise(&lab, &taken);
        let routes = client.namespace().ip(&["-6", "route", "show"]);
        (routes.contains("fd20::2 via fe80") && routes.contains("2001:db8::/32 via fe80")).then_some(())
    });
    ping_until(client.namespace(), CAMPUS_V6.into(), 20 * SECOND);
    speak(client.namespace());
    assert_eq!(in_clear(&lab), 0);
    client.interrupt();
    speak(&lab.clients[0]);
    assert!(in_clear(&lab) > 0, "without the tunnel it is a leak");
}

/// The error of a datagram socket that is connected there; the kernel decides that alone.
fn refusal(from: &Namespace, to: &str) -> Option<ErrorKind> {
    let to = SocketAddr::new(address(to), 7);
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    from.within(|| UdpSocket::bind(any).expect("a socket").connect(to).err().map(|error| error.kind()))
}

/// Whether a datagram to a link-local address of `net` arrives.
fn reaches_link_local(lab: &Lab, client: &Namespace) -> bool {
    let shown = lab.net.ip(&["-6", "-o", "address", "show", "dev", &Lab::port(1), "scope", "link"]);
    let text =
        shown.split_whitespace().find(|word| word.starts_with("fe80")).expect("every interface has one");
    let host: Ipv6Addr = text.split('/').next().and_then(|text| text.parse().ok()).expect("an address");
    let place = |namespace: &Namespace, name: &str| {
        SocketAddrV6::new(host, 7_001, 0, interface_index(namespace, name))
    };
    let receiver =
        lab.net.within(|| UdpSocket::bind(place(&lab.net, &Lab::port(1)))).expect("its own address");
    receiver.set_read_timeout(Some(2 * SECOND)).expect("a socket");
    client.within(|| {
        let socket = UdpSocket::bind("[::]:0").expect("a socket");
        socket.send_to(b"neighbour", place(client, UPLINK)).expect("link-local is not refused");
    });
    receiver.recv(&mut [0; 16]).is_ok()
}

/// A gateway with one pool, reached over the other version; a full tunnel through it.
pub(crate) fn carries_one_version<'l>(lab: &'l Lab, pool: &str, outer: &str) -> (Gateway<'l>, Client<'l>) {
    let mut gateway = Gateway::init(lab);
    edit_toml(&gateway.config(), |config| {
        let tunnel = config["tunnel"].as_table_mut().expect("a section");
        tunnel.retain(|key, _| !key.starts_with("pool_") || key == pool);
    });
    gateway.configure("nat.mode", "nftables");
    gateway
        .configure("push.routes", strings(&[if pool == "pool_v4" { "10.200.0.0/24" } else { "fd20::/64" }]));
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| {
        profile["server"]["addresses"] = strings(&[&format!("{outer}:{PORT}")]);
        profile["tunnel"]["routes"] = "all".into();
    });
    gateway.start();
    let client = Client::connect(lab, 1, &ann);
    (gateway, client)
}

#[test]
fn ipv6_that_a_full_tunnel_does_not_carry_is_refused() {
    let Some(lab) = Lab::new(1) else { return };
    let before = look_at(&lab, &lab.clients[0]);
    let (_gateway, mut client) = carries_one_version(&lab, "pool_v4", &format!("[{GATEWAY_V6}]"));
    let machine = client.namespace();
    ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
    watch(&lab);
    assert!(client.process().output().contains("IPv6 is refused"), "{}", client.process().output());
    let asked = Instant::now();
    for to in ["2001:db8::9", "fd20::2"] {
        assert_eq!(refusal(machine, to), Some(ErrorKind::HostUnreachable), "{to}");
    }
    assert!(asked.elapsed() < SECOND, "nobody waits");
    speak(machine);
    assert_eq!(in_clear(&lab), 0);

    // The link works: neighbours are found again, for the tunnel's own datagrams above
    // all.
    assert!(reaches_link_local(&lab, machine));
    machine.ip(&["-6", "neigh", "flush", "dev", UPLINK]);
    ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);

    client.kill();
    assert_eq!(refusal(machine, "2001:db8::9"), Some(ErrorKind::HostUnreachable), "until somebody cleans up");
    must(cleanup(&lab, 1));
    assert_eq!(look_at(&lab, machine), before);
    speak(machine);
    assert!(in_clear(&lab) > 0, "without the tunnel it is a leak");
}

#[test]
fn ipv4_that_a_full_tunnel_does_not_carry_is_refused() {
    let Some(lab) = Lab::new(1) else { return };
    let before = look_at(&lab, &lab.clients[0]);
    let (_gateway, mut client) = carries_one_version(&lab, "pool_v6", &GATEWAY_V4.to_string());
    let machine = client.namespace();
    ping_until(machine, CAMPUS_V6.into(), 10 * SECOND);
    watch(&lab);
    assert!(client.process().output().contains("IPv4 is refused"), "{}", client.process().output());
    for to in ["9.9.9.9", "10.200.0.2"] {
        assert_eq!(refusal(machine, to), Some(ErrorKind::HostUnreachable), "{to}");
    }
    speak(machine);
    assert_eq!(in_clear(&lab), 0);
    machine.ip(&["neigh", "flush", "dev", UPLINK]);
    ping_until(machine, CAMPUS_V6.into(), 10 * SECOND);
    client.interrupt();
    assert_eq!(look_at(&lab, machine), before);
}

/// The kernel's strict check of sources, as some distributions and administrators have it.
pub(crate) fn check_sources(machine: &Namespace, mode: &str) {
    for place in ["all", "default", UPLINK] {
        machine.sysctl(&format!("net/ipv4/conf/{place}/rp_filter"), mode);
    }
}

pub(crate) fn looks_back_with_marks(machine: &Namespace) -> String {
    let read = || fs::read_to_string("/proc/sys/net/ipv4/conf/all/src_valid_mark");
    machine.within(read).expect("the kernel has it").trim_end().to_owned()
}

/// The kernel looks for the way back to a datagram's source: it must not find the tunnel for the
/// tunnel's own.
#[test]
fn a_strict_check_of_sources_drops_none_of_the_tunnels_datagrams() {
    let Some(lab) = Lab::new(1) else { return };
    let (providers, gateway, ann) = ordinary(&lab);
    let machine = &lab.clients[0];
    check_sources(machine, "1");
    let before = look_at(&lab, machine);
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
    ping_until(machine, CAMPUS_V6.into(), 10 * SECOND);
    assert_eq!(looks_back_with_marks(machine), "1");

    // The gateway moves, where only the name server knows: its answers are no part of the tunnel,
    // and still arrive.
    let moved = "198.18.0.77";
    lab.gateway.ip_batch(&format!("addr add {moved}/24 dev {UPLINK}\n"));
    drop(providers);
    let _providers = names::name_server(&lab, &lab.net, PROVIDERS, moved);
    lab.net.nft(&format!(
        "table ip old {{ chain forward {{ type filter hook forward priority 0; ip daddr {GATEWAY_V4} drop; ip saddr {GATEWAY_V4} drop; }}; }}\n"
    ));
    ping_until(machine, CAMPUS_V4.into(), 60 * SECOND);
    assert_eq!(gateway.sessions().len(), 1);

    client.interrupt();
    assert_eq!((look_at(&lab, machine), looks_back_with_marks(machine).as_str()), (before, "0"));
}

/// The router asks for the machine's link address, as it does every few minutes. Its own address
/// leads into the tunnel.
#[test]
fn a_strict_check_of_sources_leaves_the_router_its_answers() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = Gateway::for_ann(&lab);
    edit_toml(&ann.profile, |profile| {
        profile["tunnel"]["routes"] = "all".into();
        // By IPv6 it would find another way.
        profile["server"]["addresses"] = strings(&[&format!("{GATEWAY_V4}:{PORT}")]);
    });
    let machine = &lab.clients[0];
    check_sources(machine, "1");
    let before = look_at(&lab, machine);
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
    let log = client.process().output();
    assert!(log.contains("which goes into it"), "the local network is public: {log}");
    // The machine's own queries would tell the router the same.
    machine.nft("table arp silent { chain out { type filter hook output priority 0; arp operation request drop; }; }\n");
    let known = machine.ip(&["neigh", "show", "to", ROUTER, "dev", UPLINK]);
    let address = known.split_whitespace().nth(2).expect("it has just been used");
    let entry = [ROUTER, "lladdr", address, "dev", UPLINK];
    machine.ip(&[&["neigh", "replace"][..], &entry, &["nud", "permanent"]].concat());
    lab.net.ip(&["neigh", "flush", "dev", &Lab::port(1)]);
    ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
    machine.ip(&[&["neigh", "del"][..], &entry].concat());
    machine.nft("delete table arp silent\n");
    client.interrupt();
    assert_eq!(look_at(&lab, machine), before);
}

/// The loose check wants any way back, and there is none where a full tunnel refuses the version of
/// its own datagrams.
#[test]
fn a_loose_check_of_sources_finds_a_way_back_where_the_rest_is_refused() {
    let Some(lab) = Lab::new(1) else { return };
    check_sources(&lab.clients[0], "2");
    let (_gateway, mut client) = carries_one_version(&lab, "pool_v6", &GATEWAY_V4.to_string());
    let machine = client.namespace();
    ping_until(machine, CAMPUS_V6.into(), 10 * SECOND);
    assert_eq!(refusal(machine, "9.9.9.9"), Some(ErrorKind::HostUnreachable));
    client.kill();
    assert_eq!(looks_back_with_marks(machine), "1");
    must(cleanup(&lab, 1));
    assert_eq!(looks_back_with_marks(machine), "0");
}

/// The check of IPv6 sources that firewalld sets as it is installed, and that some rules of
/// nftables and iptables make for both versions.
fn check_sources_by_rules(machine: &Namespace, versions: &str) {
    machine.nft(&format!(
        "table inet firewalld {{ chain filter_PREROUTING {{\n\
           type filter hook prerouting priority filter + 10; policy accept;\n\
           icmpv6 type {{ nd-router-advert, nd-neighbor-solicit }} accept\n\
           {versions} fib saddr . mark . iif oif missing drop\n\
         }}; }}\n"
    ));
}

/// Those rules look for the way back with a packet's mark, which answers to the tunnel's sockets
/// and to the look-ups of the gateway's name must have.
#[test]
fn a_firewalls_check_of_sources_drops_none_of_the_tunnels_datagrams() {
    let firewalld = ("meta nfproto ipv6", [GATEWAY_V6.to_string(), "fd18::77".to_owned()], "fd18::1");
    let strict =
        ("meta nfproto { ipv4, ipv6 }", [GATEWAY_V4.to_string(), "198.18.0.77".to_owned()], PROVIDERS);
    for (versions, [first, moved], name_server) in [firewalld, strict] {
        let Some(lab) = Lab::new(1) else { return };
        let providers = names::name_server(&lab, &lab.net, name_server, &first);
        let (gateway, ann) = names::gateway(&lab, "all");
        let machine = &lab.clients[0];
        let resolver = process::etc(&lab, machine).join("resolv.conf");
        fs::write(resolver, format!("nameserver {name_server}\n")).expect("the laboratory is ours");
        check_sources_by_rules(machine, versions);
        let _client = Client::connect(&lab, 1, &ann);
        ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
        ping_until(machine, CAMPUS_V6.into(), 10 * SECOND);
        // Its new address is known to the name server alone.
        lab.gateway.ip_batch(&format!(
            "addr add {moved}/{} dev {UPLINK}\n",
            if moved.contains(':') { 64 } else { 24 }
        ));
        drop(providers);
        let _providers = names::name_server(&lab, &lab.net, name_server, &moved);
        lab.net.nft(&format!(
            "table inet old {{ chain forward {{ type filter hook forward priority 0; {0} daddr {first} drop; {0} saddr {first} drop; }}; }}\n",
            if moved.contains(':') { "ip6" } else { "ip" }
        ));
        ping_until(machine, CAMPUS_V4.into(), 60 * SECOND);
        assert_eq!(gateway.sessions().len(), 1);
    }
}
