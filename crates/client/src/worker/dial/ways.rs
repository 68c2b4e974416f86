//! UDP or TCP: which of them a client tries first, and when it goes back to UDP.
//!
//! INVARIANT: without a TCP port in the profile there is UDP alone. A client that is on TCP stays
//! there until UDP has worked for a while, so that it does not go back and forth.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::DialError;
use super::handshakes::Shaken;
use crate::worker::over_tcp::OverTcp;

/// Head start of the way that is tried first.
const HEAD_START: Duration = Duration::from_secs(3);
/// The first time for which UDP rests where data soon vanishes; it doubles up to the longest.
const FIRST_REST: Duration = Duration::from_secs(60);
const MAX_REST: Duration = Duration::from_secs(3_600);

/// The connection of the way that was first.
type RaceOutcome = Result<Shaken, Option<DialError>>;

/// The ways to the gateway, and what is known of this network.
pub(in crate::worker) struct Ways {
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

    /// Races UDP, as `udp` tries it, with TCP, as `tcp` does if it is there and the profile permits
    /// that.
    pub(super) async fn race<'w, T>(
        &'w self,
        udp: impl Future<Output = RaceOutcome>,
        tcp: Option<impl FnOnce(&'w OverTcp) -> T>,
    ) -> RaceOutcome
    where
        T: Future<Output = RaceOutcome>,
    {
        let Some((over_tcp, tcp)) = self.over_tcp.as_ref().zip(tcp) else { return udp.await };
        let tcp = tcp(over_tcp);
        let tcp_first = self.tcp_first.load(Ordering::Relaxed);
        let after = |wait: bool| tokio::time::sleep(if wait { HEAD_START } else { Duration::ZERO });
        let udp = async {
            after(tcp_first).await;
            udp.await
        };
        let tcp = async {
            after(!tcp_first).await;
            tcp.await
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
            && !self.tcp_first.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("this network passes only TCP {}: using that, slower", over_tcp.port);
        }
        shaken
    }

    /// The time until which UDP is of no use here: none if it may be, and no end until the network
    /// changes.
    pub(super) fn useless_for(&self) -> Option<Duration> {
        if self.is_narrow.load(Ordering::Relaxed) {
            return Some(Duration::MAX);
        }
        let left = self.rest().until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Forgets that UDP did not last, for this is another network.
    pub(super) fn forget_rests(&self) {
        *self.rest() = Rest::default();
    }

    /// Data soon vanishes over UDP, although the gateway answers. Whether to go over TCP because of
    /// that.
    pub(in crate::worker) fn is_blocked(&self) -> bool {
        let mut rest = self.rest();
        let is_news = rest.until.is_none();
        *rest = Rest { until: Some(Instant::now() + rest.next), next: (2 * rest.next).min(MAX_REST) };
        drop(rest);
        let Some(over_tcp) = &self.over_tcp else {
            if is_news {
                tracing::warn!(
                    "this network lets data over UDP pass for a short time only, and the profile has no TCP port to use instead: \
                     try another network, or ask the gateway's administrator for a way over TCP"
                );
            }
            return false;
        };
        self.tcp_first.store(true, Ordering::Relaxed);
        tracing::warn!(
            "this network lets data over UDP pass for a short time only: using TCP {}, slower",
            over_tcp.port
        );
        true
    }

    /// The lanes' sockets have these ports from now on.
    pub(in crate::worker) fn lanes_are_at(&self, ports: &[u16]) {
        if let Some(over_tcp) = &self.over_tcp {
            over_tcp.lanes_are_at(ports);
        }
    }

    /// UDP is tried first again: it works, or this is another network.
    pub(in crate::worker) fn prefer_udp(&self) {
        self.tcp_first.store(false, Ordering::Relaxed);
        self.is_narrow.store(false, Ordering::Relaxed);
    }

    /// Large datagrams vanish over UDP. Whether to go over TCP because of that, which is so once in
    /// a network.
    pub(in crate::worker) fn is_narrow(&self) -> bool {
        let Some(over_tcp) = &self.over_tcp else { return false };
        if self.is_narrow.swap(true, Ordering::Relaxed) {
            return false;
        }
        self.tcp_first.store(true, Ordering::Relaxed);
        tracing::warn!("this network drops large datagrams: using TCP {}, slower", over_tcp.port);
        true
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
