//! Behaviour that the simulation does not show: the order of effects, indexes, limits, refusals.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use vpnd_crypto::{Backend, EpochSecret};

use super::*;
use crate::attach::{Token, Tokens};
use crate::control::{
    AsText, Drain, Established, FEATURE_MORE_ROUTES, List, Network, Offer, ROUTES_IN_MESSAGE, SuiteSpeed,
};
use crate::plane::{Access, Endpoint, EpochSpec};
use crate::policy::{Policy, Principal, ProfileId};
use crate::session::DeviceId;
use crate::wire::Index;

mod drain;
mod handover;
mod limits;
mod renewal;
mod wireguard;

const NOW: Time = Time::from_nanos(1_000_000_000);

fn config(shards: usize) -> Config {
    Config {
        shards,
        suites: vec![local(Suite::Aes128Gcm), local(Suite::ChaCha20Poly1305)],
        features: 0b11,
        lab: None,
        timers: Timers::default(),
        idle_timeout: None,
        max_sessions: 3,
        profiles: ProfileSettings { network: Network::default(), max_sessions_per_user: 2 }.alone(),
        renewal: None,
    }
}

fn local(suite: Suite) -> LocalSuite {
    LocalSuite { suite, backend: Backend::Ring, mbps: 1000 }
}

fn random(seed: u64) -> Random {
    use rand::{Rng, SeedableRng};
    let mut rng = rand::rngs::Xoshiro256PlusPlus::seed_from_u64(seed);
    Box::new(move |bytes| rng.fill_bytes(bytes))
}

fn gateway(config: Config) -> Gateway {
    Gateway::new(config, random(7)).unwrap()
}

fn offer(lanes: u32) -> Offer {
    Offer {
        indexes: List::new((0..lanes).map(|lane| 100 + lane).collect()).unwrap(),
        suites: List::new(vec![SuiteSpeed { suite: 1, mbps: 10 }]).unwrap(),
        features: 0b01,
        lab: false,
    }
}

fn who(user: &str, device: u8) -> Authenticated {
    let mut session = [device; 16];
    session[..user.len()].copy_from_slice(user.as_bytes());
    Authenticated {
        session: SessionId(session),
        user: UserName::new(user).unwrap(),
        principal: crate::policy::Principal::default(),
        limits: crate::rate::SessionLimits::default(),
        device: DeviceId([device; 16]),
        addresses: Addresses { ipv4: Some([10, 0, 0, device].into()), ipv6: None },
        deadline: NOW + Duration::from_secs(1000),
        idle_timeout: None,
        elsewhere: 0,
    }
}

fn secret() -> EpochSecret {
    EpochSecret::new([1; 32])
}

fn effects(gateway: &mut Gateway) -> Vec<Effect> {
    core::iter::from_fn(|| gateway.poll_effect()).collect()
}

/// The answer among effects.
fn established(effects: &[Effect]) -> Established {
    let answer = effects.iter().find_map(|effect| match effect {
        Effect::Send { message: Message::Established(established), .. } => Some((**established).clone()),
        _ => None,
    });
    answer.expect("the login was granted")
}

fn login(gateway: &mut Gateway, connection: u64, user: &str, device: u8) -> Established {
    let granted = gateway.login(NOW, ConnectionId(connection), who(user, device), &offer(2), secret());
    granted.unwrap();
    established(&effects(gateway))
}

fn attach(
    gateway: &mut Gateway,
    now: Time,
    connection: u64,
    with: &Established,
) -> Result<Established, Code> {
    gateway.attach(now, ConnectionId(connection), &claim(with), &offer(2), secret())?;
    Ok(established(&effects(gateway)))
}

/// The claim of the device that has got this answer.
fn claim(with: &Established) -> Claim {
    let [.., device] = with.session.0;
    Claim { session: with.session, token: with.token.clone(), device: DeviceId([device; 16]) }
}

fn heard(gateway: &mut Gateway, now: Time, epoch: u32) {
    let slot = gateway.sessions().next().unwrap().slot;
    gateway.handle_event(now, Event::Heard { slot, epoch, lane: 0, endpoint: endpoint("198.51.100.1:1") });
}

fn endpoint(address: &str) -> Endpoint {
    Endpoint { remote: address.parse().unwrap(), local: None }
}

/// One letter for each effect; commands to several shards are one.
fn outline(effects: &[Effect]) -> String {
    let mut letters: Vec<char> = effects
        .iter()
        .map(|effect| match effect {
            Effect::Command { command: Command::Open(_), .. } => 'O',
            Effect::Command { command: Command::Install(_), .. } => 'I',
            Effect::Command { command: Command::Retire { .. }, .. } => 'R',
            Effect::Command { command: Command::Close(_), .. } => 'C',
            Effect::Command { command: Command::Reach { .. }, .. } => 'H',
            Effect::Command { .. } => '?',
            Effect::HeardAt { .. } => 'a',
            Effect::Persist(_) => 'P',
            Effect::Forget(_) => 'F',
            Effect::Send { .. } => 's',
            Effect::CloseConnection { .. } => 'x',
            Effect::Ended(_) => 'e',
        })
        .collect();
    letters.dedup();
    letters.into_iter().collect()
}

