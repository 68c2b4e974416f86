//! A store that another process holds.

use std::fs;
use std::time::Instant;

use super::*;
use crate::sqlite::Sqlite;
use crate::sqlite::connections::open;
use crate::{
    HandshakeTime, NewUser, NewWireGuardDevice, PasswordHash, Revocations as _, Sessions as _, UserId,
    Users as _, WireGuardDevices as _,
};
use vpnd_config::factor::Factors;
use vpnd_proto::session::DeviceId;

const NOW_S: u64 = 1_100;

fn tokens(settled: u8, fresh: u8) -> Tokens {
    Tokens::restore(TokenHash::from_bytes([settled; 32]), Some(TokenHash::from_bytes([fresh; 32])))
}

fn record(user: UserId, id: u8) -> SessionRecord {
    SessionRecord {
        id: SessionId([id; 16]),
        user,
        device: DeviceId([id; 16]),
        epoch: 1,
        tokens: tokens(1, 2),
        started_s: 1_000,
        expires_s: 2_000,
        factors: Factors::PASSWORD,
        auth_time_s: 1_000,
        generation: 0,
        most: None,
    }
}

/// A store with a user and the sessions 1 to 3, and another process's connection to it.
fn store(directory: &Path) -> (Sqlite, UserId, Connection) {
    let path = directory.join("vpnd.db");
    let store = Sqlite::open_or_create(&path).unwrap();
    let user = store.add_user(&NewUser::new("ann", PasswordHash::new("x".to_owned())), 1_000).unwrap();
    for id in 1..=3 {
        assert!(store.add_session(&record(user, id), 0).unwrap());
    }
    let other = open(&path).unwrap();
    (store, user, other)
}

fn hold(other: &Connection) {
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
}

fn release(other: &Connection) {
    other.execute_batch("COMMIT").unwrap();
}

fn change(store: &Sqlite, change: SessionChange) -> Result<Vec<bool>, StoreError> {
    store.change_sessions(&[change], NOW_S)
}

fn new_tokens(id: u8, epoch: u32) -> SessionChange {
    SessionChange::Tokens(SessionId([id; 16]), tokens(epoch as u8, epoch as u8 + 1), epoch)
}

fn epoch(store: &Sqlite, id: u8) -> Option<u32> {
    store.session(SessionId([id; 16]), NOW_S).unwrap().map(|session| session.epoch)
}

fn add_devices(store: &Sqlite, numbers: [u8; 2]) {
    for number in numbers {
        let device = NewWireGuardDevice {
            public_key: [number; 32],
            id: DeviceId([number; 16]),
            name: String::new(),
            preshared: None,
            most: 64,
            addresses: vec![[10, 86, 0, number].into()],
        };
        store.add_wireguard_device("ann", &device, 1_000).unwrap();
    }
}

fn walled_s(store: &Sqlite, number: u8) -> Option<u64> {
    store.find_wireguard_device(&[number; 32], NOW_S).unwrap().unwrap().device.walled_s
}

#[test]
fn sessions_continue_while_another_process_holds_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let (store, user, other) = store(directory.path());
    hold(&other);
    assert_eq!(change(&store, new_tokens(1, 5)).unwrap(), [true]);
    assert_eq!(change(&store, SessionChange::End(SessionId([2; 16]))).unwrap(), [true]);
    assert_eq!(change(&store, new_tokens(2, 6)).unwrap(), [false], "it is over");
    assert_eq!(change(&store, new_tokens(9, 6)).unwrap(), [false], "there is none");
    let begins = change(&store, SessionChange::Add(record(user, 4), 0));
    assert!(matches!(begins, Err(StoreError::Busy { .. })), "{begins:?}");
    assert_eq!([1, 2, 3].map(|id| epoch(&store, id)), [Some(5), None, Some(1)]);
    assert!(matches!(store.catch_up(NOW_S), Err(StoreError::Busy { .. })));
    assert_eq!(change(&store, new_tokens(1, 6)).unwrap(), [true]);

    release(&other);
    assert_eq!(store.catch_up(NOW_S).unwrap(), 2);
    assert_eq!([1, 2, 3].map(|id| epoch(&store, id)), [Some(6), None, Some(1)]);
    let settled: Vec<u8> =
        other.query_row("SELECT settled FROM sessions WHERE epoch = 6", (), |row| row.get(0)).unwrap();
    assert_eq!(settled, [6; 32], "it is in the store itself");
    assert_eq!(store.catch_up(NOW_S).unwrap(), 0);
    assert_eq!(change(&store, SessionChange::Add(record(user, 4), 0)).unwrap(), [true]);
}

