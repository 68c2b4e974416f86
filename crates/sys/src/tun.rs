//! A multi-queue TUN device with virtio-net headers, opened through `tun-rs`.
//!
//! A read gives one virtio-net header ([`VNET_HEADER_LEN`] bytes, little-endian) and one inner
//! packet, which may be a super-packet of up to 64 KiB; a write takes the same. Nothing here
//! splits, merges, copies or checksums.
//!
//! INVARIANT: the device is created by this process, never joined: a second daemon that names the
//! same device is refused, because the kernel would otherwise hand it a share of the first one's
//! packets. The device goes away with its last queue, so a killed daemon leaves no link behind.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::ioctl::{self, opcode};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::{aio, bpf};

/// Length of the virtio-net header before each packet read from or written to a queue (virtio 1.2,
/// 5.1.6.1, without the `num_buffers` field).
pub const VNET_HEADER_LEN: usize = 10;

/// Bytes that hold any read from a queue: the header and the largest IP packet.
pub const MAX_READ_LEN: usize = VNET_HEADER_LEN + 65_535;

/// Transmit queue length of a gateway's device, in (super-)packets. The kernel's 500 overflows
/// under a burst of many streams, and each packet lost there makes TCP send smaller super-packets.
pub const GATEWAY_TX_QUEUE_LEN: u32 = 2000;

/// Transmit queue length of a client's device, in (super-)packets. It serves one machine: a longer
/// queue only adds delay, and the kernel's copies of what waits in it push each other out of the
/// caches.
pub const CLIENT_TX_QUEUE_LEN: u32 = 500;

/// The most queues that the kernel gives one device (`MAX_TAP_QUEUES` in `drivers/net/tun.c`).
pub const MAX_QUEUES: usize = 256;

const TUN_CHARACTER_DEVICE: &str = "/dev/net/tun";
const TUNSETOFFLOAD: ioctl::Opcode = opcode::write::<u32>(b'T', 208);
const TUNSETVNETHDRSZ: ioctl::Opcode = opcode::write::<i32>(b'T', 216);
const TUNSETVNETLE: ioctl::Opcode = opcode::write::<i32>(b'T', 220);

/// Offloads of a TUN device: requested, or granted by the kernel.
///
/// An offload lets the kernel hand over packets with that work undone: unfinished checksums and
/// super-packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, minicbor::Encode, minicbor::Decode)]
pub struct TunOffloads {
    /// Packets may come with a partial checksum (`TUN_F_CSUM`); all others need it.
    #[n(0)]
    pub checksum: bool,
    /// TCP super-packets over IPv4 (`TUN_F_TSO4`).
    #[n(1)]
    pub tso4: bool,
    /// TCP super-packets over IPv6 (`TUN_F_TSO6`).
    #[n(2)]
    pub tso6: bool,
    /// TCP super-packets may carry the CWR flag (`TUN_F_TSO_ECN`).
    #[n(3)]
    pub tso_ecn: bool,
    /// UDP super-packets, IPv4 and IPv6 (`TUN_F_USO4` and `TUN_F_USO6`, which Linux gives only
    /// together; 6.2).
    #[n(4)]
    pub uso: bool,
}

impl TunOffloads {
    /// Everything the kernel may have.
    pub const ALL: Self = Self { checksum: true, tso4: true, tso6: true, tso_ecn: true, uso: true };
    /// Ordinary packets with full checksums only.
    pub const NONE: Self = Self { checksum: false, tso4: false, tso6: false, tso_ecn: false, uso: false };

    /// The request without the combinations that the kernel refuses for a missing base.
    fn consistent(self) -> Self {
        let checksum = self.checksum;
        let (tso4, tso6) = (checksum && self.tso4, checksum && self.tso6);
        Self { checksum, tso4, tso6, tso_ecn: self.tso_ecn && (tso4 || tso6), uso: checksum && self.uso }
    }

