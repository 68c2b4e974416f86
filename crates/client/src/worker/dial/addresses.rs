//! The addresses at which gateways may be: those of the profile and of the gateway's messages, and
//! those of their names.

use std::net::SocketAddr;
use std::sync::{MutexGuard, PoisonError};

use tokio::time::Instant;
use vpnd_proto::client::Purpose;
use vpnd_proto::control::Renewal;

use super::candidates::Weights;
use super::{DialError, Dialer};
use crate::servers::with_new;
use vpnd_config::profile::ServerAddress;

impl Dialer {
    /// The gateway has these addresses, too. Those of an honest parent's are read as it has read
    /// them.
    pub(in crate::worker) fn add(&self, renewal: &Renewal) {
        let new: Vec<ServerAddress> = renewal.addresses.iter().filter_map(|text| text.parse().ok()).collect();
        self.weights().replace(renewal.weighted().into_iter().flatten().filter_map(parsed).collect());
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// The addresses to try, in order.
    pub(super) fn candidates(&self, purpose: &Purpose, current: Option<SocketAddr>) -> Vec<SocketAddr> {
        let drained = self.drained.lock().unwrap_or_else(PoisonError::into_inner);
        let by_weight = |addresses| self.weights().order(addresses, rand::random::<f64>);
        drained.order(&self.known(), purpose, current, Instant::now(), by_weight)
    }

    /// Looks up all names of the gateway, and for IPv4 addresses without a way there those by which
    /// NAT64 serves them. The addresses found are kept, after the address that has answered last.
    pub(super) async fn look_up(&self) -> Result<Vec<SocketAddr>, DialError> {
        let mut found = Vec::new();
        let mut last = None;
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (place, server) in servers.iter().enumerate() {
            let literal = server.literal();
            found.extend(literal);
            if literal.is_some_and(|address| !address.is_ipv4() || !self.trials.lock().has_no_way_to(address))
            {
                continue;
            }
            match self.parent.addresses(place).await {
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
            self.trials.lock().lookup_failed(error.to_string());
            return Err(error.into());
        }
        self.trials.lock().looked_up();
        let mut known = self.known();
        known.truncate(1);
        found.iter().for_each(|address| {
            if !known.contains(address) {
                known.push(*address);
            }
        });
        Ok(self.weights().order(found, rand::random::<f64>))
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Vec<SocketAddr>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn weights(&self) -> MutexGuard<'_, Weights> {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parsed((text, weight): (&str, u32)) -> Option<(ServerAddress, u32)> {
    Some((text.parse().ok()?, weight))
}
