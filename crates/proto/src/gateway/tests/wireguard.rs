//! Sessions of stock WireGuard clients: rows as all others, without keys here.

use super::*;

fn admit(gateway: &mut Gateway, user: &str, device: u8) -> Result<Slot, Code> {
    gateway.admit_wireguard(NOW, who(user, device), 1_280)
}

#[test]
fn a_device_has_a_session_that_shards_and_store_know_before_it_is_answered() {
    let mut gateway = gateway(config(2));
    let slot = admit(&mut gateway, "ann", 1).unwrap();
    assert_eq!(outline(&effects(&mut gateway)), "O?P");
    gateway.note_wireguard_endpoint(slot, endpoint("198.51.100.1:1"));
    assert_eq!(outline(&effects(&mut gateway)), "a");
    gateway.note_wireguard_handshake(NOW + Duration::from_secs(5), slot);
    let session = gateway.sessions().next().unwrap();
    assert_eq!((session.wireguard, session.path_size, session.suite), (true, Some(1_312), None));
    assert_eq!(session.endpoints, [endpoint("198.51.100.1:1")]);
    assert_eq!(session.last_handshake, Some(NOW + Duration::from_secs(5)));
    gateway.handle_timeout(NOW + Duration::from_secs(999));
    assert_eq!(gateway.sessions().count(), 1, "no epoch of it expires");
    gateway.handle_timeout(NOW + Duration::from_secs(1_000));
    assert_eq!(outline(&effects(&mut gateway)), "CFe", "its lifetime is over");
}

#[test]
fn the_same_limits_hold_for_both_kinds_and_a_device_has_one_session() {
    let mut gateway = gateway(config(1));
    login(&mut gateway, 1, "ann", 1);
    admit(&mut gateway, "ann", 2).unwrap();
    assert_eq!(admit(&mut gateway, "ann", 3), Err(Code::TooMany), "both are in use");
    let before = gateway.sessions().find(|session| session.wireguard).unwrap().id;
    let again = Authenticated { session: SessionId([9; 16]), ..who("ann", 2) };
    gateway.admit_wireguard(NOW, again, 1_280).unwrap();
    let ended = effects(&mut gateway).into_iter().find_map(|effect| match effect {
        Effect::Ended(ended) => Some((ended.session, ended.code)),
        _ => None,
    });
    assert_eq!(ended, Some((before, Code::Superseded)));
    let unknown = Principal::default().in_profile(crate::policy::ProfileId::NONE);
    let eve = Authenticated { principal: unknown, ..who("eve", 4) };
    assert_eq!(gateway.admit_wireguard(NOW, eve, 1_280), Err(Code::NoProfile));
    gateway.drain(false);
    assert_eq!(admit(&mut gateway, "bob", 5), Err(Code::Drain));
}
