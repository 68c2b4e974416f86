//! The reasons for which an attempt to connect fails.
//!
//! INVARIANT: what shows before the gateway has proved itself is never final, for any host on the
//! way can be the cause.

use std::io;
use std::net::SocketAddr;

use quinn::{ConnectError, ConnectionError};
use vpnd_control_channel::login::{self, HANDSHAKE_TIMEOUT, HandshakeError, LoginError};
use vpnd_proto::control::TooLong;

use super::browser::BrowserError;
use crate::worker::distrust::Distrust;
use crate::worker::over_tcp::CarrierError;
use crate::worker::parent_client::ParentError;
use vpnd_pki::tls::TlsError;

/// An error of one attempt; another may succeed, unless [`DialError::is_final`].
#[derive(Debug, thiserror::Error)]
pub(in crate::worker) enum DialError {
    #[error("{0}")]
    Parent(#[from] ParentError),
    #[error("the profile names no gateway")]
    NoAddress,
    #[error("the profile names no other gateway")]
    NoOther,
    #[error("a socket for the control channel can't be made: {0}")]
    Socket(#[from] io::Error),
    #[error("the gateway's name or address can't be used: {0}")]
    Connect(ConnectError),
    #[error("{address} does not answer: {source}")]
    Handshake { address: SocketAddr, source: ConnectionError },
    #[error("{0} does not answer within {HANDSHAKE_TIMEOUT:?}")]
    NoHandshake(SocketAddr),
    #[error(transparent)]
    Distrust(Distrust),
    /// A failure before the gateway had proved itself, of which any host on the path can be the
    /// cause.
    #[error("{address}: {cause}")]
    Unproven { address: SocketAddr, cause: Unproven },
    #[error(transparent)]
    Login(#[from] LoginError),
    #[error("this device can't prove itself: {0}")]
    NoProof(#[source] ParentError),
    #[error("the gateway asks: \"{0}\", and there is no answer: run 'vpnd connect' in a terminal")]
    NoPerson(String),
    #[error(transparent)]
    Browser(#[from] BrowserError),
    #[error(transparent)]
    TooLong(#[from] TooLong),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Carrier(#[from] CarrierError),
}

/// A fault that shows before the gateway has proved itself. It may pass: another host may have
/// answered, the clock may be wrong until it is set, and the gateway may get another certificate.
#[derive(Debug, thiserror::Error)]
pub(in crate::worker) enum Unproven {
    #[error(transparent)]
    Untrusted(Distrust),
    #[error("it, or another host on the way, refuses the handshake: {0}")]
    Refused(Distrust),
}

impl DialError {
    /// Whether trying again can't help: a gateway that has proved itself refuses our certificate,
    /// or asks a question that is not answered. One that was up before (`was_up`) may take it
    /// again.
    pub(in crate::worker) fn is_final(&self, was_up: bool) -> bool {
        match self {
            Self::Distrust(_) => !was_up,
            Self::NoPerson(_) => true,
            Self::Browser(error) => error.is_final(),
            _ => false,
        }
    }

    /// Replaces the error by its cause if one end does not trust the other. That may show at any
    /// step: a handshake that has succeeded here may fail there.
    pub(super) fn with_cause(self) -> Self {
        let cause = match &self {
            Self::Handshake { address, source } => Distrust::behind(source).map(|distrust| {
                let is_closed = matches!(source, ConnectionError::ConnectionClosed(_));
                let cause =
                    if is_closed { Unproven::Refused(distrust) } else { Unproven::Untrusted(distrust) };
                Self::Unproven { address: *address, cause }
            }),
            Self::Login(LoginError::Connection(source)) => Distrust::behind(source).map(Self::Distrust),
            Self::Login(LoginError::Stream(error)) => Distrust::behind_stream(error).map(Self::Distrust),
            _ => None,
        };
        cause.unwrap_or(self)
    }

    /// Whether the gateway is there and has no room for another connection now.
    pub(in crate::worker) fn is_full(&self) -> bool {
        matches!(self, Self::Handshake { source, .. } if login::is_full(source))
    }

    pub(super) fn of_handshake(address: SocketAddr, error: HandshakeError) -> Self {
        match error {
            HandshakeError::Connect(error) => Self::Connect(error),
            HandshakeError::Failed(source) => Self::Handshake { address, source }.with_cause(),
            HandshakeError::Timeout => Self::NoHandshake(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of a handshake that ends so.
    fn handshake(source: ConnectionError) -> DialError {
        DialError::of_handshake("192.0.2.1:4433".parse().unwrap(), HandshakeError::Failed(source))
    }

    fn closed() -> ConnectionError {
        ConnectionError::ConnectionClosed(quinn::ConnectionClose {
            error_code: quinn::TransportErrorCode::crypto(42),
            frame_type: None,
            reason: Vec::new().into(),
        })
    }

    #[test]
    fn what_arrives_before_the_handshake_is_authenticated_is_not_final() {
        let forged = handshake(closed());
        assert!(!forged.is_final(false), "{forged}");
        assert!(forged.to_string().contains("another host on the way"), "{forged}");
        let authenticated = DialError::Login(LoginError::Connection(closed())).with_cause();
        assert!(authenticated.is_final(false) && !authenticated.is_final(true), "{authenticated}");
    }

    #[test]
    fn a_certificate_that_is_not_trusted_is_waited_for() {
        for (alert, reason, expected) in [
            (45, "certificate not valid yet: 1 < 2", "is the clock of this machine right?"),
            (45, "certificate expired", "unless the clock of this machine is wrong"),
            (48, "unknown issuer", "was not signed by the authority"),
            (42, "certificate not valid for name \"x\"", "for another name"),
            (43, "unsupported", "can't be used"),
        ] {
            let code = quinn::TransportErrorCode::crypto(alert);
            let error = quinn_proto::TransportError { code, frame: None, reason: reason.to_owned() };
            let untrusted = handshake(error.into());
            assert!(untrusted.to_string().contains(expected), "{untrusted}");
            assert!(!untrusted.is_final(false), "{untrusted}");
        }
    }
}
