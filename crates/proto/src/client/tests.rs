//! Behaviour that the simulation does not show: answers that do not fit, waits, and the exact times
//! of probes.

use vpnd_crypto::{Backend, Suite};

use super::epoch::{Epoch, Epochs};
use super::path_mtu::PATH_PROBE;
use super::*;
use crate::attach::Token;
use crate::control::{Close, Drain, List, Network, Text, TimersMs, Update};
use crate::session::{LocalSuite, Timers};
use crate::wire::Index;

mod lane_ports;
mod logins;
mod moving;
mod renewal;

const START: Time = Time::from_nanos(1_000_000_000);

fn client() -> Client {
    client_of(5)
}

fn client_of(seed: u64) -> Client {
    use rand::{Rng, SeedableRng};
    let config = Config {
        lanes: 2,
        suites: vec![local(Suite::Aes128Gcm), local(Suite::Null)],
        features: 1,
        lab: None,
        timers: Timers::default(),
    };
    let mut rng = rand::rngs::Xoshiro256PlusPlus::seed_from_u64(seed);
    Client::new(config, Box::new(move |bytes| rng.fill_bytes(bytes))).unwrap()
}

fn local(suite: Suite) -> LocalSuite {
    LocalSuite { suite, backend: Backend::Ring, mbps: 1000 }
}

fn answer(epoch: u32) -> Established {
    Established {
        session: SessionId([1; 16]),
        epoch,
        suite: 1,
        indexes: List::new(vec![10, 11]).unwrap(),
        gateway_lanes: 4,
        features: 1,
        token: Token::from_bytes([epoch as u8; 32]),
        network: Network { ipv4: Some([10, 0, 0, 1].into()), ..Network::default() },
        timers: TimersMs::default(),
    }
}

fn actions(client: &mut Client) -> Vec<Action> {
    core::iter::from_fn(|| client.poll_action()).collect()
}

/// The connection that the client asks for, and what for.
fn connect(client: &mut Client) -> Option<(ConnectionId, Purpose)> {
    actions(client).into_iter().find_map(|action| match action {
        Action::Connect { connection, purpose, .. } => Some((connection, purpose)),
        _ => None,
    })
}

fn grant(client: &mut Client, now: Time, connection: ConnectionId, answer: &Established) {
    let gateway = Endpoint { remote: "192.0.2.1:1".parse().unwrap(), local: None };
    client.established(now, connection, answer, EpochSecret::new([1; 32]), gateway);
}

fn epochs(client: &Client) -> &Epochs {
    &client.session.as_ref().unwrap().epochs
}

fn hear(client: &mut Client, now: Time, epoch: u32) {
    let slot = client.session.as_ref().unwrap().terms.slot;
    let endpoint = Endpoint { remote: "192.0.2.1:1".parse().unwrap(), local: None };
    client.handle_event(now, Event::Heard { slot, epoch, lane: 0, endpoint });
}

/// A client with a confirmed epoch, all of its probes answered.
fn up() -> (Client, ConnectionId) {
    let mut client = client();
    let (connection, purpose) = connect(&mut client).unwrap();
    assert_eq!(purpose, Purpose::Login);
    grant(&mut client, START, connection, &answer(1));
    hear(&mut client, START, 1);
    let slot = client.session.as_ref().unwrap().terms.slot;
    for (_, id) in all_probes(&mut client) {
        client.handle_event(START, Event::ProbeReply { slot, lane: 0, id, size: 4 });
    }
    assert!(client.is_up());
    let mtus = actions(&mut client).into_iter().filter_map(|action| match action {
        Action::PathMtu(mtu) => Some(mtu),
        Action::Command { command: Command::PathSize { size, .. }, .. } => {
            assert_eq!(size, DEFAULT_MTU + 32);
            None
        }
        other => panic!("nothing else is left to do: {other:?}"),
    });
    assert_eq!(mtus.collect::<Vec<_>>(), [DEFAULT_MTU], "the path carries all");
    (client, connection)
}

/// The probes for life that are sent: shard and number.
fn probes(client: &mut Client) -> Vec<(usize, u16)> {
    all_probes(client).into_iter().filter(|(_, id)| id & PATH_PROBE == 0).collect()
}

/// Returns all probes, with those for the path's MTU.
fn all_probes(client: &mut Client) -> Vec<(usize, u16)> {
    let probes = actions(client).into_iter().filter_map(|action| match action {
        Action::Command { shard, command: Command::Probe { id, .. } } => Some((shard, id)),
        _ => None,
    });
    probes.collect()
}

fn millis(after: u64) -> Time {
    START + Duration::from_millis(after)
}

