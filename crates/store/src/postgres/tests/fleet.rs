//! Gateways that share a database: who may join, and which of them carries a session.

use super::*;
use crate::{
    Absences, Begun, Family, Fleet as _, GATEWAY_SILENCE_S, GatewayReport, HeldSession, Lease, LeaseOwner,
    Leases as _, Revocations as _, TakenAway, UserId,
};
use vpnd_proto::session::DeviceId;

/// The gateway of this number, of this fleet.
pub(super) fn member(number: u8, fleet: &str) -> Holder {
    Holder { fleet: Some(fleet.to_owned()), ..gateway(number, number) }
}

/// A database with these gateways at work.
fn pair(database: &InDatabase) -> [Postgres; 2] {
    [1, 2].map(|number| database.open_as(member(number, "campus")).unwrap())
}

pub(super) fn lease_of(user: UserId, device: u8, session: u8) -> Lease {
    let owner = LeaseOwner { user, device: DeviceId([device; 16]) };
    Lease { address: [10, 0, 0, 7].into(), owner, session: SessionId([session; 16]), until_s: 9_000 }
}

fn begun(store: &Postgres, user: UserId, device: u8, most: Option<u64>) -> Begun {
    let owner = LeaseOwner { user, device: DeviceId([device; 16]) };
    store.begin_session(owner, most, 1_000).unwrap()
}

/// A session of ann's at this gateway, with an address.
fn session_at(store: &Postgres) -> SessionRecord {
    let id = store.add_user(&ann(), 1).unwrap();
    let session = SessionRecord { generation: begun(store, id, 1, None).generation, ..session_of(id, 1) };
    assert!(store.claim(&lease_of(id, 1, 1), 1_000).unwrap());
    assert!(store.add_session(&session, 0).unwrap());
    session
}

fn held(store: &Postgres, session: &SessionRecord) -> HeldSession {
    store.held(&[session.id], 1_500).unwrap().remove(0).expect("there is such a session")
}

/// Moves a session that has this generation; its next one.
fn move_here(store: &Postgres, id: SessionId, generation: u64) -> Option<u64> {
    store.move_here(&[(id, generation)], 1_500).unwrap().first().map(|moved| moved.generation)
}

fn is_here(store: &Postgres, session: &SessionRecord) -> bool {
    held(store, session).is_here
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
    let stranger = |fleet: Option<&str>, name: &str| {
        let fleet = fleet.map(str::to_owned);
        database.open_as(Holder { instance: None, fleet, name: name.to_owned(), ..gateway(4, 4) })
    };
    let before_it_joins = stranger(Some("campus"), "gw4").expect("a command may look");
    assert_eq!(before_it_joins.users().unwrap().len(), 2);
    let not_joined = Trouble::NotJoined("campus".to_owned());
    assert_eq!(trouble(before_it_joins.add_user(&named("eve"), 1)), not_joined);
    assert_eq!(trouble(stranger(None, "gw4")), not_joined, "nor may others");
    assert!(matches!(trouble(stranger(Some("library"), "gw4")), Trouble::OtherFleet { .. }));
    assert_eq!(trouble(stranger(Some("campus"), "gw1")), Trouble::NameTaken("gw1".to_owned()));
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
    let found = held(&first, &session);
    assert_eq!((found.record.generation, found.is_here), (session.generation, true));
    let (id, generation) = (session.id, session.generation);
    let moved = std::thread::scope(|scope| {
        let moving = [&second, &third].map(|store| scope.spawn(move || move_here(store, id, generation)));
        moving.map(|moving| moving.join().unwrap())
    });
    assert_eq!(moved.iter().flatten().count(), 1, "{moved:?}");
    assert_eq!(
        [&first, &second, &third].map(|store| is_here(store, &session)).map(usize::from),
        [0, usize::from(moved[0].is_some()), usize::from(moved[1].is_some())]
    );
    let generation = moved.iter().flatten().next().copied().unwrap();
    assert_eq!(first.taken_away().unwrap(), [TakenAway { session: session.id, generation }]);
    assert!(second.taken_away().unwrap().is_empty() && third.taken_away().unwrap().is_empty());
    assert!(generation > session.generation);
}

