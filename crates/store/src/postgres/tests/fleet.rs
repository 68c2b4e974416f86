//! Gateways that share a database: who may join, and which of them carries a session.

use super::*;
use crate::{
    Carrier, Family, Fleet as _, Lease, LeaseOwner, Leases as _, Revocations as _, TakenAway, UserId,
};
use vpnd_proto::session::DeviceId;

/// The gateway of this number, of this fleet.
fn member(number: u8, fleet: &str) -> Holder {
    Holder { fleet: Some(fleet.to_owned()), ..gateway(number, number) }
}

/// A database with these gateways at work.
fn pair(database: &InDatabase) -> [Postgres; 2] {
    [1, 2].map(|number| database.open_as(member(number, "campus")).unwrap())
}

fn lease_of(user: UserId, device: u8, session: u8) -> Lease {
    let owner = LeaseOwner { user, device: DeviceId([device; 16]) };
    Lease { address: [10, 0, 0, 7].into(), owner, session: SessionId([session; 16]), until_s: 9_000 }
}

/// A session of ann's at this gateway, with an address.
fn session_at(store: &Postgres) -> SessionRecord {
    let id = store.add_user(&ann(), 1).unwrap();
    let session = SessionRecord { generation: store.next_generation().unwrap(), ..session_of(id, 1) };
    assert!(store.claim(&lease_of(id, 1, 1), 1_000).unwrap());
    assert!(store.add_session(&session, 0).unwrap());
    session
}

fn is_here(store: &Postgres, session: &SessionRecord) -> bool {
    store.carrier(session.id).unwrap().unwrap().is_here
}

#[test]
fn gateways_share_a_database_only_in_one_fleet() {
    let database = some!(InDatabase::new());
    let alone = database.gateway();
    let refused = sentence(database.open_as(member(2, "campus")));
    assert!(refused.contains("belongs to the gateway 'gw1'") && refused.contains("[fleet]"), "{refused}");
    drop(alone);
    let [first, second] = pair(&database);
    first.add_user(&ann(), 1).unwrap();
    second.add_user(&named("bob"), 1).unwrap();
    assert_eq!(second.users().unwrap().len(), 2);
    let other = sentence(database.open_as(member(3, "library")));
    assert!(other.contains("belongs to the fleet 'campus'") && other.contains("'library'"), "{other}");
    assert!(matches!(trouble(database.open_as(gateway(3, 3))), Trouble::OtherFleet { .. }));
    let twin = Holder { name: "gw1".to_owned(), ..member(3, "campus") };
    assert_eq!(trouble(database.open_as(twin)), Trouble::NameTaken("gw1".to_owned()));
    // A gateway of the fleet does not leave it while there are others.
    drop(second);
    assert!(matches!(trouble(database.open_as(gateway(2, 3))), Trouble::OtherFleet { .. }));
    assert!(database.open_as(Holder { instance: None, ..gateway(2, 1) }).is_ok(), "a command of a member");
    let stranger = database.open_as(Holder { instance: None, ..member(4, "campus") });
    assert!(matches!(trouble(stranger), Trouble::Foreign(_)));
    // One that was put out changes nothing more.
    database.sql("DELETE FROM vpnd.holder WHERE name = 'gw1'");
    assert_eq!(trouble(first.add_user(&named("eve"), 1)), Trouble::Foreign("gw2".to_owned()));
}

#[test]
fn of_two_moves_from_one_generation_one_succeeds() {
    let database = some!(InDatabase::new());
    let [first, second] = pair(&database);
    let third = database.open_as(member(3, "campus")).unwrap();
    let session = session_at(&first);
    assert_eq!(
        first.carrier(session.id).unwrap(),
        Some(Carrier { generation: session.generation, is_here: true })
    );
    let (id, generation) = (session.id, session.generation);
    let moved = std::thread::scope(|scope| {
        let moving =
            [&second, &third].map(|store| scope.spawn(move || store.move_here(id, generation).unwrap()));
        moving.map(|moving| moving.join().unwrap())
    });
    assert_eq!(moved.iter().flatten().count(), 1, "{moved:?}");
    assert_eq!(
        [&first, &second, &third].map(|store| is_here(store, &session)).map(usize::from),
        [0, usize::from(moved[0].is_some()), usize::from(moved[1].is_some())]
    );
    let lost = TakenAway { session: session.id, generation: session.generation };
    assert_eq!(first.taken_away().unwrap(), [lost]);
    assert!(second.taken_away().unwrap().is_empty() && third.taken_away().unwrap().is_empty());
    assert!(moved.iter().flatten().all(|generation| *generation > session.generation));
}

