//! Contents stay whole and in order, and memory is bounded, whatever comes.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use vpnd_sys::udp::EcnCodepoint;

const ANY: usize = usize::MAX;

fn slot(index: u32) -> Owner {
    Owner::Session(Slot { index, generation: 0 })
}

fn meta(host: u8, len: usize, stride: usize) -> RecvMeta {
    let mut meta = RecvMeta::default();
    (meta.addr, meta.len, meta.stride) = (([192, 0, 2, host], 4500).into(), len, stride);
    meta
}

fn buffer() -> Box<[u8]> {
    vec![0; BUFFER_LEN].into_boxed_slice()
}

/// Puts in a message of such bytes. Returns how many datagrams were dropped for it.
fn push(backlog: &mut Backlog<RecvMeta>, host: u8, byte: u8, len: usize, stride: usize) -> usize {
    let mut buffer = buffer();
    buffer[..len].fill(byte);
    backlog.push(Time::ZERO, slot(host.into()), meta(host, len, stride), &mut buffer)
}

/// Takes out as many messages as there are buffers.
fn serve(backlog: &mut Backlog<RecvMeta>, enough: usize, most: usize) -> Vec<(RecvMeta, Vec<u8>)> {
    let mut buffers: Vec<_> = (0..most).map(|_| buffer()).collect();
    let mut metas = vec![RecvMeta::default(); most];
    let (count, _) = backlog.serve(Time::ZERO, enough, &mut buffers, &mut metas);
    metas.truncate(count);
    metas.into_iter().zip(buffers).map(|(meta, buffer)| (meta, buffer[..meta.len].to_vec())).collect()
}

#[test]
fn messages_of_a_session_that_fit_together_become_one() {
    let mut backlog = Backlog::new();
    for (byte, len) in [(1, 3_000), (2, 1_000), (3, 500), (4, 500)] {
        push(&mut backlog, 1, byte, len, 1_000.min(len));
    }
    push(&mut backlog, 2, 5, 1_000, 1_000);
    let mut marked = meta(2, 1_000, 1_000);
    marked.ecn = Some(EcnCodepoint::Ce);
    backlog.push(Time::ZERO, slot(2), marked, &mut buffer());
    let shapes: Vec<_> =
        serve(&mut backlog, ANY, 32).iter().map(|(meta, _)| (meta.len, meta.stride)).collect();
    assert_eq!(shapes, [(4_000, 1_000), (1_000, 500), (1_000, 1_000), (1_000, 1_000)]);
    assert!(backlog.is_empty() && backlog.store.is_unused());
}

#[test]
fn a_session_shows_congestion_if_its_own_messages_wait_and_not_if_others_do() {
    let mut backlog = Backlog::new();
    let at = |ms| Time::ZERO + std::time::Duration::from_millis(ms);
    let mut buffers = [buffer()];
    let mut marked = BTreeMap::<_, usize>::new();
    // Two come for one that is served, so the first session's messages wait longer and longer; the
    // other sends one in 50.
    for ms in 0..600 {
        let hosts: &[u8] = if ms % 50 == 0 { &[1, 1, 2] } else { &[1, 1] };
        for host in hosts {
            backlog.push(at(ms), slot((*host).into()), meta(*host, 60_000, 1_000), &mut buffers[0]);
        }
        let mut metas = [RecvMeta::default()];
        let (count, congested) = backlog.serve(at(ms), 1, &mut buffers, &mut metas);
        assert!(count == 1 && congested <= 1);
        *marked.entry((metas[0].addr.ip().to_string(), congested)).or_default() += 1;
    }
    let marks = |host: &str, congested| marked.get(&(host.to_owned(), congested)).copied().unwrap_or(0);
    assert!((5..40).contains(&marks("192.0.2.1", 1)), "{marked:?}");
    assert_eq!((marks("192.0.2.2", 0), marks("192.0.2.2", 1)), (12, 0), "{marked:?}");
}

#[test]
fn long_buffers_are_made_when_they_are_needed_and_used_again() {
    let mut backlog = Backlog::new();
    push(&mut backlog, 1, 1, 1_000, 1_000);
    assert_eq!(backlog.store.made(), 0);
    for _ in 0..3 {
        for host in [1, 2, 3] {
            push(&mut backlog, host, 2, 40_000, 1_000);
        }
        assert_eq!(backlog.store.made(), 3);
        while !serve(&mut backlog, ANY, 8).is_empty() {}
    }
}

#[test]
fn the_longest_packet_of_a_tun_device_stays_whole_and_alone() {
    let mut backlog = Backlog::new();
    let mut read = buffer();
    for (byte, len) in [(1, MAX_READ_LEN), (2, 100), (3, 100)] {
        read[..len].fill(byte);
        assert_eq!(backlog.push(Time::ZERO, slot(1), Read { len, packets: 1 }, &mut read), 0);
    }
    for (byte, len) in [(1, MAX_READ_LEN), (2, 100), (3, 100)] {
        let (packet, _) = backlog.pop(Time::ZERO, &mut read).unwrap();
        assert_eq!(packet.len, len);
        assert!(read[..len].iter().all(|at| *at == byte));
    }
    assert!(backlog.is_empty() && backlog.store.is_unused());
}

#[test]
fn a_turn_ends_when_there_is_enough() {
    let mut backlog = Backlog::new();
    for host in 0..20 {
        push(&mut backlog, host, 0, 20_000, 1_000);
    }
    assert_eq!(serve(&mut backlog, 100_000, 32).len(), 3, "each costs 40,000");
    assert_eq!(serve(&mut backlog, ANY, 5).len(), 5);
}

