//! Behaviour: a gateway whose users are in a PostgreSQL database. Sessions go on while the database
//! is away, logins are refused with the reason; a gateway's own end and upgrade never lock it out,
//! another gateway is. The server is a real one, reached over TCP with TLS.
//!
//! ```text
//! client1..3 ── internet ── gateway (vpnd, PostgreSQL on 127.0.0.1) ── campus
//! ```

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use vpnd_store::postgres::testing::{Cluster, PASSWORD, ROLE};

use crate::client::{self, Client};
use crate::gateway::{Gateway, must, strings, write_secret};
use crate::held_store::next_epochs;
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process::{self, Process};
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
/// Limit for what takes a moment, on a machine that is slow and busy.
const LIMIT: Duration = Duration::from_secs(60);

/// A server in the gateway's box.
fn cluster(lab: &Lab) -> Option<Cluster> {
    cluster_with(lab, "")
}

/// A server with more settings in the gateway's box.
pub(crate) fn cluster_with(lab: &Lab, settings: &str) -> Option<Cluster> {
    let name = lab.gateway.name().to_owned();
    let beside = move |program: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &name, program]);
        command
    };
    Cluster::start("127.0.0.1", beside, settings)
}

/// Has a gateway keep its users there.
fn configure(gateway: &Gateway<'_>, cluster: &Cluster, database: &str) {
    configure_at(gateway, "127.0.0.1", cluster, database);
}

/// Configures a server at this address.
pub(crate) fn configure_at(gateway: &Gateway<'_>, address: &str, cluster: &Cluster, database: &str) {
    write_secret(&gateway.file("database-password"), &format!("{PASSWORD}\n"));
    fs::copy(cluster.ca(), gateway.file("database-ca.pem")).expect("the laboratory has room");
    gateway.configure("store.engine", "postgres");
    gateway.configure("store.hosts", strings(&[&format!("{address}:{}", cluster.port)]));
    gateway.configure("store.database", database);
    gateway.configure("store.user", ROLE);
    gateway.configure("store.password_file", "database-password");
    gateway.configure("store.ca", "database-ca.pem");
}

fn output(command: Command) -> (bool, String) {
    let output = process::run(command);
    (output.status.success(), process::text(&output))
}

#[test]
fn sessions_continue_while_the_database_is_unreachable() {
    let Some(lab) = Lab::new(2) else { return };
    let Some(mut cluster) = cluster(&lab) else { return };
    let mut gateway = Gateway::init(&lab);
    configure(&gateway, &cluster, &cluster.database());
    gateway.configure("timeouts.rekey_after_s", 1);
    let logins = ["ann", "bob"].map(|name| gateway.add_user(name));
    must(gateway.check());
    gateway.start();
    let one = Client::connect(&lab, 1, &logins[0]);
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    println!("there: new epochs after {:.1?}", next_epochs(&gateway, &one, 2));

    // It is needed when the database is back.
    cluster.sql("postgres", &format!("ALTER ROLE {ROLE} PASSWORD 'another one'"));
    write_secret(&gateway.file("database-password"), "another one\n");
    cluster.stop(true);
    let two = Process::start(&lab, "client2", client::command(&lab, 2, &logins[1], &[]));
    println!("away: new epochs after {:.1?}", next_epochs(&gateway, &one, 4));
    eventually("a login learns why", LIMIT, || {
        two.output().contains("the gateway's user database can't be reached").then_some(())
    });
    one.change_address(2, 77);
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    let (is_good, said) = output(gateway.user(&["list"]));
    assert!(!is_good && said.contains("can't be reached") && said.contains("127.0.0.1"), "{said}");
    let checked = gateway.check();
    let checked = process::text(&checked);
    assert!(checked.contains("the user database") && checked.contains("can't be reached"), "{checked}");

    cluster.restart();
    let returned = Instant::now();
    eventually("a command works again", LIMIT, || output(gateway.user(&["list"])).0.then_some(()));
    eventually("the login goes through", LIMIT, || (gateway.sessions().len() == 2).then_some(()));
    println!("back: the login is through after {:.1?}", returned.elapsed());
    println!("back: new epochs after {:.1?}", next_epochs(&gateway, &one, 2));
    two.signal(rustix::process::Signal::INT);
}

