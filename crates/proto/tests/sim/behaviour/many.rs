//! Thousands of clients at one gateway.

use std::collections::BTreeSet;

use super::*;
use crate::runs::with_seeds;

/// Clients, as many as a campus has on a busy morning in one building.
const CLIENTS: usize = 2000;

#[test]
fn thousands_of_clients_log_in_talk_and_survive_a_restart() {
    with_seeds(1, |seed| {
        let mut world = World::new(seed, |random| Hub::new(hub::config(4), false, random));
        for device in 0..CLIENTS {
            world.add_device(1 + device % 5, Path { jitter: ms(50), ..Path::lossy(0.01) });
        }
        let all_up = |world: &World| world.devices.iter().all(crate::device::Device::is_up);
        assert!(world.run_until(secs(30), all_up), "all are up within half a minute");
        let addresses: BTreeSet<_> = world.hub.core.sessions().map(|status| status.addresses.ipv4).collect();
        assert_eq!(addresses.len(), CLIENTS);

        let first = world.oracle.mark();
        talk(&mut world, secs(1), secs(5));
        world.run(secs(6));
        let (sent, arrived) = world.oracle.tally(first);
        assert!(arrived as f64 > 0.98 * sent as f64, "{arrived} of {sent} arrived");

        world.restart_hub();
        world.run(secs(60));
        assert!(all_up(&world), "all are back a minute after the restart");
        assert_eq!(world.hub.ended, [], "nobody had to log in again");
    });
}
