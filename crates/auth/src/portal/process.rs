//! The portal process: whether there is to be one, and how it does.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::notices::lock;
use vpnd_ipc::gateway::auth::PortalHealth;

#[derive(Default)]
pub(super) struct Process {
    is_on: AtomicBool,
    /// Processes that are connected: 1, or for a moment another.
    connected: AtomicUsize,
    /// When its certificate expires, seconds since 1970: 0 where there is none, `None` until the
    /// parent has said.
    certificate_expires_s: Mutex<Option<u64>>,
}

impl Process {
    /// Whether it is switched on, from now on.
    pub(super) fn switch(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// One is connected from now on.
    pub(super) fn has_come(&self) {
        self.connected.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn has_gone(&self) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
    }

    /// Its certificate expires then, seconds since 1970; 0 where it has none.
    pub(super) fn set_certificate(&self, expires_s: u64) {
        *lock(&self.certificate_expires_s) = Some(expires_s);
    }

    /// How it does, with this number of visits, if it is switched on.
    pub(super) fn health(&self, visits: usize, now_s: u64) -> Option<PortalHealth> {
        let expires_s = *lock(&self.certificate_expires_s);
        self.is_on().then(|| PortalHealth {
            up: self.connected.load(Ordering::Relaxed) > 0,
            visits: visits as u64,
            certificate_left_s: expires_s.map(|expires_s| expires_s.saturating_sub(now_s)),
        })
    }
}
