//! The program against the rule it stands for, by an interpreter and in the kernel.

use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use proptest::prelude::*;
use vpnd_proto::wire::{Index, PacketClass};

use super::*;
use crate::udp::{
    BATCH_SIZE, QuicMember, RecvMeta, ReuseportGroup, SocketOptions, Steering, bind_reuseport_group,
};

/// The socket that should receive `payload`: the answer of [`steering_program`] by the rule instead
/// of by the program. Index 0 is QUIC, `1 + s` is shard `s`.
fn socket_for(payload: &[u8], shards: usize, clients: Clients) -> usize {
    let index: Option<[u8; 4]> =
        payload.get(INDEX_OFFSET as usize..INDEX_END as usize).and_then(|bytes| bytes.try_into().ok());
    let is_data = match PacketClass::of(payload) {
        PacketClass::Data => true,
        PacketClass::WireGuardData => clients == Clients::OwnAndWireGuard,
        PacketClass::Quic | PacketClass::WireGuardHandshake | PacketClass::Fleet | PacketClass::Unknown => {
            false
        }
    };
    match index.filter(|_| is_data) {
        Some(index) => 1 + Index(u32::from_le_bytes(index)).shard(shards),
        None => 0,
    }
}

/// Runs a program as the kernel does: a load past the end ends it with 0.
fn interpret(program: &[Instruction], payload: &[u8]) -> u32 {
    let mut accumulator = 0;
    let mut at = 0;
    loop {
        let instruction = program[at];
        at += 1;
        match instruction {
            Instruction::LoadLen => accumulator = payload.len() as u32,
            Instruction::LoadByte(offset) => match payload.get(offset as usize) {
                Some(byte) => accumulator = u32::from(*byte),
                None => return 0,
            },
            Instruction::LoadWord(offset) => match payload.get(offset as usize..offset as usize + 4) {
                Some(word) => accumulator = u32::from_be_bytes(word.try_into().unwrap()),
                None => return 0,
            },
            Instruction::And(k) => accumulator &= k,
            Instruction::Mod(k) => accumulator %= k,
            Instruction::Add(k) => accumulator += k,
            Instruction::JumpIfEqual { value, yes, no } => {
                at += usize::from(if accumulator == value { yes } else { no });
            }
            Instruction::JumpIfAtLeast { value, yes, no } => {
                at += usize::from(if accumulator >= value { yes } else { no });
            }
            Instruction::ReturnA => return accumulator,
            Instruction::Return(k) => return k,
        }
    }
}

fn datagram(first: u8, index: u32) -> Vec<u8> {
    let mut payload = vec![first, 0, 0, 0];
    payload.extend_from_slice(&index.to_le_bytes());
    payload.extend_from_slice(&[7; 24]);
    payload
}

fn clients() -> impl Strategy<Value = Clients> {
    prop_oneof![Just(Clients::Own), Just(Clients::OwnAndWireGuard)]
}

proptest! {
    #[test]
    fn program_and_rule_agree(
        first in prop_oneof![0..8u8, any::<u8>()],
        rest in prop_oneof![prop::collection::vec(0..2u8, 0..40), prop::collection::vec(any::<u8>(), 0..40)],
        shards in 1..=MAX_SHARDS,
        clients in clients(),
    ) {
        let payload: Vec<u8> = std::iter::once(first).chain(rest).collect();
        let answer = interpret(&steering_program(shards, clients), &payload) as usize;
        prop_assert_eq!(answer, socket_for(&payload, shards, clients));
    }

    #[test]
    fn data_is_steered_to_the_shard_of_its_index(
        first in 0x80u8..0xC0, index: u32, shards in 1..=MAX_SHARDS, clients in clients()
    ) {
        let socket = interpret(&steering_program(shards, clients), &datagram(first, index)) as usize;
        prop_assert_eq!(socket, 1 + (index % 256) as usize % shards);
    }

    #[test]
    fn wireguards_data_do_so_only_where_its_clients_are_served(index: u32, shards in 1..=MAX_SHARDS) {
        let socket = |clients| interpret(&steering_program(shards, clients), &datagram(4, index)) as usize;
        prop_assert_eq!(socket(Clients::OwnAndWireGuard), 1 + (index % 256) as usize % shards);
        prop_assert_eq!(socket(Clients::Own), 0);
    }

    #[test]
    fn all_other_datagrams_are_steered_to_quic(first: u8, index: u32, shards in 1..=MAX_SHARDS, clients in clients()) {
        prop_assume!(!(0x80..0xC0).contains(&first) && first != 4);
        prop_assert_eq!(interpret(&steering_program(shards, clients), &datagram(first, index)), 0);
    }
}

