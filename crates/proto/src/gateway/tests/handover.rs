//! Sessions that go on in another process: nothing is missing, nothing that is torn is taken.

use super::*;
use crate::gateway::handover::{HandedSession, NotTaken};
use crate::plane::{Heard, Progress};
use crate::policy::Principal;
use crate::rate::SessionLimits;

const SHARDS: usize = 2;

/// A gateway with a session that was heard, and how far its lanes have come.
fn running() -> (Gateway, Established, Vec<Vec<Progress>>) {
    let mut old = gateway(config(SHARDS));
    old.login(NOW, ConnectionId(1), who("ada", 1), &offer(2), secret()).unwrap();
    let answer = effects(&mut old);
    let token = established(&answer);
    let mut shards = vec![Vec::new(); SHARDS];
    for (shard, spec) in installs(answer) {
        let heard = spec.receive.iter().map(|receive| {
            let (index, lane) = (receive.index, receive.lanes[0]);
            Heard { index, lane, highest: Some(41), failed_opens: 3 }
        });
        let (slot, epoch) = (spec.slot, spec.epoch);
        shards[shard].push(Progress { slot, epoch, unused: 1_000 + shard as u64, heard: heard.collect() });
    }
    heard(&mut old, NOW, 1);
    effects(&mut old);
    (old, token, shards)
}

/// Returns what arrives in the other process.
fn handed(gateway: &Gateway, progress: Vec<Vec<Progress>>) -> HandedSession {
    let sessions = gateway.hand_over(progress);
    let [session] = &sessions[..] else { panic!("{} sessions", sessions.len()) };
    minicbor::decode(&minicbor::to_vec(session).unwrap()).unwrap()
}

#[test]
fn a_session_of_a_wireguard_device_without_keys_ends_soon() {
    let mut old = gateway(config(SHARDS));
    old.admit_wireguard(NOW, who("ann", 1), 1_280).unwrap();
    let (mut session, mut next) = (handed(&old, Vec::new()), gateway(config(SHARDS)));
    session.lose_wireguard_keys();
    next.take_over(NOW, session, Principal::default(), SessionLimits::default()).unwrap();
    next.handle_timeout(NOW + Duration::from_secs(539));
    assert_eq!(next.sessions().count(), 1, "it may come back");
    next.handle_timeout(NOW + Duration::from_secs(540));
    assert_eq!(next.sessions().count(), 0);
}

#[test]
fn a_session_of_a_wireguard_device_goes_on_in_another_process() {
    let mut old = gateway(config(SHARDS));
    let slot = old.admit_wireguard(NOW, who("ann", 1), 1_280).unwrap();
    old.note_wireguard_endpoint(slot, endpoint("198.51.100.1:1"));
    old.note_wireguard_two_places(NOW, slot);
    let before = old.sessions().next().unwrap();
    let mut next = take(handed(&old, Vec::new())).unwrap();
    next.handle_timeout(NOW + Duration::from_secs(540));
    let after = next.sessions().next().unwrap();
    assert_eq!(
        (after.wireguard, after.endpoints, after.last_handshake, after.two_places, after.path_size),
        (true, before.endpoints, before.last_handshake, before.two_places, before.path_size)
    );
}

#[test]
fn the_limit_of_a_session_is_handed_over() {
    let mut old = gateway(config(SHARDS));
    let idle_timeout = Some(Duration::from_millis(1_500));
    let who = Authenticated { idle_timeout, ..who("ann", 1) };
    old.login(NOW, ConnectionId(1), who, &offer(2), secret()).unwrap();
    assert_eq!(handed(&old, Vec::new()).idle_timeout_ms, Some(1_500));
    let (old, _, progress) = running();
    let mut session = handed(&old, progress);
    session.idle_timeout_ms = Some(1_500);
    let mut next = take(session).unwrap();
    next.handle_timeout(NOW + Duration::from_millis(1_500));
    assert_eq!(next.sessions().count(), 0);
}

fn take(session: HandedSession) -> Result<Gateway, NotTaken> {
    let mut next = gateway(config(SHARDS));
    next.take_over(NOW, session, Principal::default(), SessionLimits::default()).map(|_| next)
}

#[test]
fn a_session_continues_in_another_process() {
    let (old, token, progress) = running();
    let before = old.sessions().next().unwrap();
    let mut next = take(handed(&old, progress.clone())).unwrap();
    let after = next.sessions().next().unwrap();
    assert_eq!(
        (after.id, after.user, after.device, after.addresses, after.endpoints, after.deadline),
        (before.id, before.user, before.device, before.addresses, before.endpoints, before.deadline)
    );
    assert_eq!((after.epoch, after.suite, after.connection), (Some(1), before.suite, None));
    let effects = effects(&mut next);
    assert_eq!(outline(&effects), "OI?H", "keys, then how far they are used, then where the client is");
    let resumed: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Command { command: Command::Resume(progress), .. } => Some(vec![progress.clone()]),
            _ => None,
        })
        .collect();
    assert_eq!(resumed, progress, "no lane begins anew");
    assert!(next.sessions.indexes.len() == 2, "its indexes are taken");
    attach(&mut next, NOW, 9, &token).expect("its token is good");
}

