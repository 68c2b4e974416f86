//! Guesses at the passwords of a directory and of a RADIUS server, many at the same time: how many
//! reach it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use tokio::task::JoinSet;
use vpnd_proto::control::{Code, Message};

use super::{ADDRESS, add_source, beside};
use crate::freeradius::FreeRadius;
use crate::gateway::{Gateway, Login};
use crate::lab::Lab;
use crate::slapd::{ADMIN, Slapd, person};
use crate::theft::{Speaker, in_her_box};

/// Guesses at the same time: more than a source checks and has waiting.
const GUESSES: u8 = 120;

/// A guess at a password: its address, the user.
type Guess = (IpAddr, &'static str);

/// Makes all these guesses at the same time. Returns how many were looked at, and how many more
/// than `free` may have been: a slow machine takes longer than the first waits.
fn guess(lab: &Lab, profile: &Login, guesses: &[Guess]) -> (u64, u64) {
    let began = Instant::now();
    let outcomes = in_her_box(lab, async || {
        let first = Speaker::new(&profile.profile, 1);
        let mut under_way = JoinSet::new();
        for (number, (address, user)) in (0u8..).zip(guesses) {
            let (speaker, user) = (Arc::new(first.at(*address, [number + 2; 32])), *user);
            under_way.spawn(async move {
                let mut line = speaker.dial().await;
                let login = speaker.login_with(&line, user, "a guess");
                line.ask(&login).await
            });
        }
        under_way.join_all().await
    });
    let looked_at = |outcome: &Result<Message, Code>| match outcome {
        Err(Code::Credentials) => true,
        Err(Code::Throttled | Code::Busy) => false,
        other => panic!("{other:?}"),
    };
    // They double from 1 s.
    let waits = u64::from((began.elapsed().as_secs() + 2).ilog2());
    (outcomes.iter().filter(|outcome| looked_at(outcome)).count() as u64, waits)
}

/// An address of the same /48 for each number.
fn of_one_provider(number: u8) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 1, u16::from(number) << 8, 0, 0, 0, 1).into()
}

fn route(lab: &Lab) {
    let client = &lab.clients[0];
    client.ip_batch("route add local 203.0.113.0/24 dev lo\nroute add local 2001:db8:1::/48 dev lo\n");
    client.sysctl("net/ipv6/ip_nonlocal_bind", "1");
    lab.net.ip_batch("route add 203.0.113.0/24 via 198.18.1.2\nroute add 2001:db8:1::/48 via fd18:1::2\n");
}

#[test]
fn guesses_at_the_same_time_reach_a_directory_no_oftener_than_one_after_the_other() {
    let Some(lab) = Lab::new(1) else { return };
    route(&lab);
    let mut gateway = Gateway::init(&lab);
    gateway.configure("limits.max_handshakes", 1024);
    let local = gateway.add_user("local");
    let command = |program: &str| beside(&lab, program);
    let people = ["ann", "bob", "eve"]
        .map(|name| person(name, "right").replace("\n\n", &format!("\nmail: {name}.smith@uni.example\n\n")));
    let Some(slapd) = Slapd::start(ADDRESS, command, &people.concat()) else { return };
    add_source(
        &gateway,
        &format!(
            "name = \"staff\"\nkind = \"ldap\"\nrealm = \"uni.example\"\nservers = [\"ldaps://{ADDRESS}:{}\"]\nca = {:?}\n\
             bind_dn = \"{ADMIN}\"\nbind_password_file = {:?}\nbase = \"ou=people,dc=uni,dc=example\"\n\
             filter = \"(|(uid={{user}})(mail={{user}}@uni.example))\"\ntimeout_ms = 8000\n",
            slapd.tls,
            slapd.ca(),
            slapd.password_file()
        ),
    );
    gateway.start();
    // Each login that reaches the directory begins by a search for the entry.
    let searches = || slapd.searches(&command, ADDRESS);
    let at_most = |free: u64, guesses: &[Guess]| {
        let before = searches();
        let (looked_at, waits) = guess(&lab, &local, guesses);
        let reached = searches() - before - 1;
        println!("{} guesses at the same time: {reached} reached the directory", guesses.len());
        assert_eq!(looked_at, reached);
        assert!((1..=free + waits).contains(&reached), "{reached} of {free} + {waits}");
    };
    let host = IpAddr::from(Ipv4Addr::new(203, 0, 113, 1));
    let of_host = vec![(host, "ann@uni.example"); usize::from(GUESSES)];
    at_most(5, &of_host);
    let of_provider: Vec<_> = (0..GUESSES).map(|n| (of_one_provider(n), "bob@uni.example")).collect();
    at_most(40, &of_provider);
    // One entry by two names, which the gateway learns by the first guess at each.
    let names = ["eve@uni.example", "eve.smith@uni.example"];
    for name in names {
        at_most(1, &[(host, name)]);
    }
    let by_both: Vec<_> = (0..usize::from(GUESSES)).map(|n| (host, names[n % 2])).collect();
    at_most(3, &by_both);
}

#[test]
fn guesses_at_the_same_time_reach_a_radius_server_no_oftener_than_one_after_the_other() {
    let Some(lab) = Lab::new(1) else { return };
    route(&lab);
    let mut gateway = Gateway::init(&lab);
    gateway.configure("limits.max_handshakes", 1024);
    let local = gateway.add_user("local");
    let Some(radius) = FreeRadius::start(ADDRESS, |program| beside(&lab, program)) else { return };
    add_source(&gateway, &radius.source(ADDRESS, "timeout_ms = 8000\n"));
    gateway.start();
    let answers = || gateway.status()["counters"]["source_answers"]["guests"].as_u64().unwrap_or_default();
    let host = IpAddr::from(Ipv4Addr::new(203, 0, 113, 1));
    let of_host = vec![(host, "ann@guests.example"); usize::from(GUESSES)];
    let of_provider: Vec<_> = (0..GUESSES).map(|n| (of_one_provider(n), "token@guests.example")).collect();
    for (guesses, free) in [(of_host, 5), (of_provider, 40)] {
        let before = answers();
        let (looked_at, waits) = guess(&lab, &local, &guesses);
        let reached = answers() - before;
        println!("{} guesses at the same time: {reached} reached the server", guesses.len());
        assert_eq!(looked_at, reached);
        assert!((1..=free + waits).contains(&reached), "{reached} of {free} + {waits}");
    }
}
