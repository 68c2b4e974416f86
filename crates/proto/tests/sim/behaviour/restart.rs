//! Behaviour: either side is restarted.

use vpnd_proto::control::Code;

use super::*;
use crate::runs::with_seeds;

#[test]
fn clients_find_a_restarted_gateway_by_themselves_and_keep_their_sessions() {
    with_seeds(5, |seed| {
        let mut world = world(seed, 4, Path { jitter: ms(20), ..Path::lossy(0.02) }, false);
        let before = sessions(&world);
        talk(&mut world, ms(100), secs(120));
        world.run(secs(10));
        world.restart_hub();
        assert!(world.hub.core.sessions().all(|status| status.epoch.is_none()), "keys are not stored");
        world.run(secs(40));
        assert_eq!(sessions(&world), before, "they attached; nobody had to log in");
        let back = world.oracle.mark();
        world.run(secs(75));
        let (sent, arrived) = world.oracle.tally(back);
        assert!(arrived as f64 > 0.93 * sent as f64, "{arrived} of {sent} arrived");
        assert_eq!(world.hub.ended, []);
    });
}

#[test]
fn a_gateway_that_lost_its_store_makes_clients_log_in() {
    with_seeds(3, |seed| {
        let mut world = world(seed, 3, Path::CLEAN, false);
        world.hub.store.clear();
        world.restart_hub();
        world.run(secs(60));
        assert!(world.devices.iter().all(crate::device::Device::is_up));
        assert_eq!(world.hub.store.len(), 3);
    });
}

#[test]
fn a_restarted_client_replaces_its_session() {
    with_seeds(4, |seed| {
        let mut world = world(seed, 2, Path::CLEAN, false);
        let old = world.devices[0].session().expect("it is up");
        talk(&mut world, ms(100), secs(60));
        world.run(secs(5));
        world.kill_device(0);
        world.run(secs(3));
        world.start_device(0);
        world.wait_until_up(0);
        assert_eq!(world.hub.ended, [(old, Code::Superseded)]);
        assert_eq!(world.hub.store.len(), 2, "the device has one session");
        let back = world.oracle.mark();
        world.run(secs(40));
        let (sent, arrived) = world.oracle.tally(back);
        assert_eq!(arrived, sent);
    });
}

#[test]
fn clients_survive_an_announced_shutdown() {
    with_seeds(3, |seed| {
        let mut world = world(seed, 3, Path::CLEAN, false);
        world.hub.core.shutdown();
        world.settle_hub();
        assert_eq!(world.hub.core.sessions().count(), 0);
        world.run(ms(100));
        assert!(world.devices.iter().all(|device| !device.is_up()));
        assert_eq!(world.hub.store.len(), 3, "sessions can be attached to later");
        world.restart_hub();
        world.run(secs(30));
        assert!(world.devices.iter().all(crate::device::Device::is_up));
        assert_eq!(world.hub.ended, []);
    });
}
