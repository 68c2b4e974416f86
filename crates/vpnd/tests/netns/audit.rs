//! Behaviour: 'vpnd audit' says who had an address, through a kill of the gateway and through a
//! disk without room, and neither stops anybody.

use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value as Json;

use crate::client::Client;
use crate::gateway::{Gateway, must};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
const RECORDED: Duration = Duration::from_secs(60);

fn audit(gateway: &Gateway<'_>, words: &[&str]) -> Output {
    let mut command: Command = gateway.vpnd(&["audit"]);
    command.args(words).arg("--config").arg(gateway.config());
    process::run(command)
}

pub(crate) fn now() -> String {
    let mut date = Command::new("date");
    date.args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]);
    process::text(&must(process::run(date))).trim().to_owned()
}

/// A moment whose second is another one than that of `moment`.
fn after(moment: &str) -> String {
    eventually("the next second", RECORDED, || Some(now()).filter(|now| now.as_str() > moment))
}

/// The answer about an address at a time.
pub(crate) fn whois(gateway: &Gateway<'_>, address: &str, at: &str) -> Json {
    let output = audit(gateway, &["whois", address, "--at", at, "--reason", "complaint 4711", "--json"]);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", process::text(&output)))
}

/// Everything that is recorded, of one kind.
pub(crate) fn exported(gateway: &Gateway<'_>, kind: &str) -> Vec<Json> {
    let to = now();
    let words =
        ["export", "--from", "2020-01-01T00:00:00Z", "--to", &to, "--format", "json", "--reason", "test"];
    let output = must(audit(gateway, &words));
    let all: Vec<Json> = serde_json::from_slice(&output.stdout).expect("a list");
    all.into_iter().filter(|record| record["kind"] == kind).collect()
}

/// Waits until a record of a kind is there.
pub(crate) fn recorded(gateway: &Gateway<'_>, kind: &str) -> Vec<Json> {
    eventually(kind, RECORDED, || Some(exported(gateway, kind)).filter(|records| !records.is_empty()))
}

