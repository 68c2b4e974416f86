//! One client of stock WireGuard's protocol: its static key, its one peer, and the keys of its
//! sessions. No sockets: what is to be sent comes out as [`Task`]s.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use vpnd_crypto::{Backend, Secret};
use vpnd_proto::plane::Endpoint;
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;
use vpnd_wireguard::gate::Limits;
use vpnd_wireguard::handshakes::{Handshakes, Known, NotAdded};
use vpnd_wireguard::key::{PublicKey, StaticKey};
use vpnd_wireguard::message::{Message, TRANSPORT_HEADER_LEN};
use vpnd_wireguard::peers::{Config, Event, Output, PeerId, Peers};
use vpnd_wireguard::transport::{MAX_RANGE, Opener, Sealer};

use crate::ping::{PING_LEN, ping, replied};
use crate::wall_ns;

/// Something to be done for a member.
#[derive(Debug)]
pub(super) enum Task {
    Send(Vec<u8>),
    /// It has the keys of another session.
    Up,
    /// The server answered a ping with this mark.
    Answered(u16),
}

pub(super) struct Member {
    handshakes: Handshakes,
    peers: Peers,
    server: PeerId,
    sealer: Option<Arc<Sealer>>,
    /// Those of the session before, of this one and of the next.
    openers: Vec<(Index, Opener)>,
    pub(super) inner: Ipv4Addr,
    /// The server's address inside.
    far: Ipv4Addr,
    sequence: u16,
    /// When a handshake was begun, until it is done.
    pub(super) began: Option<Time>,
}

/// The addresses of a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) server: Endpoint,
    pub(super) inner: Ipv4Addr,
    pub(super) far: Ipv4Addr,
}

impl Member {
    /// # Errors
    /// If `server` is no key that a server can have.
    pub(super) fn new(
        now: Time,
        private: [u8; 32],
        server: PublicKey,
        place: Place,
        backend: Backend,
    ) -> Result<Self, NotAdded> {
        let random = || Box::new(|bytes: &mut [u8]| rand::fill(bytes));
        let own = StaticKey::new(Secret::new(private));
        let config = Config { own: own.public(), shards: 1, backend, limits: Limits::default() };
        let mut handshakes = Handshakes::new(own, random());
        handshakes.add(server, Known::default())?;
        let mut peers = Peers::new(now, config, random());
        let server = peers.add(now, server, Some(place.server), None);
        let Place { inner, far, .. } = place;
        let openers = Vec::new();
        Ok(Self { handshakes, peers, server, sealer: None, openers, inner, far, sequence: 0, began: None })
    }

    /// Begins a handshake, if none is on its way.
    pub(super) fn begin(&mut self, now: Time, tasks: &mut Vec<Task>) {
        self.began.get_or_insert(now);
        self.peers.on_no_session(now, self.server);
        self.settle(now, tasks);
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.peers.poll_timeout()
    }

    pub(super) fn timeout(&mut self, now: Time, tasks: &mut Vec<Task>) {
        self.peers.on_timeout(now);
        self.settle(now, tasks);
    }

    /// Takes a datagram, and opens it in place if it carries data. Returns the length of these with
    /// their padding, if they are authentic.
    pub(super) fn datagram(
        &mut self,
        now: Time,
        from: Endpoint,
        datagram: &mut [u8],
        tasks: &mut Vec<Task>,
    ) -> Option<usize> {
        let Ok(Message::Transport(header)) = Message::parse(datagram) else {
            // A message of another handshake than the last one.
            let _ = self.peers.on_datagram(now, from, datagram);
            self.settle(now, tasks);
            return None;
        };
        let opener = self.openers.iter_mut().find(|(index, _)| *index == header.receiver);
        let opened = opener?.1.open(now, header, datagram).ok()?;
        self.peers.on_opened(now, header.receiver, from, opened);
        self.settle(now, tasks);
        tasks.extend(replied(&datagram[TRANSPORT_HEADER_LEN..][..opened.len]).map(Task::Answered));
        Some(opened.len)
    }

    /// Sends the server an echo request with this mark; without keys a handshake begins.
    pub(super) fn ping(&mut self, now: Time, mark: u16, tasks: &mut Vec<Task>) {
        self.sequence = self.sequence.wrapping_add(1);
        let packet = ping(self.inner, self.far, mark, self.sequence);
        let mut out = vec![0; Sealer::message_len(PING_LEN)];
        let write = |inner: &mut [u8]| inner.copy_from_slice(&packet);
        match self.burst(now, (PING_LEN, 1), &mut out, write, tasks) {
            Some(_) => tasks.push(Task::Send(out)),
            None => self.begin(now, tasks),
        }
    }

    /// Seals `count` packets of `len` bytes, one behind the other in `out`, each as `write` puts it
    /// down. Returns how long each datagram is; `None` if there are no keys now.
    pub(super) fn burst(
        &mut self,
        now: Time,
        (len, count): (usize, u64),
        out: &mut [u8],
        mut write: impl FnMut(&mut [u8]),
        tasks: &mut Vec<Task>,
    ) -> Option<usize> {
        let sealer = Arc::clone(self.sealer.as_ref()?);
        let (size, mut left) = (Sealer::message_len(len), count);
        let mut datagrams = out.chunks_exact_mut(size);
        while left > 0 {
            let part = left.min(MAX_RANGE.into());
            let mut range = sealer.reserve(now, part as u16).ok()?;
            for datagram in datagrams.by_ref().take(part as usize) {
                write(&mut datagram[TRANSPORT_HEADER_LEN..][..len]);
                range.seal(datagram, len).ok()?;
            }
            left -= part;
        }
        self.peers.on_sent(now, self.server, true);
        self.settle(now, tasks);
        Some(size)
    }

    fn settle(&mut self, now: Time, tasks: &mut Vec<Task>) {
        while let Some(output) = self.peers.poll_output() {
            match output {
                Output::Send { datagram, .. } => tasks.push(Task::Send(datagram)),
                Output::Ask(id, request) => {
                    let reply = self.handshakes.handle(now, Duration::from_nanos(wall_ns()), &request);
                    self.peers.on_reply(now, id, reply);
                }
                Output::Open { index, opener, .. } => self.openers.push((index, *opener)),
                Output::Close(index) => self.openers.retain(|(open, _)| *open != index),
                Output::Seal(_, sealer) => self.sealer = sealer,
                Output::Event(Event::HandshakeDone(_)) => tasks.push(Task::Up),
                Output::Endpoint(..) | Output::Event(_) => {}
            }
        }
    }
}
