//! The portal process: whether there is to be one, and how it does.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::browsers::Browsers;
use vpnd_admission::notices::lock;
use vpnd_ipc::gateway::auth::PortalHealth;
use vpnd_sys::clock::{Clocks, now};

pub(super) struct Process {
    clocks: Clocks,
    browsers: Arc<Browsers>,
    is_on: AtomicBool,
    /// Processes that are connected: 1, or for a moment another.
    connected: AtomicUsize,
    /// When its certificate expires, seconds since 1970: 0 where there is none, `None` until the
    /// parent has said.
    certificate_expires_s: Mutex<Option<u64>>,
}

impl Process {
    pub(super) fn new(clocks: Clocks, browsers: Arc<Browsers>) -> Self {
        let (is_on, connected) = (AtomicBool::new(false), AtomicUsize::new(0));
        Self { clocks, browsers, is_on, connected, certificate_expires_s: Mutex::default() }
    }

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

    /// How it does, if it is switched on.
    pub(super) fn health(&self) -> Option<PortalHealth> {
        let expires_s = *lock(&self.certificate_expires_s);
        let now_s = (self.clocks.wall)();
        self.is_on().then(|| PortalHealth {
            up: self.connected.load(Ordering::Relaxed) > 0,
            visits: self.browsers.visits().count(now()) as u64,
            certificate_left_s: expires_s.map(|expires_s| expires_s.saturating_sub(now_s)),
        })
    }
}
