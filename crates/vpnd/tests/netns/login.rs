//! Behaviour: a refused login gets a clear refusal that discloses nothing else.

use std::error::Error;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, IsCa, Issuer, KeyPair};

use crate::client::Client;
use crate::gateway::{Gateway, Login, edit_toml, must, strings, write_secret};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab};
use crate::process;
use crate::traffic::ping_until;

#[test]
fn wrong_credentials_are_refused_alike() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    must(process::run(gateway.user(&["disable", "bob"])));
    gateway.start();

    let wrong = lab.path("wrong.credentials");
    write_secret(&wrong, "not the password\n");
    let wrong_password = Login { credentials: wrong, ..ann.clone() };
    let stranger = Login { profile: lab.path("stranger.toml"), ..ann.clone() };
    fs::copy(&ann.profile, &stranger.profile).unwrap();
    edit_toml(&stranger.profile, |profile| {
        let user = profile["user"].as_table_mut().expect("a section");
        user.insert("name".to_owned(), "stranger".into());
    });

    for (who, login) in
        [("wrong password", wrong_password), ("unknown user", stranger), ("disabled user", bob)]
    {
        let (status, output) = Client::refused(&lab, 1, &login, &[]);
        assert_eq!(status, 3, "{who}: its unit must not try again: {output}");
        assert_eq!(
            output.matches("login was refused").count(),
            1,
            "{who}: what may be wrong, once: {output}"
        );
        assert!(output.contains("the client stops") && output.contains("reason=\"refused\""), "{output}");
        for reason in ["unknown user", "no such user", "disabled", "does not exist"] {
            assert!(!output.to_lowercase().contains(reason), "{who}: it does not say which: {output}");
        }
    }
    assert!(gateway.sessions().is_empty());
    // With the right password the same box gets in: nothing else was in the way.
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), Duration::from_secs(5));
}

#[test]
fn readable_credentials_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    fs::set_permissions(&ann.credentials, fs::Permissions::from_mode(0o644)).unwrap();
    let (_, output) = Client::refused(&lab, 1, &ann, &[]);
    assert!(output.contains("600"), "it says which mode is right: {output}");
}

#[test]
fn a_gateway_of_another_ca_gets_nothing_and_the_right_one_is_waited_for() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    let kept = ["server.pem", "server-key.pem", "ca.pem", "ca-key.pem", "server.toml"]
        .map(|name| (name, fs::read(gateway.file(name)).unwrap()));
    let mut again = gateway.vpnd(&["init", "--force", "--name", &GATEWAY_V4.to_string()]);
    again.arg("--dir").arg(gateway.file(""));
    must(process::run(again));
    fs::write(gateway.config(), &kept[4].1).unwrap();
    gateway.start();
    let mut client = Client::trying(&lab, 1, &ann, "was not signed by the authority that the profile trusts");
    let output = client.process().output();
    assert!(output.contains("the password is sent only to"), "{output}");
    for jargon in ["does not answer", "BadSignature", "UnknownIssuer", "error 51", "error 48"] {
        assert!(!output.contains(jargon), "{output}");
    }
    assert!(gateway.sessions().is_empty());
    gateway.terminate();
    for (name, bytes) in &kept {
        fs::write(gateway.file(name), bytes).unwrap();
    }
    gateway.start();
    ping_until(client.namespace(), CAMPUS_V4.into(), Duration::from_secs(60));
    client.process().assert_running();
}

#[test]
fn a_missing_client_certificate_is_reported() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("tls.client_ca", "ca.pem");
    gateway.configure("tls.client_ca_key", "ca-key.pem");
    gateway.configure("tls.require_client_certificate", true);
    let ann = gateway.add_user("ann");
    gateway.start();
    let (_, output) = Client::refused(&lab, 1, &ann, &[]);
    assert!(output.contains("the gateway wants a client certificate"), "{output}");
    assert!(gateway.sessions().is_empty());
}

#[test]
fn a_certificate_that_expired_meanwhile_is_not_trusted() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    // A gateway does not start with an expired certificate, so this one is good when it starts.
    let expires = SystemTime::now() + Duration::from_secs(8);
    let since_1970 = expires.duration_since(UNIX_EPOCH).unwrap();
    let not_after = rcgen::date_time_ymd(1970, 1, 1) + since_1970;
    let ca = present_certificate(&gateway, |leaf| leaf.not_after = not_after).unwrap();
    edit_toml(&ann.profile, |profile| {
        let server = profile["server"].as_table_mut().expect("a section");
        server.insert("ca".to_owned(), ca.into());
    });
    gateway.start();
    let mut one = Client::connect(&lab, 1, &ann);
    one.interrupt();
    let left = (expires + Duration::from_secs(1)).duration_since(SystemTime::now()).unwrap_or_default();
    std::thread::sleep(left);
    Client::trying(&lab, 1, &ann, "expired: the administrator has to run 'vpnd renew'");
    assert!(gateway.sessions().is_empty());
}

#[test]
fn a_gateway_with_an_expired_certificate_does_not_start() {
    let Some(lab) = Lab::new(1) else { return };
    let gateway = Gateway::init(&lab);
    let not_after = rcgen::date_time_ymd(2020, 12, 31);
    present_certificate(&gateway, |leaf| leaf.not_after = not_after).unwrap();
    let output = process::run(gateway.server(&[]));
    assert_eq!(output.status.code(), Some(1), "the clock may be wrong, and right later");
    assert!(process::text(&output).contains("expired"), "{}", process::text(&output));
}

/// Gives the gateway another certificate; the CA that has signed it, which is good for long.
fn present_certificate(
    gateway: &Gateway<'_>,
    edit: impl FnOnce(&mut CertificateParams),
) -> Result<String, Box<dyn Error>> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(vec![])?;
    ca.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(ca, ca_key);

    let key = KeyPair::generate()?;
    let mut leaf = CertificateParams::new(vec![GATEWAY_V4.to_string()])?;
    leaf.not_before = rcgen::date_time_ymd(2020, 1, 1);
    leaf.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    edit(&mut leaf);
    let leaf = leaf.signed_by(&key, &issuer)?;

    let table: toml::Table = fs::read_to_string(gateway.config())?.parse()?;
    let file = |key: &str| gateway.file(table["tls"][key].as_str().expect("a path"));
    fs::write(file("certificate"), leaf.pem())?;
    write_secret(&file("key"), &key.serialize_pem());
    edit_toml(&gateway.config(), |config| {
        let tls = config["tls"].as_table_mut().expect("a section");
        for key in ["ca", "ca_key"] {
            tls.remove(key);
        }
    });
    Ok(ca_pem)
}

#[test]
fn lab_suites_need_the_switch_at_both_ends() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let (_, output) = Client::refused(&lab, 1, &ann, &["--suite", "none", "--insecure-lab"]);
    assert!(output.contains("suite"), "the gateway has none in common: {output}");
    let (_, output) = Client::refused(&lab, 1, &ann, &["--suite", "none"]);
    assert!(output.contains("insecure-lab"), "the client says what is missing: {output}");
    gateway.terminate();

    gateway.configure("crypto.suites", strings(&["none"]));
    let output = process::run(gateway.server(&[]));
    assert!(!output.status.success(), "the gateway does not start without the switch");
    assert!(process::text(&output).contains("insecure-lab"), "{}", process::text(&output));
    gateway.start_with(&["--insecure-lab"]);
    let (_, output) = Client::refused(&lab, 1, &ann, &[]);
    assert!(output.contains("suite"), "a client without the switch has none in common: {output}");
}
