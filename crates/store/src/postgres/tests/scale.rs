//! The statements that a gateway of a fleet has a server carry out: docs/FLEET.md counts on them.

use super::fleet::{lease_of, member, report};
use super::*;
use crate::{
    Absences, Fleet as _, GatewayReport, KnownDevices as _, Leases as _, Revocations as _, Sighting,
    TakenAway,
};
use vpnd_proto::session::DeviceId;

/// Statements of a transaction besides its own: its begin and its end, and for a change the row
/// that is locked and who may change.
const OF_A_QUERY: u64 = 2;
const OF_A_CHANGE: u64 = 5;

/// A server that counts, and a database of a fleet there.
struct Counting {
    cluster: Cluster,
    database: InDatabase,
}

impl Counting {
    fn new() -> Option<Self> {
        let settings = "shared_preload_libraries = 'pg_stat_statements'";
        let cluster = Cluster::start("127.0.0.1", |path| std::process::Command::new(path), settings)?;
        cluster.sql("postgres", "CREATE EXTENSION pg_stat_statements");
        let database = InDatabase::on(&cluster);
        Some(Self { cluster, database })
    }

    fn open(&self, number: u8) -> Postgres {
        self.database.open_as(member(number, "campus")).unwrap()
    }

    /// Statements of the database's gateways so far.
    fn count(&self) -> u64 {
        let sql = format!(
            "SELECT sum(calls) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
             WHERE datname = '{}'",
            self.database.name
        );
        self.cluster.sql("postgres", &sql).parse().unwrap_or(0)
    }

    /// Those that this takes.
    fn counted(&self, what: &str, work: &dyn Fn()) -> u64 {
        let before = self.count();
        work();
        let statements = self.count() - before;
        println!("{what}: {statements} statements");
        statements
    }
}

#[test]
fn the_number_of_statements_of_a_fleet_is_fixed() {
    let counting = some!(Counting::new());
    let [first, second] = [1, 2].map(|number| counting.open(number));
    let ann = first.add_user(&ann(), 1).unwrap();
    let counted = |what: &str, work: &dyn Fn()| counting.counted(what, work);
    let session = std::cell::RefCell::new(session_of(ann, 1));
    // The generation, two addresses and the session.
    let login = counted("a login", &|| {
        let lease = lease_of(ann, 1, 1);
        let generation = first.begin_session(lease.owner, Some(2), 1_000).unwrap().generation;
        assert!(first.claim(&lease, 1_000).unwrap());
        assert!(first.claim(&crate::Lease { address: "fd00::7".parse().unwrap(), ..lease }, 1_000).unwrap());
        session.borrow_mut().generation = generation;
        assert!(first.add_session(&session.borrow(), 0).unwrap());
    });
    let rekey = counted("new tokens of a session", &|| {
        let tokens = SessionChange::Tokens(session.borrow().id, session.borrow().tokens, 2);
        assert_eq!(first.change_sessions(&[tokens], 1_500).unwrap(), [true]);
    });
    let held = counted("what decides about a move", &|| {
        assert!(second.held(&[session.borrow().id], 1_500).unwrap()[0].is_some());
    });
    let moved = counted("a move", &|| {
        let known = (session.borrow().id, session.borrow().generation);
        assert_eq!(second.move_here(&[known], 1_500).unwrap().len(), 1);
    });
    let reports = counted("a report", &|| first.report(&report(1)).unwrap());
    let rest = counted("a look for moves, revocations and notices", &|| {
        second.taken_away().unwrap();
        second.end_expired(1_500).unwrap();
        second.last_revocation().unwrap();
        second.last_forgotten().unwrap();
        second.forget_revocations(0);
        second.revocations_since(0).unwrap();
        second.notices(0).unwrap();
    });
    assert_eq!([rest, reports, rekey], [7 * (OF_A_QUERY + 1), OF_A_CHANGE + 2, OF_A_CHANGE + 1]);
    assert_eq!([held, moved], [OF_A_QUERY + 7, OF_A_CHANGE + 5]);
    assert!(login <= 4 * OF_A_CHANGE + 24, "{login}");
}

#[test]
fn many_sessions_need_as_many_statements_as_one() {
    let counting = some!(Counting::new());
    let first = counting.open(1);
    let user = first.add_user(&ann(), 1).unwrap();
    let [ids, other_ids] =
        [0..512, 512..1_024].map(|numbers| numbers.map(session_number).collect::<Vec<_>>());
    let missing = counting.counted("which of 512 sessions are missing", &|| {
        assert_eq!(first.missing_sessions(&ids, 1_500).unwrap(), ids);
    });
    let report = counting.counted("a report with as many clients that are away, and come back", &|| {
        let absences = Absences { are_new: false, away: ids.clone(), back: other_ids.clone() };
        first.report(&GatewayReport { absences, ..report(1) }).unwrap();
    });
    let dropped = counting.counted("as many that have gone elsewhere", &|| {
        let dropped: Vec<_> = ids.iter().map(|id| TakenAway { session: *id, generation: 1 }).collect();
        first.dropped(&dropped).unwrap();
    });
    let seen = counting.counted("sightings of as many devices", &|| {
        let sighting = |id: &SessionId| Sighting { user, device: DeviceId(id.0), at_s: 1_500, network: None };
        first.keep_sightings(&ids.iter().map(sighting).collect::<Vec<_>>()).unwrap();
    });
    assert_eq!([missing, report], [OF_A_QUERY + 1, OF_A_CHANGE + 3]);
    assert_eq!([dropped, seen], [OF_A_CHANGE + 1, OF_A_CHANGE + 2]);
}

#[test]
fn what_is_looked_for_often_is_found_by_an_index() {
    let database = some!(InDatabase::new());
    let is_disabled = crate::sql::events::CAUSED_SINCE.replace("?1", "'ann'").replace("?2", "'disabled'");
    for (query, conditions) in [
        (
            crate::sql::accounts::DUE.replace("?1", "1500"),
            &["(lapsed = 0) AND (exp", "(lapsed = 1) AND (exp"][..],
        ),
        (is_disabled.replace("?3", "1500"), &["(name = 'ann'::text) AND (at_s >= "][..]),
    ] {
        let sql = format!("SET search_path = vpnd; SET enable_seqscan = off; EXPLAIN {query}");
        let plan = database.sql(&sql);
        for condition in conditions {
            assert!(plan.contains(&format!("Index Cond: ({condition}")), "{plan}");
        }
    }
}

fn session_number(number: u16) -> SessionId {
    let mut id = [0; 16];
    id[..2].copy_from_slice(&number.to_be_bytes());
    SessionId(id)
}
