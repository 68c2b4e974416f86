//! Behaviour: each login and each end of a session leaves one line in the gateway's log, with the
//! documented fields.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value as Json;

use crate::client::Client;
use crate::gateway::{Gateway, Login, write_secret};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::traffic::ping_until;

const DOCUMENTED: &str = include_str!("../../../../docs/OPERATIONS.md");
/// Client 1's outer addresses.
const CLIENT: [&str; 2] = ["198.18.1.2", "fd18:1::2"];
const LOGGED: Duration = Duration::from_secs(20);

/// A user's login with a password that is not theirs.
fn with_wrong_password(lab: &Lab, login: &Login) -> Login {
    let wrong = lab.path("wrong.credentials");
    write_secret(&wrong, "not the password\n");
    Login { credentials: wrong, ..login.clone() }
}

/// The lines with this message, as JSON.
fn lines(gateway: &mut Gateway<'_>, message: &str) -> Vec<Json> {
    let output = gateway.process().output();
    let lines = output.lines().filter_map(|line| serde_json::from_str::<Json>(line).ok());
    lines.filter(|line| line["message"] == message).collect()
}

/// The only line with this message, once it is there; all its fields are documented.
fn only(gateway: &mut Gateway<'_>, message: &str) -> Json {
    let found = eventually(message, LOGGED, || {
        let found = lines(gateway, message);
        (!found.is_empty()).then_some(found)
    });
    assert_eq!(found.len(), 1, "{found:?}");
    for field in found[0].as_object().expect("a line is an object").keys() {
        let general = ["timestamp", "level", "message", "target"].contains(&field.as_str());
        assert!(general || DOCUMENTED.contains(&format!("`{field}`")), "{field} is not documented");
    }
    found[0].clone()
}

#[test]
fn a_login_and_the_end_of_a_session_leave_one_line_each() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("log.format", "json");
    let ann = gateway.add_user("ann");
    gateway.start();

    Client::refused(&lab, 1, &with_wrong_password(&lab, &ann), &[]);
    let refused = only(&mut gateway, "login refused");
    assert_eq!((&refused["user"], &refused["source"]), (&"ann".into(), &"local".into()), "{refused}");
    assert!(CLIENT.contains(&refused["outer"].as_str().unwrap_or_default()), "{refused}");
    assert_eq!(refused["reason"], "wrong-password", "{refused}");

    let mut one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), Duration::from_secs(10));
    let pools = gateway.status()["pools"].as_array().cloned().unwrap_or_default();
    let taken: Vec<_> = pools.iter().map(|pool| (&pool["pool"], pool["taken"].as_u64())).collect();
    assert_eq!(taken, [(&"10.86.0.0/16".into(), Some(1)), (&"fd86::/64".into(), Some(1))]);
    let (ipv4, ipv6) = (one.v4().to_string(), one.v6().to_string());
    let began = only(&mut gateway, "session began");
    assert_eq!((&began["user"], &began["source"]), (&"ann".into(), &"local".into()), "{began}");
    let outer: SocketAddr = began["outer"].as_str().and_then(|outer| outer.parse().ok()).expect("an address");
    assert!(CLIENT.contains(&outer.ip().to_string().as_str()), "{began}");
    assert_eq!((&began["ipv4"], &began["ipv6"]), (&ipv4.as_str().into(), &ipv6.as_str().into()));

    // The line has what the gateway has collected, so it must have collected the ping.
    eventually("the gateway has counted the traffic", LOGGED, || {
        let sessions = gateway.sessions();
        sessions.first().is_some_and(|session| session["rx_bytes"].as_u64() > Some(0)).then_some(())
    });
    one.interrupt();
    let ended = only(&mut gateway, "session ended");
    assert_eq!((&ended["user"], &ended["reason"]), (&"ann".into(), &"bye".into()), "{ended}");
    assert_eq!((&ended["ipv4"], &ended["ipv6"]), (&began["ipv4"], &began["ipv6"]));
    assert_eq!(ended["session"], began["session"]);
    assert!(ended["received"].as_u64() > Some(0) && ended["sent"].as_u64() > Some(0), "{ended}");
    assert!(ended["duration_s"].as_u64() < Some(600), "{ended}");
    assert_eq!(lines(&mut gateway, "login refused").len(), 1);
}

#[test]
fn a_login_leaves_the_same_line_as_text() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = Gateway::for_ann(&lab);
    Client::refused(&lab, 1, &with_wrong_password(&lab, &ann), &[]);
    let mut one = Client::connect(&lab, 1, &ann);
    one.interrupt();
    eventually("the end is in the log", LOGGED, || {
        gateway.process().output().contains("session ended").then_some(())
    });
    let output = gateway.process().output();
    let line = |message: &str| {
        let lines: Vec<&str> = output.lines().filter(|line| line.contains(message)).collect();
        assert_eq!(lines.len(), 1, "{message}: {lines:?}");
        lines[0].to_owned()
    };
    let refused = line("login refused");
    assert!(refused.contains("user=\"ann\" source=\"local\" outer="), "{refused}");
    assert!(refused.contains("reason=\"wrong-password\""), "{refused}");
    assert!(line("session began").contains("user=\"ann\" source=\"local\" outer="));
    assert!(line("session ended").contains("user=\"ann\" reason=\"bye\" duration_s="));
}
