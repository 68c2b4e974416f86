//! Logins at a real RADIUS server, FreeRADIUS, and at ones that forge.

use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use std::{fs, thread};

use vpnd_proto::control::{SecretText, UserName};

use super::freeradius::{FreeRadius, SECRET};
use super::packet::accounting::tests::response_to;
use super::packet::tests::reply_to;
use super::*;
use crate::PreparedSource;
use vpnd_config::ServerConfig;
use vpnd_ipc::gateway::auth::Traffic;
use vpnd_ipc::gateway::idp::testing::record;
use vpnd_ipc::gateway::idp::{AccountingEvent, LoginAnswer, SourceName, TerminateCause, Usage};
use vpnd_ipc::request::Reason;

type Reply = Result<Verdict, Reason>;

const ACCEPT: u8 = 2;
const RESPONSE: u8 = 5;

fn source(servers: &str, directory: &Path, secret: &str) -> Vec<PreparedSource> {
    source_with(servers, directory, secret, "")
}

fn source_with(servers: &str, directory: &Path, secret: &str, rest: &str) -> Vec<PreparedSource> {
    let file = directory.join("secret");
    fs::write(&file, format!("{secret}\n")).unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let timeout = if rest.contains("timeout_ms") { "" } else { "timeout_ms = 2500\n" };
    let text = format!(
        "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n[[source]]\nname = \"guests\"\n\
         kind = \"radius\"\nmatch = \"*\"\nservers = [{servers}]\nsecret_file = {file:?}\n{timeout}{rest}"
    );
    super::super::prepare(&ServerConfig::parse(&text, "server.toml", Path::new("/")).unwrap()).unwrap()
}

async fn check(sources: &[PreparedSource], user: &str, password: &str) -> Reply {
    let login = LoginCheck {
        source: SourceName::cut("guests"),
        user: UserName::new(user).unwrap(),
        password: SecretText::new(password).unwrap(),
        address: "192.0.2.1".parse().unwrap(),
    };
    super::super::check(sources, &login).await
}

fn groups(reply: &Reply) -> Vec<&str> {
    let Ok(Verdict::Accepted(identity)) = reply else { panic!("{reply:?}") };
    identity.groups.iter().map(|group| &**group).collect()
}

#[tokio::test]
async fn the_right_password_is_accepted_with_its_groups() {
    let Some(server) = FreeRadius::start("127.0.0.1", |program| Command::new(program)) else { return };
    let at = server.path();
    let servers = format!("\"radius://127.0.0.1:{}\"", server.port);
    let sources = source(&servers, at, SECRET);
    let until = Instant::now() + Duration::from_secs(60);
    // It takes a while to listen.
    let mut reply = check(&sources, "ann", "right").await;
    while reply.is_err() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
        reply = check(&sources, "ann", "right").await;
    }
    assert!(reply.is_ok(), "{}", server.log());
    assert_eq!(groups(&reply), ["staff", "vpn"]);
    let refused = Ok(Verdict::Refused(SourceRefusal::WrongPassword));
    for (user, password) in [("ann", "wrong"), ("eve", "right"), ("ann", ""), ("ann", &"x".repeat(129))] {
        assert_eq!(check(&sources, user, password).await, refused, "{user}");
    }
    let other = tempfile::tempdir().unwrap();
    assert!(check(&source(&servers, other.path(), "another"), "ann", "right").await.is_err());
}

/// The values of an attribute.
fn values<'r>(record: &'r [(String, String)], name: &str) -> Vec<&'r str> {
    record.iter().filter(|(of, _)| of == name).map(|(_, value)| value.as_str()).collect()
}

