//! Logins in a browser (PROTOCOL §4.3, §4.4): begin at the gateway, wait for the browser, come back
//! with a grant; or show a short code, and ask with the grant until a person has typed it.
//!
//! Invariants: what a browser brings counts once, with the state of this login and from the gateway
//! that it was begun at; its grant is sent to that gateway alone, with a verifier that never left
//! this process. Any other program that connects to the socket gets a page without information. A
//! session that is over ends the client: no user may be there, and a page can't be reached through
//! a tunnel that is down.

mod arrival;
mod by_code;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use minicbor::bytes::ByteArray;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use vpnd_control_channel::login::{LoginError, LoginReply, RequestStream};
use vpnd_proto::client::Purpose;
use vpnd_proto::control::{Grant, LoginAt, LoginStart, Message, Offer, Software, Text};

use super::handshakes::Shaken;
use super::request::SOFTWARE;
use super::{DialError, DialOutcome, Dialer};
use crate::messages::{BrowserWay, WorkerLaunch};
use arrival::Brought;
#[cfg(any(test, fuzzing))]
pub(crate) use arrival::read as read_arrival;

/// The longest that a gateway can have a person take.
const LONGEST: Duration = Duration::from_secs(900);
/// Attempts to come back with a grant, which is good for a minute.
const ATTEMPTS: u32 = 5;
const RETRY: Duration = Duration::from_secs(2);

/// Why a login in a browser brought nothing.
#[derive(Debug, thiserror::Error)]
pub(in crate::worker) enum BrowserError {
    #[error("the session is over: run 'vpnd connect' again to log in")]
    SessionOver,
    #[error("there was no login in the browser in time: run 'vpnd connect' again")]
    Nobody,
    #[error("the login was refused in the browser")]
    Denied,
    #[error("the browser comes from {0}, which is not the gateway's page: tell your administrator")]
    AnotherIssuer(String),
    #[error("the address of the gateway's page is not valid: {0}")]
    NoPage(String),
    #[error("a socket for the browser can't be opened: {0}")]
    Socket(std::io::Error),
}

impl BrowserError {
    /// Whether only a person can try again.
    pub(super) fn is_final(&self) -> bool {
        !matches!(self, Self::Socket(_))
    }
}

/// Whether the user logs in in a browser, as the profile or the gateway says.
pub(super) struct InBrowser {
    is_on: AtomicBool,
    was_up: AtomicBool,
    machine: Text<64>,
    short_code: bool,
}

