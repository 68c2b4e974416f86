//! Behaviour: a flood of handshakes from forged addresses keeps no client out, costs no memory, and
//! is not made larger.
//!
//! `./x flood` runs the same for longer, as fast as one core can send, and holds the figures
//! against what is promised. The live client's stream has a fixed rate, because the flood is made
//! on the same cores: how much a saturating stream loses would say more about those than about the
//! gateway.

mod logins;
mod wireguard;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::client::Client;
use crate::forger::{Flood, first_datagrams, knock};
use crate::gateway::{Gateway, Login, must};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab};
use crate::namespace::Namespace;
use crate::process;
use crate::relay::PORT;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;
/// Rate of the live client's stream.
const BYTES_PER_S: u64 = 12_500_000;

/// Duration, and datagrams each second (`None`: as many as there can be).
struct Form {
    seconds: u64,
    rate: Option<u32>,
    long: bool,
}

impl Form {
    /// `./x flood` sets these variables.
    fn of_environment() -> Self {
        let number = |name| std::env::var(name).ok().map(|text| text.parse::<u32>().expect("a number"));
        match number("VPND_FLOOD_SECONDS") {
            Some(seconds) => {
                let rate = number("VPND_FLOOD_RATE").filter(|rate| *rate > 0);
                Self { seconds: seconds.into(), rate, long: true }
            }
            None => Self { seconds: 4, rate: Some(10_000), long: false },
        }
    }

    /// Time for logins before a flood, with which those during it are compared.
    fn alone(&self) -> Duration {
        Duration::from_secs(if self.long { self.seconds.min(10) } else { 0 })
    }
}

#[test]
fn forged_handshakes_block_no_login() {
    let Some(lab) = Lab::new(4) else { return };
    let mut gateway = Gateway::init(&lab);
    let users = ["ann", "bob", "carol"].map(|name| gateway.add_user(name));
    gateway.start();
    let counted = withstand(&lab, &gateway, &users, &first_datagrams(), || ());
    assert!(counted[1] > 0, "some of it was asked for a proof");
}

/// Floods the gateway with datagrams, holds what becomes of others against what is promised, and
/// does something `meanwhile`. Returns the bytes from forged addresses, and those to them.
fn withstand(
    lab: &Lab,
    gateway: &Gateway<'_>,
    users: &[Login; 3],
    flight: &[Vec<u8>],
    meanwhile: impl FnOnce(),
) -> [u64; 2] {
    let form = Form::of_environment();
    count_on_the_way(lab);
    let live = Client::connect(lab, 1, &users[0]);
    ping_until(live.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let received = AtomicU64::new(0);
    let over = AtomicU64::new(0);
    let alone = log_in_until(lab, 3, &users[1], Instant::now() + form.alone());
    thread::scope(|scope| {
        let _end = OnDrop(|| over.store(1, Ordering::Relaxed));
        stream(scope, &lab.campus, live.namespace(), &received, &over);
        let before = rate(&received, form.seconds.min(10));
        let memory_before = memory(gateway);
        let flood = Flood::start(&lab.clients[1], SocketAddrV4::new(GATEWAY_V4, PORT), flight, form.rate);
        let end = Instant::now() + Duration::from_secs(form.seconds);
        let honest = [(3, &users[1]), (4, &users[2])];
        let logins = honest.map(|(number, user)| scope.spawn(move || log_in_until(lab, number, user, end)));
        let during = rate(&received, form.seconds);
        assert!(ping(live.namespace(), CAMPUS_V4.into(), 56, 5 * SECOND), "the live session lives");
        meanwhile();
        let memory_after = memory(gateway);
        let (sent, each_second) = flood.sent();
        let remembered = remembered(lab);
        let times: Vec<Duration> =
            logins.into_iter().flat_map(|login| login.join().expect("everyone gets in")).collect();
        drop(flood);
        let recovery = log_in_until(lab, 3, &users[1], Instant::now())[0];
        let figures = Figures {
            each_second,
            sent,
            soon: times.iter().filter(|time| **time <= 5 * SECOND).count(),
            logins: times.len(),
            medians: [alone, times].map(median),
            goodput: during / before,
            grown: memory_after.saturating_sub(memory_before),
            counted: counted(lab),
            remembered,
            recovery,
        };
        figures.print(gateway);
        figures.check(form.long);
        figures.counted
    })
}

#[test]
fn the_address_of_a_session_has_a_larger_share() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    // Six at once, from the address of a session four times as many.
    gateway.configure("limits.handshakes_per_address_s", 1);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let ignored = || gateway.status()["counters"]["handshakes"]["ignored"].as_u64();
    knock(one.namespace(), SocketAddrV4::new(GATEWAY_V4, PORT), 8);
    assert_eq!(ignored(), Some(0), "a campus behind one address");
    knock(&lab.clients[1], SocketAddrV4::new(GATEWAY_V4, PORT), 8);
    assert!(ignored() > Some(0), "a stranger");
}

