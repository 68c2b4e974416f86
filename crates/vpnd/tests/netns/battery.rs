//! Behaviour: a client that is connected and idle lets its machine sleep: none of its processes and
//! threads wakes up but to keep the way to the gateway open. Over UDP with the most lanes and a
//! kill switch, over TCP, and under the client service.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::client_service::Machine;
use crate::lab::{CAMPUS_V4, Lab};
use crate::over_tcp::{drop_udp, installation};
use crate::traffic::ping_until;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Age of keys at which they are replaced, seconds: after two and a half times that, an idle client
/// has none.
const REKEY_S: i64 = 10;
/// Until what follows a start is over: keys that end, looks at the machine each second, the
/// kernel's own packets on a new link.
const SETTLED: Duration = Duration::from_secs(70);
/// Two pauses between keep-alives and more, unless the environment says otherwise.
const LOOKS_S: u64 = 60;
/// Threads that run within this time are one wake-up of the machine.
const MOMENT: Duration = Duration::from_millis(100);
/// Wake-ups per second.
const MOST: f64 = 0.2;

/// The process and all below it.
fn tree(root: u32) -> Vec<u32> {
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(pid) = tree.get(next).copied() {
        next += 1;
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        tree.extend(
            children.flat_map(|list| {
                list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>()
            }),
        );
    }
    tree
}

/// How often each thread of these processes has gone to sleep, by its name and number.
fn sleeps(root: u32) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    for pid in tree(root) {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
            let count = field("voluntary_ctxt_switches:").parse().unwrap();
            all.push((format!("{} {}", field("Name:"), field("Pid:")), count));
        }
    }
    all
}

#[test]
fn an_idle_client_lets_its_machine_sleep() {
    let Some(lab) = Lab::new(3) else { return };
    let (mut gateway, ann) = installation(&lab);
    gateway.configure("timeouts.rekey_after_s", REKEY_S);
    gateway.terminate();
    gateway.start();
    let (bea, cleo) = (gateway.add_user("bea"), gateway.add_user("cleo"));
    drop_udp(&lab, "ip saddr 198.18.2.2 meta l4proto udp");
    let machine = Machine::new(&lab, &ann);
    machine.up();
    let mut over_tcp = Client::connect(&lab, 2, &bea);
    let mut with_lanes = Client::connect_with(&lab, 3, &cleo, &["--lanes", "16", "--kill-switch"]);
    for client in [&over_tcp, &with_lanes] {
        ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    }
    let ways = [
        ("under the service", machine.id()),
        ("over TCP", over_tcp.process().id()),
        ("sixteen lanes and a kill switch", with_lanes.process().id()),
    ];
    thread::sleep(SETTLED);
    let seconds = std::env::var("VPND_IDLE_SECONDS").map_or(LOOKS_S, |seconds| seconds.parse().unwrap());
    let began = Instant::now();
    let first = ways.map(|(_, pid)| sleeps(pid));
    let (mut last, mut woken) = (first.clone(), [0_u32; 3]);
    while began.elapsed() < Duration::from_secs(seconds) {
        thread::sleep(MOMENT);
        for (place, (_, pid)) in ways.iter().enumerate() {
            let now = sleeps(*pid);
            woken[place] += u32::from(now != last[place]);
            last[place] = now;
        }
    }
    let mut most = 0.0_f64;
    for (place, (way, _)) in ways.iter().enumerate() {
        let rate = f64::from(woken[place]) / began.elapsed().as_secs_f64();
        let threads = last[place].iter().zip(&first[place]);
        let threads = threads.filter(|((_, last), (_, first))| last > first);
        let threads = threads.map(|((thread, last), (_, first))| format!("{thread}: {}", last - first));
        let threads: Vec<_> = threads.collect();
        println!("{way}: {rate:.3} wake-ups a second in {seconds} s; times each thread slept: {threads:?}");
        most = most.max(rate);
    }
    assert!(most <= MOST, "{most:.3} a second, at most {MOST}");
    for client in [&mut over_tcp, &mut with_lanes] {
        client.process().assert_running();
        assert!(!client.process().output().contains("interrupted"), "it is up without keys, too");
    }
}
