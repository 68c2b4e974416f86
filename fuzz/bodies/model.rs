//! Any bytes as a sequence of actions in the simulation: what comes out is what the reference model
//! allows.
//!
//! The bytes choose who sends what to whom, what the network does to it, what an attacker records,
//! changes and sends again, who roams, restarts, rekeys, is disabled, and how much time passes. The
//! model is the simulation's oracle: a packet comes out at most once, only where it was sent to,
//! only from an inner source that its sender owns, only as policy says, and not once its user was
//! disabled; no pair of key and nonce is used twice; nothing is ever sent to an attacker. It is
//! asked after each delivery, so this only has to bring about what is forbidden, and at the end
//! that what is allowed still works.
//!
//! Shared by the fuzz target and a test of the simulation, whose modules stand at the root of
//! either.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use vpnd_proto::control::Code;
use vpnd_proto::gateway::Selector;
use vpnd_proto::plane::Event;
use vpnd_proto::policy::Policy;
use vpnd_proto::wire::Header;

use crate::hub::{self, Hub};
use crate::oracle::Place;
use crate::path::Path;
use crate::world::{Captured, World};

const DEVICES: usize = 3;
/// Longer sequences teach nothing new.
const MAX_ACTIONS: usize = 150;
/// The attacker's memory.
const MAX_CAPTURED: usize = 512;

/// Checks one sequence.
pub(crate) fn run(data: &[u8]) {
    let mut choices = data.iter().copied();
    let Some(seed) = choices.next() else { return };
    let mut run = Run::new(seed);
    for _ in 0..MAX_ACTIONS {
        let (Some(action), Some(a), Some(b)) = (choices.next(), choices.next(), choices.next()) else {
            break;
        };
        run.act(action, a, b);
    }
    run.still_works();
}

struct Run {
    world: World,
    captured: Vec<Captured>,
}

impl Run {
    fn new(seed: u8) -> Self {
        let shards = 1 + usize::from(seed) % 3;
        let mut world =
            World::new(seed.into(), |random| Hub::new(hub::config(shards), seed & 0x80 == 0, random));
        for device in 0..DEVICES {
            world.add_device(1 + (usize::from(seed >> 2) + device) % 3, Path::CLEAN);
        }
        world.captured = Some(Vec::new());
        world.run(Duration::from_millis(500));
        Self { world, captured: Vec::new() }
    }

    fn act(&mut self, action: u8, a: u8, b: u8) {
        let device = usize::from(a) % DEVICES;
        let world = &mut self.world;
        match action % 16 {
            0 | 1 => drop(world.send(Place::Device(device), place(b))),
            2 => drop(world.send(Place::Campus, Place::Device(device))),
            3 => forge_source(world, device, b),
            4..=6 => self.attack(action % 16, a, b),
            7 => world.rebind(device),
            8 => world.move_network(device, b & 1 == 0),
            9 if b < 64 => world.restart_hub(),
            9 | 10 if b < 128 => restart_device(world, device),
            10 if b > 220 => disable(world, device),
            9..=11 => rekey(world),
            12 => change_path(world, device, b),
            13 if b < 32 => flip_policy(world),
            _ => world.run(Duration::from_millis(1 << (b % 16))),
        }
        world_moves_on(&mut self.world);
        self.remember();
    }

    /// Something recorded is sent again: as it is, changed, or in pieces.
    fn attack(&mut self, how: u8, a: u8, b: u8) {
        if self.captured.is_empty() {
            return;
        }
        let at = (usize::from(a) << 8 | usize::from(b)) % self.captured.len();
        let Captured { to_hub, to, mut datagram } = self.captured[at].clone();
        let place = usize::from(b) % datagram.len();
        match how {
            4 => {}
            5 => datagram[place] ^= 1 << (a % 8),
            _ if a & 1 == 0 => datagram.truncate(place),
            _ if place == 0 => return,
            _ => {
                let other = &self.captured[usize::from(a) % self.captured.len()].datagram;
                let from = place.min(other.len());
                datagram.truncate(place);
                datagram.extend_from_slice(&other[from..]);
            }
        }
        // A host that delivers a late datagram forwards it, and is answered: that is no attack.
        let recorded = self.captured.iter().any(|other| other.datagram == datagram);
        if to_hub && recorded && !self.was_heard(&datagram) {
            return;
        }
        if to_hub {
            self.world.inject_to_hub(datagram);
        } else {
            self.world.inject_to_device(to, datagram);
        }
    }