#[test]
fn a_session_that_exists_is_never_replaced() {
    let mut gateway = gateway(config(1));
    let anns = login(&mut gateway, 1, "ann", 1);
    let bob = Authenticated { session: anns.session, ..who("bob", 2) };
    let refused = gateway.login(NOW, ConnectionId(2), bob, &offer(2), secret());
    assert_eq!(refused, Err(Code::Internal));
    assert_eq!(outline(&effects(&mut gateway)), "sx", "it is told, and nothing else happens");
    let sessions: Vec<_> = gateway.sessions().collect();
    assert_eq!((sessions.len(), &*sessions[0].user), (1, "ann"));
    attach(&mut gateway, NOW, 3, &anns).unwrap();
}

#[test]
fn keys_and_store_precede_the_answer() {
    let mut gateway = gateway(config(3));
    gateway.login(NOW, ConnectionId(1), who("ada", 1), &offer(2), secret()).unwrap();
    let first = effects(&mut gateway);
    assert_eq!(outline(&first), "OIPs");
    // The connection before is closed only once the new answer is on its way.
    let answer = established(&first);
    gateway.attach(NOW, ConnectionId(2), &claim(&answer), &offer(2), secret()).unwrap();
    assert_eq!(outline(&effects(&mut gateway)), "RIPsx");
    heard(&mut gateway, NOW, 2);
    assert_eq!(outline(&effects(&mut gateway)), "PaH");
    gateway.end(&Selector::Session(answer.session), Code::Kicked, "");
    assert_eq!(outline(&effects(&mut gateway)), "CFsxe");
}

#[test]
fn a_replacement_is_forgotten_before_its_successor_is_stored() {
    let mut gateway = gateway(config(1));
    login(&mut gateway, 1, "ada", 1);
    gateway.login(NOW, ConnectionId(2), who("ada", 1), &offer(2), secret()).unwrap();
    assert_eq!(outline(&effects(&mut gateway)), "CFsxeOIPs");
    assert_eq!(gateway.sessions().count(), 1);
}

#[test]
fn only_hashes_of_tokens_are_stored() {
    let mut gateway = gateway(config(1));
    gateway.login(NOW, ConnectionId(1), who("ada", 1), &offer(1), secret()).unwrap();
    let effects = effects(&mut gateway);
    let answer = established(&effects);
    let record = effects.iter().find_map(|effect| match effect {
        Effect::Persist(record) => Some(record),
        _ => None,
    });
    assert_eq!(record.unwrap().tokens, Tokens::new(answer.token.hash()));
}

/// The epochs that the shards were told to install, by shard.
fn installs(effects: Vec<Effect>) -> Vec<(usize, EpochSpec)> {
    let installs = effects.into_iter().filter_map(|effect| match effect {
        Effect::Command { shard, command: Command::Install(spec) } => Some((shard, *spec)),
        _ => None,
    });
    installs.collect()
}

proptest! {
    #[test]
    fn indexes_answer_on_the_same_ports(shards in 1usize..=64, lanes in 1usize..=16, seed: u64) {
        let mut gateway = Gateway::new(config(shards), random(seed)).unwrap();
        let offer = offer(lanes as u32);
        gateway.login(NOW, ConnectionId(1), who("ada", 1), &offer, secret()).unwrap();
        let effects = effects(&mut gateway);
        let answer = established(&effects);
        prop_assert_eq!(answer.indexes.len(), lanes);
        let installs = installs(effects);
        prop_assert_eq!(installs.len(), shards);
        for (lane, index) in answer.indexes.iter().enumerate() {
            let owner = Index(*index).shard(shards);
            prop_assert_eq!(owner % lanes.min(shards), lane % lanes.min(shards));
            // Exactly the owner receives it, from that lane alone.
            let receivers = installs.iter().filter(|(_, spec)| spec.receive.iter().any(|r| r.index.0 == *index));
            for (shard, spec) in receivers.clone() {
                prop_assert_eq!(*shard, owner);
                let receive = spec.receive.iter().find(|receive| receive.index.0 == *index).unwrap();
                prop_assert_eq!(&receive.lanes, &vec![lane as u8]);
            }
            prop_assert_eq!(receivers.count(), 1);
        }
        for (shard, spec) in &installs {
            prop_assert_eq!(usize::from(spec.lane), *shard);
            prop_assert_eq!(usize::from(spec.peer_lane), shard % lanes);
            prop_assert_eq!(spec.peer_index.0, offer.indexes[shard % lanes]);
            prop_assert_eq!(spec.endpoint, None);
            prop_assert_eq!(spec.features, 0b01);
        }
    }
}

#[test]
fn indexes_are_unique_and_given_back() {
    let mut config = config(2);
    config.max_sessions = 400;
    config.profiles = ProfileSettings { network: Network::default(), max_sessions_per_user: 400 }.alone();
    let mut gateway = gateway(config);
    for device in 0..200 {
        login(&mut gateway, device.into(), "ada", device);
    }
    assert_eq!(gateway.sessions.indexes.len(), 400);
    gateway.end(&Selector::User(UserName::new("ada").unwrap()), Code::Disabled, "");
    assert_eq!(gateway.sessions.indexes.len(), 0);
    assert_eq!(gateway.sessions.timers.poll_timeout(), None);
}

