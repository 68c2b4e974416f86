//! Tests with a device that refuses chosen writes.

use std::cell::{Cell, RefCell};

use vpnd_packet::Packet;
use vpnd_packet::checksum;
use vpnd_packet::offload::{Rebuilder, VirtioHeader};

use super::*;

/// Takes packets unless one of `refuses` says no.
#[derive(Default)]
struct Picky {
    refuses: RefCell<Vec<(Kind, Errno)>>,
    taken: RefCell<Vec<(VirtioHeader, Vec<u8>)>>,
    asked: Cell<usize>,
    /// Packets of each call that writes many.
    calls: RefCell<Vec<usize>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Everything,
    SuperPackets,
    PartialChecksums,
}

impl Picky {
    fn refusing(kind: Kind, errno: Errno) -> Self {
        Self { refuses: RefCell::new(vec![(kind, errno)]), ..Self::default() }
    }
}

impl PacketDevice for Picky {
    fn try_read(&self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.asked.set(self.asked.get() + 1);
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let (header, packet) = VirtioHeader::split(&bytes).expect("a virtio header");
        for (kind, errno) in self.refuses.borrow().iter() {
            let meant = match kind {
                Kind::Everything => true,
                Kind::SuperPackets => header.gso_type != VirtioHeader::GSO_NONE,
                Kind::PartialChecksums => header.flags & VirtioHeader::NEEDS_CSUM != 0,
            };
            if meant {
                return Err((*errno).into());
            }
        }
        self.taken.borrow_mut().push((header, packet.to_vec()));
        Ok(bytes.len())
    }

