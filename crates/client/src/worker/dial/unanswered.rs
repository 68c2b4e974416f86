//! Connections whose request was given up before its answer came.
//!
//! INVARIANT: the gateway is told. Otherwise it keeps such a login for as long as a silent
//! connection lasts, and an approval that comes meanwhile lets in a client that is gone, in the
//! place of the one that has logged in since.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quinn::{Connection, Endpoint};
use vpnd_control_channel::stream::close;
use vpnd_proto::control::Code;

/// Those of a dialer.
#[derive(Default)]
pub(super) struct Unanswered(Mutex<Vec<(Connection, Endpoint)>>);

/// Keeps its connection for [`Unanswered::part`] if it is dropped before the answer is there.
pub(super) struct Waiting<'u> {
    all: &'u Unanswered,
    left: Option<(Connection, Endpoint)>,
}

impl Unanswered {
    pub(super) fn wait_on(&self, connection: &Connection, endpoint: &Endpoint) -> Waiting<'_> {
        Waiting { all: self, left: Some((connection.clone(), endpoint.clone())) }
    }

    /// Tells gateways of requests that were given up.
    pub(super) async fn part(&self, limit: Duration) {
        let left = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for (connection, endpoint) in left {
            close(&connection, Code::Bye, "");
            let _ = tokio::time::timeout(limit, endpoint.wait_idle()).await;
        }
    }
}

impl Waiting<'_> {
    pub(super) fn answered(mut self) {
        self.left = None;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).extend(self.left.take());
    }
}
