//! A device that is renewed while it is connected: the control plane between a phone with its own
//! half of the protocol and an auth process of the test.

use std::sync::Mutex;
use std::time::Duration;

use quinn::{Runtime as _, TokioRuntime};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use vpnd_config::factor::Factors;
use vpnd_crypto::{Secret, Suite};
use vpnd_ipc::channel::Channel;
use vpnd_ipc::gateway::auth::{Account, AuthRequest, Committed, Granted, Leased, SourceName};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_ipc::gateway::wireguard::{Admission, HandshakeReply, Peer, PeerChanges, PeersQuery};
use vpnd_ipc::messages::SecretBytes;
use vpnd_ipc::request::{Numbered, encoded};
use vpnd_proto::control::{Text, UserName};
use vpnd_proto::plane::Endpoint;
use vpnd_sys::clock::steady_s;
use vpnd_wireguard::Handshakes;
use vpnd_wireguard::handshakes::Known;
use vpnd_wireguard::key::StaticKey;
use vpnd_wireguard::peers::PeerId;

use super::*;
use crate::worker::core::CoreSnapshot;
use crate::worker::registry::Registry;
use crate::worker::testing;
use vpnd_ipc::gateway::wireguard::DeviceGrant;

const CONFIG: &str = "[wireguard]\nenabled = true\n";
const PHONE: [u8; 16] = [7; 16];
/// The lifetime of a session for each second of the time of the renewal.
const LIFETIME_S: u64 = 600;

/// The state of the auth process.
struct Auth {
    handshakes: Handshakes,
    phone: PublicKey,
    /// When the phone was renewed last; also the number of the last change.
    renewed_s: u64,
    /// Sessions that were granted.
    granted: u8,
    refuses: bool,
}

impl Auth {
    fn answer(&mut self, request: AuthRequest) -> SecretBytes {
        match request {
            AuthRequest::WireGuardPeers(PeersQuery(seen)) => encoded(&Ok(Some(self.peers(seen)))),
            AuthRequest::WireGuardHandshake(handshake) => {
                let step = handshake.parse().expect("a step of a handshake");
                let reply = self.handshakes.handle(now(), Duration::from_secs(1_000), &step);
                encoded(&Ok(HandshakeReply::from(reply)))
            }
            AuthRequest::WireGuardAdmit(_) => encoded(&Ok(self.admit())),
            AuthRequest::Commit(_) => encoded(&Ok(Committed { failed: Vec::new() })),
            other => panic!("{other:?}"),
        }
    }

    fn peers(&self, seen: u64) -> PeerChanges {
        let peer = Peer { device: PHONE.into(), keepalive_s: None, outer: None, renewed_s: self.renewed_s };
        let change = PeerChange { key: self.phone.0.into(), peer: Some(peer) };
        let changed = if seen < self.renewed_s { vec![change] } else { Vec::new() };
        PeerChanges { own: self.handshakes.public().0.into(), seen: self.renewed_s, changed }
    }

    fn admit(&mut self) -> Admission {
        if self.refuses {
            return Admission::Refused(Refusal::Busy.into());
        }
        self.granted += 1;
        let name = UserName::new("ann").unwrap();
        let grant = Granted {
            account: Account { name, groups: Vec::new(), source: SourceName::cut("local") },
            session: [self.granted; 16].into(),
            addresses: Leased { ipv4: Some([10, 86, 0, 2].into()), ipv6: None },
            expires_s: steady_s() + LIFETIME_S * self.renewed_s,
            started_s: steady_s(),
            profile: None,
            factors: Factors::KEY,
            own_addresses: true,
            idle_timeout_s: None,
            generation: 0,
            elsewhere: 0,
        };
        Admission::Granted(Box::new(DeviceGrant {
            grant,
            device: PHONE.into(),
            name: Text::cut("phone"),
            is_walled: false,
            renewed_s: self.renewed_s,
        }))
    }
}

async fn serve(auth: Arc<Mutex<Auth>>, process: Channel) {
    while let Ok(Some(received)) = process.receive::<Numbered<AuthRequest>>().await {
        let Numbered { number, content } = received.message;
        let content = auth.lock().unwrap().answer(content);
        if process.send(&Numbered { number, content }, &[]).await.is_err() {
            return;
        }
    }
}