#[test]
fn a_flood_of_short_messages_leaves_room_for_long_ones_and_the_other_way_round() {
    for (short, long) in [(60, 60_000), (60_000, 60)] {
        let mut backlog = Backlog::new();
        let mut dropped = 0;
        for _ in 0..10_000 {
            dropped += push(&mut backlog, 1, 1, short, short);
        }
        assert!(dropped > 5_000 && dropped < 10_000, "{dropped}");
        let before: usize = (0..8).map(|host| push(&mut backlog, 2 + host, 2, long, long)).sum();
        // A long one takes a whole buffer, or blocks in the place of as many short ones.
        assert!(before <= 8 * 64_usize.div_ceil(2), "{before}");
        let served = serve(&mut backlog, ANY, 32);
        assert_eq!(served.iter().filter(|(meta, _)| meta.len == long).count(), 8);
    }
}

#[test]
fn only_what_has_most_room_is_dropped() {
    let mut backlog = Backlog::new();
    for host in 2..10 {
        assert_eq!(push(&mut backlog, host, 0, 1_400, 1_400), 0);
    }
    for _ in 0..500 {
        push(&mut backlog, 1, 0, 64_400, 1_400);
    }
    assert_eq!(push(&mut backlog, 1, 0, 64_400, 1_400), 46, "datagrams are counted");
    let served = serve(&mut backlog, ANY, 32);
    let others = served.iter().filter(|(meta, _)| meta.addr != self::meta(1, 0, 0).addr);
    assert_eq!(others.count(), 8);
}

#[test]
fn strangers_share_a_few_queues() {
    let backlog = Backlog::<RecvMeta>::new();
    let mut flows = BTreeMap::<_, usize>::new();
    for host in 0..=u8::MAX {
        let from = IpAddr::from([198, 51, 100, host]);
        for owner in [Owner::Unproven(from), Owner::PassedOn(from)] {
            let is_passed_on = matches!(owner, Owner::PassedOn(_));
            *flows.entry((backlog.flow(owner), is_passed_on)).or_default() += 1;
        }
    }
    assert!(flows.keys().all(|(flow, _)| *flow < FIRST_SESSION));
    assert_eq!(flows.len() as u32, FIRST_SESSION, "none is both, {flows:?}");
    let flow = |address: &str| backlog.flow(Owner::Unproven(address.parse().unwrap()));
    assert_eq!(flow("2001:db8:1:2::1"), flow("2001:db8:1:2:ffff::9"), "one network");
    assert_eq!(flow("::ffff:198.51.100.7"), flow("198.51.100.7"));
}

#[derive(Clone, Debug)]
enum Step {
    Push { host: u8, datagrams: usize, stride: usize, last: usize },
    Serve { enough: usize, most: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let stride = prop_oneof![Just(1_448_usize), Just(100), 1..9_000_usize];
    prop_oneof![
        4 => (0..4_u8, 1..70_usize, stride, 1..9_000_usize)
            .prop_map(|(host, datagrams, stride, last)| Step::Push { host, datagrams, stride, last }),
        1 => (0..300_000_usize, 1..32_usize).prop_map(|(enough, most)| Step::Serve { enough, most }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn datagrams_stay_whole_and_in_order(steps in prop::collection::vec(step(), 1..250)) {
        let mut backlog = Backlog::new();
        // For each host the datagrams that came, by the number that they repeat and their length.
        let mut sent = BTreeMap::<u8, VecDeque<(u8, usize)>>::new();
        let (mut came, mut dropped, mut left) = (0, 0, 0);
        let mut number = 0_u8;
        let rest = (0..MAX_MESSAGES).step_by(32).map(|_| Step::Serve { enough: ANY, most: 32 });
        for step in steps.into_iter().chain(rest) {
            match step {
                Step::Push { host, datagrams, stride, last } => {
                    let mut buffer = buffer();
                    let (mut len, sent) = (0, sent.entry(host).or_default());
                    for at in 0..datagrams {
                        let datagram = if at + 1 == datagrams { last.min(stride) } else { stride };
                        if len + datagram > MESSAGE_LEN {
                            break;
                        }
                        number = number.wrapping_add(1);
                        buffer[len..len + datagram].fill(number);
                        sent.push_back((number, datagram));
                        len += datagram;
                        came += 1;
                    }
                    dropped += backlog.push(Time::ZERO, slot(host.into()), meta(host, len, stride), &mut buffer);
                    prop_assert_eq!(buffer.len(), BUFFER_LEN);
                }
                Step::Serve { enough, most } => {
                    for (meta, bytes) in serve(&mut backlog, enough, most) {
                        let std::net::IpAddr::V4(host) = meta.addr.ip() else { panic!("{meta:?}") };
                        let sent = sent.get_mut(&host.octets()[3]).unwrap();
                        for datagram in bytes.chunks(meta.stride) {
                            left += 1;
                            let found = (datagram[0], datagram.len());
                            prop_assert!(datagram.iter().all(|byte| *byte == found.0));
                            // Those before it were dropped.
                            while sent.pop_front().expect("a datagram that came") != found {}
                        }
                    }
                }
            }
        }
        prop_assert_eq!(came, left + dropped);
        prop_assert!(backlog.is_empty() && backlog.store.is_unused());
    }
}
