//! One session without a machine: the protocol's client core and data plane, but no TUN device and
//! no socket.
//!
//! Events go in by methods, [`Task`]s come out. INVARIANT: the core alone decides when to connect,
//! probe, wait or give up, so a swarm behaves as that many ordinary clients would.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use vpnd_crypto::{DeviceKey, EpochSecret};
use vpnd_packet::ecn::Ecn;
use vpnd_proto::client::{Action, Client, Config, ConfigError, Purpose};
use vpnd_proto::control::{Code, Established, FEATURE_ECN, FEATURES, Message, Offer};
use vpnd_proto::plane::{
    Activity, Command, Endpoint, Event, NoSender, Opened, Origin, Outgoing, Plane, Role, Sealed, Slot,
};
use vpnd_proto::policy::Policy;
use vpnd_proto::session::{ConnectionId, LocalSuite, Timers};
use vpnd_proto::time::Time;
use vpnd_proto::wire::{HEADER_LEN, Header, Index};

use crate::message::KeySource;
use crate::ping::{PING_LEN, ping, replied};

/// The longest datagram that a session sends: a padded probe of the largest path MTU that is
/// searched for.
const MAX_DATAGRAM: usize = 2_048;

/// Something that a swarm has to do for a session.
pub(crate) enum Task {
    /// Open a connection and send a request on it.
    Dial {
        /// The connection's number in the session.
        connection: ConnectionId,
        purpose: Purpose,
        offer: Offer,
    },
    Datagram {
        bytes: Vec<u8>,
        to: Endpoint,
    },
    /// Datagrams with this index are for this session from now on.
    AddIndex(Index),
    RemoveIndex(Index),
    /// Send a last message and close the connection.
    SendAndClose(ConnectionId, Message),
    /// Close or abandon a connection.
    Close(ConnectionId, Code),
    /// The first datagram in new keys has come.
    Up {
        by: KeySource,
        /// Since the connection was requested.
        took: Duration,
    },
    /// A ping with this mark was answered.
    Answered(u16),
    GaveUp(String),
}

/// A connection that was requested, and its keys until they work.
#[derive(Debug)]
struct Attempt {
    connection: ConnectionId,
    asked: Time,
    by: KeySource,
    epoch: Option<u32>,
}

pub(crate) struct Member {
    core: Client,
    plane: Plane,
    /// The key by which the gateway knows this client's device.
    pub(crate) device: Arc<DeviceKey>,
    slot: Option<Slot>,
    indexes: Vec<(u32, Index)>,
    attempt: Option<Attempt>,
    inner: Option<(Ipv4Addr, Ipv4Addr)>,
    /// The host that its pings are for, if not the gateway.
    far: Option<Ipv4Addr>,
    /// Largest inner packet, in bytes.
    mtu: u16,
    sequence: u16,
}

impl Member {
    /// A client whose first task is to log in. Its pings are for the host `far`, or for the
    /// gateway.
    ///
    /// # Errors
    /// If `suites` can't be offered.
    pub(crate) fn new(
        suites: Vec<LocalSuite>,
        device: DeviceKey,
        far: Option<Ipv4Addr>,
    ) -> Result<Self, ConfigError> {
        let config = Config {
            lanes: 1,
            suites,
            features: FEATURES & !FEATURE_ECN,
            lab: None,
            timers: Timers::default(),
        };
        Ok(Self {
            core: Client::new(config, Box::new(|bytes| rand::Rng::fill_bytes(&mut rand::rng(), bytes)))?,
            plane: Plane::new(Role::Client, Policy::default().into(), rand::random()),
            device: device.into(),
            slot: None,
            indexes: Vec::new(),
            attempt: None,
            inner: None,
            far,
            mtu: 0,
            sequence: 0,
        })
    }

    /// When to call [`Member::timeout`].
    pub(crate) fn due(&self) -> Option<Time> {
        self.core.poll_timeout().map(|(at, _)| at)
    }

    pub(crate) fn timeout(&mut self, now: Time, tasks: &mut Vec<Task>) {
        self.core.handle_timeout(now);
        self.carry_out(now, tasks);
    }

