//! A plain software model of segmentation: what a kernel without any offload would put on the wire.
//! Written for clarity, one step after the other, with its own checksum; it shares no code with
//! what it checks.

/// One's complement sum of 16-bit words with end-around carry.
fn ones_sum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum = 0_u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) * 256 + pair.get(1).map_or(0, |low| u64::from(*low));
    }
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

fn be16(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) * 256 + usize::from(bytes[at + 1])
}

fn put16(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at] = (value >> 8) as u8;
    bytes[at + 1] = value as u8;
}

fn is_v4(packet: &[u8]) -> bool {
    packet[0] >> 4 == 4
}

/// Fills in the IPv4 header checksum, if there is one, and that of TCP or UDP at `transport`.
pub(crate) fn fill_checksums(packet: &mut [u8], transport: usize, tcp: bool) {
    if is_v4(packet) {
        fill_ipv4_checksum(packet);
    }
    fill_transport_checksum(packet, transport, tcp);
}

/// Fills in the checksum of an IPv4 header.
pub(crate) fn fill_ipv4_checksum(packet: &mut [u8]) {
    let header_len = usize::from(packet[0] & 15) * 4;
    put16(packet, 10, 0);
    let sum = !ones_sum(&[&packet[..header_len]]);
    put16(packet, 10, usize::from(sum));
}

fn fill_transport_checksum(packet: &mut [u8], transport: usize, tcp: bool) {
    let field = transport + if tcp { 16 } else { 6 };
    put16(packet, field, 0);
    let len = packet.len() - transport;
    let end = [
        (len >> 24) as u8,
        (len >> 16) as u8,
        (len >> 8) as u8,
        len as u8,
        0,
        0,
        0,
        if tcp { 6 } else { 17 },
    ];
    let sum = !ones_sum(&[addresses(packet), &end, &packet[transport..]]);
    put16(packet, field, if sum == 0 && !tcp { 0xFFFF } else { usize::from(sum) });
}

fn addresses(packet: &[u8]) -> &[u8] {
    if is_v4(packet) { &packet[12..20] } else { &packet[8..40] }
}

/// A packet without its IPv4 identification if that means nothing, because the packet may not be
/// fragmented (RFC 6864): then duplicates in a row may come out with other ones.
pub(crate) fn without_idle_id(mut packet: Vec<u8>) -> Vec<u8> {
    if is_v4(&packet) && packet[6] & 0x40 != 0 {
        packet[4..6].fill(0);
        packet[10..12].fill(0);
    }
    packet
}

/// Cuts a TCP or UDP packet into packets of at most `gso_size` bytes of payload, all with full
/// checksums.
pub(crate) fn split(packet: &[u8], transport: usize, tcp: bool, gso_size: usize) -> Vec<Vec<u8>> {
    let headers = transport + if tcp { usize::from(packet[transport + 12] >> 4) * 4 } else { 8 };
    let payload = &packet[headers..];
    let count = payload.len().div_ceil(gso_size).max(1);
    let mut slices = Vec::new();
    for i in 0..count {
        let piece = &payload[i * gso_size..payload.len().min((i + 1) * gso_size)];
        let mut slice = [&packet[..headers], piece].concat();
        let total_len = slice.len();
        if is_v4(packet) {
            put16(&mut slice, 2, total_len);
            put16(&mut slice, 4, (be16(packet, 4) + i) % 65_536);
        } else {
            put16(&mut slice, 4, total_len - 40);
        }
        if tcp {
            let seq = u32::from_be_bytes([
                slice[transport + 4],
                slice[transport + 5],
                slice[transport + 6],
                slice[transport + 7],
            ]);
            let seq = seq.wrapping_add((i * gso_size) as u32);
            slice[transport + 4..transport + 8].copy_from_slice(&seq.to_be_bytes());
            if i > 0 {
                slice[transport + 13] &= 0x7F;
            }
            if i + 1 < count {
                slice[transport + 13] &= 0xF6;
            }
        } else {
            put16(&mut slice, transport + 4, total_len - transport);
        }
        fill_checksums(&mut slice, transport, tcp);
        slices.push(slice);
    }
    slices
}

/// Does what the kernel does with bytes that are written to a TUN device with a virtio header:
/// returns the packets as they would be sent over a wire. Panics if the header does not fit the
/// packet, as the kernel would refuse it.
pub(crate) fn deliver(bytes: &[u8]) -> Vec<Vec<u8>> {
    let le16 = |at: usize| usize::from(bytes[at + 1]) * 256 + usize::from(bytes[at]);
    let (flags, gso_type, hdr_len, gso_size, start, offset) =
        (bytes[0], bytes[1], le16(2), le16(4), le16(6), le16(8));
    let mut packet = bytes[10..].to_vec();
    if flags == 0 {
        assert_eq!((gso_type, hdr_len, gso_size, start, offset), (0, 0, 0, 0, 0));
        return vec![packet];
    }
    assert_eq!(flags, 1);
    let tcp = offset == 16;
    assert!(tcp || offset == 6, "a checksum field of TCP or UDP");
    let len = packet.len() - start;
    let end = [0, if tcp { 6 } else { 17 }, (len >> 8) as u8, len as u8];
    let pseudo = ones_sum(&[addresses(&packet), &end]);
    assert_eq!(
        be16(&packet, start + offset),
        usize::from(pseudo),
        "the field holds the sum of the pseudo header"
    );
    let headers = start + if tcp { usize::from(packet[start + 12] >> 4) * 4 } else { 8 };
    assert_eq!(hdr_len, headers);
    if gso_type == 0 {
        assert_eq!(gso_size, 0);
        fill_transport_checksum(&mut packet, start, tcp);
        return vec![packet];
    }
    let cwr = tcp && packet[start + 13] & 0x80 != 0;
    let expected = match (tcp, is_v4(&packet)) {
        (true, true) => 1,
        (true, false) => 4,
        (false, _) => 5,
    };
    assert_eq!(gso_type, expected | if cwr { 0x80 } else { 0 });
    assert!(gso_size > 0 && packet.len() - headers > gso_size, "a super-packet has more than one slice");
    split(&packet, start, tcp, gso_size)
}
