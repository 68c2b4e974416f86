//! Networks between a stock client and the gateway: NAT, narrow and wide paths, both IP versions,
//! tunnels in tunnels, and one configuration in two places.

use crate::relay::{Faults, Relay};

use super::*;

fn outer(gateway: &Gateway<'_>) -> SocketAddr {
    sessions_of(gateway, "wireguard")[0]["outer"][0].as_str().unwrap().parse().unwrap()
}

fn session_id(gateway: &Gateway<'_>) -> Json {
    sessions_of(gateway, "wireguard")[0]["id"].clone()
}

#[test]
fn a_device_behind_a_nat_is_reached_after_the_nat_has_changed_its_port() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, file) = gateway_with(&lab, |gateway| gateway.configure("wireguard.keepalive_s", 2));
    assert_eq!(file.get("Peer.PersistentKeepalive"), "2");
    let relay = Relay::start(&lab, Faults::default());
    let phone = Stock::start(&lab, 1, &program, &file);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    let (before, session) = (outer(&gateway), session_id(&gateway));
    relay.rebind();
    // The device sends keepalives and nothing else.
    ping_until(&lab.campus, phone.v4(), PATIENCE);
    assert_ne!(outer(&gateway).port(), before.port());
    assert_eq!(session_id(&gateway), session);
}

#[test]
fn a_lossy_network_that_reorders_and_repeats_ends_no_session() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, file) = gateway_for_phone(&lab);
    let faults = Faults { seed: 1, lose: 2, delay: 20, repeat: 10, ..Faults::default() };
    let relay = Relay::start(&lab, faults);
    let phone = Stock::start(&lab, 1, &program, &file);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    transfer(phone.place, &lab.campus, CAMPUS_V4.into(), 300_000, PATIENCE);
    let [lost, delayed, repeated] = relay.counts();
    assert!(lost > 0 && delayed > 0 && repeated > 0);
    assert!(gateway.counter("replayed") > 0, "what came twice was taken once");
    assert_eq!(sessions_of(&gateway, "wireguard").len(), 1);
}

#[test]
fn narrow_and_wide_paths_carry_what_the_file_says() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(2) else { return };
    let (gateway, file) = gateway_for_phone(&lab);
    assert_eq!(file.get("Interface.MTU"), "1280");
    // Just what a full packet of the tunnel needs, over IPv4 and IPv6.
    lab.net.ip_batch(&format!("link set {} mtu 1360\n", Lab::port(1)));
    lab.clients[0].ip_batch(&format!("link set {UPLINK} mtu 1360\n"));
    for outer in [IpAddr::from(GATEWAY_V6), GATEWAY_V4.into()] {
        let narrow = Stock::start_towards(&lab, 1, &program, &file, outer);
        ping_until(narrow.place, CAMPUS_V4.into(), PATIENCE);
        transfer(narrow.place, &lab.campus, CAMPUS_V4.into(), 300_000, PATIENCE);
        transfer(narrow.place, &lab.campus, CAMPUS_V6.into(), 300_000, PATIENCE);
        assert!(ping(narrow.place, CAMPUS_V4.into(), 4_000, PATIENCE), "cut and put together");
        assert!(ping(&lab.campus, narrow.v4(), 4_000, PATIENCE), "that of the campus, too");
        // Its datagrams are larger than the path: they arrive in fragments.
        narrow.place.ip_batch(&format!("link set {DEVICE} mtu 1400\n"));
        assert!(ping(narrow.place, CAMPUS_V4.into(), 4_000, PATIENCE), "in fragments");
    }
    // A device whose own MTU is small; IPv6 has no place there.
    let small = add_device_for(&gateway, "ann", "small").with("Interface.MTU", "576");
    let small = Stock::start(&lab, 2, &program, &small.without_ipv6());
    ping_until(small.place, CAMPUS_V4.into(), PATIENCE);
    transfer(small.place, &lab.campus, CAMPUS_V4.into(), 300_000, PATIENCE);
    assert!(ping(small.place, CAMPUS_V4.into(), 4_000, PATIENCE));
}

#[test]
fn full_packets_reach_a_device_behind_a_path_narrower_than_they_are() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, file) = gateway_for_phone(&lab);
    // The router's link towards the phone, as it is before a tunnel.
    lab.net.ip_batch(&format!(
        "route add 198.18.1.2 dev {port} mtu 1280\nroute add fd18:1::2 dev {port} mtu 1280\n",
        port = Lab::port(1)
    ));
    for outer in [GATEWAY_V4.into(), IpAddr::from(GATEWAY_V6)] {
        let phone = Stock::start_towards(&lab, 1, &program, &file, outer);
        ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
        let full = 1_280 - 28;
        // The kernel learns from the first one what an IPv6 path carries.
        eventually("a full packet arrives", PATIENCE, || {
            ping(&lab.campus, phone.v4(), full, SECOND).then_some(())
        });
        for _ in 0..3 {
            assert!(ping(&lab.campus, phone.v4(), full, SECOND), "each full packet over {outer}");
        }
        transfer(&lab.campus, phone.place, phone.v4(), 300_000, PATIENCE);
    }
    assert_eq!(sessions_of(&gateway, "wireguard").len(), 1);
}