#[test]
fn a_gateway_that_has_lost_a_session_changes_nothing_of_it() {
    let database = some!(InDatabase::new());
    let [first, second] = pair(&database);
    let session = session_at(&first);
    let moved = second.move_here(session.id, session.generation).unwrap().unwrap();
    let stale = Tokens::new(TokenHash::from_bytes([9; 32]));
    let changes = [SessionChange::Tokens(session.id, stale, 7), SessionChange::End(session.id)];
    assert_eq!(first.change_sessions(&changes, 1_500).unwrap(), [false, true]);
    let kept = second.session(session.id, 1_500).unwrap().expect("it goes on");
    assert_eq!((kept.tokens, kept.epoch, kept.generation), (session.tokens, session.epoch, moved));
    assert_eq!(second.leases(Family::V4).unwrap()[0].until_s, 9_000, "and keeps its address");
    assert_eq!(first.missing_sessions(&[session.id], 1_500).unwrap(), [session.id]);
    assert!(first.live_sessions(1_500).unwrap().is_empty());
    assert_eq!(second.live_sessions(1_500).unwrap().len(), 1);
    let confirmed = SessionChange::Tokens(session.id, stale, 8);
    assert_eq!(second.change_sessions(&[confirmed], 1_500).unwrap(), [true]);
    assert_eq!(second.change_sessions(&[SessionChange::End(session.id)], 1_500).unwrap(), [true]);
    assert_eq!(second.session(session.id, 1_500).unwrap(), None);
}

#[test]
fn no_other_device_gets_an_address_before_the_gateway_that_lost_it_has_dropped_it() {
    let database = some!(InDatabase::new());
    let [first, second] = pair(&database);
    let session = session_at(&first);
    let bob = second.add_user(&named("bob"), 1).unwrap();
    second.move_here(session.id, session.generation).unwrap().unwrap();
    second.end_session(session.id, 1_500).unwrap();
    assert!(!second.claim(&lease_of(bob, 2, 2), 1_500).unwrap(), "packets may still go to ann's device");
    assert!(second.claim(&lease_of(session.user, 1, 3), 1_500).unwrap(), "which may have it again");
    second.release(SessionId([3; 16]), 1_600).unwrap();
    let lost = first.taken_away().unwrap();
    first.dropped(&lost).unwrap();
    assert!(first.taken_away().unwrap().is_empty());
    assert!(second.claim(&lease_of(bob, 2, 2), 1_600).unwrap());
}

#[test]
fn addresses_of_a_revoked_session_stay_until_its_gateway_has_ended_it() {
    let database = some!(InDatabase::new());
    let [first, second] = pair(&database);
    let session = session_at(&first);
    second.set_enabled("ann", false, 1_500).unwrap();
    assert!(second.orphaned(1_500).unwrap().is_empty(), "the first gateway may be cut off");
    assert_eq!(first.orphaned(1_500).unwrap().into_iter().collect::<Vec<_>>(), [session.id]);
    first.end_session(session.id, 1_600).unwrap();
    assert!(first.leases(Family::V4).unwrap().iter().all(|lease| !lease.is_live(1_600)));
    assert_eq!(database.sql("SELECT count(*) FROM vpnd.carriers"), "0");
}

#[test]
fn a_login_at_another_gateway_takes_the_place_of_the_devices_session() {
    let database = some!(InDatabase::new());
    let [first, second] = pair(&database);
    let session = session_at(&first);
    assert!(second.claim(&lease_of(session.user, 1, 2), 1_500).unwrap(), "one device, one address");
    let lost = TakenAway { session: session.id, generation: session.generation };
    assert_eq!(first.taken_away().unwrap(), [lost]);
    assert_eq!(first.session(session.id, 1_500).unwrap(), None);
}

#[test]
fn a_gateway_that_was_away_for_long_learns_that_it_missed_revocations() {
    let database = some!(InDatabase::new());
    let [first, second] = pair(&database);
    first.add_user(&ann(), 1).unwrap();
    for now_s in 0..200 {
        first.set_enabled("ann", now_s % 2 == 1, now_s).unwrap();
    }
    let last = first.last_revocation().unwrap();
    first.forget_revocations(last);
    assert_eq!(second.last_forgotten().unwrap(), 0, "others may not have read them");
    assert!(!second.revocations_since(0).unwrap().is_empty());
    first.change(|t| crate::sql::events::forget_until(t, last - 1).map(Ok)).unwrap();
    assert_eq!(second.last_forgotten().unwrap(), last - 1);
}
