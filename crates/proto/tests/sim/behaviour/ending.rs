//! How sessions end: dead peers, lifetimes, kicks, disabled users, a user who leaves.

use vpnd_proto::control::Code;
use vpnd_proto::gateway::Selector;

use super::*;
use crate::runs::with_seeds;

#[test]
fn a_dead_peer_loses_its_keys_and_keeps_its_session() {
    with_seeds(4, |seed| {
        let mut world = world(seed, 1, Path::CLEAN, false);
        let id = world.hub.core.sessions().next().expect("one client").id;
        (world.devices[0].up.loss, world.devices[0].down.loss) = (1.0, 1.0);
        world.move_network(0, false);
        world.run(secs(85));
        assert!(world.hub.core.sessions().next().expect("kept").epoch.is_some());
        world.run(secs(10));
        let status = world.hub.core.sessions().next().expect("kept");
        assert_eq!((status.epoch, status.connection), (None, None));
        (world.devices[0].up, world.devices[0].down) = (Path::CLEAN, Path::CLEAN);
        world.wait_until_up(0);
        assert_eq!(world.hub.core.sessions().next().map(|status| status.id), Some(id));
    });
}

#[test]
fn a_lifetime_ends_and_a_login_follows() {
    with_seeds(3, |seed| {
        let mut world = World::new(seed, |random| {
            let mut hub = Hub::new(hub::config(2), false, random);
            hub.lifetime = secs(200);
            hub
        });
        world.add_device(2, Path::CLEAN);
        world.wait_until_up(0);
        let first = world.hub.core.sessions().next().expect("one client").id;
        talk(&mut world, ms(100), secs(300));
        world.run(secs(202));
        assert_eq!(world.hub.ended, [(first, Code::Lifetime)]);
        world.run(secs(3));
        assert!(world.devices[0].is_up());
        assert_ne!(world.hub.core.sessions().next().expect("one client").id, first);
    });
}

#[test]
fn a_session_past_its_lifetime_is_not_revived_by_a_restart() {
    with_seeds(2, |seed| {
        let mut world = World::new(seed, |random| {
            let mut hub = Hub::new(hub::config(1), false, random);
            hub.lifetime = secs(100);
            hub
        });
        world.add_device(1, Path::CLEAN);
        world.wait_until_up(0);
        let first = world.hub.core.sessions().next().expect("one client").id;
        let stored = world.hub.store.clone();
        world.kill_device(0);
        world.run(secs(200));
        world.hub.store = stored;
        world.restart_hub();
        world.run(ms(1));
        assert_eq!(world.hub.store.len(), 0);
        assert!(world.hub.ended.iter().all(|(id, code)| (*id, *code) == (first, Code::Lifetime)));
    });
}

#[test]
fn a_kick_stops_packets_at_once_and_for_good() {
    with_seeds(4, |seed| {
        let mut world = world(seed, 2, Path::CLEAN, false);
        talk(&mut world, ms(10), secs(30));
        world.run(secs(5));
        let id = world.hub.core.sessions().next().expect("two clients").id;
        assert_eq!(world.hub.core.end(&Selector::Session(id), Code::Kicked, "go away"), 1);
        world.settle_hub();
        let after = world.oracle.mark();
        world.run(secs(30));
        assert_eq!(world.oracle.arrived(after, Place::Device(0), Place::Campus), 0);
        assert_eq!(world.oracle.arrived(after, Place::Campus, Place::Device(0)), 0);
        assert!(world.oracle.arrived(after, Place::Device(1), Place::Campus) > 2000);
        assert_eq!(world.devices[0].gave_up, Some(Code::Kicked));
        assert!(!world.hub.store.contains_key(&id));
        assert_eq!(world.hub.core.end(&Selector::Session(id), Code::Kicked, ""), 0, "it is gone");
    });
}

#[test]
fn disabling_a_user_ends_all_sessions_of_that_user_detached_ones_too() {
    with_seeds(3, |seed| {
        let mut world = world(seed, 4, Path::CLEAN, false);
        let user = world.devices[0].user.clone();
        // Another device of the same user, which is away.
        let away = world.add_device(1, Path::CLEAN);
        world.kill_device(away);
        world.devices[away].user = user.clone();
        world.start_device(away);
        world.wait_until_up(away);
        world.kill_device(away);
        world.run(secs(300));
        assert_eq!(world.hub.core.end(&Selector::User(user), Code::Disabled, ""), 2);
        world.settle_hub();
        world.run(secs(5));
        assert_eq!(world.devices[0].gave_up, Some(Code::Disabled));
        let left: Vec<_> = world.hub.core.sessions().map(|status| status.user).collect();
        assert_eq!(
            left,
            [1, 2, 3].map(|device| world.devices[device].user.clone()),
            "nobody else was touched"
        );
    });
}

#[test]
fn a_client_that_disconnects_leaves_no_token() {
    with_seeds(3, |seed| {
        let mut world = world(seed, 1, Path::CLEAN, false);
        let id = world.hub.core.sessions().next().expect("one client").id;
        world.devices[0].core.as_mut().expect("it runs").quit();
        world.settle_device(0);
        world.run(secs(5));
        assert_eq!(world.hub.ended, [(id, Code::Bye)]);
        assert!(world.hub.store.is_empty());
        assert_eq!(world.devices[0].gave_up, None);
        assert_eq!(world.devices[0].connects, 1);
    });
}
