//! A client whose gateway is being drained.

use super::*;

fn granted_elsewhere() -> Established {
    Established {
        session: SessionId([9; 16]),
        network: Network { ipv4: Some([10, 9, 0, 1].into()), ..Network::default() },
        ..answer(1)
    }
}

/// The move that the client begins.
fn moves(client: &mut Client) -> ConnectionId {
    let (connection, purpose) = connect(client).expect("it begins a connection");
    assert_eq!(purpose, Purpose::Move);
    connection
}

fn notice(is_shared: bool) -> Message {
    Message::Drain(Drain { is_shared })
}

#[test]
fn a_session_continues_until_another_gateway_grants_one() {
    let (mut client, old) = up();
    client.handle_message(START, old, notice(false));
    let connection = moves(&mut client);
    assert!(client.is_up() && client.session() == Some(SessionId([1; 16])), "as before");
    client.handle_message(START, old, notice(false));
    assert_eq!(connect(&mut client), None, "one at a time");
    grant(&mut client, START, connection, &granted_elsewhere());
    assert_eq!(client.session(), Some(SessionId([9; 16])));
    let done = actions(&mut client);
    let said_bye = done.iter().position(
        |action| matches!(action, Action::Send { connection, message: Message::Bye } if *connection == old),
    );
    let closed = done.iter().position(
        |action| matches!(action, Action::Disconnect { connection, code: Code::Bye } if *connection == old),
    );
    assert!(said_bye.is_some() && said_bye < closed, "{done:?}");
    assert!(done.iter().any(|action| matches!(action, Action::Configure(_))));
}

#[test]
fn a_move_that_fails_changes_nothing() {
    let (mut client, old) = up();
    type Failure = fn(&mut Client, ConnectionId);
    let failures: [Failure; 4] = [
        |client, connection| client.connect_failed(START, connection),
        |client, connection| client.turned_away(START, connection),
        |client, connection| client.refused(START, connection, Code::NoAddress, "", Duration::ZERO),
        |client, connection| client.refused(START, connection, Code::Credentials, "", Duration::ZERO),
    ];
    for (number, fail) in failures.into_iter().enumerate() {
        client.handle_message(millis(number as u64 * 20_000), old, notice(false));
        let connection = moves(&mut client);
        fail(&mut client, connection);
        assert!(client.is_up() && client.is_within_reach() && !client.is_over());
        assert_eq!(connect(&mut client), None, "until the next notice");
        assert!(client.poll_timeout().is_none_or(|(_, reason)| reason != Reason::Reconnect));
    }
    client.handle_message(millis(80_000), old, notice(false));
    assert_eq!(connect(&mut client), None, "wrong credentials are not tried twice");
}

#[test]
fn drained_targets_of_a_move_are_skipped_a_few_times() {
    let (mut client, old) = up();
    client.handle_message(START, old, notice(false));
    let mut tries = 0;
    while let Some((connection, purpose)) = connect(&mut client) {
        assert_eq!(purpose, Purpose::Move);
        tries += 1;
        client.refused(START, connection, Code::Drain, "", Duration::ZERO);
    }
    assert!((2..20).contains(&tries), "{tries}");
    assert!(client.is_up());
}

#[test]
fn a_refusal_during_a_move_does_not_end_the_client() {
    let (mut client, old) = up();
    client.handle_message(START, old, notice(false));
    let connection = moves(&mut client);
    let close = Close { code: Code::Drain, text: Text::cut("") };
    client.handle_message(START, old, Message::Close(close));
    client.refused(START, connection, Code::Credentials, "", Duration::ZERO);
    assert!(!client.is_over());
    assert!(matches!(client.poll_timeout(), Some((_, Reason::Reconnect))), "it tries again");
}

#[test]
fn drain_is_no_reason_to_give_up() {
    let mut client = client();
    let (connection, _) = connect(&mut client).unwrap();
    client.refused(START, connection, Code::Drain, "", Duration::ZERO);
    assert!(!client.is_over());
    assert!(matches!(client.poll_timeout(), Some((_, Reason::Reconnect))));
}

/// The attach at another gateway that the client begins.
fn transfers(client: &mut Client) -> ConnectionId {
    let (connection, purpose) = connect(client).expect("it begins a connection");
    assert!(
        matches!(purpose, Purpose::Transfer { session: SessionId(id), .. } if id == [1; 16]),
        "{purpose:?}"
    );
    connection
}

#[test]
fn a_session_that_gateways_share_moves_with_its_keys_in_force() {
    let (mut client, old) = up();
    client.handle_message(START, old, notice(true));
    let connection = transfers(&mut client);
    assert!(client.is_up(), "as before");
    let epoch = epochs(&client).newest().unwrap().number;
    grant(&mut client, START, connection, &answer(epoch + 1));
    let done = actions(&mut client);
    let is_old = |at: &ConnectionId| *at == old;
    let closed = |action: &Action| matches!(action, Action::Disconnect { connection, code: Code::Superseded } if is_old(connection));
    assert!(done.iter().any(closed), "{done:?}");
    let bye = |action: &Action| matches!(action, Action::Send { message: Message::Bye, .. });
    assert!(!done.iter().any(bye), "the session is not over: {done:?}");
    let opened = |action: &Action| matches!(action, Action::Command { command: Command::Open(_), .. });
    assert!(!done.iter().any(opened), "it is the same session: {done:?}");
    assert_eq!(client.session(), Some(SessionId([1; 16])));
    assert!(
        epochs(&client).current.as_ref().is_some_and(|current| current.number == epoch),
        "until it is heard"
    );
}

#[test]
fn a_session_that_another_gateway_does_not_know_moves_by_a_login() {
    let (mut client, old) = up();
    client.handle_message(START, old, notice(true));
    let connection = transfers(&mut client);
    client.refused(START, connection, Code::Drain, "", Duration::ZERO);
    let connection = transfers(&mut client);
    client.refused(START, connection, Code::Token, "", Duration::ZERO);
    let connection = moves(&mut client);
    client.refused(START, connection, Code::Credentials, "", Duration::ZERO);
    assert!(client.is_up() && connect(&mut client).is_none());
    client.handle_message(millis(20_000), old, notice(false));
    assert_eq!(connect(&mut client), None, "wrong credentials are not tried twice");
    client.handle_message(millis(40_000), old, notice(true));
    transfers(&mut client);
}