#[test]
fn the_size_that_a_path_carries_is_still_known() {
    let (mut old, _, progress) = running();
    let slot = old.sessions().next().unwrap().slot;
    old.handle_event(NOW, Event::PathStated { slot, size: 1_311 });
    let mut next = take(handed(&old, progress)).unwrap();
    assert_eq!(next.sessions().next().unwrap().path_size, Some(1_311));
    let stated = effects(&mut next).into_iter().filter_map(|effect| match effect {
        Effect::Command { shard, command: Command::PathSize { size, .. } } => Some((shard, size)),
        _ => None,
    });
    assert_eq!(stated.collect::<Vec<_>>(), [(0, 1_311), (1, 1_311)], "all shards");
}

#[test]
fn flows_are_still_known() {
    use crate::flows::{FlowKey, Opener};
    use vpnd_packet::Packet;

    let udp = [
        &[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2][..],
        &[0, 7, 0, 53, 0, 8, 0, 0],
    ];
    let udp = udp.concat();
    let reply = [&udp[..12], &udp[16..20], &udp[12..16], &[0, 53, 0, 7, 0, 8, 0, 0]].concat();
    let key = FlowKey::of_reply(&Packet::parse(&reply).unwrap()).unwrap();
    let (old, _, progress) = running();
    let flows_of = |gateway: &Gateway| Arc::clone(&gateway.sessions.table.iter().next().unwrap().flows);
    flows_of(&old).enter(NOW, Opener::Client, &Packet::parse(&udp).unwrap());
    let session = handed(&old, progress.clone());
    let next = flows_of(&take(session).unwrap());
    assert!(next.knows(NOW, Opener::Client, &key));

    let mut session = handed(&old, progress);
    session.flows = vec![1; 30].into();
    assert_eq!(take(session).err(), Some(NotTaken::Torn));
}

#[test]
fn deadlines_stay_where_they_were() {
    let (old, _, progress) = running();
    let mut next = take(handed(&old, progress)).unwrap();
    effects(&mut next);
    let expires = Timers::default().gateway_erases(NOW);
    next.handle_timeout(NOW + Duration::from_secs(189));
    assert!(next.sessions().next().unwrap().epoch.is_none(), "not heard for as long as a peer may be silent");
    let (old, _, progress) = running();
    let mut next = gateway(config(SHARDS));
    let late = NOW + Duration::from_secs(150);
    next.take_over(late, handed(&old, progress), Principal::default(), SessionLimits::default()).unwrap();
    next.handle_timeout(late);
    assert_eq!(next.sessions().next().unwrap().epoch, Some(1));
    next.handle_timeout(expires);
    assert_eq!(next.sessions().next().unwrap().epoch, None, "a handover gives a key no more time");
    next.handle_timeout(NOW + Duration::from_secs(1000));
    assert_eq!(next.sessions().count(), 0, "nor a session");
}

#[test]
fn an_epoch_that_is_not_whole_is_refused() {
    let torn: [fn(&mut HandedSession); 6] = [
        |session| session.current.as_mut().unwrap().progress.truncate(1),
        |session| session.current.as_mut().unwrap().progress[1].heard.clear(),
        |session| session.current.as_mut().unwrap().progress[0].heard[0].lane = 1,
        |session| session.current.as_mut().unwrap().peer_indexes.clear(),
        |session| session.current.as_mut().unwrap().endpoints.clear(),
        |session| session.current.as_mut().unwrap().indexes.clear(),
    ];
    for (number, tear) in torn.into_iter().enumerate() {
        let (old, _, progress) = running();
        let mut session = handed(&old, progress);
        tear(&mut session);
        assert_eq!(take(session).map(drop), Err(NotTaken::Torn), "{number}");
    }
}

#[test]
fn a_session_handed_over_twice_is_refused() {
    let (old, _, progress) = running();
    let mut next = take(handed(&old, progress.clone())).unwrap();
    let again = handed(&old, progress.clone());
    assert_eq!(
        next.take_over(NOW, again, Principal::default(), SessionLimits::default()),
        Err(NotTaken::Twice)
    );
    for (ipv4, reason) in
        [(old.sessions().next().unwrap().addresses.ipv4, NotTaken::Twice), (None, NotTaken::IndexTaken)]
    {
        let mut other = handed(&old, progress.clone());
        (other.id, other.device, other.ipv4) = (SessionId([9; 16]), DeviceId([9; 16]), ipv4);
        let taken = next.take_over(NOW, other, Principal::default(), SessionLimits::default());
        assert_eq!(taken, Err(reason));
    }
}

#[test]
fn an_epoch_without_its_progress_is_not_handed_over() {
    let (old, token, mut progress) = running();
    progress[1].clear();
    let mut next = take(handed(&old, progress)).unwrap();
    assert_eq!(next.sessions().next().unwrap().epoch, None);
    assert_eq!(outline(&effects(&mut next)), "O");
    attach(&mut next, NOW, 9, &token).expect("the session is there");
}

#[test]
fn a_suite_that_is_not_allowed_any_more_ends_the_epoch_alone() {
    let (old, token, progress) = running();
    let suites = vec![local(Suite::ChaCha20Poly1305)];
    let mut next = gateway(Config { suites, ..config(SHARDS) });
    next.take_over(NOW, handed(&old, progress), Principal::default(), SessionLimits::default()).unwrap();
    assert_eq!(next.sessions().next().unwrap().epoch, None);
    assert_eq!(token.session, next.sessions().next().unwrap().id);
}
