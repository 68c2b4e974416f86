//! Looking up the gateway's name: in a separate process, which ends with its answer.
//!
//! It asks as any program of the machine does, by `/etc/hosts` and name servers, and parses what
//! these answer; so it has no privilege, no secret and no terminal. Its datagrams stay outside the
//! tunnel, by its user ([`super::parent`]). While a kill switch is on it gets sockets that pass it,
//! one for each name server, and asks by itself ([`stub`]).
//!
//! For an IPv4 address it finds the IPv6 addresses by which NAT64 serves it in a network without
//! IPv4: the network's name servers show the prefixes in their answers for a name that has IPv4
//! addresses alone (RFC 7050).

mod stub;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, bail};
use vpnd_proto::control::AsText;

use crate::messages::{FromLookup, LookupLaunch, MAX_ADDRESSES};
use stub::NameServer;
use vpnd_ipc::child::{self, ChildRole, Preparation};

/// The name that has these IPv4 addresses alone (RFC 7050).
const IPV4_ONLY: &str = "ipv4only.arpa";
const ITS_ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 0, 170), Ipv4Addr::new(192, 0, 0, 171)];
/// Lengths of the prefixes of NAT64, in bytes (RFC 6052).
const PREFIXES: [usize; 6] = [12, 8, 7, 6, 5, 4];

/// Runs it; `stream` leads to the parent.
pub fn run(stream: UnixStream) -> anyhow::Result<()> {
    let nothing =
        |_: &LookupLaunch| Ok(Preparation { writable: Vec::new(), tcp_ports: Vec::new(), made: () });
    let started = child::start(ChildRole::Lookup, &stream, |launch: &LookupLaunch| &launch.common, nothing);
    let found = started.and_then(|started| {
        let mut descriptors = started.launch.descriptors.into_iter();
        // Two for each server.
        let mut servers: Vec<NameServer> = std::iter::from_fn(|| {
            let udp = descriptors.next()?;
            Some(NameServer::new(udp, descriptors.next()))
        })
        .collect();
        look_up(&started.launch.message.host, &mut servers)
    });
    let last = found
        .map_or_else(|error| FromLookup::Failed(vpnd_sys::text::format_chain(&error)), FromLookup::Found);
    child::finish(stream, &last)
}

fn look_up(host: &str, servers: &mut [NameServer]) -> anyhow::Result<Vec<AsText<IpAddr>>> {
    let Ok(address) = host.parse::<Ipv4Addr>() else { return resolve(host, servers) };
    let found = resolve(IPV4_ONLY, servers)?;
    let prefixes = found.iter().filter_map(|found| match found.0 {
        IpAddr::V6(found) => Nat64::behind(found),
        IpAddr::V4(_) => None,
    });
    let served: Vec<_> = prefixes.map(|prefix| AsText(prefix.serve(address).into())).collect();
    if served.is_empty() {
        bail!("the network has no NAT64 for {host}");
    }
    Ok(served)
}

/// A prefix of NAT64.
#[derive(Debug, PartialEq, Eq)]
struct Nat64 {
    /// Its bits, all others 0.
    bits: Ipv6Addr,
    /// In bytes.
    length: usize,
}

impl Nat64 {
    /// The prefix in an address of [`IPV4_ONLY`]; `None` if it has none of its IPv4 addresses in
    /// it.
    fn behind(found: Ipv6Addr) -> Option<Self> {
        PREFIXES.into_iter().find_map(|length| {
            let mut bits = [0; 16];
            bits[..length].copy_from_slice(&found.octets()[..length]);
            let prefix = Self { bits: bits.into(), length };
            ITS_ADDRESSES.iter().any(|address| prefix.serve(*address) == found).then_some(prefix)
        })
    }

    /// The address by which it serves this one: the byte behind the first 8 stays 0 (RFC 6052
    /// §2.2).
    fn serve(&self, address: Ipv4Addr) -> Ipv6Addr {
        let mut octets = self.bits.octets();
        let places = (self.length..16).filter(|place| *place != 8);
        for (place, octet) in places.zip(address.octets()) {
            octets[place] = octet;
        }
        octets.into()
    }
}

fn resolve(host: &str, servers: &mut [NameServer]) -> anyhow::Result<Vec<AsText<IpAddr>>> {
    if !servers.is_empty() {
        return Ok(stub::resolve(host, servers)?.into_iter().map(AsText).collect());
    }
    let found = (host, 0).to_socket_addrs().with_context(|| format!("the name {host} can't be resolved"))?;
    let mut addresses = Vec::new();
    for address in found.map(|address| address.ip()) {
        if !addresses.contains(&address) && addresses.len() < MAX_ADDRESSES {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        bail!("the name {host} has no address");
    }
    Ok(addresses.into_iter().map(AsText).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_nat64_serve_as_rfc_6052_has_it() {
        // The table of §2.4; the prefix's length, in bits, is not told.
        for (prefix, served) in [
            ("2001:db8::", "2001:db8:c000:221::"),
            ("2001:db8:100::", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::", "2001:db8:122:344::192.0.2.33"),
            ("64:ff9b::", "64:ff9b::192.0.2.33"),
        ] {
            let [bits, served] = [prefix, served].map(|text| text.parse::<Ipv6Addr>().unwrap());
            let address = Ipv4Addr::new(192, 0, 2, 33);
            let found = PREFIXES.map(|length| Nat64 { bits, length });
            let found = found.into_iter().find(|prefix| prefix.serve(address) == served).unwrap();
            for own in ITS_ADDRESSES {
                assert_eq!(Nat64::behind(found.serve(own)).as_ref(), Some(&found), "{served}");
            }
        }
        for none in ["2001:db8::1", "::", "64:ff9b::192.0.2.33", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"] {
            assert_eq!(Nat64::behind(none.parse().unwrap()), None, "{none}");
        }
    }
}