#[test]
fn bad_offers_are_refused() {
    let mut gateway = gateway(config(2));
    let twice = Offer { indexes: List::new(vec![5, 5]).unwrap(), ..offer(1) };
    let none = Offer { indexes: List::default(), ..offer(1) };
    let foreign = Offer { suites: List::new(vec![SuiteSpeed { suite: 2, mbps: 1 }]).unwrap(), ..offer(1) };
    let laboratory = Offer {
        suites: List::new(vec![SuiteSpeed { suite: 0xF000, mbps: 1 }]).unwrap(),
        lab: true,
        ..offer(1)
    };
    for (bad, code) in [
        (twice, Code::BadRequest),
        (none, Code::BadRequest),
        (foreign, Code::NoSuite),
        (laboratory, Code::NoSuite),
    ] {
        assert_eq!(gateway.login(NOW, ConnectionId(1), who("ada", 1), &bad, secret()), Err(code));
        assert_eq!(outline(&effects(&mut gateway)), "sx");
    }
    // A connection that has a session already.
    let answer = login(&mut gateway, 1, "ada", 1);
    assert_eq!(attach(&mut gateway, NOW, 1, &answer).unwrap_err(), Code::BadRequest);
}

#[test]
fn laboratory_suites_need_the_switch_at_both_ends() {
    let mut lab = config(1);
    lab.suites.push(local(Suite::Null));
    assert_eq!(Gateway::new(lab.clone(), random(1)).unwrap_err(), ConfigError::Laboratory(Suite::Null));
    lab.lab = Some(LabPermit::insecure());
    for (switched, suite, permit) in [(true, 0xF000, true), (false, 1, false)] {
        let mut gateway = gateway(lab.clone());
        let suites = vec![SuiteSpeed { suite: 1, mbps: 1 }, SuiteSpeed { suite: 0xF000, mbps: 9 }];
        let offer = Offer { suites: List::new(suites).unwrap(), lab: switched, ..offer(1) };
        gateway.login(NOW, ConnectionId(1), who("ada", 1), &offer, secret()).unwrap();
        let effects = effects(&mut gateway);
        assert_eq!(established(&effects).suite, suite);
        assert!(installs(effects).iter().all(|(_, spec)| spec.lab.is_some() == permit));
    }
}

#[test]
fn configurations_without_a_way_in_are_refused() {
    for shards in [0, 65] {
        assert_eq!(Gateway::new(config(shards), random(1)).unwrap_err(), ConfigError::Shards(shards));
    }
    let mut narrow = config(1);
    narrow.suites.retain(|local| local.suite == Suite::ChaCha20Poly1305);
    let mut gateway = gateway(narrow.clone());
    let refused = gateway.login(NOW, ConnectionId(1), who("ada", 1), &offer(1), secret());
    assert_eq!(refused, Err(Code::NoSuite), "the client offers another one only");
    narrow.suites.clear();
    assert_eq!(Gateway::new(narrow, random(1)).unwrap_err(), ConfigError::NoSuite);
}

#[test]
fn sessions_of_walled_devices_are_none_of_the_users() {
    let mut gateway = gateway(Config { max_sessions: 9, ..config(1) });
    let settings = ProfileSettings { network: Network::default(), max_sessions_per_user: 2 };
    let mut profiles = settings.clone().alone();
    profiles.insert(ProfileId::WALLED, ProfileSettings { max_sessions_per_user: 0, ..settings });
    gateway.set_profiles(&Arc::new(Policy::default()), profiles, |_| Principal::default());
    for device in 1..=2 {
        let who = who("ada", device);
        let principal = who.principal.clone().in_profile(ProfileId::WALLED);
        gateway.admit_wireguard(NOW, Authenticated { principal, ..who }, 1280).unwrap();
    }
    login(&mut gateway, 3, "ada", 3);
    login(&mut gateway, 4, "ada", 4);
    assert_eq!(gateway.sessions().count(), 4, "none of them made room");
    let refused = gateway.login(NOW, ConnectionId(5), who("ada", 5), &offer(1), secret());
    assert_eq!(refused, Err(Code::TooMany));
}

#[test]
fn walled_devices_take_no_place_of_a_full_gateway() {
    let mut gateway = gateway(Config { max_sessions: 2, ..config(1) });
    let settings = ProfileSettings { network: Network::default(), max_sessions_per_user: 2 };
    let mut profiles = settings.clone().alone();
    profiles.insert(ProfileId::WALLED, ProfileSettings { max_sessions_per_user: 0, ..settings });
    gateway.set_profiles(&Arc::new(Policy::default()), profiles, |_| Principal::default());
    let walled = |device| {
        let who = who("ada", device);
        let principal = who.principal.clone().in_profile(ProfileId::WALLED);
        Authenticated { principal, ..who }
    };
    gateway.admit_wireguard(NOW, walled(1), 1280).unwrap();
    gateway.admit_wireguard(NOW, walled(2), 1280).unwrap();
    assert_eq!(gateway.admit_wireguard(NOW, walled(3), 1280), Err(Code::TooMany));
    login(&mut gateway, 1, "bob", 4);
    login(&mut gateway, 2, "eve", 5);
    let users = gateway.sessions().filter(|session| *session.user != *"ada").count();
    assert_eq!((users, gateway.sessions().count()), (2, 2));
    let refused = gateway.login(NOW, ConnectionId(3), who("sue", 6), &offer(1), secret());
    assert_eq!(refused, Err(Code::TooMany), "none of these makes room");
}

