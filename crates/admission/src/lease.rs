//! Inner addresses: which one a session gets, and for how long.
//!
//! Invariants: two live leases never stand on one address, because the store claims an address in
//! one step; a device that comes back gets its addresses again as long as no other device needed
//! them, its user's newer devices included; an address that is fixed for a user is never another's;
//! the gateway's own address and those that name the network are never leased. An address that no
//! device had is preferred, then the one that has been free for longest. Nothing here reads a
//! clock, and the same store gives the same answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sha2::{Digest as _, Sha256};
use vpnd_proto::control::Text;
use vpnd_proto::session::SessionId;

use vpnd_config::pool::{Pool, Pools};
use vpnd_ipc::gateway::auth::{LoginReply, PoolUsage, Reason};
use vpnd_ipc::gateway::idp::SourceAddresses;
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_store::{Family, Lease, LeaseOwner, Leases, StoreError};

/// Addresses tried at a place that depends on the owner alone, before the whole pool is looked at.
const PROBES: u64 = 8;
/// Lost races against another gateway after which the search is given up.
const RACES: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    #[error("all {size} addresses of the pool {pool} are in use; make the pool larger or sessions shorter")]
    Exhausted { pool: String, size: u64 },
    #[error(
        "the access profile has no pool of a protocol version that this machine has; give it one of the other"
    )]
    NoPool,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl LeaseError {
    /// The reply to a login that gets no addresses.
    pub fn reply(self) -> Result<LoginReply, Reason> {
        let refusal = match self {
            Self::Exhausted { .. } | Self::NoPool => {
                tracing::warn!(why = %self, "no inner address for a login");
                Refusal::NoAddress
            }
            Self::Store(StoreError::Busy { .. }) => Refusal::Busy,
            Self::Store(error @ StoreError::Database { .. }) if error.is_for_now() => {
                tracing::warn!(%error, "no inner address for a login");
                Refusal::StoreUnavailable
            }
            Self::Store(error) => return Err(Reason::cut(&error.to_string())),
        };
        Ok(LoginReply::Refused(refusal.into()))
    }
}

/// The addresses that a session got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquired {
    pub addresses: Addresses,
    /// Whether the device had them before, and no other device since.
    pub are_own: bool,
}

/// The addresses of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Its inner IPv4 address, if there is a pool.
    pub v4: Option<Ipv4Addr>,
    /// Its inner IPv6 address, if there is a pool.
    pub v6: Option<Ipv6Addr>,
}

/// The device that wants addresses, and those that its user's source names, if any.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub owner: LeaseOwner,
    pub addresses: SourceAddresses,
}

/// Leases one address of each pool to `session` of the owner until `until_s`, or none at all.
pub fn acquire(
    pools: &Pools,
    store: &dyn Leases,
    wanted: Wanted,
    session: SessionId,
    now_s: u64,
    until_s: u64,
) -> Result<Acquired, LeaseError> {
    if pools.iter().next().is_none() {
        return Err(LeaseError::NoPool);
    }
    let expected = claim_expected(
        pools,
        store,
        wanted,
        |address| Lease { address, owner: wanted.owner, session, until_s },
        now_s,
    )?;
    let lease = |pool: &Pool| match expected.iter().find(|(address, _)| address.is_ipv4() == pool.is_ipv4()) {
        Some(expected) => Ok(*expected),
        None => acquire_from(pool, store, wanted, session, now_s, until_s),
    };
    let leased = pools.v4.as_ref().map(lease).transpose();
    let leased = leased.and_then(|v4| Ok((v4, pools.v6.as_ref().map(lease).transpose()?)));
    let (v4, v6) = match leased {
        Ok(leased) => leased,
        Err(error) => {
            store.release(session, now_s)?;
            return Err(error);
        }
    };
    let are_own = [v4, v6].into_iter().flatten().all(|(_, is_own)| is_own);
    let [v4, v6] = [v4, v6].map(|acquired| acquired.map(|(address, _)| address));
    Ok(Acquired { addresses: Addresses { v4: v4.and_then(as_v4), v6: v6.and_then(as_v6) }, are_own })
}

/// How full each of these pools is, the same ones once.
pub fn usage(pools: &[Pools], store: &dyn Leases, now_s: u64) -> Result<Vec<PoolUsage>, StoreError> {
    let mut distinct: Vec<&Pool> = Vec::new();
    for pool in pools.iter().flat_map(Pools::iter) {
        if !distinct.contains(&pool) {
            distinct.push(pool);
        }
    }
    distinct.sort_by_key(|pool| !pool.is_ipv4());
    let usage = |pool: &Pool| {
        let taken = pool.ranges().map(|(first, last)| store.live_leases(first, last, now_s));
        let taken = taken.sum::<Result<u64, _>>()?;
        Ok(PoolUsage { pool: Text::cut(&pool.to_string()), taken, total: pool.size() })
    };
    distinct.into_iter().map(usage).collect()
}

/// Claims what a device gets that comes back, of all pools by one change: thousands of devices come
/// back at once. Returns the addresses that it has now, and whether each is its own from before.
fn claim_expected(
    pools: &Pools,
    store: &dyn Leases,
    wanted: Wanted,
    lease: impl Fn(IpAddr) -> Lease,
    now_s: u64,
) -> Result<Vec<(IpAddr, bool)>, StoreError> {
    let mut expected = Vec::new();
    for pool in pools.iter() {
        expected.extend(expected_of(pool, store, wanted)?);
    }
    if expected.is_empty() {
        return Ok(expected);
    }
    let leases: Vec<Lease> = expected.iter().map(|(address, _)| lease(*address)).collect();
    let mut claimed = store.claim_all(&leases, now_s)?.into_iter();
    expected.retain(|_| claimed.next() == Some(true));
    Ok(expected)
}

