//! Behaviour: received messages are written to the TUN device completely, in the order in which
//! they came, with few calls.

use std::cell::Cell;

use proptest::prelude::*;
use vpnd_proto::control::FEATURE_HALVES;
use vpnd_proto::time::Time;
use vpnd_proto::wire::HEADER_LEN;

use super::overload::{OUTER, commands, slot};
use super::*;
use crate::inbound::RECEIVE_MESSAGES;

/// Both devices of a gateway: it receives what it is loaded with, and records what it writes.
#[derive(Default)]
struct Devices {
    /// Messages, each with the length of its datagrams.
    inbox: RefCell<VecDeque<(Vec<u8>, usize)>>,
    written: RefCell<Vec<Vec<u8>>>,
    calls: Cell<usize>,
}

impl PacketDevice for Devices {
    fn try_read(&self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let bytes = gathered(parts);
        let (_, packet) = VirtioHeader::split(&bytes).expect("a virtio header");
        self.written.borrow_mut().push(packet.to_vec());
        Ok(bytes.len())
    }

    fn try_write_many(&self, packets: &[&[IoSlice<'_>]], _: impl FnMut(usize, io::Error)) {
        self.calls.set(self.calls.get() + 1);
        for parts in packets {
            self.try_write_vectored(parts).unwrap();
        }
    }
}

impl DatagramSocket for Devices {
    fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> io::Result<usize> {
        let next = || {
            let (message, stride) = self.inbox.borrow_mut().pop_front()?;
            Some((OUTER, message, stride))
        };
        receive(next, bufs, meta)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> SendOutcome {
        Mute.try_send(transmit)
    }

    fn try_send_many(&self, transmits: &[Transmit<'_>]) -> usize {
        Mute.try_send_many(transmits)
    }

    fn wait_writable(&self, _: Duration) -> Duration {
        Duration::ZERO
    }

    fn offloads(&self) -> UdpOffloads {
        Mute.offloads()
    }
}

/// One end of the session, which joins halves.
fn open(role: Role, mut apply: impl FnMut(Command)) {
    for mut command in commands(2, slot(0), role) {
        if let Command::Install(epoch) = &mut command {
            epoch.features |= FEATURE_HALVES;
        }
        apply(command);
    }
}

/// A complete UDP packet for the campus.
fn datagram(number: u16, flow: u8, payload: usize) -> Vec<u8> {
    let len = 28 + payload as u16;
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 86, 0, 2, 10, 200, 0, 9];
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[4..6].copy_from_slice(&number.to_be_bytes());
    let checksum = vpnd_packet::checksum::ipv4_header(&packet);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend([0x9C, flow, 1, 0xBB]);
    packet.extend((len - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend((0..payload).map(|at| (at * 7) as u8 ^ number as u8));
    packet
}

/// Puts a datagram behind those of the last message if the kernel would have merged it, and else
/// into a new message.
fn arrive(inbox: &mut VecDeque<(Vec<u8>, usize)>, datagram: &[u8], merges: bool) {
    match inbox.back_mut() {
        Some((message, stride))
            if merges
                && message.len() % *stride == 0
                && datagram.len() <= *stride
                && message.len() < 40_000 =>
        {
            message.extend_from_slice(datagram);
        }
        _ => inbox.push_back((datagram.to_vec(), datagram.len())),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whole_packets_and_joined_ones_are_written_in_order(
        packets in prop::collection::vec((0..4_u8, 0..1_200_usize, prop::bool::weighted(0.1), any::<bool>()), 1..200),
    ) {
        let mut client = Plane::new(Role::Client, Arc::new(Policy::default()), 0);
        open(Role::Client, |command| {
            client.apply(command);
        });
        let offloads = TunOffloads { tso4: false, tso6: false, uso: false, ..TunOffloads::ALL };
        let policy = Arc::new(Policy::without_rules(true));
        let spec = SteppedSpec { role: Role::Gateway, policy, tun_offloads: offloads, mtu: 1_400 };
        let devices = Devices::default();
        let mut gateway = Stepped::new(spec, &devices, &devices);
        open(Role::Gateway, |command| gateway.command(command));

        let (mut wanted, mut breaks) = (Vec::new(), 0);
        for (number, (flow, payload, in_halves, merges)) in packets.into_iter().enumerate() {
            let packet = datagram(number as u16, flow, payload);
            let mut sender = client.sender(Time::ZERO, slot(0)).expect("it has an epoch");
            let mut room = vec![0; HEADER_LEN + packet.len() + 48];
            let mut inbox = devices.inbox.borrow_mut();
            if in_halves {
                for second in [false, true] {
                    let len = sender.seal_half(&mut room, &packet, second).expect("there is room").len;
                    arrive(&mut inbox, &room[..len], merges);
                }
                breaks += 2;
            } else {
                room[HEADER_LEN..HEADER_LEN + packet.len()].copy_from_slice(&packet);
                let len = sender.seal_packet(&mut room, packet.len()).expect("it may seal").len;
                arrive(&mut inbox, &room[..len], merges);
            }
            wanted.push(packet);
        }
        let messages = devices.inbox.borrow().len();
        while gateway.receive() == Progress::More {}
        prop_assert_eq!(gateway.report().counters.total(), 0);
        prop_assert!(*devices.written.borrow() == wanted, "in the same order, byte for byte");
        // One for each 64 packets, and for what one call receives at least; more only around joined
        // packets.
        let least = wanted.len() / 64 + messages.div_ceil(RECEIVE_MESSAGES);
        prop_assert!(devices.calls.get() <= breaks + 4 * (1 + least), "{} calls", devices.calls.get());
    }
}