    fn try_write_many(&self, packets: &[&[IoSlice<'_>]], mut refused: impl FnMut(usize, io::Error)) {
        self.calls.borrow_mut().push(packets.len());
        for (place, parts) in packets.iter().enumerate() {
            if let Err(error) = self.try_write_vectored(parts) {
                refused(place, error);
            }
        }
    }
}

const PARTIAL: u8 = vpnd_packet::PARTIAL_CHECKSUM;

/// A run of `count` segments of one TCP stream, or datagrams of one UDP flow, with partial
/// checksums.
fn run(protocol: u8, count: u16) -> Vec<Vec<u8>> {
    (0..count)
        .map(|i| {
            let transport = if protocol == 6 { 20 } else { 8 };
            let mut packet = vec![0; 20 + transport + 100];
            let len = packet.len() as u16;
            packet[..2].copy_from_slice(&[0x45, 2]);
            packet[2..4].copy_from_slice(&len.to_be_bytes());
            packet[4..6].copy_from_slice(&i.to_be_bytes());
            packet[6..10].copy_from_slice(&[0x40, 0, 64, protocol]);
            packet[12..20].copy_from_slice(&[10, 1, 0, 9, 10, 8, 0, 2]);
            let checksum = checksum::ipv4_header(&packet[..20]);
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
            packet[20..24].copy_from_slice(&[0x01, 0xBB, 0x9C, 0x40]);
            if protocol == 6 {
                packet[24..28].copy_from_slice(&(u32::from(i) * 100).to_be_bytes());
                packet[32..36].copy_from_slice(&[0x50, 0x10, 1, 0]);
            } else {
                packet[24..26].copy_from_slice(&(len - 20).to_be_bytes());
            }
            packet[20 + transport..].fill(i as u8);
            packet[0] |= PARTIAL;
            packet
        })
        .collect()
}

/// The packets as they must arrive: with full checksums.
fn complete(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let whole = packets.iter().cloned().map(|mut packet| {
        checksum::complete(&mut packet).unwrap();
        packet
    });
    whole.collect()
}

/// Puts a batch through rebuilder and writer as a shard does. Returns how many packets were lost.
fn write_batch(writer: &mut Writer, device: &Picky, packets: &[Vec<u8>]) -> u64 {
    write_batches(writer, device, &[packets])
}

/// Writes a batch of several messages, each in its own buffer.
fn write_batches(writer: &mut Writer, device: &Picky, messages: &[&[Vec<u8>]]) -> u64 {
    let mut drops = Counters::default();
    let buffers: Vec<Vec<u8>> = messages.iter().map(|packets| packets.concat()).collect();
    let mut rebuilder = Rebuilder::new(writer.features());
    for (number, (packets, buffer)) in messages.iter().zip(&buffers).enumerate() {
        let mut at = 0;
        for packet in *packets {
            let parsed = Packet::parse(&buffer[at..at + packet.len()]).unwrap();
            rebuilder.push(buffer, &parsed, |rebuilt| writer.hold(number, rebuilt));
            at += packet.len();
        }
        rebuilder.flush(buffer, |rebuilt| writer.hold(number, rebuilt));
    }
    writer.write(device, &buffers, &mut drops);
    writer.write(device, &buffers, &mut drops);
    assert_eq!(drops.total(), drops.dropped(DropReason::TunWrite));
    drops.total()
}

#[test]
fn a_refused_super_packet_is_written_as_what_it_was_made_of() {
    for (protocol, gave_up) in [
        (6, TunWrites { refused: 3, gave_up_tso: true, ..TunWrites::default() }),
        (17, TunWrites { refused: 3, gave_up_uso: true, ..TunWrites::default() }),
    ] {
        let device = Picky::refusing(Kind::SuperPackets, Errno::INVAL);
        let mut writer = Writer::new(TunOffloads::ALL);
        let packets = run(protocol, 5);
        for round in 1..=5 {
            device.taken.borrow_mut().clear();
            device.asked.set(0);
            assert_eq!(write_batch(&mut writer, &device, &packets), 0);
            let taken = device.taken.borrow();
            assert_eq!(taken.len(), 5, "round {round}");
            if round <= MAX_REFUSALS {
                let bytes: Vec<_> = taken.iter().map(|(_, bytes)| bytes.clone()).collect();
                assert_eq!(bytes, complete(&packets));
                assert!(taken.iter().all(|(header, _)| *header == VirtioHeader::default()));
                assert_eq!(device.asked.get(), 6);
            } else {
                assert_eq!(device.asked.get(), 5, "super-packets are not tried any more");
            }
        }
        assert_eq!(writer.state(), gave_up);
        assert!(writer.features().checksum, "checksums were never refused");
    }
}

#[test]
fn refused_checksums_are_completed_here() {
    let device = Picky::refusing(Kind::PartialChecksums, Errno::INVAL);
    let mut writer = Writer::new(TunOffloads { tso4: false, ..TunOffloads::ALL });
    let packets = run(6, 4);
    write_batch(&mut writer, &device, &packets);
    let bytes: Vec<_> = device.taken.borrow().iter().map(|(_, bytes)| bytes.clone()).collect();
    assert_eq!(bytes, complete(&packets));
    assert!(writer.state().gave_up_checksum);
    assert!(!writer.features().checksum && !writer.features().udp, "all offloads need checksums");
    device.asked.set(0);
    write_batch(&mut writer, &device, &packets);
    assert_eq!(device.asked.get(), 4);
}

#[test]
fn an_offload_that_works_between_refusals_is_kept() {
    let device = Picky::refusing(Kind::SuperPackets, Errno::INVAL);
    let mut writer = Writer::new(TunOffloads::ALL);
    for _ in 0..3 * MAX_REFUSALS {
        device.refuses.borrow_mut().push((Kind::SuperPackets, Errno::INVAL));
        write_batch(&mut writer, &device, &run(6, 3));
        device.refuses.borrow_mut().clear();
        write_batch(&mut writer, &device, &run(6, 3));
    }
    assert_eq!(writer.state(), TunWrites { refused: 9, ..TunWrites::default() });
}

#[test]
fn a_bad_packet_is_no_fault_of_the_offload() {
    let device = Picky::refusing(Kind::Everything, Errno::INVAL);
    let mut writer = Writer::new(TunOffloads::ALL);
    for _ in 0..2 * MAX_REFUSALS {
        assert_eq!(write_batch(&mut writer, &device, &run(17, 4)), 4, "each packet is counted once");
    }
    assert_eq!(writer.state(), TunWrites::default());
}

#[test]
fn a_device_that_is_down_is_not_asked_twice_and_no_memory_blames_nothing() {
    let device = Picky::refusing(Kind::Everything, Errno::IO);
    let mut writer = Writer::new(TunOffloads::ALL);
    let lost = write_batch(&mut writer, &device, &run(6, 4));
    assert_eq!((device.asked.get(), lost), (1, 4));

    let device = Picky::refusing(Kind::SuperPackets, Errno::NOMEM);
    for _ in 0..2 * MAX_REFUSALS {
        write_batch(&mut writer, &device, &run(6, 4));
    }
    assert_eq!(device.taken.borrow().len() as u32, 4 * 2 * MAX_REFUSALS);
    assert!(!writer.state().gave_up_tso);
}

/// Packets that are not merged: each of another flow.
fn flows(count: u16) -> Vec<Vec<u8>> {
    let packets = (0..count).map(|i| {
        let mut packet = run(17, 1).remove(0);
        packet[20..22].copy_from_slice(&i.to_be_bytes());
        packet
    });
    packets.collect()
}

#[test]
fn packets_of_several_messages_are_written_together_and_in_order() {
    let device = Picky::default();
    let mut writer = Writer::new(TunOffloads::ALL);
    let messages = [flows(3), run(6, 5), flows(2)];
    let lost = write_batches(&mut writer, &device, &messages.each_ref().map(|message| &message[..]));
    assert_eq!((lost, device.calls.take()), (0, vec![6]));
    let taken = device.taken.take();
    let lengths: Vec<_> = taken.iter().map(|(_, packet)| packet.len()).collect();
    assert_eq!(lengths, [128, 128, 128, 540, 128, 128]);
    assert_eq!(
        taken[3].1[40..],
        complete(&messages[1]).iter().flat_map(|p| p[40..].to_vec()).collect::<Vec<_>>()
    );
    for (place, (message, number)) in [(0, (0, 0)), (2, (0, 2)), (4, (2, 0)), (5, (2, 1))] {
        assert_eq!(taken[place].1[28..], messages[message][number][28..], "{place}");
    }
}

#[test]
fn a_refused_packet_among_others_is_written_again_and_counted_alone() {
    let device = Picky::refusing(Kind::SuperPackets, Errno::INVAL);
    let mut writer = Writer::new(TunOffloads::ALL);
    let messages = [flows(3), run(6, 5), flows(2)];
    let lost = write_batches(&mut writer, &device, &messages.each_ref().map(|message| &message[..]));
    assert_eq!((lost, device.asked.get(), device.taken.take().len()), (0, 6 + 5, 10));
    assert_eq!(writer.state(), TunWrites { refused: 1, ..TunWrites::default() });

    // A fallback that does not help one packet does not lose the others.
    let device = Picky::refusing(Kind::PartialChecksums, Errno::IO);
    let mut complete_flows = flows(2);
    complete_flows.iter_mut().for_each(|packet| checksum::complete(packet).unwrap());
    let messages = [run(6, 5), complete_flows, run(17, 3)];
    let lost = write_batches(&mut writer, &device, &messages.each_ref().map(|message| &message[..]));
    assert_eq!((lost, device.asked.get(), device.taken.take().len()), (5 + 3, 4, 2));
}

#[test]
fn one_call_takes_no_more_than_the_kernel_does() {
    let device = Picky::default();
    let mut writer = Writer::new(TunOffloads::ALL);
    let packets = flows(MAX_WRITES as u16 + 1);
    assert_eq!(write_batch(&mut writer, &device, &packets), 0);
    assert_eq!(device.calls.take(), [MAX_WRITES, 1]);
    // Few packets of many slices are as much.
    let long = [(); 4].map(|()| run(6, 128));
    let lost = write_batches(&mut writer, &device, &long.each_ref().map(|message| &message[..]));
    assert_eq!((lost, device.calls.take()), (0, vec![3, 1]));
}

#[test]
fn a_writer_is_full_when_one_call_takes_no_more() {
    let mut rebuilder = Rebuilder::new(TunFeatures { vnet_header: true, ..TunFeatures::default() });
    for (packets, full_at) in [(flows(80), MAX_WRITES), (run(6, 80), MAX_WRITES)] {
        let mut writer = Writer::new(TunOffloads::ALL);
        for (number, packet) in packets.iter().enumerate() {
            assert_eq!(writer.is_full(), number >= full_at);
            rebuilder.push(packet, &Packet::parse(packet).unwrap(), |rebuilt| writer.hold(0, rebuilt));
            rebuilder.flush(packet, |rebuilt| writer.hold(0, rebuilt));
        }
    }
    let mut rebuilder =
        Rebuilder::new(TunFeatures { vnet_header: true, checksum: true, tcp: true, udp: true });
    let mut writer = Writer::new(TunOffloads::ALL);
    for number in 0..6 {
        assert_eq!(writer.is_full(), number >= 4, "{number}");
        let packets = run(6, 128);
        let buffer = packets.concat();
        for at in (0..buffer.len()).step_by(packets[0].len()) {
            let packet = Packet::parse(&buffer[at..at + packets[0].len()]).unwrap();
            rebuilder.push(&buffer, &packet, |rebuilt| writer.hold(0, rebuilt));
        }
        rebuilder.flush(&buffer, |rebuilt| writer.hold(0, rebuilt));
    }
}
