//! One control connection of a client: find the gateway, shake hands, log in or attach.
//!
//! Each attempt has a separate socket, so that it leaves from whatever address the machine has
//! now.

mod addresses;
mod browser;
mod candidates;
mod challenge;
mod request;
mod trial_log;
mod trials;
mod unanswered;
mod ways;

#[cfg(any(test, fuzzing))]
pub(crate) use browser::read_arrival;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::{ConnectError, Connection, ConnectionError};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use vpnd_control_channel::login::{
    self, ANSWER_TIMEOUT, Channel, HANDSHAKE_TIMEOUT, HandshakeError, LoginError, RequestStream, shake_hands,
};
use vpnd_control_channel::quic::client_endpoint;
use vpnd_proto::client::Purpose;
use vpnd_proto::control::{Code, Message, Offer, Refused, TooLong};
use vpnd_proto::device::DeviceProof;

use super::distrust::Distrust;
use super::over_tcp::{Carrier, CarrierError, OverTcp, gateway_of};
use super::parent_client::{ParentClient, ParentError};
use addresses::Addresses;
use browser::BrowserError;
pub(super) use request::Credentials;
use trial_log::TrialLog;
use unanswered::Unanswered;
use vpnd_config::profile::{Profile, ServerAddress};
use vpnd_pki::tls::{self, TlsError};
use vpnd_sys::address_race;
use vpnd_sys::clock::now;
use vpnd_sys::udp::icmp::IcmpErrors;
use ways::Ways;

/// Head start of known addresses before the name is looked up again: the gateway may have moved.
const LOOK_UP_AFTER: Duration = Duration::from_secs(1);
/// For this long after a change of the machine's network, known addresses are less reliable.
const JUST_CHANGED: Duration = Duration::from_secs(5);

/// An error of one attempt; another may succeed, unless [`DialError::is_final`].
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
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
pub(super) enum Unproven {
    #[error(transparent)]
    Untrusted(Distrust),
    #[error("it, or another host on the way, refuses the handshake: {0}")]
    Refused(Distrust),
}

impl DialError {
    /// Whether trying again can't help: a gateway that has proved itself refuses our certificate,
    /// or asks a question that is not answered. One that was up before (`was_up`) may take it
    /// again.
    pub(super) fn is_final(&self, was_up: bool) -> bool {
        match self {
            Self::Distrust(_) => !was_up,
            Self::NoPerson(_) => true,
            Self::Browser(error) => error.is_final(),
            _ => false,
        }
    }

    /// Replaces the error by its cause if one end does not trust the other. That may show at any
    /// step: a handshake that has succeeded here may fail there.
    fn with_cause(self) -> Self {
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
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Handshake { source, .. } if login::is_full(source))
    }

    fn of_handshake(address: SocketAddr, error: HandshakeError) -> Self {
        match error {
            HandshakeError::Connect(error) => Self::Connect(error),
            HandshakeError::Failed(source) => Self::Handshake { address, source }.with_cause(),
            HandshakeError::Timeout => Self::NoHandshake(address),
        }
    }
}

/// The gateway's reply to a login or attach.
pub(super) enum DialOutcome {
    /// A new epoch, the endpoint of its connection, and what carries it if that is TCP.
    Established(Box<Channel>, quinn::Endpoint, Option<Carrier>),
    /// No session.
    Refused(Refused),
}

/// A connection whose handshake is complete.
pub(super) struct Shaken {
    endpoint: quinn::Endpoint,
    connection: Connection,
    /// There only over TCP.
    carrier: Option<Carrier>,
}

impl Shaken {
    /// The gateway's address, if that can be told.
    fn gateway(&self) -> Option<SocketAddr> {
        gateway_of(&self.connection, self.carrier.as_ref())
    }
}

/// Everything that attempts have in common.
pub(super) struct Dialer {
    addresses: Addresses,
    server_name: String,
    tls: tls::Client,
    credentials: Credentials,
    /// Opens sockets, looks up names and prompts the user.
    parent: Arc<ParentClient>,
    /// When the machine's network has changed last.
    network: watch::Sender<Option<Instant>>,
    trials: TrialLog,
    /// An attempt to reach the session's gateway has lasted for longer than an answer takes.
    silence: Notify,
    unanswered: Unanswered,
    ways: Ways,
}

