//! Gateways that have their clients log in again and again: each way to a login goes through a
//! wait.

use super::*;

/// The treatment of each client that a gateway admits.
#[derive(Clone, Copy, Debug)]
enum Gateway {
    /// Sends it to others, which let it in and do the same.
    SendsOn,
    /// Sends it to others, which are drained, too.
    Drains,
    /// Wakes it, and knows no token.
    Wakes,
    /// Loses the connection, and knows no token.
    Loses,
    /// Ends the session.
    Closes,
}

impl Gateway {
    fn act(self, now: Time, client: &mut Client) {
        let Some(connection) = client.connections.current else { return };
        let close = || Message::Close(Close { code: Code::Token, text: Text::default() });
        match self {
            Self::SendsOn | Self::Drains => {
                client.handle_message(now, connection, Message::Drain(Drain { is_shared: false }));
            }
            Self::Wakes => client.handle_message(now, connection, Message::Wake),
            Self::Loses => client.connection_lost(now, connection, None),
            Self::Closes => client.handle_message(now, connection, close()),
        }
    }
}

/// Logins and moves in two minutes.
fn logins(gateway: Gateway) -> u32 {
    let (mut client, old) = up();
    let mut logins = 1;
    for step in 1..=1_200 {
        let now = millis(step * 100);
        gateway.act(now, &mut client);
        // Whatever was kept of a connection that is over.
        client.handle_message(now, old, Message::Wake);
        if step % 7 == 0 {
            client.network_changed(now);
        }
        client.handle_timeout(now);
        while let Some((connection, purpose)) = connect(&mut client) {
            logins += u32::from(!matches!(purpose, Purpose::Attach { .. }));
            match (gateway, purpose) {
                (_, Purpose::Attach { .. }) => {
                    client.refused(now, connection, Code::Token, "", Duration::ZERO);
                }
                (Gateway::Drains, Purpose::Move) => {
                    client.refused(now, connection, Code::Drain, "", Duration::ZERO);
                }
                _ => {
                    let session = SessionId([logins as u8; 16]);
                    grant(&mut client, now, connection, &Established { session, ..answer(1) });
                    hear(&mut client, now, 1);
                }
            }
        }
    }
    assert!(!client.is_over());
    logins
}

#[test]
fn no_gateway_has_its_clients_log_in_all_the_time() {
    for (gateway, most) in [
        (Gateway::SendsOn, 20),
        // Those that are drained look at no password; each notice is followed to eight of them.
        (Gateway::Drains, 6 * 8 + 20),
        (Gateway::Wakes, 20),
        (Gateway::Loses, 20),
        (Gateway::Closes, 20),
    ] {
        let logins = logins(gateway);
        assert!((2..=most).contains(&logins), "{logins} logins in two minutes: {gateway:?}");
    }
}

#[test]
fn a_gateway_that_has_refused_until_later_is_asked_no_sooner() {
    let (mut client, old) = up();
    client.handle_message(START, old, Message::Wake);
    let (connection, _) = connect(&mut client).unwrap();
    client.refused(START, connection, Code::Busy, "", Duration::from_secs(10));
    for second in 1..10 {
        client.handle_message(millis(second * 1_000), old, Message::Wake);
        assert_eq!(connect(&mut client), None, "after {second} s");
    }
    let (due, _) = client.poll_timeout().expect("it tries again");
    client.handle_timeout(due.max(millis(20_000)));
    assert!(connect(&mut client).is_some());
}