#[test]
fn deferred_changes_survive_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let (first, _, other) = store(directory.path());
    hold(&other);
    change(&first, new_tokens(1, 5)).unwrap();
    // The state after a kill: nothing is caught up at its end.
    drop(first);
    let path = directory.path().join("vpnd.db");
    let second = Sqlite::open(&path).unwrap();
    assert_eq!(epoch(&second, 1), Some(5), "while the store is still held");
    release(&other);
    assert_eq!(second.catch_up(NOW_S).unwrap(), 1);
    assert_eq!(epoch(&Sqlite::open(&path).unwrap(), 1), Some(5));
}

#[test]
fn deferred_changes_replace_nothing_newer_in_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _, other) = store(directory.path());
    hold(&other);
    change(&store, new_tokens(1, 5)).unwrap();
    other.execute("UPDATE sessions SET epoch = 7 WHERE epoch = 1", ()).unwrap();
    release(&other);
    assert_eq!(epoch(&store, 1), Some(7));
    store.catch_up(NOW_S).unwrap();
    assert_eq!(epoch(&store, 1), Some(7));
}

#[test]
fn a_damaged_file_ends_all_that_it_may_have_been_about() {
    for under_way in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (mut store, user, other) = store(directory.path());
        add_devices(&store, [2, 9]);
        hold(&other);
        store.wall_wireguard_device(DeviceId([2; 16]), 1_050).unwrap();
        let file = directory.path().join("vpnd.db.put-off");
        fs::write(&file, [7; 4_096]).unwrap();
        if under_way {
            // It is noticed, and this kick is not kept; but it holds.
            assert!(store.wall_wireguard_device(DeviceId([9; 16]), 1_050).is_err());
        } else {
            store = Sqlite::open(&directory.path().join("vpnd.db")).unwrap();
        }
        // Until the store can be written, and after that.
        assert_eq!([1, 2, 3].map(|id| epoch(&store, id)), [None; 3]);
        assert_eq!([2, 9].map(|number| walled_s(&store, number).is_some()), [true, under_way]);
        assert_eq!(change(&store, new_tokens(1, 5)).unwrap(), [false]);
        assert!(matches!(store.catch_up(NOW_S), Err(StoreError::Busy { .. })));
        release(&other);
        store.catch_up(NOW_S).unwrap();
        let store = Sqlite::open(&directory.path().join("vpnd.db")).unwrap();
        assert_eq!([1, 2, 3].map(|id| epoch(&store, id)), [None; 3]);
        assert_eq!([2, 9].map(|number| walled_s(&store, number).is_some()), [true, under_way]);
        let revoked = store.revocations_since(0).unwrap();
        assert!(revoked.iter().any(|revoked| revoked.user == user), "the gateway ends what it still has");
        assert!(store.add_session(&record(user, 4), 1).unwrap());
        assert_eq!(store.catch_up(NOW_S).unwrap(), 0);
        assert_eq!(epoch(&store, 4), Some(1), "it has ended all once");
    }
}

#[test]
fn many_changes_wait_together_for_a_store_that_is_held() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _, other) = store(directory.path());
    hold(&other);
    let began = Instant::now();
    let waited = std::thread::scope(|scope| {
        let wait = || {
            let found = store.set_enabled("ann", true, NOW_S);
            (matches!(found, Err(StoreError::Busy { .. })), began.elapsed())
        };
        let waiting: Vec<_> = (0..8).map(|_| scope.spawn(wait)).collect();
        // Queries and sessions go on meanwhile.
        assert!(store.user("ann").unwrap().is_some());
        assert_eq!(change(&store, new_tokens(1, 5)).unwrap(), [true]);
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()), "{:?}", began.elapsed());
        waiting.into_iter().map(|waiting| waiting.join().unwrap()).collect::<Vec<_>>()
    });
    for (is_busy, waited) in waited {
        // One after the other they would have waited for 40 seconds.
        assert!(
            is_busy && waited < 4 * crate::sqlite::connections::BUSY_TIMEOUT,
            "{is_busy} after {waited:?}"
        );
    }
}

