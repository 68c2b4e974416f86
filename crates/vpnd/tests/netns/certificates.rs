//! Behaviour: the gateway's certificate and its key, and who holds what of them.

use std::fs;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::client::Client;
use crate::gateway::{Gateway, Login, edit_toml, must, write_secret};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, GATEWAY_V6, Lab, eventually};
use crate::privileges::Seen;
use crate::process;
use crate::protocol::presented;
use crate::traffic::{ping_until, trickle};

const SECOND: Duration = Duration::from_secs(1);

/// The shapes in which a process could hold a key on P-256: the file's text, its bytes, and the
/// number itself, as the bytes of the file have it and as processors have it.
pub(crate) fn shapes(pem: &str) -> Vec<Vec<u8>> {
    let line = pem.lines().nth(1).expect("a PEM block has lines");
    let der = PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("vpnd wrote it");
    let der = der.secret_der();
    // ECPrivateKey (RFC 5915): version 1, then the number as an octet string of 32 bytes.
    let start = [0x02, 0x01, 0x01, 0x04, 0x20];
    let at =
        der.windows(start.len()).position(|window| window == start).expect("a key on P-256") + start.len();
    let number = &der[at..at + 32];
    vec![line.into(), der.into(), number.into(), number.iter().rev().copied().collect()]
}

#[test]
fn the_worker_of_a_running_gateway_does_not_hold_the_key() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    // A full handshake has been signed, and a later one resumed.
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let key = fs::read_to_string(gateway.file("server-key.pem")).expect("vpnd init made it");
    let parent = Seen::parent(&gateway);
    let (worker, auth) = (parent.child("worker"), parent.child("auth"));
    let held = |process: &Seen| shapes(&key).iter().map(|shape| process.remembers(shape)).collect::<Vec<_>>();
    assert!(held(&auth).contains(&true), "the auth process signs with it, so this search finds keys");
    assert_eq!(held(&worker), [false; 4], "the worker holds the gateway's key");
    // This shows that the search finds what the worker does hold.
    assert!(worker.remembers(&certificate(&gateway)), "the worker presents the certificate");
}

/// Gives the gateway a certificate of its CA, for the key it has, that began this long ago and is
/// good for this long.
fn present(gateway: &Gateway<'_>, age: Duration, left: Duration) {
    let read = |name: &str| fs::read_to_string(gateway.file(name)).expect("vpnd init made it");
    let ca_key = KeyPair::from_pem(&read("ca-key.pem")).expect("vpnd wrote it");
    let issuer = Issuer::from_ca_cert_pem(&read("ca.pem"), ca_key).expect("vpnd wrote it");
    let key = KeyPair::from_pem(&read("server-key.pem")).expect("vpnd wrote it");
    let names = vec![GATEWAY_V4.to_string(), GATEWAY_V6.to_string()];
    let mut leaf = CertificateParams::new(names).expect("names of a gateway");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later");
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    (leaf.not_before, leaf.not_after) = (epoch + now - age, epoch + now + left);
    leaf.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let leaf = leaf.signed_by(&key, &issuer).expect("the CA signs");
    fs::write(gateway.file("server.pem"), leaf.pem()).expect("the laboratory's directory is writable");
}

fn is_good_for_weeks(gateway: &Gateway<'_>) -> bool {
    gateway.status()["certificate_left_s"].as_u64().expect("the status has it") > 20 * 86_400
}

/// The certificate in the gateway's file.
fn certificate(gateway: &Gateway<'_>) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(gateway.file("server.pem")).expect("vpnd wrote it")
}