#[test]
fn sessions_at_other_gateways_count_for_the_limits() {
    let mut gateway = gateway(config(1));
    let of_ada = |device, elsewhere| Authenticated { elsewhere, ..who("ada", device) };
    let log_in = |gateway: &mut Gateway, connection, who| {
        gateway.login(NOW, ConnectionId(connection), who, &offer(1), secret()).map(drop)
    };
    assert_eq!(log_in(&mut gateway, 1, of_ada(1, 2)), Err(Code::TooMany), "of two that she may have");
    assert_eq!(log_in(&mut gateway, 2, of_ada(1, 1)), Ok(()));
    assert_eq!(log_in(&mut gateway, 3, of_ada(2, 1)), Err(Code::TooMany));
    gateway.connection_lost(ConnectionId(2));
    gateway.handle_timeout(NOW + Duration::from_secs(900));
    let later = NOW + Duration::from_secs(900);
    let second = gateway.login(later, ConnectionId(4), of_ada(2, 1), &offer(1), secret());
    assert!(second.is_ok(), "one that is away here makes room");
    assert_eq!(gateway.sessions().count(), 1);
    // Three are allowed in all.
    gateway.set_elsewhere(2);
    assert_eq!(log_in(&mut gateway, 5, who("bob", 3)), Err(Code::TooMany));
    gateway.set_elsewhere(1);
    assert_eq!(log_in(&mut gateway, 6, who("bob", 3)), Ok(()));
}

#[test]
fn sessions_are_limited() {
    let mut gateway = gateway(config(1));
    login(&mut gateway, 1, "ada", 1);
    login(&mut gateway, 2, "ada", 2);
    let refused = gateway.login(NOW, ConnectionId(3), who("ada", 3), &offer(1), secret());
    assert_eq!(refused, Err(Code::TooMany));
    effects(&mut gateway);
    // Another login of the same device adds no session.
    login(&mut gateway, 4, "ada", 2);
    login(&mut gateway, 5, "bob", 4);
    let refused = gateway.login(NOW, ConnectionId(6), who("eve", 5), &offer(1), secret());
    assert_eq!(refused, Err(Code::TooMany), "the gateway is full");
}

#[test]
fn a_device_that_is_away_makes_room_for_another_of_its_user() {
    let mut config = config(1);
    config.max_sessions = 2;
    let mut gateway = gateway(config);
    let away = login(&mut gateway, 1, "ada", 1);
    login(&mut gateway, 2, "ada", 2);
    gateway.connection_lost(ConnectionId(1));
    let refused = gateway.login(NOW, ConnectionId(3), who("ada", 3), &offer(1), secret());
    assert_eq!(refused, Err(Code::TooMany), "its keys are alive, so it may come back");
    gateway.handle_timeout(NOW + Duration::from_secs(15));
    effects(&mut gateway);
    login(&mut gateway, 3, "ada", 3);
    assert!(gateway.sessions().all(|status| status.id != away.session));
}

#[test]
fn tokens_end_with_the_lifetime() {
    let mut gateway = gateway(config(1));
    let answer = login(&mut gateway, 1, "ada", 1);
    let deadline = NOW + Duration::from_secs(1000);
    let before = Time::from_nanos(deadline.as_nanos() - 1);
    // Even if the timer was not served yet.
    assert_eq!(attach(&mut gateway, deadline, 2, &answer).unwrap_err(), Code::Token);
    effects(&mut gateway);
    assert!(attach(&mut gateway, before, 3, &answer).is_ok());
}

#[test]
fn those_that_timers_will_end_are_known_before_for_their_last_traffic() {
    let idle = Duration::from_secs(300);
    let mut gateway = gateway(Config { idle_timeout: Some(idle), ..config(1) });
    let [ada, bob] = [("ada", 1), ("bob", 2)].map(|(user, n)| login(&mut gateway, n.into(), user, n));
    let due = |gateway: &Gateway, now| gateway.due_to_end(now).collect::<std::collections::BTreeSet<_>>();
    // One of the two was used since, which its timer does not know yet.
    let used = Activity { last_rx_packet: NOW + Duration::from_secs(1), ..Activity::default() };
    let slot = gateway.sessions().find(|status| status.id == bob.session).unwrap().slot;
    gateway.handle_activity(slot, used);
    assert_eq!(due(&gateway, NOW + (idle - Duration::from_nanos(1))), [].into());
    assert_eq!(due(&gateway, NOW + idle), [ada.session].into());
    gateway.handle_timeout(NOW + idle);
    assert_eq!(due(&gateway, NOW + idle + Duration::from_secs(1)), [bob.session].into());
    assert_eq!(due(&gateway, NOW + Duration::from_secs(1000)), [bob.session].into(), "idle and over, once");
}

#[test]
fn a_token_is_good_for_its_own_session_only() {
    let mut gateway = gateway(config(1));
    let ada = login(&mut gateway, 1, "ada", 1);
    let bob = login(&mut gateway, 2, "bob", 2);
    let crossed = Established { session: bob.session, ..ada.clone() };
    assert_eq!(attach(&mut gateway, NOW, 3, &crossed).unwrap_err(), Code::Token);
    let zero = Established { token: Token::from_bytes([0; 32]), ..ada };
    assert_eq!(attach(&mut gateway, NOW, 3, &zero).unwrap_err(), Code::Token);
}

#[test]
fn a_stolen_token_is_refused_and_stays_valid_for_its_owner() {
    let mut gateway = gateway(config(1));
    let ada = login(&mut gateway, 1, "ada", 1);
    heard(&mut gateway, NOW, 1);
    effects(&mut gateway);
    let theft = Claim { device: DeviceId([2; 16]), ..claim(&ada) };
    for connection in 2..5 {
        let refused = gateway.attach(NOW, ConnectionId(connection), &theft, &offer(2), secret());
        assert_eq!(refused, Err(Code::Token));
        assert_eq!(outline(&effects(&mut gateway)), "sx", "nothing of the session changes");
    }
    let status = gateway.sessions().next().unwrap();
    assert_eq!((status.connection, status.epoch), (Some(ConnectionId(1)), Some(1)));
    attach(&mut gateway, NOW, 6, &ada).expect("the token is as good as it was");
}