#[test]
fn sessions_that_move_together_move_each_by_itself() {
    let database = some!(InDatabase::new());
    let [first, second] = pair(&database);
    let ann = first.add_user(&ann(), 1).unwrap();
    let bob = first.add_user(&named("bob"), 1).unwrap();
    let sessions: Vec<SessionRecord> = (1..=5)
        .map(|number| {
            let user = if number == 4 { bob } else { ann };
            let generation = begun(&first, user, number, None).generation;
            let address = [10, 0, 0, number].into();
            assert!(first.claim(&Lease { address, ..lease_of(user, number, number) }, 1_000).unwrap());
            let session = SessionRecord { generation, ..session_of(user, number) };
            assert!(first.add_session(&session, 0).unwrap());
            session
        })
        .collect();
    let ids: Vec<SessionId> = sessions.iter().rev().map(|session| session.id).collect();
    first.end_session(ids[0], 1_500).unwrap();
    let held = second.held(&ids, 1_500).unwrap();
    assert!(held[0].is_none(), "it is over");
    for (held, session) in held.iter().zip(sessions.iter().rev()).skip(1) {
        let held = held.as_ref().unwrap();
        assert_eq!((&held.record, held.is_here, held.user.id), (session, false, session.user));
        let leases: Vec<_> = held.leases.iter().map(|lease| (lease.session, lease.owner.device)).collect();
        assert_eq!(leases, [(session.id, session.device)]);
    }
    first.set_enabled("bob", false, 1_500).unwrap();
    assert!(second.held(&ids[1..2], 1_500).unwrap()[0].is_none(), "bob may have none");

    // The third has moved meanwhile, the fourth is bob's, the fifth is over.
    let third = database.open_as(member(3, "campus")).unwrap();
    assert!(move_here(&third, sessions[2].id, sessions[2].generation).is_some());
    let fresh = Tokens::new(TokenHash::from_bytes([9; 32]));
    assert!(first.set_tokens(sessions[0].id, &fresh, 7).unwrap());
    let known: Vec<_> = sessions.iter().map(|session| (session.id, session.generation)).collect();
    let mut moved = second.move_here(&known, 1_500).unwrap();
    moved.sort_by_key(|session| session.id);
    assert_eq!(moved.iter().map(|session| session.id).collect::<Vec<_>>(), [sessions[0].id, sessions[1].id]);
    assert_eq!((moved[0].tokens, moved[0].epoch), (fresh, 7), "as its last gateway has left it");
    assert!(moved.iter().all(|session| session.generation > sessions[4].generation));
    assert_eq!([0, 1, 2].map(|number| is_here(&second, &sessions[number])), [true, true, false]);
    assert_eq!(first.taken_away().unwrap().len(), 3);
    assert!(second.move_here(&known, 1_500).unwrap().is_empty(), "none has these generations any more");
    assert!(second.move_here(&[], 1_500).unwrap().is_empty() && second.held(&[], 1_500).unwrap().is_empty());
}

#[test]
fn a_gateway_that_has_lost_a_session_changes_nothing_of_it() {
    let database = some!(InDatabase::new());
    let [first, second] = pair(&database);
    let session = session_at(&first);
    let moved = move_here(&second, session.id, session.generation).unwrap();
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
    move_here(&second, session.id, session.generation).unwrap();
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
    assert_eq!(
        first.taken_away().unwrap().iter().map(|taken| taken.session).collect::<Vec<_>>(),
        [session.id]
    );
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

/// Waits until the gateway has its connection for changes again.
fn changes_again(store: &Postgres) {
    let until = Instant::now() + Duration::from_secs(30);
    while let Err(error) = store.report(&report(0)) {
        assert!(error.is_for_now() && Instant::now() < until, "{error}");
        sleep(Duration::from_millis(20));
    }
}

/// Ends the connections for changes; a gateway notices by its next change.
fn disconnect(database: &InDatabase) {
    database.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    );
}

