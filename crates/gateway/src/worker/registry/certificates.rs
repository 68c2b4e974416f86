//! The certificates that clients of sessions have shown, and those that were revoked.
//!
//! INVARIANT: none is kept of a session that is over.

use std::collections::HashMap;

use vpnd_pki::revocation_list::{CertificateNumber, RevocationList};
use vpnd_proto::session::SessionId;

#[derive(Default)]
pub(super) struct Certificates {
    /// Those revoked by the clients' authority. TLS refuses them, too, but a connection may have
    /// begun before.
    revoked: RevocationList,
    /// The last one of each session.
    shown: HashMap<SessionId, CertificateNumber>,
}

impl Certificates {
    /// These are revoked now.
    pub(super) fn revoke(&mut self, revoked: RevocationList) {
        self.revoked = revoked;
    }

    /// The sessions that have shown a certificate which was revoked.
    pub(super) fn revoked(&self) -> impl Iterator<Item = SessionId> {
        let shown = self.shown.iter().filter(|(_, certificate)| self.is_revoked(certificate));
        shown.map(|(session, _)| *session)
    }

    pub(super) fn is_revoked(&self, certificate: &CertificateNumber) -> bool {
        self.revoked.names(certificate)
    }

    pub(super) fn show(&mut self, session: SessionId, certificate: CertificateNumber) {
        self.shown.insert(session, certificate);
    }

    /// The certificate that the session's client has shown.
    pub(super) fn shown(&self, session: SessionId) -> Option<CertificateNumber> {
        self.shown.get(&session).cloned()
    }

    /// The session is over.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.shown.remove(&session);
    }

    /// All sessions are over here.
    pub(super) fn forget_all(&mut self) {
        self.shown.clear();
    }
}
