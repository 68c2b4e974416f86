//! A client: the real control core and planes behind an address translator that may change its
//! mind.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use vpnd_packet::Packet;
use vpnd_packet::ecn::Ecn;
use vpnd_proto::client::{Action, Client, Config};
use vpnd_proto::control::{Code, Network, Text, UserName};
use vpnd_proto::gateway::Addresses;
use vpnd_proto::plane::{Activity, Command, Endpoint, Opened, Origin, Outgoing, Plane, Role, Slot};
use vpnd_proto::policy::Policy;
use vpnd_proto::session::{ConnectionId, DeviceId, SessionId, Timers};
use vpnd_proto::wire::Header;

use crate::hub::{SUITE, seal};
use crate::inner;
use crate::oracle::Place;
use crate::path::Path;
use crate::world::{HUB, World};

/// The host on the campus side.
const CAMPUS: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(10, 99, 0, 1), Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1));

/// A client's machine.
pub(crate) struct Device {
    /// `None` while the client is not running.
    pub(crate) core: Option<Client>,
    pub(crate) planes: Vec<Plane>,
    pub(crate) lanes: usize,
    pub(crate) id: DeviceId,
    pub(crate) user: UserName,
    /// The store refuses the user's logins.
    pub(crate) disabled: bool,
    /// The inner addresses that the gateway's store keeps for it.
    pub(crate) lease: Addresses,
    /// The network that it had to set up last.
    pub(crate) configured: Option<Network>,
    /// The MTU of its tunnel.
    pub(crate) mtu: u16,
    /// The code with which it gave up.
    pub(crate) gave_up: Option<Code>,
    /// The machine sleeps: nothing runs and nothing arrives.
    pub(crate) asleep: bool,
    /// How often it connected.
    pub(crate) connects: usize,
    pub(crate) up: Path,
    pub(crate) down: Path,
    /// Counts changes of network; connections do not survive one.
    pub(crate) network: u32,
    /// Counts new addresses.
    rebindings: u32,
    /// Counts those of each lane alone.
    lane_rebindings: Vec<u16>,
    /// Lanes that an address translator has forgotten, until they send something.
    forgotten: BTreeSet<usize>,
    /// The secret behind the installs that come next.
    pub(crate) latest_secret: [u8; 32],
}

impl Device {
    pub(crate) fn is_up(&self) -> bool {
        self.core.as_ref().is_some_and(Client::is_up)
    }

    pub(crate) fn session(&self) -> Option<SessionId> {
        self.core.as_ref().and_then(Client::session)
    }
}