#[test]
fn a_database_that_lost_what_it_had_acknowledged_is_noticed_and_leases_nothing_for_a_while() {
    let database = some!(InDatabase::new());
    let [first, second] = pair(&database);
    let session = session_at(&first);
    let histories = || [&first, &second].map(crate::Revocations::history);
    let before = histories();
    // A lost connection is no lost change.
    disconnect(&database);
    [&first, &second].into_iter().for_each(changes_again);
    assert_eq!(histories(), before);
    let lease =
        |last: u8| Lease { address: [10, 0, 0, last].into(), ..lease_of(UserId([last; 16]), last, last) };
    assert!(first.claim(&lease(8), 1_500).unwrap());

    let kept = database.sql("SELECT max(number) FROM vpnd.marks");
    let moved = move_here(&second, session.id, session.generation).unwrap();
    second.report(&report(1)).unwrap();
    // A backup of the moment before the move has this.
    database.sql(&format!(
        "DELETE FROM vpnd.marks WHERE number > {kept}; DELETE FROM vpnd.leaving;
         UPDATE vpnd.fleet SET generation = {0}; UPDATE vpnd.carriers SET generation = {0},
         gateway = (SELECT gateway FROM vpnd.holder WHERE name = 'gw1')",
        session.generation
    ));
    disconnect(&database);
    [&first, &second].into_iter().for_each(changes_again);
    let after = histories();
    assert_eq!(after[0], before[0], "the first has made nothing that is lost");
    assert_ne!(after[1], before[1], "its sessions are compared with the database");
    assert_eq!(second.missing_sessions(&[session.id], 1_500).unwrap(), [session.id]);
    let refused = sentence(second.claim(&lease(9), 1_500));
    assert!(refused.contains("was restored") && refused.contains("new logins wait"), "{refused}");
    let next = begun(&first, UserId([9; 16]), 9, None).generation;
    assert!(next > moved, "a generation is given once: {next} after {moved}");
    // It is said once: what the gateway has done since is there.
    disconnect(&database);
    [&first, &second].into_iter().for_each(changes_again);
    assert_eq!(histories(), after);
}

#[test]
fn a_restored_database_is_noticed_by_a_gateway_that_starts_on_it() {
    let database = some!(InDatabase::new());
    let first = database.open_as(member(1, "campus")).unwrap();
    first.report(&report(0)).unwrap();
    drop(first);
    let open = || database.open_as(member(1, "campus")).unwrap();
    let history = crate::Revocations::history(&open());
    database.sql("DELETE FROM vpnd.marks");
    assert_ne!(crate::Revocations::history(&open()), history);
    assert_eq!(crate::Revocations::history(&open()), history, "it goes on from there");
}

