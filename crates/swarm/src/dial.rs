//! The control channel of many sessions over few sockets (PROTOCOL §3).
//!
//! QUIC tells its connections apart by their ids, so sessions share endpoints. To the gateway each connection looks
//! like that of an ordinary client; it is opened, patient and kept alive like one.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    AckFrequencyConfig, ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, IdleTimeout,
    RecvStream, SendStream, TokioRuntime, TransportConfig, TransportErrorCode, VarInt,
};
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use vpnd_crypto::{BINDING_LABEL, Binding, DeviceKey, EXPORTER_LABEL, EpochSecret};
use vpnd_proto::client::Purpose;
use vpnd_proto::control::{
    Attach, Code, Decoder, Established, Login, Message, Offer, SecretText, Software, UserName, encode,
};
use vpnd_proto::device::DeviceProof;

/// How long the handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the gateway has to answer a request: it may have many passwords to check.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a client shows that it lives, and after how long without a sign of life a connection is given up.
const KEEP_ALIVE: Duration = Duration::from_secs(25);
const IDLE_TIMEOUT_MS: u32 = 75_000;
/// Bytes in flight that either end allows.
const WINDOW: u32 = 64 * 1024;
const READ: usize = 2_048;

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("no handshake within {HANDSHAKE_TIMEOUT:?}")]
    NoHandshake,
    #[error("no answer within {ANSWER_TIMEOUT:?}")]
    NoAnswer,
    /// The connection could not be begun.
    #[error("the connection can't be begun: {0}")]
    Connect(#[from] quinn::ConnectError),
    #[error("the connection broke: {0}")]
    Connection(#[from] ConnectionError),
    #[error("the control channel broke: {0}")]
    Stream(String),
    /// The answer makes no sense.
    #[error("the answer makes no sense")]
    Unexpected,
}

impl DialError {
    /// True if the gateway is there and has no place for another connection now.
    pub(crate) fn is_full(&self) -> bool {
        let Self::Connection(ConnectionError::ConnectionClosed(frame)) = self else { return false };
        frame.error_code == TransportErrorCode::CONNECTION_REFUSED
    }
}

/// Why endpoints could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    #[error("a socket can't be made: {0}")]
    Socket(#[from] io::Error),
    /// The CA can't be used.
    #[error("the gateway's CA can't be used: {0}")]
    Ca(String),
}

/// What the gateway answered.
pub(crate) enum Answer {
    Established(Box<Channel>),
    Refused {
        code: Code,
        /// Why, for a person.
        text: String,
        /// When to try again.
        retry_after: Duration,
    },
}

/// An established control connection.
pub(crate) struct Channel {
    pub(crate) connection: Connection,
    /// What the gateway granted.
    pub(crate) established: Established,
    /// What its keys come from.
    pub(crate) secret: EpochSecret,
    pub(crate) send: SendStream,
    pub(crate) inbox: Inbox,
}

/// The messages of one stream.
pub(crate) struct Inbox {
    stream: RecvStream,
    decoder: Decoder,
}

impl Inbox {
    /// The next message; `None` at the end.
    ///
    /// # Errors
    /// If the stream breaks or holds no messages.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, DialError> {
        loop {
            let next = self.decoder.next_message();
            if let Some(message) = next.map_err(|error| DialError::Stream(error.to_string()))? {
                return Ok(Some(message));
            }
            let read = self.stream.read_chunk(READ, true).await;
            match read.map_err(|error| DialError::Stream(error.to_string()))? {
                Some(chunk) => self.decoder.push(&chunk.bytes),
                None => return Ok(None),
            }
        }
    }
}

