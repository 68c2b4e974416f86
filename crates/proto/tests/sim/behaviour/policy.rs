//! Behaviour: sources and destinations that clients may use.

use std::sync::Arc;

use vpnd_proto::plane::DropReason;
use vpnd_proto::policy::{Names, Policy, Protocol, RuleSpec, Selector, Verdict};

use super::*;
use crate::runs::with_seeds;

#[test]
fn a_forged_source_is_dropped() {
    with_seeds(3, |seed| {
        let mut world = world(seed, 3, Path::CLEAN, true);
        for ipv6 in [false, true] {
            let others = [Place::Device(1), Place::Device(2), Place::Campus];
            for src in others.map(|place| world.inner_address(place, ipv6)) {
                for to in [Place::Campus, Place::Device(1), Place::Device(2)] {
                    world.send_as(Place::Device(0), src, to, false);
                }
            }
        }
        world.run(secs(1));
        // The oracle checks all the time that none was delivered.
        assert_eq!(world.hub.dropped(DropReason::ForeignSource), 18);
    });
}

#[test]
fn clients_are_kept_apart_until_policy_says_otherwise() {
    with_seeds(3, |seed| {
        let mut world = world(seed, 2, Path::CLEAN, false);
        world.flow(Place::Device(0), Place::Device(1), ms(10), secs(1));
        world.run(secs(2));
        assert_eq!(world.hub.dropped(DropReason::Policy), 100);
        for allowed in [true, false, true] {
            world.hub.core.set_policy(&Arc::new(Policy::without_rules(allowed)));
            world.hub.clients_may_meet = allowed;
            world.settle_hub();
            let first = world.oracle.mark();
            world.flow(Place::Device(0), Place::Device(1), ms(10), secs(1));
            world.flow(Place::Device(1), Place::Device(0), ms(10), secs(1));
            world.run(secs(2));
            let arrived = world.oracle.arrived(first, Place::Device(0), Place::Device(1))
                + world.oracle.arrived(first, Place::Device(1), Place::Device(0));
            assert_eq!(arrived, if allowed { 200 } else { 0 });
        }
    });
}

/// The first device may send to the second, by one rule; both are otherwise kept apart.
fn one_way(world: &World) -> Policy {
    let selectors = |device| {
        let addresses = [false, true].map(|ipv6| world.inner_address(Place::Device(device), ipv6));
        addresses.map(|address| Selector::Net(address.into())).to_vec()
    };
    let (from, to, protocol) = (selectors(0), selectors(1), Protocol::Udp);
    let rule = RuleSpec { action: Verdict::Allow, from, to, protocol, ports: vec![9..=9] };
    Policy::compile(&[rule], false, &mut Names::new()).expect("a good rule")
}

#[test]
fn replies_pass_for_known_flows_and_over_an_upgrade() {
    with_seeds(3, |seed| {
        let mut world = world(seed, 2, Path::CLEAN, false);
        world.hub.policy = Arc::new(one_way(&world));
        world.hub.clients_may_meet = true;
        let policy = Arc::clone(&world.hub.policy);
        world.hub.core.set_policy(&policy);
        world.settle_hub();
        // Returns how many of 100 packets of the second device to the first arrive within a second.
        let answers = |world: &mut World| {
            let mark = world.oracle.mark();
            world.flow(Place::Device(1), Place::Device(0), ms(10), secs(1));
            world.run(secs(2));
            world.oracle.arrived(mark, Place::Device(1), Place::Device(0))
        };
        assert_eq!(answers(&mut world), 0, "nobody has asked");
        world.flow(Place::Device(0), Place::Device(1), ms(10), ms(100));
        world.run(secs(1));
        assert_eq!(answers(&mut world), 100, "whatever shards they come to");
        world.upgrade_hub();
        assert_eq!(answers(&mut world), 100, "they are replies still");
        world.run(secs(310));
        assert_eq!(answers(&mut world), 0, "to no question that anybody remembers");
    });
}
