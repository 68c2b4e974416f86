//! Logins at a real RADIUS server, FreeRADIUS, and at ones that forge.

use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use std::{fs, thread};

use vpnd_proto::control::{SecretText, UserName};

use super::packet::tests::reply_to;
use super::*;
use crate::config::ServerConfig;
use crate::gateway::idp::PreparedSource;
use crate::gateway::messages::idp::SourceName;

#[path = "../../../../tests/netns/freeradius.rs"]
mod freeradius;
use freeradius::{FreeRadius, SECRET};

const ACCEPT: u8 = 2;

fn source(servers: &str, directory: &Path, secret: &str) -> Vec<PreparedSource> {
    let file = directory.join("secret");
    fs::write(&file, format!("{secret}\n")).unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let text = format!(
        "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n[[source]]\nname = \"guests\"\n\
         kind = \"radius\"\nmatch = \"*\"\nservers = [{servers}]\nsecret_file = {file:?}\ntimeout_ms = 2500\n"
    );
    super::super::prepare(&ServerConfig::parse(&text, "server.toml", Path::new("/")).unwrap()).unwrap()
}

async fn check(sources: &[PreparedSource], user: &str, password: &str) -> IdpReply {
    let login = LoginCheck {
        source: SourceName::cut("guests"),
        user: UserName::new(user).unwrap(),
        password: SecretText::new(password).unwrap(),
        address: "192.0.2.1".parse().unwrap(),
    };
    super::super::check(sources, &login).await
}

fn groups(reply: &IdpReply) -> Vec<&str> {
    let IdpReply::Accepted(identity) = reply else { panic!("{reply:?}") };
    identity.groups.iter().map(|group| &**group).collect()
}

fn is_unavailable(reply: &IdpReply) -> bool {
    matches!(reply, IdpReply::Unavailable(_))
}

#[tokio::test]
async fn who_has_the_password_is_let_in_with_groups() {
    let Some(server) = FreeRadius::start("127.0.0.1", |program| Command::new(program)) else { return };
    let at = server.path();
    let servers = format!("\"radius://127.0.0.1:{}\"", server.port);
    let sources = source(&servers, at, SECRET);
    let until = Instant::now() + Duration::from_secs(60);
    // It takes a while to listen.
    let mut reply = check(&sources, "ann", "right").await;
    while is_unavailable(&reply) && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
        reply = check(&sources, "ann", "right").await;
    }
    assert!(!is_unavailable(&reply), "{}", server.log());
    assert_eq!(groups(&reply), ["staff", "vpn"]);
    let refused = IdpReply::Refused(Refusal::WrongPassword);
    for (user, password) in [("ann", "wrong"), ("eve", "right"), ("ann", ""), ("ann", &"x".repeat(129))] {
        assert_eq!(check(&sources, user, password).await, refused, "{user}");
    }
    let other = tempfile::tempdir().unwrap();
    assert!(is_unavailable(&check(&source(&servers, other.path(), "another"), "ann", "right").await));
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
async fn forged_replies_let_nobody_in() {
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
        assert!(is_unavailable(&check(&sources, "ann", "right").await), "{number}");
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
