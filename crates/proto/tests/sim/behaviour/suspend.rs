//! A laptop sleeps: time passes in which nothing of it runs, and it goes on as if nothing had been.

use super::*;
use crate::runs::with_seeds;

const NIGHT: Duration = Duration::from_secs(8 * 3600);
/// Shorter than the life of keys, longer than that of a connection of which nothing is heard.
const NAP: Duration = Duration::from_secs(100);

/// Two clients, of which the first is going to sleep, and their sessions.
fn awake(seed: u64) -> (World, Vec<Option<SessionId>>) {
    let world = world(seed, 2, Path { jitter: ms(20), ..Path::CLEAN }, false);
    let before = sessions(&world);
    (world, before)
}

/// The sleeper has its session, and is reachable from the campus without having sent a packet,
/// within two seconds.
fn goes_on(world: &mut World, before: &[Option<SessionId>]) {
    world.run(secs(1));
    let ids: Vec<u64> = (0..10).map(|_| world.send(Place::Campus, Place::Device(0))).collect();
    world.run(secs(1));
    assert!(ids.iter().all(|id| world.oracle.is_delivered(*id)), "it is reachable");
    assert_eq!(sessions(world), before, "nobody had to log in");
    assert_eq!((&world.hub.ended[..], world.devices[0].gave_up), (&[][..], None));
    talk(world, ms(100), secs(300));
    world.run(secs(301));
    assert_eq!(sessions(world), before, "nor later");
}

#[test]
fn a_client_is_reachable_after_a_nights_suspend_without_a_login() {
    with_seeds(8, |seed| {
        let (mut world, before) = awake(seed);
        talk(&mut world, ms(100), secs(5));
        world.run(ms(5_000 + 17 * seed));
        world.sleep_device(0, NIGHT);
        goes_on(&mut world, &before);
    });
}

#[test]
fn a_short_suspend_costs_one_probe() {
    with_seeds(8, |seed| {
        let (mut world, before) = awake(seed);
        world.run(ms(2_000 + 17 * seed));
        world.sleep_device(0, NAP);
        goes_on(&mut world, &before);
    });
}

#[test]
fn a_session_continues_after_a_resume_in_another_network() {
    with_seeds(8, |seed| {
        let (mut world, before) = awake(seed);
        let slept = if seed % 2 == 0 { NIGHT } else { NAP };
        world.move_network(0, false);
        world.sleep_device(0, slept);
        goes_on(&mut world, &before);
    });
}

/// A machine that is suspended while a connection is being made does not wait for it afterwards.
#[test]
fn a_suspend_during_an_attach_restarts_it() {
    with_seeds(8, |seed| {
        let (mut world, before) = awake(seed);
        world.run(secs(600));
        let connects = world.devices[0].connects;
        world.send(Place::Device(0), Place::Campus);
        world.run(ms(5 * seed));
        assert_eq!(world.devices[0].connects, connects + 1, "it is attaching");
        world.sleep_device(0, NIGHT);
        goes_on(&mut world, &before);
    });
}

#[test]
fn clients_attach_again_after_a_nights_outage_of_the_gateway() {
    with_seeds(4, |seed| {
        let mut world = world(seed, 3, Path { jitter: ms(20), ..Path::CLEAN }, false);
        let before = sessions(&world);
        talk(&mut world, ms(100), secs(20));
        world.sleep_hub(if seed % 2 == 0 { NIGHT } else { NAP });
        // The longest wait between two tries.
        world.run(secs(46));
        assert!(world.devices.iter().all(Device::is_up));
        assert_eq!(sessions(&world), before, "nobody had to log in");
        let back = world.oracle.mark();
        talk(&mut world, ms(100), secs(60));
        world.run(secs(61));
        let (sent, arrived) = world.oracle.tally(back);
        assert_eq!(arrived, sent);
        assert_eq!(world.hub.ended, []);
    });
}

#[test]
fn a_suspend_beyond_the_session_lifetime_ends_in_a_login() {
    with_seeds(4, |seed| {
        let mut world = World::new(seed, |random| {
            let mut hub = Hub::new(hub::config(2), false, random);
            hub.lifetime = NIGHT / 2;
            hub
        });
        world.add_device(2, Path::CLEAN);
        world.wait_until_up(0);
        let before = world.devices[0].session();
        world.sleep_device(0, NIGHT);
        world.run(secs(5));
        assert!(world.devices[0].is_up());
        assert_ne!(world.devices[0].session(), before, "that session is over");
        assert_eq!(world.devices[0].gave_up, None);
    });
}
