use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use quinn::{Connection, ConnectionError, Incoming};
use vpnd_control_channel::quic::client_endpoint;
use vpnd_proto::admission::Limits;
use vpnd_proto::plane::Endpoint as OuterAddress;

use super::acceptor::{Acceptor, Permit};
use super::*;
use crate::quic_keys::KeysError;
use crate::worker::relayed::Relayed;
use vpnd_pki::authority::Authority;
use vpnd_pki::tls::{self, ClientCertificates, Identity, Presented, Trust};
use vpnd_sys::udp::{SocketOptions, Steering, bind_reuseport_group};

const LOCAL: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);
const TEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Certificate and key for both ends of a handshake.
struct Trusted {
    ca: String,
    chain: String,
    key: zeroize::Zeroizing<String>,
}

impl Trusted {
    fn new() -> Self {
        let authority = Authority::new("tests", SystemTime::now()).unwrap();
        let identity = authority.server(&["localhost".to_owned()], SystemTime::now()).unwrap();
        Self {
            ca: authority.certificate_pem().to_owned(),
            chain: identity.certificate_pem,
            key: identity.key_pem,
        }
    }

    fn presented(&self) -> Arc<Presented> {
        let identity = Identity::from_pem(self.chain.as_bytes(), self.key.as_bytes()).unwrap();
        Presented::new(identity.certified().unwrap())
    }

    /// A gateway's endpoint on this port of the loopback, or on any.
    fn listen(&self, address: impl Into<SocketAddr>, state_dir: &Path) -> Endpoint {
        self.listen_behind(&admission(256), address, state_dir)
    }

    fn listen_behind(
        &self,
        admission: &AdmissionControl,
        address: impl Into<SocketAddr>,
        state_dir: &Path,
    ) -> Endpoint {
        let tls = tls::server(self.presented(), &ClientCertificates::Ignored).unwrap();
        let socket = QuicMember::Own(UdpSocket::bind(address.into()).unwrap());
        let keys = Keys::load_or_create(state_dir).unwrap();
        listen(socket_of(socket), tls, &keys, admission.clone(), Arc::default(), Diverted::default()).unwrap()
    }

    /// A client without a connection to any gateway before.
    fn client(&self) -> Endpoint {
        let tls = tls::client(&Trust::Pinned(self.ca.as_bytes()), None).unwrap();
        client_endpoint(UdpSocket::bind(LOCAL).unwrap(), tls.quic().unwrap(), None).unwrap()
    }

    async fn connect(&self, to: SocketAddr) -> (Endpoint, Result<Connection, ConnectionError>) {
        let client = self.client();
        let connecting = client.connect(to, "localhost").unwrap();
        (client, connecting.await)
    }
}

fn admission(places: usize) -> AdmissionControl {
    AdmissionControl::new(Limits { places, handshakes_per_s: 500 }, Relayed::default())
}

fn socket_of(member: QuicMember) -> Arc<dyn AsyncUdpSocket> {
    let (socket, forwarder) = socket(member).unwrap();
    assert!(forwarder.is_none(), "a member of its own needs no help");
    socket
}

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, work)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {TEST_TIMEOUT:?}"))
}

/// Connects one more client, which must be accepted.
async fn let_in(
    trusted: &Trusted,
    acceptor: &Acceptor,
    endpoint: &Endpoint,
) -> (Incoming, Permit, tokio::task::JoinHandle<Result<Connection, ConnectionError>>) {
    let (client, to) = (trusted.client(), endpoint.local_addr().unwrap());
    let dialled = tokio::spawn(async move { client.connect(to, "localhost").unwrap().await });
    let (incoming, permit) = soon("a client at the gate", acceptor.next(endpoint)).await.unwrap();
    (incoming, permit, dialled)
}

#[tokio::test]
async fn a_retry_proves_the_address_and_admits_the_client() {
    let (trusted, state) = (Trusted::new(), tempfile::tempdir().unwrap());
    let admission = admission(256);
    let endpoint = trusted.listen_behind(&admission, LOCAL, state.path());
    let acceptor = Acceptor::new(admission.clone(), 1);
    let (incoming, _permit, dialled) = let_in(&trusted, &acceptor, &endpoint).await;
    assert!(incoming.remote_address_validated(), "nobody comes to the gate otherwise");
    let accepted = tokio::spawn(async move { incoming.await });
    soon("the handshake after a Retry", dialled).await.unwrap().unwrap();
    soon("the handshake after a Retry", accepted).await.unwrap().unwrap();
    let counts = admission.counts();
    assert!(counts["retried"] >= 1 && counts["accepted"] == 1, "{counts:?}");
}