impl World {
    /// Adds a client that starts at once.
    pub(crate) fn add_device(&mut self, lanes: usize, path: Path) -> usize {
        let device = self.devices.len();
        let [high, low] = (device as u16).to_be_bytes();
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(device as u64).to_be_bytes());
        self.devices.push(Device {
            core: None,
            planes: Vec::new(),
            lanes,
            id: DeviceId(id),
            user: Text::new(format!("user{device}")).expect("a short name"),
            disabled: false,
            lease: Addresses {
                ipv4: Some(Ipv4Addr::new(10, 9, high, low)),
                ipv6: Some(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, device as u16)),
            },
            configured: None,
            mtu: 0,
            gave_up: None,
            asleep: false,
            connects: 0,
            up: path,
            down: path,
            network: 0,
            rebindings: 0,
            lane_rebindings: vec![0; lanes],
            forgotten: BTreeSet::new(),
            latest_secret: [0; 32],
        });
        self.rebind(device);
        self.start_device(device);
        device
    }

    /// The client's process starts, or starts again, remembering nothing but who it is.
    pub(crate) fn start_device(&mut self, device: usize) {
        let config = Config {
            lanes: self.devices[device].lanes,
            suites: vec![SUITE],
            features: vpnd_proto::control::FEATURE_PATH_SIZE | vpnd_proto::control::FEATURE_HALVES,
            lab: None,
            timers: Timers::default(),
        };
        let random = self.random();
        let node = &mut self.devices[device];
        let policy = Arc::new(Policy::default());
        node.planes = (0..node.lanes).map(|_| Plane::new(Role::Client, Arc::clone(&policy), 1)).collect();
        node.core = Some(Client::new(config, random).expect("the configuration is good"));
        self.settle_device(device);
    }

    /// The client's process is killed.
    pub(crate) fn kill_device(&mut self, device: usize) {
        self.devices[device].core = None;
        self.devices[device].planes.clear();
        self.forsake_channels_of(device);
        self.set_wakeup(Place::Device(device), None);
    }

    /// The address translator gives all lanes new outer addresses; connections survive that.
    pub(crate) fn rebind(&mut self, device: usize) {
        self.addresses.retain(|_, (owner, _)| *owner != device);
        let node = &mut self.devices[device];
        node.rebindings += 1;
        node.lane_rebindings.fill(0);
        node.forgotten.clear();
        for lane in 0..node.lanes {
            let address = outer(device, node.rebindings, lane);
            self.addresses.insert(address, (device, lane));
        }
    }

    /// The address translator forgets a lane: nothing reaches it until it sends, and then it has
    /// another address.
    pub(crate) fn forget_lane(&mut self, device: usize, lane: usize) {
        let address = self.outer_now(device, lane);
        self.addresses.remove(&address);
        self.devices[device].forgotten.insert(lane);
    }

    fn outer_now(&self, device: usize, lane: usize) -> SocketAddr {
        let node = &self.devices[device];
        let mut address = outer(device, node.rebindings, lane);
        address.set_port(address.port() + 8_000 * node.lane_rebindings[lane]);
        address
    }

    /// The machine gets another network: new addresses, and connections are dead. If it `notices`,
    /// the client is notified.
    pub(crate) fn move_network(&mut self, device: usize, notices: bool) {
        self.devices[device].network += 1;
        self.rebind(device);
        self.break_channels_of(device);
        if notices && let Some(core) = &mut self.devices[device].core {
            core.network_changed(self.now);
        }
        self.settle_device(device);
    }

    /// The machine sleeps for longer than the gateway remembers its connections, and goes on where
    /// it was.
    pub(crate) fn sleep_device(&mut self, device: usize, duration: Duration) {
        self.devices[device].asleep = true;
        self.break_channels_of(device);
        self.set_wakeup(Place::Device(device), None);
        self.run(duration);
        self.devices[device].asleep = false;
        self.reset_channels(|channel| channel.device == device);
        if let Some(core) = &mut self.devices[device].core {
            core.resumed(self.now);
        }
        self.settle_device(device);
    }

    /// An inner address of a place, of the family asked for.
    pub(crate) fn inner_address(&self, place: Place, ipv6: bool) -> IpAddr {
        match (place, ipv6) {
            (Place::Campus, false) => CAMPUS.0.into(),
            (Place::Campus, true) => CAMPUS.1.into(),
            (Place::Device(device), false) => {
                self.devices[device].lease.ipv4.expect("every device has one").into()
            }
            (Place::Device(device), true) => {
                self.devices[device].lease.ipv6.expect("every device has one").into()
            }
        }
    }

    /// Sends a packet from a place to another and returns its number.
    pub(crate) fn send(&mut self, from: Place, to: Place) -> u64 {
        let forbidden =
            matches!((from, to), (Place::Device(_), Place::Device(_))) && !self.hub.clients_may_meet;
        let ipv6 = self.rng.random_bool(0.5);
        let src = self.inner_address(from, ipv6);
        let ended =
            [from, to].iter().any(|place| matches!(place, Place::Device(d) if self.devices[*d].disabled));
        let id = self.send_as(from, src, to, !forbidden && !ended);
        if forbidden && !ended {
            self.oracle.forbidden_by_policy();
        }
        id
    }

    /// Sends a packet with a source address of choice.
    pub(crate) fn send_as(&mut self, from: Place, src: IpAddr, to: Place, allowed: bool) -> u64 {
        let id = self.oracle.send(from, to, allowed);
        let payload = self.rng.random_range(8..1300);
        let payload = payload.min(self.room(from, src.is_ipv6()).min(self.room(to, src.is_ipv6())));
        let packet = inner::packet(src, self.inner_address(to, src.is_ipv6()), id, payload);
        match from {
            Place::Campus => self.hub_sends(&packet),
            Place::Device(device) => self.device_sends(device, &packet),
        }
        id
    }

    /// The longest payload that a place takes: no host sends what does not fit a client's tunnel.
    fn room(&self, place: Place, ipv6: bool) -> usize {
        match place {
            Place::Campus => usize::MAX,
            Place::Device(device) => {
                let least = if ipv6 { 1280 } else { 0 };
                usize::from(self.devices[device].mtu.max(least)).saturating_sub(inner::HEADERS).max(8)
            }
        }
    }

    /// Carries out what a client's core wants, and tells it what the planes saw, until all is
    /// quiet.
    pub(crate) fn settle_device(&mut self, device: usize) {
        loop {
            while let Some(action) = self.devices[device].core.as_mut().and_then(Client::poll_action) {
                self.device_action(device, action);
            }
            let mut quiet = true;
            let node = &mut self.devices[device];
            for plane in &mut node.planes {
                while let Some(event) = plane.poll_event() {
                    if let Some(core) = &mut node.core {
                        core.handle_event(self.now, event);
                    }
                    quiet = false;
                }
            }
            if quiet {
                break;
            }
        }
        let timeout = self.devices[device].core.as_ref().and_then(Client::poll_timeout);
        self.set_wakeup(Place::Device(device), timeout.map(|(at, _)| at));
    }

    fn device_action(&mut self, device: usize, action: Action) {
        match action {
            Action::Connect { connection, purpose, offer } => {
                self.devices[device].connects += 1;
                self.open_channel(device, connection, purpose, offer);
            }
            Action::Command { shard, command } => self.device_command(device, shard, command),
            Action::Configure(network) => self.devices[device].configured = Some(network),
            Action::PathMtu(mtu) => self.devices[device].mtu = mtu,
            // Its datagrams travel singly.
            Action::Renew(_) | Action::BatchesLost(_) | Action::Reopen(_) | Action::LanesBlocked => {}
            Action::Send { connection, message } => {
                if let Some(number) = self.channel_of(device, connection) {
                    self.send_to_hub(number, message);
                }
            }
            Action::Disconnect { connection, .. } => {
                if let Some(number) = self.channel_of(device, connection) {
                    self.close_from_device(number);
                }
            }
            Action::GiveUp { code, .. } => self.devices[device].gave_up = Some(code),
        }
    }

    /// The newest channel that the client calls by this number: after a restart it counts from the
    /// beginning.
    fn channel_of(&self, device: usize, connection: ConnectionId) -> Option<u64> {
        let mut newest = self.channels.iter().rev();
        newest.find(|(_, c)| c.device == device && c.connection == connection).map(|(number, _)| *number)
    }

    fn device_command(&mut self, device: usize, shard: usize, command: Command) {
        let node = &mut self.devices[device];
        let installed = if let Command::Install(spec) = &command {
            self.oracle.install(Place::Device(device), shard, spec.peer_index.0, node.latest_secret);
            Some(spec.slot)
        } else {
            None
        };
        if let Some(outgoing) = node.planes[shard].apply(command) {
            self.device_originates(device, shard, outgoing);
        }
        if let Some(slot) = installed {
            while let Some(packet) = self.devices[device].planes[shard].poll_waiting(self.now, slot) {
                self.device_seals(device, shard, slot, &packet);
            }
        }
    }

    fn device_originates(&mut self, device: usize, shard: usize, outgoing: Outgoing) {
        for part in outgoing.parts() {
            let mut datagram = vec![0; 2048];
            let plane = &mut self.devices[device].planes[shard];
            if let Ok(sealed) = plane.originate(self.now, part, &mut datagram) {
                datagram.truncate(sealed.len);
                self.device_transmits(device, shard, datagram);
            }
        }
    }

    fn device_transmits(&mut self, device: usize, shard: usize, datagram: Vec<u8>) {
        self.oracle.seal(Place::Device(device), shard, &datagram);
        let node = &mut self.devices[device];
        if node.forgotten.remove(&shard) {
            node.lane_rebindings[shard] += 1;
            let address = self.outer_now(device, shard);
            self.addresses.insert(address, (device, shard));
        }
        let from = self.outer_now(device, shard);
        self.transmit_to_hub(device, from, datagram);
    }

    fn device_seals(&mut self, device: usize, shard: usize, slot: Slot, packet: &[u8]) {
        let datagrams = seal(self.devices[device].planes[shard].sender(self.now, slot), packet);
        for (_, datagram) in datagrams {
            self.device_transmits(device, shard, datagram);
        }
    }

    /// A packet comes out of a TUN queue of the device.
    fn device_sends(&mut self, device: usize, packet: &[u8]) {
        let shards = self.devices[device].planes.len();
        if shards == 0 {
            return;
        }
        let shard = inner::queue(packet, shards);
        let parsed = Packet::parse(packet).expect("simulated packets are well-formed");
        let datagrams = seal(self.devices[device].planes[shard].route(self.now, &parsed), packet);
        for (_, datagram) in datagrams {
            self.device_transmits(device, shard, datagram);
        }
        self.settle_device(device);
    }

    pub(crate) fn device_receives(&mut self, to: SocketAddr, mut datagram: Vec<u8>) {
        let Some((device, _)) = self.addresses.get(&to).copied() else { return };
        let Ok(header) = Header::parse(&datagram) else { return };
        let shards = self.devices[device].planes.len();
        if shards == 0 {
            return;
        }
        let shard = header.index.shard(shards);
        let from = Endpoint { remote: HUB.parse().expect("an address"), local: None };
        let origin = Origin { from, mark: Ecn::NotEct, congested: false };
        match self.devices[device].planes[shard].open(self.now, header, &mut datagram, origin) {
            Ok(Opened::Tun(packet)) => {
                self.oracle.deliver(inner::id(&datagram[packet.range()]), Place::Device(device));
            }
            Ok(Opened::Probe { slot, id, size, padded }) => {
                self.device_originates(device, shard, Outgoing::Reply { slot, id, size, padded });
            }
            Ok(Opened::Joined { to: None, packet }) => {
                let id = inner::id(&self.devices[device].planes[shard].joined()[packet.range()]);
                self.oracle.deliver(id, Place::Device(device));
            }
            Ok(
                Opened::Forward { .. }
                | Opened::Expired { .. }
                | Opened::Redirect { .. }
                | Opened::Refused { .. }
                | Opened::Joined { to: Some(_), .. }
                | Opened::BatchProbe { .. }
                | Opened::BatchesLost(_),
            ) => panic!("a client does nothing that only a gateway does"),
            Ok(Opened::Consumed) | Err(_) => {}
        }
        self.settle_device(device);
    }

    /// The shards' figures, once a second.
    pub(crate) fn device_reports(&mut self, device: usize) {
        let node = &mut self.devices[device];
        let Some(core) = &mut node.core else { return };
        for (shard, plane) in node.planes.iter_mut().enumerate() {
            let seen = plane.take_activities().into_iter().map(|(_, activity)| activity);
            core.handle_activity(self.now, shard, seen.fold(Activity::default(), Activity::merge));
        }
        self.settle_device(device);
    }

    /// Lets time pass until a client is up.
    pub(crate) fn wait_until_up(&mut self, device: usize) {
        let up = self.run_until(Duration::from_secs(120), |world| world.devices[device].is_up());
        assert!(up, "device {device} is not up after two minutes: {:?}", self.devices[device].core);
    }
}

/// The outer address of a lane after this many rebindings.
pub(crate) fn outer(device: usize, rebindings: u32, lane: usize) -> SocketAddr {
    let base = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + device as u32 + ((rebindings & 1) << 16);
    SocketAddr::from((Ipv4Addr::from(base), 1024 + (rebindings as u16) * 16 + lane as u16))
}
