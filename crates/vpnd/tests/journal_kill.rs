//! A process that changes the machine is killed at many moments; recovery must bring everything
//! back exactly.
//!
//! The program runs itself in three parts: the outermost enters a new network and mount namespace,
//! the driver in there starts a victim over and over, kills it with SIGKILL a little later each
//! time, recovers, and compares links, addresses, routes, rules, firewall, settings and the
//! resolver's file with what they were.
#![allow(
    clippy::unwrap_used,
    reason = "a panic is how this test fails, as in a test of the standard harness"
)]

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use vpnd_journal::{Journal, JournalDirectory, RecoveryOutcome, recover};
use vpnd_sys::change::{Change, LAST_RESORT_METRIC, Layer, TABLE_BASE};
use vpnd_sys::dns::{DnsChange, DnsSettings, DnsSystem};
use vpnd_sys::netlink::{
    AddressSpec, Family, HostRoutes, MAIN_TABLE, NO_TABLE, Netlink, RouteSpec, RouteTarget, RuleMatch,
    RuleSpec,
};
use vpnd_sys::nft::{GatewayRules, GuardRules, MarkMatch, Outgoing, Services, Transit};
use vpnd_sys::sysctl;
use vpnd_sys::tun::{Tun, TunOffloads, TunSpec};

const PART: &str = "VPND_JOURNAL_KILL_PART";
const KILLS: u32 = 40;
const TUNNEL: &str = "vpkill0";

fn main() -> ExitCode {
    match std::env::var(PART).as_deref() {
        Ok("victim") => block_on(victim(Path::new(&std::env::args().nth(1).expect("the directory")))),
        Ok("driver") => block_on(driver()),
        _ if asked_for() => return enter_namespace(),
        _ => {}
    }
    ExitCode::SUCCESS
}

/// Whether the words after `cargo test --` choose this test, as they do with the standard harness.
fn asked_for() -> bool {
    let mut filters = std::env::args().skip(1).filter(|word| !word.starts_with('-')).peekable();
    filters.peek().is_none() || filters.any(|filter| "journal_kill".contains(&filter))
}

fn block_on(part: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(part);
}

