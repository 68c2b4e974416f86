//! Recorded and altered datagrams come to nothing.

use rand::RngExt;
use vpnd_proto::plane::DropReason;

use super::*;
use crate::runs::with_seeds;
use crate::world::Captured;

/// Sends everything that was recorded once more, each direction to its receiver, altered by
/// `alter`.
fn attack(world: &mut World, captured: &[Captured], mut alter: impl FnMut(&mut World, &mut Vec<u8>)) {
    for Captured { to_hub, to, datagram } in captured {
        let mut datagram = datagram.clone();
        alter(world, &mut datagram);
        if *to_hub {
            world.inject_to_hub(datagram);
        } else {
            world.inject_to_device(*to, datagram);
        }
        world.run(ms(1));
    }
}

fn recorded(seed: u64) -> (World, Vec<Captured>) {
    let mut world = world(seed, 2, Path { jitter: ms(30), ..Path::CLEAN }, true);
    world.captured = Some(Vec::new());
    talk(&mut world, ms(20), secs(5));
    world.flow(Place::Device(0), Place::Device(1), ms(20), secs(5));
    // Everything has arrived before the attack begins: what was not received yet is no replay.
    world.run(secs(6));
    let captured = world.captured.take().expect("it was recorded");
    assert!(captured.len() > 1000);
    (world, captured)
}

/// Both ends still talk, and the gateway knows where the clients are. That no packet came twice,
/// and that nothing went to the attacker, is checked all the time.
fn unharmed(world: &mut World) {
    let first = world.oracle.mark();
    talk(world, ms(20), secs(3));
    world.run(secs(4));
    let (sent, arrived) = world.oracle.tally(first);
    assert_eq!(arrived, sent);
    for status in world.hub.core.sessions() {
        assert!(!status.endpoints.is_empty());
        assert!(status.endpoints.iter().all(|endpoint| world.addresses.contains_key(&endpoint.remote)));
    }
}

#[test]
fn replays_are_never_delivered_and_move_no_endpoint() {
    with_seeds(4, |seed| {
        let (mut world, captured) = recorded(seed);
        let before = world.hub.dropped(DropReason::Replayed);
        attack(&mut world, &captured, |_, _| ());
        assert!(world.hub.dropped(DropReason::Replayed) > before + 500, "replays are counted");
        unharmed(&mut world);
    });
}

#[test]
fn replays_of_a_former_epoch_are_dropped() {
    with_seeds(2, |seed| {
        let (mut world, captured) = recorded(seed);
        talk(&mut world, ms(100), secs(140));
        world.run(secs(145));
        let before = world.hub.dropped(DropReason::UnknownIndex);
        attack(&mut world, &captured, |_, _| ());
        assert!(world.hub.dropped(DropReason::UnknownIndex) > before + 500, "its keys are erased");
        unharmed(&mut world);
    });
}

#[test]
fn altered_datagrams_are_dropped() {
    with_seeds(4, |seed| {
        let (mut world, captured) = recorded(seed);
        attack(&mut world, &captured, |world, datagram| {
            let at = world.rng.random_range(0..datagram.len());
            datagram[at] ^= 1 << world.rng.random_range(0..8);
        });
        // A counter that was never used, the rest as it was.
        attack(&mut world, &captured, |world, datagram| {
            let counter: u64 = world.rng.random_range(1 << 20..1 << 25);
            datagram[8..16].copy_from_slice(&counter.to_le_bytes());
        });
        attack(&mut world, &captured, |world, datagram| {
            let len = world.rng.random_range(0..datagram.len());
            datagram.truncate(len);
        });
        unharmed(&mut world);
    });
}

#[test]
fn delayed_datagrams_from_another_address_move_no_endpoint() {
    with_seeds(4, |seed| {
        let mut world = world(seed, 2, Path::lossy(0.2), false);
        world.captured = Some(Vec::new());
        let first = world.oracle.mark();
        talk(&mut world, ms(20), secs(5));
        world.run(secs(6));
        let captured = world.captured.take().expect("it was recorded");
        for device in &mut world.devices {
            (device.up, device.down) = (Path::CLEAN, Path::CLEAN);
        }
        // Newer ones arrive on every lane.
        talk(&mut world, ms(20), secs(2));
        world.run(secs(3));
        let (_, before) = world.oracle.tally(first);
        attack(&mut world, &captured, |_, _| ());
        let (sent, after) = world.oracle.tally(first);
        assert!(after > before, "they are authentic, and new to their receivers");
        assert_eq!(after, sent);
        // The simulation checks all the time that nothing was sent to where they came from.
        unharmed(&mut world);
    });
}