    /// The `TUN_F_*` bits of `TUNSETOFFLOAD`.
    fn bits(self) -> u32 {
        let flags = [
            (self.checksum, libc::TUN_F_CSUM),
            (self.tso4, libc::TUN_F_TSO4),
            (self.tso6, libc::TUN_F_TSO6),
            (self.tso_ecn, libc::TUN_F_TSO_ECN),
            (self.uso, libc::TUN_F_USO4 | libc::TUN_F_USO6),
        ];
        flags.iter().filter(|(on, _)| *on).map(|(_, bit)| *bit).sum()
    }

    /// The next smaller request after the kernel refused this one: the newest feature goes first.
    fn weaker(self) -> Option<Self> {
        let next = match self {
            Self { uso: true, .. } => Self { uso: false, ..self },
            Self { tso_ecn: true, .. } => Self { tso_ecn: false, ..self },
            Self { tso6: true, .. } => Self { tso6: false, ..self },
            Self { tso4: true, .. } => Self { tso4: false, ..self },
            Self { checksum: true, .. } => Self { checksum: false, ..self },
            Self { .. } => return None,
        };
        Some(next)
    }
}

#[derive(Debug, Clone)]
pub struct TunSpec {
    /// Interface name, at most 15 bytes; a `%d` in it is filled in by the kernel (`vpnd%d`).
    pub name: String,
    /// Largest inner packet, bytes.
    pub mtu: u16,
    /// Number of queues, one for each shard: 1 to [`MAX_QUEUES`].
    pub queues: usize,
    /// Length of the device's transmit queue, packets; the kernel's own stays where it can't be
    /// set.
    pub tx_queue_len: u32,
    /// The offloads to request; those that the kernel refuses are left out.
    pub offloads: TunOffloads,
}

#[derive(Debug, thiserror::Error)]
pub enum TunError {
    #[error("`{0}` is not an interface name: use 1 to 15 bytes without `/`, `:` and white space")]
    BadName(String),
    /// Zero queues or more than the kernel has.
    #[error("a TUN device has 1 to {MAX_QUEUES} queues, not {0}: set the number of shards accordingly")]
    BadQueueCount(usize),
    #[error(
        "the interface {0} exists already: stop the program that owns it, or choose another name (--tun NAME of `vpnd connect`, 'name' in [tunnel] of a gateway)"
    )]
    NameInUse(String),
    /// The kernel has no TUN driver, or the container hides it.
    #[error(
        "{TUN_CHARACTER_DEVICE} is missing: load the driver (`modprobe tun`); in a container, pass the device \
         in (`--device {TUN_CHARACTER_DEVICE}`)"
    )]
    NoDriver,
    #[error(
        "no permission to make a TUN device: run as root or with CAP_NET_ADMIN (systemd: \
         AmbientCapabilities=CAP_NET_ADMIN; container: --cap-add NET_ADMIN)"
    )]
    NoPermission,
    #[error("{step} of TUN device {name} failed: {source}")]
    Os { name: String, step: &'static str, source: io::Error },
}

/// An open TUN device that has all its queues.
pub struct Tun {
    name: String,
    index: u32,
    offloads: TunOffloads,
    queues: Vec<TunQueue>,
}

impl Tun {
    /// Makes the device, sets MTU and queue length, opens its queues and agrees on offloads. The
    /// link stays down.
    ///
    /// # Errors
    /// [`TunError`]; nothing remains of the device then.
    pub fn open(spec: &TunSpec) -> Result<Self, TunError> {
        check(spec)?;
        let failed = |step| move |source| classify(&spec.name, step, source);
        let first = DeviceBuilder::new()
            .name(spec.name.clone())
            .mtu(spec.mtu)
            .enable(false)
            .with(|options| {
                options.offload(true).multi_queue(true);
            })
            .build_sync()
            .map_err(failed("creation"))?;
        let name = first.name().map_err(failed("naming"))?;
        let index = first.if_index().map_err(failed("naming"))?;
        // Optional: a container without real root may make the device but not set this, and works
        // with the kernel's length.
        if let Err(error) = first.set_tx_queue_len(spec.tx_queue_len) {
            tracing::debug!(%error, "the queue of {name} keeps the length that the kernel gave it");
        }
        let mut devices = vec![first];
        for _ in 1..spec.queues {
            devices.push(devices[0].try_clone().map_err(failed("opening another queue"))?);
        }
        let queues: Vec<_> = devices.into_iter().map(TunQueue::of).collect();
        for queue in &queues {
            queue.prepare().map_err(failed("setting up a queue"))?;
        }
        let offloads = queues[0].negotiate(spec.offloads.consistent()).map_err(failed("setting offloads"))?;
        Ok(Self { name, index, offloads, queues })
    }

