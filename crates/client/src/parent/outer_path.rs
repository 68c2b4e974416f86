//! The ways of the tunnel's own datagrams to the gateway, and whether a change of the machine's
//! network is one of theirs.
//!
//! Other tunnels, containers and virtual machines come and go; only what carries our own datagrams
//! counts. So the kernel is queried for the way again after each change, and the two answers are
//! compared.

use std::collections::VecDeque;
use std::net::IpAddr;

use vpnd_sys::netlink::{LocalRoute, Netlink, NetlinkError};

/// Addresses of gateways that are watched at a time: those that were tried last.
const MAX_WATCHED: usize = 16;

/// A way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Path {
    route: LocalRoute,
    /// The interface's count of link changes: a cable that was pulled for a moment may be in
    /// another socket now.
    carrier_changes: u32,
}

/// The ways to all addresses that may be the gateway.
#[derive(Debug)]
pub(super) struct OuterPaths {
    mark: u32,
    /// The tunnel's own interface.
    tunnel: u32,
    /// `None` where there is no way.
    known: VecDeque<(IpAddr, Option<Path>)>,
}

impl OuterPaths {
    /// Ways of datagrams that carry `mark`, and the tunnel whose datagrams they are.
    pub(super) fn new(mark: u32, tunnel: u32) -> Self {
        Self { mark, tunnel, known: VecDeque::new() }
    }

    /// Watches the way to `gateway` from now on.
    pub(super) async fn watch(&mut self, netlink: &Netlink, gateway: IpAddr) {
        if self.known.iter().any(|(known, _)| *known == gateway) {
            return;
        }
        self.known.truncate(MAX_WATCHED - 1);
        let path = self.path_to(netlink, gateway).await.ok().flatten();
        self.known.push_front((gateway, path));
    }

    /// Whether one of the ways is another than it was; also if the kernel's answer fails, or
    /// nothing was tried yet.
    pub(super) async fn have_changed(&mut self, netlink: &Netlink) -> bool {
        let mut changed = self.known.is_empty();
        for number in 0..self.known.len() {
            let (gateway, before) = self.known[number];
            let Ok(now) = self.path_to(netlink, gateway).await else {
                changed = true;
                continue;
            };
            changed |= now != before;
            if now != before && now.is_some_and(|path| path.route.interface == Some(self.tunnel)) {
                tracing::warn!(
                    %gateway,
                    "a route that vpnd has not made leads the tunnel's own datagrams into the tunnel, so they are dropped: look \
                     for it with `ip route get {gateway} mark {:#x}`", self.mark
                );
            }
            self.known[number].1 = now;
        }
        changed
    }

    async fn path_to(&self, netlink: &Netlink, gateway: IpAddr) -> Result<Option<Path>, NetlinkError> {
        let Some(route) = netlink.route_to(gateway, Some(self.mark)).await? else { return Ok(None) };
        let carrier_changes = match route.interface {
            Some(interface) => netlink.carrier_changes(interface).await?,
            None => 0,
        };
        Ok(Some(Path { route, carrier_changes }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_sys::testing::{in_namespace_async, run};

    const MARK: u32 = 0x7670;

    fn ip(line: &str) {
        run("ip", &line.split(' ').collect::<Vec<_>>());
    }

    #[test]
    fn only_what_carries_our_datagrams_counts() {
        in_namespace_async(async || {
            for line in [
                "link add up0 type veth peer name far0",
                "link add up1 type veth peer name far1",
                "address add 192.0.2.2/24 dev up0",
                "address add 198.51.100.2/24 dev up1",
                "link set up0 up",
                "link set far0 up",
                "link set up1 up",
                "link set far1 up",
                "route add default via 192.0.2.1",
                "tuntap add other mode tun",
                "link set other up",
            ] {
                ip(line);
            }
            let netlink = Netlink::open().unwrap();
            let mut paths = OuterPaths::new(MARK, u32::MAX);
            assert!(paths.have_changed(&netlink).await, "nothing was tried: anything may help");
            let [v4, v6] = ["203.0.113.7", "2001:db8::7"].map(|text| text.parse::<IpAddr>().unwrap());
            paths.watch(&netlink, v4).await;
            paths.watch(&netlink, v6).await;
            assert!(!paths.have_changed(&netlink).await);
            for line in [
                "address add 10.9.0.2/24 dev other",
                "route add 10.10.0.0/16 dev other",
                "route add default dev other table 30007",
                "rule add not fwmark 0x7670 lookup 30007 priority 5200",
                "link add docker0 type bridge",
                "link set docker0 up",
                "address add 172.17.0.1/16 dev docker0",
            ] {
                ip(line);
                assert!(!paths.have_changed(&netlink).await, "{line}");
            }
            for line in [
                "route add 203.0.113.0/24 via 198.51.100.1",
                "route del 203.0.113.0/24",
                "route add default dev other table 30008",
                "address add 2001:db8::2/64 dev up1 nodad",
            ] {
                let counts = !line.contains("30008");
                ip(line);
                assert_eq!(paths.have_changed(&netlink).await, counts, "{line}");
                assert!(!paths.have_changed(&netlink).await, "once");
            }
            ip("rule add fwmark 0x7670 lookup 30008 priority 5100");
            assert!(paths.have_changed(&netlink).await, "another tunnel carries ours now");
        });
    }

    #[test]
    fn a_cable_that_was_out_for_a_moment_counts() {
        in_namespace_async(async || {
            for line in [
                "link add up0 type veth peer name far0",
                "link set up0 up",
                "link set far0 up",
                "address add 192.0.2.2/24 dev up0",
            ] {
                ip(line);
            }
            let netlink = Netlink::open().unwrap();
            let mut paths = OuterPaths::new(MARK, u32::MAX);
            paths.watch(&netlink, "192.0.2.1".parse().unwrap()).await;
            assert!(!paths.have_changed(&netlink).await);
            ip("link set far0 down");
            ip("link set far0 up");
            let mut counted = false;
            // The kernel takes a moment for it.
            for _ in 0..500 {
                counted |= paths.have_changed(&netlink).await;
                if counted {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            assert!(counted);
        });
    }
}
