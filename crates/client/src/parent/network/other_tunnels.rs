//! Networks that another tunnel of this machine has, too.
//!
//! INVARIANT: this only logs it: the newest tunnel carries what several have.

use ipnet::IpNet;
use vpnd_sys::netlink::{Netlink, NetlinkError};

/// Says in the log which of the tunnel's networks another tunnel has, too.
pub(super) async fn report(netlink: &Netlink, index: u32, destinations: &[IpNet]) {
    match others(netlink, index).await {
        Ok(others) => {
            if let Some(both) = shared(destinations, &others) {
                tracing::warn!(
                    "another tunnel of this machine leads to {both}, too: this one is newer and carries it until it ends, so end the one that should \
                     not (`vpnd down`, or the signal TERM to its `vpnd connect`)"
                );
            }
        }
        Err(error) => tracing::debug!(%error, "the networks of other tunnels are not known"),
    }
}

/// The networks of other tunnels.
async fn others(netlink: &Netlink, index: u32) -> Result<Vec<IpNet>, NetlinkError> {
    let made = netlink.table_routes().await?.into_iter().filter(|route| route.made_by_vpnd);
    let made: Vec<_> = made.map(|route| route.place).collect();
    let routes = netlink.routes().await?.into_iter().filter(|route| {
        let is_made =
            made.iter().any(|place| (place.destination, place.table) == (route.destination, route.table));
        is_made && route.interface.is_some_and(|interface| interface != index)
    });
    Ok(routes.map(|route| route.destination).collect())
}

/// The first network that is in both, or the smaller of two of which one contains the other. A full
/// tunnel contains all, which is no surprise.
fn shared(ours: &[IpNet], others: &[IpNet]) -> Option<IpNet> {
    let overlap = |ours: &IpNet| {
        let other = others.iter().find(|other| ours.contains(*other) || other.contains(ours))?;
        [*ours, *other]
            .into_iter()
            .max_by_key(IpNet::prefix_len)
            .filter(|_| ours.prefix_len() > 0 && other.prefix_len() > 0)
    };
    ours.iter().find_map(overlap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_two_networks_is_named_and_a_full_tunnel_is_none() {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
        let others = nets(&["10.210.0.0/24", "fd20::/64", "0.0.0.0/0"]);
        let named = |ours: &str| shared(&nets(&[ours]), &others[..2]).map(|net| net.to_string());
        assert_eq!(named("10.210.0.0/16").as_deref(), Some("10.210.0.0/24"));
        assert_eq!(named("fd20::5/128").as_deref(), Some("fd20::5/128"));
        assert_eq!((named("10.211.0.0/16"), named("0.0.0.0/0")), (None, None));
        assert_eq!(shared(&nets(&["10.0.0.0/8"]), &others[2..]), None);
    }
}