impl InBrowser {
    pub(super) fn of(launch: &WorkerLaunch) -> Self {
        Self {
            is_on: launch.browser.into(),
            was_up: false.into(),
            machine: Text::cut(&launch.machine),
            short_code: launch.short_code,
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(super) fn switch_on(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// There is a session.
    pub(super) fn was_up(&self) {
        self.was_up.store(true, Ordering::Relaxed);
    }
}

/// Logs in in a browser; the arguments are those of [`Dialer::dial`].
pub(super) async fn dial(
    dialer: &Dialer,
    offer: Offer,
    current: Option<SocketAddr>,
    rtt: Option<Duration>,
    may_look_up: bool,
) -> Result<DialOutcome, DialError> {
    let in_browser = &dialer.in_browser;
    if in_browser.was_up.load(Ordering::Relaxed) {
        return Err(BrowserError::SessionOver.into());
    }
    let (listener, port) = dialer.parent.listen_for_browser().await?;
    let listener = TcpListener::from_std(listener).map_err(BrowserError::Socket)?;
    let [state, verifier] = [(); 2].map(|()| rand::random::<[u8; 32]>());
    let shaken = dialer.search.shake_hands(&Purpose::Login, current, rtt, may_look_up).await?;
    let gateway = shaken.gateway();
    let mut stream = RequestStream::open(shaken.connection.clone()).await?;
    let start = LoginStart {
        device: dialer.requests.prove(&stream).await?,
        port,
        state: state.into(),
        challenge: <[u8; 32]>::from(Sha256::digest(verifier)).into(),
        name: in_browser.machine.clone(),
        software: Some(Software::cut(SOFTWARE)),
        short_code: in_browser.short_code,
    };
    stream.send(&Message::LoginStart(Box::new(start))).await?;
    let at = match stream.reply().await.map_err(DialError::from).map_err(DialError::with_cause)? {
        LoginReply::LoginAt(at) => at,
        LoginReply::Refused(refused) => return Ok(DialOutcome::Refused(refused)),
        _ => return Err(LoginError::Unexpected("no page to log in at").into()),
    };
    drop((stream, shaken));
    let login = BrowserLogin { dialer, offer, gateway, verifier };
    if let Some(code) = at.code.clone() {
        drop(listener);
        return by_code::log_in(login, at, code).await;
    }
    let grant = login.brought((&listener, port), &state, at).await?;
    drop(listener);
    login.come_back(grant).await
}

/// A login that was begun at a gateway, and that a person completes in a browser.
struct BrowserLogin<'d> {
    dialer: &'d Dialer,
    offer: Offer,
    /// The gateway that it was begun at, if its address can be told.
    gateway: Option<SocketAddr>,
    verifier: [u8; 32],
}

impl BrowserLogin<'_> {
    /// Has the person log in, and waits for the grant that the browser brings.
    async fn brought(
        &self,
        (listener, port): (&TcpListener, u16),
        state: &[u8; 32],
        LoginAt { url, time_s, .. }: LoginAt,
    ) -> Result<[u8; 32], DialError> {
        let page = url.split_once("/connect/").filter(|_| url.starts_with("https://"));
        let (issuer, _) = page.ok_or_else(|| BrowserError::NoPage(url.to_string()))?;
        let way = BrowserWay::Port { port, lacks_code: self.dialer.in_browser.short_code };
        self.dialer.parent.browse(url.clone(), way).await?;
        let longest = Duration::from_secs(time_s.into()).min(LONGEST);
        let arrived = tokio::time::timeout(longest, arrival::wait(listener, state)).await;
        let Brought { issuer: from, grant } =
            arrived.map_err(|_| BrowserError::Nobody)?.map_err(BrowserError::Socket)?;
        if from != issuer {
            return Err(BrowserError::AnotherIssuer(vpnd_sys::text::harmless(&from)).into());
        }
        Ok(grant.ok_or(BrowserError::Denied)?)
    }

    /// Logs in with the grant, at the gateway that it is from.
    async fn come_back(&self, grant: [u8; 32]) -> Result<DialOutcome, DialError> {
        let mut attempt = 1;
        let shaken = loop {
            match self.shake_hands().await {
                Ok(shaken) => break shaken,
                Err(error) if attempt >= ATTEMPTS => return Err(error),
                Err(_) => tokio::time::sleep(RETRY).await,
            }
            attempt += 1;
        };
        self.ask(grant.into(), shaken).await
    }

    /// Asks once whether the grant is good yet.
    async fn ask_with(&self, grant: ByteArray<32>) -> Result<DialOutcome, DialError> {
        let shaken = self.shake_hands().await?;
        self.ask(grant, shaken).await
    }

    /// Shakes hands with the gateway that the login was begun at.
    async fn shake_hands(&self) -> Result<Shaken, DialError> {
        let shaken = self.dialer.search.shake_hands(&Purpose::Login, self.gateway, None, false).await?;
        if shaken.gateway() == self.gateway { Ok(shaken) } else { Err(DialError::NoOther) }
    }

    /// Sends the grant, with the verifier that shows whose it is.
    async fn ask(&self, grant: ByteArray<32>, shaken: Shaken) -> Result<DialOutcome, DialError> {
        let grant = Grant { grant, verifier: self.verifier.into() };
        self.dialer.ask(&Purpose::Login, self.offer.clone(), Some(grant), shaken).await
    }
}