    /// Ends the session as its user would.
    pub(crate) fn quit(&mut self, now: Time, tasks: &mut Vec<Task>) {
        self.core.quit();
        self.carry_out(now, tasks);
    }

    /// The path to the gateway has changed.
    pub(crate) fn network_changed(&mut self, now: Time, tasks: &mut Vec<Task>) {
        self.core.network_changed(now);
        self.carry_out(now, tasks);
    }

    /// Passes the traffic's counts to the core; about once a second.
    pub(crate) fn tick(&mut self, now: Time, tasks: &mut Vec<Task>) {
        // Taken, so that the core counts each packet once: the sum decides whether keys were used
        // and are renewed.
        let seen = self.plane.take_activities().into_iter().map(|(_, activity)| activity);
        self.core.handle_activity(now, 0, seen.fold(Activity::default(), Activity::merge));
        self.carry_out(now, tasks);
    }

    /// The gateway granted a connection.
    pub(crate) fn established(
        &mut self,
        now: Time,
        connection: ConnectionId,
        established: &Established,
        secret: EpochSecret,
        gateway: Endpoint,
        tasks: &mut Vec<Task>,
    ) {
        if let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.connection == connection) {
            attempt.epoch = Some(established.epoch);
        }
        self.core.established(now, connection, established, secret, gateway);
        self.carry_out(now, tasks);
    }

    /// The gateway refused a connection.
    pub(crate) fn refused(
        &mut self,
        now: Time,
        connection: ConnectionId,
        (code, text, retry_after): (Code, &str, Duration),
        tasks: &mut Vec<Task>,
    ) {
        self.core.refused(now, connection, code, text, retry_after);
        self.carry_out(now, tasks);
    }

    /// A connection attempt failed.
    pub(crate) fn failed(&mut self, now: Time, connection: ConnectionId, tasks: &mut Vec<Task>) {
        self.core.connect_failed(now, connection);
        self.carry_out(now, tasks);
    }

    /// The gateway has no room for another connection now.
    pub(crate) fn turned_away(&mut self, now: Time, connection: ConnectionId, tasks: &mut Vec<Task>) {
        self.core.turned_away(now, connection);
        self.carry_out(now, tasks);
    }

    pub(crate) fn message(&mut self, now: Time, id: ConnectionId, message: Message, tasks: &mut Vec<Task>) {
        self.core.handle_message(now, id, message);
        self.carry_out(now, tasks);
    }

    /// A connection is gone.
    pub(crate) fn lost(&mut self, now: Time, id: ConnectionId, code: Option<Code>, tasks: &mut Vec<Task>) {
        self.core.connection_lost(now, id, code);
        self.carry_out(now, tasks);
    }

    /// Opens a datagram. False if it was not for this session.
    pub(crate) fn datagram(
        &mut self,
        now: Time,
        datagram: &mut [u8],
        from: Endpoint,
        tasks: &mut Vec<Task>,
    ) -> bool {
        let Ok(header) = Header::parse(datagram) else { return false };
        let origin = Origin { from, mark: Ecn::NotEct, congested: false };
        let Ok(opened) = self.plane.open(now, header, datagram, origin) else { return false };
        match opened {
            Opened::Tun(packet) => tasks.extend(replied(&datagram[packet.range()]).map(Task::Answered)),
            Opened::Probe { slot, id, size, padded } => {
                self.originate(now, Outgoing::Reply { slot, id, size, padded }, tasks);
            }
            // It sends nothing that comes back in halves, and is no gateway.
            Opened::Forward { .. }
            | Opened::Expired { .. }
            | Opened::Redirect { .. }
            | Opened::Refused { .. }
            | Opened::Joined { .. }
            | Opened::BatchProbe { .. }
            | Opened::BatchesLost(_)
            | Opened::Consumed => {}
        }
        self.carry_out(now, tasks);
        true
    }

    /// Sends a ping through the tunnel, if there is one. Its answer bears the same mark.
    pub(crate) fn ping(&mut self, now: Time, mark: u16, tasks: &mut Vec<Task>) {
        let (Some(slot), Some((own, gateway))) = (self.slot, self.inner) else { return };
        let far = self.far.unwrap_or(gateway);
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = vec![0; HEADER_LEN + PING_LEN + 64];
        bytes[HEADER_LEN..HEADER_LEN + PING_LEN].copy_from_slice(&ping(own, far, mark, self.sequence));
        let sender = self.plane.sender(now, slot).map_err(NoSender::give_up);
        let sealed = sender.and_then(|mut sender| sender.seal(&mut bytes, PING_LEN));
        if let Ok(sealed) = sealed {
            send(bytes, sealed, tasks);
        }
        // Without keys the plane has requested some, which the core has to learn.
        self.carry_out(now, tasks);
    }

    /// Its address in the tunnel, that of the gateway, and the largest packet there.
    pub(crate) fn inner(&self) -> Option<(Ipv4Addr, Ipv4Addr, u16)> {
        self.inner.map(|(own, gateway)| (own, gateway, self.mtu))
    }

    /// Length of the datagram that a packet of `len` bytes makes; `None` if there are no keys now.
    pub(crate) fn datagram_len(&mut self, now: Time, len: usize) -> Option<usize> {
        let sender = self.plane.sender(now, self.slot?).map_err(NoSender::give_up).ok()?;
        Some(sender.datagram_len(len))
    }

    /// Seals `count` packets of `len` bytes, one behind the other in `out`, each as `write` puts it
    /// down. Returns how long each datagram is; `None` if there are no keys now.
    pub(crate) fn burst(
        &mut self,
        now: Time,
        (len, count): (usize, u64),
        out: &mut [u8],
        write: impl FnMut(&mut [u8]),
        tasks: &mut Vec<Task>,
    ) -> Option<usize> {
        let sealed = self.seal_burst(now, (len, count), out, write);
        self.carry_out(now, tasks);
        sealed
    }

    fn seal_burst(
        &mut self,
        now: Time,
        (len, count): (usize, u64),
        out: &mut [u8],
        mut write: impl FnMut(&mut [u8]),
    ) -> Option<usize> {
        let mut sender = self.plane.sender(now, self.slot?).map_err(NoSender::give_up).ok()?;
        let size = sender.datagram_len(len);
        for datagram in out.chunks_exact_mut(size).take(count as usize) {
            write(&mut datagram[HEADER_LEN..HEADER_LEN + len]);
            sender.seal(datagram, len).ok()?;
        }
        Some(size)
    }

    fn originate(&mut self, now: Time, what: Outgoing, tasks: &mut Vec<Task>) {
        for part in what.parts() {
            let mut bytes = vec![0; MAX_DATAGRAM];
            // A probe without keys is dropped and counted, as in any client.
            if let Ok(sealed) = self.plane.originate(now, part, &mut bytes) {
                send(bytes, sealed, tasks);
            }
        }
    }

    /// Events in, actions out, until there are no more.
    fn carry_out(&mut self, now: Time, tasks: &mut Vec<Task>) {
        loop {
            while let Some(event) = self.plane.poll_event() {
                self.note_answer(now, event, tasks);
                self.core.handle_event(now, event);
            }
            let Some(action) = self.core.poll_action() else { return };
            self.act(now, action, tasks);
        }
    }

    /// The first datagram in new keys proves that they work.
    fn note_answer(&mut self, now: Time, event: Event, tasks: &mut Vec<Task>) {
        let Event::Heard { epoch, .. } = event else { return };
        if let Some(attempt) = self.attempt.take_if(|attempt| attempt.epoch == Some(epoch)) {
            tasks.push(Task::Up { by: attempt.by, took: now - attempt.asked });
        }
    }

    fn act(&mut self, now: Time, action: Action, tasks: &mut Vec<Task>) {
        match action {
            Action::Connect { connection, purpose, offer } => {
                let source = match purpose {
                    Purpose::Attach { .. } | Purpose::Transfer { .. } => KeySource::Attach,
                    Purpose::Login | Purpose::Move => KeySource::Login,
                };
                self.attempt = Some(Attempt { connection, asked: now, by: source, epoch: None });
                tasks.push(Task::Dial { connection, purpose, offer });
            }
            Action::Command { command, .. } => self.command(now, command, tasks),
            Action::Configure(network) => self.inner = network.ipv4.zip(network.gateway_ipv4),
            Action::PathMtu(mtu) => self.mtu = mtu,
            // No file tells a member where the gateway is, and it sends no batches.
            Action::Renew(_) | Action::BatchesLost(_) | Action::Reopen(_) | Action::LanesBlocked => {}
            Action::Send { connection, message } => {
                tasks.push(Task::SendAndClose(connection, message));
            }
            Action::Disconnect { connection, code } => tasks.push(Task::Close(connection, code)),
            Action::GiveUp { text, .. } => tasks.push(Task::GaveUp(text)),
        }
    }

    fn command(&mut self, now: Time, command: Command, tasks: &mut Vec<Task>) {
        match &command {
            Command::Open(spec) => self.slot = Some(spec.slot),
            Command::Install(spec) => {
                for receive in &spec.receive {
                    self.indexes.push((spec.epoch, receive.index));
                    tasks.push(Task::AddIndex(receive.index));
                }
            }
            Command::Retire { epoch, .. } => self.remove_indexes(|of| of == *epoch, tasks),
            Command::Close(_) => self.remove_indexes(|_| true, tasks),
            _ => {}
        }
        if let Some(outgoing) = self.plane.apply(command) {
            self.originate(now, outgoing, tasks);
        }
    }

    fn remove_indexes(&mut self, of_epoch: impl Fn(u32) -> bool, tasks: &mut Vec<Task>) {
        let gone = self.indexes.extract_if(.., |(epoch, _)| of_epoch(*epoch));
        tasks.extend(gone.map(|(_, index)| Task::RemoveIndex(index)));
    }
}