#[test]
fn a_certificate_is_renewed_under_traffic() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    // A third of its life is left in 20 s.
    present(&gateway, 60 * SECOND, 60 * SECOND);
    gateway.start();
    assert!(!is_good_for_weeks(&gateway));
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let identity = |gateway: &Gateway<'_>| {
        gateway.sessions().iter().map(|session| session["id"].clone()).collect::<Vec<_>>()
    };
    let (before, file) = (identity(&gateway), fs::read(gateway.file("server.pem")).expect("it is there"));
    thread::scope(|scope| {
        scope.spawn(|| trickle(one.namespace(), &lab.campus, CAMPUS_V4.into(), 25 * SECOND, 60 * SECOND));
        eventually("the certificate is renewed", 40 * SECOND, || is_good_for_weeks(&gateway).then_some(()));
        assert_eq!(presented(&lab.clients[1], &bob), certificate(&gateway), "and presented");
        // By hand, with another key, and at once.
        let mut renew = gateway.vpnd(&["renew", "--new-key", "--config"]);
        renew.arg(gateway.config());
        must(process::run(renew));
        must(gateway.ask(&["reload"]));
        assert_eq!(presented(&lab.clients[1], &bob), certificate(&gateway), "this one as well");
    });
    assert_ne!(fs::read(gateway.file("server.pem")).expect("it is there"), file);
    assert_eq!(identity(&gateway), before, "the session goes on");
    // Profiles pin the CA, so one of before knows the gateway.
    let two = Client::connect(&lab, 2, &bob);
    ping_until(two.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 2, "nobody had to log in again");
    let key = fs::read_to_string(gateway.file("server-key.pem")).expect("it is there");
    let parent = Seen::parent(&gateway);
    let (worker, auth) = (parent.child("worker"), parent.child("auth"));
    assert!(shapes(&key).iter().any(|shape| auth.remembers(shape)), "it has signed for the second client");
    assert!(!shapes(&key).iter().any(|shape| worker.remembers(shape)), "the worker holds the new key");
}

#[test]
fn a_gateway_that_was_off_for_long_renews_its_certificate_before_it_begins() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    present(&gateway, 3600 * SECOND, Duration::ZERO);
    // Its profile still pins the CA.
    let ann = gateway.add_user("ann");
    thread::sleep(SECOND);
    gateway.start();
    assert!(is_good_for_weeks(&gateway));
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
}

/// Adds a user who has to show a certificate.
pub(crate) fn certified(gateway: &Gateway<'_>, lab: &Lab, name: &str) -> Login {
    let (credentials, profile) = (lab.path(format!("{name}.credentials")), lab.path(format!("{name}.toml")));
    write_secret(&credentials, "a password\n");
    let mut command = gateway.user(&["add", name, "--client-cert"]);
    command.arg("--password-file").arg(&credentials).arg("--profile-out").arg(&profile);
    must(process::run(command));
    Login { profile, credentials }
}

#[test]
fn a_revoked_certificate_is_out_at_once_and_stays_out() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (certified(&gateway, &lab, "ann"), certified(&gateway, &lab, "bob"));
    gateway.start();
    let mut one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    for client in [&one, &two] {
        ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    }
    let mut revoke = gateway.vpnd(&["revoke", "ann", "--config"]);
    revoke.arg(gateway.config());
    must(process::run(revoke));
    // A second is promised; a busy machine may ask later.
    eventually("her session is over", 2 * SECOND, || (gateway.sessions().len() == 1).then_some(()));
    assert_ne!(one.process().wait(10 * SECOND).code(), Some(0), "and her client is told");
    let is_refused = || {
        let (_, output) = Client::refused(&lab, 1, &ann, &[]);
        assert!(output.contains("refuse"), "{output}");
    };
    is_refused();
    gateway.kill();
    gateway.start();
    is_refused();
    ping_until(two.namespace(), CAMPUS_V4.into(), 30 * SECOND);
    // Without any she does not come in either: what is revoked is not forgotten.
    let bare = Login { profile: lab.path("bare.toml"), ..ann.clone() };
    fs::copy(&ann.profile, &bare.profile).expect("the laboratory's directory has room for it");
    edit_toml(&bare.profile, |profile| {
        let user = profile["user"].as_table_mut().expect("a section");
        user.remove("certificate");
        user.remove("key");
    });
    let (_, output) = Client::refused(&lab, 1, &bare, &[]);
    assert!(output.contains("refuse"), "{output}");
    let again = Login { profile: lab.path("again.toml"), ..ann.clone() };
    let mut command = gateway.user(&["certificate", "ann"]);
    command.arg("--profile-out").arg(&again.profile);
    must(process::run(command));
    let client = Client::connect(&lab, 1, &again);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
}
