//! Thousands of WireGuard devices at a gateway, put into its store as `vpnd device add` puts one:
//! that command for each would take minutes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use vpnd_proto::session::DeviceId;
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{NewWireGuardDevice, WireGuardDevices as _};
use vpnd_swarm::message::Credentials;
use vpnd_swarm::wireguard::{Client, Job};

use super::held_sessions::SessionsError;
use trafficspeed::lab::Lab;
use trafficspeed::system::vpnd::{PORT, Vpnd};
use trafficspeed::system::wireguard::uapi::KeyPair;

/// Devices of one user at most.
pub const MOST_OF_USER: u32 = 50;
/// The MTU of their tunnels.
pub const MTU: u16 = 1_420;
/// The first bytes of their addresses, of which a gateway takes none by chance in a test of
/// minutes.
const NETWORK: [u8; 2] = [10, 86];
const OF_ONE_NETWORK: u32 = 200;

/// The devices of all processes, as their clients need them.
pub struct Devices {
    gateway_key: [u8; 32],
    far: Ipv4Addr,
    clients: Vec<Client>,
}

impl Devices {
    /// Adds `count` devices of `users`, who have as many each.
    ///
    /// # Errors
    /// [`SessionsError`] with what the store or `vpnd device add` said.
    pub fn add(system: &Vpnd, lab: &Lab, users: &[Credentials], count: u32) -> Result<Self, SessionsError> {
        let store = Sqlite::open(&system.store())?;
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let add = |number: u32| {
            let (key, inner) = (KeyPair::random(), address(number));
            let user = &users[number as usize % users.len()].user;
            let device = NewWireGuardDevice {
                public_key: key.public,
                id: DeviceId(*key.public.first_chunk().expect("a key is longer")),
                name: String::new(),
                preshared: None,
                most: 64,
                addresses: vec![IpAddr::V4(inner)],
            };
            store.add_wireguard_device(user, &device, now_s)?;
            Ok(Client { key: *key.private(), inner })
        };
        let clients = (0..count).map(add).collect::<Result<_, SessionsError>>()?;
        Ok(Self { gateway_key: system.wireguard_key(&users[0].user)?, far: Vpnd::inside(lab)?, clients })
    }

    /// The job of a process that has `count` of them from number `first` on and sends from
    /// `sources`.
    pub fn job(&self, (first, count): (u32, u32), at_once: u32, sources: Vec<IpAddr>) -> Job {
        Job {
            server: SocketAddr::from((Lab::SERVICE_V4, PORT)),
            server_key: self.gateway_key,
            clients: self.clients[first as usize..(first + count) as usize].to_vec(),
            first,
            first_port: None,
            sources,
            far: self.far,
            mtu: MTU,
            at_once,
            campus: None,
        }
    }
}

fn address(number: u32) -> Ipv4Addr {
    let [a, b] = NETWORK;
    Ipv4Addr::new(a, b, (1 + number / OF_ONE_NETWORK) as u8, (2 + number % OF_ONE_NETWORK) as u8)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_device_has_an_address_of_its_own() {
        let all: BTreeSet<_> = (0..20_000).map(address).collect();
        assert_eq!(all.len(), 20_000);
        assert!(all.iter().all(|address| address.octets()[..2] == NETWORK));
    }
}
