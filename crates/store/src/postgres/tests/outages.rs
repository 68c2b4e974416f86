//! Servers that are silent, slow to give a turn, or out of order: sessions go on, and no caller
//! waits for long.

use super::fleet::member;
use super::*;

/// Limit for a change of a session, with a margin for a busy machine.
const AT_ONCE: Duration = Duration::from_millis(2500);

fn own_cluster() -> Option<Cluster> {
    Cluster::start("127.0.0.1", |path| std::process::Command::new(path), "")
}

/// A gateway with a session.
fn with_session(database: &InDatabase) -> (Postgres, SessionRecord) {
    let store = database.gateway();
    let id = store.add_user(&ann(), 1).unwrap();
    let session = session_of(id, 1);
    assert_eq!(store.change_sessions(&[SessionChange::Add(session.clone(), 0)], 1000).unwrap(), [true]);
    (store, session)
}

fn rekey(store: &Postgres, session: &SessionRecord, epoch: u32) -> Duration {
    let begun = Instant::now();
    let tokens = Tokens::restore(TokenHash::from_bytes([7; 32]), None);
    let changes = [SessionChange::Tokens(session.id, tokens, epoch)];
    assert_eq!(store.change_sessions(&changes, 1500).unwrap(), [true]);
    begun.elapsed()
}

/// Waits until what was put off is in the store.
fn catch_up(store: &Postgres) {
    let until = Instant::now() + Duration::from_secs(40);
    loop {
        match store.catch_up(1500) {
            Ok(_) => return,
            Err(error) => assert!(error.is_for_now() && Instant::now() < until, "{error}"),
        }
        sleep(Duration::from_millis(50));
    }
}

fn epoch_of(store: &Postgres, session: &SessionRecord) -> Option<u32> {
    store.session(session.id, 1500).unwrap().map(|found| found.epoch)
}

#[test]
fn a_silent_database_server_delays_no_session() {
    let cluster = some!(own_cluster());
    let database = InDatabase::on(&cluster);
    let (store, session) = with_session(&database);
    cluster.pause(true);
    let first = rekey(&store, &session, 5);
    let others: Duration = (6..16).map(|epoch| rekey(&store, &session, epoch)).sum();
    let begun = Instant::now();
    assert_eq!(epoch_of(&store, &session), Some(15));
    let read = begun.elapsed();
    let begun = Instant::now();
    let refused = store.change_sessions(&[SessionChange::Add(session_of(session.user, 2), 0)], 1500);
    assert!(refused.unwrap_err().is_for_now());
    let add = begun.elapsed();
    cluster.pause(false);
    for (what, took) in [("first", first), ("others", others), ("read", read), ("login", add)] {
        assert!(took < AT_ONCE, "{what} took {took:?}");
    }
    catch_up(&store);
    assert_eq!(cluster.sql(&database.name, "SELECT epoch FROM vpnd.sessions"), "15");
}

#[test]
fn a_long_change_of_another_process_keeps_no_session_waiting() {
    let database = some!(InDatabase::new());
    let (store, session) = with_session(&database);
    let name = &database.name;
    std::thread::scope(|scope| {
        let long = "BEGIN; SELECT 1 FROM vpnd.fleet FOR UPDATE; SELECT pg_sleep(6); COMMIT";
        let importing = scope.spawn(|| cluster().unwrap().sql(name, long));
        let locked = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(6)%' AND wait_event = 'PgSleep'
                      AND datname = current_database()";
        while database.sql(locked) == "0" {
            sleep(Duration::from_millis(20));
        }
        assert!(rekey(&store, &session, 5) < AT_ONCE);
        // Changes that were put off are tried meanwhile, and others can still be put off.
        let trying = scope.spawn(|| store.catch_up(1500));
        while !trying.is_finished() {
            let took = rekey(&store, &session, 6);
            assert!(took < Duration::from_millis(700), "{took:?}");
            sleep(Duration::from_millis(20));
        }
        assert!(trying.join().unwrap().unwrap_err().is_for_now());
        importing.join().unwrap();
    });
    catch_up(&store);
    assert_eq!(database.sql("SELECT epoch FROM vpnd.sessions"), "6");
}

#[test]
fn a_server_that_refuses_the_gateway_ends_no_session() {
    let cluster = some!(own_cluster());
    let database = InDatabase::on(&cluster);
    let (store, session) = with_session(&database);
    cluster.refuse(&database.name, true);
    rekey(&store, &session, 5);
    let until = Instant::now() + Duration::from_secs(20);
    while !matches!(trouble(store.user("ann")), Trouble::Credentials(_)) {
        assert!(Instant::now() < until);
        sleep(Duration::from_millis(50));
    }
    rekey(&store, &session, 6);
    assert_eq!(epoch_of(&store, &session), Some(6));
    cluster.refuse(&database.name, false);
    catch_up(&store);
    assert_eq!(cluster.sql(&database.name, "SELECT epoch FROM vpnd.sessions"), "6");
}

