//! Whether clients take the certificate that a gateway presents, by the verifier that they use.
//!
//! INVARIANT: time is another check's affair. The chain is judged at a moment of the certificate's
//! life.

use std::fmt;
use std::path::Path;

use rustls::CertificateError;
use rustls_pki_types::CertificateDer;

use crate::ServerConfig;
use crate::certificate;
use vpnd_pki::leaf::Leaf;
use vpnd_pki::tls::{SystemTrust, Trust};

/// A reason for which clients refuse a certificate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// All of them do.
    Certain(String),
    /// Those do whose machines trust no authority besides those of this one.
    Possible(String),
}

/// The fault of this chain as the one that the gateway presents, if there is one.
pub(crate) fn fault(config: &ServerConfig, chain: &[CertificateDer<'static>], now_s: u64) -> Option<Fault> {
    let path = config.tls.certificate.display();
    let leaf = Leaf::parse(chain.first()?)?;
    if leaf.names.is_empty() {
        return Some(Fault::Certain(format!(
            "{path} names no gateway (it has no subjectAltName with a DNS name or an address), so every client refuses it: order \
             one with the names by which clients reach the gateway"
        )));
    }
    let at_s = now_s.clamp(leaf.not_before_s, leaf.not_after_s.max(leaf.not_before_s));
    // A client that is configured for a wildcard names a host.
    let names: Vec<String> = leaf.names.iter().map(|name| name.replacen('*', "vpn", 1)).collect();
    let verified = |trust: &Trust<'_>| {
        names.iter().try_for_each(|name| vpnd_pki::leaf::verify(trust, chain, name, at_s))
    };
    let (own, _) = config.tls.authority();
    let pinned = own.and_then(|path| certificate::read(path).ok()).map(|ca| verified(&Trust::Pinned(&ca)));
    if pinned == Some(Ok(())) {
        return None;
    }
    let system = SystemTrust::read().map(|trust| verified(&Trust::System(trust)));
    let reason = match system {
        Ok(Ok(())) => return None,
        Ok(Err(error)) => error,
        Err(error) => rustls::Error::General(error.to_string()),
    };
    // One authority may have been found, and the other one not.
    let reasons = [pinned.and_then(Result::err), Some(reason)].into_iter().flatten();
    let reason = reasons.min_by_key(is_unknown_issuer)?;
    let ca = config.tls.ca.as_deref().filter(|_| !config.orders_own());
    // Authorities that are in the machines of a campus alone are not in this one's.
    if ca.is_none() && is_unknown_issuer(&reason) {
        return Some(Fault::Possible(format!(
            "{path} leads to no authority that this machine trusts, so clients take it only if theirs do. If an intermediate authority \
             has signed it, put that one's certificate behind it in the file; if it is of an authority of your own, name that as 'ca'"
        )));
    }
    Some(Fault::Certain(format!("clients refuse {path}: {}", Reason { reason, ca })))
}

fn is_unknown_issuer(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) | rustls::Error::General(_)
    )
}

/// Words for a client's reason.
struct Reason<'r> {
    reason: rustls::Error,
    ca: Option<&'r Path>,
}

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rustls::Error::InvalidCertificate(reason) = &self.reason else {
            return write!(f, "{}", self.reason);
        };
        match (reason, self.ca) {
            (CertificateError::UnknownIssuer, Some(ca)) => write!(
                f,
                "it leads neither to the authority in {} nor to one that this machine trusts. If an intermediate authority has signed \
                 it, put that one's certificate behind it in the file; if clients trust another authority, name that as 'ca' or leave 'ca' out",
                ca.display()
            ),
            (CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. }, _) => f
                .write_str(
                    "it is not for a server (its extendedKeyUsage lacks serverAuth): order one that is",
                ),
            (other, _) => f.write_str(&vpnd_pki::tls::fault_in_words(&other.to_string())),
        }
    }
}
