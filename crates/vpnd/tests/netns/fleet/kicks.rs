//! Behaviour: a kick reaches the sessions at every gateway of a fleet also while the database is
//! away, and a user who is disabled then stays out until an administrator enables them; orders that
//! are forged or sent again change nothing, and a gateway that does not answer is named. One that
//! is cut off alone learns from the others who was disabled.

use std::net::Ipv4Addr;

use socket2::{Domain, Protocol, Socket, Type};

use super::*;

/// The class of datagrams between gateways (docs/PROTOCOL.md, section 2).
const CLASS: [u8; 4] = [5, 0, 0, 0];
const PORT: u16 = 4_433;

/// Records the datagrams between gateways that arrive in a namespace.
struct Recorder(Socket);

impl Recorder {
    fn start(place: &Namespace) -> Self {
        let socket = place.within(|| Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP))).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self(socket)
    }

    /// Those that have arrived since the last call.
    fn arrived(&self) -> Vec<Vec<u8>> {
        let (mut bytes, mut found) = ([0; 2_048], Vec::new());
        while let Ok(length) = (&self.0).read(&mut bytes) {
            // Behind the headers of IPv4 and UDP.
            let datagram = &bytes[..length][usize::from(bytes[0] & 0xF) * 4 + 8..];
            if datagram.starts_with(&CLASS) {
                found.push(datagram.to_vec());
            }
        }
        found
    }
}

fn kick(gateway: &Gateway<'_>) -> (bool, String) {
    let mut kick = gateway.vpnd(&["kick", "ann", "--reason", "call 4711", "--config"]);
    kick.arg(gateway.config());
    let output = process::run(kick);
    (output.status.success(), process::text(&output))
}

/// Keeps datagrams from the second gateway, or the first one from the database.
fn cut(fleet: &Fleet<'_>, rule: &str) {
    fleet.lab.net.nft(&format!(
        "add table ip cut\n\
         add chain ip cut in {{ type filter hook input priority 0; }}\n\
         add chain ip cut through {{ type filter hook forward priority 0; }}\n\
         add rule ip cut {rule} drop\n"
    ));
}

/// A fleet whose clients begin at the second gateway, once the gateways know one another.
fn started<'l>(lab: &'l Lab) -> Option<(Fleet<'l>, Client<'l>)> {
    let mut fleet = Fleet::new(lab)?;
    edit_toml(&fleet.ann.profile, |profile| {
        profile["server"]["addresses"].as_array_mut().unwrap().remove(0);
    });
    fleet.start();
    let client = Client::connect(lab, 1, &fleet.ann);
    eventually("the second gateway has the session", LIMIT, at(&fleet.second));
    for (gateway, other) in [(&mut fleet.first, "gw2"), (&mut fleet.second, "gw1")] {
        said(gateway, &format!("orders go to {other}"), 1);
    }
    Some((fleet, client))
}

fn said(gateway: &mut Gateway<'_>, text: &str, times: usize) {
    eventually(text, LIMIT, || (gateway.process().output().matches(text).count() >= times).then_some(()));
}