#[test]
fn a_login_whose_commit_is_lost_is_refused_at_once_and_leaves_no_session() {
    let database = some!(InDatabase::new());
    let left = Arc::new(AtomicU32::new(0));
    let dial = Arc::new(LosesCommits {
        sockets: vec![cluster().unwrap().socket()],
        left: Arc::clone(&left),
        passes: true,
        meanwhile: Arc::new(|| ()),
    });
    let path = database.directory.path();
    let store = Postgres::open(&database.access, dial, gateway(1, 1), path).unwrap();
    let session = session_of(store.add_user(&ann(), 1).unwrap(), 1);
    left.store(1, Ordering::SeqCst);
    let begun = Instant::now();
    let added = store.change_sessions(&[SessionChange::Add(session.clone(), 0)], 1000);
    assert!(added.unwrap_err().is_uncertain() && begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    assert_eq!(left.load(Ordering::SeqCst), 0);
    let count = || database.sql("SELECT count(*) FROM vpnd.sessions");
    let until = Instant::now() + Duration::from_secs(10);
    while count() != "1" {
        assert!(Instant::now() < until, "the server has committed it");
    }
    assert_eq!(store.session(session.id, 1500).unwrap(), None);
    catch_up(&store);
    assert_eq!(count(), "0");
}

#[test]
fn a_kick_by_a_command_is_in_the_database_though_an_outage_has_left_a_file() {
    let database = some!(InDatabase::new());
    let store = database.gateway();
    store.add_user(&ann(), 1).unwrap();
    store.add_wireguard_device("ann", &phone(), 1).unwrap();
    let left = database.directory.path().join(vpnd_config::STORE_FILE_NAME).with_extension("db.put-off");
    std::fs::File::create(left).unwrap();
    let command = database.open_as(Holder { instance: None, ..gateway(1, 1) }).unwrap();
    command.wall_wireguard_device(phone().id, 2).unwrap();
    let found = store.find_wireguard_device(&phone().public_key, 3).unwrap().unwrap();
    assert_eq!(found.device.walled_s, Some(2));
}

#[test]
fn a_gateway_paused_in_a_change_delays_others_only_briefly() {
    let database = some!(InDatabase::new());
    let [first, second] = [1, 2].map(|number| database.open_as(member(number, "campus")).unwrap());
    let (sender, begun) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let still = scope.spawn(|| {
            let sender = sender;
            first.change(|_| {
                sender.send(Instant::now()).unwrap();
                sleep(Duration::from_secs(6));
                Ok(Ok(()))
            })
        });
        let begun = begun.recv().unwrap();
        second.add_user(&ann(), 1).unwrap();
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(4), "{took:?}");
        assert!(still.join().unwrap().unwrap_err().is_for_now(), "it was not made");
    });
    assert_eq!(first.users().unwrap().len(), 1);
    first.add_user(&named("bob"), 1).unwrap();
}

#[test]
fn a_query_waits_for_no_long_one_while_others_end() {
    let database = some!(InDatabase::new());
    let store = &database.gateway();
    std::thread::scope(|scope| {
        let (sender, begun) = std::sync::mpsc::channel();
        for limit_ms in [4_000, 300, 300] {
            let sender = sender.clone();
            scope.spawn(move || {
                let reading = store.read(|_| {
                    sender.send(()).unwrap();
                    sleep(Duration::from_millis(limit_ms));
                    Ok(())
                });
                reading.unwrap();
            });
            begun.recv().unwrap();
        }
        let waited = Instant::now();
        store.read(|_| Ok(())).unwrap();
        assert!(waited.elapsed() < Duration::from_secs(2), "{:?}", waited.elapsed());
    });
}

#[test]
fn changes_have_their_turns_in_order() {
    let database = some!(InDatabase::new());
    let store = &database.gateway();
    let is_over = &std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (sender, begun) = std::sync::mpsc::channel();
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let change = |_: &Transaction<'_>| {
                    sleep(Duration::from_millis(50));
                    Ok(Ok(()))
                };
                store.change(change).unwrap();
                let _ = sender.send(());
            }
        });
        begun.recv().unwrap();
        let waited = Instant::now();
        for _ in 0..5 {
            store.change(|_| Ok(Ok(()))).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(waited.elapsed() < Duration::from_secs(2), "{:?}", waited.elapsed());
    });
}
