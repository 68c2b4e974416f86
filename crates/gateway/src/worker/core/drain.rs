//! Emptying the gateway before it stops: no client is let in, clients are asked to move, and those
//! that are left are closed at a time.
//!
//! INVARIANT: sessions that are closed by it stay in the store, as when the gateway goes down, but
//! for those of WireGuard devices.

use std::time::Duration;

use tokio::sync::watch;
use vpnd_proto::control::Code;
use vpnd_proto::gateway::{Gateway, Selector};
use vpnd_proto::time::Time;

use super::endings::Endings;
use crate::worker::registry::Registry;
use crate::worker::wireguard::WireGuard;
use vpnd_sys::clock::now;

/// Interval of the notices to clients (PROTOCOL §5.2).
const NOTICE_INTERVAL: Duration = Duration::from_secs(30);

/// A request of an administrator.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DrainRequest {
    /// Begin; what is in use after this time is closed. Another one before replaces the time.
    Begin { within: Option<Duration> },
    /// Accept logins again.
    Cancel,
}

/// Whether the gateway is being emptied.
pub(super) struct Drain {
    begun: Option<Draining>,
    /// The state for connections' tasks.
    is_draining: watch::Sender<bool>,
}

impl Drain {
    pub(super) fn new() -> (Self, watch::Receiver<bool>) {
        let (is_draining, draining) = watch::channel(false);
        (Self { begun: None, is_draining }, draining)
    }

    /// Begins to drain the gateway, or ends that.
    pub(super) fn handle(&mut self, request: DrainRequest, gateway: &mut Gateway, is_in_fleet: bool) {
        match request {
            DrainRequest::Begin { within } => {
                gateway.drain(is_in_fleet);
                let until = within.map(|within| now() + within);
                self.begun = Some(Draining { until, next_notice: now() + NOTICE_INTERVAL, over: false });
                self.is_draining.send_replace(true);
                let (in_use, within_s) = (gateway.in_use(), within.map(|within| within.as_secs()));
                tracing::warn!(in_use, within_s, "the gateway is draining: logins are refused");
            }
            DrainRequest::Cancel => {
                gateway.end_drain();
                self.is_draining.send_replace(false);
                if self.begun.take().is_some() {
                    tracing::warn!("the gateway is no longer draining: logins are accepted again");
                }
            }
        }
    }

    /// Repeats the notice when it is time, and closes what is left when that is.
    pub(super) fn go_on(
        &mut self,
        gateway: &mut Gateway,
        registry: &mut Registry,
        wireguard: Option<&WireGuard>,
        endings: &mut Endings,
    ) {
        let Some(draining) = self.begun.as_mut().filter(|draining| !draining.over) else { return };
        let (now, in_use) = (now(), gateway.in_use());
        if in_use == 0 || draining.until.is_some_and(|until| now >= until) {
            draining.over = true;
            tracing::warn!(closed = in_use, "the gateway is drained: no client is connected");
            // Devices attach to no session: they get new ones elsewhere, or here if the drain is
            // cancelled.
            for session in wireguard.into_iter().flat_map(WireGuard::sessions) {
                gateway.end(&Selector::Session(session), Code::Drain, "");
            }
            endings.count_closed(gateway);
            gateway.close_all(Code::Drain);
            registry.release_all();
        } else if now >= draining.next_notice {
            draining.next_notice = now + NOTICE_INTERVAL;
            gateway.drain(registry.hosts().is_some());
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    pub(super) fn state(&self, in_use: usize) -> Option<DrainState> {
        let draining = self.begun.as_ref()?;
        let left = draining.until.map(|until| until.since(now()));
        Some(DrainState { in_use, left, over: draining.over })
    }
}

/// A drain that has begun and was not cancelled.
struct Draining {
    until: Option<Time>,
    next_notice: Time,
    over: bool,
}

/// The state of a drain at one moment.
#[derive(Clone, Copy, Debug)]
pub struct DrainState {
    /// Sessions with a connection or keys.
    pub in_use: usize,
    /// Time until they are closed.
    pub left: Option<Duration>,
    /// No client is connected any more.
    pub over: bool,
}