#[tokio::test]
async fn a_real_server_takes_records_and_gives_what_they_repeat() {
    let Some(server) = FreeRadius::start("127.0.0.1", |program| Command::new(program)) else { return };
    let servers = format!("\"radius://127.0.0.1:{}\"", server.port);
    // The first is not there.
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let accounting = format!(
        "accounting_servers = [\"radius://127.0.0.1:{gone}\", \"radius://127.0.0.1:{}\"]\n",
        server.accounting_port
    );
    let sources = source_with(&servers, server.path(), SECRET, &accounting);
    let until = Instant::now() + Duration::from_secs(60);
    let mut reply = check(&sources, "ann", "right").await;
    while reply.is_err() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
        reply = check(&sources, "ann", "right").await;
    }
    let Ok(Verdict::Accepted(identity)) = reply else { panic!("{reply:?}: {}", server.log()) };
    let classes: Vec<_> = identity.accept.classes.iter().map(|class| class.to_vec()).collect();
    assert_eq!(classes, [vec![0, 255, 1], b"two".to_vec()]);
    assert_eq!(identity.accept.interim_s, Some(900));

    let traffic = Traffic { rx_packets: 1, rx_bytes: (2 << 32) + 3, tx_packets: 4, tx_bytes: 5 };
    let usage = Usage { time_s: 60, traffic };
    for event in [
        AccountingEvent::On,
        AccountingEvent::Start,
        AccountingEvent::Interim(usage),
        AccountingEvent::Stop(usage, TerminateCause::UserRequest),
        AccountingEvent::Off,
    ] {
        let mut record = record(event);
        record.delay_s = 7;
        if let Some(session) = &mut record.session {
            session.classes = identity.accept.classes.clone();
        }
        assert_eq!(super::super::account(&sources, &record).await, Ok(()), "{}", server.log());
    }
    let records = server.records();
    let kinds: Vec<_> = records.iter().flat_map(|record| values(record, "Acct-Status-Type")).collect();
    assert_eq!(kinds, ["Accounting-On", "Start", "Interim-Update", "Stop", "Accounting-Off"]);
    let stop = &records[3];
    for (name, expected) in [
        ("User-Name", &["ann"][..]),
        ("Acct-Session-Id", &["0123456789abcdef"]),
        ("Acct-Session-Time", &["60"]),
        ("Acct-Input-Octets", &["3"]),
        ("Acct-Input-Gigawords", &["2"]),
        ("Acct-Output-Octets", &["5"]),
        ("Acct-Input-Packets", &["1"]),
        ("Acct-Terminate-Cause", &["User-Request"]),
        ("Acct-Delay-Time", &["7"]),
        ("Class", &["0x00ff01", "0x74776f"]),
        ("Framed-IP-Address", &["10.86.0.2"]),
        ("Framed-IPv6-Address", &["fd86::2"]),
        ("Calling-Station-Id", &["192.0.2.1"]),
        ("NAS-Identifier", &["vpnd"]),
    ] {
        assert_eq!(values(stop, name), expected, "{name}: {stop:?}");
    }
    let other = tempfile::tempdir().unwrap();
    let sources = source_with(&servers, other.path(), "another", &accounting);
    assert!(super::super::account(&sources, &record(AccountingEvent::On)).await.is_err());
    assert_eq!(server.records().len(), 5, "with another secret it takes none");
}

#[tokio::test]
async fn a_record_is_delivered_once_the_server_acknowledges_it() {
    let directory = tempfile::tempdir().unwrap();
    let forged: [Forge; 3] = [
        |request| response_to(request, RESPONSE, b"guessed"),
        |request| {
            let mut other = request.to_vec();
            other[1] = other[1].wrapping_add(1);
            response_to(&other, RESPONSE, SECRET.as_bytes())
        },
        |request| response_to(request, ACCEPT, SECRET.as_bytes()),
    ];
    let at = |port: u16| {
        let accounting = format!("accounting_servers = \"radius://127.0.0.1:{port}\"\ntimeout_ms = 1200\n");
        let servers = format!("\"radius://127.0.0.1:{port}\"");
        source_with(&servers, directory.path(), SECRET, &accounting)
    };
    let start = record(AccountingEvent::Start);
    let port = forger(move |request, _| forged.iter().map(|forge| forge(request)).collect());
    assert!(super::super::account(&at(port), &start).await.is_err());
    // One that is lost is sent again, and the answer behind forged ones counts.
    let port = forger(move |request, asked| {
        let honest = (asked > 0).then(|| response_to(request, RESPONSE, SECRET.as_bytes()));
        forged.iter().map(|forge| forge(request)).chain(honest).collect()
    });
    assert_eq!(super::super::account(&at(port), &start).await, Ok(()));
}

/// Answers a challenge.
async fn answer(sources: &[PreparedSource], user: &str, typed: &str, round: &Continuation) -> Reply {
    let answer = LoginAnswer {
        source: SourceName::cut("guests"),
        user: UserName::new(user).unwrap(),
        answer: SecretText::new(typed).unwrap(),
        address: "192.0.2.1".parse().unwrap(),
        round: round.clone(),
    };
    super::super::answer_challenge(sources, &answer).await
}

fn challenge(reply: Reply) -> IdpChallenge {
    let Ok(Verdict::Challenge(challenge)) = reply else { panic!("{reply:?}") };
    challenge
}

#[tokio::test]
async fn challenges_are_answered_round_by_round() {
    let Some(server) = FreeRadius::start("127.0.0.1", |program| Command::new(program)) else { return };
    let servers = format!("\"radius://127.0.0.1:{}\"", server.port);
    let sources = source(&servers, server.path(), SECRET);
    let until = Instant::now() + Duration::from_secs(60);
    while check(&sources, "ann", "right").await.is_err() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let first = challenge(check(&sources, "menu", "right").await);
    assert_eq!((first.kind, &*first.text), (ChallengeKind::Choice, "1 = token, 2 = SMS"));
    let second = challenge(answer(&sources, "menu", "1", &first.round).await);
    assert_eq!((second.kind, &*second.text), (ChallengeKind::Code, "Code from your token:"));
    assert_eq!(groups(&answer(&sources, "menu", "123456", &second.round).await), ["staff"]);
    let refused = Ok(Verdict::Refused(SourceRefusal::WrongPassword));
    assert_eq!(check(&sources, "menu", "wrong").await, refused);
    for typed in ["", "654321", &"1".repeat(MAX_PASSWORD + 1)] {
        assert_eq!(answer(&sources, "menu", typed, &second.round).await, refused, "{typed}");
    }
    let elsewhere = Continuation { server: Text::cut("127.0.0.1:1"), ..second.round };
    assert!(answer(&sources, "menu", "123456", &elsewhere).await.is_err(), "none of the source's");
}