#[test]
fn answers_that_do_not_fit_are_refused() {
    let good = answer(1);
    let bad = [
        Established { suite: 2, ..good.clone() },
        Established { suite: 77, ..good.clone() },
        // Offered, but the client was not started for the laboratory.
        Established { suite: 0xF000, ..good.clone() },
        Established { indexes: List::new(vec![10]).unwrap(), ..good.clone() },
        Established { indexes: List::new(vec![10, 11, 12]).unwrap(), ..good.clone() },
        Established { gateway_lanes: 0, ..good.clone() },
        Established { gateway_lanes: 65, ..good.clone() },
    ];
    for bad in bad {
        let mut client = client();
        let (connection, _) = connect(&mut client).unwrap();
        grant(&mut client, START, connection, &bad);
        let [Action::Disconnect { code: Code::BadRequest, .. }] = actions(&mut client)[..] else {
            panic!("{bad:?} was taken")
        };
        assert_eq!(client.poll_timeout().map(|(_, reason)| reason), Some(Reason::Reconnect));
    }
}

#[test]
fn an_attach_continues_its_session_in_order() {
    let other = Established { session: SessionId([2; 16]), ..answer(2) };
    for bad in [answer(1), answer(0), other] {
        let (mut client, first) = up();
        client.connection_lost(START, first, None);
        let (connection, purpose) = connect(&mut client).unwrap();
        let wanted = Purpose::Attach { session: SessionId([1; 16]), token: answer(1).token };
        assert_eq!(purpose, wanted);
        grant(&mut client, START, connection, &bad);
        assert!(matches!(actions(&mut client)[..], [Action::Disconnect { code: Code::BadRequest, .. }]));
        assert_eq!(epochs(&client).current.as_ref().map(|epoch| epoch.number), Some(1), "ours is still good");
    }
}

/// The codes that end a client, as PROTOCOL §11 lists them.
fn published_as_final() -> Vec<Code> {
    let page = include_str!("../../../../docs/PROTOCOL.md");
    let (_, list) = page.split_once("a code that waiting does not cure (").expect("the page has the list");
    let (list, _) = list.split_once(')').expect("it ends");
    let named = |name: &str| Code::KNOWN.iter().copied().find(|code| code.name() == name).expect(name);
    list.split(',').map(|name| named(name.trim())).collect()
}

#[test]
fn the_codes_that_waiting_does_not_cure_end_a_client_and_no_others() {
    let published = published_as_final();
    assert_eq!(published.len(), 10);
    for code in (0..21).map(Code::from) {
        let mut client = client();
        let (connection, _) = connect(&mut client).unwrap();
        client.refused(START, connection, code, "no", Duration::ZERO);
        let ended = actions(&mut client).iter().any(|action| matches!(action, Action::GiveUp { .. }));
        assert_eq!(ended, published.contains(&code), "{code:?} in a refusal");

        let (mut client, connection) = (self::client(), ConnectionId(0));
        client.connections.current = Some(connection);
        client.handle_message(START, connection, Message::Close(Close { code, text: Text::default() }));
        let ended = actions(&mut client).iter().any(|action| matches!(action, Action::GiveUp { .. }));
        let expected = published.contains(&code) && code != Code::BadRequest;
        assert_eq!(ended, expected, "{code:?} in a close");
    }
}

#[test]
fn wrong_credentials_are_final() {
    for code in published_as_final() {
        let mut client = client();
        let (connection, _) = connect(&mut client).unwrap();
        client.refused(START, connection, code, "no", Duration::ZERO);
        let done = actions(&mut client);
        assert!(
            matches!(&done[..], [Action::Disconnect { .. }, Action::GiveUp { code: why, .. }] if *why == code)
        );
        client.network_changed(START);
        client.handle_timeout(START + Duration::from_secs(3600));
        assert_eq!(actions(&mut client).len(), 0, "nothing starts it again");
        assert_eq!(client.poll_timeout(), None);
    }
}

#[test]
fn waits_double_up_to_their_limit_and_jitter() {
    let mut client = client();
    let mut now = START;
    let mut seen = Vec::new();
    for attempt in 0..12u32 {
        let (connection, _) = connect(&mut client).unwrap();
        client.connect_failed(now, connection);
        let (at, reason) = client.poll_timeout().unwrap();
        assert_eq!(reason, Reason::Reconnect);
        let base = (0.5 * 2f64.powi(attempt as i32)).min(30.0);
        let ratio = (at - now).as_secs_f64() / base;
        assert!((0.5..=1.5).contains(&ratio), "attempt {attempt} waits {ratio} of {base} s");
        seen.push(ratio);
        client.handle_timeout(Time::from_nanos(at.as_nanos() - 1));
        assert!(client.poll_action().is_none());
        client.handle_timeout(at);
        now = at;
    }
    let spread = seen.iter().copied().fold(0.0, f64::max) - seen.iter().copied().fold(2.0, f64::min);
    assert!(spread > 0.4, "clients that failed together come back apart");
}

