//! Behaviour: programs drive users, devices, sessions and audit by the API, with a token of a role,
//! from the networks of administration; nobody without a token does, cookies or not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Output;

use serde_json::{Value as Json, json};

use super::{Browser, SOON, configure, serves};
use crate::client::Client;
use crate::gateway::{Gateway, must};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::process;
use crate::traffic::ping_until;

/// A program with this token, if it has one.
struct Program<'p>(&'p Browser<'p>, Option<String>);

impl Program<'_> {
    fn ask(&self, path: &str, body: Option<&Json>) -> (u16, Json) {
        let mut command = self.0.curl(&format!("/api/v1{path}"));
        if let Some(token) = &self.1 {
            command.args(["--header", &format!("Authorization: Bearer {token}")]);
        }
        if let Some(body) = body {
            command.args(["--header", "Content-Type: application/json", "--data", &body.to_string()]);
        }
        let answer = Browser::run(command);
        (answer.status, serde_json::from_str(&answer.body).unwrap_or_default())
    }

    fn get(&self, path: &str) -> (u16, Json) {
        self.ask(path, None)
    }

    fn change(&self, user: &str, action: &str, body: &Json) -> u16 {
        self.ask(&format!("/users/{user}/{action}"), Some(body)).0
    }
}

/// `vpnd token …`.
fn tokens(gateway: &Gateway<'_>, arguments: &[&str]) -> Output {
    let mut command = gateway.vpnd(&["token"]);
    command.args(arguments).arg("--config").arg(gateway.config());
    must(process::run(command))
}

/// `vpnd audit …`, as JSON.
fn audit(gateway: &Gateway<'_>, arguments: &[&str]) -> Json {
    let mut command = gateway.vpnd(&["audit"]);
    command.args(arguments).args(["--reason", "x", "--config"]).arg(gateway.config());
    serde_json::from_slice(&must(process::run(command)).stdout).unwrap()
}

/// Compares answers of the audit file with those of the commands.
fn answers_of_the_audit_file(gateway: &Gateway<'_>, idm: &Program<'_>, viewer: &Program<'_>, address: &Json) {
    let whois = json!({"address": address, "at": "", "reason": "complaint 4711"});
    assert_eq!(viewer.ask("/whois", Some(&whois)).0, 403);
    let (status, whois) = idm.ask("/whois", Some(&whois));
    assert_eq!((status, &whois["found"][0]["user"]), (200, &json!("ann")), "{whois}");
    let at = whois["at"].as_str().unwrap();
    assert_eq!(whois, audit(gateway, &["whois", address.as_str().unwrap(), "--at", at, "--json"]));
    let recorded = &crate::audit::recorded(gateway, "whois")[0];
    assert_eq!(
        (&recorded["by"], &recorded["detail"]),
        (&json!("token idm"), &json!(format!("{} at {at}: complaint 4711", address.as_str().unwrap())))
    );

    // More than one part.
    for number in 0..40 {
        idm.ask("/whois", Some(&json!({"address": address, "reason": format!("question {number}")})));
    }
    let range = json!({"from": "2020-01-01T00:00:00Z", "to": "2099-01-01T00:00:00Z", "reason": "yearly"});
    assert_eq!(viewer.ask("/audit/export", Some(&range)).0, 403);
    for wrong in [
        json!({"from": "2099-01-01T00:00:00Z", "to": "2020-01-01T00:00:00Z", "reason": "x"}),
        json!({"from": "x", "to": "2099-01-01T00:00:00Z", "reason": "x"}),
        json!({"from": "2020-01-01T00:00:00Z", "to": "2099-01-01T00:00:00Z", "reason": " "}),
        json!({"from": "2020-01-01T00:00:00Z", "to": "2099-01-01T00:00:00Z", "reason": "x", "after": "y"}),
    ] {
        assert_eq!(idm.ask("/audit/export", Some(&wrong)).0, 422, "{wrong}");
    }
    let (mut records, mut asked, mut parts) = (Vec::new(), range, 0);
    loop {
        let (status, mut part) = idm.ask("/audit/export", Some(&asked));
        assert_eq!(status, 200, "{part}");
        records.append(part["records"].as_array_mut().unwrap());
        parts += 1;
        match part["next"].as_str() {
            Some(next) => asked["after"] = json!(next),
            None => break,
        }
    }
    let all =
        ["export", "--format", "json", "--from", "2020-01-01T00:00:00Z", "--to", "2099-01-01T00:00:00Z"];
    let expected = audit(gateway, &all);
    let but_exports = |records: &[Json]| -> Vec<Json> {
        records.iter().filter(|record| record["kind"] != "audit-exported").cloned().collect()
    };
    assert!(parts > 2 && records.len() > 40, "{parts} parts with {} records", records.len());
    assert_eq!(but_exports(&records), but_exports(expected.as_array().unwrap()));
    let recorded = crate::audit::recorded(gateway, "audit-exported");
    assert!(recorded.iter().filter(|record| record["by"] == "token idm").count() >= parts, "each part");
}

