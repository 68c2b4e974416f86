//! The addresses at which gateways may be: those of the profile and of the gateway's messages, and
//! those of their names.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use vpnd_proto::client::Purpose;
use vpnd_proto::control::Renewal;

use super::DialError;
use super::candidates::{Drained, Weights};
use super::trial_log::TrialLog;
use crate::servers::with_new;
use crate::worker::parent_client::ParentClient;
use vpnd_config::profile::{Profile, ServerAddress};

pub(in crate::worker) struct Addresses {
    /// In the order in which the parent knows them.
    servers: Mutex<Vec<ServerAddress>>,
    /// Addresses at which the gateway has answered, the latest first, then those where it may be.
    known: Mutex<Vec<SocketAddr>>,
    drained: Mutex<Drained>,
    weights: Mutex<Weights>,
}

impl Addresses {
    /// Those of the profile, of which some have weights.
    pub(super) fn new(profile: &Profile, weights: Vec<(ServerAddress, u32)>) -> Self {
        // Addresses need no lookup, and names need one only where the profile has no address.
        let mut known: Vec<_> = profile.servers.iter().filter_map(ServerAddress::literal).collect();
        if profile.spread && !known.is_empty() {
            let first = rand::random_range(0..known.len());
            known.rotate_left(first);
        }
        Self {
            servers: Mutex::new(profile.servers.clone()),
            known: Mutex::new(known),
            drained: Mutex::default(),
            weights: Mutex::new(Weights::new(weights)),
        }
    }

    /// The gateway has these addresses, too. Those of an honest parent's are read as it has read
    /// them.
    pub(in crate::worker) fn add(&self, renewal: &Renewal) {
        let new: Vec<ServerAddress> = renewal.addresses.iter().filter_map(|text| text.parse().ok()).collect();
        self.weights().replace(renewal.weighted().into_iter().flatten().filter_map(parsed).collect());
        let mut servers = self.servers();
        *servers = with_new(&servers, &new);
        let mut known = self.known();
        let others: Vec<_> =
            servers.iter().filter_map(ServerAddress::literal).filter(|new| !known.contains(new)).collect();
        known.extend(others);
    }

    /// This address is the first to be tried the next time.
    pub(super) fn answered(&self, address: SocketAddr) {
        let mut known = self.known();
        known.retain(|other| *other != address);
        known.insert(0, address);
    }

    /// The gateway at this address is being drained. Whether that is news.
    pub(in crate::worker) fn note_drained(&self, address: SocketAddr) -> bool {
        self.drained().add(address, Instant::now())
    }

    /// The addresses to try, in order.
    pub(super) fn candidates(&self, purpose: &Purpose, current: Option<SocketAddr>) -> Vec<SocketAddr> {
        let drained = self.drained();
        let by_weight = |addresses| self.weights().order(addresses, rand::random::<f64>);
        drained.order(&self.known(), purpose, current, Instant::now(), by_weight)
    }

    /// Has the parent look up all names of the gateway, and for IPv4 addresses without a way there
    /// those by which NAT64 serves them. The addresses found are kept, after the address that has
    /// answered last.
    pub(super) async fn look_up(
        &self,
        parent: &ParentClient,
        trials: &TrialLog,
    ) -> Result<Vec<SocketAddr>, DialError> {
        let mut found = Vec::new();
        let mut last = None;
        let servers = self.servers().clone();
        for (place, server) in servers.iter().enumerate() {
            let literal = server.literal();
            found.extend(literal);
            if literal.is_some_and(|address| !address.is_ipv4() || !trials.lock().has_no_way_to(address)) {
                continue;
            }
            match parent.addresses(place).await {
                Ok(addresses) => {
                    let at_port = |address: &_| SocketAddr::new(*address, server.port);
                    let addresses: Vec<_> = addresses.iter().map(at_port).collect();
                    self.weights().found(server, &addresses);
                    found.extend(addresses);
                }
                // Most networks have no NAT64, which is no failure.
                Err(_) if literal.is_some() => {}
                Err(error) => last = Some(error),
            }
        }
        if let (true, Some(error)) = (found.is_empty(), last) {
            trials.lock().lookup_failed(error.to_string());
            return Err(error.into());
        }
        trials.lock().looked_up();
        let mut known = self.known();
        known.truncate(1);
        found.iter().for_each(|address| {
            if !known.contains(address) {
                known.push(*address);
            }
        });
        Ok(self.weights().order(found, rand::random::<f64>))
    }

    /// The first address of the profile, unless it is a name.
    pub(super) fn first(&self) -> Option<SocketAddr> {
        self.servers().first().and_then(ServerAddress::literal)
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Vec<SocketAddr>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn servers(&self) -> MutexGuard<'_, Vec<ServerAddress>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drained(&self) -> MutexGuard<'_, Drained> {
        self.drained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn weights(&self) -> MutexGuard<'_, Weights> {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parsed((text, weight): (&str, u32)) -> Option<(ServerAddress, u32)> {
    Some((text.parse().ok()?, weight))
}