/// A socket that reaches `gateway`, at the address `source` if there is one.
///
/// # Errors
/// If the system gives none.
pub(crate) fn bind(gateway: SocketAddr, source: Option<IpAddr>) -> io::Result<UdpSocket> {
    let any = match gateway {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((source.unwrap_or(any), 0))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// An endpoint for many connections from one port.
///
/// # Errors
/// If `ca_pem` holds no certificate, or the runtime does not take the socket.
pub(crate) fn endpoint(ca_pem: &str, socket: UdpSocket) -> Result<Endpoint, SetUpError> {
    let mut config = EndpointConfig::default();
    // The first byte tells control from data on the gateway's port.
    config.grease_quic_bit(false);
    let mut endpoint = Endpoint::new(config, None, socket, Arc::new(TokioRuntime))?;
    let mut client = ClientConfig::new(Arc::new(tls(ca_pem)?));
    client.transport_config(Arc::new(transport()));
    endpoint.set_default_client_config(client);
    Ok(endpoint)
}

fn tls(ca_pem: &str) -> Result<QuicClientConfig, SetUpError> {
    let refused = |error: &dyn std::fmt::Display| SetUpError::Ca(error.to_string());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        roots.add(certificate.map_err(|e| refused(&e))?).map_err(|e| refused(&e))?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| refused(&e))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"vpnd/1".to_vec()];
    config.try_into().map_err(|e: quinn::crypto::rustls::NoInitialCipherSuite| refused(&e))
}

fn transport() -> TransportConfig {
    // A keep-alive that is acknowledged at once spares the gateway a timer.
    let mut acknowledgements = AckFrequencyConfig::default();
    acknowledgements.ack_eliciting_threshold(VarInt::from_u32(0));
    let mut transport = TransportConfig::default();
    transport
        .ack_frequency_config(Some(acknowledgements))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(u64::from(WINDOW))
        .datagram_receive_buffer_size(None)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_TIMEOUT_MS))))
        .mtu_discovery_config(None);
    transport
}

/// What a user sends for this purpose, once there is a connection on which the device can prove itself.
pub(crate) fn request(
    purpose: Purpose,
    offer: Offer,
    (user, password): (UserName, SecretText<1024>),
) -> impl FnOnce(DeviceProof) -> Message + Send {
    let software = Some(Software::cut(concat!("trafficspeed/", env!("CARGO_PKG_VERSION"))));
    move |device| match purpose {
        Purpose::Login => Message::Login(Login { user, password, device, offer, code: None, software }),
        Purpose::Attach { session, token } => {
            Message::Attach(Attach { token, offer, session, software, device })
        }
    }
}

/// Shakes hands with the gateway, sends the request that carries the proof of the device with this key, and waits for the
/// answer.
///
/// # Errors
/// [`DialError`]; another attempt may succeed.
pub(crate) async fn dial(
    endpoint: Endpoint,
    gateway: SocketAddr,
    server_name: Arc<str>,
    key: &DeviceKey,
    request: impl FnOnce(DeviceProof) -> Message,
) -> Result<Answer, DialError> {
    let connecting = endpoint.connect(gateway, &server_name)?;
    let connection =
        tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting).await.map_err(|_| DialError::NoHandshake)??;
    let (mut send, stream) = connection.open_bi().await?;
    let mut inbox = Inbox { stream, decoder: Decoder::new() };
    let export = |out: &mut [u8; 32]| connection.export_keying_material(out, BINDING_LABEL, b"");
    let binding = Binding::try_export(export).map_err(|_| DialError::Unexpected)?;
    let request = request(DeviceProof::new(key.public(), key.sign(&binding)));
    let written = send.write_all(&encode(&request)).await;
    written.map_err(|error| DialError::Stream(error.to_string()))?;
    let answer =
        tokio::time::timeout(ANSWER_TIMEOUT, inbox.next()).await.map_err(|_| DialError::NoAnswer)??;
    let refused = |code, text: String, retry_after_ms: Option<u32>| Answer::Refused {
        code,
        text,
        retry_after: Duration::from_millis(retry_after_ms.unwrap_or(0).into()),
    };
    match answer {
        Some(Message::Established(established)) => {
            let export = |out: &mut [u8; 32]| connection.export_keying_material(out, EXPORTER_LABEL, b"");
            let secret = EpochSecret::try_export(export).map_err(|_| DialError::Unexpected)?;
            let established = *established;
            Ok(Answer::Established(Box::new(Channel { connection, established, secret, send, inbox })))
        }
        Some(Message::Refused(no)) => Ok(refused(no.code, no.text.to_string(), no.retry_after_ms)),
        Some(Message::Close(close)) => Ok(refused(close.code, close.text.to_string(), None)),
        _ => Err(DialError::Unexpected),
    }
}

/// The code with which the gateway closed a connection, if it did.
pub(crate) fn close_code(error: &ConnectionError) -> Option<Code> {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            u16::try_from(u64::from(close.error_code)).ok().map(Code::from)
        }
        _ => None,
    }
}
