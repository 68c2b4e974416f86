//! Turns of notices on a model of a fleet's database.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::*;
use vpnd_store::postgres::testing::simulated::Simulated;

const CALLERS: usize = 100;

#[test]
fn many_callers_at_the_same_time_cost_the_database_a_few_queries() {
    let (database, directory) = (Simulated::new(Instant::now()), tempfile::tempdir().unwrap());
    let store = Arc::new(database.at(1, directory.path()));
    let membership = Membership::default();
    membership.join(&Arc::new(Notices::new(Arc::clone(&store) as Arc<dyn Store>)));
    let asking = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        database.hold(|| {
            for _ in 0..CALLERS {
                scope.spawn(|| {
                    asking.fetch_add(1, Ordering::Relaxed);
                    assert!(membership.catch_up().unwrap());
                });
            }
            while asking.load(Ordering::Relaxed) < CALLERS || store.queries() == 0 {
                std::thread::yield_now();
            }
            // The last of them has asked by then. One that has not asks for one more turn.
            std::thread::sleep(Duration::from_millis(100));
        });
    });
    let queries = store.queries();
    assert!(queries <= CALLERS / 10, "{queries}");
}