#[test]
fn an_unconfirmed_epoch_is_erased_and_its_token_stays_good() {
    let mut gateway = gateway(config(2));
    let first = login(&mut gateway, 1, "ada", 1);
    heard(&mut gateway, NOW, 1);
    let second = attach(&mut gateway, NOW, 2, &first).unwrap();
    effects(&mut gateway);
    let later = NOW + Duration::from_secs(15);
    gateway.handle_timeout(Time::from_nanos(later.as_nanos() - 1));
    assert_eq!(effects(&mut gateway).len(), 0);
    gateway.handle_timeout(later);
    let erased = effects(&mut gateway);
    assert_eq!(erased.len(), 2, "one command for each shard: {erased:?}");
    assert!(matches!(&erased[0], Effect::Command { command: Command::Retire { epoch: 2, .. }, .. }));
    assert_eq!(gateway.sessions().next().unwrap().epoch, Some(1));
    // Late news of an erased epoch confirm nothing.
    heard(&mut gateway, later, 2);
    assert_eq!(gateway.sessions().next().unwrap().epoch, Some(1));
    assert_eq!(effects(&mut gateway).len(), 0);
    let third = attach(&mut gateway, later, 3, &first).unwrap();
    assert_eq!(third.epoch, 3);
    assert_eq!(attach(&mut gateway, later, 4, &second).unwrap_err(), Code::Token, "nobody confirmed it");
}

#[test]
fn an_old_epoch_is_erased_ten_seconds_after_its_successor_was_heard() {
    let mut gateway = gateway(config(1));
    let first = login(&mut gateway, 1, "ada", 1);
    heard(&mut gateway, NOW, 1);
    attach(&mut gateway, NOW, 2, &first).unwrap();
    let confirmed = NOW + Duration::from_secs(3);
    heard(&mut gateway, confirmed, 2);
    effects(&mut gateway);
    gateway.handle_timeout(confirmed + Duration::from_millis(9_999));
    assert_eq!(effects(&mut gateway).len(), 0);
    gateway.handle_timeout(confirmed + Duration::from_secs(10));
    let erased = effects(&mut gateway);
    assert!(matches!(erased[..], [Effect::Command { command: Command::Retire { epoch: 1, .. }, .. }]));
    assert_eq!(gateway.sessions.indexes.len(), 2, "its indexes can be used again");
}

#[test]
fn keys_without_a_successor_are_erased_when_their_client_ceased_to_seal_at_the_latest() {
    let mut gateway = gateway(config(1));
    login(&mut gateway, 1, "ada", 1);
    heard(&mut gateway, NOW, 1);
    // A client that goes on sending is no dead peer.
    let slot = gateway.sessions().next().unwrap().slot;
    let last_rx = NOW + Duration::from_secs(194);
    gateway.handle_activity(slot, Activity { last_rx, ..Activity::default() });
    gateway.handle_timeout(NOW + Duration::from_millis(194_999));
    assert_eq!(gateway.sessions().next().unwrap().epoch, Some(1));
    effects(&mut gateway);
    gateway.handle_timeout(NOW + Duration::from_secs(195));
    assert_eq!(outline(&effects(&mut gateway)), "R");
    assert_eq!(gateway.sessions().next().unwrap().epoch, None);
}

#[test]
fn a_dead_peer_is_one_that_was_heard_neither_by_events_nor_by_activity() {
    let mut gateway = gateway(config(1));
    login(&mut gateway, 1, "ada", 1);
    heard(&mut gateway, NOW, 1);
    let slot = gateway.sessions().next().unwrap().slot;
    let last_rx = NOW + Duration::from_secs(60);
    gateway.handle_activity(slot, Activity { last_rx, ..Activity::default() });
    effects(&mut gateway);
    gateway.handle_timeout(NOW + Duration::from_millis(149_999));
    assert_eq!(effects(&mut gateway).len(), 0);
    gateway.handle_timeout(NOW + Duration::from_secs(150));
    assert_eq!(outline(&effects(&mut gateway)), "R");
}

#[test]
fn an_old_epoch_says_nothing_about_the_endpoint() {
    let mut gateway = gateway(config(1));
    let first = login(&mut gateway, 1, "ada", 1);
    heard(&mut gateway, NOW, 1);
    attach(&mut gateway, NOW, 2, &first).unwrap();
    heard(&mut gateway, NOW, 2);
    effects(&mut gateway);
    let slot = gateway.sessions().next().unwrap().slot;
    let elsewhere = endpoint("203.0.113.1:1");
    gateway.handle_event(NOW, Event::Heard { slot, epoch: 1, lane: 0, endpoint: elsewhere });
    // Nor does a lane that the client does not have, nor a former tenant of the slot.
    gateway.handle_event(NOW, Event::Heard { slot, epoch: 2, lane: 2, endpoint: elsewhere });
    let former = Slot { generation: slot.generation.wrapping_sub(1), ..slot };
    gateway.handle_event(NOW, Event::Heard { slot: former, epoch: 2, lane: 0, endpoint: elsewhere });
    assert_eq!(effects(&mut gateway).len(), 0);
    let status = gateway.sessions().next().unwrap();
    assert_eq!(status.endpoints, [endpoint("198.51.100.1:1")]);
}

