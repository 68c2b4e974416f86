//! Behaviour: a RADIUS server ends sessions and changes groups at once, sent by `radclient`;
//! another sender changes nothing.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{ADDRESS, TIMEOUT, add_source, beside, login_of};
use crate::client::Client;
use crate::freeradius::FreeRadius;
use crate::gateway::{Gateway, must, write_secret};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process;
use crate::traffic::ping_until;
use crate::wireguard::{Stock, add_device, before_the_wall, program, stays_out};

const PORT: u16 = 3799;
const SECRET: &str = "of the server alone";

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970").as_secs()
}

/// Sends a request from `from`; the name of the reply, or nothing.
fn ask(lab: &Lab, from: &str, secret: &str, kind: &str, attributes: &str) -> String {
    let mut command: Command = beside(lab, "radclient");
    command.args(["-x", "-r", "1", "-t", "2", &format!("{ADDRESS}:{PORT}"), kind, secret]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut radclient = command.spawn().expect("freeradius-utils is installed");
    let mut stdin = radclient.stdin.take().expect("it is piped");
    writeln!(stdin, "{attributes},Packet-Src-IP-Address={from}").expect("it reads");
    drop(stdin);
    let output = process::text(&radclient.wait_with_output().expect("it ends"));
    let received = output.lines().find_map(|line| line.split_once("Received ").map(|(_, rest)| rest));
    let name = received.and_then(|rest| rest.split_whitespace().next()).unwrap_or_default().to_owned();
    let cause = output.lines().find_map(|line| line.trim().strip_prefix("Error-Cause = "));
    format!("{name} {}", cause.unwrap_or_default()).trim().to_owned()
}

/// Makes it with all that a request needs.
pub(super) fn request(lab: &Lab, kind: &str, attributes: &str) -> String {
    let attributes = format!("{attributes},Event-Timestamp={},Message-Authenticator=0x00", now_s());
    ask(lab, ADDRESS, SECRET, kind, &attributes)
}

pub(super) fn configure(lab: &Lab, gateway: &Gateway<'_>, radius: &FreeRadius, has_accounting: bool) {
    let secret: PathBuf = lab.path("coa.secret");
    write_secret(&secret, &format!("{SECRET}\n"));
    let accounting = format!("accounting_servers = [\"radius://{ADDRESS}:{}\"]\n", radius.accounting_port);
    let accounting = if has_accounting { accounting.as_str() } else { "" };
    let keys = format!(
        "{accounting}coa_listen = \"{ADDRESS}:{PORT}\"\ncoa_clients = [\"{ADDRESS}\"]\ncoa_secret_file = {secret:?}\n"
    );
    add_source(gateway, &radius.source(ADDRESS, &keys));
}

/// A request counts only if it was made after the gateway began, in whole seconds.
pub(super) fn let_a_second_pass() {
    let since = now_s();
    eventually("another second begins", TIMEOUT, || (now_s() > since + 1).then_some(()));
}

#[test]
fn only_the_radius_server_ends_sessions_and_changes_groups() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.install();
    let local = gateway.add_user("local");
    let Some(radius) = FreeRadius::start(ADDRESS, |program| beside(&lab, program)) else { return };
    configure(&lab, &gateway, &radius, true);
    gateway.start();
    let ann = login_of(&lab, &local, "ann@guests.example", "right");
    let mut one = Client::connect(&lab, 1, &ann);
    let other = Client::connect(&lab, 2, &local);
    ping_until(one.namespace(), CAMPUS_V4.into(), TIMEOUT);
    ping_until(other.namespace(), CAMPUS_V4.into(), TIMEOUT);
    let_a_second_pass();

    // Forged, unsigned, old, from elsewhere: no reply, and nothing happens.
    let signed = |at_s: u64| format!("User-Name=ann,Event-Timestamp={at_s},Message-Authenticator=0x00");
    let now = signed(now_s());
    for (what, from, secret, attributes) in [
        ("another secret", ADDRESS, "guessed", now.clone()),
        ("another address", "127.0.0.2", SECRET, now.clone()),
        ("no signature", ADDRESS, SECRET, format!("User-Name=ann,Event-Timestamp={}", now_s())),
        ("an old one", ADDRESS, SECRET, signed(now_s() - 400)),
        ("one of the future", ADDRESS, SECRET, signed(now_s() + 400)),
    ] {
        assert_eq!(ask(&lab, from, secret, "disconnect", &attributes), "", "{what}");
    }
    // A local user's session is no affair of the server's, by name or by address.
    let not_found = "Disconnect-NAK Session-Context-Not-Found";
    assert_eq!(request(&lab, "disconnect", "User-Name=local"), not_found);
    assert_eq!(request(&lab, "disconnect", &format!("Framed-IP-Address={}", other.v4())), not_found);
    assert_eq!(request(&lab, "coa", "User-Name=ann,Session-Timeout=60"), "CoA-NAK Unsupported-Attribute");
    assert_eq!(
        request(&lab, "disconnect", "NAS-Identifier=other,User-Name=ann"),
        "Disconnect-NAK NAS-Identification-Mismatch"
    );
    assert_eq!(gateway.sessions().len(), 2);

    assert_eq!(request(&lab, "coa", "User-Name=ann,Filter-Id=moved,Filter-Id+=vpn"), "CoA-ACK");
    let users = process::text(&must(process::run(gateway.user(&["list"]))));
    let line = users.lines().find(|line| line.contains("ann@guests.example")).unwrap_or_default();
    assert!(line.contains("moved") && !line.contains("staff"), "{users}");
    ping_until(one.namespace(), CAMPUS_V4.into(), TIMEOUT);

    // The socket stays open over an upgrade.
    must(gateway.upgrade());
    // A notice that is lost on the way would not reach her: without it she asks again after a
    // while.
    eventually("she is connected to the next process", 2 * TIMEOUT, || {
        (one.process().output().matches("connected").count() > 1).then_some(())
    });
    let_a_second_pass();
    assert_eq!(request(&lab, "disconnect", &format!("Framed-IP-Address={}", one.v4())), "Disconnect-ACK");
    let mut one = one.into_process();
    one.wait(TIMEOUT);
    assert!(one.output().contains("the server of this account has ended the session"), "{}", one.output());
    assert_eq!(gateway.sessions().len(), 1, "the other goes on");
    let stop = eventually("its end is accounted for", TIMEOUT, || {
        radius.records().into_iter().find(|record| record.iter().any(|(_, value)| value == "Stop"))
    });
    assert!(stop.contains(&("Acct-Terminate-Cause".to_owned(), "Admin-Reset".to_owned())), "{stop:?}");

    // She may come back, and be ended by the id that the server knows her session by.
    let again = Client::connect(&lab, 1, &ann);
    let id = eventually("the session is accounted for", TIMEOUT, || {
        let start = radius
            .records()
            .into_iter()
            .filter(|record| record.iter().any(|(_, value)| value == "Start"))
            .nth(1)?;
        start.into_iter().find(|(name, _)| name == "Acct-Session-Id").map(|(_, id)| id)
    });
    assert_eq!(request(&lab, "disconnect", &format!("Acct-Session-Id={id}")), "Disconnect-ACK");
    let since = std::time::Instant::now();
    let mut again = again.into_process();
    again.wait(TIMEOUT);
    eprintln!("from the RADIUS server's word to the end of the client: {:?}", since.elapsed());
    assert!(since.elapsed() < Duration::from_secs(10), "it took {:?}", since.elapsed());
    assert_eq!(request(&lab, "disconnect", &format!("Acct-Session-Id={id}")), not_found);
}

