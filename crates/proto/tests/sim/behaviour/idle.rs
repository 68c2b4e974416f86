//! Idle sessions: keys expire, either side wakes the other, and what is idle for too long ends.

use vpnd_proto::control::Code;

use super::*;
use crate::runs::with_seeds;

/// A client whose epoch has expired, for it carried nothing.
fn idle(seed: u64) -> World {
    let mut world = world(seed, 1, Path { jitter: ms(20), ..Path::CLEAN }, false);
    let connects = world.devices[0].connects;
    world.run(secs(600));
    assert_eq!(world.devices[0].connects, connects, "an idle session does not rekey");
    assert_eq!(world.hub.core.sessions().next().expect("it is kept").epoch, None, "its keys are erased");
    world
}

#[test]
fn a_packet_of_the_client_makes_a_new_epoch() {
    with_seeds(4, |seed| {
        let mut world = idle(seed);
        let ids: Vec<u64> = (0..10).map(|_| world.send(Place::Device(0), Place::Campus)).collect();
        world.run(secs(1));
        assert!(ids.iter().all(|id| world.oracle.is_delivered(*id)), "they waited for the epoch");
    });
}

#[test]
fn a_packet_for_the_client_wakes_it() {
    with_seeds(4, |seed| {
        let mut world = idle(seed);
        let ids: Vec<u64> = (0..10).map(|_| world.send(Place::Campus, Place::Device(0))).collect();
        world.run(secs(1));
        assert!(ids.iter().all(|id| world.oracle.is_delivered(*id)), "they waited for the epoch");
        assert_eq!(world.devices[0].connects, 2, "it was woken once");
    });
}

#[test]
fn keepalives_are_sent_only_while_there_are_keys() {
    with_seeds(2, |seed| {
        let mut world = world(seed, 1, Path::CLEAN, false);
        // The path is found, and stated to the gateway.
        world.run(ms(500));
        world.captured = Some(Vec::new());
        world.run(secs(180));
        let alive = world.captured.take().expect("it was recorded").len();
        // Each lane every 25 s, until sealing is refused.
        let lanes = world.devices[0].lanes;
        assert!((6 * lanes..=8 * lanes).contains(&alive), "{alive} datagrams in the epoch's life");
        world.run(secs(20));
        world.captured = Some(Vec::new());
        world.run(secs(300));
        assert_eq!(world.captured.take().expect("it was recorded").len(), 0);
    });
}

#[test]
fn what_is_idle_for_too_long_ends() {
    with_seeds(3, |seed| {
        let mut config = hub::config(2);
        config.idle_timeout = Some(secs(300));
        let mut world = World::new(seed, |random| Hub::new(config, false, random));
        for _ in 0..2 {
            world.add_device(1, Path::CLEAN);
        }
        world.flow(Place::Device(1), Place::Campus, secs(20), secs(1000));
        world.run(secs(320));
        assert_eq!(world.hub.ended.len(), 1);
        assert_eq!(world.hub.ended[0].1, Code::Idle);
        assert_eq!(world.devices[0].gave_up, Some(Code::Idle));
        assert!(world.devices[1].is_up());
        world.run(secs(600));
        assert_eq!(world.hub.ended.len(), 1, "the other one is in use");
    });
}
