//! The control connections of a gateway that stops: those that there are get their last message,
//! and no other begins.
//!
//! INVARIANT: a client that confirms nothing holds up no stop.

use std::convert::Infallible;
use std::sync::Weak;
use std::time::Duration;

use tokio::sync::mpsc;

use super::connection::ControlServer;

/// Time within which a client confirms its notice, if it does at all: longer than a round trip.
const NOTICE_TIMEOUT: Duration = Duration::from_millis(200);

/// Refuses all who would connect, so that they try again soon instead of waiting for an answer that
/// does not come.
pub(super) async fn refuse_all(endpoint: quinn::Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        incoming.refuse();
    }
}

/// Waits until all connections have sent their last message, or those that are left do not get on.
pub(super) async fn all_closed(mut closed: mpsc::Receiver<Infallible>, connections: &Weak<ControlServer>) {
    let mut open = connections.strong_count();
    while tokio::time::timeout(NOTICE_TIMEOUT, closed.recv()).await.is_err() {
        let left = connections.strong_count();
        if left >= open {
            return;
        }
        open = left;
    }
}
