//! Cutting super-packets and rebuilding them.

use std::hint::black_box;

use vpnd_packet::Packet;
use vpnd_packet::offload::{PeerFeatures, Rebuilder, Slicer, TunFeatures};

use crate::stage::{Load, Name, Side, Stage, Unit};
use crate::traffic::{CAMPUS, CLIENT, header, packet, super_len};

/// A TUN device that takes everything.
const ALL: TunFeatures = TunFeatures { vnet_header: true, checksum: true, tcp: true, udp: true };
/// A peer that takes packets without checksums; one that does not.
pub const PEERS: [(&str, PeerFeatures); 2] = [
    ("partial checksums", PeerFeatures { partial_checksum: true }),
    ("full checksums", PeerFeatures { partial_checksum: false }),
];

fn load(slices: usize) -> Load {
    Load { packets: slices, bytes: super_len(slices) }
}

/// Cutting a super-packet into `slices` packets.
pub fn slice(slices: usize, peer: PeerFeatures) -> Stage {
    let bytes = packet(CLIENT, CAMPUS, super_len(slices));
    let mut out = vec![0; 2048];
    Stage::plain(Name::new("slice", Side::Sender, Unit::SuperPacket), load(slices), move || {
        let packet = Packet::parse(black_box(&bytes)).expect("a good packet");
        let slicer = Slicer::new(&header(bytes.len()), &packet, peer).expect("a super-packet");
        for i in 0..slicer.count() {
            black_box(slicer.write(i, &mut out));
        }
    })
}

/// Slices of a super-packet one behind the other, and where each begins.
fn sliced(slices: usize, peer: PeerFeatures) -> (Vec<u8>, Vec<usize>) {
    let bytes = packet(CLIENT, CAMPUS, super_len(slices));
    let packet = Packet::parse(&bytes).expect("a good packet");
    let slicer = Slicer::new(&header(bytes.len()), &packet, peer).expect("a super-packet");
    let (mut buffer, mut places) = (vec![0; 80_000], Vec::new());
    let mut at = 0;
    for i in 0..slicer.count() {
        places.push(at);
        at += slicer.write(i, &mut buffer[at..]);
    }
    buffer.truncate(at);
    (buffer, places)
}

/// Rebuilding a super-packet of `slices` packets.
pub fn rebuild(slices: usize, peer: PeerFeatures) -> Stage {
    let (buffer, places) = sliced(slices, peer);
    let mut rebuilder = Rebuilder::new(ALL);
    Stage::plain(Name::new("rebuild", Side::Receiver, Unit::SuperPacket), load(slices), move || {
        for at in &places {
            let packet = Packet::parse(&buffer[*at..]).expect("a good packet");
            rebuilder.push(&buffer, &packet, |rebuilt| {
                black_box(rebuilt.packets());
            });
        }
        rebuilder.flush(&buffer, |rebuilt| {
            black_box(rebuilt.packets());
        });
    })
}
