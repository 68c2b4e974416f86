//! A path that carries less than the tunnel wants: the client finds out, and packets that fit
//! arrive.

use super::*;
use crate::runs::with_seeds;

/// Bytes that AES-GCM and the header add to a packet.
const OVERHEAD: u16 = 32;

fn narrow(mtu: u16) -> Path {
    Path { mtu: mtu.into(), ..Path::CLEAN }
}

/// The MTU of the first client's tunnel.
fn mtu(world: &World) -> u16 {
    world.devices[0].mtu
}

/// Whether the tunnel uses all but a little of what the path carries.
fn fills(mtu: u16, path: u16) -> bool {
    (path - OVERHEAD - 8..=path - OVERHEAD).contains(&mtu)
}

#[test]
fn a_wide_path_is_used_within_a_round_trip() {
    with_seeds(2, |seed| {
        let mut world = world(seed, 1, narrow(1452), false);
        world.run(ms(50));
        assert_eq!(mtu(&world), 1420);
    });
}

#[test]
fn everything_arrives_over_a_narrow_path() {
    with_seeds(4, |seed| {
        let mut world = world(seed, 1, narrow(1340), false);
        talk(&mut world, ms(20), secs(150));
        world.run(secs(20));
        assert!(fills(mtu(&world), 1340), "{}", mtu(&world));
        // With a rekey.
        world.run(secs(132));
        assert!(fills(mtu(&world), 1340), "{}", mtu(&world));
        let (sent, arrived) = world.oracle.tally(0);
        assert_eq!(arrived, sent);
    });
}

/// 1,280 bytes less the headers of IPv6 and UDP: what every path of IPv6 carries.
#[test]
fn full_packets_of_ipv6_arrive_over_the_narrowest_path() {
    with_seeds(4, |seed| {
        let mut world = world(seed, 1, narrow(1232), false);
        // The path is known by then.
        world.run(secs(5));
        talk(&mut world, ms(20), secs(150));
        world.run(secs(150));
        let (sent, arrived) = world.oracle.tally(0);
        assert_eq!(arrived, sent);
        let seen = world.hub.core.sessions().next().expect("there is a session").activity;
        assert!(seen.rx_halved > 10 && seen.tx_halved > 10, "{seen:?}");
    });
}

#[test]
fn the_mtu_follows_the_network() {
    with_seeds(4, |seed| {
        let mut world = world(seed, 1, narrow(1452), false);
        for (path, notices) in [(1300, true), (1452, true), (1372, true), (1300, false)] {
            (world.devices[0].up, world.devices[0].down) = (narrow(path), narrow(path));
            world.move_network(0, notices);
            talk(&mut world, ms(100), secs(80));
            // Without a word from the machine, the next confirmation shows it.
            world.run(secs(80));
            let full = path == 1452 && mtu(&world) == 1420;
            assert!(full || fills(mtu(&world), path), "{} on {path}", mtu(&world));
        }
    });
}

#[test]
fn an_outage_is_not_taken_for_a_narrow_path() {
    with_seeds(4, |seed| {
        let mut world = world(seed, 1, narrow(1452), false);
        talk(&mut world, ms(200), secs(800));
        for round in 0..30 {
            world.run(secs(16));
            // Long enough for three probes of one size to be lost, too short for a new connection.
            (world.devices[0].up.loss, world.devices[0].down.loss) = (1.0, 1.0);
            world.run(secs(6));
            assert_eq!(mtu(&world), 1420, "while nothing arrives, round {round}");
            (world.devices[0].up.loss, world.devices[0].down.loss) = (0.0, 0.0);
            world.run(ms(300));
            assert_eq!(mtu(&world), 1420, "when all is well again, round {round}");
        }
    });
}

/// The largest packet that the gateway sends to the first client without a word to its sender.
fn limit_at_the_gateway(world: &mut World) -> Option<u16> {
    let now = world.now;
    let address = world.inner_address(Place::Device(0), false);
    let mut planes = world.hub.planes.iter_mut();
    let limits = planes.by_ref().filter_map(|plane| {
        let slot = plane.session_of(address)?;
        plane.sender(now, slot).ok().map(|sender| sender.path_mtu())
    });
    limits.min()
}

#[test]
fn the_gateway_learns_of_a_path_that_shrinks_under_traffic() {
    with_seeds(12, |seed| {
        // One direction alone, or both; while packets go one way, or both ways.
        let mut world = world(seed, 1, narrow(1452), false);
        let device = Place::Device(0);
        if seed % 3 != 0 {
            world.flow(Place::Campus, device, ms(5), secs(30));
        }
        if seed % 3 != 1 {
            world.flow(device, Place::Campus, ms(5), secs(30));
        }
        world.run(secs(3));
        // The flows' longest datagrams have 1,380 bytes.
        for path in [1360, 1300, 1232] {
            if seed % 2 == 0 || seed % 3 != 1 {
                world.devices[0].up = narrow(path);
            }
            if seed % 2 == 0 || seed % 3 == 1 {
                world.devices[0].down = narrow(path);
            }
            world.run(secs(2));
            let limit = limit_at_the_gateway(&mut world).expect("there is an epoch");
            assert!((path - OVERHEAD - 17..=path - OVERHEAD).contains(&limit), "{limit} on {path}");
            assert!((limit - 9..=limit + 9).contains(&mtu(&world)), "{} at the client", mtu(&world));
        }
    });
}

#[test]
fn without_the_feature_a_gateway_limits_nothing() {
    with_seeds(2, |seed| {
        let mut config = hub::config(1);
        config.features = 0;
        let mut world = World::new(seed, |random| Hub::new(config, false, random));
        world.add_device(1, narrow(1452));
        world.wait_until_up(0);
        talk(&mut world, ms(5), secs(40));
        (world.devices[0].up, world.devices[0].down) = (narrow(1380), narrow(1380));
        world.run(secs(40));
        assert!(fills(mtu(&world), 1380), "the client finds out: {}", mtu(&world));
        assert!(limit_at_the_gateway(&mut world).is_none_or(|limit| limit > 1500));
    });
}
