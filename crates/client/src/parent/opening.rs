//! Opens the tunnel's device and the data sockets, which only a privileged process can, and gives
//! them to the worker.

use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context as _;

use crate::args::ConnectArgs;
use crate::messages::{Begin, FromWorker};
use crate::{INITIAL_MTU, socket_options};
use vpnd_config::profile::Profile;
use vpnd_ipc::messages::Devices;
use vpnd_ipc::spawn::{RunningChild, StartingChild};
use vpnd_sys::change::Layer;
use vpnd_sys::tun::{CLIENT_TX_QUEUE_LEN, Tun, TunError, TunSpec};
use vpnd_sys::udp::ShardSocket;

/// Time for the worker of a killed client to release its device.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which the device is tried meanwhile.
const DEVICE_INTERVAL: Duration = Duration::from_millis(100);

/// Opens the sockets and gives the worker its devices. The sockets are returned, too: the worker
/// may not bind them to other ports itself.
pub(super) async fn begin(
    worker: StartingChild,
    tun: Tun,
    profile: &Profile,
    lanes: usize,
    layer: Layer,
) -> anyhow::Result<(RunningChild<FromWorker>, Vec<OwnedFd>)> {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let options = socket_options(&profile.offload, Some(layer.mark()));
    let mut sockets = Vec::with_capacity(lanes);
    for _ in 0..lanes {
        sockets.push(OwnedFd::from(ShardSocket::bind(any, &options)?));
    }
    let devices = Devices {
        shards: u32::try_from(lanes).context("too many lanes")?,
        tun: tun.offloads(),
        steering_refused: None,
    };
    let mut descriptors: Vec<OwnedFd> = tun.into_queues().into_iter().map(OwnedFd::from).collect();
    for socket in &sockets {
        descriptors.push(socket.try_clone().context("a socket can't be shared with the worker")?);
    }
    worker.send(&Begin::Devices(devices), &descriptors).await?;
    // The device goes away with the worker.
    drop(descriptors);
    Ok((worker.ready().await?, sockets))
}

/// Opens the TUN device.
pub(super) async fn open_tun(args: &ConnectArgs, profile: &Profile, queues: usize) -> anyhow::Result<Tun> {
    let spec = TunSpec {
        name: args.tun.clone(),
        mtu: INITIAL_MTU,
        queues,
        tx_queue_len: CLIENT_TX_QUEUE_LEN,
        offloads: profile.offload.tun_offloads(),
    };
    let deadline = tokio::time::Instant::now() + DEVICE_TIMEOUT;
    let tun = loop {
        match Tun::open(&spec) {
            // The worker of a client that was killed ends a moment after it.
            Err(TunError::NameInUse(_)) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(DEVICE_INTERVAL).await;
            }
            opened => break opened?,
        }
    };
    if let Err(error) = tun.pin_flows() {
        tracing::warn!(
            %error,
            "the kernel may move flows between lanes, and packets then come out of order: run as root or with CAP_BPF, or \
             with one lane"
        );
    }
    Ok(tun)
}