#[test]
fn a_gateway_without_a_place_is_asked_again_within_seconds() {
    let mut client = client();
    let mut now = START;
    for attempt in 0..20u32 {
        let (connection, _) = connect(&mut client).unwrap();
        // It was out of reach for long before.
        if (8..14).contains(&attempt) {
            client.connect_failed(now, connection);
        } else {
            client.turned_away(now, connection);
        }
        let (at, _) = client.poll_timeout().unwrap();
        let base = match attempt {
            0..3 => 0.5 * 2f64.powi(attempt as i32),
            8..14 => (4.0 * 2f64.powi(attempt as i32 - 7)).min(30.0),
            _ => 4.0,
        };
        let ratio = (at - now).as_secs_f64() / base;
        assert!((0.5..=1.5).contains(&ratio), "attempt {attempt} waits {ratio} of {base} s");
        client.handle_timeout(at);
        now = at;
    }
    client.turned_away(now, ConnectionId(999));
    assert!(connect(&mut client).is_some(), "a stranger's refusal changes nothing");
}

#[test]
fn a_busy_gateway_says_when() {
    let mut client = client();
    let (connection, _) = connect(&mut client).unwrap();
    client.refused(START, connection, Code::Busy, "", Duration::from_secs(77));
    let (at, reason) = client.poll_timeout().unwrap();
    assert_eq!(reason, Reason::Reconnect);
    assert!((77..=154).contains(&(at - START).as_secs()), "{at:?}");
}

/// Time goes on until `until`, with a change of the network each 50 ms; when there were attempts,
/// which come to `outcome`.
fn attempts(client: &mut Client, until: u64, outcome: impl Fn(&mut Client, Time, ConnectionId)) -> Vec<u64> {
    let mut begun = Vec::new();
    for at in (0..until).step_by(50) {
        client.network_changed(millis(at));
        client.handle_timeout(millis(at));
        if let Some((connection, _)) = connect(client) {
            begun.push(at);
            outcome(client, millis(at), connection);
        }
    }
    begun
}

#[test]
fn a_network_that_changes_all_the_time_shortens_no_wait_after_a_refusal() {
    let says_when = |client: &mut Client, now, connection| {
        client.refused(now, connection, Code::Busy, "", Duration::from_secs(7));
    };
    let begun = attempts(&mut client(), 60_000, says_when);
    assert!((3..=9).contains(&begun.len()), "{begun:?}");
    assert!(begun.windows(2).all(|pair| pair[1] - pair[0] >= 7_000), "{begun:?}");
    let says_nothing = |client: &mut Client, now, connection| {
        client.refused(now, connection, Code::Busy, "", Duration::ZERO);
    };
    let begun = attempts(&mut client(), 60_000, says_nothing);
    assert!((5..=10).contains(&begun.len()), "the waits double: {begun:?}");
    let begun =
        attempts(&mut client(), 60_000, |client, now, connection| client.turned_away(now, connection));
    assert!((12..=35).contains(&begun.len()), "up to 4 s: {begun:?}");
}

#[test]
fn logins_are_spaced_and_resume_when_the_network_is_back() {
    let fails = |client: &mut Client, now, connection| client.connect_failed(now, connection);
    let begun = attempts(&mut client(), 20_000, fails);
    assert!(begun.windows(2).skip(1).all(|pair| pair[1] - pair[0] >= 1_000), "{begun:?}");
    assert!((15..=22).contains(&begun.len()), "about one a second: {begun:?}");

    let mut client = client();
    let mut now = START;
    for _ in 0..8 {
        let (connection, _) = connect(&mut client).unwrap();
        client.connect_failed(now, connection);
        now = client.poll_timeout().unwrap().0;
        client.handle_timeout(now);
    }
    let (connection, _) = connect(&mut client).unwrap();
    client.connect_failed(now, connection);
    client.network_changed(now + Duration::from_millis(300));
    let (at, _) = client.poll_timeout().unwrap();
    assert_eq!(at, now + Duration::from_secs(1), "not after the half minute that it would have waited");
}