/// Runs in a separate process, for a process has one clock.
#[test]
fn a_gateway_whose_clock_is_minutes_apart_joins_no_fleet() {
    const IS_APART: &str = "VPND_TEST_CLOCK_APART";
    if std::env::var_os(IS_APART).is_none() {
        let name = "postgres::tests::fleet::a_gateway_whose_clock_is_minutes_apart_joins_no_fleet";
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        let output = test.args(["--exact", name]).env(IS_APART, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let origin = vpnd_sys::clock::Origin::new(vpnd_sys::clock::wall_s() + 180, vpnd_sys::clock::now());
    vpnd_sys::clock::adopt(origin).unwrap();
    let database = some!(InDatabase::new());
    let refused = sentence(database.open_as(member(1, "campus")));
    assert!(refused.contains("has a clock that is 1") && refused.contains("chrony"), "{refused}");
    database.open_as(gateway(1, 1)).expect("it shares its sessions with no other clock");
}

#[test]
fn a_server_that_is_read_only_by_default_is_written_all_the_same() {
    let database = some!(InDatabase::new());
    database.sql(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name));
    let [first, second] = pair(&database);
    let session = session_at(&first);
    assert!(move_here(&second, session.id, session.generation).is_some());
    first.report(&report(0)).unwrap();
}

pub(super) fn report(sessions: u64) -> GatewayReport {
    GatewayReport {
        address: Some([192, 0, 2, 1].into()),
        addresses: vec![[198, 51, 100, 1].into(), "2001:db8::1".parse().unwrap()],
        version: "1.2.3".to_owned(),
        sessions,
        load_percent: 7,
        is_draining: Some(false),
        absences: Absences::default(),
    }
}

#[test]
fn gateways_are_known_by_their_reports_and_their_connections() {
    let database = some!(InDatabase::new());
    let [first, second] = pair(&database);
    first.report(&report(3)).unwrap();
    let seen = second.gateways().unwrap();
    assert_eq!(seen.iter().map(|state| state.name.as_str()).collect::<Vec<_>>(), ["gw1", "gw2"]);
    assert_eq!([seen[0].is_here, seen[1].is_here], [false, true]);
    assert_eq!((seen[0].sessions, seen[0].load_percent, seen[0].version.as_str()), (3, 7, "1.2.3"));
    assert_eq!((seen[0].address, seen[1].address), (Some([192, 0, 2, 1].into()), None));
    assert_eq!((&seen[0].addresses, &seen[1].addresses), (&report(3).addresses, &Vec::new()));
    first.report(&GatewayReport { address: None, addresses: Vec::new(), ..report(3) }).unwrap();
    let bare = &second.gateways().unwrap()[0];
    assert!(
        bare.address.is_none_or(|address| address.is_loopback()) && bare.addresses.is_empty(),
        "{bare:?}"
    );
    assert!(seen[0].is_alive() && !seen[1].is_alive(), "the second has reported nothing yet: {seen:?}");
    assert_eq!((seen[1].heard_s, seen[1].is_connected), (None, true));
    let silence_s = GATEWAY_SILENCE_S + 1;
    database.sql(&format!("UPDATE vpnd.holder SET heard = heard - interval '{silence_s} seconds'"));
    assert!(!second.gateways().unwrap()[0].is_alive(), "it is connected, and stands still");
    first.report(&report(3)).unwrap();
    drop(first);
    let gone = || {
        let states = second.gateways().unwrap();
        (!states[0].is_connected).then_some(states)
    };
    let states = std::iter::repeat_with(gone).flatten().next().unwrap();
    assert!(!states[0].is_alive(), "its last report is fresh, and it is gone");
}

#[test]
fn of_two_gateways_that_would_be_drained_one_stays() {
    let database = some!(InDatabase::new());
    let [first, second] = pair(&database);
    assert!(!first.drain_unless_last().unwrap(), "the other one has reported nothing");
    first.report(&report(0)).unwrap();
    second.report(&report(0)).unwrap();
    let drained = std::thread::scope(|scope| {
        let draining = [&first, &second].map(|store| scope.spawn(|| store.drain_unless_last().unwrap()));
        draining.map(|draining| draining.join().unwrap())
    });
    assert_eq!(drained.iter().filter(|drained| **drained).count(), 1, "{drained:?}");
    // A cancelled drain is the next report.
    first.report(&report(0)).unwrap();
    second.report(&report(0)).unwrap();
    assert!(second.drain_unless_last().unwrap());
}

#[test]
fn the_gateways_of_a_fleet_have_one_wireguard_key() {
    let database = some!(InDatabase::new());
    let first = database.open_as(member(1, "campus")).unwrap();
    assert!(first.agree_on_wireguard_key(&[1; 32]).unwrap());
    assert!(first.agree_on_wireguard_key(&[2; 32]).unwrap(), "it is alone");
    let second = database.open_as(member(2, "campus")).unwrap();
    assert!(!second.agree_on_wireguard_key(&[1; 32]).unwrap());
    assert!(second.agree_on_wireguard_key(&[2; 32]).unwrap());
    assert!(!first.agree_on_wireguard_key(&[1; 32]).unwrap(), "the second goes by the other one");

    // Another key after a break-in: the others are stopped, and no device goes by the old one.
    first.add_user(&ann(), 1).unwrap();
    first.add_wireguard_device("ann", &phone(), 1).unwrap();
    drop(second);
    while first.gateways().unwrap()[1].is_connected {
        sleep(Duration::from_millis(10));
    }
    assert!(!first.agree_on_wireguard_key(&[3; 32]).unwrap(), "it would be cut off");
    database.sql("DELETE FROM vpnd.wireguard_devices");
    assert!(first.agree_on_wireguard_key(&[3; 32]).unwrap());
    let second = database.open_as(member(2, "campus")).unwrap();
    assert!(!second.agree_on_wireguard_key(&[2; 32]).unwrap());
    assert!(second.agree_on_wireguard_key(&[3; 32]).unwrap());
}

fn phone() -> crate::NewWireGuardDevice {
    crate::NewWireGuardDevice {
        public_key: [2; 32],
        id: DeviceId([2; 16]),
        name: "phone".to_owned(),
        preshared: None,
        most: 64,
        addresses: Vec::new(),
    }
}

#[test]
fn a_handshake_that_one_gateway_has_answered_is_a_replay_at_the_others() {
    let database = some!(InDatabase::new());
    let [first, second] = pair(&database);
    first.add_user(&ann(), 1).unwrap();
    first.add_wireguard_device("ann", &phone(), 1).unwrap();
    let shown = |time: u8, is_own| crate::HandshakeShown { public_key: [2; 32], time: [time; 12], is_own };
    assert_eq!(first.keep_handshakes(&[shown(5, false), shown(5, true)]).unwrap(), [true; 2]);
    assert_eq!(
        second.keep_handshakes(&[shown(5, false), shown(4, false), shown(5, true)]).unwrap(),
        [false; 3]
    );
    assert_eq!(second.keep_handshakes(&[shown(6, false), shown(6, true)]).unwrap(), [true; 2]);
}

#[test]
fn reports_and_dropped_sessions_are_those_of_their_gateway() {
    let database = some!(InDatabase::new());
    let [first, second] = pair(&database);
    let ann = first.add_user(&ann(), 1).unwrap();
    for (store, number) in [(&first, 1), (&first, 2), (&first, 3), (&second, 4)] {
        let generation = begun(store, ann, number, None).generation;
        let address = [10, 0, 0, number].into();
        assert!(store.claim(&Lease { address, ..lease_of(ann, number, number) }, 1_000).unwrap());
        let session = SessionRecord { generation, ..session_of(ann, number) };
        assert!(store.add_session(&session, 0).unwrap());
    }
    let ids = |numbers: &[u8]| numbers.iter().map(|number| SessionId([*number; 16])).collect::<Vec<_>>();
    let reported = |are_new, away: &[u8], back: &[u8]| {
        let absences = Absences { are_new, away: ids(away), back: ids(back) };
        first.report(&GatewayReport { absences, ..report(0) }).unwrap();
        database.sql("SELECT string_agg(away::text, '' ORDER BY session) FROM vpnd.carriers")
    };
    assert_eq!(reported(false, &[1, 3, 4], &[2]), "1010", "the fourth is the other's");
    assert_eq!(reported(false, &[2], &[1, 3]), "0100");
    assert_eq!(reported(true, &[], &[3]), "1100", "the others have not come back since its start");

    let known = [1, 2, 3].map(|number| {
        let held = first.held(&ids(&[number]), 1_500).unwrap().remove(0).unwrap();
        (held.record.id, held.record.generation)
    });
    assert_eq!(second.move_here(&known, 1_500).unwrap().len(), 3);
    let taken = first.taken_away().unwrap();
    second.dropped(&taken).unwrap();
    assert_eq!(first.taken_away().unwrap().len(), 3, "it is not the other's to say");
    let earlier = TakenAway { generation: taken[0].generation - 1, ..taken[0] };
    first.dropped(&[earlier, taken[1], taken[2]]).unwrap();
    assert_eq!(first.taken_away().unwrap(), [taken[0]], "it has come and gone again meanwhile");
}
