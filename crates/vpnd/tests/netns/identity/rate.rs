//! Behaviour: each source, and each store, lets in all of a crowd that logs in again and again.
//! `./x logins` does it for longer and prints how many logins a second that are and what each costs
//! the database, with the servers on the same machine.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use vpnd_proto::control::{Code, Message};
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{Family, Leases as _};

use super::{ADDRESS, add_source, beside, configure};
use crate::database::{cluster_with, configure_at};
use crate::database_work::{MEASURED, Meter};
use crate::freeradius::FreeRadius;
use crate::gateway::Gateway;
use crate::lab::Lab;
use crate::slapd::{Slapd, person};
use crate::theft::{Speaker, in_her_box};

/// Clients that log in at the same time, each with its own device and address.
const CROWD: u8 = 8;

/// Least time that each client goes on; it stops when it was let in once.
fn time() -> Duration {
    // `./x logins` sets the variable.
    let seconds = std::env::var("VPND_LOGIN_SECONDS");
    Duration::from_secs(seconds.map_or(1, |text| text.parse().expect("a number of seconds")))
}

#[test]
fn logins_per_second_of_local_users() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = of_one_user(&lab);
    gateway.start();
    measure(&lab, "local, SQLite", "ann", "ann's password");
}

#[test]
fn logins_per_second_of_users_in_a_database() {
    in_database("local, PostgreSQL", false);
}

#[test]
fn logins_per_second_with_a_synchronous_standby() {
    in_database("local, PostgreSQL with a synchronous standby", true);
}

fn in_database(source: &str, has_standby: bool) {
    let Some(lab) = Lab::new(1) else { return };
    let Some(cluster) = cluster_with(&lab, MEASURED) else { return };
    let _standby = has_standby.then(|| cluster.synchronous_standby());
    let (mut gateway, database) = (of_a_crowd(&lab), cluster.database());
    configure_at(&gateway, ADDRESS, &cluster, &database);
    gateway.add_user("ann");
    gateway.start();
    let mut meter = Meter::new(&cluster, &database, &lab.gateway);
    let logins = measure(&lab, source, "ann", "ann's password");
    let (work, _) = meter.since_last();
    println!("  the database for each, with what it does at rest: {}", work.times(1.0 / logins as f64));
    assert!(work.statements > logins as f64, "the logins are there: {work}");
}

#[test]
fn logins_per_second_of_directory_users() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = of_one_user(&lab);
    let slapd = Slapd::start(ADDRESS, |program| beside(&lab, program), &person("ann", "right"));
    let Some(slapd) = slapd else { return };
    configure(&gateway, &slapd, slapd.password_file());
    gateway.start();
    measure(&lab, "ldap", "ann@uni.example", "right");
}

#[test]
fn logins_per_second_of_radius_users() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = of_one_user(&lab);
    let Some(radius) = FreeRadius::start(ADDRESS, |program| beside(&lab, program)) else { return };
    add_source(&gateway, &radius.source(ADDRESS, ""));
    gateway.start();
    measure(&lab, "radius", "ann@guests.example", "right");
}

/// A user with a password can make neither the store nor the audit file grow as fast as they log
/// in.
#[test]
fn logins_with_ever_new_devices_are_limited() {
    const LOGINS: u8 = 100;
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let began = Instant::now();
    let codes = in_her_box(&lab, async || {
        let first = Speaker::new(&ann.profile, 1);
        let mut codes = Vec::new();
        for number in 1..=LOGINS {
            let speaker = first.at(Ipv4Addr::UNSPECIFIED.into(), [number; 32]);
            let mut line = speaker.dial().await;
            let login = speaker.login(&line, "ann");
            codes.push(line.ask(&login).await.map(drop));
        }
        codes
    });
    // One more for each 20 s that this has taken.
    let most = 30 + began.elapsed().as_secs() as usize / 20;
    let let_in = codes.iter().filter(|code| **code != Err(Code::Throttled)).count();
    let store = Sqlite::open(&gateway.file("state").join("vpnd.db")).expect("there is a store");
    let leases = store.leases(Family::V4).expect("it can be read").len();
    println!("{LOGINS} logins with new devices: {let_in} let in, {leases} leases");
    assert!(
        (1..=most).contains(&let_in) && leases <= let_in,
        "{let_in} of {most}, {leases} leases: {codes:?}"
    );
}

/// A gateway where `ann` may have a session from each client.
fn of_one_user(lab: &Lab) -> Gateway<'_> {
    let gateway = of_a_crowd(lab);
    gateway.add_user("ann");
    gateway
}

/// A gateway where a user may have a session from each client.
fn of_a_crowd(lab: &Lab) -> Gateway<'_> {
    let gateway = Gateway::init(lab);
    gateway.configure("limits.max_sessions_per_user", i64::from(2 * CROWD));
    gateway.configure("limits.logins_per_user", 100_000);
    gateway
}

/// A login replaces the session that the device had, so the gateway never has more than one for
/// each client. Returns the number of logins.
fn measure(lab: &Lab, source: &str, user: &str, password: &str) -> usize {
    let client = &lab.clients[0];
    client.ip_batch("route add local 203.0.113.0/24 dev lo\n");
    lab.net.ip_batch("route add 203.0.113.0/24 via 198.18.1.2\n");
    let time = time();
    let profile = lab.path("ann.toml");
    let (outcomes, took) = client.within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let first = Speaker::new(&profile, 1);
            let began = Instant::now();
            let mut crowd = JoinSet::new();
            for number in 1..=CROWD {
                let address = IpAddr::from(Ipv4Addr::new(203, 0, 113, number));
                let speaker = Arc::new(first.at(address, [number; 32]));
                crowd.spawn(again_and_again(speaker, user.to_owned(), password.to_owned(), began + time));
            }
            let results = crowd.join_all().await;
            (results, began.elapsed())
        })
    });
    let mut times: Vec<Duration> = outcomes.iter().flat_map(|(times, _)| times).copied().collect();
    let refused: usize = outcomes.iter().map(|(_, refused)| refused).sum();
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64();
    println!(
        "{source}: {} logins of {CROWD} clients in {:.1} s, {:.0} a second; each {:.3} s (median), {:.3} s (p99); {refused} refused",
        times.len(),
        took.as_secs_f64(),
        times.len() as f64 / took.as_secs_f64(),
        at(50),
        at(99),
    );
    assert!(outcomes.iter().all(|(times, _)| !times.is_empty()), "each client was let in");
    times.len()
}

/// Logs in until then, and until it was let in once; how long each login took, and how many were
/// refused. A busy machine may leave a source no time to answer.
async fn again_and_again(
    speaker: Arc<Speaker>,
    user: String,
    password: String,
    until: Instant,
) -> (Vec<Duration>, usize) {
    let (mut times, mut refused) = (Vec::new(), 0);
    let patience = until + Duration::from_secs(60);
    while Instant::now() < until || (times.is_empty() && Instant::now() < patience) {
        let began = Instant::now();
        let mut line = speaker.dial().await;
        let login = speaker.login_with(&line, &user, &password);
        match line.ask(&login).await {
            Ok(Message::Established(_)) => times.push(began.elapsed()),
            _ => refused += 1,
        }
    }
    (times, refused)
}