#[test]
fn an_attach_waits_for_nothing_when_the_network_changes() {
    let (mut client, connection) = up();
    client.connection_lost(START, connection, None);
    let (connection, _) = connect(&mut client).unwrap();
    client.connect_failed(START, connection);
    client.network_changed(millis(1));
    let (connection, purpose) = connect(&mut client).unwrap();
    assert!(matches!(purpose, Purpose::Attach { .. }));
    client.refused(millis(2), connection, Code::Busy, "", Duration::from_secs(5));
    client.network_changed(millis(3));
    assert!(connect(&mut client).is_none(), "the gateway has said when");
}

#[test]
fn a_void_token_leads_to_a_login() {
    let (mut client, connection) = up();
    client.connection_lost(START, connection, None);
    let (connection, _) = connect(&mut client).unwrap();
    client.refused(START, connection, Code::Token, "", Duration::ZERO);
    let done = actions(&mut client);
    let closed =
        done.iter().filter(|a| matches!(a, Action::Command { command: Command::Close(_), .. })).count();
    assert_eq!(closed, 2, "the keys of the session that is no more are erased");
    assert!(matches!(done.last(), Some(Action::Connect { purpose: Purpose::Login, .. })));
}

/// Logins in the first minute of a client whose every session is closed with `code` after 100 ms.
fn logins_in_a_minute(code: Code) -> usize {
    let (mut client, mut connection) = up();
    let (mut now, mut logins) = (START, 1);
    let minute = START + Duration::from_secs(60);
    loop {
        now = now + Duration::from_millis(100);
        client.handle_message(now, connection, Message::Close(Close { code, text: Text::default() }));
        let begun = loop {
            if let Some((next, purpose)) = connect(&mut client) {
                assert_eq!(purpose, Purpose::Login);
                break next;
            }
            now = client.poll_timeout().expect("it tries again").0;
            client.handle_timeout(now);
            // A laptop changes its network like this, again and again.
            client.network_changed(now);
        };
        if now > minute {
            return logins;
        }
        connection = begun;
        logins += 1;
        grant(&mut client, now, connection, &answer(logins as u32));
    }
}

#[test]
fn sessions_that_are_closed_again_and_again_lead_to_few_logins() {
    for code in [Code::Lifetime, Code::Token] {
        let logins = logins_in_a_minute(code);
        assert!((3..=10).contains(&logins), "{logins} logins a minute after {code:?}");
    }
}

#[test]
fn a_session_that_worked_for_a_while_is_followed_by_a_login_at_once() {
    let (mut client, connection) = up();
    let close = |code| Message::Close(Close { code, text: Text::default() });
    let mut now = START + Duration::from_secs(3_600);
    client.handle_message(now, connection, close(Code::Lifetime));
    for number in 2..6 {
        let (connection, purpose) = connect(&mut client).expect("at once");
        assert_eq!(purpose, Purpose::Login);
        grant(&mut client, now, connection, &answer(number));
        now = now + Duration::from_secs(3_600);
        client.handle_message(now, connection, close(Code::Lifetime));
    }
}

#[test]
fn a_superseded_session_is_attached_again_once() {
    let (mut client, connection) = up();
    let close = Close { code: Code::Superseded, text: Text::default() };
    client.handle_message(START, connection, Message::Close(close));
    let (connection, purpose) = connect(&mut client).unwrap();
    assert!(matches!(purpose, Purpose::Attach { .. }));
    client.refused(START, connection, Code::Token, "", Duration::ZERO);
    let done = actions(&mut client);
    assert!(matches!(done.last(), Some(Action::GiveUp { code: Code::Superseded, .. })), "{done:?}");
}

#[test]
fn an_attach_of_our_own_supersedes_nothing() {
    let (mut client, old) = up();
    client.handle_message(START, old, Message::Wake);
    let (new, _) = connect(&mut client).unwrap();
    client.connection_lost(START, old, Some(Code::Superseded));
    assert_eq!(actions(&mut client).len(), 0, "the new connection is on its way");
    client.connect_failed(START, new);
    client.handle_timeout(millis(800));
    let (_, purpose) = connect(&mut client).unwrap();
    assert!(matches!(purpose, Purpose::Attach { .. }), "its answer was lost, the token is good");
}

#[test]
fn the_network_is_set_up_when_it_changes() {
    let (mut client, first) = up();
    let configured = |client: &mut Client| {
        let all = actions(client).into_iter();
        all.filter_map(|action| if let Action::Configure(network) = action { Some(network) } else { None })
            .last()
    };
    client.handle_message(START, first, Message::Wake);
    let (second, _) = connect(&mut client).unwrap();
    grant(&mut client, START, second, &answer(2));
    assert_eq!(configured(&mut client), None, "it is the same");
    let mut network = answer(2).network;
    network.mtu = Some(1280);
    network.ipv4 = Some([10, 0, 0, 99].into());
    client.handle_message(START, second, Message::Update(Update { network: network.clone() }));
    network.ipv4 = Some([10, 0, 0, 1].into());
    assert_eq!(configured(&mut client), Some(network), "but the address of a session does not change");
    // A connection that was replaced says nothing any more.
    let update = Update { network: Network::default() };
    client.handle_message(START, first, Message::Update(update));
    assert_eq!(configured(&mut client), None);
}

