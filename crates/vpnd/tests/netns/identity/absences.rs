//! Behaviour: a directory that no longer shows many of its users at once ends none of their
//! sessions, before an administrator says that they have gone. Two of the machine's slapd are the
//! replicas: one that is emptied, one that lags behind.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use toml::Value;

use super::recheck::{log_in_all, name, set_source};
use super::{ADDRESS, beside, configure};
use crate::access_profiles;
use crate::gateway::{Gateway, must};
use crate::lab::{Lab, eventually};
use crate::process;
use crate::slapd::{Slapd, group, person};

const PEOPLE: usize = 12;
/// Limit for rounds of a second, on a machine in use.
const LONG: Duration = Duration::from_secs(180);

#[test]
fn an_empty_directory_ends_no_session_until_confirmed() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let local = gateway.add_user("local");
    let command = |program: &str| beside(&lab, program);
    let names: Vec<String> = (0..PEOPLE).map(name).collect();
    let people: String = names.iter().map(|name| person(name, "right")).collect();
    let staff = group("staff", &names.iter().map(String::as_str).collect::<Vec<_>>());
    let entries = format!("{people}{staff}");
    let Some(first) = Slapd::start(ADDRESS, command, &entries) else { return };
    let Some(second) = Slapd::start(ADDRESS, command, &entries) else { return };
    configure(&gateway, &first, first.password_file());
    let authorities = lab.path("directories.pem");
    let certificates = [first.ca(), second.ca()].map(|path| fs::read_to_string(path).expect("it was made"));
    fs::write(&authorities, certificates.concat()).expect("the laboratory has room");
    set_source(&gateway, "ca", authorities.display().to_string());
    let servers = [first.tls, second.tls].map(|port| Value::from(format!("ldaps://{ADDRESS}:{port}")));
    set_source(&gateway, "servers", servers.to_vec());
    // Replicas have the same, these two have nothing else in common.
    set_source(&gateway, "subject", "uid");
    set_source(&gateway, "recheck_s", 1);
    set_source(&gateway, "recheck_grace_s", 3_600);
    access_profiles::configure(
        &gateway,
        "[[profile]]\nname = \"staff\"\ngroups = [\"staff\"]\nroutes = [\"10.200.0.0/24\"]\n",
    );
    gateway.start();
    log_in_all(&lab, &local.profile, PEOPLE);
    assert_eq!(gateway.sessions().len(), PEOPLE);

    // An account that may no longer read the groups, say.
    first.modify(&command, ADDRESS, "dn: cn=staff,ou=groups,dc=uni,dc=example\nchangetype: delete\n");
    await_missing(&gateway, PEOPLE);
    first.modify(&command, ADDRESS, &staff.replacen('\n', "\nchangetype: add\n", 1));
    await_missing(&gateway, 0);
    assert_eq!(gateway.sessions().len(), PEOPLE, "all are in their profile");

    let entry = |name: &String| format!("dn: uid={name},ou=people,dc=uni,dc=example\n");
    let gone: String = names[..10].iter().map(|name| entry(name) + "changetype: delete\n\n").collect();
    first.modify(&command, ADDRESS, &gone);
    await_missing(&gateway, 10);
    assert_eq!(gateway.sessions().len(), PEOPLE);
    let doctor = {
        let mut doctor = gateway.vpnd(&["doctor", "--config"]);
        doctor.arg(gateway.config());
        process::text(&process::run(doctor))
    };
    assert!(doctor.contains("no longer shows 10 users"), "{doctor}");
    let log = gateway.process().output();
    assert!(log.contains("vpnd source confirm staff"), "{log}");

    // The directory's other statements still count.
    let disabled = format!(
        "{}changetype: modify\nadd: objectClass\nobjectClass: extensibleObject\n-\nadd: nsAccountLock\nnsAccountLock: TRUE\n",
        entry(&names[10])
    );
    first.modify(&command, ADDRESS, &disabled);
    eventually("who is disabled has no session", LONG, || (gateway.sessions().len() == 11).then_some(()));

    // The replica that lags still has them.
    let pid = Pid::from_raw(first.pid() as i32).expect("a number of a process");
    kill_process(pid, Signal::STOP).expect("it is there");
    await_missing(&gateway, 0);
    kill_process(pid, Signal::CONT).expect("it is there");
    // A round that asks both finds few gone, who lose their sessions.
    eventually("those who are left are missing", LONG, || {
        let missing = gateway.status()["sources"][0]["missing"].as_u64().unwrap_or(0) as usize;
        (missing > 0 && missing + 1 == gateway.sessions().len()).then_some(())
    });

    let confirm = || gateway.ask(&["source", "confirm", "staff"]);
    must(confirm());
    eventually("the others' sessions end", LONG, || (gateway.sessions().len() == 1).then_some(()));
    await_missing(&gateway, 0);
    assert!(!confirm().status.success(), "there is nothing left to confirm");
}

fn await_missing(gateway: &Gateway<'_>, users: usize) {
    eventually(&format!("{users} users are missing"), LONG, || {
        (gateway.status()["sources"][0]["missing"] == users).then_some(())
    });
}