#[test]
fn no_datagram_is_larger_than_the_mtu_allows() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, file) = gateway_with(&lab, |gateway| gateway.configure("wireguard.mtu", 1_400));
    assert_eq!(file.get("Interface.MTU"), "1400");
    // Its full packets, with the headers of WireGuard, UDP and IPv4.
    lab.net.ip_batch(&format!("link set {} mtu 1460\n", Lab::port(1)));
    let phone = Stock::start(&lab, 1, &program, &file);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    transfer(phone.place, &lab.campus, CAMPUS_V4.into(), 300_000, PATIENCE);
    transfer(phone.place, &lab.campus, CAMPUS_V6.into(), 300_000, PATIENCE);
    for size in [1_350, 1_360, 1_364, 1_368, 1_372, 9_000] {
        // The first one that is too large only informs its sender.
        let answered = || ping(&lab.campus, phone.v4(), size, Duration::from_secs(1)).then_some(());
        eventually(&format!("{size} bytes"), PATIENCE, answered);
    }
    // With padding, which is to fit as well.
    assert_eq!(sessions_of(&gateway, "wireguard")[0]["path_mtu"], 1_392);
}

#[test]
fn a_wireguard_tunnel_over_ipv6_carries_both_and_roams_to_ipv4() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, file) = gateway_for_phone(&lab);
    let phone = Stock::start_towards(&lab, 1, &program, &file, GATEWAY_V6.into());
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    ping_until(phone.place, CAMPUS_V6.into(), PATIENCE);
    transfer(phone.place, &lab.campus, CAMPUS_V6.into(), 1_000_000, PATIENCE);
    assert!(outer(&gateway).is_ipv6());
    let session = session_id(&gateway);
    let peer = format!("public_key={}\nupdate_only=true\n", file.hex("Peer.PublicKey").unwrap());
    let endpoint = format!("endpoint={GATEWAY_V4}:{}\n", file.port());
    assert_eq!(phone.ask("set=1", &(peer + &endpoint)), "errno=0\n");
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    assert!(ping(&lab.campus, phone.v4(), 56, PATIENCE));
    assert!(outer(&gateway).is_ipv4());
    assert_eq!(session_id(&gateway), session);
}

#[test]
fn a_wireguard_tunnel_passes_through_the_tunnel() {
    const PORT: u16 = 51_820;
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, file) = gateway_for_phone(&lab);
    let phone = Stock::start(&lab, 1, &program, &file);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    let private = [[0x11; 32], [0x22; 32]];
    let public = private.map(|key| StaticKey::new(Secret::new(key)).public());
    let hex = |key: [u8; 32]| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let places = [phone.place, &lab.campus];
    let mut processes = Vec::new();
    for (end, place) in places.into_iter().enumerate() {
        let (process, socket) = spawn(&lab, place, &format!("inner{end}"), &program, "wg1");
        let mut text = format!("private_key={}\n", hex(private[end]));
        text += &if end == 1 { format!("listen_port={PORT}\n") } else { String::new() };
        text += &format!("public_key={}\nallowed_ip=10.99.0.0/24\n", hex(public[1 - end].0));
        text += &if end == 0 { format!("endpoint={CAMPUS_V4}:{PORT}\n") } else { String::new() };
        assert_eq!(ask(&socket, "set=1", &text), "errno=0\n");
        place.ip_batch(&format!("addr add 10.99.0.{}/24 dev wg1\nlink set wg1 mtu 1200 up\n", 1 + end));
        processes.push(process);
    }
    ping_until(phone.place, [10, 99, 0, 2].into(), PATIENCE);
    transfer(phone.place, &lab.campus, [10, 99, 0, 2].into(), 1_000_000, PATIENCE);
}

#[test]
fn one_file_on_two_devices_is_noticed_and_a_phone_between_two_networks_is_not() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(2) else { return };
    let (mut gateway, file) = gateway_for_phone(&lab);
    let phone = Stock::start(&lab, 1, &program, &file);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    for (from, to) in [(2, 77), (77, 2)].into_iter().cycle().take(10) {
        phone.change_address(from, to);
        ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    }
    assert_eq!(outer(&gateway).ip(), IpAddr::from([198, 18, 1, 2]));
    let noticed = || handshakes(&gateway, "back_and_forth");
    assert_eq!(noticed(), 0);
    assert!(sessions_of(&gateway, "wireguard")[0]["two_devices_s"].is_null());

    let copy = Stock::start(&lab, 2, &program, &file);
    let is_noticed = || {
        ping(phone.place, CAMPUS_V4.into(), 56, SECOND / 5);
        ping(copy.place, CAMPUS_V4.into(), 56, SECOND / 5);
        (noticed() > 0).then_some(())
    };
    // Each device takes 15 s to find that it gets no answers.
    eventually("it is noticed", 5 * PATIENCE, is_noticed);
    assert!(sessions_of(&gateway, "wireguard")[0]["two_devices_s"].is_number());
    assert!(process::text(&must(gateway.ask(&["status"]))).contains("two devices!"));
    let recorded = || (!crate::audit::exported(&gateway, "device-in-two-places").is_empty()).then_some(());
    eventually("it is in the audit", PATIENCE, recorded);
    let lines = gateway.process().output();
    assert_eq!(lines.matches("two devices use one WireGuard configuration").count(), 1);
}
