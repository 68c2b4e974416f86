//! WireGuard servers with clients that one process makes, and devices of the real `vpnd`.
//!
//! ```text
//!   one process ── eth0 ─── gateway (vpnd server, wireguard-go)      two clients, no TUN device
//! ```

use std::path::Path;

use serde_json::Value;

use super::{PROGRAM, can_run, measured, real_vpnd, skip};

#[test]
fn two_servers_carry_every_packet_of_clients_without_devices() {
    if !can_run() {
        return;
    }
    let Some(vpnd) = real_vpnd() else { return };
    let other = Path::new(PROGRAM).parent().expect("a folder").with_file_name("tools").join("wireguard-go");
    if !other.exists() {
        return skip(&format!("{} is not built; run `./x setup`", other.display()));
    }
    let report = measured(&format!(
        "wireguard --servers vpnd,wireguard-go --clients 2 --direction up,pairs --burst 8 --repeat 1 -t 1 -O 0.5 --json --priority own \
         --program vpnd={} --program wireguard-go={}",
        vpnd.display(),
        other.display()
    ));
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
    let rows = report["rows"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().map(|row| (row["server"].as_str(), row["direction"].as_str())).collect();
    let names_of =
        |direction| ["vpnd", "wireguard-go", "vpnd (again)"].map(|server| (Some(server), Some(direction)));
    assert_eq!(names, [names_of("up"), names_of("pairs")].concat());
    for row in rows {
        let figures = &row["runs"][0];
        let number = |name: &str| figures[name].as_f64();
        assert!(number("goodput") > Some(0.0) && number("server_seconds_per_gbit") > Some(0.0), "{row:#}");
        assert!(figures["delay_ms"]["p50"].as_f64() > Some(0.0), "some were opened: {row:#}");
        assert!(
            row["facts"]["cipher"].as_str().is_some_and(|cipher| cipher.starts_with("chacha20")),
            "{row:#}"
        );
    }
}

#[test]
fn devices_reconnect_after_a_kill_and_an_upgrade() {
    if !can_run() {
        return;
    }
    let Some(vpnd) = real_vpnd() else { return };
    let report = measured(&format!(
        "sessions --wireguard --count 30 --users 2 --idle 1 --restart kill,upgrade --json --vpnd {}",
        vpnd.display()
    ));
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report:#}");
    let all_answered = |phase: &Value| {
        assert_eq!((&phase["storm"]["up"], &phase["answered"]), (&30.into(), &30.into()), "{phase:#}")
    };
    all_answered(&report["login"]);
    let restarts = report["restarts"].as_array().expect("a list");
    assert_eq!(restarts.len(), 2);
    restarts.iter().for_each(|restart| all_answered(&restart["phase"]));
    let upgrade = &restarts[1];
    assert_eq!(upgrade["phase"]["storm"]["logins"], 0, "no device made new keys: {upgrade:#}");
    let gap_ms = upgrade["watched"]["meanwhile"]["gap_ms"].as_f64();
    assert!(gap_ms.is_some_and(|gap_ms| gap_ms < 5_000.0), "{upgrade:#}");
}
