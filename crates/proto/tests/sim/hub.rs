//! The gateway: the real control core and planes, with a store that survives it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use vpnd_crypto::{Backend, Suite};
use vpnd_packet::Packet;
use vpnd_packet::ecn::Ecn;
use vpnd_proto::control::{Code, Network};
use vpnd_proto::gateway::{Config, Effect, Gateway, ProfileSettings, SessionRecord};
use vpnd_proto::plane::{Command, Endpoint, NoSender, Opened, Origin, Outgoing, Plane, Role, Sender, Slot};
use vpnd_proto::policy::{Policy, Principal};
use vpnd_proto::rate::SessionLimits;
use vpnd_proto::session::{LocalSuite, Random, SessionId, Timers};
use vpnd_proto::wire::{HEADER_LEN, Header};

use crate::channel::IDLE_TIMEOUT;
use crate::inner;
use crate::oracle::Place;
use crate::world::{Happening, World};

/// Room for the largest growth of a sealed packet.
pub(crate) const ROOM: usize = HEADER_LEN + 48;

/// The suite that simulations use.
pub(crate) const SUITE: LocalSuite =
    LocalSuite { suite: Suite::Aes128Gcm, backend: Backend::Ring, mbps: 5000 };

/// The gateway.
pub(crate) struct Hub {
    pub(crate) core: Gateway,
    pub(crate) planes: Vec<Plane>,
    pub(crate) config: Config,
    pub(crate) policy: Arc<Policy>,
    pub(crate) clients_may_meet: bool,
    /// The records that survive a restart.
    pub(crate) store: BTreeMap<SessionId, SessionRecord>,
    /// Sessions that ended, and why.
    pub(crate) ended: Vec<(SessionId, Code)>,
    /// Counts restarts.
    pub(crate) life: u32,
    /// The machine sleeps: nothing runs and nothing arrives.
    pub(crate) asleep: bool,
    pub(crate) lifetime: Duration,
    /// The secret behind the installs that come next.
    pub(crate) latest_secret: [u8; 32],
}

/// The configuration of most simulations.
pub(crate) fn config(shards: usize) -> Config {
    Config {
        shards,
        suites: vec![SUITE],
        features: vpnd_proto::control::FEATURE_PATH_SIZE | vpnd_proto::control::FEATURE_HALVES,
        lab: None,
        timers: Timers::default(),
        idle_timeout: None,
        max_sessions: 10_000,
        renewal: None,
        profiles: ProfileSettings { network: Network::default(), max_sessions_per_user: 10 }.alone(),
    }
}

impl Hub {
    pub(crate) fn new(config: Config, clients_may_meet: bool, random: Random) -> Self {
        let policy = Arc::new(Policy::without_rules(clients_may_meet));
        Self {
            core: Gateway::new(config.clone(), random).expect("the configuration is good"),
            planes: planes(config.shards, &policy),
            config,
            policy,
            clients_may_meet,
            store: BTreeMap::new(),
            ended: Vec::new(),
            life: 0,
            asleep: false,
            lifetime: Duration::from_secs(24 * 3600),
            latest_secret: [0; 32],
        }
    }

    /// Dropped datagrams and packets, by all shards.
    pub(crate) fn dropped(&self, reason: vpnd_proto::plane::DropReason) -> u64 {
        self.planes.iter().map(|plane| plane.counters().dropped(reason)).sum()
    }
}

fn planes(shards: usize, policy: &Arc<Policy>) -> Vec<Plane> {
    (0..shards).map(|shard| Plane::new(Role::Gateway, Arc::clone(policy), shard as u64)).collect()
}

impl World {
    /// The gateway dies and comes back with nothing but its store.
    pub(crate) fn restart_hub(&mut self) {
        let random = self.random();
        let mut core = Gateway::new(self.hub.config.clone(), random).expect("it was good before");
        for record in self.hub.store.values() {
            assert!(core.restore(self.now, record.clone()), "the store holds each session once");
        }
        self.hub.core = core;
        self.hub.planes = planes(self.hub.config.shards, &self.hub.policy);
        self.hub.life += 1;
        self.reset_channels(|_| true);
        self.settle_hub();
    }

    /// The gateway's machine is stopped for a time, as virtual machines are, and goes on where it
    /// was.
    pub(crate) fn sleep_hub(&mut self, duration: Duration) {
        self.hub.asleep = true;
        self.set_wakeup(Place::Campus, None);
        let before: Vec<u64> = self.channels.keys().copied().collect();
        for channel in &before {
            self.after(IDLE_TIMEOUT, Happening::ClosedAtDevice { channel: *channel, code: None });
        }
        self.run(duration);
        self.hub.asleep = false;
        for channel in before {
            self.after(IDLE_TIMEOUT, Happening::ClosedAtHub { channel });
        }
        self.settle_hub();
    }