#[tokio::test]
async fn a_client_refuses_a_gateway_of_another_authority_or_another_name() {
    let (trusted, state) = (Trusted::new(), tempfile::tempdir().unwrap());
    let endpoint = trusted.listen(LOCAL, state.path());
    let to = endpoint.local_addr().unwrap();
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(async { incoming.await });
        }
    });
    soon("the gateway itself", trusted.connect(to)).await.1.unwrap();
    // Another authority of the same name.
    let fooled = soon("a client of another authority", Trusted::new().connect(to)).await.1;
    assert!(matches!(fooled, Err(ConnectionError::TransportError(_))), "{fooled:?}");
    let elsewhere = trusted.client().connect(to, "elsewhere").unwrap();
    let fooled = soon("a client of another gateway", elsewhere).await;
    assert!(matches!(fooled, Err(ConnectionError::TransportError(_))), "{fooled:?}");
}

#[tokio::test]
async fn no_connection_is_accepted_without_a_retry_token() {
    let (trusted, state) = (Trusted::new(), tempfile::tempdir().unwrap());
    let tls = tls::server(trusted.presented(), &ClientCertificates::Ignored).unwrap();
    let keys = Keys::load_or_create(state.path()).unwrap();
    let config = ServerConfig::new(Arc::new(tls), Arc::clone(&keys.tokens) as _);
    // No retry filter is in front of this one.
    let endpoint = Endpoint::server(config, LOCAL.into()).unwrap();
    let acceptor = Acceptor::new(admission(4), 1);
    let (incoming, _permit, _dialled) = let_in(&trusted, &acceptor, &endpoint).await;
    assert!(incoming.remote_address_validated());
}

/// The datagrams that a client sends first.
async fn first_flight(trusted: &Trusted) -> Vec<Vec<u8>> {
    let silent = tokio::net::UdpSocket::bind(LOCAL).await.unwrap();
    let client = trusted.client();
    let connecting = client.connect(silent.local_addr().unwrap(), "localhost").unwrap();
    let mut flight = Vec::new();
    let mut buffer = [0; 2_048];
    while let Ok(length) = tokio::time::timeout(Duration::from_millis(200), silent.recv(&mut buffer)).await {
        flight.push(buffer[..length.unwrap()].to_vec());
    }
    drop(connecting);
    assert!(!flight.is_empty());
    flight
}

/// Sends these from a new address and returns the answers.
async fn answers_to(endpoint: &Endpoint, datagrams: &[Vec<u8>], wait: Duration) -> Vec<Vec<u8>> {
    let stranger = tokio::net::UdpSocket::bind(LOCAL).await.unwrap();
    for datagram in datagrams {
        stranger.send_to(datagram, endpoint.local_addr().unwrap()).await.unwrap();
    }
    let mut answers = Vec::new();
    let mut buffer = [0; 2_048];
    while let Ok(length) = tokio::time::timeout(wait, stranger.recv(&mut buffer)).await {
        answers.push(buffer[..length.unwrap()].to_vec());
    }
    answers
}

/// Sends it from a new address and returns the first answer.
async fn first_answer_to(endpoint: &Endpoint, datagram: &[u8]) -> Option<Vec<u8>> {
    let stranger = tokio::net::UdpSocket::bind(LOCAL).await.unwrap();
    stranger.send_to(datagram, endpoint.local_addr().unwrap()).await.unwrap();
    let mut buffer = vec![0; 2_048];
    let length =
        tokio::time::timeout(Duration::from_millis(500), stranger.recv(&mut buffer)).await.ok()?.unwrap();
    buffer.truncate(length);
    Some(buffer)
}

fn bytes(datagrams: &[Vec<u8>]) -> usize {
    datagrams.iter().map(Vec::len).sum()
}

