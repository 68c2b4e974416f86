//! The search for a gateway that answers: its addresses are raced, over UDP and TCP.
//!
//! INVARIANT: an attempt begins again when the machine's network changes, for what was out of reach
//! may not be any more.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use vpnd_control_channel::login::HANDSHAKE_TIMEOUT;
use vpnd_control_channel::stream::close;
use vpnd_proto::client::Purpose;
use vpnd_proto::control::Code;

use super::DialError;
use super::addresses::Addresses;
use super::handshakes::{Handshakes, Shaken};
use super::trial_log::TrialLog;
use super::ways::Ways;
use crate::worker::over_tcp::OverTcp;
use crate::worker::parent_client::ParentClient;
use vpnd_config::profile::{Profile, ServerAddress};
use vpnd_pki::tls;
use vpnd_sys::address_race;

/// Head start of known addresses before the name is looked up again: the gateway may have moved.
const LOOK_UP_AFTER: Duration = Duration::from_secs(1);
/// For this long after a change of the machine's network, known addresses are less reliable.
const JUST_CHANGED: Duration = Duration::from_secs(5);
/// UDP is used again once it has worked for this long.
const WORKS_FOR: Duration = Duration::from_secs(30);
/// Interval of the tries while it works, and the longest one while it does not.
const TRY_EACH: Duration = Duration::from_secs(10);
const MAX_TRY_EACH: Duration = Duration::from_secs(300);

pub(in crate::worker) struct GatewaySearch {
    addresses: Addresses,
    ways: Ways,
    handshakes: Handshakes,
    /// Looks up names.
    parent: Arc<ParentClient>,
    /// When the machine's network has changed last.
    network: watch::Sender<Option<Instant>>,
    /// An attempt to reach the session's gateway has lasted for longer than an answer takes.
    silence: Notify,
}

impl GatewaySearch {
    pub(in crate::worker) fn new(
        profile: &Profile,
        tls: tls::Client,
        parent: Arc<ParentClient>,
        over_tcp: Option<OverTcp>,
        weights: Vec<(ServerAddress, u32)>,
    ) -> Self {
        Self {
            addresses: Addresses::new(profile, weights),
            ways: Ways::new(over_tcp),
            handshakes: Handshakes::new(profile.server_name.clone(), tls, Arc::clone(&parent)),
            parent,
            network: watch::Sender::new(None),
            silence: Notify::new(),
        }
    }

    pub(in crate::worker) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub(in crate::worker) fn ways(&self) -> &Ways {
        &self.ways
    }

    pub(in crate::worker) fn trials(&self) -> &TrialLog {
        self.handshakes.trials()
    }

    /// Waits until the gateway of the session, or of a login, has not answered for longer than that
    /// takes. Safe to cancel.
    pub(in crate::worker) async fn silent(&self) {
        self.silence.notified().await;
    }

    /// Restarts attempts that are under way.
    pub(in crate::worker) fn network_changed(&self) {
        self.ways.forget_rests();
        self.network.send_replace(Some(Instant::now()));
    }

    /// Shakes hands with the first of the gateway's addresses that answers. `current` is the
    /// address of the connection that there is, and `rtt` its round trip. Names are looked up only
    /// if nothing is known, or `may_look_up`: that puts the machine's own DNS servers in place of
    /// the tunnel's.
    pub(super) async fn shake_hands(
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
                .then(|| self.addresses.look_up(&self.parent, self.trials()));
            let attempt = |address| self.over_udp(address, rtt, is_move);
            let udp = address_race::race(known.clone(), look_up, self.head_start(), attempt);
            let tcp = |over_tcp| self.over_tcp(over_tcp, &known, rtt);
            let race = self.ways.race(udp, (!is_move).then_some(tcp));
            tokio::pin!(race);
            let outcome = loop {
                tokio::select! {
                    outcome = &mut race => break Some(outcome),
                    Ok(()) = changes.changed() => break None,
                    // A silent name server, or one address after the other, may take longer than a
                    // person should wait for a message.
                    () = &mut silent, if !silent.is_elapsed() => match is_move {
                        true => drop(self.trials().log(false)),
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

    async fn over_udp(
        &self,
        address: SocketAddr,
        rtt: Option<Duration>,
        is_move: bool,
    ) -> Result<Shaken, DialError> {
        let shaken = self.handshakes.over_udp(address, rtt).await;
        // A gateway that may refuse a move is not the one of the session.
        if shaken.is_ok() && !is_move {
            self.addresses.answered(address);
        }
        shaken
    }

    /// A connection over TCP, to the first of the gateway's addresses that lets it.
    async fn over_tcp(
        &self,
        over_tcp: &OverTcp,
        gateways: &[SocketAddr],
        rtt: Option<Duration>,
    ) -> Result<Shaken, Option<DialError>> {
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for gateway in gateways {
            let address = SocketAddr::new(gateway.ip(), over_tcp.port);
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        let direct = addresses.clone();
        // A proxy leads to the first of the profile.
        let behind_proxy = self.addresses.first();
        let attempt = |address: SocketAddr| {
            let is_direct = direct.contains(&address);
            let gateway = gateways.iter().find(|gateway| gateway.ip() == address.ip()).copied();
            let gateway = if is_direct { gateway } else { behind_proxy };
            let proxy = over_tcp.proxy.as_ref().filter(|_| !is_direct);
            self.handshakes.over_carrier(over_tcp, (address, gateway), proxy, rtt)
        };
        let proxies = over_tcp.proxy.as_ref().map(|proxy| self.proxies(&proxy.server));
        address_race::race(addresses, proxies, Duration::ZERO, attempt).await
    }

    /// The addresses of a proxy.
    async fn proxies(&self, proxy: &ServerAddress) -> Result<Vec<SocketAddr>, DialError> {
        if let Some(address) = proxy.literal() {
            return Ok(vec![address]);
        }
        let found = self.parent.proxy_addresses().await?;
        Ok(found.into_iter().map(|address| SocketAddr::new(address, proxy.port)).collect())
    }

    /// Returns once UDP has worked for a while. Each try is a handshake, which a network that
    /// passes small datagrams alone does not let through.
    pub(in crate::worker) async fn udp_works(&self) {
        let (mut since, mut wait) = (None, TRY_EACH);
        let mut changes = self.network.subscribe();
        loop {
            let useless = self.ways.useless_for();
            tokio::select! {
                () = tokio::time::sleep(useless.unwrap_or(wait)) => {}
                Ok(()) = changes.changed() => {
                    (since, wait) = (None, TRY_EACH);
                    continue;
                }
            }
            if useless.is_some() {
                continue;
            }
            let works = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.tries_udp()).await.unwrap_or(false);
            if !works {
                (since, wait) = (None, (2 * wait).min(MAX_TRY_EACH));
                continue;
            }
            let since = *since.get_or_insert_with(Instant::now);
            if since.elapsed() >= WORKS_FOR {
                return;
            }
            wait = TRY_EACH;
        }
    }

    /// Whether a handshake over UDP succeeds.
    async fn tries_udp(&self) -> bool {
        let known = self.addresses.known().clone();
        let nothing = None::<std::future::Ready<Result<Vec<SocketAddr>, DialError>>>;
        let attempt = |address| self.handshakes.attempt(address, None, |_| {});
        match address_race::race(known, nothing, Duration::ZERO, attempt).await {
            Ok(Shaken { endpoint, connection, .. }) => {
                close(&connection, Code::Bye, "");
                endpoint.wait_idle().await;
                true
            }
            Err(_) => false,
        }
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
