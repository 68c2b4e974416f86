//! Sessions that other gateways of the fleet have taken over: they are dropped here.
//!
//! INVARIANT: that a session is dropped is said only when its packets are, and its addresses are no
//! longer announced, so that their next user gets no packet of before.

use std::net::IpAddr;
use std::time::Duration;

use vpnd_config::profile::ServerAddress;
use vpnd_proto::session::SessionId;

use super::{Core, Stopped, ToEnd};
use crate::worker::auth_client::AuthClient;
use crate::worker::hosts::{Hosts, SILENCE};
use crate::worker::registry::Registry;
use vpnd_ipc::gateway::auth::{Dropped, GatewayState, TakenAway};
use vpnd_ipc::requests::NoReply;
use vpnd_proto::control::{Code, List, MAX_GATEWAY_ADDRESSES, Text};
use vpnd_proto::gateway::Gateway;
use vpnd_sys::clock::now;

/// Interval of queries.
const INTERVAL: Duration = Duration::from_millis(400);
/// Time for the parent to withdraw routes.
const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason for clients, which have left long ago.
pub(super) const MOVED: &str = "the session goes on at another gateway";

/// Drops what others have taken over, as it comes.
pub(crate) async fn follow(core: Core, auth: AuthClient, hosts: Hosts) {
    let (mut dropped, mut is_away) = (Vec::new(), false);
    loop {
        match auth.request(Dropped(std::mem::take(&mut dropped))).await {
            Ok(taken) => {
                hosts.answered(now());
                is_away = false;
                match drop_taken(&core, &hosts, taken).await {
                    Ok(done) => dropped = done,
                    Err(Stopped) => return,
                }
            }
            // The daemon is going down.
            Err(NoReply::Gone(_)) => return,
            Err(NoReply::Failed(error)) => {
                if !std::mem::replace(&mut is_away, true) {
                    tracing::warn!(%error, "can't tell whether sessions have moved to other gateways");
                }
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Those that are dropped; the others are named again.
async fn drop_taken(core: &Core, hosts: &Hosts, taken: Vec<TakenAway>) -> Result<Vec<TakenAway>, Stopped> {
    if taken.is_empty() {
        return Ok(taken);
    }
    core.leave(taken.clone()).await?;
    let withdrawn = tokio::time::timeout(WITHDRAWAL_TIMEOUT, hosts.settled()).await;
    Ok(if withdrawn.is_ok() { taken } else { Vec::new() })
}

/// The core's part of the report to the other gateways.
#[derive(Debug)]
pub(crate) struct Reported {
    /// Each session, and whether its client is away.
    pub(crate) absences: Vec<(SessionId, bool)>,
    /// Addresses at which clients reach the fleet, those of its other gateways included.
    pub(crate) addresses: Vec<IpAddr>,
}

impl Reported {
    pub(super) fn new(gateway: &Gateway) -> Self {
        let addresses = gateway.addresses().iter().filter_map(|text| host(text)?.parse().ok());
        Self { absences: gateway.absences().collect(), addresses: addresses.collect() }
    }
}

/// Goes by what the other gateways have reported.
pub(super) fn note_reports(gateways: &[GatewayState], gateway: &mut Gateway) {
    let others = gateways.iter().filter(|gateway| gateway.is_alive && !gateway.is_here);
    let held: u64 = others.map(|gateway| gateway.held).sum();
    gateway.set_elsewhere(usize::try_from(held).unwrap_or(usize::MAX / 2));
    let weights = weights(gateway.addresses(), gateways);
    gateway.set_weights(weights);
}

/// Those of the sessions that are to end here: they have not come back.
pub(super) fn left(sessions: Vec<TakenAway>, registry: &Registry) -> impl Iterator<Item = ToEnd> {
    sessions.into_iter().filter_map(|taken| {
        let session = SessionId(taken.session.into());
        let has_left = registry.member(session).is_some_and(|member| taken.ends(member.generation));
        has_left.then(|| ToEnd::session(session, Code::Superseded, MOVED))
    })
}

/// Withdraws the addresses of silent clients while the database is away, and announces them again
/// once they are heard, or the database is.
pub(super) fn announce_heard(gateway: &Gateway, registry: &Registry) {
    let Some(hosts) = registry.hosts() else { return };
    let now = now();
    let Some(is_cut_off) = hosts.look(now) else { return };
    for session in gateway.sessions() {
        let Some(member) = registry.member(session.id) else { continue };
        let silence = now.since(session.activity.last_rx.max(session.since));
        if is_cut_off && silence > SILENCE {
            hosts.withdraw(member.addresses, member.generation);
        } else {
            hosts.announce(member.addresses, member.generation);
        }
    }
}

/// The name or address in an address of a gateway.
fn host(address: &str) -> Option<String> {
    address.parse::<ServerAddress>().ok().map(|server| server.host)
}

/// The weights of these addresses, by the reports of the gateways that clients reach there; `None`
/// if there is nothing to choose. An address of which no gateway says that it has it counts as the
/// mean of the others.
fn weights(addresses: &[Text<259>], gateways: &[GatewayState]) -> Option<List<u32, MAX_GATEWAY_ADDRESSES>> {
    if gateways.len() < 2 {
        return None;
    }
    let weight_of = |address: &Text<259>| {
        let at: IpAddr = host(address)?.parse().ok()?;
        gateways.iter().filter(|gateway| gateway.addresses.contains(&at)).map(weight).max()
    };
    let known: Vec<Option<u32>> = addresses.iter().map(weight_of).collect();
    let (sum, count) = known.iter().flatten().fold((0, 0), |(sum, count), weight| (sum + weight, count + 1));
    let mean = u32::checked_div(sum, count)?;
    List::new(known.into_iter().map(|weight| weight.unwrap_or(mean)).collect()).ok()
}

/// The percentage of a gateway's CPUs that is free, if it takes clients.
fn weight(gateway: &GatewayState) -> u32 {
    if !gateway.is_alive || gateway.is_draining {
        return 0;
    }
    u32::try_from(100_u64.saturating_sub(gateway.load_percent)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(last: u8, load_percent: u64) -> GatewayState {
        GatewayState {
            name: Text::cut(&format!("gw{last}")),
            is_here: false,
            is_alive: true,
            heard_s: Some(1),
            address: None,
            version: Text::default(),
            sessions: 0,
            load_percent,
            is_draining: false,
            held: 0,
            addresses: vec![[192, 0, 2, last].into()],
        }
    }

    #[test]
    fn clients_are_sent_where_there_is_room() {
        let texts = |texts: &[&str]| texts.iter().map(|text| Text::new(*text).unwrap()).collect::<Vec<_>>();
        let weighed = |addresses: &[&str], gateways: &[GatewayState]| {
            weights(&texts(addresses), gateways).map(|weights| weights.to_vec())
        };
        let all = ["192.0.2.1:4433", "192.0.2.2:4433", "192.0.2.3:443"];
        let [idle, busy, full] = [gateway(1, 4), gateway(2, 60), gateway(3, u64::MAX)];
        assert_eq!(weighed(&all, &[idle.clone(), busy.clone(), full.clone()]), Some(vec![96, 40, 0]));
        let drained = GatewayState { is_draining: true, ..idle.clone() };
        let gone = GatewayState { is_alive: false, ..busy.clone() };
        assert_eq!(weighed(&all, &[drained, gone.clone(), gateway(3, 0)]), Some(vec![0, 0, 100]));
        // One that is known by its name alone, one behind a translation, and what is no address.
        let others = ["192.0.2.1:4433", "192.0.2.2:4433", "gw3.example.org:4433", "198.51.100.3:1", "?"];
        assert_eq!(weighed(&others, &[idle.clone(), busy.clone()]), Some(vec![96, 40, 68, 68, 68]));
        assert_eq!(weighed(&others[2..], &[idle.clone(), busy.clone()]), None, "whose they are is not known");
        // An address that moves, and both have had.
        let rival = GatewayState { addresses: idle.addresses.clone(), ..gone };
        assert_eq!(weighed(&all[..1], &[idle.clone(), rival]), Some(vec![96]));
        assert_eq!(weighed(&all, &[idle]), None, "it is alone");
        assert_eq!(weighed(&[], &[busy, full]), None);
    }
}