#[test]
fn a_disconnected_user_is_out_with_wireguard_devices_until_they_are_renewed() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let local = gateway.add_user("local");
    let Some(radius) = FreeRadius::start(ADDRESS, |program| beside(&lab, program)) else { return };
    configure(&lab, &gateway, &radius, false);
    gateway.configure("wireguard.enabled", true);
    gateway.start();
    let ann = login_of(&lab, &local, "ann@guests.example", "right");
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    let phone = Stock::start(&lab, 2, &program, &add_device(&gateway, "ann@guests.example"));
    ping_until(phone.place, CAMPUS_V4.into(), TIMEOUT);
    let_a_second_pass();
    let since = Instant::now();
    assert_eq!(request(&lab, "disconnect", "User-Name=ann"), "Disconnect-ACK");
    eventually("her sessions are over", TIMEOUT, || (before_the_wall(&gateway) == 0).then_some(()));
    eprintln!(
        "from the Disconnect-Request to the end of the sessions of client and phone: {:?}",
        since.elapsed()
    );
    stays_out(&gateway, &phone);
    drop(client);
    let mut renew = gateway.vpnd(&["device", "renew", "phone", "--user", "ann@guests.example"]);
    renew.arg("--config").arg(gateway.config());
    must(process::run(renew));
    ping_until(phone.place, CAMPUS_V4.into(), TIMEOUT);
}
