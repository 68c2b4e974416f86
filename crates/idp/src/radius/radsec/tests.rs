//! Servers in TLS, honest ones and others.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use vpnd_proto::control::{SecretText, UserName};

use super::super::freeradius::FreeRadius;
use super::super::packet::accounting::tests::response_to;
use super::super::packet::tests::reply_to;
use super::*;
use crate::{PreparedSource, account, check, prepare};
use vpnd_config::ServerConfig;
use vpnd_ipc::gateway::idp::testing::record;
use vpnd_ipc::gateway::idp::{AccountingEvent, LoginCheck, SourceName, SourceRefusal, Verdict};
use vpnd_ipc::request::Reason;

type Reply = Result<Verdict, Reason>;

const REQUEST: u8 = 1;
const ACCEPT: u8 = 2;
const ACCOUNTING: u8 = 4;
const RESPONSE: u8 = 5;
const STATUS: u8 = 12;
const TIMEOUT: Duration = Duration::from_secs(30);

/// An authority, and what it signs.
struct Authority(CertificateParams, KeyPair);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(params, KeyPair::generate().unwrap())
    }

    fn pem(&self) -> String {
        self.0.self_signed(&self.1).unwrap().pem()
    }

    /// A certificate for this name, which ends `days` from now, and its key.
    fn sign(&self, name: &str, days: i64) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = time::OffsetDateTime::now_utc() - time::Duration::days(10);
        params.not_after = time::OffsetDateTime::now_utc() + time::Duration::days(days);
        let certificate = params.signed_by(&key, &Issuer::from_params(&self.0, &self.1)).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// A server's next act.
enum Act {
    Send(Vec<u8>),
    /// Each byte by itself.
    Drip(Vec<u8>),
    /// Only when as many packets are there; then all of them, the last first.
    Collect(usize),
    Nothing,
    Close,
}

#[derive(Default)]
struct Seen {
    connections: AtomicU32,
    packets: Mutex<Vec<Vec<u8>>>,
}

impl Seen {
    fn packets(&self, kind: u8) -> usize {
        self.packets.lock().unwrap().iter().filter(|packet| packet[0] == kind).count()
    }

    fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }
}

/// A server with this certificate; `clients` is the authority of those that it demands. `act` gets
/// each packet and its number.
async fn server(
    (chain, key): (String, String),
    clients: Option<&Authority>,
    act: impl Fn(&[u8], usize) -> Act + Send + Sync + 'static,
) -> (u16, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let chain = vec![CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
        None => builder.with_no_client_auth(),
    };
    let acceptor = TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()));
    let seen = Arc::new(Seen::default());
    let (found, act) = (Arc::clone(&seen), Arc::new(act));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            found.connections.fetch_add(1, Ordering::Relaxed);
            let (acceptor, found, act) = (acceptor.clone(), Arc::clone(&found), Arc::clone(&act));
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve(stream, &found, &*act).await;
                }
            });
        }
    });
    (port, seen)
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    seen: &Seen,
    act: &(impl Fn(&[u8], usize) -> Act + Send + Sync),
) {
    let (mut received, mut waiting) = (Vec::new(), Vec::new());
    while stream.read_buf(&mut received).await.is_ok_and(|count| count > 0) {
        while let Some(len) = packet::len(&received).unwrap().filter(|len| *len <= received.len()) {
            let packet: Vec<u8> = received.drain(..len).collect();
            let number = {
                let mut packets = seen.packets.lock().unwrap();
                packets.push(packet.clone());
                packets.len() - 1
            };
            match act(&packet, number) {
                Act::Send(reply) => stream.write_all(&reply).await.unwrap(),
                Act::Drip(reply) => {
                    for byte in reply {
                        stream.write_all(&[byte]).await.unwrap();
                        stream.flush().await.unwrap();
                    }
                }
                Act::Collect(count) => {
                    waiting.push(packet);
                    if waiting.len() == count {
                        let all: Vec<u8> = waiting.iter().rev().flat_map(|packet| accept(packet)).collect();
                        stream.write_all(&all).await.unwrap();
                    }
                }
                Act::Nothing => {}
                Act::Close => return,
            }
            stream.flush().await.unwrap();
        }
    }
}