    /// The gateway hands its sessions to another process, which goes on with them. Control
    /// connections are lost.
    pub(crate) fn upgrade_hub(&mut self) {
        let progress = self.hub.planes.iter().map(Plane::progress).collect();
        let handed = self.hub.core.hand_over(progress);
        let random = self.random();
        let mut core = Gateway::new(self.hub.config.clone(), random).expect("it was good before");
        for session in handed {
            let bytes = minicbor::to_vec(&session).expect("a vector takes all that is written to it");
            let session = minicbor::decode(&bytes).expect("it was written just now");
            core.take_over(self.now, session, Principal::default(), SessionLimits::default())
                .expect("the sessions fit together");
        }
        self.hub.planes = planes(self.hub.config.shards, &self.hub.policy);
        while let Some(effect) = core.poll_effect() {
            let Effect::Command { shard, command } = effect else { panic!("{effect:?} has no place here") };
            // The keys are those that the oracle knows already.
            self.hub.planes[shard].apply(command);
        }
        self.hub.core = core;
        self.hub.life += 1;
        self.reset_channels(|_| true);
        self.settle_hub();
    }

    /// Carries out what the gateway's core wants, and tells it what the planes saw, until all is
    /// quiet.
    pub(crate) fn settle_hub(&mut self) {
        loop {
            while let Some(effect) = self.hub.core.poll_effect() {
                self.hub_effect(effect);
            }
            let mut quiet = true;
            for shard in 0..self.hub.planes.len() {
                while let Some(event) = self.hub.planes[shard].poll_event() {
                    self.hub.core.handle_event(self.now, event);
                    quiet = false;
                }
                while let Some(slot) = self.hub.planes[shard].poll_path_check() {
                    self.hub_originates(shard, Outgoing::PathCheck(slot));
                }
            }
            if quiet {
                break;
            }
        }
        let timeout = self.hub.core.poll_timeout();
        self.set_wakeup(Place::Campus, timeout.map(|(at, _)| at));
    }

