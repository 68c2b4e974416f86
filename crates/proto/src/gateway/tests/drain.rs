//! A gateway that is being drained: who gets in, who stays, and the notices.

use super::*;

fn notified(effects: &[Effect]) -> Vec<ConnectionId> {
    let notices = effects.iter().filter_map(|effect| match effect {
        Effect::Send { connection, message: Message::Drain(_) } => Some(*connection),
        _ => None,
    });
    notices.collect()
}

/// The record of a session that has just begun, and its answer.
fn stored(gateway: &mut Gateway, device: u8) -> (SessionRecord, Established) {
    gateway.login(NOW, ConnectionId(device.into()), who("ann", device), &offer(2), secret()).unwrap();
    let effects = effects(gateway);
    let record = effects.iter().find_map(|effect| match effect {
        Effect::Persist(record) => Some(record.clone()),
        _ => None,
    });
    (record.unwrap(), established(&effects))
}

#[test]
fn a_drained_gateway_refuses_logins_and_keeps_sessions_in_use() {
    let mut gateway = gateway(config(1));
    let session = login(&mut gateway, 1, "ann", 1);
    gateway.drain(false);
    assert_eq!(notified(&effects(&mut gateway)), [ConnectionId(1)]);
    let refused = gateway.login(NOW, ConnectionId(2), who("bob", 2), &offer(2), secret());
    assert_eq!(refused.unwrap_err(), Code::Drain);
    // Another login of the same device is refused, too: its session goes on.
    let refused = gateway.login(NOW, ConnectionId(3), who("ann", 1), &offer(2), secret());
    assert_eq!(refused.unwrap_err(), Code::Drain);
    effects(&mut gateway);
    gateway.connection_lost(ConnectionId(1));
    assert!(attach(&mut gateway, NOW, 4, &session).is_ok(), "its keys are alive: it is renewed");
    assert_eq!(gateway.in_use(), 1);
    gateway.drain(true);
    let again = effects(&mut gateway);
    assert_eq!(notified(&again), [ConnectionId(4)], "the notice comes again");
    let shared = Message::Drain(Drain { is_shared: true });
    assert!(again.iter().any(|effect| matches!(effect, Effect::Send { message, .. } if *message == shared)));
    gateway.end_drain();
    login(&mut gateway, 5, "bob", 2);
}

#[test]
fn a_drained_gateway_refuses_detached_sessions() {
    let mut before = gateway(config(1));
    let (record, answer) = stored(&mut before, 1);
    let mut gateway = gateway(config(1));
    assert!(gateway.restore(NOW, record));
    assert_eq!(gateway.in_use(), 0);
    gateway.drain(false);
    assert!(notified(&effects(&mut gateway)).is_empty());
    assert_eq!(attach(&mut gateway, NOW, 1, &answer).unwrap_err(), Code::Drain);
    effects(&mut gateway);
    gateway.end_drain();
    assert!(attach(&mut gateway, NOW, 2, &answer).is_ok(), "its token is as good as before");
}

#[test]
fn what_is_left_is_closed_and_kept_for_later() {
    let mut gateway = gateway(config(1));
    login(&mut gateway, 1, "ann", 1);
    gateway.drain(false);
    effects(&mut gateway);
    gateway.close_all(Code::Drain);
    let effects = effects(&mut gateway);
    assert!(effects.iter().any(|effect| matches!(
        effect,
        Effect::Send { message: Message::Close(close), .. } if close.code == Code::Drain
    )));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Forget(_) | Effect::Ended(_))));
    assert_eq!(gateway.in_use(), 0);
}
