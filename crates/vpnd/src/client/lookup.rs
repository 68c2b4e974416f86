//! Looking up the gateway's name: in a process of its own, which ends with its answer.
//!
//! It asks as any program of the machine does, by `/etc/hosts` and name servers, and parses what these answer; so it has no
//! privilege, no secret and no terminal. Its datagrams stay outside the tunnel, by its user ([`super::parent`]).

use std::net::{IpAddr, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, bail};
use vpnd_proto::control::AsText;

use crate::client::messages::{FromLookup, LookupLaunch, MAX_ADDRESSES};
use crate::privsep::child::{self, ChildRole, Preparation};

/// Runs it; `stream` leads to the parent.
pub(crate) fn run(stream: UnixStream) -> anyhow::Result<()> {
    let nothing =
        |_: &LookupLaunch| Ok(Preparation { writable: Vec::new(), tcp_ports: Vec::new(), made: () });
    let started = child::start(ChildRole::Lookup, &stream, |launch: &LookupLaunch| &launch.common, nothing);
    let found = started.and_then(|started| look_up(&started.launch.alone()?.host));
    let last = found.map_or_else(|error| FromLookup::Failed(crate::format_chain(&error)), FromLookup::Found);
    child::finish(stream, &last)
}

fn look_up(host: &str) -> anyhow::Result<Vec<AsText<IpAddr>>> {
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
