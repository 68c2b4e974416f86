//! The devices that the parent has opened, as the shards use them.
//!
//! Invariant: each shard gets one queue of the TUN device and one socket, or none of them starts.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use rand::TryRng as _;
use vpnd_proto::plane::Role;
use vpnd_proto::policy::Policy;

use crate::socket_options;
use vpnd_config::ServerConfig;
use vpnd_ipc::messages::Devices;
use vpnd_shard::ShardSpec;
use vpnd_shard::handshake_queue::HandshakeQueue;
use vpnd_shard::quic_forwarder::QuicForwarder;
use vpnd_sys::process;
use vpnd_sys::tun::{TunOffloads, TunQueue};
use vpnd_sys::udp::{ReuseportGroup, ShardSocket};

/// The devices that the descriptors are.
pub(super) fn adopt(
    config: &ServerConfig,
    devices: &Devices,
    descriptors: Vec<OwnedFd>,
) -> anyhow::Result<(Vec<TunQueue>, ReuseportGroup)> {
    let shards = devices.shards as usize;
    if shards == 0 || descriptors.len() != 2 * shards + 1 {
        bail!("the worker was given {} descriptors for {shards} shards", descriptors.len());
    }
    let mut descriptors = descriptors.into_iter();
    let queues = descriptors.by_ref().take(shards).map(TunQueue::adopt).collect();
    let sockets = descriptors.collect();
    let refused = devices.steering_refused.clone();
    let group = ReuseportGroup::adopt(sockets, &socket_options(config), refused)?;
    Ok((queues, group))
}

/// The devices and sockets that each shard begins with.
pub(super) fn shard_specs(
    sockets: Vec<ShardSocket>,
    queues: Vec<TunQueue>,
    tun_offloads: TunOffloads,
    config: &ServerConfig,
    policy: &Arc<Policy>,
    (forwarder, handshakes): (Option<&QuicForwarder>, Option<&HandshakeQueue>),
) -> anyhow::Result<Vec<ShardSpec>> {
    let cores = process::available_cores()?;
    let mut specs = Vec::new();
    for (number, (socket, tun)) in sockets.into_iter().zip(queues).enumerate() {
        specs.push(ShardSpec {
            number,
            core: Some(cores[number % cores.len()]),
            priority: config.server.priority,
            busy_poll: config.server.busy_poll,
            role: Role::Gateway,
            policy: Arc::clone(policy),
            hash_seed: rand::rngs::SysRng.try_next_u64().context("the system gives no random numbers")?,
            tun,
            tun_offloads,
            mtu: config.tunnel.mtu,
            copy_dscp: config.tunnel.copy_dscp,
            socket,
            first: Vec::new(),
            quic: forwarder.cloned(),
            wireguard: handshakes.cloned(),
        });
    }
    Ok(specs)
}
