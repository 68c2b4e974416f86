//! Any bytes as an inner packet: nothing panics, and what is accepted keeps the promises of a
//! checked packet.

use vpnd_packet::{MAX_HEADERS, Packet, SourceFilter, checksum, mss, web};
use vpnd_proto::flows::{FlowKey, Flows, Opener};
use vpnd_proto::policy::{Destination, Policy, Principal};
use vpnd_proto::time::Time;

/// Checks one input.
pub(crate) fn run(data: &[u8]) {
    let Ok(packet) = Packet::parse(data) else { return };
    check_view(data, &packet);
    check_source(&packet);
    check_flows(&packet);
    let (policy, principal) = (Policy::without_rules(false), Principal::default());
    let _ = policy.decide(&principal, Destination::Campus, &packet, &|_| true);
    check_complete(data);
    check_clamp(data);
    let _ = web::answer(&packet, b"HTTP/1.1 302 Found\r\n\r\n", &mut [0; web::MAX_ANSWER]);
}

/// Each fragment belongs to a packet, and nothing else does. Nothing is a reply that no host has
/// asked for, but for one that answers what it itself says to the same host.
fn check_flows(packet: &Packet<'_>) {
    assert_eq!(FlowKey::of_fragment(packet).is_some(), packet.fragment().is_some());
    // A key of equal bytes has flows that collide, which no random one has.
    let flows = Flows::new(*b"no two are alike");
    let reply = FlowKey::of_reply(packet);
    assert!(reply.is_none_or(|key| !flows.knows(Time::ZERO, Opener::Client, &key)));
    flows.enter(Time::ZERO, Opener::Client, packet);
    let known = reply.is_some_and(|key| flows.knows(Time::ZERO, Opener::Client, &key));
    assert!(!known || reply.is_some_and(|key| key.opener == packet.src()));
}

fn check_view(data: &[u8], packet: &Packet<'_>) {
    assert_eq!(packet.bytes(), &data[..packet.total_len()]);
    assert!(packet.headers_len().is_none_or(|len| len <= packet.total_len().min(MAX_HEADERS)));
    assert_eq!(
        packet.transport_offset().is_none(),
        packet.fragment().is_some_and(|fragment| !fragment.is_first())
    );
    assert!(!packet.is_partial() || packet.ports().is_some());
    if let Some(tcp) = packet.tcp() {
        assert_eq!(tcp.header().len(), tcp.options().len() + 20);
        let _ = (tcp.seq(), tcp.ack(), tcp.flags(), tcp.window());
    }
    let _ = (packet.dscp(), packet.ecn(), packet.hop_limit(), packet.dont_fragment(), packet.icmp());
    // A shorter packet is truncated; added bytes are padding.
    assert!(Packet::parse(&data[..packet.total_len() - 1]).is_err());
    let padded = [data, &[0xFF; 3]].concat();
    assert_eq!(Packet::parse(&padded).expect("padding changes nothing").bytes(), packet.bytes());
}

fn check_source(packet: &Packet<'_>) {
    let src = packet.src();
    assert!(!src.is_multicast() && !src.is_unspecified() && !src.is_loopback());
    assert!(SourceFilter::new([src.into()]).permits(packet));
    assert_eq!(SourceFilter::new([packet.dst().into()]).permits(packet), packet.dst() == src);
}

fn check_complete(data: &[u8]) {
    let mut bytes = data.to_vec();
    checksum::complete(&mut bytes).expect("a packet that parses can be completed");
    let before = Packet::parse(data).expect("it parsed before");
    let after = Packet::parse(&bytes).expect("a completed packet still parses");
    assert!(!after.is_partial());
    assert_eq!((after.src(), after.dst(), after.ports()), (before.src(), before.dst(), before.ports()));
    assert!(!before.is_partial() || checksum::verify(&after));
}

fn check_clamp(data: &[u8]) {
    let mut bytes = data.to_vec();
    let was_right = checksum::verify(&Packet::parse(data).expect("it parsed before"));
    let changed = mss::clamp_mss(&mut bytes, 1300).expect("a packet that parses can be clamped");
    let after = Packet::parse(&bytes).expect("a clamped packet still parses");
    assert!(!was_right || checksum::verify(&after));
    assert_eq!(changed, bytes != data);
    assert_eq!(mss::clamp_mss(&mut bytes, 1300), Ok(false));
}
