//! A client's way from an endpoint to an answered request: handshake, request with the device's
//! proof, answer.

use std::net::SocketAddr;
use std::time::Duration;

use quinn::{ConnectError, Connection, ConnectionError, Endpoint, TransportErrorCode};
use tokio::time::timeout;
use vpnd_crypto::{Binding, EpochSecret};
use vpnd_proto::client::Purpose;
use vpnd_proto::control::{
    Attach, Challenge, End, Established, Login, LoginAt, Message, Offer, Refused, SecretText, Software,
    UserName,
};
use vpnd_proto::device::DeviceProof;

use crate::stream::{Reader, StreamError, Writer};
use crate::tls;

/// Limit for a handshake with one address of the gateway.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for the reply to a request: the gateway may have many passwords to check.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// An error of a handshake.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The endpoint can't begin one.
    #[error("the gateway's name or address can't be used: {0}")]
    Connect(#[from] ConnectError),
    /// The gateway or the network ended it.
    #[error("the handshake failed: {0}")]
    Failed(#[from] ConnectionError),
    /// Nothing came back.
    #[error("no handshake within {HANDSHAKE_TIMEOUT:?}")]
    Timeout,
}

/// Whether a handshake ended because the gateway has no room for another connection now.
#[must_use]
pub fn is_full(error: &ConnectionError) -> bool {
    let ConnectionError::ConnectionClosed(frame) = error else { return false };
    frame.error_code == TransportErrorCode::CONNECTION_REFUSED
}

/// Shakes hands with the gateway at `gateway`.
///
/// # Errors
/// [`HandshakeError`]; another attempt may succeed.
pub async fn shake_hands(
    endpoint: &Endpoint,
    gateway: SocketAddr,
    server_name: &str,
) -> Result<Connection, HandshakeError> {
    let connecting = endpoint.connect(gateway, server_name)?;
    Ok(timeout(HANDSHAKE_TIMEOUT, connecting).await.map_err(|_| HandshakeError::Timeout)??)
}

/// An error of a login or attach, other than a refusal.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The gateway took too long.
    #[error("the gateway does not answer the request in time")]
    NoAnswer,
    /// The stream ended, or held no messages.
    #[error("the control channel broke: {0}")]
    Stream(#[from] StreamError),
    /// The connection is gone.
    #[error("the control channel broke: {0}")]
    Connection(#[from] ConnectionError),
    /// Something that can't follow a request.
    #[error("the gateway's answer makes no sense: {0}")]
    Unexpected(&'static str),
    /// TLS exports nothing: the handshake is not complete.
    #[error("no keys could be made from the handshake")]
    NoSecret,
}

/// The request for this purpose, by a user who has one password and a device with a proof.
#[must_use]
pub fn request(
    purpose: &Purpose,
    offer: Offer,
    (user, password): (UserName, SecretText<1024>),
    device: DeviceProof,
    software: &str,
) -> Message {
    let software = Some(Software::cut(software));
    match purpose {
        Purpose::Login | Purpose::Move => {
            Message::Login(Login { user, password, device, offer, code: None, software, grant: None })
        }
        Purpose::Attach { session, token } | Purpose::Transfer { session, token } => {
            Message::Attach(Attach { token: token.clone(), offer, session: *session, software, device })
        }
    }
}

/// The gateway's answer to a request.
pub enum LoginReply {
    /// A new epoch.
    Established(Box<Established>),
    /// No session.
    Refused(Refused),
    /// A login goes on with a one-time code.
    OneTimeCodeWanted,
    /// A login goes on with a challenge.
    Challenge(Challenge),
    /// A login goes on in a browser.
    LoginAt(LoginAt),
}

/// A connection on which a request is sent and answered.
pub struct RequestStream {
    connection: Connection,
    reader: Reader,
    writer: Writer,
}

/// An established control connection.
pub struct Channel {
    /// The QUIC connection.
    pub connection: Connection,
    /// Messages of the gateway.
    pub reader: Reader,
    /// Messages to the gateway.
    pub writer: Writer,
    /// The gateway's grant.
    pub established: Established,
    /// The secret behind the keys of the new epoch.
    pub secret: EpochSecret,
}

impl RequestStream {
    /// Opens the one stream.
    ///
    /// # Errors
    /// If the connection is gone.
    pub async fn open(connection: Connection) -> Result<Self, LoginError> {
        let (send, receive) = connection.open_bi().await?;
        Ok(Self { connection, reader: Reader::new(receive, End::Gateway), writer: Writer::new(send) })
    }

    /// The bytes that a device signs to prove itself on this connection.
    ///
    /// # Errors
    /// [`LoginError::NoSecret`].
    pub fn binding(&self) -> Result<Binding, LoginError> {
        tls::device_binding(&self.connection).map_err(|_| LoginError::NoSecret)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// If the stream is gone.
    pub async fn send(&mut self, message: &Message) -> Result<(), LoginError> {
        Ok(self.writer.send(message).await?)
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// [`LoginError`].
    pub async fn reply(&mut self) -> Result<LoginReply, LoginError> {
        self.reply_within(ANSWER_TIMEOUT).await
    }

    /// Waits this long for the answer: a person may have to act elsewhere first.
    ///
    /// # Errors
    /// [`LoginError`].
    pub async fn reply_within(&mut self, longest: Duration) -> Result<LoginReply, LoginError> {
        let next = timeout(longest, self.reader.next()).await;
        match next.map_err(|_| LoginError::NoAnswer)?? {
            Some(Message::Established(established)) => Ok(LoginReply::Established(established)),
            Some(Message::Refused(refused)) => Ok(LoginReply::Refused(refused)),
            Some(Message::Close(close)) => {
                Ok(LoginReply::Refused(Refused { code: close.code, text: close.text, retry_after_ms: None }))
            }
            Some(Message::OneTimeCodeWanted) => Ok(LoginReply::OneTimeCodeWanted),
            Some(Message::Challenge(challenge)) => Ok(LoginReply::Challenge(challenge)),
            Some(Message::LoginAt(at)) => Ok(LoginReply::LoginAt(at)),
            Some(_) => Err(LoginError::Unexpected("a message that is no answer")),
            None => Err(LoginError::Unexpected("the end of the stream")),
        }
    }

    /// The channel of what the gateway has granted. Call it once for each connection.
    ///
    /// # Errors
    /// [`LoginError::NoSecret`].
    pub fn establish(self, established: Established) -> Result<Channel, LoginError> {
        let secret = tls::epoch_secret(&self.connection).map_err(|_| LoginError::NoSecret)?;
        let Self { connection, reader, writer } = self;
        Ok(Channel { connection, reader, writer, established, secret })
    }
}
