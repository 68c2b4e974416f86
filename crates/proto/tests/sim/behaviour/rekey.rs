//! Epochs are replaced while packets flow.

use super::*;
use crate::runs::with_seeds;

#[test]
fn without_loss_a_rekey_costs_no_packet() {
    with_seeds(4, |seed| {
        let path = Path { jitter: ms(30), ..Path::CLEAN };
        let mut world = world(seed, 2, path, true);
        talk(&mut world, ms(25), secs(400));
        world.flow(Place::Device(0), Place::Device(1), ms(25), secs(400));
        world.run(secs(402));
        let (sent, arrived) = world.oracle.tally(0);
        assert_eq!(arrived, sent);
        for status in world.hub.core.sessions() {
            assert_eq!(status.epoch, Some(4), "a rekey each 120 s");
        }
    });
}

#[test]
fn a_rekey_under_loss_keeps_the_session() {
    with_seeds(6, |seed| {
        let mut world = world(seed, 2, Path { jitter: ms(40), ..Path::lossy(0.3) }, false);
        let sessions: Vec<_> = world.hub.core.sessions().map(|status| status.id).collect();
        let first = world.oracle.mark();
        talk(&mut world, ms(100), secs(600));
        world.run(secs(602));
        let after: Vec<_> = world.hub.core.sessions().map(|status| status.id).collect();
        assert_eq!(after, sessions, "no session was lost or replaced");
        assert!(world.hub.core.sessions().all(|status| status.epoch > Some(4)));
        let (sent, arrived) = world.oracle.tally(first);
        assert!(arrived as f64 > 0.62 * sent as f64, "{arrived} of {sent} arrived");
    });
}

#[test]
fn a_busy_lane_rekeys_by_its_counter_before_its_time() {
    with_seeds(1, |seed| {
        let mut world = world(seed, 1, Path::CLEAN, false);
        let slot = world.hub.core.sessions().next().expect("one client").slot;
        let event = vpnd_proto::plane::Event::RekeyDue { slot, epoch: 1 };
        // The gateway's lane is used up first: it can only ask the client.
        world.hub.core.handle_event(world.now, event);
        world.settle_hub();
        world.run(secs(2));
        assert_eq!(world.hub.core.sessions().next().expect("still there").epoch, Some(2));
        // A rekey that was due in an epoch that is gone is not due any more.
        world.hub.core.handle_event(world.now, event);
        world.settle_hub();
        world.run(secs(2));
        assert_eq!(world.hub.core.sessions().next().expect("still there").epoch, Some(2));
    });
}