#[test]
fn an_address_leads_to_its_user_through_a_kill_of_the_gateway() {
    let Some(lab) = Lab::new(2) else { return };
    let (mut gateway, ann) = Gateway::for_ann(&lab);
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    recorded(&gateway, "session");
    // With its port, once the client was heard.
    let outer = recorded(&gateway, "outer-address")[0]["outer"].as_str().unwrap_or_default().to_owned();
    assert!(
        gateway.sessions()[0]["outer"].as_array().is_some_and(|all| all.contains(&outer.as_str().into())),
        "{outer}"
    );
    let (v4, v6) = (client.v4().to_string(), client.v6().to_string());
    let before = now();
    for address in [&v4, &v6, &format!("{v4}:443")] {
        let answer = whois(&gateway, address, &before);
        let found = &answer["found"][0];
        assert_eq!(
            (&found["user"], &found["source"], &answer["certain"]),
            (&"ann".into(), &"local".into(), &true.into()),
            "{answer}"
        );
        assert_eq!(
            (&found["session"], &found["outer"]),
            (&gateway.sessions()[0]["id"], &outer.as_str().into())
        );
    }
    let questions = exported(&gateway, "whois");
    assert_eq!(questions.len(), 3);
    let detail = questions[0]["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("complaint 4711") && detail.contains(&v4), "{detail}");

    gateway.kill();
    let dead = after(&now());
    after(&dead);
    gateway.start();
    ping_until(client.namespace(), CAMPUS_V4.into(), 60 * SECOND);
    // The session goes on, as one; the time without records is uncertain, and the answer shows
    // that.
    let answer = eventually("the gateway writes again", RECORDED, || {
        Some(whois(&gateway, &v4, &now())).filter(|answer| answer["certain"] == true)
    });
    assert_eq!(
        (&answer["found"][0]["user"], &answer["found"][0]["until"]),
        (&"ann".into(), &Json::Null),
        "{answer}"
    );
    let answer = whois(&gateway, &v4, &dead);
    assert_eq!((&answer["found"][0]["user"], &answer["certain"]), (&"ann".into(), &false.into()), "{answer}");
    assert_eq!(whois(&gateway, &v4, &before)["found"][0]["user"], "ann");
    assert_eq!(exported(&gateway, "session").len(), 1);

    client.interrupt();
    let ended = eventually("the end is recorded", RECORDED, || {
        exported(&gateway, "session").into_iter().find(|session| !session["until"].is_null())
    });
    assert_eq!((&ended["user"], &ended["detail"]), (&"ann".into(), &"bye".into()));
    // An end in order leaves no gap.
    gateway.terminate();
    let stopped = after(&now());
    let answer = whois(&gateway, &v4, &stopped);
    assert!(!answer["notes"].to_string().contains("UNCERTAIN"), "{answer}");
}

#[test]
fn an_outer_address_and_port_lead_to_the_client_that_was_heard_from_there() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = Gateway::for_ann(&lab);
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let outers = || {
        exported(&gateway, "outer-address")
            .iter()
            .map(|record| record["outer"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    let heard = |count: usize| {
        eventually("each outer address", RECORDED, || Some(outers()).filter(|outers| outers.len() >= count))
    };
    // Three addresses, each for a moment: less than any interval at which they could be sampled.
    let mut moments = Vec::new();
    for (n, (from, to)) in [(2, 2), (2, 77), (77, 78)].into_iter().enumerate() {
        if from != to {
            client.change_address(from, to);
            ping_until(client.namespace(), CAMPUS_V4.into(), 30 * SECOND);
        }
        let outer = heard(n + 1)[n].clone();
        assert!(outer.starts_with(&format!("198.18.1.{to}:")), "{outer}");
        // The second differs from those of the moves before and after it.
        let moment = after(&now());
        after(&moment);
        moments.push((outer, moment));
    }
    for (n, (outer, _)) in moments.iter().enumerate() {
        for (m, (_, moment)) in moments.iter().enumerate() {
            let answer = whois(&gateway, outer, moment);
            let found = &answer["found"][0];
            if n == m {
                let (user, inner) = (&found["user"], &found["ipv4"]);
                assert_eq!((user, inner), (&"ann".into(), &client.v4().to_string().into()), "{answer}");
                assert_eq!((&found["outer"], &answer["certain"]), (&outer.as_str().into(), &true.into()));
            } else {
                assert!(found.is_null(), "{outer} at {moment}: {answer}");
                assert!(answer["notes"].to_string().contains("no client sent from there"), "{answer}");
            }
        }
    }
    assert_eq!(outers().len(), 3, "each once");
    client.kill();
}

#[test]
fn a_full_audit_disk_ends_no_session_and_is_reported_at_once() {
    let Some(lab) = Lab::new(2) else { return };
    let (gateway, ann) = Gateway::for_ann(&lab);
    let bob = gateway.add_user("bob");
    let mut one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    recorded(&gateway, "session");
    // More than any disk has.
    gateway.configure("audit.min_free_mib", 1 << 20);
    must(gateway.ask(&["reload"]));
    let mut two = Client::connect(&lab, 2, &bob);
    ping_until(two.namespace(), CAMPUS_V4.into(), 10 * SECOND);
    assert!(ping(one.namespace(), CAMPUS_V4.into(), 56, 2 * SECOND));
    eventually("status says so", RECORDED, || {
        gateway.status()["audit"]["failure"].as_str().map(str::to_owned)
    });
    let mut doctor = gateway.vpnd(&["doctor", "--json", "--config"]);
    doctor.arg(gateway.config());
    let found: Vec<Json> = serde_json::from_slice(&process::run(doctor).stdout).expect("a list");
    let said = found.iter().find(|finding| finding["check"] == "gateway.audit").expect("a finding");
    assert_eq!(said["verdict"], "problem", "{said}");

    // With room again all is written, and nothing was lost.
    gateway.configure("audit.min_free_mib", 0);
    must(gateway.ask(&["reload"]));
    let bobs = eventually("it is written later", RECORDED, || {
        exported(&gateway, "session").into_iter().find(|session| session["user"] == "bob")
    });
    assert_eq!(bobs["ipv4"], two.v4().to_string());
    assert!(gateway.status()["audit"]["failure"].is_null());
    assert_eq!(gateway.status()["counters"]["audit"]["lost"], 0);
    // An administrator's acts on a running gateway are on record, too, with who did it.
    let by_configuration = |words: &[&str]| {
        let mut command = gateway.vpnd(words);
        command.arg("--config").arg(gateway.config());
        must(process::run(command))
    };
    by_configuration(&["reload"]);
    by_configuration(&["kick", "bob"]);
    let kicked = recorded(&gateway, "kicked");
    assert_eq!(kicked[0]["detail"], "bob");
    assert!(kicked[0]["by"].as_str().is_some_and(|by| by.starts_with("root")), "{kicked:?}");
    assert_eq!(exported(&gateway, "reloaded").len(), 1);
    one.interrupt();
    two.kill();
}
