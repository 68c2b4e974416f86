//! Whether a VPN really carries what is measured.
//!
//! A client without a route into the tunnel still reaches its partner by the plain links, only
//! faster, and the generators can't notice. So the kernel is asked twice: before a run where it
//! would send, after it what the devices carried. Every byte that arrived must have left its sender
//! through the tunnel device and reached its receiver through one, and the links below must have
//! carried it too: the payload is random, so nothing can make it smaller.
//!
//! INVARIANT: the counters are read before the first connection and after the last has been
//! drained, and they are compared with the bytes of the connections' whole lives, so no clock
//! decides.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::interrupt::Interrupt;
use crate::lab::device::{Counters, Traffic, towards};
use crate::lab::namespace::Namespace;
use crate::lab::{CLIENT_LINK, LabError};

/// The least share of a client's bytes that its tunnel must have carried, in each direction.
const LEAST_SHARE: f64 = 0.95;
const POLL: Duration = Duration::from_millis(50);

/// Waits until the kernel would send to `address` through the device `tunnel`: routes may take a
/// moment. Returns the other device through which it still would at `deadline`.
///
/// # Errors
/// The kernel does not say, or has no route, at `deadline`.
pub(super) fn wait_for_route(
    from: &Namespace,
    address: IpAddr,
    tunnel: &str,
    deadline: Instant,
    interrupt: &Interrupt,
) -> Result<Option<String>, LabError> {
    loop {
        let found = towards(from, address);
        if found.as_ref().is_ok_and(|found| found == tunnel) {
            return Ok(None);
        }
        if Instant::now() > deadline || interrupt.is_set() {
            return found.map(Some);
        }
        std::thread::sleep(POLL);
    }
}

/// The payload of one client and the counters of its devices, over the whole life of its
/// connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    pub client: String,
    /// The device that leads into the tunnel.
    pub device: String,
    /// Bytes it sent that arrived at its partner.
    pub payload_sent: u64,
    /// Bytes that arrived from its partner.
    pub payload_received: u64,
    /// The counters of the tunnel device.
    pub tunnel: Counters,
    /// The counters of the link below.
    pub underlay: Counters,
}

/// Bytes that a client moved, counted where they arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    pub sent: u64,
    pub received: u64,
}

/// The counters of all devices of one client at one instant.
#[derive(Debug, Default)]
pub struct Reading(HashMap<String, Counters>);

impl Reading {
    pub fn take(client: &Namespace) -> Result<Self, LabError> {
        Counters::read(client).map(Self)
    }

    /// The client's account since `earlier`. A device that is not there has carried nothing.
    pub fn since(&self, earlier: &Self, client: String, device: &str, payload: Payload) -> Carried {
        let counters = |device: &str| {
            let now = self.0.get(device).copied().unwrap_or_default();
            now.since(earlier.0.get(device).copied().unwrap_or_default())
        };
        Carried {
            client,
            device: device.to_owned(),
            payload_sent: payload.sent,
            payload_received: payload.received,
            tunnel: counters(device),
            underlay: counters(CLIENT_LINK),
        }
    }
}

/// One direction of one client, measured against its payload.
struct Passage<'a> {
    client: &'a Carried,
    verb: &'static str,
    payload: u64,
    carried: u64,
}

impl Passage<'_> {
    fn share(&self) -> f64 {
        share(self.carried.min(self.payload), self.payload)
    }
}

fn passages(carried: &[Carried], counters: fn(&Carried) -> &Counters) -> Vec<Passage<'_>> {
    let directions = |client| {
        let Counters { received, sent } = counters(client);
        let passage =
            |verb, payload, traffic: &Traffic| Passage { client, verb, payload, carried: traffic.bytes };
        [passage("sent", client.payload_sent, sent), passage("received", client.payload_received, received)]
    };
    carried.iter().flat_map(directions).filter(|passage| passage.payload > 0).collect()
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The share of all payload that the tunnels carried; `None` if nothing was moved.
pub fn tunnel_share(carried: &[Carried]) -> Option<f64> {
    overall(&passages(carried, |client| &client.tunnel))
}

