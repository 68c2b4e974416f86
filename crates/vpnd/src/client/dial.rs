//! One control connection of a client: find the gateway, shake hands, log in or attach.
//!
//! Each attempt has a socket of its own, so that it leaves from whatever address the machine has now.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ConnectError, Connection, ConnectionError, TransportErrorCode};
use socket2::{Domain, Protocol, Socket, Type};
use vpnd_crypto::EpochSecret;
use vpnd_proto::client::Purpose;
use vpnd_proto::control::{
    Attach, Code, Established, Login, Message, Offer, OneTimeCode, Refused, SecretText, Software, TooLong,
    UserName,
};
use vpnd_proto::session::DeviceId;

use super::opener::Opener;
use crate::control::quic;
use crate::control::stream::{Reader, StreamError, Writer};
use crate::profile::ServerAddress;
use crate::tls;

/// How long one address of the gateway has to complete the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the gateway has to answer a login: it may have many passwords to check.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a person has to type a one-time code.
const PERSON_TIMEOUT: Duration = Duration::from_secs(90);

/// Why an attempt failed; another may succeed, unless [`DialError::is_final`] says no.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("the name {host} can't be resolved: {source}")]
    Resolve { host: String, source: io::Error },
    #[error("a socket for the control channel can't be made: {0}")]
    Socket(#[from] io::Error),
    #[error("the gateway's name or address can't be used: {0}")]
    Connect(#[from] ConnectError),
    #[error("{address} does not answer: {source}")]
    Handshake { address: SocketAddr, source: ConnectionError },
    #[error("{0} does not answer within {HANDSHAKE_TIMEOUT:?}")]
    NoHandshake(SocketAddr),
    #[error("the gateway does not answer the request within {ANSWER_TIMEOUT:?}")]
    NoAnswer,
    #[error("the control channel broke: {0}")]
    Stream(#[from] StreamError),
    #[error("the control channel broke: {0}")]
    Connection(#[from] ConnectionError),
    #[error("the gateway's answer makes no sense: {0}")]
    Unexpected(&'static str),
    #[error("no keys could be made from the handshake")]
    NoSecret,
    #[error("no one-time code was given")]
    NoCode,
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

impl DialError {
    /// True if trying again can't help: the gateway is not the one that the profile names, or it refuses our certificate.
    pub(super) fn is_final(&self) -> bool {
        let Self::Handshake { source, .. } = self else { return false };
        match source {
            // TLS alerts travel as transport errors of the range 0x100 (RFC 9001 §4.8); all of them are about identity here.
            ConnectionError::TransportError(error) => (0x100..0x200).contains(&u64::from(error.code)),
            ConnectionError::ConnectionClosed(frame) => (0x100..0x200).contains(&u64::from(frame.error_code)),
            _ => false,
        }
    }

    /// True if the gateway is there and has no place for another connection now.
    pub(super) fn is_full(&self) -> bool {
        let Self::Handshake { source: ConnectionError::ConnectionClosed(frame), .. } = self else {
            return false;
        };
        frame.error_code == TransportErrorCode::CONNECTION_REFUSED
    }
}

/// What the gateway answered.
pub(super) enum Answer {
    /// A new epoch.
    Established(Box<Channel>),
    /// No.
    Refused(Refused),
}

/// An established control connection.
pub(super) struct Channel {
    pub(super) connection: Connection,
    pub(super) endpoint: quinn::Endpoint,
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    pub(super) established: Established,
    pub(super) secret: EpochSecret,
}

/// Who logs in.
pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: SecretText<1024>,
    pub(super) device: DeviceId,
}

/// Everything that attempts have in common.
pub(super) struct Dialer {
    pub(super) servers: Vec<ServerAddress>,
    pub(super) server_name: String,
    pub(super) tls: Arc<QuicClientConfig>,
    pub(super) credentials: Credentials,
    /// Makes sockets and asks people.
    pub(super) opener: Arc<Opener>,
}

impl Dialer {
    /// Tries the gateway's addresses in turn and sends the request to the first that shakes hands.
    /// `rtt` is the round trip that the connection before had.
    pub(super) async fn dial(
        &self,
        purpose: &Purpose,
        offer: Offer,
        rtt: Option<Duration>,
    ) -> Result<Answer, DialError> {
        let (endpoint, connection) = self.shake_hands(rtt).await?;
        let (send, receive) = connection.open_bi().await?;
        let (mut writer, mut reader) = (Writer(send), Reader::new(receive));
        writer.send(&self.request(purpose, offer)?).await?;
        let established = loop {
            let answer = tokio::time::timeout(ANSWER_TIMEOUT, reader.next()).await;
            match answer.map_err(|_| DialError::NoAnswer)?? {
                Some(Message::Established(established)) => break *established,
                Some(Message::Refused(refused)) => return Ok(Answer::Refused(refused)),
                Some(Message::Close(close)) => {
                    return Ok(Answer::Refused(Refused {
                        code: close.code,
                        text: close.text,
                        retry_after_ms: None,
                    }));
                }
                Some(Message::OneTimeCodeWanted) => {
                    writer.send(&self.one_time_code().await?).await?;
                }
                Some(_) => return Err(DialError::Unexpected("a message that is no answer")),
                None => return Err(DialError::Unexpected("the end of the stream")),
            }
        };
        let secret = tls::epoch_secret(&connection).map_err(|_| DialError::NoSecret)?;
        Ok(Answer::Established(Box::new(Channel {
            connection,
            endpoint,
            reader,
            writer,
            established,
            secret,
        })))
    }

    async fn shake_hands(&self, rtt: Option<Duration>) -> Result<(quinn::Endpoint, Connection), DialError> {
        let mut last = DialError::Unexpected("a profile without servers");
        for server in &self.servers {
            let addresses = match tokio::net::lookup_host((server.host.as_str(), server.port)).await {
                Ok(addresses) => addresses,
                Err(source) => {
                    last = DialError::Resolve { host: server.host.clone(), source };
                    continue;
                }
            };
            for address in addresses {
                match self.shake_hands_with(address, rtt).await {
                    Ok(connected) => return Ok(connected),
                    Err(error) if error.is_final() => return Err(error),
                    Err(error) => {
                        tracing::debug!(%address, %error, "no connection");
                        last = error;
                    }
                }
            }
        }
        Err(last)
    }

    async fn shake_hands_with(
        &self,
        address: SocketAddr,
        rtt: Option<Duration>,
    ) -> Result<(quinn::Endpoint, Connection), DialError> {
        let endpoint =
            quic::dial_from(self.opener.socket(address.is_ipv6()).await?, Arc::clone(&self.tls), rtt)?;
        let connecting = endpoint.connect(address, &self.server_name)?;
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting).await {
            Ok(Ok(connection)) => Ok((endpoint, connection)),
            Ok(Err(source)) => Err(DialError::Handshake { address, source }),
            Err(_) => Err(DialError::NoHandshake(address)),
        }
    }

    /// Asks the person at the terminal.
    async fn one_time_code(&self) -> Result<Message, DialError> {
        let answer = tokio::time::timeout(PERSON_TIMEOUT, self.opener.one_time_code()).await;
        let code = answer.ok().flatten().ok_or(DialError::NoCode)?;
        Ok(Message::OneTimeCode(OneTimeCode { code }))
    }

    fn request(&self, purpose: &Purpose, offer: Offer) -> Result<Message, DialError> {
        let software = Some(Software::cut(concat!("vpnd/", env!("CARGO_PKG_VERSION"))));
        Ok(match purpose {
            Purpose::Login => Message::Login(Login {
                user: UserName::new(&self.credentials.user)?,
                password: self.credentials.password.clone(),
                device: self.credentials.device,
                offer,
                code: None,
                software,
            }),
            Purpose::Attach { session, token } => {
                Message::Attach(Attach { token: token.clone(), offer, session: *session, software })
            }
        })
    }
}

/// A socket for the control channel. Its datagrams carry the mark, so that they never enter the tunnel.
pub(super) fn socket(ipv6: bool, mark: Option<u32>) -> io::Result<UdpSocket> {
    let any: SocketAddr =
        if ipv6 { (Ipv6Addr::UNSPECIFIED, 0).into() } else { (Ipv4Addr::UNSPECIFIED, 0).into() };
    let socket = Socket::new(Domain::for_address(any), Type::DGRAM, Some(Protocol::UDP))?;
    if let Some(mark) = mark {
        socket.set_mark(mark)?;
    }
    socket.bind(&any.into())?;
    Ok(socket.into())
}

/// The code behind the end of a connection, if its peer gave one.
pub(super) fn close_code(error: &ConnectionError) -> Option<Code> {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            u16::try_from(u64::from(close.error_code)).ok().map(Code::from)
        }
        _ => None,
    }
}
