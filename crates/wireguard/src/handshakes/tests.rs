use super::*;

const fn ms(millis: u64) -> Time {
    Time::from_nanos(millis * 1_000_000)
}

fn random(seed: u64) -> Random {
    let mut state = seed;
    Box::new(move |bytes| {
        for byte in bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
    })
}

fn end(byte: u8) -> Handshakes {
    Handshakes::new(StaticKey::new(Secret::new([byte; 32])), random(u64::from(byte)))
}

/// A client and a gateway that know each other.
fn pair() -> (Handshakes, Handshakes) {
    let (mut client, mut gateway) = (end(1), end(2));
    client.add(gateway.public(), Known::default()).expect("an ordinary key");
    gateway.add(client.public(), Known::default()).expect("an ordinary key");
    (client, gateway)
}

/// The first message that the client sends at this time of its day.
fn begin(client: &mut Handshakes, gateway: PublicKey, day_s: u64) -> Initiation {
    let reply = client.handle(ms(0), Duration::from_secs(day_s), &Request::Initiate(gateway));
    let Reply::Initiated(message, _) = reply else { panic!("{reply:?}") };
    message
}

fn respond(gateway: &mut Handshakes, now: Time, message: Initiation) -> Result<Responded, Refused> {
    match gateway.handle(now, Duration::ZERO, &Request::Respond(message)) {
        Reply::Responded(responded) => Ok(*responded),
        Reply::Refused(refused) => Err(refused),
        other => panic!("{other:?}"),
    }
}

fn finish(client: &mut Handshakes, peer: PublicKey, response: Response) -> Result<SessionKeys, Refused> {
    match client.handle(ms(0), Duration::ZERO, &Request::Finish(peer, response)) {
        Reply::Finished(keys) => Ok(keys),
        Reply::Refused(refused) => Err(refused),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_handshake_gives_both_ends_the_same_keys_once() {
    let (mut client, mut gateway) = pair();
    let message = begin(&mut client, gateway.public(), 100);
    let answer = respond(&mut gateway, ms(0), message).expect("a known peer");
    assert_eq!(answer.peer, client.public());
    let keys = finish(&mut client, gateway.public(), answer.response).expect("it was begun");
    assert_eq!((&keys.send, &keys.receive), (&answer.keys.receive, &answer.keys.send));
    let again = finish(&mut client, gateway.public(), answer.response);
    assert_eq!(again, Err(Refused::NotBegun(gateway.public())));
}

#[test]
fn a_replayed_handshake_is_refused_also_after_a_restart() {
    let (mut client, mut gateway) = pair();
    let old = begin(&mut client, gateway.public(), 100);
    let new = begin(&mut client, gateway.public(), 200);
    let latest = respond(&mut gateway, ms(0), new).expect("a known peer").timestamp;
    let replayed = Refused::Replayed(client.public());
    assert_eq!(respond(&mut gateway, ms(1_000), new).err(), Some(replayed), "the same");
    assert_eq!(respond(&mut gateway, ms(2_000), old).err(), Some(replayed), "an earlier one");
    assert_eq!(gateway.latest(&client.public()), Some(latest));

    let mut restarted = end(2);
    restarted.add(client.public(), Known { latest: Some(latest), ..Known::default() }).expect("a known key");
    assert_eq!(respond(&mut restarted, ms(0), new).err(), Some(replayed));
    let newer = begin(&mut client, restarted.public(), 201);
    assert!(respond(&mut restarted, ms(0), newer).is_ok());
    // Changing a peer does not let old messages in.
    restarted.add(client.public(), Known::default()).expect("a known key");
    assert_eq!(respond(&mut restarted, ms(3_000), newer).err(), Some(replayed));
}

#[test]
fn a_refused_message_changes_nothing() {
    let (mut client, mut gateway) = pair();
    let mut forged = begin(&mut client, gateway.public(), 100);
    let honest = begin(&mut client, gateway.public(), 50);
    forged.sealed_timestamp[0] ^= 1;
    assert_eq!(respond(&mut gateway, ms(0), forged).err(), Some(NotAuthentic.into()));
    assert_eq!(gateway.latest(&client.public()), None);
    assert!(respond(&mut gateway, ms(0), honest).is_ok());
}

#[test]
fn own_timestamps_increase_although_the_clock_is_set_back() {
    let (mut client, mut gateway) = pair();
    for (turn, day_s) in [500, 500, 100, 501].into_iter().enumerate() {
        let message = begin(&mut client, gateway.public(), day_s);
        assert!(respond(&mut gateway, ms(turn as u64 * 100), message).is_ok(), "turn {turn}");
    }
    // Nor after a restart, if the store knows the latest of them.
    let latest = gateway.latest(&client.public());
    let mut restarted = end(1);
    restarted.add(gateway.public(), Known { latest_own: latest, ..Known::default() }).expect("a known key");
    let message = begin(&mut restarted, gateway.public(), 3);
    assert!(respond(&mut gateway, ms(1_000), message).is_ok());
}

#[test]
fn a_peer_may_not_begin_handshakes_without_end() {
    let (mut client, mut gateway) = pair();
    let mut answered = 0;
    for millis in 0..1_000 {
        let message = begin(&mut client, gateway.public(), 100);
        answered += u64::from(respond(&mut gateway, ms(millis), message).is_ok());
    }
    assert_eq!(answered, 50);
}

#[test]
fn an_unknown_key_is_named_and_a_removed_one_is_unknown() {
    let (mut client, mut gateway) = pair();
    gateway.remove(&client.public());
    let message = begin(&mut client, gateway.public(), 100);
    let refused = respond(&mut gateway, ms(0), message).err();
    assert_eq!(refused, Some(Refused::UnknownKey(client.public())));
    let text = refused.expect("it was refused").to_string();
    let key = client.public().to_string();
    assert!(text.contains(&key[..8]) && !text.contains(&key[..9]), "{text}");
}

#[test]
fn a_changed_preshared_key_counts_from_the_next_handshake_on() {
    let (mut client, mut gateway) = pair();
    let preshared = || Known { preshared: Some(Secret::new([5; 32])), ..Known::default() };
    gateway.add(client.public(), preshared()).expect("a known key");
    let message = begin(&mut client, gateway.public(), 100);
    let answer = respond(&mut gateway, ms(0), message).expect("only the response has it");
    let refused = finish(&mut client, gateway.public(), answer.response);
    assert_eq!(refused.err(), Some(NotAuthentic.into()), "the client has none yet");
    client.add(gateway.public(), preshared()).expect("a known key");
    let message = begin(&mut client, gateway.public(), 101);
    let answer = respond(&mut gateway, ms(100), message).expect("a known peer");
    assert!(finish(&mut client, gateway.public(), answer.response).is_ok());
}

#[test]
fn keys_that_no_device_can_have_are_not_added() {
    let mut gateway = end(2);
    let own = gateway.public();
    assert_eq!(gateway.add(own, Known::default()), Err(NotAdded::Own));
    for point in crate::key::tests::LOW_ORDER {
        assert_eq!(gateway.add(PublicKey(point), Known::default()), Err(NotAdded::LowOrder));
    }
}
