//! Emptying the gateway before it stops: no client is let in, clients are asked to move, and those
//! that are left are closed at a time.
//!
//! INVARIANT: sessions that are closed by it stay in the store, as when the gateway goes down, but
//! for those of WireGuard devices.

use std::time::Duration;

use tokio::sync::{oneshot, watch};
use vpnd_proto::control::Code;
use vpnd_proto::gateway::Selector;
use vpnd_proto::session::SessionId;
use vpnd_proto::time::Time;

use super::CoreTask;
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

    fn begin(&mut self, within: Option<Duration>) {
        let until = within.map(|within| now() + within);
        self.begun = Some(Draining { until, next_notice: now() + NOTICE_INTERVAL, over: false });
        self.is_draining.send_replace(true);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Whether there was one to cancel.
    fn cancel(&mut self) -> bool {
        self.is_draining.send_replace(false);
        self.begun.take().is_some()
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

impl CoreTask {
    pub(super) fn handle_drain(&mut self, request: DrainRequest, reply: oneshot::Sender<()>) {
        match request {
            DrainRequest::Begin { within } => {
                self.notify_of_drain();
                self.drain.begin(within);
                self.admit_peers(false);
                let (in_use, within_s) = (self.gateway.in_use(), within.map(|within| within.as_secs()));
                tracing::warn!(in_use, within_s, "the gateway is draining: logins are refused");
            }
            DrainRequest::Cancel => {
                self.gateway.end_drain();
                self.admit_peers(true);
                if self.drain.cancel() {
                    tracing::warn!("the gateway is no longer draining: logins are accepted again");
                }
            }
        }
        // The requester may have gone meanwhile.
        let _ = reply.send(());
    }

    /// Repeats the notice when it is time, and closes what is left when that is.
    pub(super) fn go_on_draining(&mut self) {
        let Some(draining) = &mut self.drain.begun else { return };
        let (now, in_use) = (now(), self.gateway.in_use());
        if draining.over {
            return;
        }
        if in_use == 0 || draining.until.is_some_and(|until| now >= until) {
            draining.over = true;
            tracing::warn!(closed = in_use, "the gateway is drained: no client is connected");
            self.end_peers();
            self.close_all();
        } else if now >= draining.next_notice {
            draining.next_notice = now + NOTICE_INTERVAL;
            self.notify_of_drain();
        }
    }

    fn notify_of_drain(&mut self) {
        let is_in_fleet = self.registry.hosts().is_some();
        self.gateway.drain(is_in_fleet);
    }

    fn admit_peers(&mut self, admits: bool) {
        if let Some(wireguard) = &mut self.wireguard {
            wireguard.admit(admits);
        }
    }

    /// Ends the sessions of WireGuard devices, which attach to none: they get new ones elsewhere,
    /// or here if the drain is cancelled.
    fn end_peers(&mut self) {
        let Some(wireguard) = &self.wireguard else { return };
        let sessions: Vec<SessionId> = wireguard.sessions().collect();
        for session in sessions {
            self.gateway.end(&Selector::Session(session), Code::Drain, "");
        }
    }

    fn close_all(&mut self) {
        self.endings.count_closed(&self.gateway);
        self.gateway.close_all(Code::Drain);
        self.registry.release_all();
    }

    pub(super) fn drain_state(&self) -> Option<DrainState> {
        let draining = self.drain.begun.as_ref()?;
        let left = draining.until.map(|until| until.since(now()));
        Some(DrainState { in_use: self.gateway.in_use(), left, over: draining.over })
    }
}
