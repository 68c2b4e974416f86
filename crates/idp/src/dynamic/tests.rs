//! Requests about sessions that are right, forged, replayed and too many.

use super::super::radius::packet::dynamic::tests::{disconnect, request};
use super::*;

const SECRET: &str = "xyzzy5461";
const NOW_S: u64 = 1_700_000_000;

fn listener() -> Listener {
    Listener {
        source: SourceName::cut("guests"),
        clients: vec!["192.0.2.1".parse().unwrap()],
        secret: Zeroizing::new(SECRET.to_owned()),
        nas_identifier: "vpnd".to_owned(),
        group_kinds: vec![11],
        max_groups: 2,
        started_s: NOW_S - 100,
        seen: Mutex::default(),
        limits: Mutex::new(Limits {
            checks: Allowance::new(CHECKS, CHECK_INTERVAL),
            requests: Allowance::new(BURST, Duration::from_secs(3_600)),
            lines: Allowance::new(LINES, LINE_INTERVAL),
        }),
    }
}

fn server() -> SocketAddr {
    "192.0.2.1:40000".parse().unwrap()
}

fn made(user: &str, made_s: u64) -> Vec<u8> {
    disconnect(user, made_s as u32, SECRET.as_bytes())
}

#[test]
fn a_request_is_decided_once_and_a_repeated_one_gets_its_reply() {
    let listener = listener();
    let packet = made("ann", NOW_S);
    let Handling::Decide(decided) = listener.handle(&packet, server(), NOW_S) else { panic!("it is right") };
    assert_eq!(decided.2.which.user.as_deref(), Some("ann"));
    assert_eq!(listener.handle(&packet, server(), NOW_S), Handling::Drop, "it is being decided");
    let reply = listener.replied(&decided.0, None);
    // Over IPv6, and from another port, too.
    let again = "[::ffff:192.0.2.1]:9".parse().unwrap();
    for later in [0, WINDOW_S, 10 * WINDOW_S] {
        assert_eq!(listener.handle(&packet, again, NOW_S + later), Handling::Reply(reply.clone()));
    }
}

#[test]
fn what_is_forged_old_or_from_elsewhere_is_dropped() {
    let listener = listener();
    let stranger = "192.0.2.2:3799".parse().unwrap();
    assert_eq!(listener.handle(&made("ann", NOW_S), stranger, NOW_S), Handling::Drop);
    let forged = disconnect("ann", NOW_S as u32, b"guessed");
    assert_eq!(listener.handle(&forged, server(), NOW_S), Handling::Drop);
    let unsigned = request(40, &[(1, b"ann"), (55, &(NOW_S as u32).to_be_bytes())], SECRET.as_bytes(), false);
    assert_eq!(listener.handle(&unsigned, server(), NOW_S), Handling::Drop);
    let before = made("ann", NOW_S - 100);
    assert_eq!(listener.handle(&before, server(), NOW_S), Handling::Drop, "of the process before this one");
    for at in [NOW_S + WINDOW_S + 1, NOW_S - 50 + WINDOW_S + 1] {
        assert_eq!(listener.handle(&made("ann", NOW_S - 50), server(), at), Handling::Drop, "{at}");
    }
    assert_eq!(listener.handle(&made("ann", NOW_S + WINDOW_S + 1), server(), NOW_S), Handling::Drop);
    assert!(listener.seen().is_empty());
    let untimed = request(40, &[(1, b"ann")], SECRET.as_bytes(), true);
    let Handling::Reply(reply) = listener.handle(&untimed, server(), NOW_S) else {
        panic!("it gets a reply")
    };
    assert_eq!(reply[0], 42, "a Disconnect-NAK");
    assert!(matches!(listener.handle(&made("ann", NOW_S), server(), NOW_S), Handling::Decide(_)));
}

#[test]
fn an_old_request_is_forgotten_only_when_its_time_alone_refuses_it() {
    let listener = listener();
    let at = |number: usize| NOW_S - 50 + number as u64 % 40;
    for number in 0..MAX_SEEN {
        let mut authenticator = [0; 16];
        authenticator[..8].copy_from_slice(&number.to_le_bytes());
        assert!(listener.remember(authenticator, at(number), NOW_S));
    }
    assert!(!listener.remember([9; 16], NOW_S, NOW_S), "all of them could come again");
    let Handling::Reply(reply) = listener.handle(&made("ann", NOW_S), server(), NOW_S) else {
        panic!("no room")
    };
    assert_eq!(reply[0], 42);
    assert!(listener.remember([9; 16], NOW_S, NOW_S - 50 + WINDOW_S + 1));
    assert!(listener.seen().values().all(|seen| seen.made_s + WINDOW_S > NOW_S - 50 + WINDOW_S));
}

#[test]
fn requests_are_bounded_in_rate() {
    let listener = listener();
    let decided = (0..2 * BURST).filter(|number| {
        let packet = made(&format!("user{number}"), NOW_S);
        matches!(listener.handle(&packet, server(), NOW_S), Handling::Decide(_))
    });
    assert_eq!(decided.count(), BURST as usize);
}

#[test]
fn groups_are_those_of_the_source_and_not_too_many() {
    let listener = listener();
    let made = (NOW_S as u32).to_be_bytes();
    let with = |groups: &[&[u8]]| {
        let groups = groups.iter().map(|group| (11, *group));
        let attributes: Vec<(u8, &[u8])> =
            [(1, &b"ann"[..]), (55, &made)].into_iter().chain(groups).collect();
        listener.handle(&request(43, &attributes, SECRET.as_bytes(), true), server(), NOW_S)
    };
    let Handling::Decide(decided) = with(&[b"vpn", b"staff", b"vpn"]) else { panic!("it is right") };
    let groups = ["staff", "vpn"].map(GroupName::cut).to_vec();
    assert_eq!(decided.1, DynamicAction::Regroup(List::new(groups).unwrap()));
    for groups in [&[&b"a"[..], b"b", b"c"][..], &[b"a,b"], &[b"\xff"], &[]] {
        let Handling::Reply(reply) = with(groups) else { panic!("{groups:?}") };
        assert_eq!(reply[0], 45, "a CoA-NAK");
    }
}

#[tokio::test]
async fn a_result_belongs_to_its_request() {
    let inbox = Arc::new(Inbox::new());
    let demand = || Demand { which: Default::default(), groups: Vec::new() };
    let asking = |inbox: &Arc<Inbox>| {
        let inbox = Arc::clone(inbox);
        tokio::spawn(async move {
            let request = Request::decode(&made("ann", NOW_S), SECRET.as_bytes()).unwrap();
            let source = SourceName::cut("guests");
            inbox.decide(&source, &request, DynamicAction::Disconnect, demand()).await
        })
    };
    let first = asking(&inbox);
    let Ok(request) = inbox.next(None).await else { panic!("there is one") };
    let sent = Request::decode(&made("ann", NOW_S), SECRET.as_bytes()).unwrap();
    assert_eq!((request.made_s, request.authenticator), (NOW_S, sent.authenticator().into()));
    let second = asking(&inbox);
    let Ok(next) = inbox.next(Some(DynamicResult { number: request.number, error: None })).await else {
        panic!("there is one")
    };
    assert_eq!(first.await.unwrap(), None);
    // A result of another request is none.
    let waiting = Arc::clone(&inbox);
    let other = DynamicResult { number: next.number + 7, error: None };
    let waiting = tokio::spawn(async move { waiting.next(Some(other)).await });
    assert_eq!(second.await.unwrap(), Some(ErrorCause::Resources));
    waiting.abort();
}