struct Phone {
    handshakes: Handshakes,
    peers: Peers,
    gateway: PeerId,
    socket: UdpSocket,
    queue: HandshakeQueue,
    /// Handshakes that it has begun and that were answered.
    answered: usize,
}

impl Phone {
    fn begin(&mut self) {
        self.peers.begin_at_once(now(), self.gateway);
        self.settle();
    }

    fn settle(&mut self) {
        let from = Endpoint { remote: self.socket.local_addr().unwrap(), local: None };
        while let Some(output) = self.peers.poll_output() {
            match output {
                Output::Ask(id, request) => {
                    let reply = self.handshakes.handle(now(), Duration::from_secs(1_000), &request);
                    self.peers.on_reply(now(), id, reply);
                }
                // Data are for shards, which take no part here.
                Output::Send { datagram, .. } if datagram[0] != 4 => {
                    assert!(self.queue.push(&datagram, from), "there is room");
                }
                Output::Event(Event::HandshakeDone(_)) => self.answered += 1,
                _ => {}
            }
        }
    }

    async fn receive(&mut self) {
        let mut datagram = [0; 2_048];
        let (len, remote) = self.socket.recv_from(&mut datagram).await.unwrap();
        // Data are no messages of a handshake.
        let _ = self.peers.on_datagram(now(), Endpoint { remote, local: None }, &datagram[..len]);
        self.settle();
    }
}

/// The auth process, the gateway's half of the protocol, and the phone.
struct Parts {
    auth: Arc<Mutex<Auth>>,
    client: AuthClient,
    wireguard: WireGuard,
    phone: Phone,
}

impl Parts {
    async fn start() -> Self {
        let [own, phone] = [1, 2].map(|byte| StaticKey::new(Secret::new([byte; 32])));
        let (own_key, phone_key) = (own.public(), phone.public());
        let [mut at_auth, mut at_phone] =
            [own, phone].map(|key| Handshakes::new(key, vpnd_sys::random::random()));
        at_auth.add(phone_key, Known::default()).unwrap();
        at_phone.add(own_key, Known::default()).unwrap();
        let state = Auth { handshakes: at_auth, phone: phone_key, renewed_s: 1, granted: 0, refuses: false };
        let auth = Arc::new(Mutex::new(state));
        let (client, process) = testing::auth();
        tokio::spawn(serve(Arc::clone(&auth), process));
        let config = vpnd_config::testing::smallest(CONFIG);
        let suites = [LocalSuite { suite: Suite::ChaCha20Poly1305, backend: Backend::Ring, mbps: 1 }];
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = TokioRuntime.wrap_udp_socket(socket).unwrap();
        let wireguard = WireGuard::start(&config, &client, 1, &suites, &socket).await.unwrap().unwrap();
        let queue = wireguard.queue();
        let settings =
            Config { own: phone_key, shards: 1, backend: Backend::Ring, limits: Limits::default() };
        let mut peers = Peers::new(now(), settings, vpnd_sys::random::random());
        let at = Endpoint { remote: socket.local_addr().unwrap(), local: None };
        let gateway = peers.add(now(), own_key, Some(at), None);
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let phone = Phone { handshakes: at_phone, peers, gateway, socket, queue, answered: 0 };
        Self { auth, client, wireguard, phone }
    }

    /// Takes the gateway's next input, and has done what follows from it.
    async fn step(&mut self) {
        let input = self.wireguard.next().await;
        self.wireguard.handle(input);
        while self.wireguard.poll_commands().is_some() {}
    }
}

struct Bench {
    auth: Arc<Mutex<Auth>>,
    core: Core,
    phone: Phone,
}

impl Bench {
    async fn start() -> Self {
        let Parts { auth, client, wireguard, phone } = Parts::start().await;
        let registry = Registry::new(client, &vpnd_config::testing::smallest(CONFIG)).unwrap();
        let (shards, _) = vpnd_shard::testing::answering(1);
        let (_, no_events) = mpsc::channel(1);
        let gateway = testing::gateway(testing::config(2));
        let (core, _) = Core::start(gateway, shards, no_events, registry, Some(wireguard));
        Self { auth, core, phone }
    }

