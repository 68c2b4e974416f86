//! The system calls of the data path, on real devices: TUN reads and writes, UDP sends and receives
//! with offload.
//!
//! ```text
//!   namespace near: UDP socket ── link ── UDP socket :namespace far: stage0 (TUN) ── forwarding ── stage1 (TUN)
//! ```
//!
//! The kernel forwards from stage0 to stage1 what is written there: the same super-packet
//! for both stages. On veth pairs a send includes the receiving kernel's work up to its socket, as
//! it does for a VPN in such a lab.
//!
//! INVARIANT: only devices and sockets in the two named namespaces are made, and they end with the
//! process.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use vpnd_packet::offload::VIRTIO_HEADER;
use vpnd_proto::wire::HEADER_LEN;
use vpnd_shard::devices::PacketDevice;
use vpnd_sys::tun::{CLIENT_TX_QUEUE_LEN, MAX_READ_LEN, Tun, TunOffloads, TunQueue, TunSpec};
use vpnd_sys::udp::{MAX_GSO_BYTES, RecvMeta, SendOutcome, ShardSocket, SocketOptions, Transmit};

use crate::stage::{Load, Name, Side, Stage, Unit};
use crate::traffic::{self, CAMPUS, CLIENT, HEADERS, MSS, MTU};

/// Length of a full datagram: header, packet, tag.
const DATAGRAM: usize = HEADER_LEN + MTU + 16;
/// Datagrams of one send: what fits, and what the daemon puts into one.
const GSO_DATAGRAMS: usize = if MAX_GSO_BYTES / DATAGRAM < 64 { MAX_GSO_BYTES / DATAGRAM } else { 64 };
/// Time that a datagram may be under way.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Two namespaces with a link between them.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// A network namespace, by its name below /run/netns.
    #[arg(long, requires_all = ["far", "near_address", "far_address"])]
    pub near: Option<String>,
    /// Another that forwards IPv4 and that the first one reaches.
    #[arg(long, requires = "near")]
    pub far: Option<String>,
    /// An address of the first one.
    #[arg(long, requires = "near")]
    pub near_address: Option<Ipv4Addr>,
    /// An address of the second one.
    #[arg(long, requires = "near")]
    pub far_address: Option<Ipv4Addr>,
}

/// Makes sockets and devices; the calling thread is in the far namespace afterwards. `None` if no
/// place is given.
///
/// # Errors
/// The part that could not be made.
pub fn stages(place: &Place) -> anyhow::Result<Option<Vec<Stage>>> {
    let Place { near: Some(near), far: Some(far), near_address: Some(from), far_address: Some(to) } = place
    else {
        return Ok(None);
    };
    let bind = |address: Ipv4Addr| ShardSocket::bind((address, 0).into(), &SocketOptions::default());
    enter(near)?;
    let near = bind(*from)?;
    enter(far)?;
    let far = bind(*to)?;
    let path = Rc::new(UdpPath { address: far.local_addr()?, near, far });
    let tuns = Rc::new(TunPair::make()?);
    let mut stages = Vec::new();
    for slices in traffic::SLICES {
        stages.extend([path.send(slices), path.receive(slices), tuns.write(slices), tuns.read(slices)]);
    }
    // Once each, so that a path that carries nothing is an error here and not a panic later.
    for datagrams in traffic::SLICES {
        path.transmit(datagrams)
            .and_then(|_| path.collect(datagrams))
            .context("UDP between the namespaces")?;
    }
    for slices in traffic::SLICES {
        let packet = tuns.packet(slices);
        tuns.put(&packet)
            .and_then(|_| tuns.take(packet.len()))
            .context("forwarding between the TUN devices")?;
    }
    Ok(Some(stages))
}

/// Moves the calling thread into a namespace.
pub(crate) fn enter(namespace: &str) -> anyhow::Result<()> {
    ensure!(!namespace.contains('/'), "`{namespace}` is no name of a namespace");
    let path = format!("/run/netns/{namespace}");
    let file =
        File::open(&path).with_context(|| format!("opening {path}; `ip netns` lists the namespaces"))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("entering {path}; it needs root"))
}

/// A socket in each namespace.
struct UdpPath {
    near: ShardSocket,
    far: ShardSocket,
    address: SocketAddr,
}

impl UdpPath {
    fn load(datagrams: usize) -> Load {
        Load { packets: datagrams, bytes: traffic::super_len(datagrams) }
    }

    fn send(self: &Rc<Self>, datagrams: usize) -> Stage {
        let path = Rc::clone(self);
        let name = Name::new("UDP send", Side::Sender, Unit::SuperPacket);
        Stage::timed(name, Self::load(datagrams), move |calls| {
            let carried = (0..calls).map(|_| {
                let spent = path.transmit(datagrams)?;
                path.collect(datagrams)?;
                Ok(spent)
            });
            carried.sum::<anyhow::Result<_>>().expect("it worked when it was tried")
        })
    }

    fn receive(self: &Rc<Self>, datagrams: usize) -> Stage {
        let path = Rc::clone(self);
        let name = Name::new("UDP receive", Side::Receiver, Unit::SuperPacket);
        Stage::timed(name, Self::load(datagrams), move |calls| {
            let carried = (0..calls).map(|_| {
                path.transmit(datagrams)?;
                path.collect(datagrams)
            });
            carried.sum::<anyhow::Result<_>>().expect("it worked when it was tried")
        })
    }

