//! A gateway that is drained lets no device in, and lets all of them in again when it is not any
//! more.

use crate::drain::drain;

use super::*;

#[test]
fn devices_reconnect_after_a_cancelled_drain() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, file) = gateway_for_phone(&lab);
    let phone = Stock::start(&lab, 1, &program, &file);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    let shown = drain(&gateway, &["--within", "0s"]);
    assert!(shown.contains("no client is connected"), "{shown}");
    let answered = || ping(phone.place, CAMPUS_V4.into(), 56, SECOND / 2);
    assert!(!answered() && !answered(), "it is drained");
    assert_eq!(sessions_of(&gateway, "wireguard").len(), 0);
    let log = gateway.process().output();
    assert!(log.contains("reason=\"drain\""), "a device attaches to no session later: {log}");
    drain(&gateway, &["--cancel"]);
    ping_until(phone.place, CAMPUS_V4.into(), PATIENCE);
    assert_eq!(sessions_of(&gateway, "wireguard").len(), 1);
}