#[tokio::test]
async fn an_address_that_proves_nothing_gets_less_than_it_sent_and_leaves_nothing() {
    let (trusted, state) = (Trusted::new(), tempfile::tempdir().unwrap());
    let admission = admission(256);
    let endpoint = trusted.listen_behind(&admission, LOCAL, state.path());
    let (acceptor, at) = (Acceptor::new(admission.clone(), 1), endpoint.clone());
    let let_in = tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Some((incoming, permit)) = acceptor.next(&at).await {
            connections.push((tokio::spawn(async { incoming.await }), permit));
        }
    });
    let flight = first_flight(&trusted).await;
    // Long enough for what QUIC would send again.
    let answers = answers_to(&endpoint, &flight, Duration::from_secs(2)).await;
    assert_eq!(answers.len(), flight.len(), "a Retry for each");
    assert!(bytes(&answers) * 6 < bytes(&flight), "{} for {} bytes", bytes(&answers), bytes(&flight));
    // With a token that was made up.
    let mut forged = flight[0].clone();
    let source_at = 6 + usize::from(forged[5]);
    let token_at = source_at + 1 + usize::from(forged[source_at]);
    forged.splice(token_at..=token_at, [vec![0x40, 70], vec![0xAB; 70]].concat());
    let again = answers_to(&endpoint, &[forged], Duration::from_millis(500)).await;
    assert_eq!(again.len(), 1, "it is asked for another proof");
    assert!(again[0][0] & 0xF0 == 0xF0 && again[0].len() < 200, "{:?}", again[0]);
    let short = answers_to(&endpoint, &[flight[0][..1_199].to_vec()], Duration::from_millis(500)).await;
    assert!(short.is_empty(), "what is too short to begin a connection gets no answer");
    assert_eq!(endpoint.open_connections(), 0);
    assert_eq!(admission.counts()["accepted"], 0);
    let_in.abort();
}

#[tokio::test]
async fn other_versions_and_forgotten_connections_get_less_than_they_sent() {
    let (trusted, state) = (Trusted::new(), tempfile::tempdir().unwrap());
    let endpoint = trusted.listen(LOCAL, state.path());
    let mut other = first_flight(&trusted).await.swap_remove(0);
    other[1..5].copy_from_slice(&0xFF00_001D_u32.to_be_bytes());
    let wait = Duration::from_millis(500);
    let answers = answers_to(&endpoint, std::slice::from_ref(&other), wait).await;
    assert!(answers.len() == 1 && answers[0].len() < 100, "{answers:?}");
    assert!(answers_to(&endpoint, &[other[..1_199].to_vec()], wait).await.is_empty());
    // An id that the gateway could have made: a stateless reset is shorter than what brings it
    // about.
    let keys = Keys::load_or_create(state.path()).unwrap();
    for length in [22, 40, 100, 1_200] {
        let mut short = vec![0x40; length];
        let id = keys.some_id();
        let fits = length.min(id.len() + 1);
        short[1..fits].copy_from_slice(&id[..fits - 1]);
        let resets = answers_to(&endpoint, &[short], wait).await;
        assert!(bytes(&resets) < length, "{} for {length}", bytes(&resets));
        assert!(!resets.is_empty(), "{length} bytes bring a reset about");
    }
    let garbage: Vec<Vec<u8>> = (0..=255u8).map(|first| vec![first; 1_300]).collect();
    let answers = answers_to(&endpoint, &garbage, wait).await;
    assert!(bytes(&answers) < bytes(&garbage) / 6, "{}", bytes(&answers));
}

#[tokio::test]
async fn stateless_resets_reach_many_clients_within_a_second() {
    let (trusted, state) = (Trusted::new(), tempfile::tempdir().unwrap());
    let endpoint = trusted.listen(LOCAL, state.path());
    let keys = Keys::load_or_create(state.path()).unwrap();
    for number in 0..100 {
        let short = [&[0x40], &keys.some_id()[..], &[0; 20]].concat();
        let answer = first_answer_to(&endpoint, &short).await;
        assert!(answer.is_some_and(|reset| reset.len() < short.len()), "client {number} hears nothing");
        // Thousands in a second; the runtime's own timer is too coarse for that.
        std::thread::sleep(Duration::from_micros(300));
    }
}

