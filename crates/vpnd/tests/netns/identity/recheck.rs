//! Behaviour: all who have sessions are asked about again, round after round, and those who were
//! changed in the directory meanwhile, and no others, lose the session or are in the other access
//! profile. `./x recheck-bench` does it with thousands and prints how long a round takes, and what
//! memory the processes need for each session, with slapd on the same machine.
//!
//! Sessions begin by real logins over the control channel, each with its own user and device.
//! Their connections are closed then, as those of clients that are away: sessions that no packet
//! comes from cost as many searches. The re-checks of a gateway are spread over `recheck_s`; here
//! that is one second, less than a round of thousands takes, so one round follows the other.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use toml::Value;
use vpnd_proto::control::Message;

use super::{ADDRESS, beside, configure};
use crate::access_profiles;
use crate::gateway::{Gateway, edit_toml, must};
use crate::lab::Lab;
use crate::slapd::{Slapd, group, person};
use crate::theft::Speaker;

/// Logins at the same time, each from its own address.
const CROWD: usize = 8;
/// Rounds that are measured.
const ROUNDS: u64 = 3;
/// This many are changed in the directory: half of them are gone, half in another group.
const CHANGED: usize = 50;
/// Ticks a second in which Linux counts CPU time for programs.
const USER_HZ: f64 = 100.0;
/// Limit for what a machine in use does with thousands of people.
const LONG: Duration = Duration::from_secs(600);

/// `./x recheck-bench` sets the variable.
fn people() -> usize {
    std::env::var("VPND_RECHECK_PEOPLE").map_or(2 * CHANGED, |text| text.parse().expect("a number of people"))
}

#[test]
fn rounds_of_rechecks_find_each_change_and_leave_all_others_alone() {
    let Some(lab) = Lab::new(1) else { return };
    let (people, mut gateway) = (people(), Gateway::init(&lab));
    let local = gateway.add_user("local");
    let command = |program: &str| beside(&lab, program);
    let Some(slapd) = Slapd::start(ADDRESS, command, &entries(people)) else { return };
    set_up(&gateway, &slapd);
    gateway.start();
    let (began, empty) = (Instant::now(), memory_kib(gateway.process().children()));
    log_in_all(&lab, &local.profile, people);
    assert_eq!(gateway.sessions().len(), people);
    println!("{people} sessions by logins within {:.1} s", began.elapsed().as_secs_f64());
    for (role, kib) in memory_kib(gateway.process().children()) {
        let session_kib = kib.saturating_sub(empty[&role]) as f64 / people as f64;
        println!(
            "  memory (PSS) of {role}: {} KiB before, {kib} KiB after, {session_kib:.1} KiB a session",
            empty[&role]
        );
    }

    set_source(&gateway, "recheck_s", 1);
    must(gateway.upgrade());
    measure_rounds(&gateway.process().children(), &slapd, &command, people);

    let (gone, moved): (Vec<_>, Vec<_>) =
        (0..people).step_by(CHANGED).partition(|number| number % (2 * CHANGED) == 0);
    slapd.modify(&command, ADDRESS, &changes(&gone, &moved));
    let expected = |number: usize| match number {
        number if gone.contains(&number) => None,
        number if moved.contains(&number) => Some("moved"),
        _ => Some("staff"),
    };
    await_profiles(&mut gateway, people, &format!("{} gone, {} moved", gone.len(), moved.len()), expected);

    // Everybody else, too: one change must not cost as much as there are sessions.
    let rest: Vec<usize> = (0..people).filter(|number| expected(*number) == Some("staff")).collect();
    slapd.modify(&command, ADDRESS, &changes(&[], &rest));
    let expected = |number: usize| (!gone.contains(&number)).then_some("moved");
    await_profiles(&mut gateway, people, &format!("{} more moved", rest.len()), expected);
}

pub(super) fn name(number: usize) -> String {
    format!("p{number}")
}

/// All people, who are in one group, and another group with a user who never logs in.
fn entries(people: usize) -> String {
    let names: Vec<String> = (0..people).map(name).collect();
    let members: Vec<&str> = names.iter().map(String::as_str).collect();
    let everybody: String = names.iter().map(|name| person(name, "right")).collect();
    [everybody, person("nobody", "right"), group("staff", &members), group("moved", &["nobody"])].concat()
}

fn changes(gone: &[usize], moved: &[usize]) -> String {
    let gone = gone.iter().map(|number| format!("dn: {}\nchangetype: delete\n\n", entry(*number)));
    let members: String = moved.iter().map(|number| format!("member: {}\n", entry(*number))).collect();
    let joined =
        format!("dn: cn=moved,ou=groups,dc=uni,dc=example\nchangetype: modify\nadd: member\n{members}-\n\n");
    gone.chain([joined]).collect()
}

fn entry(number: usize) -> String {
    format!("uid={},ou=people,dc=uni,dc=example", name(number))
}

fn set_up(gateway: &Gateway<'_>, slapd: &Slapd) {
    configure(gateway, slapd, slapd.password_file());
    set_source(gateway, "recheck_s", 86_400);
    gateway.configure("limits.max_sessions", 100_000);
    gateway.configure("limits.handshakes_per_address_s", 100_000);
    access_profiles::configure(
        gateway,
        "[[profile]]\nname = \"moved\"\ngroups = [\"moved\"]\nroutes = [\"10.201.0.0/24\"]\n\
         [[profile]]\nname = \"staff\"\ngroups = [\"staff\"]\nroutes = [\"10.200.0.0/24\"]\n",
    );
}