/// Runs the driver where it can't harm the host.
fn enter_namespace() -> ExitCode {
    let may = Command::new("unshare").args(["--net", "--mount", "true"]).stderr(Stdio::null()).status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: journal_kill needs root for network namespaces");
        return if std::env::var_os("CI").is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let driver = Command::new("unshare")
        .args(["--net", "--mount", "--"])
        .arg(std::env::current_exe().unwrap())
        .env(PART, "driver")
        .status()
        .unwrap();
    if driver.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The machine that the victim finds: a network with a default route, and a resolver's file that is
/// a link.
fn furnish(directory: &Path) {
    for command in [
        "ip link set lo up",
        "ip link add lan0 type veth peer name lan1",
        "sysctl -qw net.ipv6.conf.lan0.accept_ra=1 net.ipv6.conf.lan0.accept_dad=0 net.ipv6.conf.lan1.accept_dad=0",
        "ip link set lan1 up",
        "ip link set lan0 up",
        "ip addr add 192.0.2.2/24 dev lan0",
        "ip route add default via 192.0.2.1",
        "ip rule add priority 700 from 192.0.2.77 lookup main",
        "nft add table inet bystander",
    ] {
        output(command);
    }
    // The resolver's configuration of this mount namespace.
    let etc = directory.join("etc");
    fs::create_dir(&etc).unwrap();
    for name in ["passwd", "group", "nsswitch.conf", "hosts", "ld.so.cache", "protocols"] {
        let _ = fs::copy(Path::new("/etc").join(name), etc.join(name));
    }
    output(&format!("mount --bind {} /etc", etc.display()));
    fs::write("/etc/stub-resolv.conf", "nameserver 192.0.2.53\n").unwrap();
    std::os::unix::fs::symlink("stub-resolv.conf", "/etc/resolv.conf").unwrap();
}

async fn driver() {
    let directory = tempfile::tempdir().unwrap();
    furnish(directory.path());
    let netlink = Netlink::open().unwrap();
    wait_until_quiet(directory.path());
    let before = machine(directory.path());
    let whole = time_of_all_changes(directory.path());
    undo_what_is_left(directory.path(), &netlink, &before).await;
    let mut interrupted = 0;
    for kill in 0..KILLS {
        let mut child = start_victim(directory.path());
        std::thread::sleep(whole * kill / KILLS);
        child.kill().unwrap();
        let mut rest = String::new();
        child.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
        child.wait().unwrap();
        interrupted += u32::from(!rest.contains("all done") && machine(directory.path()) != before);
        undo_what_is_left(directory.path(), &netlink, &before).await;
    }
    assert!(interrupted >= 5, "only {interrupted} of {KILLS} kills came between first and last change");
    println!("journal_kill: {KILLS} kills, {interrupted} in the middle of the changes: all restored");
}

fn journals(directory: &Path) -> JournalDirectory {
    JournalDirectory::create(&directory.join("state")).unwrap()
}

async fn undo_what_is_left(directory: &Path, netlink: &Netlink, before: &str) {
    for recovered in recover(&journals(directory), netlink).await.unwrap() {
        match recovered.outcome {
            RecoveryOutcome::Undone { report, damaged_lines: 0 } => {
                assert!(report.is_complete() && report.not_ours.is_empty(), "{report:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(machine(directory), before, "the machine is as it was");
    assert_eq!(fs::read_dir(directory.join("state")).unwrap().count(), 0, "no journal is left");
}

/// Lets a victim finish and measures how long its changes take.
fn time_of_all_changes(directory: &Path) -> Duration {
    let mut child = start_victim(directory);
    let start = Instant::now();
    assert_eq!(next_line(&mut child), "all done\n");
    let whole = start.elapsed();
    child.kill().unwrap();
    child.wait().unwrap();
    whole
}

/// Starts a victim and waits until it is about to make its first change.
fn start_victim(directory: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg(directory)
        .env(PART, "victim")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(next_line(&mut child), "starting\n");
    child
}

/// The next line that a victim prints, read byte by byte so that nothing after it is taken away.
fn next_line(child: &mut Child) -> String {
    let stdout = child.stdout.as_mut().unwrap();
    let mut line = String::new();
    while !line.ends_with('\n') {
        let mut byte = [0];
        stdout.read_exact(&mut byte).expect("the victim lives until it is killed");
        line.push(char::from(byte[0]));
    }
    line
}

/// Makes every kind of change, as client and gateway do, and waits to be killed.
async fn victim(directory: &Path) {
    let netlink = Netlink::open().unwrap();
    let mut journal = Journal::create(&journals(directory)).unwrap();
    println!("starting");
    let tun = Tun::open(&TunSpec {
        name: TUNNEL.to_owned(),
        mtu: 1380,
        queues: 2,
        tx_queue_len: 500,
        offloads: TunOffloads::ALL,
    })
    .unwrap();
    for change in changes(directory, tun.index()) {
        journal.apply(&netlink, change).await.unwrap();
    }
    println!("all done");
    std::thread::sleep(Duration::from_secs(60));
    drop(tun);
}

fn changes(directory: &Path, index: u32) -> Vec<Change> {
    let mut changes = vec![Change::LinkUp { interface: TUNNEL.to_owned() }];
    changes.extend(["10.8.0.2/32", "fd00:8::2/128"].map(|text| {
        let (interface, address) = (TUNNEL.to_owned(), text.parse().unwrap());
        Change::Address(AddressSpec { interface, index: Some(index), address })
    }));
    let tunnel = || RouteTarget::Interface(TUNNEL.to_owned());
    for (destination, target) in [
        ("0.0.0.0/0", tunnel()),
        ("172.20.0.0/16", tunnel()),
        ("fd00:9::/48", tunnel()),
        ("::/0", RouteTarget::Unreachable),
        ("192.168.7.0/24", RouteTarget::Throw),
        ("fd00:7::/64", RouteTarget::Throw),
    ] {
        let metric = (target != tunnel()).then_some(LAST_RESORT_METRIC);
        let destination = destination.parse().unwrap();
        changes.push(Change::Route(RouteSpec {
            destination,
            target,
            source: None,
            table: TABLE_BASE + index,
            metric,
        }));
    }
    let layer = Layer::all().next().expect("there are some");
    let (mark, mask) = layer.passed_over();
    for family in [Family::V4, Family::V6] {
        for (rule, matches, table) in [
            (Layer::LOOKUP_RULE, RuleMatch::User(64_123), MAIN_TABLE),
            (Layer::REFUSAL_RULE, RuleMatch::User(64_123), NO_TABLE),
            (Layer::TUNNEL_RULE, RuleMatch::NotMarked { mark, mask }, TABLE_BASE + index),
        ] {
            let priority = layer.priority(rule);
            changes.push(Change::Rule(RuleSpec { family, priority, matches, table }));
        }
    }
    changes.extend(dns_and_firewall(directory, index));
    changes.push(Change::HostRoutes(HostRoutes { interface: TUNNEL.to_owned(), table: 5_118 }));
    changes
}

fn dns_and_firewall(directory: &Path, index: u32) -> Vec<Change> {
    let settings = DnsSettings {
        interface: TUNNEL.to_owned(),
        index: Some(index),
        servers: vec!["10.8.0.1".parse().unwrap()],
        search: vec!["campus.example".to_owned()],
        all_names: true,
    };
    let system = DnsSystem { resolved_runtime: directory.join("none"), ..DnsSystem::default() };
    let dns = DnsChange::plan(&settings, &system, &[]).unwrap();
    let mut changes: Vec<Change> = dns.into_iter().map(Change::Dns).collect();
    changes.extend(sysctl::forwarding(true, true).unwrap().changes.into_iter().map(Change::Sysctl));
    changes.push(Change::Firewall(GatewayRules {
        blocks: None,
        tunnel: TUNNEL.to_owned(),
        pools: vec!["10.8.0.0/24".parse().unwrap()],
        masquerade: true,
        outgoing: Outgoing::AnyButTunnel,
        inbound: false,
        resumed: true,
        campus: Vec::new(),
        own: vec!["10.8.0.1".parse().unwrap()],
        services: Services::Dns(vec!["10.8.0.1".parse().unwrap()]),
        pages: None,
        outer_port: None,
        transit_v4: Transit::Dropped { except: vec!["lan0".to_owned()] },
        transit_v6: Transit::Untouched,
        connections: None,
        entrances: None,
    }));
    changes.push(Change::Guard(GuardRules {
        tunnel: TUNNEL.to_owned(),
        addresses: vec!["10.8.0.1".parse().unwrap()],
        returning: None,
        excluded: Some(MarkMatch { mark: 0x7670_0001, mask: 0xFFFF_0001 }),
        closes_names: true,
    }));
    changes
}

/// Everything that a victim changes, as text.
fn machine(directory: &Path) -> String {
    let mut state: String = [
        "ip -j link",
        "ip -j addr",
        "ip -j route show table all",
        "ip -j -6 route show table all",
        "ip -j rule",
        "ip -j -6 rule",
        "nft list ruleset",
    ]
    .map(output)
    .join("\n");
    state += &settings();
    let mut entries: Vec<_> =
        fs::read_dir(directory.join("etc")).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in &entries {
        let link = fs::read_link(path).unwrap_or_default();
        state += &format!("\n{} -> {} {:?}", path.display(), link.display(), fs::read_to_string(path));
    }
    state
}

fn settings() -> String {
    let mut text = String::new();
    for version in ["ipv4", "ipv6"] {
        for interface in ["all", "default", "lo", "lan0", "lan1"] {
            for name in ["forwarding", "accept_ra", "accept_redirects"] {
                let path = format!("/proc/sys/net/{version}/conf/{interface}/{name}");
                text += &format!("{path} {:?}\n", fs::read_to_string(&path).ok());
            }
        }
    }
    text
}

/// The kernel gives links their own addresses and routes a moment after they come up.
fn wait_until_quiet(directory: &Path) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut last = machine(directory);
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_millis(500) {
        assert!(Instant::now() < deadline, "the machine does not settle");
        std::thread::sleep(Duration::from_millis(50));
        let now = machine(directory);
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

fn output(command: &str) -> String {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