#[test]
fn a_new_epoch_is_probed_until_heard() {
    let mut client = client();
    let (connection, _) = connect(&mut client).unwrap();
    grant(&mut client, START, connection, &answer(1));
    let first = probes(&mut client);
    assert_eq!(first.iter().map(|probe| probe.0).collect::<Vec<_>>(), [0, 1], "one on each lane");
    for at in [250, 750, 1750, 2750] {
        client.handle_timeout(millis(at - 1));
        assert_eq!(probes(&mut client), [], "not before {at} ms");
        client.handle_timeout(millis(at));
        assert_eq!(probes(&mut client), first, "at {at} ms");
    }
    client.handle_timeout(millis(3750));
    let done = actions(&mut client);
    let retired =
        done.iter().filter(|a| matches!(a, Action::Command { command: Command::Retire { .. }, .. }));
    assert_eq!(retired.count(), 2, "five rounds without an answer: {done:?}");
    assert_eq!(client.poll_timeout().map(|(_, reason)| reason), Some(Reason::Reconnect));
}

#[test]
fn an_answer_in_the_epoch_before_does_not_confirm_the_new_one() {
    let (mut client, connection) = up();
    client.handle_message(START, connection, Message::Wake);
    let (connection, _) = connect(&mut client).unwrap();
    grant(&mut client, START, connection, &answer(2));
    let sent = probes(&mut client);
    let slot = client.session.as_ref().unwrap().terms.slot;
    let reply = |client: &mut Client| {
        for (_, id) in &sent {
            client.handle_event(START, Event::ProbeReply { slot, lane: 0, id: *id, size: 4 });
        }
    };
    reply(&mut client);
    client.handle_timeout(millis(250));
    assert_eq!(probes(&mut client), sent, "still asked");
    hear(&mut client, millis(250), 2);
    reply(&mut client);
    client.handle_timeout(millis(750));
    assert_eq!(probes(&mut client), []);
    assert_eq!(client.output.timers.get(Reason::Probe), None);
    assert_eq!(client.output.timers.get(Reason::Retire), Some(START + Duration::from_millis(10_250)));
}

/// A client that sent one packet, of which nothing was heard in a second.
fn silent() -> Client {
    let (mut client, _) = up();
    let sent = Activity { tx_packets: 1, last_tx_packet: millis(100), ..Activity::default() };
    client.handle_activity(millis(1000), 0, sent);
    client.handle_activity(millis(1099), 0, Activity::default());
    assert_eq!(actions(&mut client).len(), 0);
    client.handle_activity(millis(1100), 0, Activity::default());
    client
}

#[test]
fn silence_is_noticed_and_soon_ends_in_an_attach_beside_the_probes() {
    let mut client = silent();
    assert_eq!(probes(&mut client).len(), 2);
    client.handle_timeout(millis(1599));
    assert_eq!(actions(&mut client).len(), 0);
    client.handle_timeout(millis(1600));
    let doubt = actions(&mut client);
    let is_attach =
        |action: &Action| matches!(action, Action::Connect { purpose: Purpose::Attach { .. }, .. });
    let is_probe = |action: &Action| matches!(action, Action::Command { command: Command::Probe { id, .. }, .. } if id & PATH_PROBE == 0);
    assert_eq!(doubt.iter().filter(|action| is_attach(action)).count(), 1);
    assert_eq!(doubt.iter().filter(|action| is_probe(action)).count(), 2, "the old keys may be good yet");
    for round in 2..5 {
        client.handle_timeout(millis(600 + 1000 * round));
        assert_eq!(probes(&mut client).len(), 2, "round {round}");
    }
    client.handle_timeout(millis(5_600));
    assert_eq!(connect(&mut client), None, "it is being made already");
}