    /// Sends this many full datagrams; returns how long that took.
    fn transmit(&self, datagrams: usize) -> anyhow::Result<Duration> {
        static CONTENTS: [u8; GSO_DATAGRAMS * DATAGRAM] = [0x80; GSO_DATAGRAMS * DATAGRAM];
        let mut left = datagrams;
        let start = Instant::now();
        while left > 0 {
            let now = left.min(GSO_DATAGRAMS);
            let contents = &CONTENTS[..now * DATAGRAM];
            let segment_size = (now > 1).then_some(DATAGRAM);
            let transmit = Transmit {
                destination: self.address,
                traffic_class: 0,
                contents,
                segment_size,
                src_ip: None,
                may_fragment: false,
            };
            match self.near.try_send(&transmit) {
                SendOutcome::Sent => left -= now,
                other => bail!("sending: {other:?}"),
            }
        }
        Ok(start.elapsed())
    }

    /// Receives them all; says how long the calls took that brought some.
    fn collect(&self, datagrams: usize) -> anyhow::Result<Duration> {
        let mut buffers = [vec![0_u8; 65_536], vec![0_u8; 65_536]];
        let mut left = datagrams * DATAGRAM;
        let mut spent = Duration::ZERO;
        while left > 0 {
            wait_readable(&self.far).context("waiting for the datagrams")?;
            let mut meta = [RecvMeta::default(); 2];
            let mut slices = buffers.each_mut().map(|buffer| IoSliceMut::new(buffer));
            let start = Instant::now();
            let received = self.far.try_recv(&mut slices, &mut meta);
            let took = start.elapsed();
            match received {
                Ok(count) => {
                    spent += took;
                    left = left.saturating_sub(meta[..count].iter().map(|meta| meta.len).sum());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("receiving"),
            }
        }
        Ok(spent)
    }
}

fn wait_readable(fd: impl AsFd) -> anyhow::Result<()> {
    let patience = Timespec { tv_sec: 0, tv_nsec: TIMEOUT.subsec_nanos().into() };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    ensure!(poll(&mut fds, Some(&patience))? > 0, "nothing came within {} ms", TIMEOUT.as_millis());
    Ok(())
}

/// Two TUN devices between which the kernel forwards.
struct TunPair {
    first: TunQueue,
    second: TunQueue,
}

impl TunPair {
    fn make() -> anyhow::Result<Self> {
        Ok(Self { first: tun("stage0", "10.86.0.1/24")?, second: tun("stage1", "10.200.0.1/24")? })
    }

    fn packet(&self, slices: usize) -> Vec<u8> {
        traffic::from_tun(CLIENT, CAMPUS, traffic::super_len(slices))
    }

    fn load(slices: usize) -> Load {
        Load { packets: slices, bytes: traffic::super_len(slices) }
    }

    fn write(self: &Rc<Self>, slices: usize) -> Stage {
        self.stage(Name::new("TUN write", Side::Receiver, Unit::SuperPacket), slices, |put, _| put)
    }

    fn read(self: &Rc<Self>, slices: usize) -> Stage {
        self.stage(Name::new("TUN read", Side::Sender, Unit::SuperPacket), slices, |_, taken| taken)
    }

    fn stage(self: &Rc<Self>, name: Name, slices: usize, which: fn(Duration, Duration) -> Duration) -> Stage {
        let tuns = Rc::clone(self);
        let packet = self.packet(slices);
        Stage::timed(name, Self::load(slices), move |calls| {
            let carried = (0..calls).map(|_| Ok(which(tuns.put(&packet)?, tuns.take(packet.len())?)));
            carried.sum::<anyhow::Result<_>>().expect("it worked when it was tried")
        })
    }

    /// Writes as the rebuilder does: virtio header and headers, then the payload slice by slice.
    fn put(&self, packet: &[u8]) -> anyhow::Result<Duration> {
        let (head, payload) = packet.split_at(VIRTIO_HEADER + HEADERS);
        let parts: Vec<_> = [head].into_iter().chain(payload.chunks(MSS)).map(IoSlice::new).collect();
        let start = Instant::now();
        self.first.try_write_vectored(&parts).context("writing to stage0")?;
        Ok(start.elapsed())
    }

    /// Reads the packet of `len` bytes that was forwarded; what the kernel itself sends there is
    /// passed over.
    fn take(&self, len: usize) -> anyhow::Result<Duration> {
        let mut buffer = vec![0; MAX_READ_LEN];
        loop {
            wait_readable(&self.second)?;
            let start = Instant::now();
            let read = PacketDevice::try_read(&self.second, &mut buffer).context("reading from stage1")?;
            let spent = start.elapsed();
            if read == len {
                return Ok(spent);
            }
        }
    }
}

/// Makes a device with an address and brings it up.
fn tun(name: &str, address: &str) -> anyhow::Result<TunQueue> {
    let spec = TunSpec {
        name: name.into(),
        mtu: MTU as u16,
        queues: 1,
        tx_queue_len: CLIENT_TX_QUEUE_LEN,
        offloads: TunOffloads::ALL,
    };
    let device = Tun::open(&spec)?;
    for words in [["address", "add", address, "dev", name].as_slice(), &["link", "set", name, "up"]] {
        let done = Command::new("ip").args(words).output().context("running `ip`; is iproute2 installed?")?;
        ensure!(
            done.status.success(),
            "ip {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&done.stderr).trim()
        );
    }
    device.into_queues().pop().context("a device has a queue")
}
