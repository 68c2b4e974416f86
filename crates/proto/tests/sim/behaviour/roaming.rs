//! A client's outer address changes under traffic.

use super::*;
use crate::device::outer;
use crate::runs::with_seeds;

#[test]
fn a_rebinding_translator_moves_the_session_without_a_handshake() {
    with_seeds(4, |seed| {
        let mut world = world(seed, 2, Path::CLEAN, false);
        talk(&mut world, ms(20), secs(20));
        world.run(secs(5));
        let connects = world.devices[0].connects;
        let moved = world.oracle.mark();
        world.rebind(0);
        world.run(secs(16));
        let (sent, arrived) = world.oracle.tally(moved);
        // Datagrams to the old address are lost, until each lane was received from the new one.
        assert!(sent - arrived < 10, "{arrived} of {sent} arrived");
        assert_eq!(world.devices[0].connects, connects);
        let status = world.hub.core.sessions().next().expect("two clients");
        let endpoints: Vec<_> = (0..world.devices[0].lanes).map(|lane| outer(0, 2, lane)).collect();
        assert!(status.endpoints.iter().all(|endpoint| endpoints.contains(&endpoint.remote)), "{status:?}");
    });
}

/// Nothing is sent on a lane that only receives, so nothing renews its binding before the next
/// keepalive.
#[test]
fn a_lane_that_a_translator_forgets_receives_again_soon_while_others_do() {
    with_seeds(4, |seed| {
        const LANES: usize = 4;
        let hub = |random| Hub::new(hub::config(LANES), false, random);
        let mut world = World::new(seed, hub);
        let device = world.add_device(LANES, Path::CLEAN);
        world.wait_until_up(device);
        world.flow(Place::Campus, Place::Device(device), ms(20), secs(60));
        world.run(secs(5));
        for lane in 0..LANES {
            let forgotten = world.oracle.mark();
            world.forget_lane(device, lane);
            // The devices' figures come once a second here.
            world.run(ms(2_500));
            let (sent, arrived) = world.oracle.tally(forgotten);
            assert!(sent > arrived, "lane {lane} was in use");
            let settled = world.oracle.mark();
            world.run(secs(5));
            let (sent, arrived) = world.oracle.tally(settled);
            // The last one may be on its way.
            assert!(sent - arrived <= 1, "lane {lane}: {arrived} of {sent} arrived");
        }
    });
}

#[test]
fn a_new_network_is_used_at_once_whether_noticed_or_not() {
    for notices in [true, false] {
        with_seeds(4, |seed| {
            let mut world = world(seed, 1, Path::CLEAN, false);
            let session = world.devices[0].session();
            talk(&mut world, ms(50), secs(200));
            world.run(secs(5));
            world.move_network(0, notices);
            world.run(secs(2));
            let settled = world.oracle.mark();
            // Long enough for the connection of the old network to time out, and for a rekey.
            world.run(secs(195));
            let (sent, arrived) = world.oracle.tally(settled);
            assert_eq!(arrived, sent);
            let after = world.devices[0].session();
            assert_eq!(after, session);
        });
    }
}

#[test]
fn a_network_that_eats_the_probes_makes_the_client_attach() {
    with_seeds(4, |seed| {
        let mut world = world(seed, 1, Path::CLEAN, false);
        let connects = world.devices[0].connects;
        world.devices[0].up.loss = 1.0;
        world.move_network(0, true);
        assert_eq!(world.devices[0].connects, connects, "first it asks on the data path");
        world.run(ms(1100));
        assert_eq!(world.devices[0].connects, connects + 1, "then it makes a connection");
    });
}

#[test]
fn a_network_change_during_an_attach_restarts_it() {
    with_seeds(4, |seed| {
        let mut world = world(seed, 1, Path::CLEAN, false);
        world.run(secs(200));
        // The epoch has expired; the packet needs another.
        let id = world.send(Place::Device(0), Place::Campus);
        world.run(ms(5));
        world.move_network(0, true);
        world.run(secs(2));
        assert!(world.oracle.is_delivered(id), "the packet waited for the epoch");
    });
}
