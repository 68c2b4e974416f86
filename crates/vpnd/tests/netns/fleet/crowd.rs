//! Behaviour: all clients of a gateway that is killed or drained go on at two others, and none logs
//! in. New keys cost the database something, sessions at rest nothing. `./x fleet-move` does it
//! with a thousand clients, and prints for how long they are without traffic and what the database
//! does.
//!
//! ```text
//!                        ┌── gw1 ──10.200.0.0/24──┐
//!   clients ──── net ────┼── gw2 ──10.201.0.0/24──┼── campus, and its router
//!           (PostgreSQL) └── gw3 ──10.202.0.0/24──┘
//! ```
//!
//! The clients are sessions of one thread (`vpnd_swarm`), which ping the campus from addresses of
//! eight networks. BIRD announces them, as docs/FLEET.md has it.

use std::net::Ipv4Addr;
use std::sync::mpsc::{self, Receiver};

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use vpnd_swarm::message::{Command as Order, Credentials, Job, Report};
use vpnd_swarm::now_ns;
use vpnd_swarm::tally::{Percentiles, Tally};

use super::*;
use crate::database_work::{MEASURED, Meter};

const PORT: u16 = 4_433;
const THIRD_GATEWAY: &str = "198.18.3.2";
/// Sessions of one user at most.
const OF_A_USER: u32 = 100;
/// Logins under way at once.
const AT_ONCE: u32 = 64;
/// The longest that a session takes to log in or to move.
const EACH: Duration = Duration::from_millis(500);
/// Statements a second of three gateways whose sessions ask for nothing: docs/FLEET.md has 162.
const AT_REST: f64 = 200.0;
/// Time for which they are watched before anything happens.
const CALM: Duration = Duration::from_secs(3);

/// `./x fleet-move` sets these variables.
fn number(variable: &str, usual: u32) -> u32 {
    std::env::var(variable).map_or(usual, |text| text.parse().expect("a number"))
}

fn clients() -> u32 {
    number("VPND_FLEET_CLIENTS", 20)
}

/// A fleet of three gateways and its clients, who are all at the first one.
struct Crowd<'l> {
    fleet: Fleet<'l>,
    _third: Gateway<'l>,
    _routers: Vec<Process>,
    count: u32,
    orders: UnboundedSender<Order>,
    reports: Receiver<Report>,
}

impl<'l> Crowd<'l> {
    /// Starts the gateways, whose clients renew their keys after this time, and has all log in.
    fn new(lab: &'l Lab, rekey_after_s: u32) -> Option<Self> {
        let cluster = cluster_by(lab, &[], MEASURED)?;
        let (database, count) = (cluster.database(), clients());
        let settings = [
            ("timeouts.rekey_after_s", rekey_after_s.into()),
            ("limits.max_sessions", i64::from(2 * count + 100).into()),
            ("limits.max_sessions_per_user", i64::from(2 * OF_A_USER).into()),
            ("limits.logins_per_user", 100_000.into()),
        ];
        let mut fleet = Fleet::on(lab, cluster, database, &settings);
        let mut third = another(lab, &fleet.first, 2);
        join(&third, "gw3", (&fleet.cluster, &fleet.database), &settings);
        link_to_campus(lab, 2, "third0");
        let routers = bird::start_all(lab, 3);
        let users = (0..count.div_ceil(OF_A_USER)).map(|number| format!("crowd{number}"));
        let users: Vec<String> = users.inspect(|name| drop(fleet.first.add_user(name))).collect();
        fleet.start();
        third.start();
        eventually("all three are known", LIMIT, || {
            let known = gateways(&fleet.first);
            (known.len() == 3 && known.values().all(|gateway| gateway["alive"] == true)).then_some(())
        });
        let began = now_ns();
        let (orders, reports) = hold(lab, &fleet, users, count);
        let crowd = Self { fleet, _third: third, _routers: routers, count, orders, reports };
        let mut logins = Tally::new(began);
        crowd.until("all are connected", &mut logins, |tally| tally.up() == count);
        let storm = logins.storm();
        assert_eq!((storm.logins, crowd.at("gw1")), (count, count), "{storm:?}");
        Some(crowd)
    }

