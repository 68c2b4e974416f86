//! No pair of key and nonce is used twice, and no recorded datagram is delivered again, whatever
//! happens meanwhile.
//!
//! Rounds of about a thousand packets on each busy key. After each, everyone rekeys, and one of: a
//! translator rebinds a client, a client moves (noticing it or not), the gateway restarts or hands
//! over to another process, a client restarts. What a round recorded is sent again before that and
//! after it. That nothing is delivered twice, and no pair used twice, is checked all the time,
//! exactly: see the oracle. `SIM_PAIRS=100000000` is the long form.

use vpnd_proto::plane::Event;

use super::*;
use crate::runs::with_seeds;
use crate::world::Captured;

/// Pairs that the short form collects for each seed.
const PAIRS: u64 = 25_000;
const CLIENTS: usize = 3;
/// Packets that each pair of places sends in a round, one way.
const PACKETS: usize = 1_000;
/// Packets each way right after a handover.
const HANDED: usize = 100;
/// One of this many recorded datagrams is sent again, twice.
const REPLAYED: usize = 10;

#[test]
fn no_pair_of_key_and_nonce_is_used_twice() {
    let pairs = std::env::var("SIM_PAIRS").map(|n| n.parse().expect("a count is a number"));
    let goal = pairs.unwrap_or(PAIRS);
    with_seeds(3, |seed| {
        let mut world = world(seed, CLIENTS, Path { jitter: ms(5), ..Path::CLEAN }, true);
        let (mut round, mut replays, mut before) = (0, 0, 0);
        while world.oracle.pairs().0 < goal {
            let mark = world.oracle.mark();
            let captured = talk_a_lot(&mut world);
            replays += replay(&mut world, &captured);
            rekey_all(&mut world);
            disturb(&mut world, round, &captured);
            replays += replay(&mut world, &captured);
            world.forget_closed_channels();
            world.oracle.forget_before(before);
            before = mark;
            round += 1;
        }
        let (pairs, keys) = world.oracle.pairs();
        println!(
            "seed {seed}: {pairs} pairs of {keys} keys in {round} rounds, {replays} replays, none repeated"
        );
        assert!(keys > 20, "they were rekeyed");
    });
}

/// Traffic on all ways; what was sent for it on the network.
fn talk_a_lot(world: &mut World) -> Vec<Captured> {
    world.captured = Some(Vec::new());
    world.heard.clear();
    for _ in 0..PACKETS {
        for device in 0..CLIENTS {
            world.send(Place::Device(device), Place::Campus);
            world.send(Place::Campus, Place::Device(device));
        }
        world.send(Place::Device(0), Place::Device(1));
        world.run(ms(1));
    }
    let captured = world.captured.take().expect("it was recorded");
    // Datagrams still on their way would be new to an end that gets the attacker's copy first.
    world.run(ms(200));
    captured
}

/// Everyone's keys are due. The gateway asks for new ones once a second at most.
fn rekey_all(world: &mut World) {
    world.run(secs(1));
    let current: Vec<_> = world.hub.core.sessions().map(|status| (status.slot, status.epoch)).collect();
    for (slot, epoch) in current {
        if let Some(epoch) = epoch {
            world.hub.core.handle_event(world.now, Event::RekeyDue { slot, epoch });
        }
    }
    world.settle_hub();
    world.run(ms(500));
}

fn disturb(world: &mut World, round: usize, captured: &[Captured]) {
    let device = round % CLIENTS;
    match round % 6 {
        0 => hand_over(world, captured),
        1 => world.rebind(device),
        2 => world.move_network(device, true),
        3 => world.restart_hub(),
        4 => world.move_network(device, false),
        _ => {
            world.kill_device(device);
            world.start_device(device);
        }
    }
    let whole = |world: &World| {
        world.devices.iter().all(crate::device::Device::is_up)
            && world.hub.core.sessions().all(|status| status.epoch.is_some())
    };
    world.run(secs(1));
    assert!(world.run_until(secs(120), whole), "all are back after disturbance {}", round % 6);
}

/// Another process goes on with all sessions: at once, with their keys, and with nothing that was
/// heard before.
fn hand_over(world: &mut World, captured: &[Captured]) {
    let epochs = |world: &World| -> Vec<_> {
        world.hub.core.sessions().map(|status| (status.id, status.addresses, status.epoch)).collect()
    };
    let (before, mark) = (epochs(world), world.oracle.mark());
    world.upgrade_hub();
    assert_eq!(epochs(world), before, "every session goes on with its keys");
    replay(world, captured);
    for _ in 0..HANDED {
        world.send(Place::Campus, Place::Device(0));
        world.send(Place::Device(0), Place::Campus);
        world.run(ms(1));
    }
    world.run(ms(50));
    let to_device = world.oracle.arrived(mark, Place::Campus, Place::Device(0));
    let to_campus = world.oracle.arrived(mark, Place::Device(0), Place::Campus);
    assert_eq!((to_device, to_campus), (HANDED, HANDED), "nothing is lost after a handover");
}

fn replay(world: &mut World, captured: &[Captured]) -> usize {
    let chosen = captured.iter().step_by(REPLAYED);
    let count = chosen.len();
    for Captured { to_hub, to, datagram } in chosen {
        if *to_hub {
            world.inject_to_hub(datagram.clone());
        } else {
            world.inject_to_device(*to, datagram.clone());
        }
    }
    world.run(ms(1));
    count
}