#[test]
fn a_kick_of_a_device_holds_while_another_process_holds_the_store_and_after_that() {
    let directory = tempfile::tempdir().unwrap();
    let (store, user, other) = store(directory.path());
    add_devices(&store, [2, 3]);
    hold(&other);
    for number in [2, 3] {
        store.wall_wireguard_device(DeviceId([number; 16]), 1_050).unwrap();
    }
    assert_eq!([2, 3].map(|number| walled_s(&store, number)), [Some(1_050); 2]);
    let shown = store.wireguard_devices_of(user).unwrap();
    assert!(shown.iter().all(|device| device.walled_s == Some(1_050)), "{shown:?}");
    // The state after a kill.
    drop(store);
    let store = Sqlite::open(&directory.path().join("vpnd.db")).unwrap();
    assert_eq!([2, 3].map(|number| walled_s(&store, number)), [Some(1_050); 2]);
    release(&other);
    // One is renewed by another process before the store is caught up.
    let command = Sqlite::open(&directory.path().join("vpnd.db")).unwrap();
    assert!(command.renew_wireguard_device("ann", DeviceId([3; 16]), 1_060).unwrap());
    assert_eq!([2, 3].map(|number| walled_s(&store, number)), [Some(1_050), None]);
    assert_eq!(store.catch_up(NOW_S).unwrap(), 2);
    assert_eq!([2, 3].map(|number| walled_s(&store, number)), [Some(1_050), None]);
    assert_eq!(store.catch_up(NOW_S).unwrap(), 0);
    assert!(store.renew_wireguard_device("ann", DeviceId([2; 16]), NOW_S).unwrap());
    assert_eq!(walled_s(&store, 2), None);
}

/// The latest timestamps of a device, those that it has shown first.
fn latest(store: &Sqlite, number: u8) -> [Option<HandshakeTime>; 2] {
    let device = store.find_wireguard_device(&[number; 32], NOW_S).unwrap().unwrap().device;
    [device.latest, device.latest_own]
}

/// Those that the devices have shown, where all are read again.
fn latest_of_all(store: &Sqlite) -> Vec<Option<HandshakeTime>> {
    let all = store.wireguard_changes(None).unwrap().devices;
    all.into_iter().map(|owned| owned.device.latest).collect()
}

#[test]
fn handshakes_go_on_while_another_process_holds_the_store_and_none_is_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _, other) = store(directory.path());
    add_devices(&store, [2, 3]);
    let shown = |time: u8, is_own| HandshakeShown { public_key: [2; 32], time: [time; 12], is_own };
    store.keep_handshakes(&[shown(1, true)]).unwrap();
    hold(&other);
    let began = Instant::now();
    assert_eq!(store.keep_handshakes(&[shown(5, false), shown(3, true)]).unwrap(), [true; 2]);
    assert_eq!(store.keep_handshakes(&[shown(4, false)]).unwrap(), [true]);
    assert!(began.elapsed() < crate::sqlite::connections::BUSY_TIMEOUT, "a device waits for it");
    assert_eq!(latest(&store, 2), [Some([5; 12]), Some([3; 12])]);
    assert_eq!(latest_of_all(&store), [Some([5; 12]), None]);
    // The state after a kill: another process reads it, before the store is caught up and after
    // that.
    drop(store);
    let store = Sqlite::open(&directory.path().join("vpnd.db")).unwrap();
    assert_eq!(latest(&store, 2), [Some([5; 12]), Some([3; 12])]);
    assert_eq!(latest_of_all(&store), [Some([5; 12]), None]);
    release(&other);
    assert_eq!(store.catch_up(NOW_S).unwrap(), 2);
    let sql = "SELECT latest FROM wireguard_devices WHERE latest IS NOT NULL";
    let kept: Vec<u8> = other.query_row(sql, (), |row| row.get(0)).unwrap();
    assert_eq!(kept, [5; 12], "it is in the store itself");
    assert_eq!(store.keep_handshakes(&[shown(5, false), shown(6, false)]).unwrap(), [false, true]);
    assert_eq!(store.catch_up(NOW_S).unwrap(), 0);
}

