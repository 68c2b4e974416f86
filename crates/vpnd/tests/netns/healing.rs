//! Behaviour in figures: how many logins a bad network costs, and how soon traffic flows again
//! after a new address or an outage of the network.
//!
//! `./x heal` runs the same for long and holds the figures against what is promised:
//! `VPND_HEAL_LOGINS`, `VPND_HEAL_MOVES` and `VPND_HEAL_OUTAGES` say how many of each.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::{self, Client};
use crate::gateway::{Gateway, Login};
use crate::lab::{CAMPUS_V4, Lab};
use crate::process::Process;
use crate::relay::PORT;
use crate::traffic::{ping, trickle};

const SECOND: Duration = Duration::from_secs(1);
/// Limit for a login while three datagrams of ten are lost, each way.
const LOGIN_LIMIT: Duration = Duration::from_secs(60);
/// Machines of CI are slow and busy: this long may anything take there.
const LENIENT: Duration = Duration::from_secs(15);
/// Limit of the long form.
const MOVE_LIMIT: Duration = SECOND;
const OUTAGE_LIMIT: Duration = Duration::from_secs(2);

/// Number of repetitions, and whether the figures count.
pub(crate) struct Form {
    pub(crate) times: usize,
    pub(crate) long: bool,
}

impl Form {
    pub(crate) fn of_environment(name: &str, default: usize) -> Self {
        match std::env::var(name) {
            Ok(text) => Self { times: text.parse().expect("a number"), long: true },
            Err(_) => Self { times: default, long: false },
        }
    }

    pub(crate) fn limit(&self, promised: Duration) -> Duration {
        if self.long { promised } else { LENIENT }
    }
}

#[test]
fn logins_succeed_with_thirty_percent_loss_each_way() {
    const AT_ONCE: usize = 8;
    let form = Form::of_environment("VPND_HEAL_LOGINS", 4);
    let at_once = AT_ONCE.min(form.times);
    let Some(lab) = Lab::new(at_once as u8) else { return };
    lab.net.nft(&format!(
        "add table ip lossy\n\
         add chain ip lossy forward {{ type filter hook forward priority 0; }}\n\
         add rule ip lossy forward udp dport {PORT} numgen random mod 10 < 3 counter drop\n\
         add rule ip lossy forward udp sport {PORT} numgen random mod 10 < 3 counter drop\n",
    ));
    let mut gateway = Gateway::init(&lab);
    let users: Vec<Login> = (0..at_once).map(|n| gateway.add_user(&format!("user{n}"))).collect();
    gateway.start();
    let begun = AtomicUsize::new(0);
    let mut times: Vec<Duration> = thread::scope(|scope| {
        let threads = users.iter().zip(1..).map(|(user, number)| {
            let (lab, begun) = (&lab, &begun);
            scope.spawn(move || {
                let next = || begun.fetch_add(1, Ordering::Relaxed) < form.times;
                std::iter::from_fn(|| next().then(|| log_in_and_out(lab, number, user))).collect::<Vec<_>>()
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("everyone gets in")).collect()
    });
    report("logins", &mut times);
    assert_eq!(times.len(), form.times);
}

/// Duration of a login. The client's next connection is a login, too, for what is lost can't be
/// asked for again.
fn log_in_and_out(lab: &Lab, number: usize, user: &Login) -> Duration {
    let begun = Instant::now();
    let command = client::command(lab, number, user, &["--no-dns"]);
    let mut process = Process::start(lab, &format!("client{number}"), command);
    while !process.output().contains("connected") {
        process.assert_running();
        assert!(begun.elapsed() < LOGIN_LIMIT, "client {number}: {}", process.output());
        thread::sleep(Duration::from_millis(20));
    }
    let time = begun.elapsed();
    process.signal(Signal::INT);
    let status = process.wait(LENIENT);
    assert!(status.success(), "{status}:\n{}", process.output());
    time
}

#[test]
fn new_addresses_under_traffic() {
    let form = Form::of_environment("VPND_HEAL_MOVES", 3);
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, one) = Client::alone(&lab);
    let inner = one.v4();
    let mut times = Vec::new();
    let all = u32::try_from(form.times).expect("not that many") * SECOND;
    thread::scope(|scope| {
        scope.spawn(|| trickle(one.namespace(), &lab.campus, CAMPUS_V4.into(), all, 4 * LENIENT));
        for number in 0..form.times {
            thread::sleep(SECOND * 3 / 4);
            let (from, to) = if number % 2 == 0 { (2, 77) } else { (77, 2) };
            let moved = Instant::now();
            one.change_address(from, to);
            times.push(until_answered(&one, moved));
        }
    });
    assert_eq!(one.v4(), inner, "the inner address stays");
    report("new addresses", &mut times);
    assert!(percentile(&times, 99) <= form.limit(MOVE_LIMIT), "{times:?}");
}

#[test]
fn traffic_resumes_after_a_network_outage() {
    let form = Form::of_environment("VPND_HEAL_OUTAGES", 1);
    let length = if form.long { 60 * SECOND } else { 5 * SECOND };
    // The next outage finds younger or older keys.
    let between = |number| if form.long { (20 + 23 * number % 100) * SECOND } else { Duration::ZERO };
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, one) = Client::alone(&lab);
    let mut times = Vec::new();
    for number in 0..u32::try_from(form.times).expect("not that many") {
        work(&one, between(number));
        lab.net.nft(&format!(
            "add table inet hole\n\
             add chain inet hole forward {{ type filter hook forward priority 0; }}\n\
             add rule inet hole forward udp dport {PORT} drop\n\
             add rule inet hole forward udp sport {PORT} drop\n",
        ));
        assert_eq!(work(&one, length), 0, "nothing comes through");
        lab.net.nft("delete table inet hole\n");
        times.push(until_answered(&one, Instant::now()));
    }
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 1, "nobody had to log in again");
    report(&format!("outages of {length:?}"), &mut times);
    assert!(times.iter().all(|time| *time <= form.limit(OUTAGE_LIMIT)), "{times:?}");
}

/// A user works and goes on trying; returns the number of answers.
fn work(client: &Client<'_>, duration: Duration) -> usize {
    let end = Instant::now() + duration;
    let mut answers = 0;
    while Instant::now() < end {
        answers += usize::from(ping(client.namespace(), CAMPUS_V4.into(), 56, SECOND / 4));
        thread::sleep(SECOND / 20);
    }
    answers
}

/// Time from `since` to the first answered ping.
pub(crate) fn until_answered(client: &Client<'_>, since: Instant) -> Duration {
    while !ping(client.namespace(), CAMPUS_V4.into(), 56, Duration::from_millis(50)) {
        assert!(since.elapsed() < 4 * LENIENT, "no answer within {:?}", 4 * LENIENT);
    }
    since.elapsed()
}

/// The smallest of these sorted times that this many of a hundred don't exceed.
pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent).div_ceil(100) - 1]
}

pub(crate) fn report(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let [median, p99] = [50, 99].map(|percent| percentile(times, percent));
    println!(
        "{} {what}: median {median:.2?}, p99 {p99:.2?}, most {:.2?}",
        times.len(),
        percentile(times, 100)
    );
}