/// Does something at the end, whatever the end is.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

struct Figures {
    each_second: f64,
    sent: u64,
    soon: usize,
    logins: usize,
    /// Times of honest logins before the flood, and during it.
    medians: [Duration; 2],
    goodput: f64,
    grown: u64,
    /// Bytes to the gateway from forged addresses, and from it to them.
    counted: [u64; 2],
    /// Entries of the kernel's table of connections.
    remembered: f64,
    recovery: Duration,
}

impl Figures {
    fn amplification(&self) -> f64 {
        self.counted[1] as f64 / self.counted[0] as f64
    }

    fn print(&self, gateway: &Gateway<'_>) {
        println!("flood            {:.0} datagrams/s, {} in all", self.each_second, self.sent);
        let [alone, during] = self.medians.map(|median| median.as_secs_f64());
        println!(
            "honest logins    {} of {} within 5 s; median {during:.3} s, before {alone:.3} s",
            self.soon, self.logins
        );
        println!("live goodput     {:.0} % of before", 100.0 * self.goodput);
        println!("gateway memory   +{:.1} MiB", self.grown as f64 / MIB as f64);
        println!(
            "amplification    {:.3} ({} bytes for {})",
            self.amplification(),
            self.counted[1],
            self.counted[0]
        );
        println!("kernel remembers {:.0} connections", self.remembered);
        println!("login afterwards {:.2} s", self.recovery.as_secs_f64());
        println!("handshakes       {}", gateway.status()["counters"]["handshakes"]);
    }

    fn check(&self, long: bool) {
        assert!(self.counted[0] > 1_000_000, "the flood has arrived: {} bytes", self.counted[0]);
        assert!(self.amplification() <= 1.0, "forged addresses get less than they sent");
        assert!(self.grown <= 64 * MIB, "memory grew by {} bytes", self.grown);
        assert!(self.logins > 0, "honest clients got in");
        // By default it would be all of the last 30 s.
        let most = 3.0 * self.each_second + 1_000.0;
        assert!(self.remembered < most, "the kernel remembers {} connections", self.remembered);
        // How fast is a matter of the machine: promised for one that does nothing else.
        if long {
            assert!(self.soon * 100 >= self.logins * 99, "{} of {} logins in 5 s", self.soon, self.logins);
            assert!(self.goodput >= 0.7, "goodput fell to {}", self.goodput);
            assert!(self.recovery <= 2 * SECOND, "{:?} until all is as before", self.recovery);
        }
    }
}

