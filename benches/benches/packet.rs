//! What each inner packet costs beside encryption: checks, replay window, routes, slicing and rebuilding.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use vpnd_proto::offload::{PeerFeatures, Rebuilder, Slicer, TunFeatures, VirtioHeader};
use vpnd_proto::packet::{Packet, SourceFilter};
use vpnd_proto::replay::ReplayWindow;
use vpnd_proto::route::RouteTable;

/// Payload of each slice.
const GSO_SIZE: u16 = 1360;
/// Length of IPv4 and TCP headers with time stamps.
const HEADERS: usize = 52;

/// A TCP packet over IPv4 with `payload` bytes; its checksum is left to an offload.
fn tcp_packet(payload: usize) -> Vec<u8> {
    let mut bytes = vec![0x45, 0];
    bytes.extend(((HEADERS + payload) as u16).to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 8, 0, 2, 10, 1, 0, 9]);
    bytes.extend([0x9C, 0x40, 1, 0xBB, 0, 0, 0, 1, 0, 0, 0, 1, 0x80, 0x10, 1, 0xF6, 0, 0, 0, 0]);
    bytes.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    bytes.resize(HEADERS + payload, 0x5A);
    let checksum = vpnd_proto::checksum::ipv4_header(&bytes[..20]);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

fn tso_header() -> VirtioHeader {
    VirtioHeader {
        flags: VirtioHeader::NEEDS_CSUM,
        gso_type: VirtioHeader::GSO_TCPV4,
        hdr_len: (HEADERS as u16).into(),
        gso_size: GSO_SIZE.into(),
        csum_start: 20.into(),
        csum_offset: 16.into(),
    }
}

fn parsing(c: &mut Criterion) {
    let bytes = tcp_packet(1360);
    let filter = SourceFilter::new([IpAddr::V4(Ipv4Addr::new(10, 8, 0, 2)).into()]);
    c.bench_function("packet/parse and check source", |b| {
        b.iter(|| {
            let packet = Packet::parse(black_box(&bytes)).expect("a good packet");
            black_box((filter.permits(&packet), packet.dst()))
        });
    });
}

fn replay(c: &mut Criterion) {
    let mut window = ReplayWindow::new();
    let mut counter = 0;
    c.bench_function("replay/in order", |b| {
        b.iter(|| {
            counter += 1;
            black_box(window.check(counter) && window.commit(counter))
        });
    });
}

fn routes(c: &mut Criterion) {
    let mut table = RouteTable::new(0x5EED);
    for client in 0..10_000_u32 {
        table.insert(IpAddr::V4(Ipv4Addr::from_bits(0x0A08_0000 + client)).into(), client);
    }
    table.insert("10.0.0.0/8".parse().expect("a network"), 0);
    let mut client = 0;
    c.bench_function("route/one of 10,000 clients", |b| {
        b.iter(|| {
            client = (client + 7919) % 10_000;
            black_box(table.lookup(IpAddr::V4(Ipv4Addr::from_bits(0x0A08_0000 + client))))
        });
    });
}

/// Slices of the super-packet one behind the other, and where each begins.
fn sliced(packet: &[u8], peer: PeerFeatures) -> (Vec<u8>, Vec<usize>) {
    let packet = Packet::parse(packet).expect("a good packet");
    let slicer = Slicer::new(&tso_header(), &packet, peer).expect("a super-packet");
    let (mut buffer, mut places) = (vec![0; 80_000], Vec::new());
    let mut at = 0;
    for i in 0..slicer.count() {
        places.push(at);
        at += slicer.write(i, &mut buffer[at..]);
    }
    buffer.truncate(at);
    (buffer, places)
}

fn offload(c: &mut Criterion) {
    let bytes = tcp_packet(65_280);
    let mut out = vec![0; 2048];
    let mut group = c.benchmark_group("offload");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    for (name, partial_checksum) in [("partial", true), ("full checksums", false)] {
        let peer = PeerFeatures { partial_checksum };
        group.bench_function(format!("slice 64 KiB, {name}"), |b| {
            b.iter(|| {
                let packet = Packet::parse(black_box(&bytes)).expect("a good packet");
                let slicer = Slicer::new(&tso_header(), &packet, peer).expect("a super-packet");
                for i in 0..slicer.count() {
                    black_box(slicer.write(i, &mut out));
                }
            });
        });
        let (buffer, places) = sliced(&bytes, peer);
        let mut rebuilder =
            Rebuilder::new(TunFeatures { vnet_header: true, checksum: true, tcp: true, udp: true });
        group.bench_function(format!("rebuild 64 KiB, {name}"), |b| {
            b.iter(|| {
                for at in &places {
                    let packet = Packet::parse(&buffer[*at..]).expect("a good packet");
                    rebuilder.push(&buffer, &packet, |rebuilt| {
                        black_box(rebuilt.packets());
                    });
                }
                rebuilder.flush(&buffer, |rebuilt| {
                    black_box(rebuilt.packets());
                });
            });
        });
    }
    group.finish();
}

criterion_group!(benches, parsing, replay, routes, offload);
criterion_main!(benches);