fn overall(passages: &[Passage<'_>]) -> Option<f64> {
    let payload: u64 = passages.iter().map(|passage| passage.payload).sum();
    let carried = passages.iter().map(|passage| passage.carried.min(passage.payload)).sum();
    (payload > 0).then(|| share(carried, payload))
}

/// Says how much went past the VPN; `None` if all is as it should be.
pub fn bypass(carried: &[Carried]) -> Option<String> {
    let tunnel = passages(carried, |client| &client.tunnel);
    if let Some((worst, whole)) = too_little(&tunnel) {
        let Carried { client, device, .. } = worst.client;
        return Some(format!(
            "only {} % of the bytes went through the tunnel ({client} {} {} % of its bytes through {device}): \
             check the routes to the clients' inner addresses",
            percent(whole),
            worst.verb,
            percent(worst.share()),
        ));
    }
    let underlay = passages(carried, |client| &client.underlay);
    let (worst, whole) = too_little(&underlay)?;
    Some(format!(
        "only {} % of the tunnel's bytes crossed the links of the lab ({} {} {} % of its bytes over {CLIENT_LINK}): \
         the tunnel leads past them",
        percent(whole),
        worst.client.client,
        worst.verb,
        percent(worst.share()),
    ))
}

/// The worst passage and the share of all together, if the worst is too little.
fn too_little<'a>(passages: &'a [Passage<'a>]) -> Option<(&'a Passage<'a>, f64)> {
    let worst = passages.iter().min_by(|a, b| a.share().total_cmp(&b.share()))?;
    (worst.share() < LEAST_SHARE).then_some(worst).zip(overall(passages))
}

/// Whole percent, rounded down so that too little never reads as enough.
fn percent(share: f64) -> u32 {
    (share * 100.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(received: u64, sent: u64) -> Counters {
        let traffic = |bytes| Traffic { bytes, ..Traffic::default() };
        Counters { received: traffic(received), sent: traffic(sent) }
    }

    fn client(name: &str, tunnel: Counters, underlay: Counters) -> Carried {
        let (client, device) = (name.to_owned(), "tun0".to_owned());
        Carried { client, device, payload_sent: 1000, payload_received: 1000, tunnel, underlay }
    }

    fn good(name: &str) -> Carried {
        client(name, counters(1040, 1040), counters(1100, 1100))
    }

    #[test]
    fn a_tunnel_that_carried_everything_is_no_bypass() {
        assert_eq!(bypass(&[good("c1"), good("c2")]), None);
        assert_eq!(tunnel_share(&[good("c1")]), Some(1.0));
        assert_eq!(bypass(&[]), None);
        assert_eq!(bypass(&[Carried::default()]), None, "who moved nothing missed nothing");
    }

    #[test]
    fn bytes_that_left_in_clear_are_noticed_in_each_direction() {
        for (tunnel, verb) in [(counters(1040, 30), "sent"), (counters(30, 1040), "received")] {
            let said = bypass(&[good("c1"), client("c2", tunnel, counters(1100, 1100))]).unwrap();
            assert!(said.starts_with("only 75 % of the bytes went through the tunnel"), "{said}");
            assert!(said.contains(&format!("c2 {verb} 3 % of its bytes through tun0")), "{said}");
        }
    }

    #[test]
    fn a_bypass_by_one_of_many_clients_is_noticed() {
        let mut clients: Vec<Carried> = (1..=64).map(|n| good(&format!("c{n}"))).collect();
        clients[40].tunnel.sent.bytes = 0;
        assert!(bypass(&clients).is_some_and(|said| said.contains("99 %") && said.contains("c41 sent 0 %")));
    }

    #[test]
    fn the_limit_is_95_percent() {
        let with = |sent| bypass(&[client("c1", counters(1000, sent), counters(1100, 1100))]);
        assert_eq!(with(950), None);
        assert!(with(949).is_some_and(|said| said.contains("c1 sent 94 %")));
    }

    #[test]
    fn a_tunnel_that_leads_past_the_links_is_noticed() {
        let said = bypass(&[client("c1", counters(1040, 1040), counters(1100, 20))]).unwrap();
        assert!(said.starts_with("only 51 % of the tunnel's bytes crossed the links of the lab"), "{said}");
    }
}
