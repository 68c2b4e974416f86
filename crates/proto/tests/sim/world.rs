//! Virtual time: what happens next, and to whom.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, RngExt, SeedableRng};
use vpnd_proto::control::{Code, Message};
use vpnd_proto::session::Random;
use vpnd_proto::time::Time;
use vpnd_proto::timer::TimerQueue;
use vpnd_proto::wire::Index;

use crate::channel::Channel;
use crate::device::Device;
use crate::hub::Hub;
use crate::oracle::{Oracle, Place};

/// Outer address of the gateway.
pub(crate) const HUB: &str = "192.0.2.1:4433";
/// The sources of attackers. Nothing may ever be sent there.
const ATTACKERS: [u8; 3] = [203, 0, 113];

/// Something on its way.
#[derive(Debug)]
pub(crate) enum Happening {
    DatagramToHub {
        from: SocketAddr,
        datagram: Vec<u8>,
    },
    DatagramToDevice {
        to: SocketAddr,
        datagram: Vec<u8>,
    },
    /// A handshake is done, and its request has come to the gateway.
    Request {
        channel: u64,
    },
    MessageToHub {
        channel: u64,
        message: Message,
    },
    MessageToDevice {
        channel: u64,
        message: Message,
    },
    ClosedAtHub {
        channel: u64,
    },
    ClosedAtDevice {
        channel: u64,
        code: Option<Code>,
    },
    /// The next packet of a flow.
    Traffic {
        flow: usize,
    },
    /// Shards report what sessions did.
    Tick,
}

/// Packets at a steady pace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    from: Place,
    to: Place,
    every: Duration,
    until: Time,
}

/// A datagram as an attacker may have recorded it.
#[derive(Clone, Debug)]
pub(crate) struct Captured {
    pub(crate) to_hub: bool,
    pub(crate) to: SocketAddr,
    pub(crate) datagram: Vec<u8>,
}

/// The whole simulation.
pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) rng: Xoshiro256PlusPlus,
    pub(crate) oracle: Oracle,
    pub(crate) hub: Hub,
    pub(crate) devices: Vec<Device>,
    pub(crate) channels: BTreeMap<u64, Channel>,
    /// Which device and lane is reached at an outer address now.
    pub(crate) addresses: BTreeMap<SocketAddr, (usize, usize)>,
    /// Everything that was sent, if it is captured.
    pub(crate) captured: Option<Vec<Captured>>,
    /// The datagrams that the gateway took for authentic and new during a capture.
    pub(crate) heard: HashSet<(Index, u8, u64)>,
    /// This many of the next `Established` are lost, with their connections.
    pub(crate) lose_answers: usize,
    pub(crate) next_channel: u64,
    flows: Vec<Flow>,
    queue: BTreeMap<(Time, u64), Happening>,
    sequence: u64,
    /// When each core wants to be called.
    wakeups: TimerQueue<Place>,
}

