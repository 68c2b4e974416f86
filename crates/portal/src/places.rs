//! Places for connections, which networks share fairly: where there is no room, the one that holds
//! many loses one to a newcomer.
//!
//! INVARIANT: a connection that has lost its place ends, and one that ends gives its place back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::refusals::{self, Reason};
use vpnd_proto::admission::Source;
use vpnd_proto::admission::shares::{Displaced, Division, Entered, PermitId, Shares, Standing};
use vpnd_sys::clock::now;

/// Connections that there are.
#[derive(Clone)]
pub(crate) struct Places(Arc<Mutex<Taken>>);

struct Taken {
    shares: Shares,
    tasks: BTreeMap<PermitId, AbortHandle>,
}

/// The place of a connection, while it is there.
pub(crate) struct Place {
    permit: PermitId,
    places: Places,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.shares.leave(self.permit);
        taken.tasks.remove(&self.permit);
    }
}

impl Places {
    /// This many; each of this age makes room for one of a network that has as many.
    pub(crate) fn new(limit: usize, displace_after: Duration) -> Self {
        let division = Division { limit, displace_after, displaced: Displaced::Oldest };
        Self(Arc::new(Mutex::new(Taken { shares: Shares::new(division), tasks: BTreeMap::new() })))
    }

    /// A place for a connection of this source, if there is one.
    pub(crate) fn take(&self, source: Source) -> Option<Place> {
        let mut taken = self.lock();
        let entered = taken.shares.enter(now(), source, Standing::Stranger);
        let Entered::In { permit, displaced } = entered else { return None };
        if let Some(task) = displaced.and_then(|displaced| taken.tasks.remove(&displaced)) {
            refusals::count(Reason::Place);
            task.abort();
        }
        drop(taken);
        Some(Place { permit, places: self.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Begins a task that has the place until it ends, and ends when it loses it.
    pub(crate) fn hold(self, work: impl Future<Output = ()> + Send + 'static) {
        let (permit, places) = (self.permit, self.places.clone());
        let mut taken = places.lock();
        let task = tokio::spawn(async move {
            work.await;
            drop(self);
        });
        // The task can't have given its place back: that takes the lock.
        taken.tasks.insert(permit, task.abort_handle());
    }
}