#[test]
fn only_authentic_kicks_reach_another_gateway_without_the_database() {
    let Some(lab) = Lab::new(3) else { return };
    let Some((mut fleet, mut client)) = started(&lab) else { return };
    let [orders, confirmations] = [&lab.clients[1], &lab.gateway].map(Recorder::start);

    fleet.cluster.stop(true);
    let (began, first) = (Instant::now(), &fleet.first);
    let (is_good, shown) = thread::scope(|scope| {
        let command = scope.spawn(|| kick(first));
        let status = client.process().wait(LIMIT);
        println!("kicked without the database: out after {:.2?}", began.elapsed());
        assert!(!status.success() && client.process().output().contains("administrator"), "{status}");
        command.join().unwrap()
    });
    println!("kicked without the database: confirmed after {:.2?}", began.elapsed());
    assert!(is_good && shown.contains("1 session ended"), "{shown}");
    assert!(fleet.second.sessions().is_empty(), "it is confirmed once it is done");
    assert_eq!(exported(&fleet.first, "kicked")[0]["detail"], "ann: call 4711");

    cut(&fleet, &format!("through ip daddr {SECOND_GATEWAY} udp dport {PORT}"));
    let (is_good, shown) = kick(&fleet.first);
    assert!(!is_good && shown.contains("not confirmed") && shown.contains("gw2"), "{shown}");
    lab.net.nft("delete table ip cut\n");
    said(&mut fleet.second, "ended by an order", 2);
    fleet.cluster.restart();
    said(&mut fleet.first, "kicks are in the user database now", 1);
    // A revocation ends the sessions that begin until it is read, too.
    said(&mut fleet.second, "revoked user=ann cause=Kicked", 2);

    drop(client);
    let mut client = Client::connect(&lab, 1, &fleet.ann);
    eventually("the user may log in again", LIMIT, at(&fleet.second));
    let before = session(&fleet.second);
    let (recorded, not_quic) =
        (orders.arrived(), || fleet.second.status()["counters"]["handshakes"]["not_quic"].as_u64().unwrap());
    assert!(recorded.len() >= 2, "{recorded:?}");
    confirmations.arrived();
    let forged_before = not_quic();
    let attacker = lab.clients[2].within(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
    for order in &recorded {
        let mut forged = order.clone();
        *forged.last_mut().unwrap() ^= 1;
        attacker.send_to(&forged, (SECOND_GATEWAY, PORT)).unwrap();
    }
    eventually("forged ones are counted", LIMIT, || {
        (not_quic() >= forged_before + recorded.len() as u64).then_some(())
    });
    let mut confirmed = 0;
    eventually("those that are sent again are confirmed again", LIMIT, || {
        for order in &recorded {
            attacker.send_to(order, (SECOND_GATEWAY, PORT)).unwrap();
        }
        confirmed += confirmations.arrived().len();
        (confirmed >= recorded.len()).then_some(())
    });
    client.process().assert_running();
    assert_eq!(session(&fleet.second), before, "and change nothing");
}

#[test]
fn a_gateway_without_the_database_ends_sessions_of_disabled_users() {
    let Some(lab) = Lab::new(2) else { return };
    let Some((mut fleet, mut client)) = started(&lab) else { return };
    cut(&fleet, &format!("in ip saddr {SECOND_GATEWAY} tcp dport {}", fleet.cluster.port));
    must(process::run(fleet.first.user(&["disable", "ann"])));
    let disabled = Instant::now();
    let status = client.process().wait(LIMIT);
    println!("disabled while its gateway is cut off: out after {:.2?}", disabled.elapsed());
    assert!(!status.success() && client.process().output().contains("disabled"), "{status}");
    said(&mut fleet.second, "ended by an order", 1);
}

fn disable(gateway: &Gateway<'_>) -> (bool, String) {
    let output = process::run(gateway.user(&["disable", "ann", "--reason", "call 4711"]));
    (output.status.success(), process::text(&output))
}

#[test]
fn a_user_disabled_in_a_database_outage_stays_out_until_enabled() {
    let Some(lab) = Lab::new(2) else { return };
    let Some((mut fleet, mut client)) = started(&lab) else { return };
    let is_enabled =
        |fleet: &Fleet<'_>| fleet.cluster.sql(&fleet.database, "SELECT enabled FROM vpnd.users") == "1";
    fleet.cluster.stop(true);
    let (began, first) = (Instant::now(), &fleet.first);
    let (is_good, shown) = thread::scope(|scope| {
        let command = scope.spawn(|| disable(first));
        let status = client.process().wait(LIMIT);
        println!("disabled without the database: out after {:.2?}", began.elapsed());
        assert!(!status.success() && client.process().output().contains("disabled"), "{status}");
        command.join().unwrap()
    });
    println!("disabled without the database: confirmed after {:.2?}: {shown}", began.elapsed());
    assert!(is_good && shown.contains("at gateways gw1, gw2: 1 session ended"), "{shown}");
    assert!(shown.contains("written as soon as"), "{shown}");
    assert_eq!(exported(&fleet.first, "user-disabled")[0]["detail"], "call 4711");

    cut(&fleet, &format!("through ip daddr {SECOND_GATEWAY} udp dport {PORT}"));
    let (is_good, shown) = disable(&fleet.first);
    assert!(!is_good && shown.contains("at gateways gw1,") && shown.contains("that: gw2."), "{shown}");
    lab.net.nft("delete table ip cut\n");
    said(&mut fleet.second, "ended by an order", 2);

    // The gateway of the order stays without the database, and the other one starts again.
    cut(&fleet, &format!("in ip saddr {GATEWAY_V4} tcp dport {}", fleet.cluster.port));
    fleet.second.kill();
    fleet.cluster.restart();
    assert!(is_enabled(&fleet));
    fleet.second.start();
    let (_, refused) = Client::refused(&lab, 1, &fleet.ann, &[]);
    assert!(refused.contains("the login was refused"), "{refused}");
    println!("refused at the other gateway; the database has it as enabled: {}", is_enabled(&fleet));
    said(&mut fleet.second, "kicks are in the user database now", 1);
    assert!(!is_enabled(&fleet), "the other one has written it");
    must(process::run(fleet.second.user(&["enable", "ann"])));
    let mut client = Client::connect(&lab, 1, &fleet.ann);

    lab.net.nft("delete table ip cut\n");
    said(&mut fleet.first, "kicks are in the user database now", 1);
    assert!(is_enabled(&fleet), "it was written before an administrator enabled the user");
    client.process().assert_running();
}