fn accept(request: &[u8]) -> Vec<u8> {
    reply_to(request, ACCEPT, &[], SECRET.as_bytes(), true)
}

/// A source with these servers.
fn source(ports: &[u16], authority: &Authority, rest: &str) -> Vec<PreparedSource> {
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    let servers: Vec<_> = ports.iter().map(|port| format!("radsec://127.0.0.1:{port}")).collect();
    configured(&servers, &format!("ca = {ca:?}\ntimeout_ms = 2500\n{rest}"))
}

fn configured(servers: &[String], rest: &str) -> Vec<PreparedSource> {
    let text = format!(
        "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n[[source]]\nname = \"guests\"\n\
         kind = \"radius\"\nmatch = \"*\"\nservers = {servers:?}\n{rest}"
    );
    prepare(&ServerConfig::parse(&text, "server.toml", Path::new("/")).unwrap()).unwrap()
}

async fn log_in(sources: &[PreparedSource], user: &str, password: &str) -> Reply {
    let login = LoginCheck {
        source: SourceName::cut("guests"),
        user: UserName::new(user).unwrap(),
        password: SecretText::new(password).unwrap(),
        address: "192.0.2.1".parse().unwrap(),
    };
    check(sources, &login).await
}

fn is_in(reply: &Reply) -> bool {
    matches!(reply, Ok(Verdict::Accepted(_)))
}

fn why(reply: Reply) -> String {
    let Err(why) = reply else { panic!("{reply:?}") };
    why.to_string()
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_real_server_lets_users_in_and_takes_records_over_tls() {
    let Some(server) = FreeRadius::start_with_tls("127.0.0.1", |program| Command::new(program)) else {
        return;
    };
    let servers = [format!("radsec://127.0.0.1:{}", server.radsec_port)];
    let rest = |identity: &str| {
        let ca = server.path().join("ca.pem");
        format!("ca = {ca:?}\naccounting_servers = {servers:?}\n{identity}")
    };
    let path = |name: &str| server.path().join(name);
    let identity = format!("certificate = {:?}\nkey = {:?}\n", path("client.pem"), path("client-key.pem"));
    let sources = configured(&servers, &rest(&identity));
    let until = Instant::now() + Duration::from_secs(60);
    // It takes a while to listen.
    let mut reply = log_in(&sources, "ann", "right").await;
    while !is_in(&reply) && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(200)).await;
        reply = log_in(&sources, "ann", "right").await;
    }
    let Ok(Verdict::Accepted(identity)) = reply else { panic!("{reply:?}: {}", server.log()) };
    assert_eq!(identity.groups.iter().map(|group| &**group).collect::<Vec<_>>(), ["staff", "vpn"]);
    let refused = Ok(Verdict::Refused(SourceRefusal::WrongPassword));
    let (many, wrong) = tokio::join!(
        futures_util::future::join_all((0..20).map(|_| log_in(&sources, "ann", "right"))),
        log_in(&sources, "ann", "wrong")
    );
    assert!(many.iter().all(is_in) && wrong == refused, "{many:?} {wrong:?}");
    for event in [AccountingEvent::On, AccountingEvent::Start, AccountingEvent::Off] {
        assert_eq!(account(&sources, &record(event)).await, Ok(()), "{}", server.log());
    }
    assert_eq!(server.records().len(), 3);
    // It demands a certificate of its clients.
    let stranger = configured(&servers, &rest(""));
    assert!(why(log_in(&stranger, "ann", "right").await).contains("127.0.0.1"));
}

