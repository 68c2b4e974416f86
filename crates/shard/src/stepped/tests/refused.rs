//! Packets of a client that reaches the portal alone: refused at once, as often as errors may be
//! sent.

use vpnd_packet::{ICMP, Packet};
use vpnd_proto::plane::Access;
use vpnd_proto::policy::{ProfileId, RuleSet};

use super::accounting::{CAMPUS, CLIENT, Host, host, ip};
use super::*;

/// A client and its gateway, where the client is in this profile.
fn hosts(profile: ProfileId) -> (Host, Host) {
    let (client, mut gateway) = (host(Role::Client, &[]), host(Role::Gateway, &[]));
    let none = || RuleSet::without_rules(false).with_reach(&[]);
    let policy = Policy::of_profiles([(ProfileId::IMPLIED, none()), (ProfileId::WALLED, none())]);
    let principal = Principal::default().in_profile(profile);
    let principals = [(Slot { index: 0, generation: 0 }, principal)].into();
    gateway.command(Command::Access(Access { policy: Some(Arc::new(policy)), principals }));
    (client, gateway)
}

/// Has the client send these packets; returns those that come back to it.
fn answers(client: &mut Host, gateway: &mut Host, packets: &[(u8, &[u8])]) -> Vec<Vec<u8>> {
    let packets = packets
        .iter()
        .map(|(protocol, transport)| ip(VirtioHeader::default(), *protocol, CLIENT, CAMPUS, transport));
    client.tun().reads.borrow_mut().extend(packets);
    while client.transmit().unwrap() == Progress::More {}
    gateway.socket().inbox.borrow_mut().extend(client.socket().sent.take());
    while gateway.receive() == Progress::More {}
    client.socket().inbox.borrow_mut().extend(gateway.socket().sent.take());
    while client.receive() == Progress::More {}
    client.tun().packets.take()
}

const QUIC: &[u8] = &[0x9C, 0x40, 1, 0xBB, 0, 12, 0, 0, 1, 2, 3, 4];
const SYN: &[u8] = &[0x9C, 0x40, 1, 0xBB, 0, 0, 0, 7, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0];
const PING: &[u8] = &[8, 0, 0, 0, 0, 1, 0, 1];

#[test]
fn a_walled_client_is_refused_other_hosts_at_once() {
    let (mut client, mut gateway) = hosts(ProfileId::WALLED);
    let answers = answers(&mut client, &mut gateway, &[(17, QUIC), (6, SYN), (ICMP, PING)]);
    let [unreachable, reset] = &answers[..] else { panic!("{answers:?}") };
    let [unreachable, reset] = [unreachable, reset].map(|answer| Packet::parse(answer).unwrap());
    for answer in [&unreachable, &reset] {
        assert_eq!((answer.src(), answer.dst()), (CAMPUS.into(), CLIENT.into()));
    }
    assert_eq!(unreachable.icmp(), Some((3, 3)));
    let tcp = reset.tcp().unwrap();
    assert_eq!((tcp.flags(), tcp.ack()), (0x14, 8));
    assert_eq!(gateway.report().counters.dropped(DropReason::Policy), 3);
}

#[test]
fn other_clients_get_no_refusal() {
    let (mut client, mut gateway) = hosts(ProfileId::IMPLIED);
    assert_eq!(answers(&mut client, &mut gateway, &[(17, QUIC), (6, SYN)]), [[0_u8; 0]; 0]);
    assert_eq!(gateway.report().counters.dropped(DropReason::Policy), 2);
}

#[test]
fn refusals_are_few_however_much_is_sent() {
    let (mut client, mut gateway) = hosts(ProfileId::WALLED);
    let refused = answers(&mut client, &mut gateway, &[(6, SYN); 1_000]).len();
    // More than the burst only while this takes long.
    assert!((32..500).contains(&refused), "{refused}");
    assert_eq!(gateway.report().counters.dropped(DropReason::Policy), 1_000);
}