    fn was_heard(&self, datagram: &[u8]) -> bool {
        let header = Header::parse(datagram).expect("it was sealed");
        self.world.heard.contains(&(header.index, header.lane, header.counter))
    }

    fn remember(&mut self) {
        self.captured.extend(self.world.captured.replace(Vec::new()).into_iter().flatten());
        let excess = self.captured.len().saturating_sub(MAX_CAPTURED);
        self.captured.drain(..excess);
    }

    /// Whatever happened: on a network without faults, all that may be are up, and their packets
    /// arrive.
    fn still_works(mut self) {
        let world = &mut self.world;
        world.captured = None;
        for device in 0..DEVICES {
            (world.devices[device].up, world.devices[device].down) = (Path::CLEAN, Path::CLEAN);
            if world.devices[device].gave_up.is_some() && !world.devices[device].disabled {
                restart_device(world, device);
            }
        }
        world.run(Duration::from_secs(150));
        for device in (0..DEVICES).filter(|device| !world.devices[*device].disabled).collect::<Vec<_>>() {
            // An idle client has no keys: the packet waits for new ones.
            let id = world.send(Place::Device(device), Place::Campus);
            world.run(Duration::from_secs(5));
            let (delivered, node) = (world.oracle.is_delivered(id), &world.devices[device]);
            let word = "a client that may reaches the campus, two and a half minutes after the last fault";
            assert!(delivered, "{word}: {:?}, gave up: {:?}", node.core, node.gave_up);
        }
    }
}

fn place(b: u8) -> Place {
    match usize::from(b) % (DEVICES + 1) {
        DEVICES => Place::Campus,
        device => Place::Device(device),
    }
}

fn forge_source(world: &mut World, device: usize, b: u8) {
    let ipv6 = b & 1 == 0;
    let src = match b % 4 {
        0 | 1 => world.inner_address(Place::Device((device + 1) % DEVICES), ipv6),
        2 => world.inner_address(Place::Campus, ipv6),
        _ => IpAddr::from([10, 200, b, b]),
    };
    world.send_as(Place::Device(device), src, place(b >> 2), false);
}

fn restart_device(world: &mut World, device: usize) {
    world.kill_device(device);
    world.devices[device].gave_up = None;
    world.start_device(device);
}

/// The user may not log in any more, and what there is of sessions ends.
fn disable(world: &mut World, device: usize) {
    world.devices[device].disabled = true;
    let user = world.devices[device].user.clone();
    world.hub.core.end(&Selector::User(user), Code::Disabled, "");
    world.settle_hub();
    world.oracle.ends_at_the_gateway(Place::Device(device));
}

fn rekey(world: &mut World) {
    let current: Vec<_> = world.hub.core.sessions().map(|status| (status.slot, status.epoch)).collect();
    for (slot, epoch) in current {
        world.hub.core.handle_event(world.now, Event::RekeyDue { slot, epoch: epoch.unwrap_or(1) });
    }
    world.settle_hub();
}

fn change_path(world: &mut World, device: usize, b: u8) {
    let path = Path {
        loss: f64::from(b & 3) * 0.25,
        duplication: f64::from(b >> 2 & 3) * 0.3,
        jitter: Duration::from_millis(u64::from(b >> 4) * 20),
        ..Path::CLEAN
    };
    (world.devices[device].up, world.devices[device].down) = (path, path);
}

fn flip_policy(world: &mut World) {
    let allowed = !world.hub.clients_may_meet;
    if allowed {
        world.oracle.policy_opens();
    }
    world.hub.clients_may_meet = allowed;
    world.hub.policy = Arc::new(Policy::without_rules(allowed));
    world.hub.core.set_policy(&Arc::clone(&world.hub.policy));
    world.settle_hub();
}

fn world_moves_on(world: &mut World) {
    world.run(Duration::from_millis(1));
}