#[tokio::test]
async fn a_server_that_does_not_prove_its_name_gets_nothing() {
    let (authority, other) = (Authority::new(), Authority::new());
    for (what, certificate) in [
        ("another authority", other.sign("127.0.0.1", 10)),
        ("expired", authority.sign("127.0.0.1", -1)),
        ("another name", authority.sign("127.0.0.2", 10)),
    ] {
        let (port, seen) = server(certificate, None, |packet, _| Act::Send(accept(packet))).await;
        let reply = why(log_in(&source(&[port], &authority, ""), "ann", "right").await);
        assert!(reply.contains("no TLS"), "{what}: {reply}");
        assert_eq!((seen.connections(), seen.packets(REQUEST)), (1, 0), "{what}");
    }
    let right = authority.sign("127.0.0.1", 10);
    let (port, seen) = server(right, None, |packet, _| Act::Send(accept(packet))).await;
    assert!(is_in(&log_in(&source(&[port], &authority, ""), "ann", "right").await));
    assert_eq!(seen.packets(REQUEST), 1);
}

#[tokio::test]
async fn a_server_that_demands_a_certificate_is_shown_the_configured_one() {
    let authority = Authority::new();
    let certificate = authority.sign("127.0.0.1", 10);
    let (port, seen) = server(certificate, Some(&authority), |packet, _| Act::Send(accept(packet))).await;
    let sources = source(&[port], &authority, "");
    why(log_in(&sources, "ann", "right").await);
    assert_eq!(seen.packets(REQUEST), 0);
    let directory = tempfile::tempdir().unwrap();
    let (chain, key) = authority.sign("vpn.example", 10);
    let [chain_path, key_path] = ["c.pem", "k.pem"].map(|name| directory.path().join(name));
    std::fs::write(&chain_path, chain).unwrap();
    std::fs::write(&key_path, key).unwrap();
    std::fs::set_permissions(&key_path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let identity = format!("certificate = {chain_path:?}\nkey = {key_path:?}\n");
    assert!(is_in(&log_in(&source(&[port], &authority, &identity), "ann", "right").await));
}

#[tokio::test]
async fn requests_share_a_connection_and_each_gets_its_own_reply() {
    let authority = Authority::new();
    // Each is answered in the other order, and the last one in pieces.
    let act = |packet: &[u8], number: usize| match number {
        0..20 => Act::Collect(20),
        _ if packet[0] == ACCOUNTING => Act::Send(response_to(packet, RESPONSE, SECRET.as_bytes())),
        _ => Act::Drip(accept(packet)),
    };
    let (port, seen) = server(authority.sign("127.0.0.1", 10), None, act).await;
    let accounting = format!("accounting_servers = \"radsec://127.0.0.1:{port}\"\n");
    let sources = source(&[port], &authority, &accounting);
    let replies = futures_util::future::join_all((0..20).map(|_| log_in(&sources, "ann", "right"))).await;
    assert!(replies.iter().all(is_in), "{replies:?}");
    let mut numbers: Vec<u8> = seen.packets.lock().unwrap().iter().map(|packet| packet[1]).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 20, "each has its number");
    assert!(is_in(&log_in(&sources, "ann", "right").await), "a reply in pieces");
    assert_eq!(account(&sources, &record(AccountingEvent::On)).await, Ok(()));
    assert_eq!(seen.connections(), 1);
}

#[tokio::test]
async fn a_reply_that_does_not_count_ends_the_connection_and_another_server_is_asked() {
    let authority = Authority::new();
    let lies: [fn(&[u8]) -> Act; 6] = [
        |request| Act::Send(reply_to(request, ACCEPT, &[], SECRET.as_bytes(), false)),
        |request| Act::Send(reply_to(request, ACCEPT, &[], b"guessed", true)),
        |request| {
            let mut other = request.to_vec();
            other[1] = other[1].wrapping_add(1);
            Act::Send(accept(&other))
        },
        |request| {
            let mut earlier = request.to_vec();
            earlier[4..20].fill(7);
            Act::Send(accept(&earlier))
        },
        |_| Act::Send(vec![ACCEPT, 1, 0xFF, 0xFF]),
        |_| Act::Close,
    ];
    let act = |packet: &[u8], _| Act::Send(accept(packet));
    let (honest, seen) = server(authority.sign("127.0.0.1", 10), None, act).await;
    for (number, lie) in lies.into_iter().enumerate() {
        let act = move |packet: &[u8], _| lie(packet);
        let (liar, asked) = server(authority.sign("127.0.0.1", 10), None, act).await;
        let alone = source(&[liar], &authority, "");
        let reason = why(log_in(&alone, "ann", "right").await);
        assert_eq!(reason.contains("an unexpected reply"), number == 2, "{number}: {reason}");
        if reason.contains("does not count") {
            why(log_in(&alone, "ann", "right").await);
            assert_eq!(asked.connections(), 2, "{number}: the first one is over");
        }
        let before = seen.packets(REQUEST);
        assert!(is_in(&log_in(&source(&[liar, honest], &authority, ""), "ann", "right").await), "{number}");
        assert_eq!(seen.packets(REQUEST), before + 1);
        // A server that may have asked the person is the only one.
        let push = source(&[liar, honest], &authority, "push = true\npush_timeout_s = 5\n");
        assert!(!is_in(&log_in(&push, "ann", "right").await), "{number}");
        assert_eq!(seen.packets(REQUEST), before + 1, "{number}");
    }
}

