//! A shard with bad input from its own TUN device (dropped, counted once, nothing sent), and with
//! events that no owner takes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::time::Duration;

use vpnd_packet::offload::VirtioHeader;
use vpnd_proto::plane::{DropReason, SessionSpec, Slot};
use vpnd_proto::policy::Principal;
use zerocopy::IntoBytes;

use super::super::now;
use super::*;
use vpnd_sys::udp::{RecvMeta, SendOutcome, Transmit, UdpOffloads};

mod accounting;
mod downloads;
mod narrow;
mod overload;
mod refused;
mod written;

/// Hands out what it is loaded with.
#[derive(Default)]
struct Script(RefCell<VecDeque<Vec<u8>>>);

impl PacketDevice for Script {
    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.0.borrow_mut().pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        buf[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn try_write_vectored(&self, _: &[IoSlice<'_>]) -> io::Result<usize> {
        panic!("nothing is for the TUN device");
    }
}

/// Receives for a made-up socket: as many of the messages that `next` gives, each with its sender
/// and the length of its datagrams, as there are buffers.
fn receive(
    mut next: impl FnMut() -> Option<(SocketAddr, Vec<u8>, usize)>,
    bufs: &mut [IoSliceMut<'_>],
    meta: &mut [RecvMeta],
) -> io::Result<usize> {
    let mut count = 0;
    while count < bufs.len()
        && let Some((from, message, stride)) = next()
    {
        bufs[count][..message.len()].copy_from_slice(&message);
        (meta[count].addr, meta[count].len, meta[count].stride) = (from, message.len(), stride);
        count += 1;
    }
    if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
}

/// The bytes of a vectored write.
fn gathered(parts: &[IoSlice<'_>]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.iter().copied()).collect()
}

/// Never to be sent to.
struct Mute;

impl DatagramSocket for Mute {
    fn try_recv(&self, _: &mut [IoSliceMut<'_>], _: &mut [RecvMeta]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> SendOutcome {
        panic!("nothing may be sent, and these are {} bytes", transmit.contents.len());
    }

    fn try_send_many(&self, transmits: &[Transmit<'_>]) -> usize {
        panic!("nothing may be sent, and these are {} batches", transmits.len());
    }

    fn wait_writable(&self, _: Duration) -> Duration {
        Duration::ZERO
    }

    fn offloads(&self) -> UdpOffloads {
        UdpOffloads {
            gso_segments: 1,
            gso_gave_up: false,
            gro: false,
            recv_buffer: 0,
            send_buffer: 0,
            may_fragment: false,
        }
    }
}

/// An IPv4 packet of protocol 17 behind `header`, for 10.86.0.`host`.
fn packet(header: VirtioHeader, host: u8) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 128, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 200, 0, 9, 10, 86, 0, host];
    let checksum = vpnd_packet::checksum::ipv4_header(&bytes);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes.extend([0x9C, 0x40, 1, 0xBB, 0, 108, 0, 0]);
    bytes.resize(128, 0x5A);
    [header.as_bytes(), &bytes].concat()
}

#[test]
fn bad_input_from_the_tun_device_is_counted_once_and_never_sent() {
    let policy = Arc::new(Policy::without_rules(false));
    let spec = SteppedSpec { role: Role::Gateway, policy, tun_offloads: TunOffloads::ALL, mtu: 1408 };
    let mut shard = Stepped::new(spec, Script::default(), Mute);
    shard.command(Command::Open(SessionSpec {
        slot: Slot { index: 0, generation: 0 },
        addresses: vec!["10.86.0.2/32".parse().unwrap()],
        principal: Principal::default(),
        limits: None,
        flows: Arc::default(),
        path: Arc::default(),
    }));
    let plain = VirtioHeader::default();
    let cases = [
        (vec![0; 3], DropReason::BadOffload),
        ([VirtioHeader::default().as_bytes(), &[0x45, 0, 0]].concat(), DropReason::BadPacket),
        (packet(plain, 7), DropReason::NoRoute),
        (packet(VirtioHeader { gso_type: 3, ..plain }, 2), DropReason::BadOffload),
        (packet(VirtioHeader { gso_type: VirtioHeader::GSO_TCPV6, ..plain }, 2), DropReason::BadOffload),
        (packet(VirtioHeader { gso_type: VirtioHeader::GSO_UDP_L4, ..plain }, 2), DropReason::BadOffload),
        (
            packet(VirtioHeader { flags: VirtioHeader::NEEDS_CSUM, csum_start: 0xFFFF.into(), ..plain }, 2),
            DropReason::BadOffload,
        ),
    ];
    for (bytes, reason) in cases {
        let dropped = |shard: &mut Stepped<Script, Mute>| {
            let counters = shard.report().counters;
            DropReason::ALL.iter().map(|reason| counters.dropped(*reason)).collect::<Vec<_>>()
        };
        let mut wanted = dropped(&mut shard);
        wanted[DropReason::ALL.iter().position(|known| *known == reason).unwrap()] += 1;
        shard.tun().0.borrow_mut().push_back(bytes);
        assert_eq!(shard.transmit().unwrap(), Progress::Drained);
        assert_eq!(dropped(&mut shard), wanted, "{reason:?}");
    }
}

#[test]
fn events_wait_for_a_busy_control_plane_and_none_is_lost() {
    let spec = SteppedSpec {
        role: Role::Gateway,
        policy: Arc::new(Policy::default()),
        tun_offloads: TunOffloads::ALL,
        mtu: 1_420,
    };
    let mut stepped = Stepped::new(spec, Script::default(), Mute);
    let slots = [0, 1, 2].map(|index| Slot { index, generation: 0 });
    for slot in slots {
        stepped.command(Command::Open(SessionSpec {
            slot,
            addresses: Vec::new(),
            principal: Principal::default(),
            limits: None,
            flows: Arc::default(),
            path: Arc::default(),
        }));
        stepped.shard.tunnel.plane.sender(now(), slot).expect_err("it has no epoch, and requests one");
    }
    // The control plane has room for one, and the shard does not wait for more.
    let (events, mut inbox) = tokio::sync::mpsc::channel(1);
    for slot in slots {
        assert!(stepped.shard.tunnel.plane.has_events());
        stepped.shard.report_events(&events);
        assert_eq!(inbox.try_recv(), Ok(Event::EpochWanted { slot }));
        inbox.try_recv().expect_err("no more than it has room for");
    }
    assert!(!stepped.shard.tunnel.plane.has_events());
    // One that has ended takes nothing, and nothing is kept for it.
    drop(inbox);
    let slot = Slot { index: 3, generation: 0 };
    stepped.command(Command::Open(SessionSpec {
        slot,
        addresses: Vec::new(),
        principal: Principal::default(),
        limits: None,
        flows: Arc::default(),
        path: Arc::default(),
    }));
    stepped.shard.tunnel.plane.sender(now(), slot).expect_err("it has no epoch, and requests one");
    stepped.shard.report_events(&events);
    assert!(!stepped.shard.tunnel.plane.has_events());
}