impl Dialer {
    pub(super) fn new(
        profile: &Profile,
        tls: tls::Client,
        credentials: Credentials,
        parent: Arc<ParentClient>,
        over_tcp: Option<OverTcp>,
        weights: Vec<(ServerAddress, u32)>,
    ) -> Self {
        Self {
            addresses: Addresses::new(profile, weights),
            server_name: profile.server_name.clone(),
            tls,
            credentials,
            parent,
            network: watch::Sender::new(None),
            trials: TrialLog::default(),
            silence: Notify::new(),
            unanswered: Unanswered::default(),
            ways: Ways::new(over_tcp),
        }
    }

    /// Races the gateway's addresses and sends the request to the first that shakes hands.
    /// `current` is the address of the connection that there is, and `rtt` its round trip. Names
    /// are looked up only if nothing is known, or `may_look_up`: that puts the machine's own DNS
    /// servers in place of the tunnel's.
    pub(super) async fn dial(
        &self,
        purpose: &Purpose,
        offer: Offer,
        current: Option<SocketAddr>,
        rtt: Option<Duration>,
        may_look_up: bool,
    ) -> Result<DialOutcome, DialError> {
        match purpose {
            Purpose::Login if self.credentials.browser.is_on() => {
                return self.dial_in_browser(offer, current, rtt, may_look_up).await;
            }
            // No user may be there to log in at another gateway.
            Purpose::Move if self.credentials.browser.is_on() => return Err(DialError::NoOther),
            _ => {}
        }
        let shaken = self.shake_hands(purpose, current, rtt, may_look_up).await?;
        let outcome = self.ask(purpose, offer.clone(), None, shaken).await?;
        match outcome {
            DialOutcome::Refused(refused) if refused.code == Code::Browser && *purpose == Purpose::Login => {
                self.credentials.browser.switch_on();
                self.dial_in_browser(offer, current, rtt, may_look_up).await
            }
            outcome => Ok(outcome),
        }
    }

    /// Sends the request on this connection, and waits for what comes of it.
    async fn ask_on(
        &self,
        request: impl FnOnce(DeviceProof) -> Result<Message, DialError>,
        Shaken { endpoint, connection, carrier }: Shaken,
    ) -> Result<DialOutcome, DialError> {
        let mut stream = RequestStream::open(connection).await?;
        let device = self.prove(&stream).await?;
        stream.send(&request(device)?).await?;
        let mut longest = ANSWER_TIMEOUT;
        loop {
            match stream.reply_within(longest).await? {
                login::LoginReply::Established(established) => {
                    let channel = stream.establish(*established)?;
                    return Ok(DialOutcome::Established(Box::new(channel), endpoint, carrier));
                }
                login::LoginReply::Refused(refused) => return Ok(DialOutcome::Refused(refused)),
                login::LoginReply::LoginAt(_) => {
                    return Err(LoginError::Unexpected("a page, which was not asked for").into());
                }
                login::LoginReply::OneTimeCodeWanted => stream.send(&self.one_time_code().await?).await?,
                login::LoginReply::Challenge(challenge) => {
                    longest = challenge::time_for_reply(&challenge);
                    if let Some(answer) = self.answer(&challenge).await? {
                        stream.send(&answer).await?;
                    }
                }
            }
        }
    }

