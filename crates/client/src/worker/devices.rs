//! A client's shards, from the descriptors that the parent has opened.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use rand::TryRng as _;
use vpnd_proto::plane::Role;
use vpnd_proto::policy::Policy;

use crate::{INITIAL_MTU, socket_options};
use vpnd_config::profile::Profile;
use vpnd_ipc::messages::Devices;
use vpnd_shard::ShardSpec;
use vpnd_sys::tun::TunQueue;
use vpnd_sys::udp::ShardSocket;

pub(super) fn shard_specs(
    profile: &Profile,
    copy_dscp: bool,
    devices: &Devices,
    descriptors: Vec<OwnedFd>,
) -> anyhow::Result<Vec<ShardSpec>> {
    let lanes = devices.shards as usize;
    if lanes == 0 || descriptors.len() != 2 * lanes {
        bail!("the worker was given {} descriptors for {lanes} lanes", descriptors.len());
    }
    let mut queues = descriptors;
    let sockets = queues.split_off(lanes);
    let options = socket_options(&profile.offload, None);
    let mut specs = Vec::new();
    for (number, (queue, socket)) in queues.into_iter().zip(sockets).enumerate() {
        specs.push(ShardSpec {
            number,
            core: None,
            priority: 0,
            busy_poll: profile.busy_poll,
            role: Role::Client,
            policy: Arc::new(Policy::default()),
            hash_seed: rand::rngs::SysRng.try_next_u64().context("the system gives no random numbers")?,
            tun: TunQueue::adopt(queue),
            tun_offloads: devices.tun,
            mtu: INITIAL_MTU,
            copy_dscp,
            socket: ShardSocket::adopt(socket, &options)?,
            first: Vec::new(),
            quic: None,
            wireguard: None,
        });
    }
    Ok(specs)
}
