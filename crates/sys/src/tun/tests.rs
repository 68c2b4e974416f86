//! A device in its own namespace, with `ip` as the other side.

use std::net::UdpSocket;
use std::time::Duration;

use super::*;
use crate::testing::{in_namespace, in_namespace_async, run};
use crate::udp::{SendOutcome, ShardSocket, SocketOptions, Transmit};

const NEEDS_CSUM: u8 = 1;
const GSO_UDP_L4: u8 = 5;

fn spec(name: &str) -> TunSpec {
    TunSpec {
        name: name.to_owned(),
        mtu: 1400,
        queues: 2,
        tx_queue_len: GATEWAY_TX_QUEUE_LEN,
        offloads: TunOffloads::ALL,
    }
}

fn up(tun: &Tun) {
    // No IPv6, so that nothing but the test's packets appears.
    run("sysctl", &["-qw", &format!("net.ipv6.conf.{}.disable_ipv6=1", tun.name())]);
    run("ip", &["addr", "add", "10.9.0.1/24", "dev", tun.name()]);
    run("ip", &["link", "set", tun.name(), "up"]);
}

/// The next packet from any queue.
fn read_any(queues: &[TunQueue]) -> Vec<u8> {
    let mut buffer = vec![0; MAX_READ_LEN];
    for _ in 0..2000 {
        for queue in queues {
            match queue.try_read(&mut buffer) {
                Ok(len) => return buffer[..len].to_vec(),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("no packet came");
}

#[test]
fn a_device_is_as_specified() {
    in_namespace(|| {
        let tun = Tun::open(&spec("vpt%d")).unwrap();
        assert_eq!(tun.name(), "vpt0");
        let link = run("ip", &["-d", "-j", "link", "show", tun.name()]);
        for part in [r#""mtu":1400"#, r#""txqlen":2000"#, r#""multi_queue":true"#, r#""vnet_hdr":true"#] {
            assert!(link.contains(part), "{part} is missing in {link}");
        }
        assert!(link.contains(&format!(r#""ifindex":{}"#, tun.index())), "{link}");
        assert!(!link.contains(r#""UP""#), "the link waits for its addresses: {link}");
        assert_eq!(tun.into_queues().len(), 2);
        let deadline = std::time::Instant::now() + Duration::from_secs(2);
        while run("ip", &["-j", "link"]).contains("vpt0") {
            assert!(std::time::Instant::now() < deadline, "the device outlived its queues");
        }
    });
}

#[test]
fn packets_pass_both_ways_untouched() {
    in_namespace(|| {
        let tun = Tun::open(&spec("vpt0")).unwrap();
        assert!(tun.offloads().checksum && tun.offloads().tso4, "{:?}", tun.offloads());
        up(&tun);
        let queues = tun.into_queues();
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        socket.send_to(b"hello, tunnel", "10.9.0.2:4444").unwrap();
        let mut packet = read_any(&queues);
        assert_eq!(packet[0] & NEEDS_CSUM, NEEDS_CSUM, "the kernel left the checksum to us");
        assert_eq!(u16::from_le_bytes([packet[6], packet[7]]), 20, "checksum starts after the IPv4 header");
        assert!(packet.ends_with(b"hello, tunnel"));
        // Swapping both ends keeps the partial checksum right, so the same header sends it back.
        let ip = VNET_HEADER_LEN;
        for i in 0..4 {
            packet.swap(ip + 12 + i, ip + 16 + i);
        }
        packet.swap(ip + 20, ip + 22);
        packet.swap(ip + 21, ip + 23);
        let (header, rest) = packet.split_at(VNET_HEADER_LEN);
        let (front, back) = rest.split_at(30);
        let parts = [IoSlice::new(header), IoSlice::new(front), IoSlice::new(back)];
        assert_eq!(queues[1].try_write_vectored(&parts).unwrap(), packet.len());
        let mut answer = [0; 64];
        let (len, from) = socket.recv_from(&mut answer).unwrap();
        assert_eq!((&answer[..len], from), (&b"hello, tunnel"[..], "10.9.0.2:4444".parse().unwrap()));
    });
}

/// A datagram from 10.9.0.2 to port `port` of 10.9.0.1, behind a virtio header that leaves its
/// checksum out.
fn datagram(port: u16, contents: &[u8]) -> Vec<u8> {
    let len = 28 + contents.len() as u16;
    let mut packet = vec![0; VNET_HEADER_LEN];
    packet.extend([0x45, 0]);
    packet.extend(len.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1]);
    let checksum = vpnd_packet::checksum::ipv4_header(&packet[VNET_HEADER_LEN..]);
    packet[VNET_HEADER_LEN + 10..][..2].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(4444_u16.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend((len - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(contents);
    packet
}

#[test]
fn many_packets_are_written_in_order_and_a_refused_one_is_named() {
    in_namespace(|| {
        let tun = Tun::open(&spec("vpt0")).unwrap();
        up(&tun);
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let port = socket.local_addr().unwrap().port();
        let mut queues = tun.into_queues();
        queues[1].write_together().expect("this kernel has Linux AIO");
        // More than go with one system call, and one left over.
        let count = 2 * aio::MAX_WRITES as u8 + 1;
        let bad = [0, 5, aio::MAX_WRITES, usize::from(count) - 1];
        let mut packets: Vec<_> = (0..count).map(|number| datagram(port, &[number])).collect();
        for place in bad {
            // A kind of super-packet that there is none of.
            packets[place][1] = 0x7F;
        }
        let parts: Vec<_> = packets
            .iter()
            .map(|packet| packet.split_at(VNET_HEADER_LEN))
            .map(|(header, rest)| [header, rest])
            .collect();
        let parts: Vec<_> = parts.iter().map(|parts| parts.map(IoSlice::new)).collect();
        let all: Vec<&[IoSlice<'_>]> = parts.iter().map(|parts| &parts[..]).collect();
        let good: Vec<_> = (0..count).filter(|number| !bad.contains(&usize::from(*number))).collect();
        for queue in &queues {
            let mut refused = Vec::new();
            queue.try_write_many(&all, |place, error| refused.push((place, error.raw_os_error())));
            assert_eq!(refused, bad.map(|place| (place, Some(libc::EINVAL))));
            let mut buffer = [0; 16];
            let got: Vec<_> = good.iter().map(|_| (socket.recv(&mut buffer).unwrap(), buffer[0])).collect();
            assert_eq!(got, good.iter().map(|number| (1, *number)).collect::<Vec<_>>());
        }
    });
}

/// Which of `queues` the next datagram from 10.9.0.1 comes out of.
fn queue_of_next(queues: &[TunQueue], socket: &UdpSocket) -> (usize, Vec<u8>) {
    socket.send(b"next").unwrap();
    let mut buffer = vec![0; MAX_READ_LEN];
    for _ in 0..2000 {
        for (number, queue) in queues.iter().enumerate() {
            if let Ok(len) = queue.try_read(&mut buffer) {
                return (number, buffer[..len].to_vec());
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("no packet came");
}

#[test]
fn a_flow_stays_on_its_queue_wherever_its_answers_are_written() {
    in_namespace(|| {
        let tun = Tun::open(&TunSpec { queues: 4, ..spec("vpt0") }).unwrap();
        up(&tun);
        tun.pin_flows().unwrap();
        let queues = tun.into_queues();
        let mut used = [0; 4];
        for flow in 0..64 {
            let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
            socket.connect(("10.9.0.2", 4000 + flow)).unwrap();
            let (number, mut packet) = queue_of_next(&queues, &socket);
            used[number] += 1;
            let ip = VNET_HEADER_LEN;
            for (one, other) in [(12, 16), (13, 17), (14, 18), (15, 19), (20, 22), (21, 23)] {
                packet.swap(ip + one, ip + other);
            }
            // The answer comes by another queue, to which the kernel by itself would move the flow.
            let answered = (number + 1) % queues.len();
            assert_eq!(queues[answered].try_write_vectored(&[IoSlice::new(&packet)]).unwrap(), packet.len());
            socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            assert_eq!(socket.recv(&mut [0; 16]).unwrap(), 4);
            assert_eq!(queue_of_next(&queues, &socket).0, number);
        }
        assert!(used.iter().all(|flows| (1..=40).contains(flows)), "flows are spread: {used:?}");
    });
}

/// Sends five datagrams as one batch into the device and returns the lengths and offload kinds of
/// what comes out.
fn batch_comes_out_as(offloads: TunOffloads) -> Vec<(usize, u8)> {
    let tun = Tun::open(&TunSpec { offloads, ..spec("vpt0") }).unwrap();
    assert_eq!(tun.offloads(), offloads);
    up(&tun);
    let queues = tun.into_queues();
    let sender = ShardSocket::bind("10.9.0.1:0".parse().unwrap(), &SocketOptions::default()).unwrap();
    let batch = Transmit {
        destination: "10.9.0.2:4444".parse().unwrap(),
        traffic_class: 0,
        contents: &[5; 5000],
        segment_size: Some(1000),
        src_ip: None,
        may_fragment: false,
    };
    assert_eq!(sender.try_send(&batch), SendOutcome::Sent);
    let mut got = Vec::new();
    while got.iter().map(|(len, _)| len - VNET_HEADER_LEN - 28).sum::<usize>() < 5000 {
        let packet = read_any(&queues);
        got.push((packet.len(), packet[1]));
    }
    got
}

#[test]
fn a_queue_wakes_its_shard() {
    fn movable<T: Send>(value: T) -> T {
        value
    }
    in_namespace_async(async || {
        let tun = Tun::open(&TunSpec { queues: 1, ..spec("vpt0") }).unwrap();
        up(&tun);
        let queue = movable(tun.into_queues().remove(0).into_async().unwrap());
        let mut buffer = vec![0; MAX_READ_LEN];
        let socket = ShardSocket::bind("10.9.0.1:0".parse().unwrap(), &SocketOptions::default()).unwrap();
        let socket = movable(socket.into_async().unwrap());
        for n in 0..3 {
            let payload = [n; 10];
            let destination = "10.9.0.2:4444".parse().unwrap();
            let one = Transmit {
                destination,
                traffic_class: 0,
                contents: &payload,
                segment_size: None,
                src_ip: None,
                may_fragment: false,
            };
            assert_eq!(socket.get_ref().try_send(&one), SendOutcome::Sent);
            let read = queue.async_io(tokio::io::Interest::READABLE, |queue| queue.try_read(&mut buffer));
            let len = tokio::time::timeout(Duration::from_secs(5), read).await.unwrap().unwrap();
            assert!(buffer[..len].ends_with(&payload));
        }
    });
}

#[test]
fn super_packets_arrive_whole() {
    in_namespace(|| {
        let got = batch_comes_out_as(TunOffloads::ALL);
        assert_eq!(got, [(VNET_HEADER_LEN + 28 + 5000, GSO_UDP_L4)]);
    });
}

#[test]
fn offloads_can_be_switched_off() {
    in_namespace(|| {
        let got = batch_comes_out_as(TunOffloads { uso: false, ..TunOffloads::ALL });
        assert_eq!(got, [(VNET_HEADER_LEN + 28 + 1000, 0); 5]);
    });
    in_namespace(|| {
        let got = batch_comes_out_as(TunOffloads::NONE);
        assert_eq!(got, [(VNET_HEADER_LEN + 28 + 1000, 0); 5]);
    });
}

#[test]
fn a_refused_request_gets_weaker_until_nothing_is_left() {
    let mut steps = vec![TunOffloads::ALL];
    while let Some(next) = steps.last().unwrap().weaker() {
        assert!(next.bits() < steps.last().unwrap().bits());
        assert_eq!(next, next.consistent(), "no step asks for what the kernel must refuse");
        steps.push(next);
    }
    assert_eq!(steps.len(), 6);
    assert_eq!(*steps.last().unwrap(), TunOffloads::NONE);
    let baseless = TunOffloads { checksum: false, ..TunOffloads::ALL };
    assert_eq!(baseless.consistent(), TunOffloads::NONE);
}

#[test]
fn bad_requests_are_refused_before_anything_is_changed() {
    for name in ["", "a/b", "a b", "sixteen-bytes-xx", "..", "a\n", "a:b"] {
        assert!(matches!(Tun::open(&spec(name)), Err(TunError::BadName(_))), "{name:?}");
    }
    for queues in [0, MAX_QUEUES + 1] {
        let bad = TunSpec { queues, ..spec("vpt0") };
        assert!(matches!(Tun::open(&bad), Err(TunError::BadQueueCount(_))));
    }
}

#[test]
fn a_device_of_another_process_is_never_joined() {
    in_namespace(|| {
        let first = Tun::open(&spec("vpt0")).unwrap();
        assert!(matches!(Tun::open(&spec("vpt0")), Err(TunError::NameInUse(_))));
        drop(first);
        // A program that another test is starting just now may hold a copy of the queues for a
        // moment.
        let deadline = std::time::Instant::now() + Duration::from_secs(2);
        while let Err(error) = Tun::open(&spec("vpt0")) {
            assert!(matches!(error, TunError::NameInUse(_)), "{error}");
            assert!(std::time::Instant::now() < deadline, "the name never became free");
        }
    });
}

#[test]
fn a_missing_privilege_is_named() {
    in_namespace(|| {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(rustix::thread::CapabilitySet::NET_ADMIN);
        rustix::thread::set_capabilities(None, sets).unwrap();
        let error = Tun::open(&spec("vpt0")).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    });
}

#[test]
fn a_missing_driver_is_named() {
    in_namespace(|| {
        run("mount", &["-t", "tmpfs", "none", "/dev/net"]);
        let error = Tun::open(&spec("vpt0")).map(|_| ()).unwrap_err();
        assert!(matches!(error, TunError::NoDriver), "{error}");
        assert!(error.to_string().contains("modprobe tun"), "{error}");
        assert!(!Path::new(TUN_CHARACTER_DEVICE).exists(), "nothing was made up");
    });
}

#[test]
fn a_link_that_is_down_takes_no_packets() {
    in_namespace(|| {
        let queues = Tun::open(&spec("vpt0")).unwrap().into_queues();
        let mut packet = [0; VNET_HEADER_LEN + 20];
        packet[VNET_HEADER_LEN] = 0x45;
        let error = queues[0].try_write_vectored(&[IoSlice::new(&packet)]).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::IO));
    });
}

/// Set for the process in which the next test but one runs its other half.
const IN_CONTAINER: &str = "VPND_TEST_IN_CONTAINER";

#[test]
fn a_container_without_root_of_its_own_keeps_the_kernels_queue_length() {
    // A namespace of users needs a process with one thread: this program again, for the test below
    // alone.
    let this = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net"]).arg(this).env(IN_CONTAINER, "1");
    let output = command.args(["--exact", "tun::tests::in_a_container", "--nocapture"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("the container has its device"), "{text}");
}

#[test]
fn in_a_container() {
    if std::env::var_os(IN_CONTAINER).is_none() {
        return;
    }
    let tun = Tun::open(&spec("vpt0")).unwrap();
    let link = run("ip", &["-d", "-j", "link", "show", tun.name()]);
    assert!(
        link.contains(r#""mtu":1400"#) && !link.contains(r#""txqlen":2000"#),
        "the rest is as specified: {link}"
    );
    println!("the container has its device");
}
