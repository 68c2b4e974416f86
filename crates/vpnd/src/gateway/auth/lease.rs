//! Inner addresses: which one a session gets, and for how long.
//!
//! Invariants: two live leases never stand on one address, because the store claims an address in one step; a device
//! that comes back gets its addresses again as long as nobody needed them; the gateway's own address and those that
//! name the network are never leased. An address that nobody had is preferred, then the one that has been free for
//! longest. Nothing here reads a clock, and the same store gives the same answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use sha2::{Digest as _, Sha256};
use vpnd_proto::control::Text;
use vpnd_proto::session::SessionId;

use crate::config::Tunnel;
use crate::gateway::messages::auth::PoolUsage;
use crate::store::{Family, Lease, LeaseOwner, Store, StoreError};

/// Addresses tried at a place that depends on the owner alone, before the whole pool is looked at.
const PROBES: u64 = 8;
/// Lost races against another gateway after which the search is given up.
const RACES: usize = 8;
/// Addresses of one pool that are ever used; bounds the search in an IPv6 pool.
const MAX_POOL: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub(super) enum LeaseError {
    #[error("all {size} addresses of the pool {pool} are in use; make the pool larger or sessions shorter")]
    Exhausted { pool: String, size: u64 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The addresses of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// Its inner IPv4 address, if there is a pool.
    pub v4: Option<Ipv4Addr>,
    /// Its inner IPv6 address, if there is a pool.
    pub v6: Option<Ipv6Addr>,
}

/// The pools of a gateway.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pools {
    v4: Option<Pool>,
    v6: Option<Pool>,
}

/// Leasable addresses `base..base + size` of one network.
#[derive(Clone, Copy, Debug)]
struct Pool {
    family: Family,
    prefix_len: u8,
    network: u128,
    size: u64,
}

impl Pools {
    /// The pools of `[tunnel]`.
    pub(super) fn new(tunnel: &Tunnel) -> Self {
        Self { v4: tunnel.pool_v4.map(Pool::v4), v6: tunnel.pool_v6.map(Pool::v6) }
    }

    /// Leases one address of each pool to `session` of `owner` until `until_s`, or none at all.
    pub(super) fn acquire(
        &self,
        store: &dyn Store,
        owner: LeaseOwner,
        session: SessionId,
        now_s: u64,
        until_s: u64,
    ) -> Result<Addresses, LeaseError> {
        let lease = |pool: Pool| pool.acquire(store, owner, session, now_s, until_s);
        let v4 = self.v4.map(lease).transpose()?;
        let v6 = match self.v6.map(lease).transpose() {
            Ok(v6) => v6,
            Err(error) => {
                store.end_session(session, now_s)?;
                return Err(error);
            }
        };
        Ok(Addresses { v4: v4.and_then(as_v4), v6: v6.and_then(as_v6) })
    }

    /// How full each pool is.
    pub(super) fn usage(&self, store: &dyn Store, now_s: u64) -> Result<Vec<PoolUsage>, StoreError> {
        let usage = |pool: Pool| {
            let (first, last) = (pool.address(0), pool.address(pool.size - 1));
            let taken = store.live_leases(first, last, now_s)?;
            Ok(PoolUsage { pool: Text::cut(&pool.to_string()), taken, total: pool.size })
        };
        self.v4.into_iter().chain(self.v6).map(usage).collect()
    }

    /// Whether these addresses are still leased here: the pools may have changed since.
    pub(super) fn hold(&self, addresses: Addresses) -> bool {
        let holds = |pool: Option<Pool>, address: IpAddr| pool.is_some_and(|pool| pool.contains(address));
        addresses.v4.is_none_or(|v4| holds(self.v4, v4.into()))
            && addresses.v6.is_none_or(|v6| holds(self.v6, v6.into()))
    }
}

impl Pool {
    /// All but the network's and the broadcast address, and the first host: the gateway.
    fn v4(net: Ipv4Net) -> Self {
        let addresses = 1u64 << (32 - u32::from(net.prefix_len()));
        Self {
            family: Family::V4,
            prefix_len: net.prefix_len(),
            network: u128::from(u32::from(net.network())),
            size: (addresses - 3).min(MAX_POOL),
        }
    }