    /// The interface's name as the kernel gave it.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    /// The offloads that are in force.
    pub fn offloads(&self) -> TunOffloads {
        self.offloads
    }

    /// Keeps each inner flow on one queue, so that its packets keep their order. One queue needs
    /// nothing for that.
    ///
    /// # Errors
    /// Without CAP_BPF. The kernel then moves flows between queues, each time perhaps with packets
    /// out of order.
    pub fn pin_flows(&self) -> io::Result<()> {
        if self.queues.len() == 1 { Ok(()) } else { bpf::flows::pin_flows(&self.queues[0]) }
    }

    /// Takes the queues, one for each shard. The device lives as long as any of them.
    pub fn into_queues(self) -> Vec<TunQueue> {
        self.queues
    }
}

/// One queue of a TUN device: non-blocking, for one shard.
pub struct TunQueue {
    device: OwnedFd,
    /// Where several packets are written with one system call.
    writes: Option<aio::Writes>,
}

impl TunQueue {
    /// Takes over a queue that another process has opened with [`Tun::open`] and passed on.
    #[must_use]
    pub fn adopt(device: OwnedFd) -> Self {
        Self { device, writes: None }
    }

    fn of(device: SyncDevice) -> Self {
        // SAFETY: the device has just given up its open descriptor, which nothing else owns.
        Self::adopt(unsafe { OwnedFd::from_raw_fd(device.into_raw_fd()) })
    }