#[tokio::test]
async fn a_connection_that_the_server_has_ended_is_made_again_and_one_that_fails_not_at_once() {
    let authority = Authority::new();
    // Each second request finds a server that ends the connection.
    let act = |packet: &[u8], number| if number % 2 == 1 { Act::Close } else { Act::Send(accept(packet)) };
    let (port, seen) = server(authority.sign("127.0.0.1", 10), None, act).await;
    let sources = source(&[port], &authority, "");
    for _ in 0..3 {
        assert!(is_in(&log_in(&sources, "ann", "right").await));
    }
    assert_eq!(seen.connections(), 3);
    // A person is not asked a second time.
    let (port, seen) = server(authority.sign("127.0.0.1", 10), None, act).await;
    let push = source(&[port], &authority, "push = true\npush_timeout_s = 5\n");
    assert!(is_in(&log_in(&push, "ann", "right").await));
    assert!(why(log_in(&push, "ann", "right").await).contains("the connection is over"));
    assert_eq!(seen.packets(REQUEST), 2);

    let (port, seen) = server(authority.sign("127.0.0.2", 10), None, act).await;
    let sources = source(&[port], &authority, "");
    why(log_in(&sources, "ann", "right").await);
    let again = why(log_in(&sources, "ann", "right").await);
    assert!(again.contains("next attempt") && seen.connections() == 1, "{again}");
    tokio::time::sleep(FIRST_PAUSE).await;
    why(log_in(&sources, "ann", "right").await);
    assert_eq!(seen.connections(), 2);
}

/// A connection to a server that does `act`, looked after each `idle`, and the packets that came.
fn watched(
    [idle, timeout]: [Duration; 2],
    may_wait: bool,
    act: impl Fn(&[u8], usize) -> Act + Send + Sync + 'static,
) -> (Arc<Connection>, Arc<Seen>) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let seen = Arc::new(Seen::default());
    let found = Arc::clone(&seen);
    tokio::spawn(async move { serve(theirs, &found, &act).await });
    let options = Options { nas_identifier: "vpnd".to_owned(), idle, timeout, may_wait };
    (Connection::over(ours, Watchdog::new(&options)), seen)
}

fn is_over(connection: &Connection) -> bool {
    connection.table().over.is_some()
}

/// A request that waits for a reply.
async fn ask(connection: &Connection) -> Result<(), Failure> {
    let encode = |id| packet::status_server(id, [7; 16], "vpnd", SECRET.as_bytes());
    connection.exchange(encode, |_, _| Ok(())).await
}

/// Two times that pass while a test runs, or don't.
const MOMENT: Duration = Duration::from_millis(20);
const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn an_idle_connection_is_looked_after() {
    let (good, seen) = watched([MOMENT, HOUR], false, |packet, _| Act::Send(accept(packet)));
    eventually("the server is asked again and again", || seen.packets(STATUS) >= 3).await;
    assert!(!is_over(&good));
    // A server without an answer is left.
    let (silent, seen) = watched([MOMENT, MOMENT], true, |_, _| Act::Nothing);
    eventually("it is over", || is_over(&silent)).await;
    assert_eq!(seen.packets(STATUS), 1);
    // An answer that was made for something else is none.
    let lie = |packet: &[u8], _| {
        let mut other = packet.to_vec();
        other[4..20].fill(7);
        Act::Send(accept(&other))
    };
    let (lying, _) = watched([MOMENT, HOUR], false, lie);
    eventually("it is over", || is_over(&lying)).await;
}