pub(super) fn set_source(gateway: &Gateway<'_>, key: &str, value: impl Into<Value>) {
    edit_toml(&gateway.config(), |table| {
        let source = table["source"][0].as_table_mut().expect("it was configured");
        source.insert(key.to_owned(), value.into());
    });
}

/// Logs everybody in, some at a time.
pub(super) fn log_in_all(lab: &Lab, profile: &Path, people: usize) {
    let client = &lab.clients[0];
    client.ip_batch("route add local 203.0.113.0/24 dev lo\n");
    lab.net.ip_batch("route add 203.0.113.0/24 via 198.18.1.2\n");
    client.within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (first, next) = (Arc::new(Speaker::new(profile, 1)), Arc::new(AtomicUsize::new(0)));
            let mut crowd = JoinSet::new();
            for place in 0..CROWD {
                let address = IpAddr::from(Ipv4Addr::new(203, 0, 113, place as u8 + 1));
                let (first, next) = (Arc::clone(&first), Arc::clone(&next));
                crowd.spawn(async move {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= people {
                            return;
                        }
                        log_in(&first, address, number).await;
                    }
                });
            }
            crowd.join_all().await;
        });
    });
}

/// Logs one of them in, with a device of the own. A busy machine may leave the source no time to
/// answer.
async fn log_in(first: &Speaker, address: IpAddr, number: usize) {
    let mut seed = [7; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    let speaker = first.at(address, seed);
    let user = format!("{}@uni.example", name(number));
    let until = Instant::now() + LONG;
    loop {
        let mut line = speaker.dial().await;
        let login = speaker.login_with(&line, &user, "right");
        match line.ask(&login).await {
            Ok(Message::Established(_)) => return,
            other => assert!(Instant::now() < until, "{user} does not get in: {other:?}"),
        }
    }
}

/// Prints how long some rounds take, and the CPU time of the processes that have a part in it.
fn measure_rounds(children: &[u32], slapd: &Slapd, command: &impl Fn(&str) -> Command, people: usize) {
    let searches = || slapd.searches(command, ADDRESS);
    let wait = |count: u64| {
        let until = Instant::now() + LONG;
        while searches() < count {
            assert!(Instant::now() < until, "no round is over in {LONG:?}");
            // Asking more often would take the processor from those who are measured.
            thread::sleep(Duration::from_millis(200));
        }
    };
    // The first one is spread over the second.
    wait(searches() + people as u64);
    let roles: BTreeMap<String, u32> = children.iter().filter_map(|pid| Some((role(*pid)?, *pid))).collect();
    let cpu = || {
        let mut all: Vec<_> = roles.iter().map(|(role, pid)| (role.clone(), cpu_s(*pid))).collect();
        all.push(("slapd".to_owned(), cpu_s(slapd.pid())));
        all
    };
    assert!(roles.contains_key("idp") && roles.contains_key("auth"), "{roles:?}");
    let (began, before, cpu_before) = (Instant::now(), searches(), cpu());
    wait(before + ROUNDS * people as u64);
    let (took, done, cpu_after) = (began.elapsed().as_secs_f64(), searches() - before, cpu());
    let rounds = done as f64 / people as f64;
    println!("a round of {people}: {:.2} s, {:.0} searches a second", took / rounds, done as f64 / took);
    for ((role, before), (_, after)) in cpu_before.iter().zip(cpu_after) {
        let used = after - before;
        println!(
            "  CPU time of {role}: {:.2} s a round, {:.0} % of a core",
            used / rounds,
            100.0 * used / took
        );
    }
}

/// Waits until the sessions are those of the people for whom there is a profile, and in that.
fn await_profiles(
    gateway: &mut Gateway<'_>,
    people: usize,
    what: &str,
    expected: impl Fn(usize) -> Option<&'static str>,
) {
    let worker = gateway.process().children().into_iter().find(|pid| role(*pid).as_deref() == Some("worker"));
    let worker = worker.expect("there is a worker");
    let (began, before) = (Instant::now(), cpu_s(worker));
    let expected: BTreeMap<String, String> = (0..people)
        .filter_map(|number| Some((format!("{}@uni.example", name(number)), expected(number)?.to_owned())))
        .collect();
    let text = |session: &serde_json::Value, key: &str| session[key].as_str().unwrap_or_default().to_owned();
    let is_done = || {
        let sessions = gateway.sessions();
        let found: BTreeMap<String, String> =
            sessions.iter().map(|session| (text(session, "user"), text(session, "profile"))).collect();
        found == expected
    };
    while !is_done() {
        assert!(began.elapsed() < LONG, "not within {LONG:?}: {what}");
        // A list of thousands of sessions is work, too.
        thread::sleep(Duration::from_millis(500));
    }
    println!(
        "{what}: all sessions are as they should be after {:.2} s; CPU time of the worker {:.2} s",
        began.elapsed().as_secs_f64(),
        cpu_s(worker) - before
    );
}

/// Role of a process of the gateway.
fn role(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    words.find(|word| ["worker", "auth", "idp"].contains(&word.as_ref())).map(String::from)
}

/// The memory of the gateway's processes by their roles; what several share counts in parts.
fn memory_kib(children: Vec<u32>) -> BTreeMap<String, u64> {
    let memory = |pid: u32| {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        Some((role(pid)?, line.trim().trim_end_matches(" kB").parse().ok()?))
    };
    children.into_iter().filter_map(memory).collect()
}

/// CPU time that a process has used.
fn cpu_s(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    // The name in parentheses may have spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: Vec<f64> = fields.skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
    ticks.iter().sum::<f64>() / USER_HZ
}
