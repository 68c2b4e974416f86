//! Blocks of ports of public addresses: each inner IPv4 address has one.
//!
//! Which one follows from the address alone (deterministic NAT, RFC 7422): nothing has to be stored
//! or requested when sessions begin and end, no process of lower rights chooses a block, and from
//! the settings of a time the client of a port can be computed. The settings have a text form for
//! that, which the audit file keeps. The price: there are blocks for the whole pool, not for the
//! sessions in use.
//!
//! The pool's addresses take the blocks in order: first all blocks of the first public address,
//! then those of the next. So the clients of a public address have neighbouring inner addresses,
//! and one range names them all.
//!
//! This module must not know nftables, sessions or users.

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::Ipv4Net;
use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// The number of ports that a block may have.
pub const SIZES: RangeInclusive<u64> = 32..=8192;

/// The settings that say whose a port is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortBlocks {
    pub addresses: Vec<Ipv4Addr>,
    /// The first and the last port that is given out.
    pub ports: (u16, u16),
    /// Ports of a block.
    pub size: u16,
    pub pool: Ipv4Net,
}

/// The ports of one inner address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Block {
    #[n(0)]
    pub address: Ipv4Addr,
    /// The first and the last of its ports.
    #[n(1)]
    pub ports: (u16, u16),
}

impl PortBlocks {
    /// Blocks that a public address has.
    pub fn in_address(&self) -> u32 {
        (u32::from(self.ports.1) + 1).saturating_sub(self.ports.0.into()) / u32::from(self.size)
    }

    /// Blocks that all public addresses have.
    pub fn count(&self) -> u64 {
        u64::from(self.in_address()) * self.addresses.len() as u64
    }

    /// Blocks that are needed: one for each address of the pool.
    pub fn needed(&self) -> u64 {
        1_u64 << (32 - self.pool.prefix_len())
    }

    /// The block of an inner address; `None` if it is not one of the pool.
    #[must_use]
    pub fn block_of(&self, inner: Ipv4Addr) -> Option<Block> {
        if !self.pool.contains(&inner) {
            return None;
        }
        let number = u32::from(inner) - u32::from(self.pool.network());
        let in_address = self.in_address();
        let (at, block) = (number.checked_div(in_address)?, number.checked_rem(in_address)?);
        let first = u32::from(self.ports.0) + block * u32::from(self.size);
        let last = first + u32::from(self.size) - 1;
        let ports = (u16::try_from(first).ok()?, u16::try_from(last).ok()?);
        Some(Block { address: *self.addresses.get(at as usize)?, ports })
    }

    /// The inner address whose block has this port; `None` if no block has it.
    #[must_use]
    pub fn inner_of(&self, address: Ipv4Addr, port: u16) -> Option<Ipv4Addr> {
        let (first, last) = self.clients_of(address)?;
        let block = u32::from(port.checked_sub(self.ports.0)?) / u32::from(self.size);
        let inner = u32::from(first).checked_add(block)?;
        (inner <= u32::from(last)).then(|| inner.into())
    }

    /// The first and the last inner address whose blocks are of this public address; `None` if
    /// there are none.
    #[must_use]
    pub fn clients_of(&self, address: Ipv4Addr) -> Option<(Ipv4Addr, Ipv4Addr)> {
        let at = self.addresses.iter().position(|own| *own == address)? as u32;
        let in_address = self.in_address();
        let first = u32::from(self.pool.network()).checked_add(at.checked_mul(in_address)?)?;
        let last = first.checked_add(in_address.checked_sub(1)?)?.min(self.pool.broadcast().into());
        (first <= last).then(|| (first.into(), last.into()))
    }

    /// All inner addresses that a client may have, with their blocks.
    pub fn all(&self) -> impl Iterator<Item = (Ipv4Addr, Block)> {
        self.pool.hosts().filter_map(|inner| Some((inner, self.block_of(inner)?)))
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, ports } = self;
        write!(f, "{address} ports {}-{}", ports.0, ports.1)
    }
}

/// Writes the form of the audit file, which [`FromStr`] reads.
impl fmt::Display for PortBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { addresses, ports, size, pool } = self;
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        write!(f, "{pool} to {} ports {}-{} by {size}", addresses.join(","), ports.0, ports.1)
    }
}

impl FromStr for PortBlocks {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let words: Vec<&str> = text.split(' ').collect();
        let [pool, "to", addresses, "ports", ports, "by", size] = words[..] else { return Err(()) };
        let (first, last) = ports.split_once('-').ok_or(())?;
        let addresses: Result<Vec<Ipv4Addr>, _> = addresses.split(',').map(str::parse).collect();
        let read = Self {
            addresses: addresses.map_err(drop)?,
            ports: (first.parse().map_err(drop)?, last.parse().map_err(drop)?),
            size: size.parse().map_err(drop)?,
            pool: pool.parse().map_err(drop)?,
        };
        let is_good = SIZES.contains(&u64::from(read.size)) && read.count() >= read.needed();
        if is_good { Ok(read) } else { Err(()) }
    }
}