    /// Counts reports until it is `done`; the times at which sessions got new keys.
    fn until(&self, what: &str, tally: &mut Tally, mut done: impl FnMut(&Tally) -> bool) -> Vec<u64> {
        let (deadline, mut ups) = (Instant::now() + LIMIT + EACH * self.count, Vec::new());
        while !done(tally) {
            let report = self.reports.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            let report = report.unwrap_or_else(|error| panic!("{what}: {error}: {:?}", tally.storm()));
            if let Report::Up { at_ns, .. } = &report {
                ups.push(*at_ns);
            }
            tally.note(report);
        }
        ups
    }

    /// Counts reports for this time.
    fn wait(&self, time: Duration, tally: &mut Tally) {
        let deadline = Instant::now() + time;
        while let Ok(report) = self.reports.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            tally.note(report);
        }
    }

    fn order(&self, order: Order) {
        self.orders.send(order).expect("the sessions' thread runs");
    }

    /// The sessions that are at this gateway, by the database.
    fn at(&self, name: &str) -> u32 {
        let of_gateway = "FROM vpnd.carriers JOIN vpnd.holder USING (gateway) WHERE name =";
        let sql = format!("SELECT count(*) {of_gateway} '{name}'");
        self.fleet.cluster.sql(&self.fleet.database, &sql).parse().expect("a number")
    }

    /// Watches this number of sessions from now on. Returns the longest time between two answers of
    /// each that was watched until now, in milliseconds.
    fn watch(&self, next: u32) -> Vec<f64> {
        self.order(Order::Watch(next));
        loop {
            match self.reports.recv_timeout(LIMIT).expect("the sessions' thread answers") {
                Report::Watched { gaps_ns, .. } => {
                    return gaps_ns.into_iter().map(|gap_ns| gap_ns as f64 / 1e6).collect();
                }
                Report::GaveUp { reason, .. } => panic!("a client gave up: {reason}"),
                _ => {}
            }
        }
    }
}

/// Has a thread hold the sessions, by orders, and report.
fn hold(
    lab: &Lab,
    fleet: &Fleet<'_>,
    users: Vec<String>,
    count: u32,
) -> (UnboundedSender<Order>, Receiver<Report>) {
    let place = &lab.clients[0];
    place.ip_batch("route add local 10.99.0.0/16 dev lo\n");
    lab.net.ip_batch("route add 10.99.0.0/16 via 198.18.1.2\n");
    let at = |address: &str| SocketAddr::new(address.parse().unwrap(), PORT);
    let job = Job {
        gateway: at(&GATEWAY_V4.to_string()),
        others: vec![at(SECOND_GATEWAY), at(THIRD_GATEWAY)],
        server_name: GATEWAY_V4.to_string(),
        ca_pem: fs::read_to_string(fleet.first.file("ca.pem")).unwrap(),
        first: 0,
        count,
        at_once: AT_ONCE,
        users: users
            .into_iter()
            .map(|user| Credentials { password: format!("{user}'s password"), user })
            .collect(),
        sources: (0..8).map(|network| Ipv4Addr::new(10, 99, network, 1).into()).collect(),
        soak: None,
        own_sockets: false,
        campus: None,
        far: Some(CAMPUS_V4),
    };
    let ((orders, their_orders), (sender, reports)) = (unbounded_channel(), mpsc::channel());
    let place = place.handle();
    thread::spawn(move || {
        place.enter();
        let report = |reports: &[Report]| reports.iter().for_each(|report| drop(sender.send(report.clone())));
        vpnd_swarm::hold(job, their_orders, report).unwrap();
    });
    (orders, reports)
}