/// A store that ends no session and walls no device.
const BROKEN: &str =
    "CREATE TRIGGER no_end BEFORE DELETE ON sessions BEGIN SELECT RAISE(ABORT, 'broken'); END;
     CREATE TRIGGER no_wall BEFORE UPDATE OF walled_s ON wireguard_devices
     WHEN new.walled_s IS NOT NULL BEGIN SELECT RAISE(ABORT, 'broken'); END";
const MENDED: &str = "DROP TRIGGER no_end; DROP TRIGGER no_wall";

#[test]
fn changes_rejected_by_the_store_survive_the_process_without_blocking() {
    let directory = tempfile::tempdir().unwrap();
    let (store, user, other) = store(directory.path());
    add_devices(&store, [2, 3]);
    other.execute_batch(BROKEN).unwrap();
    store.wall_wireguard_device(DeviceId([2; 16]), 1_050).unwrap();
    assert_eq!(change(&store, SessionChange::End(SessionId([2; 16]))).unwrap(), [true]);
    assert_eq!(change(&store, SessionChange::Add(record(user, 9), 0)).unwrap(), [true], "others log in");
    for (id, store) in (4..).zip([store, Sqlite::open(&directory.path().join("vpnd.db")).unwrap()]) {
        assert_eq!((epoch(&store, 2), walled_s(&store, 2)), (None, Some(1_050)));
        assert!(!store.catch_up(NOW_S).unwrap_err().is_for_now());
        assert_eq!((epoch(&store, 2), walled_s(&store, 2)), (None, Some(1_050)), "it is still not kept");
        assert_eq!(change(&store, SessionChange::Add(record(user, id), 0)).unwrap(), [true], "others log in");
    }
    // One that the store keeps does not wait for the others.
    hold(&other);
    let store = Sqlite::open(&directory.path().join("vpnd.db")).unwrap();
    assert!(store.catch_up(NOW_S).is_err());
    change(&store, new_tokens(3, 5)).unwrap();
    release(&other);
    assert!(!store.catch_up(NOW_S).unwrap_err().is_for_now());
    let kept: u32 = other.query_row("SELECT max(epoch) FROM sessions", (), |row| row.get(0)).unwrap();
    assert_eq!(kept, 5);
    other.execute_batch(MENDED).unwrap();
    assert_eq!(store.catch_up(NOW_S).unwrap(), 2);
    let store = Sqlite::open(&directory.path().join("vpnd.db")).unwrap();
    assert_eq!((epoch(&store, 2), walled_s(&store, 2)), (None, Some(1_050)), "the store has it");
    assert_eq!(walled_s(&store, 3), None);
}

#[test]
fn an_unkept_change_is_not_acknowledged_but_holds_in_this_process() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _, other) = store(directory.path());
    add_devices(&store, [2, 3]);
    other.execute_batch(BROKEN).unwrap();
    assert_eq!(walled_s(&store, 2), None);
    fs::create_dir(directory.path().join("vpnd.db.put-off")).unwrap();
    assert!(store.wall_wireguard_device(DeviceId([2; 16]), 1_050).is_err());
    assert!(change(&store, SessionChange::End(SessionId([2; 16]))).is_err());
    let state = || ([1, 2].map(|id| epoch(&store, id)), [2, 3].map(|number| walled_s(&store, number)));
    let expected = ([Some(1), None], [Some(1_050), None]);
    assert_eq!(state(), expected);
    assert!(store.catch_up(NOW_S).is_err());
    assert_eq!(state(), expected, "it is still not kept");
    other.execute_batch(MENDED).unwrap();
    assert_eq!(store.catch_up(NOW_S).unwrap(), 2);
    assert_eq!(state(), expected);
    let count: u32 = other.query_row("SELECT count(*) FROM sessions", (), |row| row.get(0)).unwrap();
    assert_eq!((count, store.catch_up(NOW_S).unwrap()), (2, 0), "the store has it");
}
