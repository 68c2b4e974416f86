//! Sessions that have ended: their line in the log, and their sums for status and metrics.

use std::collections::BTreeMap;

use vpnd_proto::gateway::EndedSession;

use vpnd_sys::clock::now;

/// Sessions that have ended, and the bytes of inner packets that they carried.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended {
    pub sessions: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub reasons: BTreeMap<&'static str, u64>,
}

impl Ended {
    /// Counts one more, and logs it.
    pub(super) fn add(&mut self, ended: &EndedSession) {
        let (received, sent) = (ended.activity.rx_bytes, ended.activity.tx_bytes);
        tracing::info!(
            user = &*ended.user,
            reason = ended.code.name(),
            duration_s = now().since(ended.since).as_secs(),
            received,
            sent,
            ipv4 = ended.addresses.ipv4.map(tracing::field::display),
            ipv6 = ended.addresses.ipv6.map(tracing::field::display),
            session = %ended.session,
            "session ended"
        );
        *self.reasons.entry(ended.code.name()).or_default() += 1;
        self.sessions += 1;
        self.rx_bytes += received;
        self.tx_bytes += sent;
    }
}
