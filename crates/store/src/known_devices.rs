//! Since when the devices of users are known, and when and where they were there last, for the
//! pages that their users see.
//!
//! INVARIANT: a device is known as long as it has an address or a key, and no longer; of a client's
//! address only the network is kept.

use std::net::IpAddr;

use ipnet::IpNet;
use vpnd_proto::session::DeviceId;

use crate::{StoreError, UserId};

/// A device that was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    pub user: UserId,
    pub device: DeviceId,
    /// By the wall clock.
    pub at_s: u64,
    /// Its network; `None` leaves the one that is known.
    pub network: Option<String>,
}

/// A device that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownDevice {
    pub device: DeviceId,
    pub added_s: u64,
    /// When it was there last, if it ever was.
    pub seen_s: Option<u64>,
    pub network: Option<String>,
}

/// The network of a client's address that is shown and kept: its /24 or /48.
#[must_use]
pub fn client_network(address: IpAddr) -> String {
    let address = address.to_canonical();
    let length = if address.is_ipv4() { 24 } else { 48 };
    IpNet::new(address, length).map_or_else(|_| String::new(), |network| network.trunc().to_string())
}

/// The devices of a gateway's users, as they were there.
pub trait KnownDevices: Send + Sync {
    /// Keeps that devices were there, one sighting of each, all of them in one step. Those of users
    /// who are gone count as kept.
    fn keep_sightings(&self, sightings: &[Sighting]) -> Result<(), StoreError>;
    /// Those of a user.
    fn known_devices(&self, user: UserId) -> Result<Vec<KnownDevice>, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_address_its_network_is_kept() {
        for (address, network) in [
            ("198.51.100.7", "198.51.100.0/24"),
            ("::ffff:198.51.100.7", "198.51.100.0/24"),
            ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ] {
            assert_eq!(client_network(address.parse().unwrap()), network);
        }
    }
}
