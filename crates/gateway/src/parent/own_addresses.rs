//! The machine's own addresses, for the worker of a fleet's gateway: WireGuard devices go where a
//! public address goes, and other clients where the fleet's addresses lead to.

use std::collections::BTreeSet;
use std::net::IpAddr;

use vpnd_config::ServerConfig;
use vpnd_ipc::gateway::wireguard::MAX_OWN_ADDRESSES;
use vpnd_sys::netlink::{Netlink, NetlinkError, NetworkChange, NetworkWatch};

/// The addresses that the worker knows.
pub(super) struct OwnAddresses {
    /// `None` where the worker needs none.
    watch: Option<(NetworkWatch, Netlink)>,
    known: BTreeSet<IpAddr>,
    /// Whether they are to be read without a change.
    is_due: bool,
}

impl OwnAddresses {
    /// For a gateway of a fleet.
    ///
    /// # Errors
    /// If the kernel does not report changes.
    pub(super) fn new(config: &ServerConfig) -> Result<Self, NetlinkError> {
        let watch =
            config.fleet.is_some().then(|| Ok((NetworkWatch::open()?, Netlink::open()?))).transpose()?;
        Ok(Self { watch, known: BTreeSet::new(), is_due: true })
    }

    /// The worker is another one, which knows none of them.
    pub(super) fn begin_again(&mut self) {
        self.known.clear();
        self.is_due = true;
    }

    /// Returns once addresses may have come or gone, for the first time at once. Safe to cancel.
    pub(super) async fn changed(&mut self) {
        let Some((watch, _)) = &mut self.watch else { return std::future::pending().await };
        while !self.is_due {
            match watch.next().await {
                Some(NetworkChange::Address { .. } | NetworkChange::Unknown) => self.is_due = true,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// All of them, if they are others than at the last call.
    pub(super) async fn others(&mut self) -> Option<Vec<IpAddr>> {
        self.is_due = false;
        let (_, netlink) = self.watch.as_ref()?;
        let found = match netlink.addresses().await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "the machine's addresses can't be read");
                return None;
            }
        };
        let found = found.iter().map(|found| found.address.addr()).filter(|address| !address.is_loopback());
        let before = std::mem::replace(&mut self.known, found.collect());
        (self.known != before).then(|| self.known.iter().copied().take(MAX_OWN_ADDRESSES).collect())
    }
}