#[test]
fn each_outer_address_is_reported_with_its_lane_and_only_as_it_was_heard() {
    let mut gateway = gateway(config(2));
    let first = login(&mut gateway, 1, "ada", 1);
    let reported = |gateway: &mut Gateway, epoch, lane, address| {
        let slot = gateway.sessions().next().unwrap().slot;
        gateway.handle_event(NOW, Event::Heard { slot, epoch, lane, endpoint: endpoint(address) });
        let reports = effects(gateway).into_iter().filter_map(|effect| match effect {
            Effect::HeardAt { session, lane, outer } => Some((session, lane, outer.to_string())),
            _ => None,
        });
        reports.collect::<Vec<_>>()
    };
    let at = |lane: u8, address: &str| vec![(first.session, lane, address.to_owned())];
    // Nothing of the other lane, which is only taken to be there.
    assert_eq!(reported(&mut gateway, 1, 0, "198.51.100.1:1"), at(0, "198.51.100.1:1"));
    assert_eq!(reported(&mut gateway, 1, 1, "198.51.100.1:2"), at(1, "198.51.100.1:2"));
    assert_eq!(reported(&mut gateway, 1, 1, "203.0.113.1:2"), at(1, "203.0.113.1:2"));
    attach(&mut gateway, NOW, 2, &first).unwrap();
    assert_eq!(reported(&mut gateway, 2, 0, "203.0.113.1:1"), at(0, "203.0.113.1:1"));
    assert_eq!(reported(&mut gateway, 1, 0, "192.0.2.1:1"), [], "a late datagram");
    assert_eq!(reported(&mut gateway, 2, 2, "192.0.2.1:1"), [], "no such lane");
}

/// Reports a datagram of a lane and returns the lanes that the shards then learn, with their
/// addresses.
fn reached(gateway: &mut Gateway, epoch: u32, lane: u8, address: &str) -> Vec<(u8, String)> {
    let slot = gateway.sessions().next().unwrap().slot;
    gateway.handle_event(NOW, Event::Heard { slot, epoch, lane, endpoint: endpoint(address) });
    let reached = effects(gateway).into_iter().filter_map(|effect| match effect {
        Effect::Command { shard, command: Command::Reach { lane, endpoint, .. } } => {
            assert_eq!(shard % 2, usize::from(lane), "only shards that send to the lane are told");
            Some((lane, endpoint.remote.to_string()))
        }
        _ => None,
    });
    reached.collect()
}

#[test]
fn lanes_move_together_only_when_the_address_changes() {
    let mut gateway = gateway(config(2));
    login(&mut gateway, 1, "ada", 1);
    let at = |lane: u8, address: &str| (lane, address.to_owned());
    let first = reached(&mut gateway, 1, 0, "198.51.100.1:1");
    assert_eq!(first, [at(0, "198.51.100.1:1"), at(1, "198.51.100.1:1")], "one lane stands for all at first");
    assert_eq!(reached(&mut gateway, 1, 1, "198.51.100.1:2"), [at(1, "198.51.100.1:2")]);
    let other_port = reached(&mut gateway, 1, 0, "198.51.100.1:9");
    assert_eq!(other_port, [at(0, "198.51.100.1:9")], "another port is of one lane only");
    let other_address = reached(&mut gateway, 1, 1, "198.51.100.7:2");
    assert_eq!(other_address, [at(1, "198.51.100.7:2"), at(0, "198.51.100.7:2")]);
    assert_eq!(reached(&mut gateway, 1, 0, "198.51.100.7:1"), [at(0, "198.51.100.7:1")]);
}

#[test]
fn a_new_epoch_takes_over_the_lanes_of_the_one_before() {
    for (address, other) in [("198.51.100.1:7", "198.51.100.1:2"), ("198.51.100.9:7", "198.51.100.9:7")] {
        let mut gateway = gateway(config(2));
        let first = login(&mut gateway, 1, "ada", 1);
        reached(&mut gateway, 1, 0, "198.51.100.1:1");
        reached(&mut gateway, 1, 1, "198.51.100.1:2");
        attach(&mut gateway, NOW, 2, &first).unwrap();
        let all = reached(&mut gateway, 2, 0, address);
        assert_eq!(all, [(0, address.to_owned()), (1, other.to_owned())]);
    }
}

#[test]
fn a_new_epoch_needs_no_wake() {
    let mut gateway = gateway(config(2));
    login(&mut gateway, 1, "ada", 1);
    let slot = gateway.sessions().next().unwrap().slot;
    gateway.handle_event(NOW, Event::EpochWanted { slot });
    heard(&mut gateway, NOW, 1);
    effects(&mut gateway);
    // A shard asked before it heard of the epoch.
    gateway.handle_event(NOW + Duration::from_millis(999), Event::EpochWanted { slot });
    assert_eq!(effects(&mut gateway).len(), 0);
    gateway.handle_event(NOW + Duration::from_secs(1), Event::EpochWanted { slot });
    assert_eq!(outline(&effects(&mut gateway)), "s");
}