    /// All but the subnet-router anycast address (RFC 4291 section 2.6.1), and the first host: the gateway.
    fn v6(net: Ipv6Net) -> Self {
        let addresses = 1u128 << (128 - u32::from(net.prefix_len())).min(127);
        Self {
            family: Family::V6,
            prefix_len: net.prefix_len(),
            network: u128::from(net.network()),
            size: (addresses - 2).min(u128::from(MAX_POOL)) as u64,
        }
    }

    fn acquire(
        self,
        store: &dyn Store,
        owner: LeaseOwner,
        session: SessionId,
        now_s: u64,
        until_s: u64,
    ) -> Result<IpAddr, LeaseError> {
        let claim = |address| store.claim(&Lease { address, owner, session, until_s }, now_s);
        if let Some(before) = store.lease_of(owner, self.family)?
            && self.contains(before.address)
            && claim(before.address)?
        {
            return Ok(before.address);
        }
        // Nearly all new owners find a place here, whatever the number of leases.
        let start = preferred(owner) % self.size;
        for i in 0..PROBES.min(self.size) {
            let address = self.address((start + i) % self.size);
            if store.lease_on(address)?.is_none() && claim(address)? {
                return Ok(address);
            }
        }
        for _ in 0..RACES {
            let leases = store.leases(self.family)?;
            let Some(address) = self.choose(&leases, now_s) else { break };
            if claim(address)? {
                return Ok(address);
            }
        }
        Err(LeaseError::Exhausted { pool: self.to_string(), size: self.size })
    }

    /// The address for an owner that has none, in a crowded pool: `leases` are all that were ever made, by address.
    fn choose(self, leases: &[Lease], now_s: u64) -> Option<IpAddr> {
        let taken = |address: &IpAddr| leases.binary_search_by_key(address, |lease| lease.address).is_ok();
        if let Some(address) = (0..self.size).map(|i| self.address(i)).find(|address| !taken(address)) {
            return Some(address);
        }
        let ended = leases.iter().filter(|lease| !lease.is_live(now_s) && self.contains(lease.address));
        ended.min_by_key(|lease| (lease.until_s, lease.address)).map(|lease| lease.address)
    }

    /// The `i`th leasable address.
    fn address(self, i: u64) -> IpAddr {
        // The network's own address and the gateway's come first.
        let number = self.network + 2 + u128::from(i);
        match self.family {
            Family::V4 => IpAddr::from(Ipv4Addr::from(number as u32)),
            Family::V6 => IpAddr::from(Ipv6Addr::from(number)),
        }
    }

    fn contains(self, address: IpAddr) -> bool {
        let number = match (self.family, address) {
            (Family::V4, IpAddr::V4(v4)) => u128::from(u32::from(v4)),
            (Family::V6, IpAddr::V6(v6)) => u128::from(v6),
            _ => return false,
        };
        number.checked_sub(self.network + 2).is_some_and(|i| i < u128::from(self.size))
    }
}

impl std::fmt::Display for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.family {
            Family::V4 => write!(f, "{}/{}", Ipv4Addr::from(self.network as u32), self.prefix_len),
            Family::V6 => write!(f, "{}/{}", Ipv6Addr::from(self.network), self.prefix_len),
        }
    }
}

/// The first candidate of this owner in a pool. Spreads owners, so that most find their own address again even after
/// the store forgot them.
fn preferred(owner: LeaseOwner) -> u64 {
    let digest = Sha256::new().chain_update(owner.user.0).chain_update(owner.device.0).finalize();
    let first: [u8; 8] = digest[..8].try_into().expect("a SHA-256 digest has 32 bytes");
    u64::from_le_bytes(first)
}

fn as_v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    }
}

fn as_v6(address: IpAddr) -> Option<Ipv6Addr> {
    match address {
        IpAddr::V6(v6) => Some(v6),
        IpAddr::V4(_) => None,
    }
}

#[cfg(test)]
mod tests;