#[tokio::test]
async fn without_a_place_clients_are_refused_and_leave_nothing_behind() {
    let (trusted, state) = (Trusted::new(), tempfile::tempdir().unwrap());
    let admission = admission(1);
    let endpoint = trusted.listen_behind(&admission, LOCAL, state.path());
    let to = endpoint.local_addr().unwrap();
    let acceptor = Arc::new(Acceptor::new(admission, 1));
    let first = let_in(&trusted, &acceptor, &endpoint).await;
    let (door, at) = (Arc::clone(&acceptor), endpoint.clone());
    let next = tokio::spawn(async move { door.next(&at).await });
    for _ in 0..20 {
        let (_client, outcome) = soon("a refusal", trusted.connect(to)).await;
        let Err(ConnectionError::ConnectionClosed(frame)) = &outcome else { panic!("{outcome:?}") };
        // By this a client knows that the gateway is there, and comes back soon (PROTOCOL §11).
        assert_eq!(frame.error_code, quinn::TransportErrorCode::CONNECTION_REFUSED);
    }
    assert_eq!(endpoint.open_connections(), 0);
    assert!(!next.is_finished(), "nobody was let in");
    drop(first);
    let admitted = async {
        let (incoming, _permit) = soon("the next one", next).await.unwrap().unwrap();
        incoming.await
    };
    let (client, server) = tokio::join!(soon("a handshake", trusted.connect(to)), admitted);
    client.1.unwrap();
    server.unwrap();
}

#[tokio::test]
async fn addresses_with_sessions_have_places_of_their_own() {
    let (trusted, state) = (Trusted::new(), tempfile::tempdir().unwrap());
    let admission = admission(4);
    let endpoint = trusted.listen_behind(&admission, LOCAL, state.path());
    let acceptor = Arc::new(Acceptor::new(admission.clone(), 1));
    let inside = let_in(&trusted, &acceptor, &endpoint).await;
    let (door, at) = (Arc::clone(&acceptor), endpoint.clone());
    let next = tokio::spawn(async move { door.next(&at).await });
    let refused = soon("a refusal", trusted.connect(endpoint.local_addr().unwrap())).await.1;
    assert!(matches!(refused, Err(ConnectionError::ConnectionClosed(_))), "a stranger has one: {refused:?}");
    next.abort();
    let _settled = acceptor.session_started(LOCAL.into());
    let others = [let_in(&trusted, &acceptor, &endpoint).await, let_in(&trusted, &acceptor, &endpoint).await];
    assert_eq!(admission.counts()["displaced"], 0, "nobody had to go");
    drop((inside, others));
}

#[tokio::test]
async fn a_connection_older_than_its_guaranteed_time_is_displaced() {
    let (trusted, state) = (Trusted::new(), tempfile::tempdir().unwrap());
    let admission = admission(1);
    let endpoint = trusted.listen_behind(&admission, LOCAL, state.path());
    let acceptor = Arc::new(Acceptor::new(admission.clone(), 1));
    let (_incoming, mut permit, _dialled) = let_in(&trusted, &acceptor, &endpoint).await;
    assert!(
        tokio::time::timeout(Duration::from_millis(1_100), permit.displaced()).await.is_err(),
        "it has its place"
    );
    let other = let_in(&trusted, &acceptor, &endpoint).await;
    soon("an end", permit.displaced()).await;
    drop(permit);
    assert_eq!(admission.counts()["displaced"], 1);
    drop(other);
}

/// Runs a gateway in a separate runtime until a client is connected, then ends it as `kill -9`
/// would: without a word.
fn connect_and_kill(
    trusted: &Trusted,
    state: &Path,
    clients: &tokio::runtime::Runtime,
) -> (SocketAddr, Endpoint, Connection) {
    let gateway = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let endpoint = gateway.block_on(async { trusted.listen(LOCAL, state) });
    let to = endpoint.local_addr().unwrap();
    let accepted = gateway.spawn(async move {
        let connection = endpoint.accept().await.unwrap().await.unwrap();
        (endpoint, connection)
    });
    let (client, connection) = clients.block_on(soon("a handshake", trusted.connect(to)));
    let kept = gateway.block_on(accepted).unwrap();
    gateway.shutdown_timeout(TEST_TIMEOUT);
    drop(kept);
    (to, client, connection.unwrap())
}

/// The error that ends the client's connection when a gateway comes back with the keys of `after`;
/// `None` if it does not notice.
fn end_after_restart(before: &Path, after: &Path) -> Option<ConnectionError> {
    let trusted = Trusted::new();
    let clients = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (address, _client, connection) = connect_and_kill(&trusted, before, &clients);
    clients.block_on(async {
        let _restarted = trusted.listen(address, after);
        let mut stream = connection.open_bi().await.unwrap();
        stream.0.write_all(b"are you there?").await.unwrap();
        tokio::time::timeout(Duration::from_secs(3), connection.closed()).await.ok()
    })
}