impl World {
    pub(crate) fn new(seed: u64, hub: impl FnOnce(Random) -> Hub) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let hub = hub(random(&mut rng));
        let mut world = Self {
            now: Time::from_nanos(1_000_000_000),
            rng,
            oracle: Oracle::default(),
            hub,
            devices: Vec::new(),
            channels: BTreeMap::new(),
            addresses: BTreeMap::new(),
            captured: None,
            heard: HashSet::new(),
            lose_answers: 0,
            next_channel: 0,
            flows: Vec::new(),
            queue: BTreeMap::new(),
            sequence: 0,
            wakeups: TimerQueue::new(),
        };
        world.after(Duration::from_secs(1), Happening::Tick);
        world
    }

    /// Lets `happening` happen after `delay`.
    pub(crate) fn after(&mut self, delay: Duration, happening: Happening) {
        self.queue.insert((self.now + delay, self.sequence), happening);
        self.sequence += 1;
    }

    /// Lets `happening` happen at `at`, behind whatever was planned for then.
    pub(crate) fn at(&mut self, at: Time, happening: Happening) {
        self.after(at - self.now, happening);
    }

    /// A separate random source for a core.
    pub(crate) fn random(&mut self) -> Random {
        random(&mut self.rng)
    }

    /// Sends a packet every so often for `duration`, beginning now.
    pub(crate) fn flow(&mut self, from: Place, to: Place, every: Duration, duration: Duration) {
        self.flows.push(Flow { from, to, every, until: self.now + duration });
        let flow = self.flows.len() - 1;
        self.after(Duration::ZERO, Happening::Traffic { flow });
    }

    /// Lets time pass.
    pub(crate) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.step(end) {}
        self.now = end;
    }

    /// Lets time pass until `done`, for `limit` at most. Returns whether it was done.
    pub(crate) fn run_until(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + limit;
        while !done(self) {
            if !self.step(end) {
                return false;
            }
        }
        true
    }

    /// Does the next thing that happens before `end`.
    fn step(&mut self, end: Time) -> bool {
        let queued = self.queue.first_key_value().map(|((at, _), _)| *at);
        let wakeup = self.wakeups.poll_timeout().map(|(at, _)| at);
        let next = queued.into_iter().chain(wakeup).min().filter(|at| *at <= end);
        let Some(next) = next else { return false };
        self.now = self.now.max(next);
        if queued == Some(next) {
            let (_, happening) = self.queue.pop_first().expect("the queue's first was just looked at");
            self.happen(happening);
        } else if let Some(place) = self.wakeups.pop(next) {
            self.wake(place);
        }
        true
    }

    fn wake(&mut self, place: Place) {
        match place {
            Place::Campus => {
                self.hub.core.handle_timeout(self.now);
                self.settle_hub();
            }
            Place::Device(device) => {
                if let Some(core) = &mut self.devices[device].core {
                    core.handle_timeout(self.now);
                }
                self.settle_device(device);
            }
        }
    }

    /// Remembers when a core wants to be called.
    pub(crate) fn set_wakeup(&mut self, place: Place, at: Option<Time>) {
        match at {
            Some(at) => self.wakeups.set(place, at),
            None => self.wakeups.cancel(place),
        }
    }

    /// Whether it would happen to a suspended device. Such a device finds out afterwards which
    /// connections are closed.
    fn is_slept_through(&self, happening: &Happening) -> bool {
        let sleeps = |device: usize| self.devices[device].asleep;
        match happening {
            Happening::DatagramToHub { .. }
            | Happening::MessageToHub { .. }
            | Happening::ClosedAtHub { .. } => self.hub.asleep,
            Happening::DatagramToDevice { to, .. } => {
                self.addresses.get(to).is_some_and(|(device, _)| sleeps(*device))
            }
            Happening::MessageToDevice { channel, .. } | Happening::ClosedAtDevice { channel, .. } => {
                self.channels.get(channel).is_some_and(|channel| sleeps(channel.device))
            }
            // A handshake fails, and a device that is awake goes on.
            Happening::Request { .. } | Happening::Traffic { .. } | Happening::Tick => false,
        }
    }

    fn happen(&mut self, happening: Happening) {
        if self.is_slept_through(&happening) {
            return;
        }
        match happening {
            Happening::DatagramToHub { from, datagram } => self.hub_receives(from, datagram),
            Happening::DatagramToDevice { to, datagram } => self.device_receives(to, datagram),
            Happening::Request { channel } => self.request_arrives(channel),
            Happening::MessageToHub { channel, message } => self.message_to_hub(channel, &message),
            Happening::MessageToDevice { channel, message } => self.message_to_device(channel, message),
            Happening::ClosedAtHub { channel } => self.closed_at_hub(channel),
            Happening::ClosedAtDevice { channel, code } => self.closed_at_device(channel, code),
            Happening::Traffic { flow } => self.traffic(flow),
            Happening::Tick => {
                if !self.hub.asleep {
                    self.hub_reports();
                }
                for device in 0..self.devices.len() {
                    if !self.devices[device].asleep {
                        self.device_reports(device);
                    }
                }
                self.after(Duration::from_secs(1), Happening::Tick);
            }
        }
    }

    fn traffic(&mut self, flow: usize) {
        let Flow { from, to, every, until } = self.flows[flow];
        if self.now < until {
            self.send(from, to);
            self.after(every, Happening::Traffic { flow });
        }
    }

    /// A datagram leaves a device.
    pub(crate) fn transmit_to_hub(&mut self, device: usize, from: SocketAddr, datagram: Vec<u8>) {
        let to = HUB.parse().expect("an address");
        if let Some(captured) = &mut self.captured {
            captured.push(Captured { to_hub: true, to, datagram: datagram.clone() });
        }
        let path = self.devices[device].up;
        for delay in path.carry(&mut self.rng, datagram.len()) {
            self.after(delay, Happening::DatagramToHub { from, datagram: datagram.clone() });
        }
    }

    /// A datagram leaves the gateway.
    pub(crate) fn transmit_to_device(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        let attacked = matches!(to.ip(), std::net::IpAddr::V4(ip) if ip.octets()[..3] == ATTACKERS);
        assert!(!attacked, "the gateway sends to an attacker at {to}");
        if let Some(captured) = &mut self.captured {
            captured.push(Captured { to_hub: false, to, datagram: datagram.clone() });
        }
        // No device is behind an address that was given up.
        let Some((device, _)) = self.addresses.get(&to) else { return };
        let path = self.devices[*device].down;
        for delay in path.carry(&mut self.rng, datagram.len()) {
            self.after(delay, Happening::DatagramToDevice { to, datagram: datagram.clone() });
        }
    }

    /// An attacker sends a datagram to the gateway from the attacker's address.
    pub(crate) fn inject_to_hub(&mut self, datagram: Vec<u8>) {
        let [a, b, c] = ATTACKERS;
        let from = SocketAddr::from(([a, b, c, 66], self.rng.random_range(1024..u16::MAX)));
        self.after(Duration::ZERO, Happening::DatagramToHub { from, datagram });
    }

    /// An attacker sends a datagram to a device, as if from the gateway.
    pub(crate) fn inject_to_device(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        self.after(Duration::ZERO, Happening::DatagramToDevice { to, datagram });
    }
}

fn random(rng: &mut Xoshiro256PlusPlus) -> Random {
    let mut own = Xoshiro256PlusPlus::seed_from_u64(rng.random());
    Box::new(move |bytes| own.fill_bytes(bytes))
}
