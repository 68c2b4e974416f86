//! The log's lines about devices that get no session, and about two that share a configuration.

use std::time::Duration;

use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::SessionId;
use vpnd_sys::log_limit::LogLimit;
use vpnd_wireguard::PublicKey;
use vpnd_wireguard::handshakes::Refused;

/// Limits the lines about handshakes that were refused.
static REFUSALS: LogLimit = LogLimit::new(20, Duration::from_secs(5));

pub(super) fn keeps_session(device: &PublicKey, why: &str) {
    if REFUSALS.admits() {
        tracing::info!(key = device.short(), why, "a renewed WireGuard device keeps its session");
    }
}

pub(super) fn not_let_in(device: &PublicKey, why: &str) {
    if REFUSALS.admits() {
        tracing::info!(key = device.short(), why, "a WireGuard device is not let in");
    }
}

pub(super) fn refused(from: Endpoint, why: &Refused) {
    if REFUSALS.admits() {
        tracing::info!(%why, "a WireGuard handshake was refused");
        tracing::debug!(from = %from.remote, "it came from there");
    }
}

pub(super) fn two_devices(
    device: Option<PublicKey>,
    session: Option<SessionId>,
    [here, there]: [Endpoint; 2],
) {
    tracing::warn!(
        key = device.map(|key| key.short()),
        session = session.map(|id| id.to_string()),
        "two devices use one WireGuard configuration, and both are slow: give each its own"
    );
    tracing::debug!(here = %here.remote, there = %there.remote, "they are there");
}