/// Entries of the gateway's table of connections whose time is not over. The kernel removes the
/// others when it needs room, and when the table is read.
fn remembered(lab: &Lab) -> f64 {
    let table = lab.gateway.within(|| fs::read_to_string("/proc/thread-self/net/nf_conntrack"));
    table.expect("the kernel shows its table").lines().count() as f64
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Logs in and out again until `end`, at least once. How long each login took.
fn log_in_until(lab: &Lab, number: usize, user: &Login, end: Instant) -> Vec<Duration> {
    let mut times = Vec::new();
    while times.is_empty() || Instant::now() < end {
        let began = Instant::now();
        let mut client = Client::connect(lab, number, user);
        times.push(began.elapsed());
        client.interrupt();
    }
    times
}

/// A stream of a fixed rate from `server` to `client` through the tunnel, until `over`.
fn stream<'s>(
    scope: &'s thread::Scope<'s, '_>,
    server: &Namespace,
    client: &Namespace,
    received: &'s AtomicU64,
    over: &'s AtomicU64,
) {
    let at = SocketAddr::new(CAMPUS_V4.into(), 0);
    let listener = server.within(|| TcpListener::bind(at)).expect("the campus has this address");
    let to = listener.local_addr().expect("it is bound");
    let mut reader = client.within(|| TcpStream::connect_timeout(&to, 5 * SECOND)).expect("the tunnel is up");
    let (mut writer, _) = listener.accept().expect("the client has connected");
    writer.set_write_timeout(Some(30 * SECOND)).expect("it is a socket");
    reader.set_read_timeout(Some(30 * SECOND)).expect("it is a socket");
    scope.spawn(move || {
        let (began, mut sent) = (Instant::now(), 0);
        let chunk = vec![0; 125_000];
        while over.load(Ordering::Relaxed) == 0 && writer.write_all(&chunk).is_ok() {
            sent += chunk.len() as u64;
            let due = Duration::from_secs_f64(sent as f64 / BYTES_PER_S as f64);
            // Lost time is not made up for.
            match due.checked_sub(began.elapsed()) {
                Some(wait) => thread::sleep(wait),
                None => sent = (began.elapsed().as_secs_f64() * BYTES_PER_S as f64) as u64,
            }
        }
    });
    scope.spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length) = reader.read(&mut buffer) {
            if length == 0 {
                return;
            }
            received.fetch_add(length as u64, Ordering::Relaxed);
        }
    });
}

/// Bytes each second over this many seconds.
fn rate(received: &AtomicU64, seconds: u64) -> f64 {
    let (before, began) = (received.load(Ordering::Relaxed), Instant::now());
    thread::sleep(Duration::from_secs(seconds));
    (received.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64()
}

/// Bytes of memory of the gateway's processes.
fn memory(gateway: &Gateway<'_>) -> u64 {
    let parent = gateway.status()["pid"].as_u64().expect("a process");
    let field = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let processes = fs::read_dir("/proc").expect("there is a /proc").flatten();
    let statuses = processes.filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok());
    let family = statuses
        .filter(|status| field(status, "Pid:") == Some(parent) || field(status, "PPid:") == Some(parent));
    family.filter_map(|status| field(&status, "VmRSS:")).sum::<u64>() * 1_024
}

/// Has the network between count what is forged, and what goes to forged addresses, which leads
/// nowhere.
fn count_on_the_way(lab: &Lab) {
    for key in ["all", "default", &Lab::port(2), &Lab::port(0)] {
        lab.net.sysctl(&format!("net/ipv4/conf/{key}/rp_filter"), "0");
    }
    for key in ["all", crate::lab::UPLINK] {
        lab.gateway.sysctl(&format!("net/ipv4/conf/{key}/rp_filter"), "0");
    }
    lab.net.ip_batch("route add blackhole default\n");
    lab.net.nft(&format!(
        "add table inet tally\n\
         add counter inet tally forged\n\
         add counter inet tally answered\n\
         add chain inet tally pre {{ type filter hook prerouting priority -300; }}\n\
         add rule inet tally pre iifname {} ip saddr != 198.18.0.0/15 counter name forged\n\
         add rule inet tally pre iifname {} ip daddr != 198.18.0.0/15 counter name answered\n",
        Lab::port(2),
        Lab::port(0),
    ));
}

/// Bytes from forged addresses, and to them.
fn counted(lab: &Lab) -> [u64; 2] {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", lab.net.name(), "nft", "-j", "list", "counters"]);
    let listed: Json = serde_json::from_slice(&must(process::run(command)).stdout).expect("nft prints JSON");
    let counters = listed["nftables"].as_array().expect("a list");
    ["forged", "answered"].map(|name| {
        let counter = counters.iter().find(|counter| counter["counter"]["name"] == name);
        counter.and_then(|counter| counter["counter"]["bytes"].as_u64()).expect("it was made")
    })
}
