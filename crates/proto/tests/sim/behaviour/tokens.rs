//! Attach tokens: a lost answer costs nothing, a used token is void.

use vpnd_crypto::EpochSecret;
use vpnd_proto::attach::Token;
use vpnd_proto::client::Purpose;
use vpnd_proto::control::{Code, List, Offer, SuiteSpeed};
use vpnd_proto::gateway::Claim;
use vpnd_proto::session::{ConnectionId, DeviceId, SessionId};

use super::*;
use crate::runs::with_seeds;

/// An attach as an attacker with a stolen token may try it, on another connection, with what
/// `device` can prove.
fn steal(world: &mut World, session: SessionId, token: &Token, device: DeviceId) -> Result<SessionId, Code> {
    let offer = Offer {
        indexes: List::new(vec![1, 2]).expect("two"),
        suites: List::new(vec![SuiteSpeed { suite: 1, mbps: 1 }]).expect("one"),
        features: 0,
        lab: false,
    };
    world.hub.latest_secret = [7; 32];
    let secret = EpochSecret::new([7; 32]);
    let claim = Claim { session, token: token.clone(), device };
    let got = world.hub.core.attach(world.now, ConnectionId(u64::MAX), &claim, &offer, secret);
    world.settle_hub();
    got
}

/// The tokens that the clients have shown.
fn shown(world: &World) -> Vec<(SessionId, Token)> {
    let purposes = world.channels.values().map(crate::channel::Channel::purpose);
    let attaches = purposes.filter_map(|purpose| match purpose {
        Purpose::Attach { session, token } | Purpose::Transfer { session, token } => {
            Some((*session, token.clone()))
        }
        Purpose::Login | Purpose::Move => None,
    });
    attaches.collect()
}

#[test]
fn a_lost_answer_costs_nothing() {
    with_seeds(6, |seed| {
        let mut world = world(seed, 1, Path::CLEAN, false);
        let session = world.hub.core.sessions().next().expect("one client").id;
        talk(&mut world, ms(50), secs(300));
        world.run(secs(100));
        world.lose_answers = 3;
        world.run(secs(202));
        assert_eq!(world.lose_answers, 0, "three answers were lost");
        let (sent, arrived) = world.oracle.tally(0);
        assert_eq!(arrived, sent, "the old epoch carried on meanwhile");
        assert_eq!(world.hub.core.sessions().next().map(|status| status.id), Some(session));
        assert_eq!(world.hub.ended, []);
    });
}

#[test]
fn a_token_is_void_once_its_successor_is_confirmed() {
    with_seeds(4, |seed| {
        let mut world = world(seed, 2, Path { jitter: ms(20), ..Path::lossy(0.1) }, false);
        talk(&mut world, ms(100), secs(300));
        world.run(secs(310));
        let shown = shown(&world);
        assert!(shown.len() >= 4, "each client has rekeyed twice");
        for restarted in [false, true] {
            for (session, token) in &shown {
                let owner = world.devices.iter().find(|device| device.session() == Some(*session));
                let owner = owner.expect("one of the two").id;
                assert_eq!(
                    steal(&mut world, *session, token, owner),
                    Err(Code::Token),
                    "after a restart: {restarted}"
                );
            }
            world.restart_hub();
        }
    });
}

#[test]
fn tokens_of_others_and_guesses_are_void() {
    with_seeds(2, |seed| {
        let mut world = world(seed, 2, Path::CLEAN, false);
        let sessions: Vec<_> = world.hub.core.sessions().map(|status| status.id).collect();
        world.run(secs(5));
        // Each client shows its good token, in an attach that never leaves the machine.
        let core = world.devices[0].core.as_mut().expect("it runs");
        core.network_changed(world.now);
        let guess = Token::from_bytes([9; 32]);
        for session in sessions.into_iter().chain([SessionId([9; 16])]) {
            for device in [world.devices[0].id, world.devices[1].id] {
                assert_eq!(steal(&mut world, session, &guess, device), Err(Code::Token));
            }
        }
        assert!(world.hub.core.sessions().all(|status| status.connection.is_some()), "nobody was disturbed");
    });
}

#[test]
fn a_stolen_token_is_refused_and_its_owner_continues() {
    with_seeds(6, |seed| {
        let mut world = world(seed, 2, Path::CLEAN, false);
        let victim = world.devices[0].session().expect("it is up");
        world.run(secs(5));
        // The victim shows its token on a connection that does not arrive, and the thief reads it
        // there.
        let path = core::mem::replace(&mut world.devices[0].up, Path::lossy(1.0));
        world.move_network(0, true);
        world.run(secs(3));
        let stolen = shown(&world).into_iter().find(|(session, _)| *session == victim);
        let (_, token) = stolen.expect("the victim attaches");
        for device in [world.devices[1].id, DeviceId([9; 16])] {
            assert_eq!(steal(&mut world, victim, &token, device), Err(Code::Token));
        }
        world.restart_hub();
        assert_eq!(steal(&mut world, victim, &token, DeviceId([9; 16])), Err(Code::Token), "nor later");
        world.devices[0].up = path;
        world.wait_until_up(0);
        assert_eq!(world.devices[0].session(), Some(victim));
        assert_eq!(world.hub.ended, [], "nobody has lost a session");
    });
}

#[test]
fn two_machines_with_one_device_name_do_not_alternate_endlessly() {
    with_seeds(4, |seed| {
        let mut world = world(seed, 1, Path::CLEAN, false);
        let second = world.add_device(2, Path::CLEAN);
        world.kill_device(second);
        let (user, id, lease) = {
            let first = &world.devices[0];
            (first.user.clone(), first.id, first.lease)
        };
        let copy = &mut world.devices[second];
        (copy.user, copy.id, copy.lease) = (user, id, lease);
        world.run(secs(70));
        world.start_device(second);
        world.run(secs(60));
        assert!(world.devices[second].is_up());
        assert_eq!(world.devices[0].gave_up, Some(Code::Superseded));
        assert!(world.devices[0].connects <= 3, "{} connects", world.devices[0].connects);
    });
}
