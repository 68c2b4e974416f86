//! Behaviour: sessions of a RADIUS source are accounted for from their start to their end, over an
//! upgrade, a restart and the silence of the server that takes the records.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{ADDRESS, TIMEOUT, add_source, beside, login_of};
use crate::client::{self, Client};
use crate::freeradius::{self, FreeRadius};
use crate::gateway::{Gateway, must};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process::Process;
use crate::traffic::{ping_until, transfer};

type Record = Vec<(String, String)>;

fn value<'r>(record: &'r Record, name: &str) -> &'r str {
    record.iter().find(|(of, _)| of == name).map_or("", |(_, value)| value.as_str())
}

fn status(record: &Record) -> &str {
    value(record, "Acct-Status-Type")
}

fn id(record: &Record) -> &str {
    value(record, "Acct-Session-Id")
}

/// The first record of this kind after this many others.
fn record(server: &FreeRadius, after: usize, kind: &str) -> Record {
    eventually(&format!("there is a record: {kind}"), TIMEOUT, || {
        server.records().into_iter().skip(after).find(|record| status(record) == kind)
    })
}

fn source(radius: &FreeRadius, accounting: &FreeRadius) -> String {
    let server = format!("radius://{ADDRESS}:{}", accounting.accounting_port);
    radius.source(ADDRESS, &format!("accounting_servers = [{server:?}]\ninterim_s = 1\n"))
}

fn number(record: &Record, name: &str) -> u64 {
    value(record, name).parse().unwrap_or_else(|_| panic!("{name} in {record:?}"))
}

#[test]
fn a_session_of_a_radius_source_is_accounted_for_over_upgrade_and_restart() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.install();
    let local = gateway.add_user("local");
    let Some(radius) = FreeRadius::start(ADDRESS, |program| beside(&lab, program)) else { return };
    add_source(&gateway, &source(&radius, &radius));
    gateway.start();
    record(&radius, 0, "Accounting-On");
    let ann = login_of(&lab, &local, "ann@guests.example", "right");
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    let start = record(&radius, 0, "Start");
    assert_eq!((value(&start, "User-Name"), value(&start, "Class")), ("ann", "0x00ff01"), "{start:?}");
    assert_eq!(value(&start, "Framed-IP-Address"), client.v4().to_string());
    assert!(!value(&start, "Calling-Station-Id").is_empty());

    let bytes = 1 << 20;
    transfer(client.namespace(), &lab.campus, CAMPUS_V4.into(), bytes, TIMEOUT);
    let is_counted = |record: &Record| {
        let octets =
            ["Acct-Input-Octets", "Acct-Output-Octets"].map(|name| value(record, name).parse().unwrap_or(0));
        octets.iter().sum::<u64>() > bytes as u64
    };
    let interim =
        eventually("the traffic is accounted for", TIMEOUT, || radius.records().into_iter().find(is_counted));
    assert_eq!((status(&interim), id(&interim)), ("Interim-Update", id(&start)));

    // The next version's processes go on with it.
    must(gateway.upgrade());
    let so_far = radius.records().len();
    let later = record(&radius, so_far, "Interim-Update");
    assert!(id(&later) == id(&start) && is_counted(&later), "{later:?}");

    // A restart ends it, for the server, and begins it again.
    gateway.terminate();
    let kinds: Vec<_> = radius.records().iter().map(|record| status(record).to_owned()).collect();
    assert_eq!(kinds.last().map(String::as_str), Some("Accounting-Off"), "{kinds:?}");
    assert!(kinds.iter().filter(|kind| *kind == "Start").count() == 1 && !kinds.contains(&"Stop".to_owned()));
    assert_eq!(kinds.iter().filter(|kind| *kind == "Accounting-On").count(), 1, "{kinds:?}");
    gateway.start();
    let again = record(&radius, kinds.len(), "Start");
    assert!(id(&again) != id(&start), "{again:?}");
    assert_eq!(value(&again, "Class"), "0x00ff01", "as the server has sent it before the restart");
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    client.interrupt();
    let stop = record(&radius, kinds.len(), "Stop");
    assert_eq!((id(&stop), value(&stop, "Acct-Terminate-Cause")), (id(&again), "User-Request"));
    assert!(number(&stop, "Acct-Input-Packets") > 0, "{stop:?}");
}