#[tokio::test]
async fn a_person_is_asked_by_one_server_alone() {
    const CHALLENGE: u8 = 11;
    let directory = tempfile::tempdir().unwrap();
    let asked = std::sync::Arc::new(AtomicU32::new(0));
    let counter = std::sync::Arc::clone(&asked);
    let second = forger(move |request, _| {
        counter.fetch_add(1, Ordering::Relaxed);
        vec![reply_to(request, ACCEPT, &[], SECRET.as_bytes(), true)]
    });
    // It challenges, and then says nothing.
    let first = forger(|request, number| {
        let reply = || reply_to(request, CHALLENGE, &[24, 3, 7], SECRET.as_bytes(), true);
        (number == 0).then(reply).into_iter().collect()
    });
    let servers = format!("\"radius://127.0.0.1:{first}\", \"radius://127.0.0.1:{second}\"");
    let sources = source(&servers, directory.path(), SECRET);
    let challenged = challenge(check(&sources, "ann", "right").await);
    assert_eq!(challenged.round.state.as_deref(), Some(&[7][..]));
    assert!(answer(&sources, "ann", "123456", &challenged.round).await.is_err());
    assert_eq!(asked.load(Ordering::Relaxed), 0, "no other server knows the challenge");

    // One that is silent may have asked the person; one that is not there has not.
    let silent = forger(|_, _| Vec::new());
    let push = "push = true\npush_timeout_s = 5\n";
    let servers = format!("\"radius://127.0.0.1:{silent}\", \"radius://127.0.0.1:{second}\"");
    let sources = source_with(&servers, directory.path(), SECRET, push);
    assert!(check(&sources, "ann", "right").await.is_err());
    assert_eq!(asked.load(Ordering::Relaxed), 0, "a pending push is not sent a second time");
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let servers = format!("\"radius://127.0.0.1:{gone}\", \"radius://127.0.0.1:{second}\"");
    let sources = source_with(&servers, directory.path(), SECRET, push);
    assert_eq!(groups(&check(&sources, "ann", "right").await), [""; 0]);
}

/// Makes a reply to a request.
type Forge = fn(&[u8]) -> Vec<u8>;

/// A server that gives these replies to each request.
fn forger(replies: impl Fn(&[u8], u32) -> Vec<Vec<u8>> + Send + 'static) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let asked = AtomicU32::new(0);
    thread::spawn(move || {
        let mut buffer = [0; MAX_PACKET];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            for reply in replies(&buffer[..len], asked.fetch_add(1, Ordering::Relaxed)) {
                let _ = socket.send_to(&reply, from);
            }
        }
    });
    port
}

#[tokio::test]
async fn forged_replies_are_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let secret = SECRET.as_bytes();
    let forged: [Forge; 4] = [
        |request| reply_to(request, ACCEPT, &[], SECRET.as_bytes(), false),
        |request| reply_to(request, ACCEPT, &[], b"guessed", true),
        |request| {
            let mut other = request.to_vec();
            other[1] = other[1].wrapping_add(1);
            reply_to(&other, ACCEPT, &[], SECRET.as_bytes(), true)
        },
        |request| {
            let mut earlier = request.to_vec();
            earlier[4..20].fill(7);
            reply_to(&earlier, ACCEPT, &[], SECRET.as_bytes(), true)
        },
    ];
    for (number, forge) in forged.into_iter().enumerate() {
        let port = forger(move |request, _| vec![forge(request)]);
        let sources = source(&format!("\"radius://127.0.0.1:{port}\""), directory.path(), SECRET);
        assert!(check(&sources, "ann", "right").await.is_err(), "{number}");
    }
    // An honest reply behind them counts, and so does one to a request that was sent again.
    let all = move |request: &[u8]| forged.iter().map(|forge| forge(request)).collect::<Vec<_>>();
    let port = forger(move |request, asked| {
        let honest = (asked > 0).then(|| reply_to(request, ACCEPT, &[], secret, true));
        all(request).into_iter().chain(honest).collect()
    });
    let sources = source(&format!("\"radius://127.0.0.1:{port}\""), directory.path(), SECRET);
    assert_eq!(groups(&check(&sources, "ann", "right").await), [""; 0]);
}

#[tokio::test]
async fn another_server_is_asked_when_one_is_silent() {
    let directory = tempfile::tempdir().unwrap();
    let silent = forger(|_, _| Vec::new());
    let honest = forger(|request, _| vec![reply_to(request, ACCEPT, &[], SECRET.as_bytes(), true)]);
    let servers = format!("\"radius://127.0.0.1:{silent}\", \"radius://127.0.0.1:{honest}\"");
    assert_eq!(groups(&check(&source(&servers, directory.path(), SECRET), "ann", "right").await), [""; 0]);
}