#[test]
fn a_lane_that_never_answers_hides_no_silence() {
    let mut client = client();
    let (connection, _) = connect(&mut client).unwrap();
    grant(&mut client, START, connection, &answer(1));
    hear(&mut client, START, 1);
    let slot = client.session.as_ref().unwrap().terms.slot;
    let asked = all_probes(&mut client);
    for (_, id) in asked.into_iter().filter(|(lane, id)| *lane == 0 || id & PATH_PROBE != 0) {
        client.handle_event(START, Event::ProbeReply { slot, lane: 0, id, size: 4 });
    }
    client.handle_timeout(millis(250));
    assert_eq!(probes(&mut client).len(), 1, "the other lane is asked again");
    let sent = Activity { tx_packets: 1, last_tx_packet: millis(300), ..Activity::default() };
    client.handle_activity(millis(1_000), 0, sent);
    assert_eq!(probes(&mut client).len(), 0);
    client.handle_activity(millis(1_300), 0, Activity::default());
    assert_eq!(probes(&mut client).len(), 2, "both lanes are asked");
    client.handle_timeout(millis(1_800));
    assert!(connect(&mut client).is_some(), "an attach");
}

#[test]
fn a_changed_network_is_doubted_soon_whatever_was_waited_for_before() {
    let mut client = silent();
    client.handle_timeout(millis(1_600));
    let (mut connection, _) = connect(&mut client).expect("the attach in doubt");
    let mut now = millis(1_600);
    for _ in 0..8 {
        client.connect_failed(now, connection);
        now = client.output.timers.get(Reason::Reconnect).expect("it tries again");
        client.handle_timeout(now);
        (connection, _) = connect(&mut client).expect("it tries again");
    }
    client.connect_failed(now, connection);
    client.network_changed(now);
    assert_eq!(probes(&mut client).len(), 2);
    client.handle_timeout(now + Duration::from_millis(249));
    assert_eq!(actions(&mut client).len(), 0);
    client.handle_timeout(now + Duration::from_millis(250));
    let Some((_, Purpose::Attach { .. })) = connect(&mut client) else { panic!("no attach") };
}

#[test]
fn a_gateway_is_in_doubt_from_the_second_round_of_probes_until_it_is_heard() {
    let mut client = silent();
    assert!(!client.is_in_doubt(), "one probe may be lost");
    client.handle_timeout(millis(1_600));
    assert!(client.is_in_doubt());
    let heard = Activity { last_rx: millis(1_700), ..Activity::default() };
    client.handle_activity(millis(1_750), 0, heard);
    assert!(!client.is_in_doubt());

    client.network_changed(millis(2_000));
    let asked = probes(&mut client);
    assert!(!client.is_in_doubt());
    client.handle_timeout(millis(2_250));
    assert!(client.is_in_doubt());
    let &(_, id) = asked.last().expect("two probes");
    let slot = client.session.as_ref().expect("it is up").terms.slot;
    client.handle_event(millis(2_300), Event::ProbeReply { slot, lane: 0, id, size: 4 });
    assert!(!client.is_in_doubt());
}

#[test]
fn an_answer_to_the_first_probe_after_silence_makes_an_attach_needless() {
    let mut client = silent();
    let asked = probes(&mut client);
    let &(_, id) = asked.first().expect("two probes");
    let slot = client.session.as_ref().expect("it is up").terms.slot;
    client.handle_event(millis(1150), Event::ProbeReply { slot, lane: 0, id, size: 4 });
    for at in [1600, 2600, 3600, 9600] {
        client.handle_timeout(millis(at));
        assert_eq!(connect(&mut client), None);
    }
}

#[test]
fn an_answer_after_a_long_silence_ends_the_wait_for_a_connection_but_not_one_that_was_ordered() {
    for ordered in [false, true] {
        let mut client = silent();
        client.handle_timeout(millis(1_600));
        let (mut connection, _) = connect(&mut client).expect("the attach in doubt");
        let mut now = millis(1_600);
        for _ in 0..8 {
            client.connect_failed(now, connection);
            let at = client.output.timers.get(Reason::Reconnect).expect("it tries again");
            while now < at {
                now = (now + Duration::from_secs(1)).min(at);
                client.handle_timeout(now);
            }
            (connection, _) = connect(&mut client).expect("it tries again");
        }
        if ordered {
            client.refused(now, connection, Code::Busy, "", Duration::from_secs(20));
        } else {
            client.connect_failed(now, connection);
        }
        let waits_until = |client: &Client| client.output.timers.get(Reason::Reconnect).expect("it waits");
        let before = waits_until(&client);
        assert!(before > now + Duration::from_secs(10));
        let sent = Activity { last_tx: now, last_tx_packet: now, ..Activity::default() };
        client.handle_activity(now, 0, sent);
        client.handle_activity(now + Duration::from_secs(1), 0, Activity::default());
        let asked = probes(&mut client);
        let &(_, id) = asked.first().expect("a packet was sent into the silence");
        let slot = client.session.as_ref().expect("it is up").terms.slot;
        now = now + Duration::from_millis(1_100);
        client.handle_event(now, Event::ProbeReply { slot, lane: 0, id, size: 4 });
        if ordered {
            assert_eq!(waits_until(&client), before);
        } else {
            assert!(waits_until(&client) <= now + Duration::from_secs(1));
        }
    }
}

