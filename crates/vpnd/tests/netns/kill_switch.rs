//! Behaviour: with a kill switch on, nothing of a machine leaves it in clear, from before the
//! client's first packet until a person ends it: over outages, kills of each process, other
//! programs' `nft flush ruleset`, SIGTERM and restarts. A person always can end it, and is not cut
//! off without having asked for it.
//!
//! A program on client 1 talks all the time, over UDP, TCP, ICMP and DNS, IPv4 and IPv6; `net`
//! counts what arrives of that, once the client has sent its first packet. Each test ends by
//! opening the network, and the same talk must then arrive.

use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use socket2::{Domain, Protocol, Socket, Type};

use crate::client::{self, Client, TUN, cleanup};
use crate::gateway::{Gateway, Login, VPND, edit_toml, must, strings, write_secret};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, GATEWAY_V6, Lab, UPLINK, eventually};
use crate::names::{self, PROVIDERS};
use crate::namespace::Namespace;
use crate::process::{self, Process};
use crate::relay::PORT;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(20);
/// Time in which what leaks would arrive: the program talks every few milliseconds.
const WHILE: Duration = Duration::from_millis(400);
/// Hosts that do not exist, and the router, which would answer.
const OTHERS: [&str; 4] = ["203.0.113.9", "2001:db8::9", "198.18.1.1", "fd18:1::1"];
const ON: &str = "--kill-switch";
const PERSISTENT: &str = "--kill-switch=persistent";

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A program that talks until it is dropped.
pub(crate) struct Talk {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Talk {
    pub(crate) fn start(namespace: &Namespace) -> Self {
        let (handle, stop) = (namespace.handle(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            handle.enter();
            while !stopped.load(Ordering::Relaxed) {
                OTHERS.into_iter().map(address).for_each(say);
                thread::sleep(Duration::from_millis(5));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// One packet of each kind; a refusal is as good as silence here.
fn say(to: IpAddr) {
    let domain = if to.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = |kind, protocol| Socket::new(domain, kind, Some(protocol)).expect("root has sockets");
    let udp = socket(Type::DGRAM, Protocol::UDP);
    for port in [7, 53] {
        let _ = udp.send_to(b"in clear", &SocketAddr::new(to, port).into());
    }
    let tcp = socket(Type::STREAM, Protocol::TCP);
    tcp.set_nonblocking(true).expect("it is a socket");
    let _ = tcp.connect(&SocketAddr::new(to, 80).into());
    let (protocol, kind) = if to.is_ipv4() { (Protocol::ICMPV4, 8) } else { (Protocol::ICMPV6, 128) };
    // Its checksum is the kernel's in IPv6, and does not count in IPv4: it is a packet.
    let _ = socket(Type::RAW, protocol).send_to(&[kind, 0, 0, 0, 0, 1, 0, 1], &SocketAddr::new(to, 0).into());
}

/// Counts what arrives of client 1 in clear once its client has begun: neither the tunnel's own
/// datagrams and questions for the gateway's name, nor what a link needs for itself.
pub(crate) fn capture(lab: &Lab) {
    let port = Lab::port(1);
    lab.net.nft(&format!(
        "table inet capture {{\n\
           set begun {{ typeof iif; size 16; flags dynamic; }}\n\
           counter clear {{ }}\n\
           chain arriving {{\n\
             type filter hook prerouting priority raw; policy accept;\n\
             iifname != {port} accept\n\
             ip daddr {GATEWAY_V4} udp dport {PORT} add @begun {{ iif }} accept\n\
             ip6 daddr {GATEWAY_V6} udp dport {PORT} add @begun {{ iif }} accept\n\
             ip daddr {PROVIDERS} udp dport 53 accept\n\
             icmpv6 type {{ nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert }} accept\n\
             icmpv6 type {{ mld-listener-report, mld-listener-done, mld2-listener-report }} accept\n\
             iif @begun counter name clear\n\
           }}\n\
         }}\n"
    ));
}

/// Packets in clear since the last time this was asked.
pub(crate) fn in_clear(lab: &Lab) -> u64 {
    let mut command = process::command(lab, &lab.net, "nft");
    command.args(["reset", "counters", "table", "inet", "capture"]);
    let listed = process::text(&must(process::run(command)));
    let mut words = listed.split_whitespace().skip_while(|word| *word != "packets");
    words.nth(1).and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no counter in {listed}"))
}

/// Nothing of what is said from now on, nor has been since the last time, leaves in clear.
pub(crate) fn closed(lab: &Lab, what: &str) {
    thread::sleep(WHILE);
    assert_eq!(in_clear(lab), 0, "{what}");
}

/// Packets arrive: they can be seen, and nothing holds them back any more.
pub(crate) fn opened(lab: &Lab, what: &str) {
    in_clear(lab);
    eventually(what, TIMEOUT, || (in_clear(lab) > 20).then_some(()));
}

pub(crate) fn rules(lab: &Lab) -> Option<String> {
    let mut command = process::command(lab, &lab.clients[0], "nft");
    command.args(["list", "table", "inet", "vpndkillswitch"]);
    let output = process::run(command);
    output.status.success().then(|| process::text(&output))
}

/// A client that is started, and not waited for.
fn start(lab: &Lab, login: &Login, arguments: &[&str]) -> Process {
    Process::start(lab, "client1", client::command(lab, 1, login, arguments))
}

fn until_it_says(process: &mut Process, text: &str) {
    eventually(text, TIMEOUT, || process.output().contains(text).then_some(()));
}

/// A full tunnel's gateway, not started yet, and its user.
pub(crate) fn gateway(lab: &Lab) -> (Gateway<'_>, Login) {
    let gateway = Gateway::init(lab);
    gateway.configure("nat.mode", "nftables");
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| profile["tunnel"]["routes"] = "all".into());
    (gateway, ann)
}

pub(crate) fn flush(namespace: &Namespace) {
    namespace.nft("flush ruleset\n");
}

/// Another program removes all rules; they are back within this time.
fn comes_back_after_a_flush(lab: &Lab) {
    flush(&lab.clients[0]);
    eventually("the rules are back", SECOND, || rules(lab));
    // Those that left before, and the answer to this question itself.
    thread::sleep(WHILE);
    in_clear(lab);
}

fn cleaned_up(lab: &Lab) -> (bool, String) {
    let output: Output = cleanup(lab, 1);
    (output.status.success(), process::text(&output))
}

#[test]
fn nothing_leaves_in_clear_before_during_or_after_a_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    let machine = &lab.clients[0];
    let _talk = Talk::start(machine);
    capture(&lab);
    // The gateway is not there yet: it stays closed as long as that takes.
    let mut process = start(&lab, &ann, &[ON]);
    until_it_says(&mut process, "the kill switch closes this machine's network");
    eventually("the client has begun", TIMEOUT, || {
        let mut command = process::command(&lab, &lab.net, "nft");
        command.args(["list", "set", "inet", "capture", "begun"]);
        process::text(&must(process::run(command))).contains("elements").then_some(())
    });
    closed(&lab, "before there is a tunnel");
    gateway.start();
    ping_until(machine, CAMPUS_V4.into(), TIMEOUT);
    ping_until(machine, CAMPUS_V6.into(), TIMEOUT);
    closed(&lab, "while the tunnel is there");
    machine.ip_batch(&format!("link set {TUN} down\n"));
    closed(&lab, "while its device is down");
    machine.ip_batch(&format!("link set {TUN} up\n"));
    lab.net.nft(&format!(
        "table inet hole {{ chain f {{ type filter hook forward priority 0; udp dport {PORT} drop; }}; }}\n"
    ));
    closed(&lab, "while the gateway is out of reach");
    // Another program takes the tunnel's rules and routes away, all at once and again and again.
    for _ in 0..20 {
        machine.ip_batch("rule flush\nrule add lookup main pref 32766\n");
        thread::sleep(Duration::from_millis(10));
    }
    closed(&lab, "without the tunnel's routes");
    process.signal(Signal::INT);
    let status = process.wait(TIMEOUT);
    assert!(status.success(), "{status}: {}", process.output());
    assert!(rules(&lab).is_none());
    opened(&lab, "Ctrl-C opens the network");
}

#[test]
fn a_kill_switch_outlives_each_process_and_a_flush() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    let machine = &lab.clients[0];
    let _talk = Talk::start(machine);
    capture(&lab);
    let mut client = Client::connect_with(&lab, 1, &ann, &[ON]);
    ping_until(machine, CAMPUS_V4.into(), TIMEOUT);
    closed(&lab, "connected");
    comes_back_after_a_flush(&lab);
    closed(&lab, "after the flush");
    machine.nft("insert rule inet vpndkillswitch leaving accept\n");
    eventually("the rule of somebody else goes", 5 * SECOND, || {
        let text = rules(&lab)?;
        (!text.contains("policy drop;\n\t\taccept")).then_some(())
    });
    thread::sleep(WHILE);
    in_clear(&lab);
    closed(&lab, "after the rule of somebody else");
    let (is_done, said) = cleaned_up(&lab);
    assert!(!is_done && said.contains("stays on") && rules(&lab).is_some(), "{said}");

    client.kill();
    closed(&lab, "after the client was killed");
    // The next one takes it over, and needs no word of it.
    let mut next = Client::connect(&lab, 1, &ann);
    ping_until(machine, CAMPUS_V4.into(), TIMEOUT);
    closed(&lab, "with the next client");
    for pid in next.process().children() {
        let pid = Pid::from_raw(pid.cast_signed()).expect("no process has number 0");
        kill_process(pid, Signal::KILL).expect("it runs");
    }
    let status = next.process().wait(TIMEOUT);
    assert!(!status.success() && next.process().output().contains("stays on"), "{}", next.process().output());
    closed(&lab, "after the worker was killed");
    let (is_done, said) = cleaned_up(&lab);
    assert!(is_done && said.contains("the kill switch is off"), "{said}");
    opened(&lab, "cleanup opens the network");
    let (is_done, said) = cleaned_up(&lab);
    assert!(is_done && !said.contains("kill switch"), "{said}");
}

/// The entries of the client's directory of journals whose names begin so.
fn entries(lab: &Lab, prefix: &str) -> Vec<std::path::PathBuf> {
    let all = fs::read_dir(client::journal(lab, 1)).expect("it is there");
    all.map(|entry| entry.expect("it can be read").path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
        .collect()
}

/// Also without its record, with one that is damaged, and where it can't be read which client keeps
/// it.
#[test]
fn cleanup_removes_the_kill_switch_whatever_is_broken() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    for damage in [fs::remove_file as fn(std::path::PathBuf) -> _, |path| fs::write(path, "nonsense")] {
        let mut client = Client::connect_with(&lab, 1, &ann, &[ON]);
        client.kill();
        let records = entries(&lab, "killswitch-");
        assert_eq!(records.len(), 2, "the record and its copy: {records:?}");
        records.into_iter().for_each(|path| damage(path).expect("the laboratory is ours"));
        assert!(rules(&lab).is_some());
        let (is_done, said) = cleaned_up(&lab);
        assert!(is_done && said.contains("the kill switch is off"), "{said}");
        assert!(rules(&lab).is_none(), "{said}");
    }
    // No file by which the client that keeps it could be known.
    let mut client = Client::connect_with(&lab, 1, &ann, &[ON]);
    client.kill();
    let holder = entries(&lab, "switch-held-").pop().expect("a killed client leaves it");
    fs::remove_file(&holder).expect("it was a file");
    std::os::unix::fs::symlink(&holder, &holder).expect("the laboratory is ours");
    let (is_done, said) = cleaned_up(&lab);
    assert!(!is_done && said.contains("the kill switch is off, but"), "{said}");
    assert!(rules(&lab).is_none(), "{said}");
    let (is_done, said) = cleaned_up(&lab);
    assert!(is_done, "what was damaged is gone: {said}");
    let mut client = Client::connect(&lab, 1, &ann);
    assert!(rules(&lab).is_none(), "nobody has asked for one");
    client.interrupt();
}

/// `vpnd kill-switch`, as the unit of that name runs it.
pub(crate) fn keeper_words(lab: &Lab) -> [OsString; 4] {
    [VPND.into(), "kill-switch".into(), "--journal-dir".into(), client::journal(lab, 1).into()]
}

/// It runs.
pub(crate) fn keeper(lab: &Lab) -> Process {
    let words = keeper_words(lab);
    let mut command = process::command(lab, &lab.clients[0], &words[0]);
    command.args(&words[1..]);
    Process::start(lab, "keeper", command)
}

#[test]
fn sigterm_ends_a_kill_switch_unless_it_is_persistent() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    let machine = &lab.clients[0];
    let _talk = Talk::start(machine);
    capture(&lab);
    let terminate = |arguments: &[&str]| {
        let mut client = Client::connect_with(&lab, 1, &ann, arguments);
        client.process().signal(Signal::TERM);
        let status = client.process().wait(TIMEOUT);
        assert!(status.success(), "{status}: {}", client.process().output());
    };
    terminate(&[ON]);
    assert!(rules(&lab).is_none());
    opened(&lab, "an end in order opens it");
    terminate(&[PERSISTENT]);
    in_clear(&lab);
    closed(&lab, "persistent, after SIGTERM");
    // The client's unit does this after each end of the client.
    let mut after_stop = process::command(&lab, machine, VPND);
    after_stop.args(["cleanup", "--keep-kill-switch", "--journal-dir"]).arg(client::journal(&lab, 1));
    must(process::run(after_stop));
    closed(&lab, "after the unit's cleanup");
    let mut keeper = keeper(&lab);
    eventually("the keeper has begun", TIMEOUT, || {
        flush(machine);
        eventually("a look", SECOND, || Some(rules(&lab)))
    });
    comes_back_after_a_flush(&lab);
    closed(&lab, "kept by nobody but the keeper");
    // A client takes over while the keeper runs, and gives it back.
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(machine, CAMPUS_V4.into(), TIMEOUT);
    comes_back_after_a_flush(&lab);
    closed(&lab, "a client beside the keeper");
    client.kill();
    comes_back_after_a_flush(&lab);
    closed(&lab, "after that client was killed");
    let (is_done, said) = cleaned_up(&lab);
    assert!(is_done && said.contains("the kill switch is off"), "{said}");
    thread::sleep(WHILE);
    keeper.assert_running();
    assert!(rules(&lab).is_none(), "the keeper does not put back what a person has ended");
    opened(&lab, "cleanup opens it for good");
    let mut client = Client::connect_with(&lab, 1, &ann, &[PERSISTENT]);
    client.interrupt();
    assert!(rules(&lab).is_none());
    opened(&lab, "Ctrl-C opens a persistent one");
}

/// The client's own questions pass, by their sockets; others' don't.
#[test]
fn a_kill_switch_permits_lookups_of_the_gateways_name_only() {
    let Some(lab) = Lab::new(1) else { return };
    let providers = names::name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    let (mut gateway, ann) = names::gateway_with(&lab, "all", |gateway| {
        gateway.configure("nat.mode", "nftables");
    });
    gateway.terminate();
    let ask = |name: &str| {
        let mut command = process::command(&lab, &lab.clients[0], "timeout");
        command.args(["2", "getent", "ahosts", name]);
        process::run(command);
    };
    ask("before.example");
    assert!(providers.output().contains("before.example"), "{}", providers.output());
    let mut process = start(&lab, &ann, &[ON]);
    until_it_says(&mut process, "the kill switch closes this machine's network");
    eventually("the gateway's name is asked for", TIMEOUT, || {
        providers.output().contains(names::NAME).then_some(())
    });
    ask("during.example");
    gateway.start();
    ping_until(&lab.clients[0], CAMPUS_V4.into(), TIMEOUT);
    ask("inside.example");
    assert!(!providers.output().contains("during.example"), "{}", providers.output());
    assert!(!providers.output().contains("inside.example"), "{}", providers.output());
    process.signal(Signal::INT);
    assert!(process.wait(TIMEOUT).success(), "{}", process.output());
    ask("after.example");
    assert!(providers.output().contains("after.example"), "{}", providers.output());
}

/// A connection that `net` has opened to client 1, as an administrator has one.
pub(crate) fn remote(lab: &Lab, port: u16) -> (TcpListener, TcpStream, TcpStream) {
    let own = SocketAddr::new(address("192.168.1.2"), port);
    let listener = listener(lab, port);
    let remote = lab.net.within(|| TcpStream::connect(own)).expect("there is a way");
    let (here, _) = listener.accept().expect("it has arrived");
    for stream in [&here, &remote] {
        stream.set_read_timeout(Some(2 * SECOND)).expect("it is a socket");
    }
    (listener, here, remote)
}

/// Whether a word comes back over the connection.
fn echoes(here: &mut TcpStream, there: &mut TcpStream) -> bool {
    let mut word = [0; 4];
    let _ = there.write_all(b"ping");
    if here.read_exact(&mut word).is_err() {
        return false;
    }
    let _ = here.write_all(&word);
    there.read_exact(&mut word).is_ok()
}

#[test]
fn a_kill_switch_is_refused_if_it_cut_off_the_users_session() {
    const REMOTE_PORT: u16 = 2_222;
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    // A local network, which a full tunnel leaves alone.
    private_network(&lab);
    // It counts as another host's only while something listens there.
    let (_listener, mut here, mut there) = remote(&lab, REMOTE_PORT);
    let peer = here.peer_addr().expect("it is connected");
    let session = format!("{} {} 192.168.1.2 {REMOTE_PORT}", peer.ip(), peer.port());
    let mut command = client::command(&lab, 1, &ann, &[ON]);
    command.env("SSH_CONNECTION", &session);
    let (code, said) = client::ended(&lab, command);
    assert_eq!(code, 3, "{said}");
    assert!(
        said.contains("a connection by which you or others work")
            && said.contains("--kill-switch-inbound 2222"),
        "{said}"
    );
    assert!(rules(&lab).is_none() && echoes(&mut here, &mut there), "nothing has changed");

    let mut client =
        Client::connect_with(&lab, 1, &ann, &[ON, "--kill-switch-inbound", &REMOTE_PORT.to_string()]);
    assert!(echoes(&mut here, &mut there), "what passes goes on");
    let _other = listener(&lab, REMOTE_PORT + 1);
    let connect = |port| {
        let to = SocketAddr::new(address("192.168.1.2"), port);
        lab.net.within(|| TcpStream::connect_timeout(&to, 2 * SECOND))
    };
    assert!(connect(REMOTE_PORT).is_ok() && connect(REMOTE_PORT + 1).is_err(), "that port, and no other");
    client.interrupt();

    // Without the session it is a warning, because there is no user to ask.
    let mut client = Client::connect_with(&lab, 1, &ann, &[ON]);
    let said = client.process().output();
    assert!(said.contains("cuts off 192.168.1.1") && said.contains("--kill-switch-inbound 2222"), "{said}");
    assert!(!echoes(&mut here, &mut there), "it is cut off");
    client.interrupt();
}

fn listener(lab: &Lab, port: u16) -> TcpListener {
    lab.clients[0].within(|| TcpListener::bind(("0.0.0.0", port))).expect("the port is free")
}

/// Puts a private network next to the one of client 1.
pub(crate) fn private_network(lab: &Lab) {
    let port = Lab::port(1);
    lab.net.ip_batch(&format!("addr add 192.168.1.1/24 dev {port}\naddr add fd77::1/64 dev {port}\n"));
    lab.clients[0]
        .ip_batch(&format!("addr add 192.168.1.2/24 dev {UPLINK}\naddr add fd77::2/64 dev {UPLINK}\n"));
}

#[test]
fn the_local_network_passes_only_by_choice_and_only_as_long_as_it_is_there() {
    let Some(lab) = Lab::new(1) else { return };
    let machine = &lab.clients[0];
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    private_network(&lab);
    // Another one, of an interface that is down: no link leads there.
    machine.ip_batch("tuntap add idle0 mode tun\naddr add 10.44.0.2/24 dev idle0\n");
    let reaches = |to: &str| ping(machine, address(to), 56, SECOND / 2);
    let mut client = Client::connect_with(&lab, 1, &ann, &[ON]);
    ping_until(machine, CAMPUS_V4.into(), TIMEOUT);
    assert!(!reaches("192.168.1.1") && !reaches("fd77::1"), "not without being asked for");
    client.interrupt();
    let mut client = Client::connect_with(&lab, 1, &ann, &[ON, "--kill-switch-allow-local"]);
    for router in ["192.168.1.1", "fd77::1"] {
        ping_until(machine, address(router), TIMEOUT);
    }
    let shown = rules(&lab).expect("it is on");
    assert!(shown.contains(&format!("oifname \"{UPLINK}\" ip daddr 192.168.1.0/24 accept")), "{shown}");
    assert!(!shown.contains("10.44.0.0"), "{shown}");
    machine.ip_batch(&format!("addr del 192.168.1.2/24 dev {UPLINK}\n"));
    eventually("it is closed where the machine is no more", TIMEOUT, || {
        (!rules(&lab)?.contains("192.168.1.0/24")).then_some(())
    });
    client.interrupt();
}

/// A client that is refused has ended, and not by a person: everybody can see what holds the
/// machine, and since when.
#[test]
fn a_refused_client_leaves_the_kill_switch_closed_and_visible() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = gateway(&lab);
    gateway.start();
    let machine = &lab.clients[0];
    let run = process::share_run(&lab, machine, Path::new("/"));
    write_secret(&ann.credentials, "wrong\n");
    let (code, said) = client::ended(&lab, client::command(&lab, 1, &ann, &[PERSISTENT]));
    assert!(code == 3 && said.contains("the kill switch stays on"), "{code}: {said}");
    assert!(rules(&lab).is_some());
    let shown: Vec<_> = fs::read_dir(run.join("vpnd-kill-switch")).expect("it is there").collect();
    assert_eq!(shown.len(), 1);
    let mut status = process::command(&lab, machine, VPND);
    status.arg("status");
    let output = process::run(status);
    let text = process::text(&output);
    assert!(output.status.success(), "{text}");
    for word in ["persistent kill switch on since 20", TUN, "vpnd cleanup"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let (is_done, said) = cleaned_up(&lab);
    assert!(is_done, "{said}");
    assert_eq!(fs::read_dir(run.join("vpnd-kill-switch")).expect("it is there").count(), 0);
}

/// The link works: a lease is asked for, and neighbours are found; but no host of
/// another network gets a packet for being called a DHCP server.
#[test]
fn a_link_works_and_no_packet_passes_as_dhcp() {
    let Some(lab) = Lab::new(1) else { return };
    let machine = &lab.clients[0];
    let (mut gateway, ann) = gateway(&lab);
    edit_toml(&ann.profile, |profile| {
        profile["tunnel"].as_table_mut().expect("a section").insert("kill_switch".to_owned(), "on".into());
        profile["server"]["addresses"] =
            strings(&[&format!("[{GATEWAY_V6}]:{PORT}"), &format!("{GATEWAY_V4}:{PORT}")]);
    });
    gateway.start();
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(machine, CAMPUS_V6.into(), TIMEOUT);
    assert!(rules(&lab).is_some(), "the profile asks for it");
    // Bound to the link, for the full tunnel would take them.
    let sends = |from: &str, to: &str| {
        let [from, to] = [from, to].map(|text| text.parse::<SocketAddr>().expect("an address"));
        machine.within(|| {
            let socket = Socket::new(Domain::for_address(from), Type::DGRAM, None).expect("a socket");
            socket.bind_device(Some(UPLINK.as_bytes())).expect("root may");
            socket.set_broadcast(true).expect("it is a socket");
            socket.bind(&from.into()).expect("the port is free");
            socket.send_to(b"lease", &to.into()).is_ok()
        })
    };
    assert!(sends("198.18.1.2:68", "255.255.255.255:67"), "to all servers of the link");
    for (from, to) in [
        ("198.18.1.2:68", "198.18.1.1:67"),
        ("198.18.1.2:68", "203.0.113.9:67"),
        ("198.18.1.2:67", "255.255.255.255:67"),
        ("198.18.1.2:68", "255.255.255.255:53"),
        ("[fd18:1::2]:546", "[2001:db8::9]:547"),
    ] {
        assert!(!sends(from, to), "{from} to {to}");
    }
    // The router is found again, and finds the machine.
    machine.ip(&["neigh", "flush", "dev", UPLINK]);
    lab.net.ip(&["neigh", "flush", "dev", &Lab::port(1)]);
    ping_until(machine, CAMPUS_V6.into(), TIMEOUT);
    client.interrupt();
}
