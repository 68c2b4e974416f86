//! Loss costs what is lost, nothing else.

use super::*;
use crate::runs::with_seeds;

#[test]
fn loss_costs_single_packets_only() {
    with_seeds(4, |seed| {
        let path = Path { jitter: ms(40), duplication: 0.05, ..Path::lossy(0.2) };
        let mut world = world(seed, 3, path, true);
        let first = world.oracle.mark();
        talk(&mut world, ms(50), secs(60));
        world.run(secs(62));
        let (sent, arrived) = world.oracle.tally(first);
        let share = arrived as f64 / sent as f64;
        assert!((0.74..0.88).contains(&share), "{arrived} of {sent} arrived");
    });
}

#[test]
fn datagrams_beyond_the_path_mtu_are_lost_and_the_rest_arrives() {
    with_seeds(2, |seed| {
        let mut world = world(seed, 1, Path { mtu: 700, ..Path::CLEAN }, false);
        let first = world.oracle.mark();
        talk(&mut world, ms(20), secs(20));
        world.run(secs(22));
        let (sent, arrived) = world.oracle.tally(first);
        // Packets are of evenly spread size; the short half fits.
        assert!(arrived > sent / 3 && arrived < sent * 2 / 3, "{arrived} of {sent} arrived");
        assert!(world.devices[0].is_up());
    });
}

#[test]
fn a_blackout_ends_and_so_does_the_silence() {
    with_seeds(4, |seed| {
        let mut world = world(seed, 2, Path::CLEAN, false);
        talk(&mut world, ms(100), secs(300));
        for device in &mut world.devices {
            (device.up.loss, device.down.loss) = (1.0, 1.0);
        }
        world.run(secs(150));
        for device in &mut world.devices {
            (device.up, device.down) = (Path::CLEAN, Path::CLEAN);
        }
        // The longest wait of a reconnecting client, its jitter, and a handshake that was under
        // way.
        world.run(secs(60));
        let first = world.oracle.mark();
        world.run(secs(95));
        let (sent, arrived) = world.oracle.tally(first);
        assert_eq!(arrived, sent);
        assert_eq!(world.hub.store.len(), 2);
    });
}
