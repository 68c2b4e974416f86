//! The scenarios, one file for each behaviour.

mod baseline;
mod ending;
mod idle;
mod loss;
mod many;
mod nonces;
mod path_mtu;
mod policy;
mod rekey;
mod replay;
mod restart;
mod roaming;
mod sequences;
mod suspend;
mod tokens;

use std::time::Duration;

use vpnd_proto::session::SessionId;

use crate::device::Device;
use crate::hub::{self, Hub};
use crate::oracle::Place;
use crate::path::Path;
use crate::world::World;

/// A gateway and `clients` clients, all of them up. The seed decides how many shards and lanes they
/// have.
fn world(seed: u64, clients: usize, path: Path, clients_may_meet: bool) -> World {
    let shards = 1 + seed as usize % 3;
    let mut world = World::new(seed, |random| Hub::new(hub::config(shards), clients_may_meet, random));
    for client in 0..clients {
        world.add_device(1 + (seed as usize + client + 1) % 4, path);
    }
    for device in 0..clients {
        world.wait_until_up(device);
    }
    world
}

/// The session that each device has.
fn sessions(world: &World) -> Vec<Option<SessionId>> {
    world.devices.iter().map(Device::session).collect()
}

/// Traffic both ways between the campus and each device.
fn talk(world: &mut World, every: Duration, duration: Duration) {
    for device in 0..world.devices.len() {
        world.flow(Place::Device(device), Place::Campus, every, duration);
        world.flow(Place::Campus, Place::Device(device), every, duration);
    }
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