    /// Carries messages until it is so.
    async fn wait(&mut self, what: &str, is_so: impl Fn(&CoreSnapshot, &Phone) -> bool) -> CoreSnapshot {
        let until = now() + Duration::from_secs(30);
        loop {
            let snapshot = self.core.status().await.unwrap();
            if is_so(&snapshot, &self.phone) {
                return snapshot;
            }
            assert!(now() < until, "not within 30 s: {what}");
            let _ = tokio::time::timeout(Duration::from_millis(20), self.phone.receive()).await;
            self.phone.peers.on_timeout(now());
            self.phone.settle();
        }
    }

    /// Lets the phone in; its session.
    async fn let_in(&mut self) -> CoreSnapshot {
        self.phone.begin();
        let snapshot = self.wait("it is let in", |_, phone| phone.answered == 1).await;
        assert_eq!(sessions(&snapshot), [SessionId([1; 16])]);
        snapshot
    }
}

fn sessions(snapshot: &CoreSnapshot) -> Vec<SessionId> {
    snapshot.sessions.iter().map(|session| session.id).collect()
}

/// Handshakes that the gateway has begun and the phone has answered.
fn done(snapshot: &CoreSnapshot) -> u64 {
    snapshot.wireguard.get("wireguard_done").copied().unwrap_or_default()
}

#[tokio::test]
async fn a_device_that_is_renewed_while_it_is_connected_is_not_cut_off_at_the_old_end() {
    let mut bench = Bench::start().await;
    let before = bench.let_in().await;
    bench.auth.lock().unwrap().renewed_s = 10;
    let after = bench.wait("its next session takes over", |snapshot, _| done(snapshot) == 1).await;
    assert_eq!(sessions(&after), [SessionId([2; 16])]);
    let (first, next) = (&before.sessions[0], &after.sessions[0]);
    assert_eq!(next.addresses, first.addresses);
    assert!(next.deadline > first.deadline + Duration::from_secs(8 * LIFETIME_S), "by the renewal");
    assert_eq!(after.ended.reasons, BTreeMap::from([("superseded", 1)]), "nothing else has ended it");
    // It is asked for once.
    bench.phone.begin();
    let last = bench.wait("it is answered", |_, phone| phone.answered == 2).await;
    assert_eq!((sessions(&last), bench.auth.lock().unwrap().granted), (sessions(&after), 2));
}

#[tokio::test]
async fn a_renewed_device_that_gets_no_other_session_keeps_its_own_and_asks_again() {
    let mut bench = Bench::start().await;
    bench.let_in().await;
    {
        let mut auth = bench.auth.lock().unwrap();
        (auth.refuses, auth.renewed_s) = (true, 10);
    }
    let refused = bench.wait("its handshake is done all the same", |snapshot, _| done(snapshot) == 1).await;
    assert_eq!(sessions(&refused), [SessionId([1; 16])]);
    assert!(refused.refused_devices.is_empty(), "it is connected");
    bench.auth.lock().unwrap().refuses = false;
    bench.phone.begin();
    let after = bench.wait("it is answered", |_, phone| phone.answered == 2).await;
    assert_eq!(sessions(&after), [SessionId([2; 16])]);
}

#[tokio::test]
async fn the_answer_of_a_device_that_was_removed_meanwhile_keeps_no_place() {
    let mut parts = Parts::start().await;
    let key = parts.phone.handshakes.public().0;
    let outer = Endpoint { remote: parts.phone.socket.local_addr().unwrap(), local: None };
    parts.wireguard.begin_at(vec![DeviceAt { key: key.into(), outer }]);
    while parts.wireguard.poll_commands().is_some() {}
    let answered = async {
        // The gateway's first message, and the phone's answer to it.
        parts.step().await;
        parts.phone.receive().await;
        parts.step().await;
        assert_eq!(parts.wireguard.peers.finishing(), 1);
        let finished = parts.wireguard.next().await;
        parts.wireguard.change(vec![PeerChange { key: key.into(), peer: None }]);
        parts.wireguard.handle(finished);
    };
    tokio::time::timeout(Duration::from_secs(30), answered).await.unwrap();
    assert_eq!(parts.wireguard.peers.finishing(), 0);
}