/// The address that [`acquire_from`] tries first and nearly always gets, if that is known without a
/// look at others' addresses; and whether the owner had it before.
fn expected_of(
    pool: &Pool,
    store: &dyn Leases,
    wanted: Wanted,
) -> Result<Option<(IpAddr, bool)>, StoreError> {
    let before = store.lease_of(wanted.owner, family(pool))?.map(|lease| lease.address);
    let fixed = store.fixed_addresses(wanted.owner, family(pool))?;
    let SourceAddresses { ipv4, ipv6 } = wanted.addresses;
    let is_named = if pool.is_ipv4() { ipv4.is_some() } else { ipv6.is_some() };
    let address = match fixed.iter().min_by_key(|address| Some(**address) != before) {
        Some(fixed) => Some(*fixed),
        None if is_named => None,
        None => before,
    };
    // One outside of the pool is worth a line in the log.
    let fits = |address: &IpAddr| pool.contains(*address);
    let address = address.filter(|address| fits(address) && fixed.iter().all(fits));
    Ok(address.map(|address| (address, before == Some(address))))
}

/// An address, and whether it is the owner's from before.
fn acquire_from(
    pool: &Pool,
    store: &dyn Leases,
    wanted: Wanted,
    session: SessionId,
    now_s: u64,
    until_s: u64,
) -> Result<(IpAddr, bool), LeaseError> {
    let (family, size, owner) = (family(pool), pool.size(), wanted.owner);
    let exhausted = || LeaseError::Exhausted { pool: pool.to_string(), size };
    if size == 0 {
        return Err(exhausted());
    }
    let claim = |address| store.claim(&Lease { address, owner, session, until_s }, now_s);
    let before = store.lease_of(owner, family)?;
    if let Some(fixed) = fixed(pool, store, wanted, before.map(|lease| lease.address), claim)? {
        return Ok((fixed, before.is_some_and(|lease| lease.address == fixed)));
    }
    if let Some(before) = before
        && pool.contains(before.address)
        && claim(before.address)?
    {
        return Ok((before.address, true));
    }
    // A user's devices that have gone make room for the next, so that a user takes a bounded part
    // of pool and store.
    if let Some(old) = store.surplus(owner.user, family, now_s)?
        && pool.contains(old.address)
        && claim(old.address)?
    {
        return Ok((old.address, false));
    }
    // Nearly all new owners find a place here, whatever the number of leases.
    let start = preferred(owner) % size;
    for i in 0..PROBES.min(size) {
        let address = pool.address((start + i) % size);
        if store.lease_on(address)?.is_none() && claim(address)? {
            return Ok((address, false));
        }
    }
    let others = store.fixed_for_others(owner, family)?;
    for _ in 0..RACES {
        let leases = store.leases(family)?;
        let Some(address) = choose(pool, &leases, &others, now_s) else { break };
        if claim(address)? {
            return Ok((address, false));
        }
    }
    Err(exhausted())
}

/// The fixed address that the owner gets, if it has one that is free: the one of before, or else
/// the first, or else that of its source.
fn fixed(
    pool: &Pool,
    store: &dyn Leases,
    wanted: Wanted,
    before: Option<IpAddr>,
    claim: impl Fn(IpAddr) -> Result<bool, StoreError>,
) -> Result<Option<IpAddr>, StoreError> {
    let mut fixed = store.fixed_addresses(wanted.owner, family(pool))?;
    fixed.sort_by_key(|address| Some(*address) != before);
    for address in fixed {
        if !pool.contains(address) {
            tracing::warn!(
                %address, pool = %pool,
                "a user's fixed address is not in the pool of the user's profile, so the device gets another one ('vpnd check' names them)"
            );
        } else if claim(address)? {
            return Ok(Some(address));
        }
    }
    let SourceAddresses { ipv4, ipv6 } = wanted.addresses;
    let address = if pool.is_ipv4() { ipv4.map(IpAddr::from) } else { ipv6.map(IpAddr::from) };
    let Some(address) = address else { return Ok(None) };
    let reason = if !pool.contains(address) {
        "it is not in the pool of the user's profile"
    } else if claim(address)? {
        return Ok(Some(address));
    } else {
        "another session has it, or it is fixed for another user"
    };
    tracing::warn!(%address, %pool, why = reason, "a device does not get the address that its user's RADIUS server names");
    Ok(None)
}

/// The address for an owner that has none, in a crowded pool: `leases` are all that were ever made,
/// by address, and `others` those that are fixed for other owners.
fn choose(pool: &Pool, leases: &[Lease], others: &[IpAddr], now_s: u64) -> Option<IpAddr> {
    let fixed = |address: &IpAddr| others.binary_search(address).is_ok();
    let leased = |address: &IpAddr| leases.binary_search_by_key(address, |lease| lease.address).is_ok();
    let taken = |address: &IpAddr| leased(address) || fixed(address);
    if let Some(address) = (0..pool.size()).map(|i| pool.address(i)).find(|address| !taken(address)) {
        return Some(address);
    }
    let ended = leases.iter().filter(|lease| !lease.is_live(now_s) && pool.contains(lease.address));
    let ended = ended.filter(|lease| !fixed(&lease.address));
    ended.min_by_key(|lease| (lease.until_s, lease.address)).map(|lease| lease.address)
}

fn family(pool: &Pool) -> Family {
    if pool.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// The first candidate of this owner in a pool. Spreads owners, so that most find their own address
/// again even after the store forgot them.
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