#[test]
fn programs_do_what_their_tokens_may() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    configure(&gateway);
    gateway.configure("portal.url", format!("https://{GATEWAY_V4}"));
    gateway.configure("portal.admin_networks", "198.18.1.0/24");
    let token = |name: &str, role: &str| {
        let output = tokens(&gateway, &["add", name, "--role", role, "--expires", "2030-01-31"]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.rsplit(' ').next().unwrap().trim().to_owned()
    };
    let [idm, viewer] = [token("idm", "administrator"), token("eye", "viewer")];
    gateway.start();
    let client = Client::connect(&lab, 2, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    let [here, elsewhere] = [0, 1].map(|at| Browser::new(&lab, &lab.clients[at], &gateway));
    serves(&here);

    let (idm_here, viewer) = (Program(&here, Some(idm.clone())), Program(&here, Some(viewer)));
    assert_eq!(Program(&here, None).get("/openapi.json").1["info"]["title"], "vpnd");
    here.logged_in("ann");
    for wrong in [None, Some(String::new()), Some(format!("idm.{}", "0".repeat(64)))] {
        assert_eq!(Program(&here, wrong).get("/users").0, 401, "a cookie is none");
    }
    assert_eq!(Program(&elsewhere, Some(idm)).get("/users"), (403, json!({"error": "elsewhere"})));

    let (status, state) = viewer.get("/state");
    assert_eq!((status, &state["role"], &state["users"]), (200, &json!("viewer"), &json!(1)), "{state}");
    let (_, sessions) = viewer.get("/sessions");
    let session = &sessions["sessions"][0];
    assert_eq!((&session["user"], &sessions["more"]), (&json!("ann"), &json!(0)), "{sessions}");
    let address = json!(client.v4().to_string());
    assert!(session["addresses"].as_array().unwrap().contains(&address), "{session}");
    let (_, user) = viewer.get("/users/ann");
    assert_eq!((&user["state"], &user["devices"][0]["device"]), (&json!("enabled"), &session["device"]));
    let because = json!({"reason": "left the university"});
    assert_eq!(viewer.change("ann", "disable", &because), 403);
    assert_eq!(idm_here.change("ann", "disable", &json!({})), 400);
    assert_eq!(idm_here.change("ann", "disable", &json!({"reason": " "})), 422);
    assert_eq!(idm_here.change("ann", "kick", &json!({"reason": "x", "device": "y"})), 400);
    assert_eq!(gateway.sessions().len(), 1, "nothing was changed");
    answers_of_the_audit_file(&gateway, &idm_here, &viewer, &address);

    // Somebody comes, changes and goes.
    let new = json!({"reason": "matriculated", "groups": ["students"], "expires": "2030-09-30"});
    let (status, added) = idm_here.ask("/users/eva/add", Some(&new));
    let link = added["invitation"].as_str().unwrap();
    assert!(status == 200 && link.starts_with(&format!("https://{GATEWAY_V4}/invitation/")), "{added}");
    assert_eq!(idm_here.change("eva", "add", &new), 409);
    assert_eq!(idm_here.change("eva", "groups", &json!({"reason": "staff now", "groups": ["staff"]})), 200);
    let (_, eva) = viewer.get("/users/eva");
    assert_eq!((&eva["groups"], &eva["totp"]), (&json!(["staff"]), &json!(false)), "{eva}");
    assert_eq!(viewer.get("/users?text=ev").1["users"][0]["name"], "eva");
    assert_eq!(idm_here.change("eva", "remove", &because), 200);
    assert_eq!(viewer.get("/users/eva"), (404, json!({"error": "not-there"})));
    assert_eq!(idm_here.change("ann", "disable", &because), 200);
    eventually("her session is over", SOON, || gateway.sessions().is_empty().then_some(()));
    assert_eq!(crate::audit::recorded(&gateway, "user-disabled")[0]["by"], "token idm");
    let (status, whois) =
        idm_here.ask("/whois", Some(&json!({"address": address, "at": "", "reason": "complaint 4711"})));
    assert!(status == 200 && whois["found"].is_array() && whois["notes"].is_array(), "{whois}");

    let listed = process::text(&tokens(&gateway, &["list"]));
    assert!(listed.contains("idm") && !listed.contains(idm_here.1.as_ref().unwrap()), "{listed}");
    tokens(&gateway, &["remove", "idm"]);
    assert_eq!(idm_here.get("/users").0, 401);
}