#[test]
fn wakes_are_rare_and_none_is_lost() {
    let mut gateway = gateway(config(2));
    login(&mut gateway, 1, "ada", 1);
    heard(&mut gateway, NOW, 1);
    effects(&mut gateway);
    let slot = gateway.sessions().next().unwrap().slot;
    let asked = NOW + Duration::from_secs(1);
    for _ in 0..3 {
        gateway.handle_event(asked, Event::EpochWanted { slot });
    }
    assert_eq!(outline(&effects(&mut gateway)), "s");
    assert_eq!(gateway.poll_timeout(), Some((asked + Duration::from_secs(1), Reason::Wake)));
    gateway.handle_timeout(asked + Duration::from_secs(1));
    assert_eq!(outline(&effects(&mut gateway)), "s", "the one held back");
    gateway.handle_timeout(NOW + Duration::from_secs(5));
    assert_eq!(outline(&effects(&mut gateway)), "");
}

#[test]
fn messages_out_of_place_close_the_connection_only() {
    let mut gateway = gateway(config(1));
    let answer = login(&mut gateway, 1, "ada", 1);
    gateway.handle_message(ConnectionId(1), &Message::Unknown(99));
    assert_eq!(effects(&mut gateway).len(), 0, "a later version may send it");
    gateway.handle_message(ConnectionId(9), &Message::Bye);
    assert_eq!(outline(&effects(&mut gateway)), "sx", "a stranger ends nothing");
    gateway.handle_message(ConnectionId(1), &Message::Wake);
    assert_eq!(outline(&effects(&mut gateway)), "sx");
    assert_eq!(gateway.session_of(ConnectionId(1)), None);
    assert!(attach(&mut gateway, NOW, 2, &answer).is_ok(), "the session is kept");
    gateway.handle_message(ConnectionId(2), &Message::Bye);
    assert_eq!(outline(&effects(&mut gateway)), "CFxe");
}

#[test]
fn a_network_change_is_sent_to_affected_clients() {
    let mut gateway = gateway(config(1));
    login(&mut gateway, 1, "ada", 1);
    login(&mut gateway, 2, "bob", 2);
    gateway.connection_lost(ConnectionId(2));
    let policy = Arc::new(Policy::default());
    let mut set_network = |network| {
        let profiles = ProfileSettings { network, max_sessions_per_user: 2 }.alone();
        gateway.set_profiles(&policy, profiles, |_| Principal::default());
        effects(&mut gateway)
    };
    let unchanged = set_network(Network::default());
    let [Effect::Command { command: Command::Access(access), .. }] = &unchanged[..] else {
        panic!("{unchanged:?}")
    };
    assert_eq!(access.principals.len(), 0);
    let effects = set_network(Network { mtu: Some(1300), ..Network::default() });
    let [_, Effect::Send { connection: ConnectionId(1), message: Message::Update(update) }] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!((update.network.mtu, update.network.ipv4), (Some(1300), Some([10, 0, 0, 1].into())));
}

#[test]
fn a_client_gets_as_many_routes_as_it_can_take() {
    let routes: Vec<_> = (0..1_024_u32)
        .map(|n| AsText(ipnet::IpNet::new(Ipv4Addr::from(n << 8).into(), 24).unwrap()))
        .collect();
    let network = Network { routes: List::new(routes.clone()).unwrap(), ..Network::default() };
    let settings = |mtu| ProfileSettings {
        network: Network { mtu: Some(mtu), ..network.clone() },
        max_sessions_per_user: 2,
    };
    for (features, given) in [(0b01, ROUTES_IN_MESSAGE), (0b01 | FEATURE_MORE_ROUTES, routes.len())] {
        let features_of_gateway = 0b11 | FEATURE_MORE_ROUTES;
        let config = Config { features: features_of_gateway, profiles: settings(1400).alone(), ..config(1) };
        let mut gateway = gateway(config);
        let offer = Offer { features, ..offer(2) };
        let id = gateway.login(NOW, ConnectionId(1), who("ada", 1), &offer, secret()).unwrap();
        let answer = established(&effects(&mut gateway));
        assert_eq!(answer.network.routes[..], routes[..given]);
        assert_eq!(gateway.routes_left_out(id), routes.len() - given);
        let policy = Arc::new(Policy::default());
        gateway.set_profiles(&policy, settings(1300).alone(), |_| Principal::default());
        let updates = effects(&mut gateway).into_iter().filter_map(|effect| match effect {
            Effect::Send { message: Message::Update(update), .. } => Some(update.network.routes.len()),
            _ => None,
        });
        assert_eq!(updates.collect::<Vec<_>>(), [given]);
    }
}

#[test]
fn a_restored_session_is_attached_to_without_a_login() {
    let mut before = gateway(config(1));
    before.login(NOW, ConnectionId(1), who("ada", 1), &offer(2), secret()).unwrap();
    let effects_before = effects(&mut before);
    let answer = established(&effects_before);
    let record = effects_before.into_iter().find_map(|effect| match effect {
        Effect::Persist(record) => Some(record),
        _ => None,
    });
    let record = record.unwrap();
    let mut after = gateway(config(1));
    assert!(after.restore(NOW, record.clone()));
    assert!(!after.restore(NOW, record), "it is there already");
    assert_eq!(effects(&mut after).len(), 0, "the shards hear of it when its client comes");
    let again = attach(&mut after, NOW, 1, &answer).unwrap();
    assert_eq!((again.session, again.epoch), (answer.session, 2));
}

