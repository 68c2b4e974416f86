//! A WireGuard device that is added: its id and its addresses.
//!
//! INVARIANT: a device that is refused has changed nothing.

use std::collections::HashSet;
use std::net::IpAddr;

use sha2::{Digest as _, Sha256};
use vpnd_config::pool::Pool;
use vpnd_crypto::Secret;
use vpnd_proto::session::DeviceId;
use vpnd_store::{Family, NewWireGuardDevice, Store, StoreError};
use vpnd_wireguard::handshakes::{Known, NotAdded};
use vpnd_wireguard::key::StaticKey;
use vpnd_wireguard::{Handshakes, PublicKey};

/// The longest name of a device, bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Random addresses of a pool that are tried, and those from its beginning on after that.
const RANDOM: usize = 64;
const ORDERED: u64 = 4_096;

/// Whether a device may have this name.
#[must_use]
pub fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control)
}

/// Refuses a key that no device can have.
///
/// # Errors
/// If it is the gateway's, or one with which no handshake is possible.
pub fn check_key(key: PublicKey, gateway: PublicKey) -> Result<(), NotAdded> {
    if key == gateway {
        return Err(NotAdded::Own);
    }
    let any = StaticKey::new(Secret::new(rand::random::<[u8; 32]>()));
    Handshakes::new(any, Box::new(|_: &mut [u8]| {})).add(key, Known::default())
}

/// A device's id, which its key gives.
#[must_use]
pub fn id(key: PublicKey) -> DeviceId {
    let digest = Sha256::new().chain_update(b"vpnd: WireGuard device").chain_update(key.0).finalize();
    DeviceId(digest[..16].try_into().expect("a SHA-256 digest has 32 bytes"))
}

/// Addresses of a pool, in the order in which they are tried.
pub fn candidates(pool: &Pool) -> Vec<IpAddr> {
    let random = (0..RANDOM).map(|_| pool.address(rand::random::<u64>() % pool.size().max(1)));
    let ordered = (0..pool.size().min(ORDERED)).map(|number| pool.address(number));
    random.chain(ordered).filter(|address| pool.contains(*address)).collect()
}

/// Adds a device with the first of each pool's candidates that is free, one that another device has
/// left for a moment only if there is no other; its addresses, or `None` if none is free.
///
/// # Errors
/// If the store refuses the device, or fails.
pub fn add(
    store: &dyn Store,
    user: &str,
    mut new: NewWireGuardDevice,
    candidates: Vec<Vec<IpAddr>>,
    now_s: u64,
) -> Result<Option<Vec<IpAddr>>, StoreError> {
    let mut pools = Vec::new();
    for candidates in candidates {
        let is_v4 = candidates.first().is_some_and(IpAddr::is_ipv4);
        let leases = store.leases(if is_v4 { Family::V4 } else { Family::V6 })?;
        let leased: HashSet<IpAddr> = leases.into_iter().map(|lease| lease.address).collect();
        let (left, fresh): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|address| leased.contains(address));
        pools.push(fresh.into_iter().chain(left).peekable());
    }
    loop {
        let Some(addresses) = pools.iter_mut().map(|pool| pool.peek().copied()).collect() else {
            return Ok(None);
        };
        new.addresses = addresses;
        match store.add_wireguard_device(user, &new, now_s) {
            Ok(()) => return Ok(Some(new.addresses)),
            Err(StoreError::AddressTaken { address, .. }) => {
                for pool in &mut pools {
                    pool.next_if_eq(&address);
                }
            }
            Err(error) => return Err(error),
        }
    }
}
