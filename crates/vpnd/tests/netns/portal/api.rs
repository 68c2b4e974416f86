//! Behaviour: programs drive users, devices, sessions and audit by the API, with a token of a role,
//! from the networks of administration; no program without a token does, cookies or not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Output;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
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

/// Takes out of records that they are this gateway's own, which the commands' do not say.
fn take_gateway(records: &mut Json) {
    for record in records.as_array_mut().unwrap() {
        assert_eq!(record.as_object_mut().unwrap().remove("gateway"), Some(Json::Null));
    }
}

/// Compares answers of the audit file with those of the commands.
fn answers_of_the_audit_file(gateway: &Gateway<'_>, idm: &Program<'_>, viewer: &Program<'_>, address: &Json) {
    let whois = json!({"address": address, "at": "", "reason": "complaint 4711"});
    assert_eq!(viewer.ask("/whois", Some(&whois)).0, 403);
    let (status, mut whois) = idm.ask("/whois", Some(&whois));
    assert_eq!((status, &whois["found"][0]["user"]), (200, &json!("ann")), "{whois}");
    take_gateway(&mut whois["found"]);
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
        take_gateway(&mut part["records"]);
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

/// The state has the findings of `vpnd doctor`, and `ann`'s session what it carries; the session.
fn state_and_sessions(gateway: &Gateway<'_>, viewer: &Program<'_>, address: &Json) -> Json {
    let (status, state) = viewer.get("/state");
    assert_eq!((status, &state["role"], &state["users"]), (200, &json!("viewer"), &json!(1)), "{state}");
    let finding = |check: &str| {
        let findings = state["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["check"] == check).map(|finding| finding["verdict"].clone())
    };
    for check in
        ["gateway.certificate", "gateway.portal", "gateway.portal.certificate", "gateway.audit", "pools"]
    {
        assert_eq!(finding(check), Some(json!("good")), "{check}: {state}");
    }
    let mut doctor = gateway.vpnd(&["doctor", "--json", "--config"]);
    doctor.arg(gateway.config());
    let doctor: Json = serde_json::from_slice(&process::run(doctor).stdout).unwrap();
    let audit = |findings: &Json| {
        let findings = findings.as_array().unwrap();
        findings.iter().find(|finding| finding["check"] == "gateway.audit").cloned()
    };
    assert_eq!(audit(&doctor), audit(&state["findings"]), "in the same words");
    let (_, sessions) = viewer.get("/sessions");
    let session = &sessions["sessions"][0];
    assert_eq!((&session["user"], &sessions["more"]), (&json!("ann"), &json!(0)), "{sessions}");
    assert!(session["addresses"].as_array().unwrap().contains(address), "{session}");
    assert_eq!((&session["protocol"], &session["network"]), (&json!("vpnd"), &json!("198.18.2.0/24")));
    let with_rates = eventually("the rates are known", SOON, || {
        let (_, list) = viewer.get("/sessions?order=rate");
        list["sessions"][0]["sent_rate"].is_u64().then_some(list)
    });
    assert!(with_rates["sessions"][0]["received_bytes"].as_u64() > Some(0), "{with_rates}");
    assert_eq!(with_rates["profiles"][0]["sessions"], 1, "{with_rates}");
    session.clone()
}

/// `ann`, who was disabled, has the fields of `vpnd user show`.
fn is_shown_as_by_the_command(gateway: &Gateway<'_>, viewer: &Program<'_>) {
    let mut command = gateway.vpnd(&["user", "show", "ann", "--json", "--config"]);
    command.arg(gateway.config());
    let by_command: Json = serde_json::from_slice(&must(process::run(command)).stdout).unwrap();
    let (_, by_api) = viewer.get("/users/ann");
    assert_eq!(by_api["disabled"]["reason"], "left the university", "{by_api}");
    for field in [
        "name",
        "source",
        "state",
        "profile",
        "role",
        "groups",
        "totp",
        "certificates",
        "addresses",
        "disabled",
    ] {
        assert_eq!(by_api[field], by_command[field], "{field}");
    }
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

    let address = json!(client.v4().to_string());
    let session = state_and_sessions(&gateway, &viewer, &address);
    let (_, user) = viewer.get("/users/ann");
    assert_eq!((&user["state"], &user["devices"][0]["device"]), (&json!("enabled"), &session["device"]));
    assert_eq!(idm_here.change("ann", "revoke", &json!({"reason": "stolen"})), 404, "she has none");
    let because = json!({"reason": "left the university"});
    assert_eq!(viewer.change("ann", "disable", &because), 403);
    assert_eq!(idm_here.change("ann", "disable", &json!({})), 400);
    assert_eq!(idm_here.change("ann", "disable", &json!({"reason": " "})), 422);
    assert_eq!(idm_here.change("ann", "kick", &json!({"reason": "x", "device": "y"})), 400);
    assert_eq!(gateway.sessions().len(), 1, "nothing was changed");
    answers_of_the_audit_file(&gateway, &idm_here, &viewer, &address);

    // A student comes, changes and leaves.
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
    is_shown_as_by_the_command(&gateway, &viewer);
    let (status, whois) =
        idm_here.ask("/whois", Some(&json!({"address": address, "at": "", "reason": "complaint 4711"})));
    assert!(status == 200 && whois["found"].is_array() && whois["notes"].is_array(), "{whois}");

    let listed = process::text(&tokens(&gateway, &["list"]));
    assert!(listed.contains("idm") && !listed.contains(idm_here.1.as_ref().unwrap()), "{listed}");
    tokens(&gateway, &["remove", "idm"]);
    assert_eq!(idm_here.get("/users").0, 401);
}

/// Adds a device of `ann` by its public key, as the command does, and removes it.
fn adds_a_device(gateway: &Gateway<'_>, idm: &Program<'_>, desk: &Program<'_>) {
    let key = |byte: u8| STANDARD.encode([byte; 32]);
    let new = |key: &str, name: &str| json!({"reason": "laboratory", "public_key": key, "name": name});
    let add = |program: &Program<'_>, new: &Json| program.ask("/users/ann/devices", Some(new));
    assert_eq!(add(desk, &new(&key(7), "probe")), (403, json!({"error": "no-role"})));
    assert_eq!(add(idm, &new("x", "probe")).0, 400);
    assert_eq!(add(idm, &new(&key(0), "probe")), (422, json!({"error": "unusable"})), "no handshake has it");
    let (status, added) = add(idm, &new(&key(7), "probe"));
    let configuration = added["configuration"].as_str().unwrap_or_default();
    assert_eq!(status, 200, "{added}");
    assert!(configuration.contains(&format!("# PrivateKey = the private key of {}", key(7))), "{added}");
    for (byte, name) in [(7, "another"), (8, "probe")] {
        assert_eq!(add(idm, &new(&key(byte), name)), (409, json!({"error": "taken"})), "{name}");
    }
    let mut command =
        gateway.vpnd(&["device", "add", "--user", "ann", "--wireguard", "--name", "by-command"]);
    command.args(["--public-key", &key(9), "--config"]).arg(gateway.config());
    let by_command = process::text(&must(process::run(command)));
    let differing = ["Address", "# PrivateKey"];
    let is_own = |line: &&str| differing.iter().any(|start| line.starts_with(start));
    let shared =
        |text: &str| text.lines().filter(|line| !is_own(line)).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(shared(configuration), shared(&by_command));
    let recorded = crate::audit::recorded(gateway, "device-added");
    let by_idm: Vec<_> = recorded.iter().filter(|entry| entry["by"] == "token idm").collect();
    assert_eq!((by_idm.len(), &by_idm[0]["user"]), (1, &json!("ann")), "{recorded:?}");
    let (_, listed) = idm.get("/users/ann/devices");
    for device in listed["devices"].as_array().unwrap() {
        assert_eq!(device["device"] == added["device"], device["name"] == "probe", "{listed}");
        if device["name"] != "phone" {
            let remove = json!({"reason": "x", "device": device["device"]});
            assert_eq!(desk.change("ann", "remove-device", &remove), 200);
        }
    }
}

#[test]
fn programs_list_renew_and_remove_devices_as_the_commands_do() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.add_user("ann");
    configure(&gateway);
    gateway.configure("wireguard.enabled", true);
    gateway.configure("portal.admin_networks", "198.18.1.0/24");
    crate::wireguard::add_device(&gateway, "ann");
    let token = |name: &str, role: &str| {
        let output = tokens(&gateway, &["add", name, "--role", role, "--expires", "2030-01-31"]);
        String::from_utf8(output.stdout).unwrap().rsplit(' ').next().unwrap().trim().to_owned()
    };
    let roles = [("idm", "administrator"), ("desk", "help-desk"), ("eye", "viewer")];
    let roles = roles.map(|(name, role)| token(name, role));
    gateway.start();
    let browser = Browser::new(&lab, &lab.clients[0], &gateway);
    serves(&browser);
    let [idm, desk, viewer] = roles.map(|token| Program(&browser, Some(token)));
    adds_a_device(&gateway, &idm, &desk);

    // Each field of the command is the API's.
    let device = |program: &Program<'_>| {
        let (status, listed) = program.get("/users/ann/devices");
        assert_eq!((status, listed["devices"].as_array().map(Vec::len)), (200, Some(1)), "{listed}");
        let mut command = gateway.vpnd(&["device", "list", "--user", "ann", "--json", "--config"]);
        command.arg(gateway.config());
        let by_command: Json = serde_json::from_slice(&must(process::run(command)).stdout).unwrap();
        for (field, value) in by_command[0].as_object().unwrap() {
            assert_eq!(&listed["devices"][0][field], value, "{field}");
        }
        listed["devices"][0].clone()
    };
    let listed = device(&viewer);
    assert_eq!((&listed["protocol"], &listed["name"]), (&json!("wireguard"), &json!("phone")), "{listed}");
    assert_eq!(viewer.get("/users/nobody/devices").0, 404);
    let change = json!({"reason": "call 4711", "device": listed["device"]});
    for action in ["renew-device", "remove-device"] {
        assert_eq!(viewer.change("ann", action, &change), 403, "{action}");
        assert_eq!(desk.change("ann", action, &json!({"reason": "x"})), 400, "{action}: no device");
        let other = json!({"reason": "x", "device": "00".repeat(16)});
        assert_eq!(desk.change("ann", action, &other), 404, "{action}");
    }
    assert_eq!(desk.change("ann", "kick", &json!({"reason": "stolen"})), 200);
    assert!(device(&viewer)["walled_s"].is_u64());
    assert_eq!(desk.change("ann", "renew-device", &change), 200);
    assert!(device(&viewer)["walled_s"].is_null());
    let renewed = &crate::audit::recorded(&gateway, "device-renewed")[0];
    assert_eq!((&renewed["by"], &renewed["user"]), (&json!("token desk"), &json!("ann")));
    assert_eq!(desk.change("ann", "disable", &json!({"reason": "x"})), 200);
    assert_eq!(desk.change("ann", "renew-device", &change), 422, "as the command, not while she is disabled");
    assert_eq!(desk.change("ann", "remove-device", &change), 200);
    assert_eq!(viewer.get("/users/ann/devices").1["devices"], json!([]));
}