    /// Reads one virtio-net header and packet into `buf`, which should have [`MAX_READ_LEN`] bytes:
    /// the kernel cuts a longer packet without a word.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is none; `EIO` while the link is down; `EBADFD`
    /// once it is gone.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::read(&self.device, &mut *buf))?)
    }

    /// Writes one virtio-net header and packet gathered from `parts` (at most 1024 of them).
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] never in practice; `EINVAL` when the kernel finds fault with
    /// the header or packet (a reason to stop sending super-packets); `EIO` while the link is down.
    pub fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::writev(&self.device, parts))?)
    }

    /// Has [`Self::try_write_many`] write several packets with one system call. That pays where
    /// programs of this machine wait for them; where they only pass, a call for each costs less, if
    /// they are small.
    ///
    /// # Errors
    /// If the machine can't; it is one call for each then.
    pub fn write_together(&mut self) -> io::Result<()> {
        self.writes = Some(aio::Writes::new()?);
        Ok(())
    }

    /// Writes several packets as [`Self::try_write_vectored`] does, in order. `refused` gets place
    /// and error of each that was not taken; the others were.
    pub fn try_write_many(&self, packets: &[&[IoSlice<'_>]], mut refused: impl FnMut(usize, io::Error)) {
        let mut at = 0;
        while at < packets.len() {
            let rest = &packets[at..];
            // Two calls for one packet would be one too many.
            if let Some(writes) = self.writes.as_ref().filter(|_| rest.len() > 1) {
                at += writes.write(self.device.as_fd(), rest, |place, error| refused(at + place, error));
            }
            // One alone, or the one at which the others stopped.
            if at < packets.len() {
                if let Err(error) = self.try_write_vectored(packets[at]) {
                    refused(at, error);
                }
                at += 1;
            }
        }
    }

    /// Registers the queue with the current tokio runtime, which then reports when it is readable.
    ///
    /// # Errors
    /// If the system call fails.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn into_async(self) -> io::Result<AsyncFd<Self>> {
        // SAFETY: the queue owns its open descriptor, always names the same one, and nothing here
        // closes or replaces it before the queue is dropped.
        Ok(unsafe { AsyncFd::register_with_interest(self, Interest::READABLE) }?)
    }

    /// Makes the queue non-blocking and fixes size and byte order of its packet headers.
    fn prepare(&self) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&self.device, true)?;
        self.set_int::<TUNSETVNETHDRSZ>(VNET_HEADER_LEN as i32)?;
        self.set_int::<TUNSETVNETLE>(1)
    }

    fn set_int<const OPCODE: ioctl::Opcode>(&self, value: i32) -> io::Result<()> {
        // SAFETY: this is instantiated for TUNSETVNETHDRSZ and TUNSETVNETLE only; both read one
        // `int` through the pointer that `Setter` passes and keep nothing of it.
        unsafe { ioctl::ioctl(&self.device, ioctl::Setter::<OPCODE, i32>::new(value))? };
        Ok(())
    }

    /// Sets the best offloads that the kernel takes, starting at `wanted`. They hold for the whole
    /// device.
    fn negotiate(&self, wanted: TunOffloads) -> io::Result<TunOffloads> {
        let mut attempt = wanted;
        loop {
            match self.set_offloads(attempt) {
                Ok(()) => return Ok(attempt),
                Err(Errno::INVAL) => attempt = attempt.weaker().ok_or(Errno::INVAL)?,
                Err(other) => return Err(other.into()),
            }
        }
    }

    fn set_offloads(&self, offloads: TunOffloads) -> Result<(), Errno> {
        let bits = offloads.bits() as usize;
        // SAFETY: TUNSETOFFLOAD takes its bits by value in the argument and touches no memory of
        // ours.
        unsafe { ioctl::ioctl(&self.device, ioctl::IntegerSetter::<TUNSETOFFLOAD>::new_usize(bits)) }
    }
}

impl AsFd for TunQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl From<TunQueue> for OwnedFd {
    fn from(queue: TunQueue) -> Self {
        queue.device
    }
}

impl AsRawFd for TunQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.device.as_raw_fd()
    }
}

/// Refuses what would fail half-way or do harm, before anything is changed.
fn check(spec: &TunSpec) -> Result<(), TunError> {
    let name = spec.name.as_str();
    let usable = |c: char| !c.is_whitespace() && !c.is_control() && c != '/' && c != ':';
    if name.is_empty() || name.len() > 15 || name == "." || name == ".." || !name.chars().all(usable) {
        return Err(TunError::BadName(name.to_owned()));
    }
    if !(1..=MAX_QUEUES).contains(&spec.queues) {
        return Err(TunError::BadQueueCount(spec.queues));
    }
    if !Path::new(TUN_CHARACTER_DEVICE).exists() {
        return Err(TunError::NoDriver);
    }
    // The kernel would attach a queue to an existing multi-queue device instead of refusing.
    let probe = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)
        .map_err(|errno| classify(name, "checking the name", errno.into()))?;
    match rustix::net::netdevice::name_to_index(&probe, name) {
        Ok(_) => Err(TunError::NameInUse(name.to_owned())),
        Err(_) => Ok(()),
    }
}

fn classify(name: &str, step: &'static str, source: io::Error) -> TunError {
    match Errno::from_io_error(&source) {
        Some(Errno::PERM | Errno::ACCESS) => TunError::NoPermission,
        Some(Errno::NODEV | Errno::NXIO | Errno::NOENT) => TunError::NoDriver,
        Some(Errno::BUSY | Errno::EXIST) => TunError::NameInUse(name.to_owned()),
        _ => TunError::Os { name: name.to_owned(), step, source },
    }
}

#[cfg(test)]
mod tests;
