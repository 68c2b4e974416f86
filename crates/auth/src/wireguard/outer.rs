//! Where WireGuard devices are, on its way to the store.
//!
//! It is a hint for the next start, so nothing waits for it: sessions go on while the store does not
//! answer. The newest of each device counts, so no more waits than there are devices.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::DeviceId;
use vpnd_store::Store;

/// Devices, and where each of them is.
type Heard = HashMap<DeviceId, Option<Endpoint>>;

#[derive(Default)]
struct Waiting {
    heard: Mutex<(Heard, bool)>,
    changed: Condvar,
}

/// Stores it in a separate thread, which ends when this is dropped.
pub(super) struct Keeper(Arc<Waiting>);

impl Keeper {
    pub(super) fn start(store: Arc<dyn Store>) -> Self {
        let waiting = Arc::<Waiting>::default();
        let shared = Arc::clone(&waiting);
        thread::spawn(move || {
            while let Some(heard) = shared.next() {
                let heard: Vec<_> = heard.into_iter().collect();
                if let Err(error) = store.keep_outer(&heard) {
                    tracing::error!(%error, "it could not be stored where WireGuard devices are");
                }
            }
        });
        Self(waiting)
    }

    pub(super) fn keep(&self, heard: Vec<(DeviceId, Option<Endpoint>)>) {
        if !heard.is_empty() {
            self.0.heard.lock().unwrap_or_else(PoisonError::into_inner).0.extend(heard);
            self.0.changed.notify_one();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.heard.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.0.changed.notify_one();
    }
}

impl Waiting {
    /// Waits for something to keep. `None` once there will be nothing more.
    fn next(&self) -> Option<Heard> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |(heard, is_over): &mut (Heard, bool)| heard.is_empty() && !*is_over;
        let mut heard = self.changed.wait_while(heard, idle).unwrap_or_else(PoisonError::into_inner);
        Some(std::mem::take(&mut heard.0)).filter(|heard| !heard.is_empty())
    }
}
