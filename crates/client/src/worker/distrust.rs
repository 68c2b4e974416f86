//! Maps TLS alerts that end a handshake to their causes: which certificate is at fault, and what a
//! person can do about it.
//!
//! TLS alerts travel as QUIC errors of the range 0x100 (RFC 9001 section 4.8). Those that this end
//! has found come with the words of its verifier, those of the gateway as a bare number. In TLS 1.3
//! the gateway's may come after the handshake has succeeded on this side.

use quinn::{ConnectionError, ReadError, WriteError};
use vpnd_control_channel::stream::StreamError;

use vpnd_pki::tls::fault_in_words;

const ALERTS: std::ops::Range<u64> = 0x100..0x200;
// Alerts of RFC 8446 section 6.
const BAD_CERTIFICATE: u64 = 42;
const CERTIFICATE_EXPIRED: u64 = 45;
const CERTIFICATE_UNKNOWN: u64 = 46;
const UNKNOWN_CA: u64 = 48;
const DECRYPT_ERROR: u64 = 51;
const CERTIFICATE_REQUIRED: u64 = 116;
const NO_APPLICATION_PROTOCOL: u64 = 120;

/// Reason why one end does not trust the other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Distrust {
    #[error(
        "the gateway's certificate was not signed by the authority that the profile trusts: the profile is another gateway's, or \
         older than this gateway's certificates (ask the administrator for a new one), or another host answers in its place"
    )]
    UnknownAuthority,
    #[error(
        "the gateway's certificate has expired: the administrator has to run 'vpnd renew', unless the clock of this machine is wrong"
    )]
    Expired,
    #[error("the gateway's certificate is not valid yet: is the clock of this machine right?")]
    NotYetValid,
    #[error("the gateway's certificate is for another name than 'name' in [server] of the profile")]
    OtherName,
    #[error("the gateway's certificate can't be used: {0}")]
    Unusable(String),
    #[error(
        "the gateway wants a client certificate, and the profile has none: ask the administrator for a profile with one \
         ('vpnd user add --client-cert' makes it)"
    )]
    CertificateRequired,
    #[error(
        "the gateway does not take the client certificate of the profile (TLS alert {0}): it has expired, was revoked, or is another \
         gateway's; ask the administrator for a new profile"
    )]
    CertificateRefused(u64),
    #[error("the gateway does not support this version of the protocol: update the older of the two")]
    OtherProtocol,
}

impl Distrust {
    /// The cause behind the end of a connection, if it is one of these.
    pub(super) fn behind(error: &ConnectionError) -> Option<Self> {
        let alert = |code: u64| ALERTS.contains(&code).then(|| code - ALERTS.start);
        match error {
            ConnectionError::TransportError(error) => {
                Some(Self::of_own_alert(alert(error.code.into())?, &error.reason))
            }
            ConnectionError::ConnectionClosed(frame) => Self::of_peer_alert(alert(frame.error_code.into())?),
            _ => None,
        }
    }

    /// Judges a stream's error after its connection was lost.
    pub(super) fn behind_stream(error: &StreamError) -> Option<Self> {
        match error {
            StreamError::Read(ReadError::ConnectionLost(error))
            | StreamError::Write(WriteError::ConnectionLost(error)) => Self::behind(error),
            _ => None,
        }
    }

    /// This end has found a fault with the gateway.
    fn of_own_alert(alert: u64, reason: &str) -> Self {
        match alert {
            UNKNOWN_CA | DECRYPT_ERROR => Self::UnknownAuthority,
            CERTIFICATE_EXPIRED if reason.contains("not valid yet") => Self::NotYetValid,
            CERTIFICATE_EXPIRED => Self::Expired,
            BAD_CERTIFICATE if reason.contains("not valid for name") => Self::OtherName,
            NO_APPLICATION_PROTOCOL => Self::OtherProtocol,
            _ => Self::Unusable(fault_in_words(reason)),
        }
    }

    /// The gateway has found a fault with this end. Other alerts, such as that of a failure inside
    /// the gateway, may pass.
    fn of_peer_alert(alert: u64) -> Option<Self> {
        match alert {
            CERTIFICATE_REQUIRED => Some(Self::CertificateRequired),
            NO_APPLICATION_PROTOCOL => Some(Self::OtherProtocol),
            BAD_CERTIFICATE..=CERTIFICATE_UNKNOWN | UNKNOWN_CA | DECRYPT_ERROR => {
                Some(Self::CertificateRefused(alert))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_faults_of_either_end_are_distinguished() {
        let reason = "invalid peer certificate: ";
        assert_eq!(Distrust::of_own_alert(48, reason), Distrust::UnknownAuthority);
        assert_eq!(Distrust::of_own_alert(51, reason), Distrust::UnknownAuthority);
        assert_eq!(Distrust::of_own_alert(42, "certificate not valid for name \"x\""), Distrust::OtherName);
        let own =
            Distrust::of_own_alert(46, &format!("{reason}Other(OtherError(CaUsedAsEndEntity))")).to_string();
        assert!(own.contains("can't be used: it is an authority's") && !own.contains("Error"), "{own}");
        let other = Distrust::of_own_alert(42, &format!("{reason}a new fault"));
        assert_eq!(other, Distrust::Unusable("a new fault".to_owned()));
        assert_eq!(Distrust::of_own_alert(45, "certificate not valid yet: 1 < 2"), Distrust::NotYetValid);
        assert_eq!(Distrust::of_own_alert(45, "certificate expired"), Distrust::Expired);
        assert_eq!(Distrust::of_peer_alert(116), Some(Distrust::CertificateRequired));
        assert_eq!(Distrust::of_peer_alert(45), Some(Distrust::CertificateRefused(45)));
        assert_eq!(Distrust::of_peer_alert(120), Some(Distrust::OtherProtocol));
        assert_eq!(Distrust::of_peer_alert(80), None, "an internal error may pass");
    }
}