#[test]
fn datagrams_too_short_for_an_index_are_steered_to_quic() {
    for first in [0x80, 4] {
        let whole = datagram(first, 2);
        let program = steering_program(4, Clients::OwnAndWireGuard);
        for len in 0..8 {
            assert_eq!(interpret(&program, &whole[..len]), 0, "{len} bytes");
        }
        assert_eq!(interpret(&program, &whole[..8]), 3);
    }
}

fn wait_readable(socket: &impl AsFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec { tv_sec: 2, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 1
}

/// QUIC's own member.
fn quic(group: &ReuseportGroup) -> &UdpSocket {
    let QuicMember::Own(socket) = &group.quic else { panic!("the program is in force") };
    socket
}

/// The payloads that have arrived at one member, in order.
fn drain(group: &ReuseportGroup, member: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    let mut buffer = vec![0u8; 65_536];
    if member == 0 {
        while let Ok(len) = quic(group).recv(&mut buffer) {
            got.push(buffer[..len].to_vec());
        }
        return got;
    }
    let mut meta = [RecvMeta::default(); BATCH_SIZE];
    while let Ok(count) = group.shards[member - 1].try_recv(&mut [IoSliceMut::new(&mut buffer)], &mut meta) {
        assert_eq!(count, 1);
        got.extend(buffer[..meta[0].len].chunks(meta[0].stride).map(<[u8]>::to_vec));
    }
    got
}

/// Sends one datagram of each kind to a live group and checks at which member each arrives.
fn kernel_delivers(listen: &str, target: &str, clients: Clients) {
    const SHARDS: usize = 3;
    let group = bind_reuseport_group(
        listen.parse().unwrap(),
        SHARDS,
        Steering::Program(clients),
        &SocketOptions::default(),
    )
    .unwrap();
    assert!(group.steering_refused.is_none(), "{:?}", group.steering_refused);
    let port = group.shards[0].local_addr().unwrap().port();
    let target: SocketAddr = target.replace("PORT", &port.to_string()).parse().unwrap();
    let sent: Vec<Vec<u8>> = [0x80, 0xBF, 0x40, 0xC3, 0x01, 0x04, 0x00]
        .into_iter()
        .flat_map(|first| {
            [0, 1, 2, 3, 255, 256, 0x0102_0304, 0xAABB_CCDD].map(|index| datagram(first, index))
        })
        .chain([vec![], vec![0x80], datagram(0x80, 1)[..7].to_vec(), datagram(0x80, 1)[..8].to_vec()])
        .collect();
    for payload in &sent {
        // A fresh port for each: a hash of the addresses would spread them over the group.
        let sender = UdpSocket::bind(if target.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" }).unwrap();
        sender.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        sender.send_to(payload, target).unwrap();
        let member = socket_for(payload, SHARDS, clients);
        let arrived = match member {
            0 => wait_readable(quic(&group)),
            shard => wait_readable(&group.shards[shard - 1]),
        };
        assert!(arrived, "{payload:?} did not reach member {member}");
        assert_eq!(drain(&group, member), std::slice::from_ref(payload));
        for other in (0..=SHARDS).filter(|other| *other != member) {
            assert!(drain(&group, other).is_empty(), "{payload:?} also reached member {other}");
        }
    }
}

#[test]
fn the_kernel_steers_ipv4() {
    kernel_delivers("127.0.0.1:0", "127.0.0.1:PORT", Clients::Own);
    kernel_delivers("127.0.0.1:0", "127.0.0.1:PORT", Clients::OwnAndWireGuard);
}

#[test]
fn the_kernel_steers_ipv6() {
    kernel_delivers("[::1]:0", "[::1]:PORT", Clients::OwnAndWireGuard);
}

#[test]
fn the_kernel_steers_both_on_one_port() {
    kernel_delivers("[::]:0", "127.0.0.1:PORT", Clients::OwnAndWireGuard);
    kernel_delivers("[::]:0", "[::1]:PORT", Clients::OwnAndWireGuard);
}

#[test]
fn a_socket_without_a_group_is_refused() {
    let alone = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(attach(&alone, 2, Clients::Own).is_err());
}
