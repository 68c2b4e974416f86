//! Behaviour: the clients' authority publishes lists of what it has revoked. A reload takes a new
//! one over: a client with such a certificate is out at once and does not come back, not by a
//! resumed TLS session either; other clients notice nothing. A list that is not to be believed
//! changes nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};
use rustix::process::Signal;

use crate::certificates::certified;
use crate::client::Client;
use crate::gateway::{Gateway, Login, must, write_secret};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process;
use crate::traffic::ping_until;

const LIMIT: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(86_400);

/// An authority of the campus, which vpnd has not made.
struct Campus {
    issuer: Issuer<'static, KeyPair>,
}

impl Campus {
    /// Makes it, and has the gateway take its certificates for those of clients.
    fn new(gateway: &Gateway<'_>) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "campus");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        fs::write(gateway.file("campus.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        write_secret(&gateway.file("campus-key.pem"), &key.serialize_pem());
        gateway.configure("tls.client_ca", "campus.pem");
        gateway.configure("tls.client_ca_key", "campus-key.pem");
        gateway.configure("tls.client_crl", "campus.crl");
        Self { issuer: Issuer::new(params, key) }
    }

    /// A list of these users' certificates, which is to be replaced that long from now.
    fn list(&self, revoked: &[&Login], age: Duration, left: Duration) -> String {
        let now = rcgen::date_time_ymd(1970, 1, 1) + SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let made = now - age;
        let revoked = revoked.iter().map(|login| RevokedCertParams {
            serial_number: SerialNumber::from(serial(login)),
            revocation_time: made,
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: made,
            // A second before, since lists know whole seconds only: none is good for as long as it
            // is asked for.
            next_update: now + left - Duration::from_secs(1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

/// The number of the certificate in a profile.
fn serial(login: &Login) -> Vec<u8> {
    let profile: toml::Table = fs::read_to_string(&login.profile).unwrap().parse().unwrap();
    let pem = profile["user"]["certificate"].as_str().unwrap();
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
    pem.parse_x509().unwrap().raw_serial().to_vec()
}

/// Lists that must not be believed: each is refused with its reason.
fn refuse_bad_lists(lab: &Lab, gateway: &Gateway<'_>, campus: &Campus, ann: &Login) {
    let file = gateway.file("campus.crl");
    let stranger = {
        let other = Gateway::init_in(lab, "other");
        Campus::new(&other).list(&[ann], DAY, 30 * DAY)
    };
    let expired = campus.list(&[ann], 30 * DAY, Duration::ZERO);
    for (list, hint) in [
        (stranger.as_str(), "not signed with that authority's key"),
        (expired.as_str(), "was to be replaced by"),
        ("no list", "can't be read as certificate revocation lists"),
    ] {
        fs::write(&file, list).unwrap();
        let output = gateway.ask(&["reload"]);
        let text = process::text(&output);
        assert!(!output.status.success() && text.contains(hint), "wanted {hint:?}: {text}");
        let output = gateway.check();
        assert!(
            !output.status.success() && process::text(&output).contains(hint),
            "{}",
            process::text(&output)
        );
    }
    fs::remove_file(&file).unwrap();
    assert!(
        !gateway.ask(&["reload"]).status.success(),
        "a list that is gone revokes nothing, so it is no list"
    );
}

#[test]
fn what_the_clients_authority_revokes_is_out_at_once() {
    let Some(lab) = Lab::new(3) else { return };
    let mut gateway = Gateway::init(&lab);
    let campus = Campus::new(&gateway);
    let file = gateway.file("campus.crl");
    let none = campus.list(&[], DAY, 30 * DAY);
    fs::write(&file, &none).unwrap();
    let [ann, bob, eve] = ["ann", "bob", "eve"].map(|name| certified(&gateway, &lab, name));
    gateway.start();
    let mut one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    let mut three = Client::connect(&lab, 3, &eve);
    for client in [&one, &two, &three] {
        ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT);
    }
    let ids = |gateway: &Gateway<'_>| -> Vec<_> {
        gateway.sessions().iter().map(|session| (session["user"].clone(), session["id"].clone())).collect()
    };
    let before = ids(&gateway);
    assert_eq!(before.len(), 3);

    refuse_bad_lists(&lab, &gateway, &campus, &ann);
    assert_eq!(ids(&gateway), before);

    // One client sleeps through what follows, with tickets of TLS sessions in its memory.
    three.process().signal_all(Signal::STOP);
    fs::write(&file, campus.list(&[&ann, &eve], DAY, 30 * DAY)).unwrap();
    must(gateway.ask(&["reload"]));
    let bobs: Vec<_> = before.iter().filter(|(user, _)| *user == "bob").cloned().collect();
    assert_eq!(ids(&gateway), bobs, "both sessions are over, and bob's goes on");
    assert_ne!(one.process().wait(LIMIT).code(), Some(0), "her client is told");
    three.process().signal_all(Signal::CONT);
    assert_ne!(three.process().wait(LIMIT).code(), Some(0), "nor does a ticket help");
    let is_out = |gateway: &Gateway<'_>, login: &Login| {
        let (_, output) = Client::refused(&lab, 1, login, &[]);
        assert!(output.contains("was revoked"), "{output}");
        assert_eq!(gateway.sessions().len(), 1);
    };
    is_out(&gateway, &ann);
    // The list again ends no session, and a restart knows it.
    must(gateway.ask(&["reload"]));
    ping_until(two.namespace(), CAMPUS_V4.into(), LIMIT);
    gateway.kill();
    gateway.start();
    ping_until(two.namespace(), CAMPUS_V4.into(), LIMIT);
    is_out(&gateway, &ann);
    // A user who is no longer on the list gets in.
    fs::write(&file, none).unwrap();
    must(gateway.ask(&["reload"]));
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT);
    // The gateway's next process takes the sessions over, but not with what is revoked by then.
    fs::write(&file, campus.list(&[&ann], DAY, 30 * DAY)).unwrap();
    must(gateway.upgrade());
    eventually("her session is over", LIMIT, || (ids(&gateway) == bobs).then_some(()));
    ping_until(two.namespace(), CAMPUS_V4.into(), LIMIT);
}

#[test]
fn no_gateway_begins_with_a_list_that_has_expired_and_an_old_one_is_warned_of() {
    let Some(lab) = Lab::new(1) else { return };
    let gateway = Gateway::init(&lab);
    let campus = Campus::new(&gateway);
    let file = gateway.file("campus.crl");
    fs::write(&file, campus.list(&[], 30 * DAY, Duration::ZERO)).unwrap();
    let output = process::run(gateway.server(&[]));
    assert!(!output.status.success());
    assert!(process::text(&output).contains("fetch the newer one"), "{}", process::text(&output));
    fs::write(&file, campus.list(&[], 10 * DAY, 2 * DAY)).unwrap();
    let mut check = gateway.vpnd(&["check"]);
    check.arg(gateway.config());
    let text = process::text(&must(process::run(check)));
    assert!(text.contains("campus.crl expires in 1 day"), "{text}");
}