impl TryFrom<String> for PortBlocks {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map_err(|()| "these are no blocks of ports")
    }
}

impl From<PortBlocks> for String {
    fn from(blocks: PortBlocks) -> Self {
        blocks.to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn blocks(text: &str) -> PortBlocks {
        text.parse().unwrap()
    }

    #[test]
    fn no_port_is_two_clients_and_each_leads_back() {
        let blocks = blocks("10.86.1.0/24 to 192.0.2.10,192.0.2.11,198.51.100.1 ports 20000-30001 by 100");
        let mut owner = HashMap::new();
        for (inner, block) in blocks.all() {
            assert_eq!(block.ports.1 - block.ports.0, 99);
            for port in block.ports.0..=block.ports.1 {
                assert!(owner.insert((block.address, port), inner).is_none(), "{port} of {}", block.address);
            }
        }
        assert_eq!(blocks.all().count(), 254);
        for address in &blocks.addresses {
            for port in 19_000..=31_000 {
                // No client has the blocks of network and broadcast address.
                let found = blocks.inner_of(*address, port).filter(|inner| !is_end(&blocks, *inner));
                assert_eq!(found, owner.get(&(*address, port)).copied(), "{address}:{port}");
            }
        }
        assert_eq!(blocks.inner_of(Ipv4Addr::new(192, 0, 2, 12), 20_000), None);
        assert_eq!(blocks.block_of(Ipv4Addr::new(10, 86, 2, 0)), None);
    }

    fn is_end(blocks: &PortBlocks, inner: Ipv4Addr) -> bool {
        [blocks.pool.network(), blocks.pool.broadcast()].contains(&inner)
    }

    #[test]
    fn the_first_and_the_last_block_are_where_they_are_computed_by_hand() {
        let blocks = blocks("10.86.0.0/28 to 192.0.2.1,192.0.2.2 ports 10000-14999 by 512");
        assert_eq!((blocks.in_address(), blocks.count(), blocks.needed()), (9, 18, 16));
        let block = |last| blocks.block_of(Ipv4Addr::new(10, 86, 0, last)).unwrap().to_string();
        assert_eq!(block(0), "192.0.2.1 ports 10000-10511");
        assert_eq!(block(2), "192.0.2.1 ports 11024-11535");
        assert_eq!(block(8), "192.0.2.1 ports 14096-14607");
        assert_eq!(block(9), "192.0.2.2 ports 10000-10511");
        let inner = |address, port| blocks.inner_of(Ipv4Addr::new(192, 0, 2, address), port);
        for (address, port, last) in
            [(1, 11_023, 1), (1, 11_024, 2), (1, 11_535, 2), (1, 11_536, 3), (2, 10_000, 9)]
        {
            assert_eq!(inner(address, port), Some(Ipv4Addr::new(10, 86, 0, last)), "{address}:{port}");
        }
        // The rest at the end of the range, and blocks beyond the pool.
        for (address, port) in [(1, 9_999), (1, 14_608), (1, 14_999), (1, 15_000), (2, 10_000 + 7 * 512)] {
            assert_eq!(inner(address, port), None, "{address}:{port}");
        }
        let range = |address| blocks.clients_of(Ipv4Addr::new(192, 0, 2, address));
        assert_eq!(range(1), Some((Ipv4Addr::new(10, 86, 0, 0), Ipv4Addr::new(10, 86, 0, 8))));
        assert_eq!(range(2), Some((Ipv4Addr::new(10, 86, 0, 9), Ipv4Addr::new(10, 86, 0, 15))));
        assert_eq!(range(3), None);
    }

    #[test]
    fn the_text_form_is_read_again_and_nonsense_is_refused() {
        let text = "10.86.0.0/28 to 192.0.2.1,192.0.2.2 ports 10000-14999 by 512";
        assert_eq!(blocks(text).to_string(), text);
        for wrong in [
            "",
            "10.86.0.0/24 to  ports 1-2 by 100",
            "10.86.0.0/24 to 192.0.2.1 ports 1-2 by 100",
            "10.86.0.0/28 to 192.0.2.1 ports 10000-14999 by 0",
            "10.86.0.0/28 to 192.0.2.1 ports 14999-10000 by 64",
            "10.86.0.0/28 to 192.0.2.1 ports 10000-14999 by 64 more",
        ] {
            assert_eq!(wrong.parse::<PortBlocks>(), Err(()), "{wrong}");
        }
    }
}