#[test]
fn a_restarted_gateway_sends_a_stateless_reset_at_once() {
    let state = tempfile::tempdir().unwrap();
    let end = end_after_restart(state.path(), state.path());
    assert!(matches!(end, Some(ConnectionError::Reset)), "{end:?}");
}

#[test]
fn another_gateway_cannot_forge_a_stateless_reset() {
    let (mine, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let end = end_after_restart(mine.path(), other.path());
    assert!(end.is_none(), "{end:?}");
}

#[test]
fn the_secret_is_private_and_made_once() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("quic.secret");
    Keys::load_or_create(state.path()).unwrap();
    let secret = std::fs::read(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(secret.iter().any(|byte| *byte != 0));
    Keys::load_or_create(state.path()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), secret);
    std::fs::write(&path, &secret[1..]).unwrap();
    assert!(matches!(Keys::load_or_create(state.path()), Err(KeysError::Damaged(_))));
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(Keys::load_or_create(state.path()), Err(KeysError::Read { .. })));
}

/// Members of a group that the kernel does not steer, and the datagrams that QUIC gets of them.
#[tokio::test]
async fn quic_works_through_what_shards_hand_over() {
    let (trusted, state) = (Trusted::new(), tempfile::tempdir().unwrap());
    let options = SocketOptions { recv_buffer: 1 << 20, send_buffer: 1 << 20, ..SocketOptions::default() };
    let group = bind_reuseport_group(LOCAL.into(), 2, Steering::Off, &options).unwrap();
    let (socket, forwarder) = socket(group.quic).unwrap();
    let forwarder = forwarder.expect("QUIC has no member of its own");
    let tls = tls::server(trusted.presented(), &ClientCertificates::Ignored).unwrap();
    let keys = Keys::load_or_create(state.path()).unwrap();
    let endpoint = listen(socket, tls, &keys, admission(256), Arc::default(), Diverted::default()).unwrap();
    for shard in group.shards {
        let forwarder = forwarder.clone();
        tokio::spawn(async move {
            let shard = shard.into_async().unwrap();
            let mut buffer = vec![0; 65_536];
            loop {
                let mut ready = shard.readable().await.unwrap();
                let mut meta = [vpnd_sys::udp::RecvMeta::default()];
                let mut slices = [io::IoSliceMut::new(&mut buffer)];
                let Ok(received) = ready.try_io(|shard| shard.get_ref().try_recv(&mut slices, &mut meta))
                else {
                    continue;
                };
                assert_eq!(received.unwrap(), 1);
                let from = OuterAddress { remote: meta[0].addr, local: meta[0].dst_ip };
                for datagram in buffer[..meta[0].len].chunks(meta[0].stride) {
                    forwarder.forward(datagram, from);
                }
            }
        });
    }
    let to = endpoint.local_addr().unwrap();
    let echo = tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(async move {
                let (mut send, mut receive) = incoming.await.unwrap().accept_bi().await.unwrap();
                let heard = receive.read_to_end(1 << 20).await.unwrap();
                send.write_all(&heard).await.unwrap();
                send.finish().unwrap();
                let _ = send.stopped().await;
            });
        }
    });
    // Many ports, so that the kernel's hash chooses both members.
    for number in 0..12u8 {
        let (_client, connection) = soon("a handshake", trusted.connect(to)).await;
        let (mut send, mut receive) = connection.unwrap().open_bi().await.unwrap();
        let said = vec![number; 100_000];
        let (written, heard) = soon("an echo", async {
            let said = &said;
            tokio::join!(
                async move {
                    send.write_all(said).await.unwrap();
                    send.finish().unwrap();
                },
                receive.read_to_end(1 << 20)
            )
        })
        .await;
        let () = written;
        assert!(heard.unwrap() == said, "client {number}");
    }
    echo.abort();
}

#[tokio::test]
async fn what_waits_for_quic_is_bounded() {
    let options = SocketOptions::default();
    let group = bind_reuseport_group(LOCAL.into(), 1, Steering::Off, &options).unwrap();
    let (_socket, forwarder) = socket(group.quic).unwrap();
    let forwarder = forwarder.unwrap();
    let from = OuterAddress { remote: LOCAL.into(), local: None };
    assert!(!forwarder.forward(&[0x40; 1_473], from), "QUIC takes nothing as long as that");
    let taken = (0..10_000).filter(|_| forwarder.forward(&[0x40; 1_472], from)).count();
    assert_eq!(taken, 512);
}