#[test]
fn a_gateway_that_is_heard_after_a_failed_attempt_is_within_reach() {
    type Heard = fn(&mut Client, Time);
    let arrivals: [Heard; 2] = [
        |client, now| client.handle_activity(now, 0, Activity { last_rx: now, ..Activity::default() }),
        |client, now| {
            // The state after a suspend in which the attempt's time ran out.
            client.resumed(now);
            let slot = client.session.as_ref().expect("it is up").terms.slot;
            let &(_, id) = probes(client).first().expect("it looks for the gateway");
            client.handle_event(now, Event::ProbeReply { slot, lane: 0, id, size: 4 });
        },
    ];
    for heard in arrivals {
        let mut client = silent();
        client.handle_timeout(millis(1_600));
        let (connection, _) = connect(&mut client).expect("the attach in doubt");
        client.connect_failed(millis(2_000), connection);
        client.handle_activity(millis(2_100), 0, Activity { last_rx: millis(1_900), ..Activity::default() });
        assert!(client.is_up() && !client.is_within_reach(), "that came before");
        heard(&mut client, millis(2_200));
        assert!(client.is_within_reach());
    }
}

#[test]
fn retry_times_after_a_refusal_are_spread() {
    let wait = Duration::from_secs(10);
    let waits = (0..40).map(|seed| {
        let mut client = client_of(seed);
        client.refused(START, ConnectionId(0), Code::Busy, "", wait);
        client.output.timers.get(Reason::Reconnect).expect("it tries again") - START
    });
    let waits: std::collections::BTreeSet<Duration> = waits.collect();
    let (first, last) = (*waits.first().expect("some"), *waits.last().expect("some"));
    assert!(first >= wait && last <= 2 * wait && last - first > wait / 2, "{first:?} to {last:?}");
}

/// The lanes that are kept alive.
fn kept(client: &mut Client) -> Vec<usize> {
    let all = actions(client).into_iter();
    let kept = all.filter_map(|action| match action {
        Action::Command { shard, command: Command::Keepalive(_) } => Some(shard),
        _ => None,
    });
    kept.collect()
}

#[test]
fn keepalives_follow_the_lane_that_was_silent() {
    let (mut client, _) = up();
    client.handle_activity(millis(20_000), 1, Activity { last_tx: millis(20_000), ..Activity::default() });
    client.handle_timeout(millis(25_000));
    assert_eq!(kept(&mut client), [0]);
    client.handle_timeout(millis(45_000));
    assert_eq!(kept(&mut client), [1]);
}

#[test]
fn keys_that_no_packet_may_use_any_more_are_not_kept_alive() {
    let (mut client, _) = up();
    client.handle_timeout(millis(154_999));
    assert_eq!(kept(&mut client), [0, 1]);
    client.handle_timeout(millis(179_999));
    assert_eq!(kept(&mut client), [0, 1], "they seal still");
    let (mut client, _) = up();
    client.handle_timeout(millis(155_000));
    assert_eq!(kept(&mut client), [0, 1]);
    client.handle_timeout(millis(180_000));
    assert_eq!((kept(&mut client), epochs(&client).is_alive()), (vec![], true), "they only open");
}

/// A packet comes on a lane; the lanes that are probed then.
fn receive(client: &mut Client, at: u64, lane: usize) -> Vec<usize> {
    let seen =
        Activity { rx_packets: 1, last_rx: millis(at), last_rx_packet: millis(at), ..Activity::default() };
    client.handle_activity(millis(at), lane, seen);
    probes(client).into_iter().map(|(shard, _)| shard).collect()
}

#[test]
fn an_idle_session_probes_no_lane() {
    let (mut client, _) = up();
    for at in (250..20_000).step_by(250) {
        client.handle_activity(millis(at), 0, Activity { last_rx: millis(at), ..Activity::default() });
        assert_eq!(probes(&mut client), [], "answers to probes are no packets");
    }
}

#[test]
fn an_idle_epoch_is_replaced_as_soon_as_it_is_used() {
    let (mut client, _) = up();
    client.handle_timeout(millis(120_000));
    assert_eq!(connect(&mut client), None, "it carried nothing");
    let used = Activity { rx_packets: 1, last_rx: millis(130_000), ..Activity::default() };
    client.handle_activity(millis(130_000), 0, used);
    assert!(matches!(connect(&mut client), Some((_, Purpose::Attach { .. }))));
}