#[test]
fn a_failover_that_lost_a_session_ends_it_and_no_other() {
    let Some(lab) = Lab::new(2) else { return };
    let Some(mut primary) = cluster(&lab) else { return };
    let standby = primary.standby();
    let mut gateway = Gateway::init(&lab);
    configure(&gateway, &primary, &primary.database());
    let hosts = [&primary, &standby].map(|server| format!("127.0.0.1:{}", server.port));
    gateway.configure("store.hosts", strings(&hosts.each_ref().map(String::as_str)));
    let logins = ["ann", "bob"].map(|name| gateway.add_user(name));
    gateway.start();
    let ann = Client::connect(&lab, 1, &logins[0]);
    standby.cut_off(&primary);
    let bob = Client::connect(&lab, 2, &logins[1]);
    let ids = || {
        let sessions = gateway.sessions();
        ["ann", "bob"].map(|user| {
            sessions.iter().find(|session| session["user"] == user).map(|found| found["id"].to_string())
        })
    };
    let before = ids();
    assert!(before.iter().all(Option::is_some));
    primary.stop(true);
    standby.promote();
    let promoted = Instant::now();
    eventually("what the standby lacks is over", LIMIT, || (ids()[1] != before[1]).then_some(()));
    println!("the lost session ended after {:.1?}", promoted.elapsed());
    eventually("its client logs in again", LIMIT, || ids()[1].is_some().then_some(()));
    assert_eq!(ids()[0], before[0], "the other one goes on");
    for client in [&ann, &bob] {
        ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT);
    }
}

#[test]
fn a_gateway_keeps_its_database_and_no_other_gets_it() {
    let Some(lab) = Lab::new(1) else { return };
    let Some(cluster) = cluster(&lab) else { return };
    let database = cluster.database();
    let mut gateway = Gateway::init(&lab);
    gateway.install();
    configure(&gateway, &cluster, &database);
    let ann = gateway.add_user("ann");
    gateway.start();
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT);
    // Both auth processes work side by side for a moment.
    must(gateway.upgrade());
    ping(client.namespace(), CAMPUS_V4.into(), 56, SECOND);
    must(process::run(gateway.user(&["disable", "ann"])));
    eventually("the session is over", LIMIT, || gateway.sessions().is_empty().then_some(()));
    must(process::run(gateway.user(&["enable", "ann"])));

    let other = Gateway::init_in(&lab, "other");
    configure(&other, &cluster, &database);
    for said in [process::text(&other.check()), output(other.user(&["list"])).1] {
        assert!(said.contains("belongs to the gateway"), "{said}");
    }
    let server = other.server(&[]);
    let (code, said) = client::ended(&lab, server);
    assert!(code != 0 && said.contains("belongs to the gateway"), "{code} {said}");

    gateway.kill();
    let killed = Instant::now();
    gateway.start();
    assert!(killed.elapsed() < Duration::from_secs(20), "it does not lock itself out");
    println!("killed: up again after {:.1?}", killed.elapsed());
    must(process::run(gateway.user(&["disable", "ann"])));
    let moved = {
        let mut command = gateway.vpnd(&["store", "migrate", "--to", "sqlite", "--config"]);
        command.arg(gateway.config());
        output(command)
    };
    assert!(!moved.0 && moved.1.contains("a gateway runs"), "{}", moved.1);
    let backup = {
        let mut command = gateway.vpnd(&["backup"]);
        command.arg(lab.path("backup")).arg("--config").arg(gateway.config());
        output(command)
    };
    assert!(!backup.0 && backup.1.contains("pg_dump"), "{}", backup.1);
}

#[test]
fn a_store_moves_to_a_database_with_five_thousand_users_and_back() {
    let Some(lab) = Lab::new(1) else { return };
    let Some(cluster) = cluster(&lab) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    let hash = "$2y$04$abcdefghijklmnopqrstuuJ3VQyHaHHBpVfYzjNsmVVxuYyHcmk6G";
    let lines = (0..5_000).map(|number| format!("user{number},{hash},staff group{}\n", number % 50));
    let list = lab.path("users.csv");
    fs::write(&list, format!("name,password_hash,groups\n{}", lines.collect::<String>())).unwrap();
    let mut import = gateway.user(&["import"]);
    import.arg(&list);
    must(process::run(import));
    configure(&gateway, &cluster, &cluster.database());
    gateway.configure("store.engine", "sqlite");
    let migrate = |to: &str| {
        let mut command = gateway.vpnd(&["store", "migrate", "--to", to, "--config"]);
        command.arg(gateway.config());
        command
    };
    let listed = || process::text(&must(process::run(gateway.user(&["list"]))));
    let before = listed();
    let begun = Instant::now();
    let said = process::text(&must(process::run(migrate("postgres"))));
    println!("to PostgreSQL: {:.1?}", begun.elapsed());
    assert!(said.contains("copied 5001 users") && said.contains("engine = \"postgres\""), "{said}");
    gateway.configure("store.engine", "postgres");
    assert!(listed() == before, "all users are there");
    let (again, said) = output(migrate("postgres"));
    assert!(!again && said.contains("there are users in it already"), "{said}");
    let (over, said) = output(migrate("sqlite"));
    assert!(!over && said.contains("it is there already"), "{said}");
    fs::rename(gateway.file("state/vpnd.db"), gateway.file("before.db")).unwrap();
    let begun = Instant::now();
    must(process::run(migrate("sqlite")));
    println!("back: {:.1?}", begun.elapsed());
    gateway.configure("store.engine", "sqlite");
    assert!(listed() == before, "all users are back");
    gateway.start();
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT);
}
