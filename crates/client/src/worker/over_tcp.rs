//! A way to the gateway over TCP, for networks that pass no UDP (PROTOCOL §18).
//!
//! A carrier is one TCP connection, with a socket of this machine before it: what a connection of
//! the control channel and the lanes send there goes to the gateway, and what comes back goes to
//! them. So nothing else of the client knows that there is no UDP.
//!
//! INVARIANT: a carrier takes datagrams of this client's own sockets alone. Its certificate is
//! checked, and proves nothing of the gateway: what is inside does that.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rustls_pki_types::ServerName;
use socket2::SockRef;
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use vpnd_proto::wire::PacketClass;
use vpnd_relay::opening::{ask, connect_request, upgrade_request};
use vpnd_relay::{Datagrams, MAX_UNSENT_BELOW, MAX_UNSENT_TLS, Patience, Run, RunSocket, relay};

use super::parent_client::{ParentClient, ParentError};
use vpnd_config::profile::{Profile, Proxy, ServerAddress};
use vpnd_pki::tls::{self, TlsError, Trust};

/// Limit for a connection to be ready.
const OPEN_TIMEOUT: Duration = Duration::from_secs(8);
/// Time in which the network acknowledges what was sent.
const ACKNOWLEDGEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// The ends of the tunnel notice silence themselves.
const PATIENCE: Patience = Patience { first: Duration::MAX, silence: Duration::MAX };

/// Why there is no carrier.
#[derive(Debug, thiserror::Error)]
pub(super) enum CarrierError {
    #[error(transparent)]
    Parent(#[from] ParentError),
    #[error("TCP {address} can't be reached: {source}")]
    Connect { address: SocketAddr, source: io::Error },
    #[error("TCP {0} does not answer within {OPEN_TIMEOUT:?}")]
    Silent(SocketAddr),
    #[error(
        "the certificate at TCP {address} is not one that the profile or this machine trusts for the gateway ({source}): does \
         a proxy of this network look into TLS?"
    )]
    Untrusted { address: SocketAddr, source: io::Error },
    #[error("TLS with TCP {address} fails: {source}")]
    Tls { address: SocketAddr, source: io::Error },
    #[error("TCP {address} carries no tunnel: {answer}")]
    Refused { address: SocketAddr, answer: String },
    #[error("the proxy {address} does not connect to the gateway: {answer}")]
    Proxy { address: SocketAddr, answer: String },
    #[error("the proxy {0} does not accept user and password: correct 'proxy' in [server] of the profile")]
    ProxyPassword(SocketAddr),
}

/// How a carrier's connection reaches the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way<'p> {
    Direct,
    Proxy,
    /// With these, user and password.
    ProxyAs(&'p str),
}

impl<'p> Way<'p> {
    /// The way that is tried first. A password is in clear for the local network, so no proxy gets
    /// it unasked.
    fn first(proxy: Option<&Proxy>) -> Self {
        if proxy.is_some() { Self::Proxy } else { Self::Direct }
    }

    /// The way to try after this one has failed, if there is one.
    fn after(self, error: &CarrierError, proxy: Option<&'p Proxy>) -> Option<Self> {
        let credentials = proxy.and_then(|proxy| proxy.credentials.as_ref())?;
        let is_asked = self == Self::Proxy && matches!(error, CarrierError::ProxyPassword(_));
        is_asked.then_some(Self::ProxyAs(credentials))
    }
}

/// The ports of the lanes' sockets. They may change.
pub(super) type LanePorts = Arc<[AtomicU16]>;

/// What all carriers of a client have in common.
pub(super) struct OverTcp {
    pub(super) port: u16,
    pub(super) proxy: Option<Proxy>,
    /// The gateway, as a proxy is asked for it.
    target: String,
    tls: TlsConnector,
    name: ServerName<'static>,
    lanes: LanePorts,
}