#[tokio::test]
async fn a_server_that_waits_for_a_person_may_be_silent_and_no_other() {
    let (connection, _) = watched([MOMENT, MOMENT], false, |_, _| Act::Nothing);
    let asked = tokio::time::timeout(TIMEOUT, ask(&connection)).await;
    assert!(asked.is_ok_and(|outcome| outcome.is_err()) && is_over(&connection));
    let (connection, _) = watched([MOMENT, MOMENT], true, |_, _| Act::Nothing);
    assert!(tokio::time::timeout(25 * MOMENT, ask(&connection)).await.is_err(), "it waits");
    // Nor one that has answered such a question before.
    let first = |packet: &[u8], number| if number == 0 { Act::Send(accept(packet)) } else { Act::Nothing };
    let (connection, seen) = watched([MOMENT, 100 * MOMENT], true, first);
    eventually("the server is asked twice", || seen.packets(STATUS) >= 2).await;
    let asked = tokio::time::timeout(TIMEOUT, ask(&connection)).await;
    assert!(asked.is_ok_and(|outcome| outcome.is_err()) && is_over(&connection));
}

#[tokio::test]
async fn an_unanswered_request_triggers_a_probe_and_its_id_is_not_reused() {
    let (connection, seen) = watched([HOUR, HOUR], false, |packet, _| match packet[1] {
        watchdog::NUMBER => Act::Send(accept(packet)),
        _ => Act::Nothing,
    });
    let numbers = || seen.packets.lock().unwrap().iter().map(|packet| packet[1]).collect::<Vec<_>>();
    for round in 1..MAX_ABANDONED {
        assert!(tokio::time::timeout(MOMENT, ask(&connection)).await.is_err());
        assert_eq!(connection.table().abandoned, round);
    }
    eventually("all are there", || {
        let different: std::collections::BTreeSet<u8> = numbers().into_iter().collect();
        different.len() == MAX_ABANDONED && different.contains(&watchdog::NUMBER)
    })
    .await;
    assert!(!is_over(&connection));
    assert!(tokio::time::timeout(MOMENT, ask(&connection)).await.is_err());
    assert!(is_over(&connection), "it is good for nothing");
}

#[tokio::test]
async fn a_late_radsec_reply_is_dropped() {
    // The first is answered behind the second.
    let first = Mutex::new(None);
    let (connection, _) = watched([HOUR, HOUR], true, move |packet, _| {
        if packet[1] == watchdog::NUMBER {
            return Act::Send(accept(packet));
        }
        let before: Option<Vec<u8>> = first.lock().unwrap().replace(packet.to_vec());
        before.map_or(Act::Nothing, |before| Act::Send([accept(&before), accept(packet)].concat()))
    });
    assert!(tokio::time::timeout(MOMENT, ask(&connection)).await.is_err());
    assert_eq!(connection.table().abandoned, 1);
    assert!(ask(&connection).await.is_ok());
    assert!(connection.table().abandoned == 0 && !is_over(&connection));
    assert_eq!(connection.free.available_permits(), NUMBERS - 1);
}

#[tokio::test]
async fn as_many_requests_as_there_are_numbers_and_the_next_waits() {
    let (connection, seen) = watched([HOUR, HOUR], true, |_, _| Act::Nothing);
    let ask = |connection: Arc<Connection>| tokio::spawn(async move { ask(&connection).await });
    let waiting: Vec<_> = (0..NUMBERS).map(|_| ask(Arc::clone(&connection))).collect();
    eventually("all numbers are taken", || seen.packets(STATUS) == NUMBERS - 1).await;
    connection.end("a test");
    for outcome in waiting {
        assert!(outcome.await.unwrap().is_err());
    }
    assert_eq!(seen.packets(STATUS), NUMBERS - 1);
}