    fn hub_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Command { shard, command } => self.hub_command(shard, command),
            Effect::Send { connection, message } => self.send_to_device(connection.0, message),
            Effect::CloseConnection { connection, code } => self.close_from_hub(connection.0, code),
            Effect::Persist(record) => {
                self.hub.store.insert(record.id, record);
            }
            Effect::Forget(session) => {
                self.hub.store.remove(&session);
            }
            Effect::HeardAt { .. } => {}
            Effect::Ended(ended) => self.hub.ended.push((ended.session, ended.code)),
        }
    }

    fn hub_command(&mut self, shard: usize, command: Command) {
        if let Command::Install(spec) = &command {
            self.oracle.install(Place::Campus, shard, spec.peer_index.0, self.hub.latest_secret);
        }
        let reached = if let Command::Reach { slot, .. } = &command { Some(*slot) } else { None };
        if let Some(outgoing) = self.hub.planes[shard].apply(command) {
            self.hub_originates(shard, outgoing);
        }
        if let Some(slot) = reached {
            self.hub_flushes(shard, slot);
        }
    }

    fn hub_originates(&mut self, shard: usize, outgoing: Outgoing) {
        for part in outgoing.parts() {
            let mut datagram = vec![0; 2048];
            if let Ok(sealed) = self.hub.planes[shard].originate(self.now, part, &mut datagram) {
                datagram.truncate(sealed.len);
                self.hub_transmits(shard, sealed.outer.endpoint, datagram);
            }
        }
    }

    fn hub_transmits(&mut self, shard: usize, to: Endpoint, datagram: Vec<u8>) {
        self.oracle.seal(Place::Campus, shard, &datagram);
        self.transmit_to_device(to.remote, datagram);
    }

    /// Sends what waited for an epoch.
    fn hub_flushes(&mut self, shard: usize, slot: Slot) {
        while let Some(packet) = self.hub.planes[shard].poll_waiting(self.now, slot) {
            self.hub_seals(shard, slot, &packet);
        }
    }

    fn hub_seals(&mut self, shard: usize, slot: Slot, packet: &[u8]) {
        let datagrams = seal(self.hub.planes[shard].sender(self.now, slot), packet);
        for (endpoint, datagram) in datagrams {
            self.hub_transmits(shard, endpoint, datagram);
        }
    }

    /// A packet from the campus side comes out of a TUN queue.
    pub(crate) fn hub_sends(&mut self, packet: &[u8]) {
        if self.hub.asleep {
            return;
        }
        let shard = inner::queue(packet, self.hub.planes.len());
        let parsed = Packet::parse(packet).expect("simulated packets are well-formed");
        let datagrams = seal(self.hub.planes[shard].route(self.now, &parsed), packet);
        for (endpoint, datagram) in datagrams {
            self.hub_transmits(shard, endpoint, datagram);
        }
        self.settle_hub();
    }

    pub(crate) fn hub_receives(&mut self, from: SocketAddr, mut datagram: Vec<u8>) {
        let Ok(header) = Header::parse(&datagram) else { return };
        let shard = header.index.shard(self.hub.planes.len());
        let origin =
            Origin { from: Endpoint { remote: from, local: None }, mark: Ecn::NotEct, congested: false };
        let opened = self.hub.planes[shard].open(self.now, header, &mut datagram, origin);
        if opened.is_ok() && self.captured.is_some() {
            self.heard.insert((header.index, header.lane, header.counter));
        }
        match opened {
            Ok(Opened::Tun(checked)) => {
                let packet = &datagram[checked.range()];
                if !self.is_for_a_client(packet) {
                    self.oracle.deliver(inner::id(packet), Place::Campus);
                }
            }
            Ok(Opened::Joined { to, packet }) => {
                let packet = self.hub.planes[shard].joined()[packet.range()].to_vec();
                match to {
                    Some(to) => self.hub_seals(shard, to, &packet),
                    None if self.is_for_a_client(&packet) => {}
                    None => self.oracle.deliver(inner::id(&packet), Place::Campus),
                }
            }
            Ok(Opened::Forward { to, len }) => {
                self.hub_seals(shard, to, &datagram[HEADER_LEN..HEADER_LEN + len]);
            }
            Ok(Opened::Probe { slot, id, size, padded }) => {
                self.hub_originates(shard, Outgoing::Reply { slot, id, size, padded });
            }
            Ok(Opened::BatchProbe { slot, id, size }) => {
                self.hub_originates(shard, Outgoing::Batch { slot, id, size, replies: true });
            }
            Ok(
                Opened::Expired { .. }
                | Opened::Redirect { .. }
                | Opened::Refused { .. }
                | Opened::BatchesLost(_)
                | Opened::Consumed,
            )
            | Err(_) => {}
        }
        self.settle_hub();
    }

    /// Whether a packet that leaves the tunnel is for the address of a client, which has no session
    /// now. The kernel's firewall drops what would go back into the tunnel, so it is not delivered
    /// to anybody.
    fn is_for_a_client(&self, packet: &[u8]) -> bool {
        let dst = Packet::parse(packet).expect("a plane lets nothing else through").dst();
        let mut leases = self.devices.iter().map(|device| device.lease);
        leases.any(|lease| lease.ipv4.is_some_and(|a| dst == a) || lease.ipv6.is_some_and(|a| dst == a))
    }

    /// The shards' figures, once a second.
    pub(crate) fn hub_reports(&mut self) {
        for plane in &mut self.hub.planes {
            for (slot, activity) in plane.take_activities() {
                self.hub.core.handle_activity(slot, activity);
            }
        }
        self.settle_hub();
    }
}

/// The datagrams that a plane makes of a packet: two of IPv6 that every path has to carry and this
/// one does not carry whole, none of a packet that waits for an epoch or is dropped.
pub(crate) fn seal(sender: Result<Sender<'_>, NoSender<'_>>, packet: &[u8]) -> Vec<(Endpoint, Vec<u8>)> {
    let mut sender = match sender {
        Ok(sender) => sender,
        Err(no_sender) => {
            no_sender.queue(packet);
            return Vec::new();
        }
    };
    let exceeds = sender.joins_halves() && sender.exceeds_path(packet.len());
    let halves: &[_] = if exceeds && packet[0] >> 4 == 6 && packet.len() <= 1280 {
        &[Some(false), Some(true)]
    } else {
        &[None]
    };
    let datagrams = halves.iter().map_while(|half| {
        let mut datagram = vec![0; packet.len() + ROOM];
        let sealed = match *half {
            Some(second) => sender.seal_half(&mut datagram, packet, second),
            None => {
                datagram[HEADER_LEN..HEADER_LEN + packet.len()].copy_from_slice(packet);
                sender.seal_packet(&mut datagram, packet.len())
            }
        };
        let sealed = sealed.ok()?;
        datagram.truncate(sealed.len);
        Some((sealed.outer.endpoint, datagram))
    });
    datagrams.collect()
}
