//! Descriptors that the parent opens for its worker: the port, the TUN device, the control socket
//! and the listener of the metrics.
//!
//! Invariants: from its first moment only its owner can connect to the control socket; two
//! daemons never share a path, and a dead daemon's socket never blocks a new one.

use std::fs::DirBuilder;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::socket_options;
use vpnd_config::ServerConfig;
use vpnd_sys::bpf::Clients;
use vpnd_sys::lock::LockedFile;
use vpnd_sys::process;
use vpnd_sys::tun::{GATEWAY_TX_QUEUE_LEN, Tun, TunSpec};
use vpnd_sys::udp::{ReuseportGroup, Steering, bind_reuseport_group};

/// Connections that may wait in the kernel's queue.
const BACKLOG: i32 = 16;

/// Binds the port for QUIC and all shards; returns how many there are.
pub(super) fn bind_port(config: &ServerConfig) -> anyhow::Result<(ReuseportGroup, usize)> {
    let shards = match config.server.shards {
        0 => process::available_cores()?.len().min(vpnd_proto::wire::MAX_GATEWAY_LANES),
        shards => shards,
    };
    let clients = if config.wireguard.is_some() { Clients::OwnAndWireGuard } else { Clients::Own };
    let steering = if config.offload.steering { Steering::Program(clients) } else { Steering::Off };
    let group = bind_reuseport_group(config.server.listen, shards, steering, &socket_options(config))?;
    if let Some(error) = &group.steering_refused {
        tracing::warn!(%error, "the kernel does not steer datagrams to their shards; this costs throughput only");
    }
    Ok((group, shards))
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    #[error("another vpnd uses the control socket {}: stop it, or set another `socket` in [admin]", .0.display())]
    InUse(PathBuf),
    /// Something that is no socket is in the way.
    #[error("{} is not a socket: remove it, or set another `socket` in [admin]", .0.display())]
    NotASocket(PathBuf),
    #[error("can't {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

/// Metrics can't be served.
#[derive(Debug, thiserror::Error)]
#[error("can't serve metrics on {address}: {source}; choose another `metrics` in [admin]")]
pub(crate) struct MetricsError {
    pub address: SocketAddr,
    pub source: io::Error,
}

/// The file of a control socket. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Held while the daemon lives. It is the lock, not the socket, that distinguishes a live
    /// daemon from a dead one.
    _lock: LockedFile,
}

/// Opens the control socket at `path`. Its directory is made, for its owner alone, if it is
/// missing.
///
/// # Errors
/// [`BindError`]; a live daemon's socket is left alone then.
pub(crate) fn control_socket(path: &Path) -> Result<(OwnedFd, SocketFile), BindError> {
    let failed = |action| move |source| BindError::Io { action, path: path.to_owned(), source };
    let directory = vpnd_sys::secret_file::parent(path);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed("make the directory of the control socket"))?;
    let lock = lock(path)?;
    remove_stale(path)?;
    let listener = listen(path).map_err(failed("open the control socket"))?;
    Ok((listener, SocketFile { path: path.to_owned(), _lock: lock }))
}

/// Opens the listener of the metrics.
///
/// # Errors
/// If the address is in use or not of this machine.
pub(crate) fn metrics(address: SocketAddr) -> Result<OwnedFd, MetricsError> {
    TcpListener::bind(address).map(OwnedFd::from).map_err(|source| MetricsError { address, source })
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A failure leaves a stale socket, which the next start replaces.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn lock(path: &Path) -> Result<LockedFile, BindError> {
    let failed = |source| BindError::Io { action: "lock", path: LockedFile::path_of_socket(path), source };
    LockedFile::of_socket(path).map_err(failed)?.ok_or_else(|| BindError::InUse(path.to_owned()))
}

/// Removes what a dead daemon left. The caller holds the lock.
fn remove_stale(path: &Path) -> Result<(), BindError> {
    let failed = |source| BindError::Io { action: "replace", path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path).map_err(failed),
        Ok(_) => Err(BindError::NotASocket(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Linux gives the file the mode that the socket has when it is bound, so there is no moment at
    // which others could connect, and the umask, which belongs to the whole process, stays as it
    // is.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Opens the TUN device with these queues.
pub(super) fn open_tun(config: &ServerConfig, queues: usize) -> anyhow::Result<Tun> {
    let tun = Tun::open(&TunSpec {
        name: config.tunnel.name.clone(),
        mtu: config.tunnel.mtu,
        queues,
        tx_queue_len: GATEWAY_TX_QUEUE_LEN,
        offloads: config.offload.tun_offloads(),
    })?;
    if config.offload.steering
        && let Err(error) = tun.pin_flows()
    {
        tracing::warn!(
            %error,
            "the kernel may move flows between the queues of the TUN device, and packets then come out of order: run as root \
             or with CAP_BPF, or with `shards = 1`"
        );
    }
    Ok(tun)
}
