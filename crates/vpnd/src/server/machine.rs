//! What the gateway changes on its machine: the tunnel's addresses, forwarding, the firewall table; all through the
//! undo journal.

use anyhow::{Context as _, bail};
use ipnet::IpNet;

use crate::config::{NatMode, ServerConfig};
use crate::journal::{self, Journal};
use crate::sys::change::Change;
use crate::sys::netlink::{AddressSpec, Netlink};
use crate::sys::nft::{GatewayRules, Outgoing};
use crate::sys::sysctl;
use crate::sys::tun::Tun;

/// The machine, and how to take back what was changed.
pub(super) struct Machine {
    netlink: Netlink,
    journal: Journal,
}

impl Machine {
    /// Undoes what an earlier gateway left behind and checks that the pools are free. Changes nothing else.
    pub(super) async fn new(config: &ServerConfig) -> anyhow::Result<Self> {
        let netlink = Netlink::open()?;
        let directory = &config.server.state_dir;
        for recovered in journal::recover(directory, &netlink).await? {
            tracing::info!(%recovered, "undid what an earlier gateway left behind");
        }
        for pool in config.tunnel.pools() {
            if let Some(network) = netlink.overlap(pool, Some(&config.tunnel.name)).await? {
                bail!(
                    "the address pool {pool} overlaps {network}, a network that this machine is connected to: choose \
                     another [tunnel] pool, or clients could not tell the two apart"
                );
            }
        }
        let journal = Journal::create(directory)?;
        Ok(Self { netlink, journal })
    }

    /// Gives the device its addresses and lets packets through to the campus, as configured.
    pub(super) async fn configure(&mut self, config: &ServerConfig, tun: &Tun) -> anyhow::Result<()> {
        let interface = tun.name().to_owned();
        for address in gateway_addresses(config) {
            self.apply(Change::Address(AddressSpec { interface: interface.clone(), address })).await?;
        }
        self.apply(Change::LinkUp { interface: interface.clone() }).await?;
        if config.nat.mode == NatMode::None {
            return Ok(());
        }
        let (v4, v6) = (config.tunnel.pool_v4.is_some(), config.tunnel.pool_v6.is_some());
        for change in sysctl::forwarding(v4, v6).context("forwarding can't be switched on")? {
            self.apply(Change::Sysctl(change)).await?;
        }
        let rules = GatewayRules {
            tunnel: interface,
            pools: config.tunnel.pools().collect(),
            masquerade: config.nat.mode == NatMode::Nftables,
            outgoing: match &config.nat.outgoing_interface {
                Some(name) => Outgoing::Interface(name.clone()),
                None => Outgoing::AnyButTunnel,
            },
            inbound: config.nat.mode == NatMode::Route,
        };
        self.apply(Change::Firewall(rules)).await
    }

    /// Takes everything back.
    pub(super) async fn undo(self) {
        let report = self.journal.undo_all(&self.netlink).await;
        for error in &report.failed {
            tracing::error!(%error, "not undone; the next start tries again");
        }
    }

    async fn apply(&mut self, change: Change) -> anyhow::Result<()> {
        self.journal.apply(&self.netlink, change).await?;
        Ok(())
    }
}

/// The gateway's own inner addresses, each with its pool's prefix, so that the pool is routed to the device.
fn gateway_addresses(config: &ServerConfig) -> Vec<IpNet> {
    let tunnel = &config.tunnel;
    let of = |address: Option<std::net::IpAddr>, prefix: Option<u8>| IpNet::new(address?, prefix?).ok();
    let v4 = of(tunnel.gateway_v4().map(Into::into), tunnel.pool_v4.map(|pool| pool.prefix_len()));
    let v6 = of(tunnel.gateway_v6().map(Into::into), tunnel.pool_v6.map(|pool| pool.prefix_len()));
    v4.into_iter().chain(v6).collect()
}
