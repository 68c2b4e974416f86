//! Many devices in one process: the client's half of the protocol as the gateway's own crate has
//! it, with a socket for each.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vpnd_crypto::{Backend, Secret};
use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::DeviceId;
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{NewWireGuardDevice, StoreError, WireGuardDevices as _};
use vpnd_wireguard::gate::Limits;
use vpnd_wireguard::handshakes::{Known, Reply, Request};
use vpnd_wireguard::key::StaticKey;
use vpnd_wireguard::mac::{HandshakeMessage as _, Mac1Key};
use vpnd_wireguard::message::Message;
use vpnd_wireguard::peers::{Config, Event, Output, PeerId};
use vpnd_wireguard::transport::Opener;
use vpnd_wireguard::{Handshakes, Peers, PublicKey};
use zerocopy::IntoBytes as _;

use crate::gateway::Gateway;
use crate::lab::{GATEWAY_V4, UPLINK};
use crate::namespace::Namespace;

/// Devices with one outer address, fewer than a gateway asks for a proof of it.
const OF_ONE_ADDRESS: usize = 20;

struct Device {
    socket: UdpSocket,
    handshakes: Handshakes,
    peers: Peers,
    gateway: PeerId,
    openers: HashMap<Index, Opener>,
    /// Handshakes that are done.
    done: u64,
}

/// The devices.
pub(crate) struct Fleet {
    devices: Vec<Device>,
    at: SocketAddr,
    began: Instant,
}

fn private(number: usize) -> StaticKey {
    let mut key = [0x77; 32];
    key[8..16].copy_from_slice(&(number as u64).to_le_bytes());
    StaticKey::new(Secret::new(key))
}

/// Adds a device of this user for each number; the gateway does not run.
pub(crate) fn add(gateway: &Gateway<'_>, user: &str, numbers: std::ops::Range<usize>) {
    let store = Sqlite::open(&gateway.file("state/vpnd.db")).unwrap();
    for number in numbers {
        let mut id = [7; 16];
        id[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        // Another device may have got the first of its two addresses by chance.
        let is_added = [100, 200].into_iter().any(|network| {
            let device = NewWireGuardDevice {
                public_key: private(number).public().0,
                id: DeviceId(id),
                name: format!("device {number}"),
                preshared: None,
                most: 64,
                addresses: vec![[10, 86, network + (number / 200) as u8, 2 + (number % 200) as u8].into()],
            };
            match store.add_wireguard_device(user, &device, now_s) {
                Err(StoreError::AddressTaken { .. }) => false,
                added => added.map(|_| true).unwrap(),
            }
        });
        assert!(is_added);
    }
}

/// The first message of the device with this number to the gateway with this public key, whose
/// first MAC is right for `named`.
pub(crate) fn first_message(number: usize, gateway: PublicKey, named: PublicKey) -> Vec<u8> {
    let mut handshakes = Handshakes::new(private(number), vpnd_sys::random::random());
    handshakes.add(gateway, Known::default()).unwrap();
    let day = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let Reply::Initiated(message, _) = handshakes.handle(Time::ZERO, day, &Request::Initiate(gateway)) else {
        panic!("it knows the gateway")
    };
    let mut message = message.from(Index(1));
    message.stamp(&Mac1Key::new(named), None);
    message.as_bytes().to_vec()
}

impl Fleet {
    /// `count` devices in `place`, for the gateway with this public key.
    pub(crate) fn new(place: &Namespace, count: usize, gateway: PublicKey, port: u16) -> Self {
        let at = SocketAddr::from((GATEWAY_V4, port));
        let addresses = count.div_ceil(OF_ONE_ADDRESS);
        let lines = (0..addresses).map(|n| format!("addr add 198.18.1.{}/24 dev {UPLINK}\n", 100 + n));
        place.ip_batch(&lines.collect::<String>());
        let device = |number: usize| {
            let from = SocketAddr::from(([198, 18, 1, 100 + (number / OF_ONE_ADDRESS) as u8], 0));
            let socket = place.within(|| UdpSocket::bind(from)).unwrap();
            socket.set_nonblocking(true).unwrap();
            let key = private(number);
            let config =
                Config { own: key.public(), shards: 1, backend: Backend::Ring, limits: Limits::default() };
            let mut handshakes = Handshakes::new(key, vpnd_sys::random::random());
            handshakes.add(gateway, Known::default()).unwrap();
            let mut peers = Peers::new(Time::ZERO, config, vpnd_sys::random::random());
            let endpoint = Endpoint { remote: at, local: None };
            let gateway = peers.add(Time::ZERO, gateway, Some(endpoint), None);
            Device { socket, handshakes, peers, gateway, openers: HashMap::new(), done: 0 }
        };
        Self { devices: (0..count).map(device).collect(), at, began: Instant::now() }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }

    /// All of them begin a handshake.
    pub(crate) fn begin(&mut self) {
        let now = self.now();
        for device in &mut self.devices {
            device.peers.on_no_session(now, device.gateway);
        }
    }

    /// The time until each has done one more handshake than these.
    pub(crate) fn all_beyond(&mut self, done: &[u64], limit: Duration) -> Duration {
        let began = Instant::now();
        loop {
            let now = self.now();
            self.devices.iter_mut().for_each(|device| device.run(now, self.at));
            let missing = self.done().iter().zip(done).filter(|(now, before)| now <= before).count();
            if missing == 0 {
                return began.elapsed();
            }
            assert!(began.elapsed() < limit, "{missing} devices of {} are not back", self.devices.len());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The number of handshakes that each has done.
    pub(crate) fn done(&self) -> Vec<u64> {
        self.devices.iter().map(|device| device.done).collect()
    }
}

impl Device {
    fn run(&mut self, now: Time, at: SocketAddr) {
        let from = Endpoint { remote: at, local: None };
        let mut buffer = [0; 2_048];
        while let Ok(len) = self.socket.recv(&mut buffer) {
            let datagram = &mut buffer[..len];
            let Ok(Message::Transport(header)) = Message::parse(datagram) else {
                let _ = self.peers.on_datagram(now, from, datagram);
                continue;
            };
            let opener = self.openers.get_mut(&header.receiver);
            if let Some(Ok(opened)) = opener.map(|opener| opener.open(now, header, datagram)) {
                self.peers.on_opened(now, header.receiver, from, opened);
            }
        }
        if self.peers.poll_timeout().is_some_and(|due| due <= now) {
            self.peers.on_timeout(now);
        }
        while let Some(output) = self.peers.poll_output() {
            match output {
                Output::Send { to, datagram } => drop(self.socket.send_to(&datagram, to.remote)),
                Output::Ask(id, request) => {
                    let day = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
                    let reply = self.handshakes.handle(now, day, &request);
                    self.peers.on_reply(now, id, reply);
                }
                Output::Open { index, opener, .. } => drop(self.openers.insert(index, *opener)),
                Output::Close(index) => drop(self.openers.remove(&index)),
                Output::Event(Event::HandshakeDone(_)) => self.done += 1,
                Output::Seal(..) | Output::Endpoint(..) | Output::Event(_) => {}
            }
        }
    }
}
