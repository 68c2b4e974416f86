//! A standby that takes over while the old primary runs on.

use super::*;

/// The ways to servers, in this order.
fn access(servers: &[&Cluster], database: &InDatabase) -> (Access, Arc<dyn Dial>) {
    let hosts: Vec<_> = servers.iter().map(|server| DatabaseHost::Socket(server.socket())).collect();
    let settings = PostgresSettings { hosts: hosts.clone(), ..servers[0].settings(&database.name) };
    (Access::new(&settings, &DatabaseFiles::default()).unwrap(), Arc::new(Direct(hosts)))
}

#[test]
fn all_connections_lead_to_the_server_that_took_over_and_never_back() {
    let primary = some!(Cluster::start("127.0.0.1", |path| std::process::Command::new(path), ""));
    let mut standby = primary.standby();
    let database = InDatabase::on(&primary);
    let (access, dial) = access(&[&primary, &standby], &database);
    let open = || {
        let limit = Duration::from_secs(3);
        let dial = Arc::clone(&dial);
        Postgres::open_within(limit, &access, dial, gateway(1, 1), database.directory.path())
    };
    let store = open().unwrap();
    store.add_user(&ann(), 1).unwrap();
    let history = crate::Revocations::history(&store);
    standby.cut_off(&primary);
    standby.promote();
    // The old primary was not stopped, and only the connection for changes is lost.
    let ends = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted";
    primary.sql(&database.name, ends);
    let until = Instant::now() + Duration::from_secs(30);
    while let Err(error) = store.set_enabled("ann", false, 5) {
        assert!(error.is_for_now() && Instant::now() < until, "{error}");
        sleep(Duration::from_millis(20));
    }
    let enabled = |server: &Cluster| server.sql(&database.name, "SELECT enabled FROM vpnd.users");
    assert_eq!([enabled(&standby), enabled(&primary)], ["0", "1"], "the one that took over has it");
    assert_ne!(crate::Revocations::history(&store), history);
    // Queries, which have connections that are all right, follow.
    let is_stale = || store.user("ann").is_ok_and(|ann| ann.is_some_and(|ann| ann.enabled));
    while std::thread::scope(|scope| {
        let reading = [0, 1, 2].map(|_| scope.spawn(|| (0..20).any(|_| is_stale())));
        reading.into_iter().any(|reading| reading.join().unwrap())
    }) {
        assert!(Instant::now() < until, "queries see the old server");
    }
    drop(store);
    standby.stop(true);
    assert!(matches!(trouble(open()), Trouble::LeftBehind { found: 1, known: 2, .. }));
    standby.restart();
    let restarted = open().unwrap();
    assert!(!restarted.user("ann").unwrap().unwrap().enabled);
}
