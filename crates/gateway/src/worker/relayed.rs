//! Clients whose datagrams come over TCP: the portal relays them from addresses of this machine,
//! and here is which client's each of them are.
//!
//! INVARIANT: only what the parent has registered is another address than the one that the socket
//! shows. Datagrams are answered where they came from; limits, records and people go by the
//! client's address.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use vpnd_proto::time::Time;
use vpnd_sys::clock::now;

/// Events about datagrams of a relay may come so late after its end.
const LINGER: Duration = Duration::from_secs(5);

/// The relays that there are.
#[derive(Clone, Debug, Default)]
pub struct Relayed(Arc<RwLock<State>>);

#[derive(Debug, Default)]
struct State {
    relays: HashMap<SocketAddr, Client>,
    begun: u64,
    dropped: u64,
}

#[derive(Debug)]
struct Client {
    address: SocketAddr,
    /// When its relay was over.
    over: Option<Time>,
}

impl Relayed {
    /// Datagrams from `here` are those of this client from now on.
    pub(super) fn begin(&self, here: SocketAddr, client: SocketAddr) {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        state.purge();
        state.begun += 1;
        state.relays.insert(canonical(here), Client { address: canonical(client), over: None });
    }

    /// The relay at `here` is over, and has dropped this many datagrams.
    pub(super) fn end(&self, here: SocketAddr, dropped: u64) {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        state.dropped = state.dropped.saturating_add(dropped);
        if let Some(client) = state.relays.get_mut(&canonical(here)) {
            client.over = Some(now());
        }
        state.purge();
    }

    /// The client whose datagrams come from `address`: that address, but for those of relays.
    pub(crate) fn client(&self, address: SocketAddr) -> SocketAddr {
        self.over_tcp(address).unwrap_or(address)
    }

    /// The client's address, for a relay's address only.
    pub(super) fn over_tcp(&self, address: SocketAddr) -> Option<SocketAddr> {
        let address = canonical(address);
        // All others are spared the lock.
        if !address.ip().is_loopback() {
            return None;
        }
        let state = self.read();
        let client = state.relays.get(&address)?;
        (!client.is_forgotten(now())).then_some(client.address)
    }

    /// The number of relays that there are.
    pub(super) fn count(&self) -> usize {
        self.read().relays.values().filter(|client| client.over.is_none()).count()
    }

    /// Counts since the start.
    pub(super) fn counts(&self) -> [(&'static str, u64); 2] {
        let state = self.read();
        [("begun", state.begun), ("dropped", state.dropped)]
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn purge(&mut self) {
        let now = now();
        self.relays.retain(|_, client| !client.is_forgotten(now));
    }
}

impl Client {
    fn is_forgotten(&self, now: Time) -> bool {
        self.over.is_some_and(|over| now.since(over) >= LINGER)
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_registered_is_another_address() {
        let relayed = Relayed::default();
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let client = at("192.0.2.7:51000");
        relayed.begin(at("127.0.0.1:5000"), client);
        assert_eq!(relayed.client(at("127.0.0.1:5000")), client);
        assert_eq!(relayed.client(at("[::ffff:127.0.0.1]:5000")), client, "as sockets for both name it");
        for other in ["127.0.0.1:5001", "127.0.0.2:5000", "[::1]:5000", "192.0.2.7:5000", "192.0.2.8:51000"] {
            assert_eq!(relayed.client(at(other)), at(other));
        }
        // A client of this machine that is no relay's is what it was.
        assert_eq!((relayed.count(), relayed.over_tcp(at("127.0.0.1:5001"))), (1, None));
        relayed.end(at("127.0.0.1:5000"), 3);
        assert_eq!(relayed.client(at("127.0.0.1:5000")), client, "events of its datagrams may come yet");
        assert_eq!((relayed.count(), relayed.counts()), (0, [("begun", 1), ("dropped", 3)]));
        let later = now() + LINGER;
        assert!(relayed.read().relays.values().all(|client| client.is_forgotten(later)));
    }
}