/// A connection that carries datagrams. It ends when it is dropped.
pub(super) struct Carrier {
    /// Where datagrams for the gateway go.
    pub(super) local: SocketAddr,
    /// The gateway's own address over UDP, if that can be told.
    pub(super) gateway: Option<SocketAddr>,
    /// The port of the control channel's socket.
    control: Arc<AtomicU16>,
    task: JoinHandle<()>,
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The address of the gateway at the other end of a connection over UDP or by this carrier, if that
/// can be told.
pub(super) fn gateway_of(connection: &quinn::Connection, carrier: Option<&Carrier>) -> Option<SocketAddr> {
    carrier.map_or_else(|| Some(connection.remote_address()), |carrier| carrier.gateway)
}

impl Carrier {
    /// The control channel's socket that uses it.
    pub(super) fn set_control(&self, port: u16) {
        self.control.store(port, Ordering::Relaxed);
    }
}

impl OverTcp {
    /// Carriers to this port of the profile's gateway.
    pub(super) fn new(port: u16, profile: &Profile, trusts: &[Trust<'_>]) -> Result<Self, TlsError> {
        let name = ServerName::try_from(profile.server_name.clone())
            .map_err(|_| TlsError::Empty("the gateway's name"))?;
        let tls = TlsConnector::from(Arc::new(tls::to_pages(trusts)?));
        let host = profile.servers.first().map_or(&profile.server_name, |server| &server.host);
        let target = ServerAddress { host: host.clone(), port }.to_string();
        Ok(Self { port, proxy: profile.proxy.clone(), target, tls, name, lanes: Arc::default() })
    }

    /// Sets the ports of the lanes' sockets.
    pub(super) fn of_lanes(self, lanes: Vec<u16>) -> Self {
        Self { lanes: lanes.into_iter().map(AtomicU16::new).collect(), ..self }
    }

    /// The lanes' sockets have these ports from now on.
    pub(super) fn lanes_are_at(&self, ports: &[u16]) {
        for (lane, port) in self.lanes.iter().zip(ports) {
            lane.store(*port, Ordering::Relaxed);
        }
    }

    /// Opens a carrier to this address of the gateway, or of the proxy.
    pub(super) async fn open(
        &self,
        parent: &ParentClient,
        (address, gateway): (SocketAddr, Option<SocketAddr>),
        proxy: Option<&Proxy>,
    ) -> Result<Carrier, CarrierError> {
        let mut way = Way::first(proxy);
        let (socket, (stream, before)) = loop {
            let (tcp, socket) = parent.stream(address).await?;
            let opened = timeout(OPEN_TIMEOUT, self.upgraded(tcp, address, way)).await;
            match opened.map_err(|_| CarrierError::Silent(address))? {
                Ok(opened) => break (socket, opened),
                Err(error) => way = way.after(&error, proxy).ok_or(error)?,
            }
        };
        let failed = |source| CarrierError::Connect { address, source };
        let socket = UdpSocket::from_std(socket).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        let control = Arc::<AtomicU16>::default();
        let own = Own {
            socket: RunSocket::new(socket),
            control: Arc::clone(&control),
            lane: AtomicUsize::new(0),
            lanes: Arc::clone(&self.lanes),
        };
        let task = tokio::spawn(async move {
            let end = relay(stream, &before, &own, PATIENCE, &AtomicU64::new(0)).await;
            tracing::debug!(%end, "a TCP connection to the gateway is over");
        });
        Ok(Carrier { local, gateway, control, task })
    }

    async fn upgraded(
        &self,
        tcp: std::net::TcpStream,
        address: SocketAddr,
        way: Way<'_>,
    ) -> Result<(TlsStream<TcpStream>, Vec<u8>), CarrierError> {
        let failed = |source| CarrierError::Connect { address, source };
        let mut tcp = TcpStream::from_std(tcp).map_err(failed)?;
        tcp.writable().await.map_err(failed)?;
        if let Some(error) = tcp.take_error().map_err(failed)? {
            return Err(failed(error));
        }
        let options = SockRef::from(&tcp);
        options
            .set_tcp_nodelay(true)
            .and_then(|()| options.set_tcp_notsent_lowat(MAX_UNSENT_BELOW))
            .and_then(|()| options.set_tcp_user_timeout(Some(ACKNOWLEDGEMENT_TIMEOUT)))
            .map_err(failed)?;
        match way {
            Way::Direct => {}
            Way::Proxy => connect_through(&mut tcp, &self.target, None, address).await?,
            Way::ProxyAs(user) => connect_through(&mut tcp, &self.target, Some(user), address).await?,
        }
        let shaken = self.tls.connect(self.name.clone(), tcp).await;
        let mut stream = shaken.map_err(|source| {
            let is_certificate = source
                .get_ref()
                .and_then(|inner| inner.downcast_ref::<rustls::Error>())
                .is_some_and(|error| matches!(error, rustls::Error::InvalidCertificate(_)));
            if is_certificate {
                CarrierError::Untrusted { address, source }
            } else {
                CarrierError::Tls { address, source }
            }
        })?;
        stream.get_mut().1.set_buffer_limit(Some(MAX_UNSENT_TLS));
        let refused = |answer: String| CarrierError::Refused { address, answer };
        let answer = ask(&mut stream, &upgrade_request(&self.name.to_str())).await;
        let answer = answer.map_err(|error| refused(error.to_string()))?;
        if answer.status() != Some(101) {
            return Err(refused(vpnd_sys::text::harmless(&answer.line)));
        }
        Ok((stream, answer.rest))
    }
}

/// Has a proxy connect to the gateway, with this user and password, if any.
async fn connect_through(
    tcp: &mut TcpStream,
    target: &str,
    credentials: Option<&str>,
    address: SocketAddr,
) -> Result<(), CarrierError> {
    let refused = |answer: String| CarrierError::Proxy { address, answer };
    let answer = ask(tcp, &connect_request(target, credentials)).await;
    let answer = answer.map_err(|error| refused(error.to_string()))?;
    match answer.status() {
        // The gateway is silent until it is sent something.
        Some(200) if answer.rest.is_empty() => Ok(()),
        Some(407) => Err(CarrierError::ProxyPassword(address)),
        _ => Err(refused(vpnd_sys::text::harmless(&answer.line))),
    }
}

/// A socket that only this client's own sockets use.
struct Own {
    socket: RunSocket,
    control: Arc<AtomicU16>,
    /// The lane that has sent last.
    lane: AtomicUsize,
    lanes: LanePorts,
}

impl Datagrams for Own {
    fn send(&self, run: &[u8], segment: usize) {
        let is_quic = |datagram: &[u8]| matches!(PacketClass::of(datagram), PacketClass::Quic);
        let mut left = run;
        while !left.is_empty() {
            let first = is_quic(left);
            let alike = left.chunks(segment).take_while(|datagram| is_quic(datagram) == first).count();
            let (part, rest) = left.split_at((alike * segment).min(left.len()));
            left = rest;
            // Any lane takes what is for another one (PROTOCOL §7.2).
            let lane = || self.lanes.get(self.lane.load(Ordering::Relaxed));
            let Some(port) = (if first { Some(&*self.control) } else { lane() }) else { continue };
            let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port.load(Ordering::Relaxed)));
            self.socket.send(part, segment, Some(to));
        }
    }