fn send(mut bytes: Vec<u8>, sealed: Sealed, tasks: &mut Vec<Task>) {
    bytes.truncate(sealed.len);
    tasks.push(Task::Datagram { bytes, to: sealed.outer.endpoint });
}

#[cfg(test)]
mod tests {
    use vpnd_crypto::{Backend, Secret, Suite};
    use vpnd_proto::attach::Token;
    use vpnd_proto::control::{List, Network, TimersMs};
    use vpnd_proto::session::SessionId;

    use super::*;

    /// The first grant of a gateway with one lane.
    fn granted() -> Established {
        let own = Ipv4Addr::new(10, 86, 0, 2);
        let network = Network {
            ipv4: Some(own),
            gateway_ipv4: Some(Ipv4Addr::new(10, 86, 0, 1)),
            ..Network::default()
        };
        Established {
            session: SessionId([7; 16]),
            epoch: 1,
            suite: Suite::Aes128Gcm.id(),
            indexes: List::new(vec![10]).unwrap(),
            gateway_lanes: 1,
            features: 0,
            token: Token::from_bytes([8; 32]),
            network,
            timers: TimersMs::default(),
        }
    }

    #[test]
    fn the_core_counts_each_packet_once() {
        let suite = LocalSuite { suite: Suite::Aes128Gcm, backend: Backend::Ring, mbps: 1_000 };
        let mut member = Member::new(vec![suite], DeviceKey::from_seed(Secret::new([9; 32])), None).unwrap();
        let (now, mut tasks) = (Time::from_nanos(1), Vec::new());
        member.timeout(now, &mut tasks);
        let Some(Task::Dial { connection, .. }) = tasks.pop() else { panic!("a client logs in first") };
        let gateway = Endpoint { remote: ([192, 0, 2, 1], 1).into(), local: None };
        let secret = EpochSecret::new([1; 32]);
        member.established(now, connection, &granted(), secret, gateway, &mut tasks);
        member.ping(now, 0, &mut tasks);
        let counted = |member: &Member| member.plane.activity(member.slot.unwrap()).unwrap().tx_packets;
        assert_eq!(counted(&member), 1);
        // A session whose one packet were counted again each second would never seem idle: it would
        // renew its keys without end.
        member.tick(now, &mut tasks);
        assert_eq!(counted(&member), 0);
    }
}