#[test]
fn an_accounting_outage_blocks_no_login_and_records_arrive_later() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let local = gateway.add_user("local");
    let Some(radius) = FreeRadius::start(ADDRESS, |program| beside(&lab, program)) else { return };
    let Some(accounting) = FreeRadius::start(ADDRESS, |program| beside(&lab, program)) else { return };
    add_source(&gateway, &source(&radius, &accounting));
    let pid = Pid::from_raw(accounting.pid() as i32).expect("a number of a process");
    kill_process(pid, Signal::STOP).expect("it is there");
    gateway.start();
    let ann = login_of(&lab, &local, "ann@guests.example", "right");
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    client.interrupt();
    let state = || gateway.status()["sources"][0]["accounting"].clone();
    eventually("start and end wait", TIMEOUT, || state()["waiting"].as_u64().filter(|waiting| *waiting >= 3));
    assert_eq!(state()["sent"], 0, "{}", state());
    // A delay counts in whole seconds.
    std::thread::sleep(Duration::from_millis(1_500));
    kill_process(pid, Signal::CONT).expect("it is there");
    let stop = eventually("the end arrives", Duration::from_secs(120), || {
        accounting.records().into_iter().find(|record| status(record) == "Stop")
    });
    assert!(number(&stop, "Acct-Delay-Time") > 0, "{stop:?}");
    let records = accounting.records();
    let order: Vec<_> = records.iter().filter(|record| id(record) == id(&stop)).map(status).collect();
    assert_eq!((order.first(), order.last()), (Some(&"Start"), Some(&"Stop")), "{order:?}");
    assert_eq!(state()["lost"], 0, "{}", state());
}

#[test]
fn limits_and_a_name_of_the_server_hold_for_its_sessions_and_what_is_ignored_is_named() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let local = gateway.add_user("local");
    let Some(radius) = FreeRadius::start(ADDRESS, |program| beside(&lab, program)) else { return };
    add_source(&gateway, &source(&radius, &radius));
    gateway.start();
    record(&radius, 0, "Accounting-On");
    let login = |user: &str| login_of(&lab, &local, &format!("{user}@guests.example"), "right");
    let mut brief = Client::connect(&lab, 1, &login("brief"));
    let end_of = |user: &str| {
        eventually(&format!("the session of {user} ends"), Duration::from_secs(90), || {
            let is_it = |record: &Record| status(record) == "Stop" && value(record, "User-Name") == user;
            radius.records().into_iter().find(is_it)
        })
    };
    // It is not idle: the limit is that of the session.
    let stop = end_of("brief@here");
    assert_eq!(value(&stop, "Acct-Terminate-Cause"), "Session-Timeout", "{stop:?}");
    assert_eq!(
        (value(&stop, "Class"), number(&stop, "Acct-Session-Time") >= 5),
        ("0x00ff02", true),
        "{stop:?}"
    );
    brief.interrupt();
    // Its session may be over before it has done all that a connected client does.
    let _still = Process::start(&lab, "still", client::command(&lab, 2, &login("still"), &[]));
    let stop = end_of("still");
    assert_eq!(value(&stop, "Acct-Terminate-Cause"), "Idle-Timeout", "{stop:?}");
    let addresses = ["Framed-IP-Address", "Framed-IPv6-Address"].map(|name| value(&stop, name));
    assert_eq!(addresses, freeradius::FRAMED, "{stop:?}");
    let log = gateway.process().output();
    let elsewhere =
        |line: &str| line.contains("10.9.8.7") && line.contains("not in the pool of the user's profile");
    assert!(log.lines().any(elsewhere), "{log}");
    let named: Vec<&str> = log.lines().filter(|line| line.contains("attributes that are ignored")).collect();
    let [line] = named[..] else { panic!("it is named once: {named:?}") };
    assert!(
        line.contains("guests")
            && line.contains("Framed-IP-Netmask")
            && !line.contains("Address")
            && !line.contains("Timeout"),
        "{line}"
    );
}