    async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    fn try_receive(&self, into: &mut [u8]) -> io::Result<Run> {
        let (run, from) = self.socket.try_receive(into)?;
        let is_here = |from: &SocketAddr| from.ip() == IpAddr::from(Ipv4Addr::LOCALHOST);
        let port = from.filter(is_here).map(|from| from.port());
        let lane = |port: u16| self.lanes.iter().position(|lane| lane.load(Ordering::Relaxed) == port);
        if let Some(lane) = port.and_then(lane) {
            self.lane.store(lane, Ordering::Relaxed);
        } else if port != Some(self.control.load(Ordering::Relaxed)) {
            // Counts as one of a turn, so that its sender does not keep the relay from its work.
            return Err(io::Error::other("it is from another program of this machine"));
        }
        Ok(run)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Returns the request that a proxy with this answer reads, and the outcome.
    async fn asked(way: Way<'_>, answer: &str) -> (String, Result<(), CarrierError>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut proxy, _) = listener.accept().await.unwrap();
        let credentials = if let Way::ProxyAs(credentials) = way { Some(credentials) } else { None };
        proxy.write_all(answer.as_bytes()).await.unwrap();
        let outcome = connect_through(&mut client, "vpn.example:443", credentials, address).await;
        drop(client);
        let mut request = String::new();
        proxy.read_to_string(&mut request).await.unwrap();
        (request, outcome)
    }

    #[tokio::test]
    async fn a_proxy_gets_the_password_only_after_it_has_asked_for_one() {
        let proxy: Proxy = "http://ann:secret@192.0.2.1:3128".parse().unwrap();
        let first = Way::first(Some(&proxy));
        let (request, outcome) = asked(first, "HTTP/1.1 200 OK\r\n\r\n").await;
        assert!(outcome.is_ok() && !request.contains("Authorization"), "{request}");
        let (request, outcome) = asked(first, "HTTP/1.1 407 Who?\r\n\r\n").await;
        assert!(!request.contains("Authorization"), "{request}");
        let error = outcome.unwrap_err();
        let second = first.after(&error, Some(&proxy)).unwrap();
        let (request, outcome) = asked(second, "HTTP/1.1 407 No\r\n\r\n").await;
        assert!(request.contains("Proxy-Authorization: Basic YW5uOnNlY3JldA=="), "{request}");
        assert_eq!(second.after(&outcome.unwrap_err(), Some(&proxy)), None, "it does not accept it");
        let refused =
            CarrierError::Proxy { address: "192.0.2.1:3128".parse().unwrap(), answer: String::new() };
        assert_eq!(first.after(&refused, Some(&proxy)), None);
        assert_eq!(first.after(&error, Some(&proxy.clone().without_credentials())), None);
        assert_eq!(Way::first(None), Way::Direct);
    }

    #[tokio::test]
    async fn a_carriers_socket_serves_its_own_client_alone() {
        let bind = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let [lane, control, other] = [(); 3].map(|()| bind());
        let port = |socket: &std::net::UdpSocket| socket.local_addr().unwrap().port();
        // It takes the port of a lane at another address of the machine.
        let neighbour = std::net::UdpSocket::bind(("127.0.0.2", port(&lane))).unwrap();
        let socket = RunSocket::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let here = socket.local_addr().unwrap();
        let (lanes, quic) =
            (Arc::from([AtomicU16::new(port(&lane))]), Arc::new(AtomicU16::new(port(&control))));
        let own = Own { socket, control: quic, lane: AtomicUsize::new(0), lanes };
        other.send_to(b"\x80other", here).unwrap();
        neighbour.send_to(b"\x80neighbour", here).unwrap();
        lane.send_to(b"\x80lane", here).unwrap();
        control.send_to(b"\xC0control", here).unwrap();
        let mut room = [0; 64];
        let mut received = Vec::new();
        while received.len() < 4 {
            own.readable().await.unwrap();
            match own.try_receive(&mut room) {
                Ok(run) => received.push(Some(room[..run.len].to_vec())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => received.push(None),
            }
        }
        assert_eq!(received, [None, None, Some(b"\x80lane".to_vec()), Some(b"\xC0control".to_vec())]);
        // A run for both parts where its datagrams do.
        own.send(b"\x80to\x80un\x40to\x40", 3);
        for (socket, datagram) in
            [(&lane, &b"\x80to"[..]), (&lane, b"\x80un"), (&control, b"\x40to"), (&control, b"\x40")]
        {
            let len = socket.recv(&mut room).unwrap();
            assert_eq!(&room[..len], datagram);
        }
    }
}
