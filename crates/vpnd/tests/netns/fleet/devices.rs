//! Behaviour: WireGuard devices know one public address. Where keepalived moves it, the gateway
//! that has it then begins handshakes with them, and the one before has them no more.
//!
//! ```text
//!   phone ─── net ──┬─ gw1: 198.18.50.2 ─┐
//!                   └─ gw2: 198.18.50.3 ─┴─ 198.18.50.10 at one of them, by VRRP
//! ```

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};

use super::*;
use crate::wireguard::{self, Stock, sessions_of};

/// The address that devices know.
const PUBLIC: &str = "198.18.50.10";
/// Limit for a device to be back after the address has moved.
const BACK_TIMEOUT: Duration = Duration::from_secs(5);

/// Links both gateways to one segment.
fn share_segment(lab: &Lab) {
    lab.net.ip_batch("link add shared type bridge\naddr add 198.18.50.1/24 dev shared\nlink set shared up\n");
    for (number, place) in [(2, &lab.gateway), (3, &lab.clients[1])] {
        lab.net.ip_batch(&format!(
            "link add shared{number} type veth peer name public0 netns {}\n\
             link set shared{number} master shared up\n",
            place.name()
        ));
        place.ip_batch(&format!(
            "addr add 198.18.50.{number}/24 dev public0\n\
             link set public0 up\n\
             route add default via 198.18.50.1 dev public0 table 50\n\
             rule add from {PUBLIC} lookup 50 priority 50\n"
        ));
    }
}

/// keepalived at a gateway.
fn keepalived(lab: &Lab, is_second: bool) -> Process {
    let (name, place) = if is_second { ("keep2", &lab.clients[1]) } else { ("keep1", &lab.gateway) };
    let priority = if is_second { 100 } else { 150 };
    let file = lab.path(format!("{name}.conf"));
    let text = format!(
        "global_defs {{ vrrp_version 3 }}\n\
         vrrp_instance public {{\n\
           state BACKUP\n interface public0\n virtual_router_id 50\n priority {priority}\n advert_int 0.3\n\
           virtual_ipaddress {{ {PUBLIC}/24 }}\n\
         }}\n"
    );
    fs::write(&file, text).unwrap();
    let mut command = process::command(lab, place, "keepalived");
    command.args(["--dont-fork", "--log-console", "--vrrp", "--use-file"]).arg(&file);
    for (option, kind) in [("--pid", "pid"), ("--vrrp_pid", "vrrp")] {
        command.arg(option).arg(lab.path(format!("{name}.{kind}")));
    }
    Process::start(lab, name, command)
}

fn has_public(lab: &Lab, is_second: bool) -> Option<()> {
    let place = if is_second { &lab.clients[1] } else { &lab.gateway };
    place.ip(&["-4", "addr", "show", "dev", "public0"]).contains(&format!("{PUBLIC}/")).then_some(())
}

/// Gives the second gateway the WireGuard key of the first.
fn share_key(fleet: &Fleet<'_>) {
    let [from, to] = [&fleet.first, &fleet.second].map(|gateway| gateway.file("state"));
    fs::create_dir_all(&to).unwrap();
    let owner = fs::metadata(&from).unwrap();
    let key = to.join("wireguard.key");
    fs::copy(from.join("wireguard.key"), &key).unwrap();
    for path in [&to, &key] {
        chown(path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
}

#[test]
fn devices_follow_the_public_address_to_the_gateway_that_has_it() {
    let Some(program) = wireguard::program("wireguard-go") else { return };
    let Some(lab) = Lab::new(2) else { return };
    let Some(mut fleet) = Fleet::new(&lab) else { return };
    share_segment(&lab);
    for gateway in [&fleet.first, &fleet.second] {
        gateway.configure("wireguard.enabled", true);
    }
    let file = wireguard::add_device(&fleet.first, "ann");
    share_key(&fleet);
    fleet.start();
    let mut keeper = keepalived(&lab, false);
    eventually("the first gateway has the address", LIMIT, || has_public(&lab, false));
    let _second_keeper = keepalived(&lab, true);
    let phone = Stock::start_towards(&lab, 1, &program, &file, PUBLIC.parse().unwrap());
    let is_at = |gateway: &Gateway<'_>| sessions_of(gateway, "wireguard").len() == 1;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| route(&lab, &is_over));
        ping_until(phone.place, CAMPUS_V4.into(), LIMIT);
        assert!(is_at(&fleet.first) && !is_at(&fleet.second));
        assert_eq!(fleet.carrier(), "gw1");

        // The device sends nothing meanwhile: the gateway begins the handshake.
        keeper.signal(Signal::TERM);
        eventually("the second gateway has the address", LIMIT, || has_public(&lab, true));
        let began = Instant::now();
        eventually("the second gateway has the device", LIMIT, || is_at(&fleet.second).then_some(()));
        println!("moved: the other gateway has the device after {:.2?}", began.elapsed());
        assert!(began.elapsed() < BACK_TIMEOUT, "{:?}", began.elapsed());
        eventually("the first one has dropped it", LIMIT, || (!is_at(&fleet.first)).then_some(()));
        assert_eq!(fleet.carrier(), "gw2");
        ping_until(phone.place, CAMPUS_V4.into(), LIMIT);

        keeper.wait(LIMIT);
        keeper = keepalived(&lab, false);
        eventually("the first gateway has the address again", LIMIT, || has_public(&lab, false));
        eventually("and the device", LIMIT, || is_at(&fleet.first).then_some(()));
        eventually("the second one has dropped it", LIMIT, || (!is_at(&fleet.second)).then_some(()));
        ping_until(phone.place, CAMPUS_V4.into(), LIMIT);

        // The machine dies.
        let Fleet { first, second, .. } = &mut fleet;
        first.process().signal_all(Signal::KILL);
        keeper.signal_all(Signal::KILL);
        lab.gateway.ip_batch(&format!("addr flush dev public0 to {PUBLIC}/32\n"));
        let began = Instant::now();
        eventually("the second gateway has the device", LIMIT, || is_at(second).then_some(()));
        ping_until(phone.place, CAMPUS_V4.into(), LIMIT);
        println!("killed: traffic is back after {:.2?}", began.elapsed());
        assert!(began.elapsed() < BACK_TIMEOUT, "{:?}", began.elapsed());
    });
    assert_eq!(fleet.carrier(), "gw2");
}