    /// Shakes hands with the first of the gateway's addresses that answers. Begins again when the
    /// machine's network changes: what was out of reach may not be any more.
    async fn shake_hands(
        &self,
        purpose: &Purpose,
        current: Option<SocketAddr>,
        rtt: Option<Duration>,
        may_look_up: bool,
    ) -> Result<Shaken, DialError> {
        let is_move = purpose.leads_elsewhere();
        let mut changes = self.network.subscribe();
        let silent = tokio::time::sleep(HANDSHAKE_TIMEOUT);
        tokio::pin!(silent);
        loop {
            let known = self.addresses.candidates(purpose, current);
            if is_move && known.is_empty() {
                return Err(DialError::NoOther);
            }
            // The names of other gateways were looked up with that of the one that is connected.
            let look_up = (!is_move && (may_look_up || known.is_empty()))
                .then(|| self.addresses.look_up(&self.parent, &self.trials));
            let attempt = |address| self.shake_hands_with(address, rtt, is_move);
            let head_start = self.head_start();
            let race = address_race::race(known.clone(), look_up, head_start, attempt);
            let race = self.race_ways(race, &known, rtt, is_move);
            tokio::pin!(race);
            let outcome = loop {
                tokio::select! {
                    outcome = &mut race => break Some(outcome),
                    Ok(()) = changes.changed() => break None,
                    // A silent name server, or one address after the other, may take longer than a
                    // person should wait for a message.
                    () = &mut silent, if !silent.is_elapsed() => match is_move {
                        true => drop(self.trials.log(false)),
                        false => self.silence.notify_one(),
                    },
                }
            };
            match outcome {
                Some(outcome) => return outcome.map_err(|error| error.unwrap_or(DialError::NoAddress)),
                None => tracing::debug!("the network changed: trying again"),
            }
        }
    }

    /// Waits until the gateway of the session, or of a login, has not answered for longer than that
    /// takes. Safe to cancel.
    pub(super) async fn silent(&self) {
        self.silence.notified().await;
    }

    pub(super) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub(super) fn trials(&self) -> &TrialLog {
        &self.trials
    }

    async fn shake_hands_with(
        &self,
        address: SocketAddr,
        rtt: Option<Duration>,
        is_move: bool,
    ) -> Result<Shaken, DialError> {
        self.trials.lock().begin(address);
        let connected = self.try_address(address, rtt, |_| {}).await;
        match &connected {
            Ok(_) => {
                self.trials.lock().answered();
                // A gateway that may refuse a move is not the one of the session.
                if !is_move {
                    self.addresses.answered(address);
                }
            }
            Err(error) => self.trials.failed(address, error),
        }
        connected
    }

    async fn try_address(
        &self,
        address: SocketAddr,
        rtt: Option<Duration>,
        use_port: impl FnOnce(u16),
    ) -> Result<Shaken, DialError> {
        let socket = self.parent.socket(address).await?;
        use_port(socket.local_addr()?.port());
        let errors = IcmpErrors::start(&socket)
            .inspect_err(|error| tracing::debug!(%error, "ICMP errors are not seen"));
        let endpoint = client_endpoint(socket, self.tls.quic()?, rtt)?;
        let handshake = async {
            let shaking = shake_hands(&endpoint, address, &self.server_name);
            tokio::pin!(shaking);
            tokio::select! {
                outcome = &mut shaking => outcome,
                // Ends with the queue of errors only, and the handshake goes on.
                () = self.note_icmp(address, errors.ok()) => shaking.await,
            }
        };
        let connection = handshake.await.map_err(|error| DialError::of_handshake(address, error))?;
        Ok(Shaken { endpoint, connection, carrier: None })
    }

    /// Notes ICMP errors about datagrams to `address` as they come.
    async fn note_icmp(&self, address: SocketAddr, errors: Option<IcmpErrors>) {
        let Some(errors) = errors else { return };
        while let Ok(error) = errors.next().await {
            if let Some(line) = self.trials.lock().icmp(now(), address, error) {
                tracing::warn!("{line}");
            }
        }
    }

    /// Restarts attempts that are under way.
    pub(super) fn network_changed(&self) {
        self.forget_rests();
        self.network.send_replace(Some(Instant::now()));
    }

    /// Head start of known addresses before names are looked up. On a machine that has just changed
    /// networks they are looked up sooner: what is known may be out of reach from there without a
    /// word.
    fn head_start(&self) -> Duration {
        let changed = *self.network.borrow();
        let lately = changed.is_some_and(|at| at.elapsed() < JUST_CHANGED);
        if lately { address_race::HEAD_START } else { LOOK_UP_AFTER }
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
