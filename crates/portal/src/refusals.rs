//! Counts of what this process refuses by itself, which go to the auth process.

use std::sync::atomic::{AtomicU64, Ordering};

use vpnd_ipc::gateway::portal::refusals::PortalRefusals;

/// A reason of this process.
#[derive(Clone, Copy)]
pub(crate) enum Reason {
    Rate,
    Place,
    Form,
    Login,
    Request,
}

static COUNTS: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

pub(crate) fn count(reason: Reason) {
    COUNTS[reason as usize].fetch_add(1, Ordering::Relaxed);
}

/// Those since the last call, if there are any.
pub(crate) fn take() -> Option<PortalRefusals> {
    let taken = [0, 1, 2, 3, 4].map(|at: usize| COUNTS[at].swap(0, Ordering::Relaxed));
    let [rate, place, form, login, request] = taken;
    Some(PortalRefusals { rate, place, form, login, request })
        .filter(|taken| *taken != PortalRefusals::default())
}
