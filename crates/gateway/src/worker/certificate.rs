//! The certificate that a gateway's worker presents. It has the chain and never the key: the auth
//! process signs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vpnd_ipc::gateway::{GatewayCertificate, PinnedCertificate};
use vpnd_ipc::signing::{RemoteKey, SigningClient};
use vpnd_pki::tls::{Chains, Presented, TlsError};

/// The certificate in use, which may be replaced while the gateway runs.
pub(super) struct WorkerCertificate {
    pub(super) presented: Arc<Presented>,
    signing: Arc<SigningClient>,
    expires_s: AtomicU64,
}

impl WorkerCertificate {
    /// Presents `certificate`; signatures come by `signing`.
    pub(super) fn new(
        certificate: &GatewayCertificate,
        signing: Arc<SigningClient>,
    ) -> Result<Self, TlsError> {
        let presented = Presented::new(chains(certificate, &signing)?);
        Ok(Self { presented, signing, expires_s: AtomicU64::new(certificate.expires_s) })
    }

    /// Presents `certificate` in all handshakes that begin from now on.
    pub(super) fn replace(&self, certificate: &GatewayCertificate) -> Result<(), TlsError> {
        self.presented.replace(chains(certificate, &self.signing)?);
        self.expires_s.store(certificate.expires_s, Ordering::Relaxed);
        Ok(())
    }

    /// When it expires, seconds since 1970.
    pub(super) fn expires_s(&self) -> u64 {
        self.expires_s.load(Ordering::Relaxed)
    }
}

fn chains(certificate: &GatewayCertificate, signing: &Arc<SigningClient>) -> Result<Chains, TlsError> {
    let key = RemoteKey::new(certificate.key.clone(), Arc::clone(signing));
    let chains = Chains::signed_by(&certificate.chain, key)?;
    match &certificate.pinned {
        Some(PinnedCertificate { chain, ca }) => chains.with_pinned(chain, ca),
        None => Ok(chains),
    }
}
