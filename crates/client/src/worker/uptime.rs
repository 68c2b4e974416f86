//! Whether the client is up, and for how long, in the log.
//!
//! INVARIANT: each outage that the log names ends there in a line, too.

use std::mem;

use vpnd_proto::client::Client;
use vpnd_proto::plane::Activity;
use vpnd_proto::time::Time;
use vpnd_shard::PollCounts;

use super::dial::TrialLog;
use vpnd_sys::clock::now;
use vpnd_sys::logging::NEWS;

pub(super) struct Uptime {
    started: Time,
    was_up: bool,
    was_ever_up: bool,
    /// Whether the gateway has closed the connection in favour of the attempt under way, whose
    /// answer may come later.
    is_superseded: bool,
}

impl Uptime {
    pub(super) fn new() -> Self {
        Self { started: now(), was_up: false, was_ever_up: false, is_superseded: false }
    }

    pub(super) fn was_ever_up(&self) -> bool {
        self.was_ever_up
    }

    /// A connection is lost; whether in favour of an attempt that is under way.
    pub(super) fn lost(&mut self, is_superseded: bool) {
        self.is_superseded = is_superseded;
    }

    /// Logs what has changed.
    pub(super) fn log(&mut self, core: &Client, is_dialling: bool, trials: &TrialLog) {
        let up = core.is_up() || (self.is_superseded && is_dialling);
        let changed = mem::replace(&mut self.was_up, up) != up;
        // A session may outlast an outage that the log has named.
        let is_back = trials.ends_outage(|at| up && changed || core.is_heard_since(at));
        if up && (changed || is_back) {
            self.was_ever_up = true;
            tracing::info!(target: NEWS, "connected");
        } else if changed {
            tracing::warn!("the connection to the gateway is interrupted");
        }
    }

    /// One line about the whole life of the client, which ends for this reason.
    pub(super) fn log_end(&self, reason: &str, carried: Activity, polled: PollCounts) {
        let Activity { rx_bytes, tx_bytes, .. } = carried;
        let uptime_s = now().since(self.started).as_secs();
        let PollCounts { found, expired, yielded, time } = polled;
        tracing::debug!(found, expired, yielded, ?time, "waits in which the data path polled");
        tracing::info!(reason, uptime_s, received = rx_bytes, sent = tx_bytes, "the client stops");
    }
}