/// Has the first gateway stop, by `leave`, and all its clients go on at the others.
fn all_go_on(how: &str, leave: impl FnOnce(&mut Gateway<'_>)) {
    let Some(lab) = Lab::new(3) else { return };
    let Some(mut crowd) = Crowd::new(&lab, 120) else { return };
    let count = crowd.count;
    crowd.order(Order::Verify(count));
    crowd.until("packets pass", &mut Tally::new(0), |tally| tally.answered() == count);
    crowd.order(Order::Watch(count));
    crowd.wait(CALM, &mut Tally::new(0));
    let before = Percentiles::of(crowd.watch(count));

    let began = now_ns();
    leave(&mut crowd.fleet.first);
    let mut tally = Tally::new(began);
    let mut ups = crowd.until("all go on", &mut tally, |tally| tally.up() == count);
    // Those who were told late to leave may be on their way yet.
    crowd.wait(2 * SECOND, &mut tally);
    let gaps = Percentiles::of(crowd.watch(0));
    crowd.order(Order::Verify(count));
    crowd.until("packets pass again", &mut tally, |tally| tally.answered() == count);
    let storm = tally.storm();
    ups.retain(|at_ns| *at_ns >= began);
    ups.sort_unstable();
    let seconds = (ups[ups.len() - 1] - ups[0]).max(1) as f64 / 1e9;
    let shares = ["gw1", "gw2", "gw3"].map(|name| crowd.at(name));
    println!("{count} clients, time without traffic | median | p99 | longest");
    for (when, gaps) in [("before", before), (how, gaps)] {
        let [p50, p99, max] = [gaps.p50, gaps.p99, gaps.max].map(|ms| ms / 1e3);
        println!("{when} | {p50:.2} s | {p99:.2} s | {max:.2} s");
    }
    let rate = ups.len() as f64 / seconds;
    println!("  {} attaches, {} logins, {rate:.0} a second", storm.attaches, storm.logins);
    println!("  sessions at gw1, gw2, gw3: {shares:?}");
    println!("  new keys in each second: {:?}; attempts that failed: {:?}", storm.timeline, storm.failures);
    assert_eq!((shares[0], shares[1] + shares[2]), (0, count), "they are at the others");
    assert!(shares[1] > 0 && shares[2] > 0, "at both of them: {shares:?}");
    assert_eq!(storm.logins, 0, "all keep their sessions: {storm:?}");
}

#[test]
fn all_clients_of_a_killed_gateway_continue_at_two_others() {
    all_go_on("killed", |gateway| gateway.process().signal_all(Signal::KILL));
}

#[test]
fn all_clients_of_a_drained_gateway_continue_at_two_others() {
    all_go_on("drained", |gateway| drop(drain(gateway, &["--fleet-safe", "--no-wait"])));
}

#[test]
fn new_keys_cost_the_database_something_and_sessions_at_rest_nothing() {
    let seconds = number("VPND_FLEET_SECONDS", 3).min(120);
    let Some(lab) = Lab::new(3) else { return };
    let Some(crowd) = Crowd::new(&lab, seconds) else { return };
    let (count, window) = (f64::from(crowd.count), Duration::from_secs(seconds.into()));
    // Until what the logins have left to be written is there.
    crowd.wait(2 * SECOND, &mut Tally::new(0));
    let mut meter = Meter::new(&crowd.fleet.cluster, &crowd.fleet.database, &lab.net);
    let mut resting = Tally::new(now_ns());
    crowd.wait(window, &mut resting);
    let (rest, took) = meter.since_last();
    assert_eq!(resting.storm().attaches, 0, "who sends nothing needs no new keys");
    let rest = rest.times(1.0 / took.as_secs_f64());
    println!("{count} sessions at rest, three gateways: each second {rest}");

    // All have old keys now, and renew them at once; then each does when its own are old.
    crowd.order(Order::Talk(crowd.count));
    crowd.wait(window, &mut Tally::new(0));
    meter.since_last();
    let mut tally = Tally::new(now_ns());
    crowd.wait(window, &mut tally);
    let (busy, took) = meter.since_last();
    let renewed = f64::from(tally.storm().attaches);
    let renewal = busy.plus(rest.times(-took.as_secs_f64())).times(1.0 / renewed);
    println!("{renewed} times new keys in {seconds} s: each time {renewal}");
    let hour = rest.times(3_600.0 / count);
    println!("a session-hour at rest: {hour}");
    println!("a session-hour with new keys each 120 s: {}", hour.plus(renewal.times(30.0)));
    assert!(rest.statements < AT_REST, "they ask for nothing: {rest}");
    assert!(renewed >= count / 2.0 && renewal.statements >= 1.0, "tokens are kept: {renewed} {renewal}");
}
