//! The control channel of many sessions over few sockets (PROTOCOL §3).
//!
//! QUIC distinguishes connections by their ids, so sessions share endpoints. To the gateway each
//! connection looks like that of an ordinary client, whose channel it is (`vpnd_control_channel`).

use std::future::Ready;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::Endpoint;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use vpnd_control_channel::login::{self, Channel, HandshakeError, LoginError, RequestStream, shake_hands};
use vpnd_control_channel::quic::client_endpoint;
use vpnd_control_channel::tls::{client_builder, finish};
use vpnd_crypto::DeviceKey;
use vpnd_proto::client::Purpose;
use vpnd_proto::control::{Message, Offer, Refused, SecretText, UserName};
use vpnd_proto::device::DeviceProof;
use vpnd_sys::address_race;

const SOFTWARE: &str = concat!("trafficspeed/", env!("CARGO_PKG_VERSION"));

/// An error of one attempt to connect and log in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Login(#[from] LoginError),
    #[error("there is no other gateway")]
    NoOther,
    #[error("the gateway asks for a one-time code, which these users don't have")]
    OneTimeCode,
}

impl DialError {
    /// Whether the gateway is there and has no room for another connection now.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Handshake(HandshakeError::Failed(error)) if login::is_full(error))
    }
}

/// An error while endpoints are created.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    #[error("a socket can't be made: {0}")]
    Socket(#[from] io::Error),
    #[error("the gateway's CA can't be used: {0}")]
    Ca(String),
}

/// The gateway's answer to a request.
pub(crate) enum DialOutcome {
    Established(Box<Channel>),
    Refused(Refused),
}

/// Any port of the address `source`, or of all, for a socket that reaches `gateway`.
pub(crate) fn local(gateway: SocketAddr, source: Option<IpAddr>) -> SocketAddr {
    let any = match gateway {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(source.unwrap_or(any), 0)
}

/// A socket there that does not block.
///
/// # Errors
/// If the system gives none.
pub(crate) fn bind(local: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(local)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// An endpoint for many connections from one port.
///
/// # Errors
/// If `ca_pem` holds no certificate, or the runtime does not take the socket.
pub(crate) fn endpoint(ca_pem: &str, socket: UdpSocket) -> Result<Endpoint, SetUpError> {
    Ok(client_endpoint(socket, Arc::new(tls(ca_pem)?), None)?)
}

fn tls(ca_pem: &str) -> Result<QuicClientConfig, SetUpError> {
    let refused = |error: &dyn std::fmt::Display| SetUpError::Ca(error.to_string());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        roots.add(certificate.map_err(|e| refused(&e))?).map_err(|e| refused(&e))?;
    }
    let builder = client_builder().map_err(|e| refused(&e))?;
    let config = finish(builder.with_root_certificates(roots).with_no_client_auth());
    config.try_into().map_err(|e: quinn::crypto::rustls::NoInitialCipherSuite| refused(&e))
}

/// The request of a user for this purpose, once there is a connection on which the device can prove
/// itself.
pub(crate) fn request(
    purpose: Purpose,
    offer: Offer,
    user: (UserName, SecretText<1024>),
) -> impl FnOnce(DeviceProof) -> Message + Send {
    move |device| login::request(&purpose, offer, user, device, SOFTWARE)
}

/// Shakes hands with the first of these gateways that answers, sends it the request that carries
/// the proof of the device with this key, and waits for the answer.
pub(crate) async fn dial(
    endpoint: Endpoint,
    gateways: Vec<SocketAddr>,
    server_name: Arc<str>,
    key: &DeviceKey,
    request: impl FnOnce(DeviceProof) -> Message,
) -> Result<DialOutcome, DialError> {
    let names = None::<Ready<Result<Vec<SocketAddr>, HandshakeError>>>;
    let attempt = |gateway| shake_hands(&endpoint, gateway, &server_name);
    let connection = address_race::race(gateways, names, Duration::ZERO, attempt).await;
    let connection = connection.map_err(|error| error.map_or(DialError::NoOther, DialError::Handshake))?;
    let mut stream = RequestStream::open(connection).await?;
    let proof = key.sign(&stream.binding()?);
    stream.send(&request(DeviceProof::new(key.public(), proof))).await?;
    match stream.reply().await? {
        login::LoginReply::Established(established) => {
            Ok(DialOutcome::Established(Box::new(stream.establish(*established)?)))
        }
        login::LoginReply::Refused(refused) => Ok(DialOutcome::Refused(refused)),
        login::LoginReply::OneTimeCodeWanted
        | login::LoginReply::Challenge(_)
        | login::LoginReply::LoginAt(_) => Err(DialError::OneTimeCode),
    }
}
