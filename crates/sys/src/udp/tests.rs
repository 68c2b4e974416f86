//! Sockets over loopback.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use super::*;
use crate::bpf::Clients;

fn options() -> SocketOptions {
    SocketOptions { recv_buffer: 1 << 20, send_buffer: 1 << 20, ..SocketOptions::default() }
}

fn pair() -> (ShardSocket, ShardSocket, SocketAddr) {
    let sender = ShardSocket::bind("127.0.0.1:0".parse().unwrap(), &options()).unwrap();
    let receiver = ShardSocket::bind("127.0.0.1:0".parse().unwrap(), &options()).unwrap();
    let address = receiver.local_addr().unwrap();
    (sender, receiver, address)
}

fn transmit(destination: SocketAddr, contents: &[u8]) -> Transmit<'_> {
    Transmit {
        destination,
        traffic_class: 0,
        contents,
        segment_size: None,
        src_ip: None,
        may_fragment: false,
    }
}

/// All datagrams that arrive within a moment, until `count` are there, and how many reads it took.
fn receive(socket: &ShardSocket, count: usize) -> (Vec<Vec<u8>>, Vec<RecvMeta>) {
    let mut buffers = vec![vec![0u8; 65_536]; BATCH_SIZE];
    let (mut got, mut metas) = (Vec::new(), Vec::new());
    for _ in 0..2000 {
        let mut slices: Vec<IoSliceMut<'_>> = buffers.iter_mut().map(|b| IoSliceMut::new(b)).collect();
        let mut meta = [RecvMeta::default(); BATCH_SIZE];
        match socket.try_recv(&mut slices, &mut meta) {
            Ok(filled) => {
                for (buffer, meta) in buffers.iter().zip(&meta[..filled]) {
                    got.extend(buffer[..meta.len].chunks(meta.stride).map(<[u8]>::to_vec));
                    metas.push(*meta);
                }
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        if got.len() >= count {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    (got, metas)
}

fn numbered(segments: usize, size: usize) -> Vec<u8> {
    (0..segments).flat_map(|n| vec![n as u8; size]).collect()
}

#[test]
fn fragments_are_allowed_for_one_datagram_only() {
    for address in ["127.0.0.1:0", "[::]:0"] {
        let sender = ShardSocket::bind(address.parse().unwrap(), &options()).unwrap();
        let receiver = ShardSocket::bind("[::1]:0".parse().unwrap(), &options()).unwrap();
        let (_, v4, to_v4) = pair();
        let is_v6 = sender.local_addr().unwrap().is_ipv6();
        let (receiver, to) = if is_v6 { (&receiver, receiver.local_addr().unwrap()) } else { (&v4, to_v4) };
        // Longer than IPv6 carries in one piece.
        let contents = vec![7; 1_400];
        assert_eq!(sender.try_send_fragmented(&transmit(to, &contents)), SendOutcome::Sent);
        assert_eq!(receive(receiver, 1).0, [contents]);
        let mode = sockopt::ip_mtu_discover(&sender.socket).unwrap();
        assert_eq!(mode, sockopt::Ipv4PathMtuDiscovery::PROBE);
        if is_v6 {
            let mode = sockopt::ipv6_mtu_discover(&sender.socket).unwrap();
            assert_eq!(mode, sockopt::Ipv6PathMtuDiscovery::PROBE);
        }
    }
}

#[test]
fn a_batch_arrives_as_its_datagrams() {
    let (sender, receiver, address) = pair();
    assert!(sender.max_gso_segments() > 1, "this kernel has UDP GSO");
    let mut contents = numbered(40, 1200);
    contents.truncate(39 * 1200 + 17);
    let batch = Transmit { segment_size: Some(1200), ..transmit(address, &contents) };
    assert_eq!(sender.try_send(&batch), SendOutcome::Sent);
    let (got, metas) = receive(&receiver, 40);
    assert_eq!(got, contents.chunks(1200).map(<[u8]>::to_vec).collect::<Vec<_>>());
    assert!(metas.len() < 40, "loopback keeps the batch together for a receiver with UDP GRO");
    assert_eq!(metas[0].addr, sender.local_addr().unwrap());
}

#[test]
fn several_batches_go_with_one_call_each_to_its_own_end_and_from_its_own_source() {
    for local in ["127.0.0.1", "::1"] {
        let ip: IpAddr = local.parse().unwrap();
        let bind = || ShardSocket::bind(SocketAddr::new(ip, 0), &options()).unwrap();
        let (sender, first, second) = (bind(), bind(), bind());
        let contents = numbered(5, 700);
        let transmits = [
            Transmit { segment_size: Some(700), ..transmit(first.local_addr().unwrap(), &contents) },
            Transmit { src_ip: Some(ip), ..transmit(second.local_addr().unwrap(), &contents[..90]) },
            Transmit {
                segment_size: Some(600),
                src_ip: Some(ip),
                ..transmit(second.local_addr().unwrap(), &contents[..1300])
            },
        ];
        assert_eq!(sender.try_send_many(&transmits), 3);
        assert_eq!(receive(&first, 5).0, contents.chunks(700).map(<[u8]>::to_vec).collect::<Vec<_>>());
        let (got, metas) = receive(&second, 4);
        assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [90, 600, 600, 100], "{local}");
        assert_eq!(metas[0].addr, sender.local_addr().unwrap());
    }
}

#[test]
fn a_call_for_several_ends_before_what_is_refused() {
    let (sender, receiver, address) = pair();
    let stranger = Some("203.0.113.9".parse().unwrap());
    let transmits = [
        transmit(address, b"one"),
        Transmit { src_ip: stranger, ..transmit(address, b"two") },
        transmit(address, b"three"),
    ];
    assert_eq!(sender.try_send_many(&transmits), 1);
    assert!(matches!(sender.try_send(&transmits[1]), SendOutcome::Dropped { .. }));
    assert_eq!(sender.try_send_many(&transmits[2..]), 1);
    assert_eq!(sender.try_send_many(&transmits[1..]), 0);
    assert_eq!(receive(&receiver, 2).0, [b"one".to_vec(), b"three".to_vec()]);
}

#[test]
fn a_call_for_several_leaves_batches_to_others_where_the_kernel_does_not_cut() {
    let (sender, address) = (
        ShardSocket::bind("127.0.0.1:0".parse().unwrap(), &SocketOptions { gso: false, ..options() })
            .unwrap(),
        pair().2,
    );
    let contents = numbered(2, 100);
    let cut = Transmit { segment_size: Some(100), ..transmit(address, &contents) };
    assert_eq!(sender.try_send_many(&[transmit(address, b"x"), cut, transmit(address, b"y")]), 1);
}

#[test]
fn the_largest_batch_is_taken() {
    let (sender, receiver, address) = pair();
    let contents = numbered(MAX_GSO_BYTES.div_ceil(1400), 1400);
    let batch = Transmit { segment_size: Some(1400), ..transmit(address, &contents[..MAX_GSO_BYTES]) };
    assert_eq!(sender.try_send(&batch), SendOutcome::Sent);
    assert_eq!(receive(&receiver, 47).0.concat(), &contents[..MAX_GSO_BYTES]);
}

#[test]
fn the_kernel_leaves_the_largest_batch_in_one_piece() {
    let (sender, receiver, address) = pair();
    // 46 datagrams of this length fit 65,507 bytes, but not with all headers.
    for len in [1424, 1400, 1472] {
        let contents = vec![7; MAX_GSO_BYTES / len * len];
        let batch = Transmit { segment_size: Some(len), ..transmit(address, &contents) };
        assert_eq!(sender.try_send(&batch), SendOutcome::Sent);
        let (got, metas) = receive(&receiver, contents.len() / len);
        // A batch that was cut on the way arrives in many pieces: loopback merges nothing.
        assert_eq!((got.len(), metas.len()), (contents.len() / len, 1), "datagrams of {len} bytes");
    }
}

#[test]
fn switched_off_offloads_change_nothing_but_the_speed() {
    let plain = SocketOptions { gso: false, gro: false, ..options() };
    let sender = ShardSocket::bind("127.0.0.1:0".parse().unwrap(), &plain).unwrap();
    let receiver = ShardSocket::bind("127.0.0.1:0".parse().unwrap(), &plain).unwrap();
    assert_eq!((sender.offloads().gso_segments, sender.offloads().gro), (1, false));
    let contents = numbered(40, 1200);
    let batch = Transmit { segment_size: Some(1200), ..transmit(receiver.local_addr().unwrap(), &contents) };
    assert_eq!(sender.try_send(&batch), SendOutcome::Sent);
    let (got, metas) = receive(&receiver, 40);
    assert_eq!(got, contents.chunks(1200).map(<[u8]>::to_vec).collect::<Vec<_>>());
    assert_eq!(metas.len(), 40, "each datagram came by itself");
}

#[test]
fn a_missing_source_address_keeps_the_offload() {
    // IPv6: recent kernels answer the same mistake in IPv4 with "unreachable", which blames no
    // offload anyway.
    let sender = ShardSocket::bind("[::1]:0".parse().unwrap(), &options()).unwrap();
    let address = sender.local_addr().unwrap();
    let foreign: IpAddr = "2001:db8::7".parse().unwrap();
    let contents = numbered(4, 1200);
    let batch = Transmit { segment_size: Some(1200), src_ip: Some(foreign), ..transmit(address, &contents) };
    let before = sender.max_gso_segments();
    assert!(before > 1);
    assert_eq!(sender.try_send(&batch), SendOutcome::Dropped { reason: DropReason::SourceGone, lost: 4 });
    let single = Transmit { src_ip: Some(foreign), ..transmit(address, b"x") };
    assert_eq!(sender.try_send(&single), SendOutcome::Dropped { reason: DropReason::SourceGone, lost: 1 });
    assert_eq!(sender.max_gso_segments(), before);
    assert!(!sender.offloads().gso_gave_up);
}

#[test]
fn a_refused_offload_is_given_up_for_one_destination_and_nothing_is_lost() {
    let (sender, receiver, address) = pair();
    let other = ShardSocket::bind("127.0.0.2:0".parse().unwrap(), &options()).unwrap();
    // More segments than the kernel takes at once (UDP_MAX_SEGMENTS) are refused with EINVAL, as by
    // a driver without the offload, while each datagram by itself passes.
    let contents = numbered(200, 100);
    let batch = Transmit { segment_size: Some(100), ..transmit(address, &contents) };
    assert_eq!(sender.try_send(&batch), SendOutcome::Sent);
    assert_eq!(receive(&receiver, 200).0, contents.chunks(100).map(<[u8]>::to_vec).collect::<Vec<_>>());
    assert!(sender.offloads().gso_gave_up);
    assert!(!sender.segments_to(address) && sender.segments_to(other.local_addr().unwrap()));

    let batch = Transmit { segment_size: Some(100), ..transmit(address, &contents[..300]) };
    let to_other = Transmit { destination: other.local_addr().unwrap(), ..batch.clone() };
    assert_eq!(sender.try_send_many(&[to_other, batch.clone()]), 1, "one is to be cut here");
    assert_eq!(sender.try_send(&batch), SendOutcome::Sent);
    assert_eq!(receive(&receiver, 3).1.len(), 3, "each by itself");
    assert_eq!(receive(&other, 3).1.len(), 1, "the kernel cuts for the other");
    assert!(sender.max_gso_segments() > 1);
}

#[test]
fn a_destination_that_refuses_batches_is_sent_single_datagrams_by_all_shards() {
    let (sender, receiver, address) = pair();
    let other = ShardSocket::bind("127.0.0.2:0".parse().unwrap(), &options()).unwrap();
    let sockets = [sender, ShardSocket::bind("127.0.0.1:0".parse().unwrap(), &options()).unwrap()];
    let unsteered = Some("in a test".to_owned());
    let quic = ShardSocket::bind("127.0.0.1:0".parse().unwrap(), &options()).unwrap();
    let descriptors = sockets.into_iter().chain([quic]).map(OwnedFd::from).collect();
    let group = ReuseportGroup::adopt(descriptors, &options(), unsteered).unwrap();

    let contents = numbered(4, 1200);
    group.shards[0].singles.insert(address.ip(), Instant::now());
    for shard in &group.shards {
        let batch = Transmit { segment_size: Some(1200), ..transmit(address, &contents) };
        let to_other = Transmit { destination: other.local_addr().unwrap(), ..batch.clone() };
        assert_eq!(
            (shard.try_send(&batch), shard.try_send(&to_other)),
            (SendOutcome::Sent, SendOutcome::Sent)
        );
        assert_eq!(receive(&receiver, 4).1.len(), 4, "each by itself");
        assert_eq!(receive(&other, 4).1.len(), 1, "the kernel cuts for the other");
        let offloads = shard.offloads();
        assert!(offloads.gso_gave_up && offloads.gso_segments > 1);
    }
}

#[test]
fn a_short_last_datagram_that_passes_blames_no_offload() {
    crate::testing::in_namespace(|| {
        crate::testing::run("ip", &["link", "set", "lo", "mtu", "1300"]);
        let sender = ShardSocket::bind("[::1]:0".parse().unwrap(), &options()).unwrap();
        let receiver = ShardSocket::bind("[::1]:0".parse().unwrap(), &options()).unwrap();
        let contents = &numbered(4, 1400)[..4_300];
        let batch =
            Transmit { segment_size: Some(1400), ..transmit(receiver.local_addr().unwrap(), contents) };
        // The state after EINVAL, with which kernels before 6.14 refuse a batch above the MTU.
        let outcome = sender.without_offload(&batch, 1400);
        assert_eq!(outcome, SendOutcome::Dropped { reason: DropReason::TooBig, lost: 3 });
        assert_eq!(receive(&receiver, 1).0, [contents[4_200..].to_vec()], "the last one passes");
        assert!(sender.segments_to(batch.destination) && !sender.offloads().gso_gave_up);
    });
}

#[test]
fn failures_are_classified() {
    let (sender, _receiver, address) = pair();
    let big = vec![0; 65_508];
    assert_eq!(
        sender.try_send(&transmit(address, &big)),
        SendOutcome::Dropped { reason: DropReason::TooBig, lost: 1 }
    );
    let broadcast = "255.255.255.255:9".parse().unwrap();
    assert_eq!(
        sender.try_send(&transmit(broadcast, b"x")),
        SendOutcome::Dropped { reason: DropReason::Filtered, lost: 1 }
    );
    let errors = [
        (Errno::AGAIN, SendOutcome::WouldBlock { done: 0, lost: 0 }),
        (Errno::MSGSIZE, SendOutcome::Dropped { reason: DropReason::TooBig, lost: 1 }),
        (Errno::NOBUFS, SendOutcome::Dropped { reason: DropReason::NoBuffers, lost: 1 }),
        (Errno::CONNREFUSED, SendOutcome::Dropped { reason: DropReason::Refused, lost: 1 }),
        (Errno::PERM, SendOutcome::Dropped { reason: DropReason::Filtered, lost: 1 }),
        (Errno::NETUNREACH, SendOutcome::Dropped { reason: DropReason::Unreachable, lost: 1 }),
        (Errno::INVAL, SendOutcome::Dropped { reason: DropReason::Other, lost: 1 }),
    ];
    for (errno, outcome) in errors {
        assert_eq!(classify_send(&errno.into(), &transmit(address, b"x")), outcome, "{errno:?}");
    }
}

#[test]
fn a_full_buffer_reports_how_much_was_sent() {
    let small = SocketOptions { send_buffer: 1, gso: false, ..options() };
    crate::testing::in_namespace(move || {
        // No host answers address resolution on this device, so the datagrams wait in the socket's
        // buffer.
        crate::testing::run("ip", &["link", "add", "vp0", "type", "veth", "peer", "name", "vp1"]);
        crate::testing::run("ip", &["addr", "add", "192.0.2.1/24", "dev", "vp0"]);
        crate::testing::run("ip", &["link", "set", "vp0", "up"]);
        crate::testing::run("ip", &["link", "set", "vp1", "up"]);
        let sender = ShardSocket::bind("192.0.2.1:0".parse().unwrap(), &small).unwrap();
        let contents = numbered(50, 1200);
        let batch =
            Transmit { segment_size: Some(1200), ..transmit("192.0.2.2:9".parse().unwrap(), &contents) };
        let SendOutcome::WouldBlock { done: sent, lost: 0 } = sender.try_send(&batch) else {
            panic!("60 kB can't fit the smallest buffer");
        };
        assert!(sent > 0 && sent < contents.len() && sent % 1200 == 0, "{sent}");
    });
}

#[test]
fn the_answer_leaves_from_the_address_that_was_asked() {
    let server = ShardSocket::bind("0.0.0.0:0".parse().unwrap(), &options()).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let asked = SocketAddr::from(([127, 0, 0, 9], server.local_addr().unwrap().port()));
    client.send_to(b"ping", asked).unwrap();
    let (_, metas) = receive(&server, 1);
    assert_eq!(metas[0].dst_ip, Some(asked.ip()));
    let answer = Transmit { src_ip: metas[0].dst_ip, ..transmit(metas[0].addr, b"pong") };
    assert_eq!(server.try_send(&answer), SendOutcome::Sent);
    assert_eq!(client.recv_from(&mut [0; 16]).unwrap(), (4, asked));
}

#[test]
fn congestion_marks_pass_both_ways() {
    for local in ["127.0.0.1", "::1"] {
        let bind = || ShardSocket::bind(SocketAddr::new(local.parse().unwrap(), 0), &options()).unwrap();
        let (sender, receiver) = (bind(), bind());
        let address = receiver.local_addr().unwrap();
        for (class, ecn) in [
            (0, None),
            (2, Some(EcnCodepoint::Ect0)),
            (1, Some(EcnCodepoint::Ect1)),
            (3, Some(EcnCodepoint::Ce)),
        ] {
            let contents = numbered(3, 100);
            let marked = Transmit { traffic_class: class, ..transmit(address, &contents) };
            let batch =
                Transmit { segment_size: Some(100), src_ip: Some(local.parse().unwrap()), ..marked.clone() };
            assert_eq!(sender.try_send(&marked), SendOutcome::Sent);
            assert_eq!(sender.try_send(&batch), SendOutcome::Sent);
            assert_eq!(sender.try_send_many(&[marked, batch]), 2);
            let (got, metas) = receive(&receiver, 8);
            assert_eq!(got.len(), 8);
            assert!(metas.iter().all(|meta| meta.ecn == ecn), "{local} {class}: {metas:?}");
        }
    }
}

#[test]
fn a_socket_for_both_versions_marks_both() {
    let sender = ShardSocket::bind("[::]:0".parse().unwrap(), &options()).unwrap();
    for local in ["127.0.0.1:0", "[::1]:0"] {
        let receiver = ShardSocket::bind(local.parse().unwrap(), &options()).unwrap();
        let address = receiver.local_addr().unwrap();
        let mapped = match address.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
            IpAddr::V6(v6) => IpAddr::V6(v6),
        };
        let marked = Transmit { traffic_class: 3, ..transmit(SocketAddr::new(mapped, address.port()), b"x") };
        assert_eq!(sender.try_send(&marked), SendOutcome::Sent);
        assert_eq!(receive(&receiver, 1).1[0].ecn, Some(EcnCodepoint::Ce), "{local}");
    }
}

#[test]
fn datagrams_are_never_fragmented() {
    let (sender, _, _) = pair();
    assert!(!sender.offloads().may_fragment);
    let mode = sockopt::ip_mtu_discover(&sender).unwrap();
    assert_eq!(mode, sockopt::Ipv4PathMtuDiscovery::PROBE);
    let sender = ShardSocket::bind("[::]:0".parse().unwrap(), &options()).unwrap();
    let modes = (sockopt::ip_mtu_discover(&sender).unwrap(), sockopt::ipv6_mtu_discover(&sender).unwrap());
    let probe = (sockopt::Ipv4PathMtuDiscovery::PROBE, sockopt::Ipv6PathMtuDiscovery::PROBE);
    assert_eq!(modes, probe, "a dual-stack socket sends both families");
}

#[test]
fn a_port_in_use_is_refused_although_it_could_be_shared() {
    let group =
        bind_reuseport_group("[::]:0".parse().unwrap(), 2, Steering::Program(Clients::Own), &options())
            .unwrap();
    let address = group.shards[0].local_addr().unwrap();
    let second = bind_reuseport_group(address, 2, Steering::Program(Clients::Own), &options());
    assert!(matches!(second, Err(UdpError::AddressInUse(_))));
    drop(group);
    // A program that another test is starting just now may hold a copy of the sockets for a moment.
    let deadline = std::time::Instant::now() + Duration::from_secs(2);
    while let Err(error) = bind_reuseport_group(address, 2, Steering::Program(Clients::Own), &options()) {
        assert!(matches!(error, UdpError::AddressInUse(_)), "{error}");
        assert!(std::time::Instant::now() < deadline, "the port never became free");
    }
}

#[test]
fn impossible_groups_are_refused() {
    for shards in [0, MAX_SHARDS + 1] {
        let refused = bind_reuseport_group(
            "127.0.0.1:0".parse().unwrap(),
            shards,
            Steering::Program(Clients::Own),
            &options(),
        );
        assert!(matches!(refused, Err(UdpError::BadShardCount(_))));
    }
    let foreign =
        bind_reuseport_group("192.0.2.1:0".parse().unwrap(), 1, Steering::Program(Clients::Own), &options());
    assert!(matches!(foreign, Err(UdpError::NoSuchAddress(_))));
}

#[test]
fn a_mark_is_set_on_the_socket() {
    crate::testing::in_namespace(|| {
        let marked = SocketOptions { mark: Some(0x7670), ..options() };
        let socket = ShardSocket::bind("127.0.0.1:0".parse().unwrap(), &marked).unwrap();
        assert_eq!(socket.socket.mark().unwrap(), 0x7670);
    });
}

#[test]
fn forced_buffers_pass_the_limit_of_the_system() {
    crate::testing::in_namespace(|| {
        let wanted = SocketOptions { recv_buffer: 32 << 20, send_buffer: 32 << 20, ..options() };
        let socket = ShardSocket::bind("127.0.0.1:0".parse().unwrap(), &wanted).unwrap();
        let got = socket.offloads();
        assert!(got.recv_buffer >= 32 << 20 && got.send_buffer >= 32 << 20, "{got:?}");
    });
}

#[test]
fn a_segment_above_the_mtu_does_not_cost_the_offload() {
    crate::testing::in_namespace(|| {
        crate::testing::run("ip", &["link", "set", "lo", "mtu", "1300"]);
        let sender = ShardSocket::bind("[::1]:0".parse().unwrap(), &options()).unwrap();
        let receiver = ShardSocket::bind("[::1]:0".parse().unwrap(), &options()).unwrap();
        let address = receiver.local_addr().unwrap();
        let contents = numbered(4, 1400);
        let batch = Transmit { segment_size: Some(1400), ..transmit(address, &contents) };
        assert_eq!(sender.try_send(&batch), SendOutcome::Dropped { reason: DropReason::TooBig, lost: 4 });
        assert!(sender.max_gso_segments() > 1 && !sender.offloads().gso_gave_up);

        // Older kernels refuse such a batch just like a driver that can't segment: with EINVAL.
        assert_eq!(
            sender.without_offload(&batch, 1400),
            SendOutcome::Dropped { reason: DropReason::TooBig, lost: 4 }
        );
        assert!(sender.max_gso_segments() > 1 && !sender.offloads().gso_gave_up);

        let smaller = Transmit { segment_size: Some(1200), ..batch };
        assert_eq!(sender.try_send(&smaller), SendOutcome::Sent);
        assert_eq!(receive(&receiver, 5).0.concat(), contents);
    });
}

#[test]
fn sent_datagrams_wake_no_reader() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let _inside = runtime.enter();
    let (sender, receiver, _) = pair();
    let descriptors = [sender.as_raw_fd(), receiver.as_raw_fd()];
    let _registered = (sender.into_async().unwrap(), receiver.into_async_sender().unwrap());
    let [read, write] = descriptors.map(awaited_events);
    assert_eq!((read & libc::EPOLLIN, read & libc::EPOLLOUT), (libc::EPOLLIN, 0), "{read:x}");
    assert_eq!((write & libc::EPOLLIN, write & libc::EPOLLOUT), (0, libc::EPOLLOUT), "{write:x}");
}

/// Events for which this process waits at a descriptor, as the kernel has them (proc(5), `fdinfo`
/// of an epoll instance).
fn awaited_events(descriptor: RawFd) -> libc::c_int {
    let lines = std::fs::read_dir("/proc/self/fdinfo").unwrap().flat_map(|entry| {
        // Other tests close theirs meanwhile.
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    let events = lines.filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["tfd:", target, "events:", events, ..] = words[..] else { return None };
        (target == descriptor.to_string())
            .then(|| libc::c_int::from_str_radix(&events[events.len() - 4..], 16).unwrap())
    });
    events.fold(0, |all, one| all | one)
}
