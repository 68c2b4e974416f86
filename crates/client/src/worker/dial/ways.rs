//! UDP or TCP: which of them a client tries first, and when it goes back to UDP.
//!
//! INVARIANT: without a TCP port in the profile there is UDP alone. A client that is on TCP stays
//! there until UDP has worked for a while, so that it does not go back and forth.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use vpnd_control_channel::login::HANDSHAKE_TIMEOUT;
use vpnd_proto::control::Code;

use super::{DialError, Dialer, Shaken};
use crate::worker::over_tcp::OverTcp;
use vpnd_config::profile::{Proxy, ServerAddress};
use vpnd_control_channel::stream::close;
use vpnd_sys::address_race;

/// Head start of the way that is tried first.
const HEAD_START: Duration = Duration::from_secs(3);
/// UDP is used again once it has worked for this long.
const WORKS_FOR: Duration = Duration::from_secs(30);
/// Interval of the tries while it works, and the longest one while it does not.
const TRY_EACH: Duration = Duration::from_secs(10);
const MAX_TRY_EACH: Duration = Duration::from_secs(300);

/// The first time for which UDP rests where data soon vanishes; it doubles up to the longest.
const FIRST_REST: Duration = Duration::from_secs(60);
const MAX_REST: Duration = Duration::from_secs(3_600);

/// The ways to the gateway, and what is known of this network.
pub(super) struct Ways {
    over_tcp: Option<OverTcp>,
    /// UDP did not work here.
    tcp_first: AtomicBool,
    /// UDP works here, but not for large datagrams.
    is_narrow: AtomicBool,
    rest: Mutex<Rest>,
}

/// The time for which UDP is not tried, because data soon vanishes there.
#[derive(Clone, Copy)]
struct Rest {
    until: Option<Instant>,
    /// The time for it the next time.
    next: Duration,
}

impl Default for Rest {
    fn default() -> Self {
        Self { until: None, next: FIRST_REST }
    }
}

impl Ways {
    pub(super) fn new(over_tcp: Option<OverTcp>) -> Self {
        Self {
            over_tcp,
            tcp_first: AtomicBool::new(false),
            is_narrow: AtomicBool::new(false),
            rest: Mutex::default(),
        }
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time until which UDP is of no use here: none if it may be, and no end until the network
    /// changes.
    fn useless_for(&self) -> Option<Duration> {
        if self.is_narrow.load(Ordering::Relaxed) {
            return Some(Duration::MAX);
        }
        let left = self.rest().until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

impl Dialer {
    /// Races UDP, as `udp` tries it, with TCP to these gateways, in this order.
    pub(super) async fn race_ways(
        &self,
        udp: impl Future<Output = Result<Shaken, Option<DialError>>>,
        gateways: &[SocketAddr],
        rtt: Option<Duration>,
        is_move: bool,
    ) -> Result<Shaken, Option<DialError>> {
        let Some(over_tcp) = self.ways.over_tcp.as_ref().filter(|_| !is_move) else { return udp.await };
        let tcp_first = self.ways.tcp_first.load(Ordering::Relaxed);
        let after = |wait: bool| tokio::time::sleep(if wait { HEAD_START } else { Duration::ZERO });
        let udp = async {
            after(tcp_first).await;
            udp.await
        };
        let tcp = async {
            after(!tcp_first).await;
            self.over_tcp(over_tcp, gateways, rtt).await
        };
        tokio::pin!(udp, tcp);
        let shaken = tokio::select! {
            shaken = &mut udp => match shaken {
                Ok(shaken) => Ok(shaken),
                // Its error says more to a person, unless TCP works.
                Err(error) => tcp.await.map_err(|_| error),
            },
            shaken = &mut tcp => match shaken {
                Ok(shaken) => Ok(shaken),
                Err(_) => udp.await,
            },
        };
        if let Ok(Shaken { carrier: Some(_), .. }) = &shaken
            && !self.ways.tcp_first.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("this network passes only TCP {}: using that, slower", over_tcp.port);
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
            self.over_carrier(over_tcp, (address, gateway), proxy, rtt)
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

    async fn over_carrier(
        &self,
        over_tcp: &OverTcp,
        to: (SocketAddr, Option<SocketAddr>),
        proxy: Option<&Proxy>,
        rtt: Option<Duration>,
    ) -> Result<Shaken, DialError> {
        let carrier = over_tcp.open(&self.parent, to, proxy).await.inspect_err(|error| {
            tracing::debug!(address = %to.0, %error, "no connection over TCP");
            self.trials.lock().no_tcp(error.to_string());
        })?;
        let shaken = self.try_address(carrier.local, rtt, |port| carrier.set_control(port)).await?;
        self.trials.lock().answered();
        Ok(Shaken { carrier: Some(carrier), ..shaken })
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
        let attempt = |address| self.try_address(address, None, |_| {});
        match address_race::race(known, nothing, Duration::ZERO, attempt).await {
            Ok(Shaken { endpoint, connection, .. }) => {
                close(&connection, Code::Bye, "");
                endpoint.wait_idle().await;
                true
            }
            Err(_) => false,
        }
    }

    /// Forgets that UDP did not last, for this is another network.
    pub(super) fn forget_rests(&self) {
        *self.ways.rest() = Rest::default();
    }

    /// Data soon vanishes over UDP, although the gateway answers. Whether to go over TCP because of
    /// that.
    pub(in crate::worker) fn is_blocked(&self) -> bool {
        let mut rest = self.ways.rest();
        let is_news = rest.until.is_none();
        *rest = Rest { until: Some(Instant::now() + rest.next), next: (2 * rest.next).min(MAX_REST) };
        drop(rest);
        let Some(over_tcp) = &self.ways.over_tcp else {
            if is_news {
                tracing::warn!(
                    "this network lets data over UDP pass for a short time only, and the profile has no TCP port to use instead: \
                     try another network, or ask the gateway's administrator for a way over TCP"
                );
            }
            return false;
        };
        self.ways.tcp_first.store(true, Ordering::Relaxed);
        tracing::warn!(
            "this network lets data over UDP pass for a short time only: using TCP {}, slower",
            over_tcp.port
        );
        true
    }

    /// The lanes' sockets have these ports from now on.
    pub(in crate::worker) fn lanes_are_at(&self, ports: &[u16]) {
        if let Some(over_tcp) = &self.ways.over_tcp {
            over_tcp.lanes_are_at(ports);
        }
    }

    /// UDP is tried first again: it works, or this is another network.
    pub(in crate::worker) fn prefer_udp(&self) {
        self.ways.tcp_first.store(false, Ordering::Relaxed);
        self.ways.is_narrow.store(false, Ordering::Relaxed);
    }

    /// Large datagrams vanish over UDP. Whether to go over TCP because of that, which is so once in
    /// a network.
    pub(in crate::worker) fn is_narrow(&self) -> bool {
        let Some(over_tcp) = &self.ways.over_tcp else { return false };
        if self.ways.is_narrow.swap(true, Ordering::Relaxed) {
            return false;
        }
        self.ways.tcp_first.store(true, Ordering::Relaxed);
        tracing::warn!("this network drops large datagrams: using TCP {}, slower", over_tcp.port);
        true
    }
}
