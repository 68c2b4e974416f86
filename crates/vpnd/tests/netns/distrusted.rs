//! Behaviour: a client that can't trust its gateway, because the gateway's certificate has expired
//! or the machine's clock is wrong, lets nothing out in clear: with a kill switch from its start,
//! and with a full tunnel once that has been up. It connects when the clock is right.
//!
//! `net` counts what arrives of client 1 in clear. At the end it must see packets without the
//! tunnel.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustix::process::Signal;

use crate::client::{self, Client};
use crate::full::{in_clear, speak, watch};
use crate::gateway::{Gateway, Login, edit_toml, write_secret};
use crate::kill_switch;
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::process::Process;
use crate::relay::PORT;
use crate::traffic::ping_until;
use crate::wrong_clock::WrongClock;

const SECOND: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(60);
const DAY_S: i64 = 86_400;
/// Time for a gateway's start, a login and another start.
const GOOD_FOR: Duration = Duration::from_secs(40);

/// The authority that a profile trusts.
struct Authority(Issuer<'static, KeyPair>);

impl Authority {
    /// A new one, in the place of the gateway's.
    fn new(gateway: &Gateway<'_>, login: &Login) -> Self {
        let (mut params, key) = (CertificateParams::new(vec![]).unwrap(), KeyPair::generate().unwrap());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let trusted = params.self_signed(&key).unwrap().pem();
        edit_toml(&gateway.config(), |config| {
            let tls = config["tls"].as_table_mut().unwrap();
            tls.remove("ca");
            tls.remove("ca_key");
        });
        edit_toml(&login.profile, |profile| {
            profile["server"].as_table_mut().unwrap().insert("ca".to_owned(), trusted.into());
        });
        Self(Issuer::new(params, key))
    }

    /// Gives the gateway a certificate that is good until then.
    fn certify(&self, gateway: &Gateway<'_>, until: SystemTime) {
        let key = KeyPair::generate().unwrap();
        let mut leaf = CertificateParams::new(vec![GATEWAY_V4.to_string()]).unwrap();
        leaf.not_before = rcgen::date_time_ymd(2020, 1, 1);
        leaf.not_after = rcgen::date_time_ymd(1970, 1, 1) + until.duration_since(UNIX_EPOCH).unwrap();
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let leaf = leaf.signed_by(&key, &self.0).unwrap();
        fs::write(gateway.file("server.pem"), leaf.pem()).unwrap();
        write_secret(&gateway.file("server-key.pem"), &key.serialize_pem());
    }
}

fn wait_until(time: SystemTime) {
    sleep(time.duration_since(SystemTime::now()).unwrap_or_default());
}

/// The tunnel of this client is lost, and the gateway's certificate has expired when it is back.
fn expires_in_an_outage(arguments: &[&str]) {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = kill_switch::gateway(&lab);
    let expires = SystemTime::now() + GOOD_FOR;
    Authority::new(&gateway, &ann).certify(&gateway, expires);
    gateway.start();
    let mut client = Client::connect_with(&lab, 1, &ann, arguments);
    let machine = client.namespace();
    ping_until(machine, CAMPUS_V4.into(), TIMEOUT);
    watch(&lab);
    lab.net.nft(&format!(
        "table inet hole {{ chain f {{ type filter hook forward priority 0; udp dport {PORT} drop; }}; }}\n"
    ));
    gateway.kill();
    // While its certificate is good, without which it would not start.
    gateway.start();
    while SystemTime::now() < expires {
        speak(machine);
        sleep(SECOND / 2);
    }
    wait_until(expires + SECOND);
    assert_eq!(in_clear(&lab), 0, "while the gateway is out of reach");
    lab.net.nft("delete table inet hole\n");
    eventually("the client says why", TIMEOUT, || {
        speak(machine);
        client.process().assert_running();
        client.process().output().contains("the gateway's certificate has expired").then_some(())
    });
    for _ in 0..5 {
        speak(machine);
    }
    assert_eq!(in_clear(&lab), 0, "while the gateway is not trusted");
    client.interrupt();
    speak(machine);
    assert!(in_clear(&lab) > 0, "without the tunnel it is a leak");
}

#[test]
fn a_certificate_that_expires_in_an_outage_opens_no_full_tunnel() {
    expires_in_an_outage(&[]);
}

#[test]
fn a_certificate_that_expires_in_an_outage_opens_no_kill_switch() {
    expires_in_an_outage(&["--kill-switch"]);
}

/// A client with a kill switch starts while its clock is that far ahead, and logs these words;
/// it connects once the clock is right.
fn starts_with_a_wrong_clock(ahead_s: i64, words: &str) {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = kill_switch::gateway(&lab);
    gateway.start();
    watch(&lab);
    let machine = &lab.clients[0];
    let clock = WrongClock::of(&lab, machine, ahead_s);
    let mut client = Process::start(&lab, "client1", client::command(&lab, 1, &ann, &["--kill-switch"]));
    eventually("the client says why", TIMEOUT, || {
        client.assert_running();
        client.output().contains(words).then_some(())
    });
    for _ in 0..5 {
        speak(machine);
    }
    assert_eq!(in_clear(&lab), 0, "while the gateway is not trusted");
    assert!(gateway.sessions().is_empty());
    clock.set(0);
    let began = Instant::now();
    ping_until(machine, CAMPUS_V4.into(), TIMEOUT);
    println!("connected {:?} after the clock was set", began.elapsed());
    speak(machine);
    assert_eq!(in_clear(&lab), 0, "with the tunnel");
    client.signal(Signal::INT);
    assert!(client.wait(TIMEOUT).success(), "{}", client.output());
    speak(machine);
    assert!(in_clear(&lab) > 0, "without the tunnel it is a leak");
}

#[test]
fn a_clock_that_is_ahead_opens_no_kill_switch_and_the_client_connects_when_it_is_right() {
    starts_with_a_wrong_clock(
        2 * 365 * DAY_S,
        "the gateway's certificate has expired: the administrator has to run 'vpnd renew', unless the clock of this machine is wrong",
    );
}

#[test]
fn a_clock_that_is_behind_opens_no_kill_switch_and_the_client_connects_when_it_is_right() {
    starts_with_a_wrong_clock(
        -40 * DAY_S,
        "the gateway's certificate is not valid yet: is the clock of this machine right?",
    );
}