#[test]
fn a_new_principal_reaches_every_shard_that_has_the_session_and_one_device_ends_alone() {
    let mut gateway = gateway(config(2));
    login(&mut gateway, 1, "ann", 1);
    login(&mut gateway, 2, "ann", 2);
    login(&mut gateway, 3, "bob", 3);
    let principal = crate::policy::Names::default().principal("ann", ["lab"]);
    let ann = UserName::new("ann").unwrap();
    let sessions: Vec<_> = gateway.sessions().filter(|session| session.user == ann).collect();
    gateway.set_principals(sessions.iter().map(|session| (session.id, principal.clone())));
    let mut shards = Vec::new();
    for effect in effects(&mut gateway) {
        let Effect::Command { shard, command: Command::Access(Access { policy: None, principals: sent }) } =
            effect
        else {
            panic!("{effect:?}")
        };
        assert_eq!(
            sent.iter().map(|(_, principal)| principal.clone()).collect::<Vec<_>>(),
            [&principal; 2].map(Clone::clone)
        );
        shards.push(shard);
    }
    assert_eq!(shards, [0, 1]);
    assert_eq!(gateway.end(&Selector::Device(ann.clone(), DeviceId([7; 16])), Code::Kicked, ""), 0);
    assert_eq!(gateway.end(&Selector::Device(ann, DeviceId([1; 16])), Code::Kicked, ""), 1);
    assert_eq!(gateway.sessions().count(), 2);
}

#[test]
fn policy_and_principals_change_in_one_command_and_before_the_network_does() {
    let mut gateway = gateway(config(2));
    login(&mut gateway, 1, "ann", 1);
    login(&mut gateway, 2, "bob", 2);
    let mut names = crate::policy::Names::new();
    let (staff, guests) = (names.profile("staff"), names.profile("guests"));
    let settings = |mtu| ProfileSettings {
        network: Network { mtu: Some(mtu), ..Network::default() },
        max_sessions_per_user: 2,
    };
    let profiles: Profiles = [(staff, settings(1400)), (guests, settings(1300))].into();
    let ids: Vec<_> = gateway.sessions().map(|session| (session.id, session.user.to_string())).collect();
    let policy = Arc::new(Policy::default());
    gateway.set_profiles(&policy, profiles, |id| {
        let ann = ids.iter().any(|(session, user)| *session == id && user == "ann");
        Principal::default().in_profile(if ann { staff } else { guests })
    });
    let changed = effects(&mut gateway);
    let [
        Effect::Command { shard: 0, command: Command::Access(first) },
        Effect::Command { shard: 1, command: Command::Access(_) },
        Effect::Send { message: Message::Update(of_ann), .. },
        Effect::Send { message: Message::Update(of_bob), .. },
    ] = &changed[..]
    else {
        panic!("{changed:?}")
    };
    let profiles = first.principals.iter().map(|(_, principal)| principal.profile());
    assert!(first.policy.is_some() && profiles.eq([staff, guests]));
    assert_eq!((of_ann.network.mtu, of_bob.network.mtu), (Some(1400), Some(1300)));
}

#[test]
fn logins_and_attaches_need_a_profile() {
    let mut gateway = gateway(config(1));
    let gone = crate::policy::Names::new().profile("gone");
    let nobody = Authenticated { principal: Principal::default().in_profile(gone), ..who("ann", 1) };
    let refused = gateway.login(NOW, ConnectionId(1), nobody, &offer(1), secret());
    assert_eq!(refused, Err(Code::NoProfile));
    effects(&mut gateway);
    let answer = login(&mut gateway, 2, "bob", 2);
    let id = gateway.session_of(ConnectionId(2)).unwrap();
    gateway.set_principals([(id, Principal::default().in_profile(gone))]);
    assert_eq!(attach(&mut gateway, NOW, 3, &answer).map(drop), Err(Code::NoProfile));
}

/// The store, which leases addresses, knows better than a session whose lease is over, whatever the
/// clocks did.
#[test]
fn an_address_that_is_leased_to_another_ends_the_session_that_had_it() {
    let mut gateway = gateway(config(2));
    let first = login(&mut gateway, 1, "ann", 1);
    let same = Authenticated { addresses: who("ann", 1).addresses, ..who("bob", 2) };
    gateway.login(NOW, ConnectionId(2), same, &offer(2), secret()).unwrap();
    let effects = effects(&mut gateway);
    let ended: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Ended(ended) => Some((ended.session, ended.code)),
            _ => None,
        })
        .collect();
    assert_eq!(ended, [(first.session, Code::Token)]);
    let outline = outline(&effects);
    assert!(outline.find('C') < outline.rfind('O'), "it is closed before the other opens: {outline}");
    assert_eq!(gateway.sessions().count(), 1);
}

#[test]
fn a_session_may_have_a_shorter_idle_timeout() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    for (of_gateway, own, expected) in [
        (None, seconds(5), 5),
        (seconds(9), seconds(5), 5),
        (seconds(5), seconds(9), 5),
        (seconds(7), None, 7),
    ] {
        let mut gateway = gateway(Config { idle_timeout: of_gateway, ..config(1) });
        let who = Authenticated { idle_timeout: own, ..who("ann", 1) };
        gateway.login(NOW, ConnectionId(1), who, &offer(1), secret()).unwrap();
        heard(&mut gateway, NOW, 1);
        gateway.handle_timeout(NOW + Duration::from_millis(expected * 1_000 - 1));
        assert_eq!(gateway.sessions().count(), 1, "{of_gateway:?} {own:?}");
        effects(&mut gateway);
        gateway.handle_timeout(NOW + Duration::from_secs(expected));
        let ended = effects(&mut gateway).into_iter().find_map(|effect| match effect {
            Effect::Ended(ended) => Some(ended.code),
            _ => None,
        });
        assert_eq!(ended, Some(Code::Idle), "{of_gateway:?} {own:?}");
    }
}
