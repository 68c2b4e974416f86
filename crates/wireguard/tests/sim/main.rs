//! A gateway and its peers on a bad network, in virtual time.
//!
//! Each scenario runs with several seeds; a failure prints the seed. The network loses, delays (and
//! so reorders), duplicates and later repeats datagrams, and devices change their addresses. What
//! must hold at every step: a packet arrives at most once, as it was sent, from the peer that sent
//! it; no key and counter are used twice; old keys do not pile up.

#[path = "../model/node.rs"]
mod node;
mod world;

use std::time::Duration;

use vpnd_wireguard::peers::Event;

use world::{Network, World, ms, secs};

const SEEDS: std::ops::Range<u64> = 0..6;

fn each_seed(scenario: impl Fn(u64)) {
    for seed in SEEDS {
        println!("seed {seed}");
        scenario(seed);
    }
}

#[test]
fn hours_of_traffic_on_a_good_network_lose_nothing_but_before_the_first_handshake() {
    each_seed(|seed| {
        let mut world = World::new(seed, 3, Network::GOOD);
        world.talk(secs(3 * 3600), ms(700));
        for client in 0..3 {
            assert!(
                world.handshakes(client) >= 85,
                "a rekey every two minutes: {}",
                world.handshakes(client)
            );
            assert!(world.handshakes(client) <= 95, "and not more: {}", world.handshakes(client));
        }
        world.check();
        assert!(world.lost_while_sealed <= 2 * 3, "{} lost", world.lost_while_sealed);
    });
}

#[test]
fn traffic_survives_loss_reordering_duplicates_and_replays() {
    each_seed(|seed| {
        let mut world = World::new(seed, 4, Network::BAD);
        world.talk(secs(2 * 3600), ms(900));
        world.check();
        let (arrived, sealed) = (world.arrived, world.sealed);
        assert!(arrived * 100 >= sealed * 75, "{arrived} of {sealed} arrived, with a fifth lost");
    });
}

#[test]
fn a_device_that_moves_is_followed_by_the_first_packet_it_sends() {
    each_seed(|seed| {
        let mut world = World::new(seed, 2, Network::GOOD);
        world.talk(secs(30), ms(500));
        for _ in 0..60 {
            world.move_client(0);
            world.client_sends(0);
            world.run_for(ms(300));
            assert!(world.gateway_reaches(0), "at {:?}", world.now);
            world.talk(secs(20), ms(1_000));
        }
        let flapping = |event: &Event| matches!(event, Event::BackAndForth { .. });
        assert!(!world.gateway.events.iter().any(flapping), "it never went back");
        world.check();
    });
}

#[test]
fn a_cookie_reply_moves_no_peer() {
    each_seed(|seed| {
        let mut world = World::new(seed, 1, Network::FLOODED);
        world.talk(secs(600), ms(900));
        assert!(world.gateway.peers.gate_counts().cookies > 0, "there was load");
        assert!(world.handshakes(0) >= 4, "a client that shows its cookie gets through");
        assert_eq!(world.spoof_cookie_replies(0), 0);
        world.check();
    });
}

#[test]
fn a_gateway_that_forgot_everything_is_found_again() {
    each_seed(|seed| {
        let mut world = World::new(seed, 3, Network::GOOD);
        world.talk(secs(60), ms(500));
        world.restart_gateway();
        world.talk(secs(40), ms(500));
        assert!((0..3).all(|client| world.gateway_reaches(client)));
        world.check();
    });
}

#[test]
fn a_restarted_gateway_that_knows_addresses_begins_itself() {
    each_seed(|seed| {
        let mut world = World::new(seed, 3, Network::GOOD);
        world.talk(secs(60), ms(500));
        world.restart_gateway();
        for client in 0..3 {
            world.gateway_learns_address(client);
            world.gateway_sends(client);
        }
        world.run_for(secs(2));
        assert!((0..3).all(|client| world.gateway_reaches(client)), "within two seconds, not fifteen");
        world.check();
    });
}

#[test]
fn all_devices_behind_one_nat_are_back_at_once_after_a_restart() {
    const DEVICES: usize = 200;
    let mut world = World::new(1, DEVICES, Network::GOOD);
    // More than one host may begin without a proof: most shake hands with a cookie, five seconds
    // later.
    world.talk(secs(8), secs(1));
    assert!(world.gateway.peers.gate_counts().cookies > 0);
    world.restart_gateway();
    for client in 0..DEVICES {
        world.gateway_learns_address(client);
        world.gateway_sends(client);
    }
    world.run_for(secs(1));
    assert_eq!(world.gateway.peers.gate_counts().cookies, 0);
    assert!((0..DEVICES).all(|client| world.gateway_reaches(client)));
    world.check();
}

#[test]
fn one_configuration_on_two_devices_is_noticed() {
    each_seed(|seed| {
        let mut world = World::new(seed, 1, Network::GOOD);
        world.copy_client(0);
        world.talk(secs(600), ms(900));
        let noticed =
            world.gateway.events.iter().filter(|event| matches!(event, Event::BackAndForth { .. })).count();
        assert!(noticed >= 1, "{:?}", world.gateway.events);
        assert!(noticed <= 2, "said {noticed} times in ten minutes");
    });
}

#[test]
fn silence_ends_a_session_and_its_keys() {
    each_seed(|seed| {
        let mut world = World::new(seed, 2, Network::GOOD);
        world.talk(secs(300), ms(800));
        world.run_for(Duration::from_secs(900));
        assert_eq!(world.gateway.openers(), 0);
        let ended =
            world.gateway.events.iter().filter(|event| matches!(event, Event::SessionEnded(_))).count();
        assert_eq!(ended, 2);
        world.talk(secs(60), ms(800));
        assert!((0..2).all(|client| world.gateway_reaches(client)), "and begins again");
        world.check();
    });
}