#[test]
fn keys_are_erased_some_time_after_they_ceased_to_seal() {
    let (mut client, _) = up();
    client.handle_timeout(millis(189_999));
    assert!(epochs(&client).is_alive());
    actions(&mut client);
    client.handle_timeout(millis(190_000));
    let retired = actions(&mut client);
    let retired =
        retired.iter().filter(|a| matches!(a, Action::Command { command: Command::Retire { .. }, .. }));
    assert_eq!(retired.count(), 2);
    assert!(!epochs(&client).is_alive());
}

#[test]
fn a_session_whose_keys_ended_because_it_was_idle_is_up_until_an_attach_fails() {
    let (mut client, _) = up();
    client.handle_timeout(millis(190_000));
    assert!(!epochs(&client).is_alive() && client.is_up() && client.is_within_reach());
    let slot = client.session.as_ref().unwrap().terms.slot;
    client.handle_event(millis(200_000), Event::EpochWanted { slot });
    let (connection, _) = connect(&mut client).unwrap();
    assert!(client.is_up(), "the next packet makes others");
    client.connect_failed(millis(203_000), connection);
    assert!(!client.is_up());

    // One that is looked for already is none that rests.
    let (mut client, _) = up();
    client.handle_event(millis(170_000), Event::EpochWanted { slot });
    let (connection, _) = connect(&mut client).unwrap();
    client.connect_failed(millis(173_000), connection);
    client.handle_timeout(millis(190_000));
    assert!(!client.is_up());
}

#[test]
fn news_of_other_connections_and_sessions_are_ignored() {
    let (mut client, connection) = up();
    let stranger = ConnectionId(99);
    client.connection_lost(START, stranger, Some(Code::Kicked));
    client.refused(START, stranger, Code::Credentials, "", Duration::ZERO);
    client.connect_failed(START, stranger);
    client.handle_message(START, stranger, Message::Wake);
    let former = Slot { index: 0, generation: 0 };
    client.handle_event(START, Event::EpochWanted { slot: former });
    client.handle_event(START, Event::EpochExhausted { slot: former, epoch: 1 });
    assert_eq!(actions(&mut client).len(), 0);
    assert!(client.is_up());
    grant(&mut client, START, stranger, &answer(7));
    assert!(matches!(actions(&mut client)[..], [Action::Disconnect { connection: ConnectionId(99), .. }]));
    assert_eq!(client.connections.current, Some(connection));
}

#[test]
fn offers_name_indexes_that_are_free_and_steer_to_their_lanes() {
    let (mut client, _) = up();
    for _ in 0..50 {
        client.connector().connect();
        let offer = actions(&mut client).into_iter().find_map(|action| match action {
            Action::Connect { offer, .. } => Some(offer),
            _ => None,
        });
        let offer = offer.unwrap();
        client.abandon_attach();
        let epochs = &mut client.session.as_mut().unwrap().epochs;
        for (lane, index) in offer.indexes.iter().enumerate() {
            assert_eq!(Index(*index).shard(2), lane);
            assert!(!epochs.uses(Index(*index)));
        }
        let indexes = offer.indexes.iter().copied().map(Index).collect();
        epochs.current = Some(Epoch { number: 1, indexes, began: START, packets_before: 0 });
    }
}

#[test]
fn the_mtu_is_reported_before_the_tunnel_is_set_up() {
    let mut client = client();
    let (connection, _) = connect(&mut client).unwrap();
    grant(&mut client, START, connection, &answer(1));
    let done = actions(&mut client);
    let at = |wanted: fn(&Action) -> bool| done.iter().position(wanted).unwrap();
    assert!(at(|a| matches!(a, Action::PathMtu(1168))) < at(|a| matches!(a, Action::Configure(_))));
    let mut network = answer(1).network;
    network.mtu = Some(1000);
    client.handle_message(START, connection, Message::Update(Update { network }));
    let rest = |action: &Action| !matches!(action, Action::Command { command: Command::PathSize { .. }, .. });
    let done: Vec<Action> = actions(&mut client).into_iter().filter(rest).collect();
    assert!(matches!(done[..], [Action::PathMtu(1000), Action::Configure(_)]));
}

#[test]
fn the_end_of_an_epoch_does_not_change_the_path_mtu() {
    let (mut client, _) = up();
    // The confirmation of the size in use falls into the last second of the epoch, and is never
    // answered.
    client.handle_timeout(millis(189_999));
    client.handle_timeout(millis(190_000));
    actions(&mut client);
    for second in 191..400 {
        client.handle_timeout(millis(1000 * second));
        assert!(actions(&mut client).is_empty(), "no probes without keys, and the MTU stays");
    }
}
