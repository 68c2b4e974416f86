//! The published bytes of every message, limits, and what arbitrary bytes do.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::*;

/// Bytes from hexadecimal digits; blanks are for the reader.
fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Checks both directions: the message has exactly these bytes, and the bytes are read as this
/// message.
fn golden(message: &Message, body: &str) {
    let body = hex(body);
    let mut framed = (body.len() as u32).to_le_bytes().to_vec();
    framed.extend_from_slice(&body);
    assert_eq!(encode(message).as_slice(), framed, "{message:?}");
    assert_eq!(Message::parse(&body).as_ref(), Ok(message));
}

fn offer() -> Offer {
    Offer {
        indexes: List::new(vec![1, 0x0102_0304]).unwrap(),
        suites: List::new(vec![SuiteSpeed { suite: 2, mbps: 8000 }]).unwrap(),
        features: 1,
        lab: false,
    }
}

/// Map of 4: 0: [1, 0x01020304], 1: [[2, 8000]], 2: 1, 3: false.
const OFFER: &str = "a4 00 82 01 1a01020304 01 81 82 02 191f40 02 01 03 f4";

fn network() -> Network {
    Network {
        ipv4: Some("10.9.0.2".parse().unwrap()),
        ipv6: Some("fd00::2".parse().unwrap()),
        gateway_ipv4: None,
        gateway_ipv6: None,
        mtu: Some(1400),
        routes: List::new(vec![AsText("10.0.0.0/8".parse().unwrap())]).unwrap(),
        dns: List::new(vec![AsText("10.0.0.53".parse().unwrap())]).unwrap(),
        search: List::new(vec![Text::new("uni.example").unwrap()]).unwrap(),
        kill_switch: None,
    }
}

/// Map of 6: addresses as bytes under 0 and 1, 4: 1400, then lists of text under 5, 6 and 7.
const NETWORK: &str = "a6 00 44 0a090002 01 50 fd000000000000000000000000000002 04 190578 \
    05 81 6a 31302e302e302e302f38 06 81 69 31302e302e302e3533 07 81 6b 756e692e6578616d706c65";

/// Sixteen bytes 0x33 and thirty-two bytes 0x22, each as a byte string.
const SESSION: &str = "50 33333333333333333333333333333333";
const TOKEN: &str = "5820 2222222222222222222222222222222222222222222222222222222222222222";

/// The proof of a device: a map of its key and its signature.
fn proof() -> String {
    format!("a2 00 5820 {} 01 5840 {}", "11".repeat(32), "12".repeat(64))
}

#[test]
fn client_messages_have_the_published_bytes() {
    let mut login = Login {
        user: Text::new("ada").unwrap(),
        password: SecretText::new("pw").unwrap(),
        device: DeviceProof::new([0x11; 32], [0x12; 64]),
        offer: offer(),
        code: None,
        software: None,
        grant: None,
    };
    let proof = proof();
    let fields = format!("00 63 616461 01 62 7077 02 {proof} 03");
    golden(&Message::Login(login.clone()), &format!("82 00 a4 {fields} {OFFER}"));
    login.code = Some(SecretText::new("123456").unwrap());
    login.software = Some(Text::new("v").unwrap());
    golden(&Message::Login(login.clone()), &format!("82 00 a6 {fields} {OFFER} 04 66 313233343536 05 61 76"));
    (login.code, login.software) = (None, None);
    login.grant = Some(Box::new(Grant { grant: [0x44; 32].into(), verifier: [0x55; 32].into() }));
    let grant = format!("a2 00 5820 {} 01 5820 {}", "44".repeat(32), "55".repeat(32));
    golden(&Message::Login(login), &format!("82 00 a5 {fields} {OFFER} 06 {grant}"));

    let (token, session) = (Token::from_bytes([0x22; 32]), SessionId([0x33; 16]));
    let device = DeviceProof::new([0x11; 32], [0x12; 64]);
    let attach = Attach { token, offer: offer(), session, software: None, device };
    golden(&Message::Attach(attach), &format!("82 01 a4 00 {TOKEN} 01 {OFFER} 02 {SESSION} 04 {proof}"));

    let code = SecretText::new("123456").unwrap();
    golden(&Message::OneTimeCode(OneTimeCode { code }), "82 02 a1 00 66 313233343536");
    golden(&Message::Bye, "82 03 a0");
    let answer = SecretText::new("123456").unwrap();
    golden(&Message::ChallengeResponse(ChallengeResponse { answer }), "82 04 a1 00 66 313233343536");
    let start = LoginStart {
        device,
        port: 40_000,
        state: [0x66; 32].into(),
        challenge: [0x77; 32].into(),
        name: Text::new("pc").unwrap(),
        software: None,
        short_code: false,
    };
    let fields = format!("02 5820 {} 03 5820 {} 04 62 7063", "66".repeat(32), "77".repeat(32));
    golden(&Message::LoginStart(Box::new(start)), &format!("82 05 a6 00 {proof} 01 199c40 {fields} 06 f4"));
}

#[test]
fn gateway_messages_have_the_published_bytes() {
    golden(&Message::OneTimeCodeWanted, "82 10 a0");
    let established = Established {
        session: SessionId([0x33; 16]),
        epoch: 7,
        suite: 2,
        indexes: List::new(vec![5]).unwrap(),
        gateway_lanes: 4,
        features: 1,
        token: Token::from_bytes([0x22; 32]),
        network: network(),
        timers: TimersMs { keepalive: None, rekey_after: Some(60_000), reject_after: None },
    };
    let fields = format!("00 {SESSION} 01 07 02 02 03 81 05 04 04 05 01 06 {TOKEN} 07 {NETWORK}");
    // The timers are a map of 1: 1: 60,000.
    golden(&Message::Established(Box::new(established)), &format!("82 11 a9 {fields} 08 a1 01 19ea60"));

    let text = Text::new("busy").unwrap();
    let mut refused = Refused { code: Code::Busy, text, retry_after_ms: Some(5000) };
    golden(&Message::Refused(refused.clone()), "82 12 a3 00 07 01 64 62757379 02 191388");
    refused.retry_after_ms = None;
    golden(&Message::Refused(refused), "82 12 a2 00 07 01 64 62757379");
    let close = Close { code: Code::Kicked, text: Text::default() };
    golden(&Message::Close(close), "82 13 a2 00 09 01 60");
    golden(&Message::Update(Update { network: network() }), &format!("82 14 a1 00 {NETWORK}"));
    golden(&Message::Wake, "82 15 a0");
    let kinds = [ChallengeKind::Code, ChallengeKind::Push, ChallengeKind::Choice];
    for (number, kind) in kinds.into_iter().enumerate() {
        let challenge = Challenge { kind, text: Text::new("code").unwrap(), time_s: 90 };
        golden(&Message::Challenge(challenge), &format!("82 16 a3 00 0{number} 01 64 636f6465 02 185a"));
    }
    let later = Message::parse(&hex("82 16 a3 00 09 01 60 02 01"));
    let Ok(Message::Challenge(Challenge { kind, .. })) = later else { panic!("{later:?}") };
    assert_eq!(kind, ChallengeKind::Code, "a kind of a later version");
    golden(&Message::Drain(Drain { is_shared: false }), "82 17 a1 00 f4");
    golden(&Message::Drain(Drain { is_shared: true }), "82 17 a1 00 f5");
    let earlier = Message::parse(&hex("82 17 a0"));
    assert_eq!(earlier.unwrap(), Message::Drain(Drain { is_shared: false }));
    let routes = List::new(vec![AsText("10.0.0.0/8".parse().unwrap())]).unwrap();
    golden(&Message::Routes(MoreRoutes { routes }), "82 18 18 a1 00 81 6a 31302e302e302e302f38");
    let addresses = List::new(vec![Text::new("a:1").unwrap()]).unwrap();
    let mut renewal = Renewal { addresses, weights: None };
    golden(&Message::Renewal(renewal.clone()), "82 18 19 a1 00 81 63 613a31");
    renewal.weights = List::new(vec![95]).ok();
    golden(&Message::Renewal(renewal), "82 18 19 a2 00 81 63 613a31 01 81 185f");
    let mut at = LoginAt { url: Text::new("https://a").unwrap(), time_s: 600, code: None };
    let fields = "00 69 68747470733a2f2f61 01 190258";
    golden(&Message::LoginAt(at.clone()), &format!("82 18 1a a2 {fields}"));
    let (code, from) = (Text::new("WDJB-MJHT").unwrap(), AsText([192, 0, 2, 1].into()));
    at.code = Some(ShortCode { code, grant: [0x88; 32].into(), from, interval_s: 5 });
    let short =
        format!("00 69 57444a422d4d4a4854 01 5820 {} 02 69 3139322e302e322e31 03 05", "88".repeat(32));
    golden(&Message::LoginAt(at), &format!("82 18 1a a3 {fields} 02 a4 {short}"));
}

#[test]
fn unknown_keys_are_ignored_and_absent_ones_have_their_defaults() {
    // Close with key 9 in front, holding a map of arrays, and an empty network with a key 200.
    let close = Close { code: Code::Kicked, text: Text::default() };
    let extended = hex("82 13 a3 09 a1 01 82 01 9f 02 ff 00 09 01 60");
    assert_eq!(Message::parse(&extended), Ok(Message::Close(close)));
    // Addresses together with authorities and routes, which a gateway might try to add.
    let renewal =
        Message::parse(&hex("82 18 19 a3 00 81 63 613a31 04 81 43 010203 05 81 69 302e302e302e302f30"));
    let addresses = List::new(vec![Text::new("a:1").unwrap()]).unwrap();
    assert_eq!(renewal, Ok(Message::Renewal(Renewal { addresses, weights: None })));
    let empty = Message::Update(Update { network: Network::default() });
    assert_eq!(Message::parse(&hex("82 14 a1 00 a0")), Ok(empty.clone()));
    assert_eq!(Message::parse(&hex("82 14 a1 00 a1 18c8 f6")), Ok(empty));
    // A client of before short codes.
    let fields =
        format!("00 {} 01 199c40 02 5820 {} 03 5820 {} 04 60", proof(), "66".repeat(32), "77".repeat(32));
    let start = Message::parse(&hex(&format!("82 05 a5 {fields}")));
    assert!(matches!(start, Ok(Message::LoginStart(start)) if !start.short_code));
    // An offer without the key of the laboratory.
    let body = hex(&format!("82 01 a4 00 {TOKEN} 01 a3 00 81 01 01 80 02 00 02 {SESSION} 04 {}", proof()));
    assert!(matches!(
        Message::parse(&body),
        Ok(Message::Attach(Attach { offer: Offer { lab: false, .. }, .. }))
    ));
}

#[test]
fn unknown_numbers_and_codes_are_kept() {
    assert_eq!(Message::parse(&hex("82 18 63 a1 00 01")), Ok(Message::Unknown(99)));
    golden(&Message::Unknown(99), "82 1863 a0");
    golden(
        &Message::Close(Close { code: Code::Other(4711), text: Text::default() }),
        "82 13 a2 00 191267 01 60",
    );
}

#[test]
fn what_is_not_a_message_is_refused() {
    for body in [
        "80",                          // an empty array
        "83 03 a0 00",                 // an array of three
        "9f 03 a0 ff",                 // an array of indefinite length
        "82 03 80",                    // fields that are not a map
        "82 20 a0",                    // a negative number
        "82 1b0000000100000000 a0",    // a number beyond u32
        "82 02 a0",                    // a required field is missing
        "82 02 a1 00 01",              // a field of the wrong type
        "82 02 a1 00 66 3132",         // cut short
        "82 13 a2 00 09 01 61 ff",     // not UTF-8
        "82 14 a1 00 a1 05 81 61 78",  // a route that is no network
        "82 14 a1 00 a1 00 43 0a0900", // an address of three bytes
    ] {
        assert!(matches!(Message::parse(&hex(body)), Err(MessageError::Malformed(_))), "{body}");
    }
    assert_eq!(Message::parse(&hex("82 03 a0 00")), Err(MessageError::Trailing));
}

#[test]
fn limits_hold_while_decoding() {
    let too_long = |digits: usize| format!("82 02 a1 00 78 {digits:02x} {}", "31".repeat(digits));
    assert!(Message::parse(&hex(&too_long(16))).is_ok());
    assert!(Message::parse(&hex(&too_long(17))).is_err());
    let attach = |lanes: usize| {
        let indexes = format!("98 {lanes:02x} {}", "05".repeat(lanes));
        hex(&format!("82 01 a4 00 {TOKEN} 01 a3 00 {indexes} 01 80 02 00 02 {SESSION} 04 {}", proof()))
    };
    assert!(Message::parse(&attach(16)).is_ok());
    assert!(Message::parse(&attach(17)).is_err());
    let renewal = |addresses: usize, len: usize| {
        let text = format!("79 {len:04x} {}", "61".repeat(len));
        hex(&format!("82 18 19 a1 00 98 {addresses:02x} {}", text.repeat(addresses)))
    };
    assert!(Message::parse(&renewal(16, 259)).is_ok());
    assert!(Message::parse(&renewal(17, 1)).is_err() && Message::parse(&renewal(1, 260)).is_err());
    // Counts that promise more than there is, up to the largest.
    for count in ["9a ffffffff", "9b ffffffffffffffff"] {
        assert!(Message::parse(&hex(&format!("82 14 a1 00 a1 05 {count} 61 78"))).is_err());
    }
    assert!(Message::parse(&hex("82 14 bb ffffffffffffffff 00 a0")).is_err());
}

#[test]
fn the_longest_message_fits() {
    let message = longest(ROUTES_IN_MESSAGE);
    let bytes = encode(&message);
    assert!(bytes.len() <= 4 + MAX_MESSAGE, "{} bytes", bytes.len());
    assert_eq!(Message::parse(&bytes[4..]), Ok(message));
}

#[test]
fn a_required_kill_switch_is_a_number_and_absent_without_one() {
    let encoded = |kill_switch| minicbor::to_vec(Network { kill_switch, ..network() }).unwrap();
    let (with, without) = (encoded(Some(KILL_SWITCH_PERSISTENT)), encoded(None));
    assert_eq!((with[0], &with[1..]), (0xA7, [&without[1..], &[8, 2]].concat().as_slice()));
    assert_eq!(minicbor::decode::<Network>(&with).unwrap().kill_switch, Some(2));
}

/// A message with this many routes, in which everything else is as long as it can be.
fn longest(routes: usize) -> Message {
    let net: IpNet = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128".parse().unwrap();
    let address: IpAddr = net.addr();
    let long = Text::new("x".repeat(253)).unwrap();
    let network = Network {
        ipv4: Some([255; 4].into()),
        ipv6: Some([255; 16].into()),
        gateway_ipv4: Some([255; 4].into()),
        gateway_ipv6: Some([255; 16].into()),
        mtu: Some(u16::MAX),
        routes: List::new(vec![AsText(net); routes]).unwrap(),
        dns: List::new(vec![AsText(address); MAX_DNS]).unwrap(),
        search: List::new(vec![long; MAX_SEARCH]).unwrap(),
        kill_switch: Some(u8::MAX),
    };
    Message::Established(Box::new(Established {
        session: SessionId([0xFF; 16]),
        epoch: u32::MAX,
        suite: u16::MAX,
        indexes: List::new(vec![u32::MAX; MAX_CLIENT_LANES]).unwrap(),
        gateway_lanes: u8::MAX,
        features: u32::MAX,
        token: Token::from_bytes([0xFF; 32]),
        network,
        timers: TimersMs {
            keepalive: Some(u32::MAX),
            rekey_after: Some(u32::MAX),
            reject_after: Some(u32::MAX),
        },
    }))
}

/// The lengths of the messages in a stream.
fn lengths(mut stream: &[u8]) -> Vec<usize> {
    let mut lengths = Vec::new();
    while let Some((length, rest)) = stream.split_first_chunk::<4>() {
        lengths.push(u32::from_le_bytes(*length) as usize);
        stream = &rest[*lengths.last().unwrap()..];
    }
    lengths
}

/// All that a client's decoder reads from these bytes of its gateway.
fn decoded(stream: &[u8]) -> Result<Vec<Message>, MessageError> {
    let (mut decoder, mut messages) = (Decoder::new(End::Gateway), Vec::new());
    for piece in stream.chunks(1_000) {
        decoder.push(piece);
        while let Some(message) = decoder.next_message()? {
            messages.push(message);
        }
    }
    Ok(messages)
}

#[test]
fn all_routes_of_a_network_arrive_in_several_messages() {
    for routes in [0, ROUTES_IN_MESSAGE, ROUTES_IN_MESSAGE + 1, 1_024, MAX_ROUTES] {
        let message = longest(routes);
        let bytes = encode(&message);
        let lengths = lengths(&bytes);
        assert_eq!(lengths.len(), routes.div_ceil(ROUTES_IN_MESSAGE).max(1));
        assert!(lengths.iter().all(|length| *length <= MAX_MESSAGE), "{lengths:?}");
        assert_eq!(decoded(&bytes), Ok(vec![message]), "{routes} routes");
    }
    // The message that follows has none of them.
    let nets =
        (0..300).map(|n: u16| AsText(IpNet::new([10, (n >> 8) as u8, n as u8, 0].into(), 24).unwrap()));
    let network = Network { routes: List::new(nets.collect()).unwrap(), ..network() };
    let update = Message::Update(Update { network });
    let after = Message::Update(Update { network: Network::default() });
    let messages = [longest(0), update, Message::Wake, after];
    let stream = messages.each_ref().map(|message| encode(message).to_vec()).concat();
    assert_eq!(decoded(&stream), Ok(messages.to_vec()));
}

#[test]
fn routes_that_were_not_agreed_on_end_the_stream() {
    let Message::Established(established) = longest(ROUTES_IN_MESSAGE + 1) else { unreachable!() };
    let network = established.network.clone();
    let granted = |features, network| {
        let established = Established { features, network, ..(*established).clone() };
        encode(&Message::Established(Box::new(established))).to_vec()
    };
    let update = encode(&Message::Update(Update { network: network.clone() })).to_vec();
    for (features, taken) in [(FEATURE_MORE_ROUTES, true), (!FEATURE_MORE_ROUTES, false)] {
        assert_eq!(decoded(&granted(features, network.clone())).is_ok(), taken);
        let later = [granted(features, Network::default()), update.clone()].concat();
        assert_eq!(decoded(&later).is_ok(), taken);
    }
    assert_eq!(decoded(&update), Err(MessageError::Routes), "nothing is agreed on before the grant");
}

/// The numbers and names in the table of PROTOCOL §3.2 under this heading.
fn published(heading: &str) -> Vec<(u32, String)> {
    let page = include_str!("../../../../docs/PROTOCOL.md");
    let (_, table) = page.split_once(heading).expect("the page has the table");
    let rows =
        table.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let mut cells = line.split('|').skip(1).map(str::trim);
        Some((cells.next()?.parse().ok()?, cells.next()?.to_owned()))
    };
    rows.filter_map(row).collect()
}

#[test]
fn each_end_sends_the_messages_of_its_table_and_no_others() {
    let by_client = published("Client to gateway:");
    let by_gateway = published("Gateway to client:");
    assert_eq!((by_client.len(), by_gateway.len()), (6, 11));
    let runner = &mut proptest::test_runner::TestRunner::deterministic();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..2_000 {
        let message = any_message().new_tree(runner).unwrap().current();
        // The routes of a network come in front of it, and not alone.
        for message in [message, Message::Routes(MoreRoutes { routes: List::default() })] {
            let bytes = encode(&message);
            let number = minicbor::Decoder::new(&bytes[5..]).u32().unwrap();
            let name = format!("{message:?}");
            let name = name.split(['(', ' ']).next().unwrap().to_owned();
            let (client, gateway) =
                (by_client.contains(&(number, name.clone())), by_gateway.contains(&(number, name)));
            assert_eq!(client || gateway, !matches!(message, Message::Unknown(_)), "{message:?}");
            let refused_from = |end| {
                let mut decoder = Decoder::new(end);
                decoder.push(&bytes);
                decoder.next_message() == Err(MessageError::WrongEnd)
            };
            assert_eq!(
                (refused_from(End::Client), refused_from(End::Gateway)),
                (gateway, client),
                "{message:?}"
            );
            seen.insert(number);
        }
    }
    assert!(by_client.iter().chain(&by_gateway).all(|(number, _)| seen.contains(number)), "{seen:?}");
}

#[test]
fn routes_without_a_network_or_beyond_the_limit_end_the_stream() {
    let net = AsText("10.0.0.0/8".parse().unwrap());
    let routes = |count| {
        encode(&Message::Routes(MoreRoutes { routes: List::new(vec![net; count]).unwrap() })).to_vec()
    };
    let update = encode(&Message::Update(Update { network: network() })).to_vec();
    let granted = encode(&longest(0)).to_vec();
    let others = [Message::Wake, Message::Drain(Drain { is_shared: true }), Message::Unknown(99)]
        .map(|message| encode(&message).to_vec());
    for other in others.into_iter().chain([routes(0)]) {
        assert_eq!(decoded(&[routes(1), other].concat()), Err(MessageError::Routes));
    }
    assert_eq!(decoded(&routes(0)), Err(MessageError::Routes));
    let full = routes(ROUTES_IN_MESSAGE).repeat(MAX_ROUTES / ROUTES_IN_MESSAGE);
    let rest = MAX_ROUTES % ROUTES_IN_MESSAGE;
    // The network has a route, too.
    let before = [granted, full.clone()].concat();
    assert!(decoded(&[before.clone(), routes(rest - 1), update.clone()].concat()).is_ok());
    assert_eq!(decoded(&[before, routes(rest), update].concat()), Err(MessageError::Routes));
    assert_eq!(decoded(&[full, routes(rest + 1)].concat()), Err(MessageError::Routes));
    // More than one message has room for, in one.
    let text = "6a 31302e302e302e302f38".repeat(ROUTES_IN_MESSAGE + 1);
    assert_eq!(Message::parse(&hex(&format!("82 14 a1 00 a1 05 98c1 {text}"))), Err(MessageError::Routes));
    assert!(Message::parse(&hex(&format!("82 18 18 a1 00 98c1 {text}"))).is_err());
}

#[test]
fn lengths_out_of_bounds_end_the_stream() {
    for length in [0, MAX_MESSAGE as u32 + 1, u32::MAX] {
        let mut decoder = Decoder::new(End::Client);
        decoder.push(&length.to_le_bytes());
        assert_eq!(decoder.next_message(), Err(MessageError::Length(length)));
    }
}

#[test]
fn secrets_are_not_printed() {
    let secret = "correct horse";
    let message = Message::Login(Login {
        user: Text::new("ada").unwrap(),
        password: SecretText::new(secret).unwrap(),
        device: DeviceProof::new([0x11; 32], [0x12; 64]),
        offer: offer(),
        code: Some(SecretText::new("918273").unwrap()),
        software: None,
        grant: Some(Box::new(Grant { grant: [91; 32].into(), verifier: [91; 32].into() })),
    });
    let printed = format!("{message:?} {message:#?}");
    assert!(!printed.contains(secret) && !printed.contains("918273") && !printed.contains("91"), "{printed}");
    let mut decoder = Decoder::new(End::Client);
    decoder.push(&encode(&message));
    assert_eq!(format!("{decoder:?}"), format!("Decoder {{ buffered: {}, .. }}", encode(&message).len()));
}

fn text<const MAX: usize>() -> impl Strategy<Value = Text<MAX>> {
    vec(any::<char>(), 0..=MAX / 4).prop_map(|chars| Text::new(String::from_iter(chars)).unwrap())
}

fn secret<const MAX: usize>() -> impl Strategy<Value = SecretText<MAX>> {
    vec(any::<char>(), 0..=MAX / 4).prop_map(|chars| SecretText::new(String::from_iter(chars)).unwrap())
}

fn any_offer() -> impl Strategy<Value = Offer> {
    let suites = vec(any::<(u16, u32)>(), 0..=MAX_SUITES);
    (vec(any::<u32>(), 0..=MAX_CLIENT_LANES), suites, any::<u32>(), any::<bool>()).prop_map(
        |(indexes, suites, features, lab)| Offer {
            indexes: List::new(indexes).unwrap(),
            suites: List::new(suites.into_iter().map(|(suite, mbps)| SuiteSpeed { suite, mbps }).collect())
                .unwrap(),
            features,
            lab,
        },
    )
}

fn any_network() -> impl Strategy<Value = Network> {
    let net = (any::<IpAddr>(), 0u8..=32).prop_map(|(address, prefix)| IpNet::new(address, prefix).unwrap());
    let addresses = any::<(Option<Ipv4Addr>, Option<Ipv6Addr>, Option<Ipv4Addr>, Option<Ipv6Addr>)>();
    let lists = (vec(net, 0..20), vec(any::<IpAddr>(), 0..=MAX_DNS), vec(text::<253>(), 0..4));
    let settings = any::<(Option<u16>, Option<u8>)>();
    (addresses, settings, lists).prop_map(|(addresses, (mtu, kill_switch), (routes, dns, search))| Network {
        ipv4: addresses.0,
        ipv6: addresses.1,
        gateway_ipv4: addresses.2,
        gateway_ipv6: addresses.3,
        mtu,
        routes: List::new(routes.into_iter().map(AsText).collect()).unwrap(),
        dns: List::new(dns.into_iter().map(AsText).collect()).unwrap(),
        search: List::new(search).unwrap(),
        kill_switch,
    })
}

fn any_established() -> impl Strategy<Value = Established> {
    let numbers = any::<(u32, u16, u8, u32)>();
    let names = any::<([u8; 16], [u8; 32])>();
    let indexes = vec(any::<u32>(), 0..=MAX_CLIENT_LANES);
    let timers = any::<(Option<u32>, Option<u32>, Option<u32>)>();
    (numbers, names, indexes, any_network(), timers).prop_map(|(numbers, names, indexes, network, timers)| {
        Established {
            session: SessionId(names.0),
            epoch: numbers.0,
            suite: numbers.1,
            indexes: List::new(indexes).unwrap(),
            gateway_lanes: numbers.2,
            features: numbers.3,
            token: Token::from_bytes(names.1),
            network,
            timers: TimersMs { keepalive: timers.0, rekey_after: timers.1, reject_after: timers.2 },
        }
    })
}

fn any_short_code() -> impl Strategy<Value = ShortCode> {
    (text(), any::<[u8; 32]>(), any::<IpAddr>(), any::<u16>()).prop_map(|(code, grant, from, interval_s)| {
        ShortCode { code, grant: grant.into(), from: AsText(from), interval_s }
    })
}

fn any_message() -> impl Strategy<Value = Message> {
    let software = || proptest::option::of(text::<64>());
    let device = || (any::<[u8; 32]>(), any::<[u8; 32]>(), any::<[u8; 32]>());
    let login = (text(), secret(), device(), any_offer(), proptest::option::of(secret()), software());
    let attach = (any::<[u8; 32]>(), any_offer(), any::<[u8; 16]>(), software(), device());
    let proof = |(key, r, s): ([u8; 32], [u8; 32], [u8; 32])| {
        DeviceProof::new(key, [r, s].concat().try_into().expect("two halves"))
    };
    prop_oneof![
        login.prop_map(move |(user, password, device, offer, code, software)| Message::Login(Login {
            user,
            password,
            device: proof(device),
            offer,
            code,
            software,
            grant: None,
        })),
        attach.prop_map(move |(token, offer, session, software, device)| Message::Attach(Attach {
            token: Token::from_bytes(token),
            offer,
            session: SessionId(session),
            software,
            device: proof(device),
        })),
        secret().prop_map(|code| Message::OneTimeCode(OneTimeCode { code })),
        Just(Message::Bye),
        Just(Message::OneTimeCodeWanted),
        any_established().prop_map(|established| Message::Established(Box::new(established))),
        (any::<u16>(), text(), any::<Option<u32>>()).prop_map(|(code, text, retry_after_ms)| {
            Message::Refused(Refused { code: code.into(), text, retry_after_ms })
        }),
        (any::<u16>(), text()).prop_map(|(code, text)| Message::Close(Close { code: code.into(), text })),
        any_network().prop_map(|network| Message::Update(Update { network })),
        Just(Message::Wake),
        secret().prop_map(|answer| Message::ChallengeResponse(ChallengeResponse { answer })),
        (0u8..4, text(), any::<u16>()).prop_map(|(kind, text, time_s)| {
            Message::Challenge(Challenge { kind: kind.into(), text, time_s })
        }),
        any::<bool>().prop_map(|is_shared| Message::Drain(Drain { is_shared })),
        (vec(text(), 0..=MAX_GATEWAY_ADDRESSES), vec(any::<u32>(), 0..=MAX_GATEWAY_ADDRESSES)).prop_map(
            |(addresses, weights)| {
                let (addresses, weights) = (List::new(addresses).unwrap(), List::new(weights).ok());
                Message::Renewal(Renewal { addresses, weights })
            }
        ),
        (text(), any::<u16>(), proptest::option::of(any_short_code()))
            .prop_map(|(url, time_s, code)| Message::LoginAt(LoginAt { url, time_s, code })),
        (any::<u16>(), any::<[u8; 32]>(), device(), text(), software(), any::<bool>()).prop_map(
            move |(port, random, device, name, software, short_code)| {
                let (state, challenge) = (random.into(), random.into());
                let device = proof(device);
                let start = LoginStart { device, port, state, challenge, name, software, short_code };
                Message::LoginStart(Box::new(start))
            }
        ),
        (27u32..).prop_map(Message::Unknown),
    ]
}

proptest! {
    #[test]
    fn messages_survive_the_stream_in_any_pieces(
        messages in vec(any_message(), 0..4),
        cuts in vec(1usize..2000, 1..20),
    ) {
        // A stream has messages of one end only.
        let from = messages.iter().find_map(Message::sender).unwrap_or(End::Client);
        let messages: Vec<_> = messages.into_iter().filter(|message| message.sender().is_none_or(|sender| sender == from)).collect();
        let stream: Vec<u8> = messages.iter().flat_map(|message| encode(message).to_vec()).collect();
        let mut decoder = Decoder::new(from);
        let mut got = Vec::new();
        let (mut rest, mut cuts) = (&stream[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            decoder.push(piece);
            rest = after;
            while let Some(message) = decoder.next_message().unwrap() {
                got.push(message);
            }
        }
        prop_assert_eq!(got, messages);
    }

    #[test]
    fn truncated_messages_are_refused(message in any_message(), at in any::<proptest::sample::Index>()) {
        let bytes = encode(&message);
        let cut = 4 + at.index(bytes.len() - 4);
        prop_assert!(Message::parse(&bytes[4..cut]).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..300)) {
        for from in [End::Client, End::Gateway] {
            let mut decoder = Decoder::new(from);
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.next_message() {}
        }
        // A message that was read can be written, and is read as the same.
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert_eq!(Message::parse(&encode(&message)[4..]), Ok(message));
        }
    }

    #[test]
    fn changed_messages_are_read_or_refused(
        message in any_message(),
        changes in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = encode(&message)[4..].to_vec();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = Message::parse(&bytes);
    }
}

#[test]
fn weights_count_only_if_each_address_has_one() {
    let weights_of = |addresses: usize, weights: &[u32]| {
        let texts = (0..addresses).map(|number| Text::new(format!("a{number}:1")).unwrap()).collect();
        let renewal =
            Renewal { addresses: List::new(texts).unwrap(), weights: List::new(weights.to_vec()).ok() };
        renewal.weighted().map(|weighted| weighted.map(|(_, weight)| weight).collect::<Vec<_>>())
    };
    assert_eq!(weights_of(2, &[u32::MAX, 0]), Some(vec![u32::MAX, 0]));
    for (addresses, weights) in [(2, &[1][..]), (1, &[1, 2]), (1, &[])] {
        assert_eq!(weights_of(addresses, weights), None, "{addresses} {weights:?}");
    }
    // 17 of them, one that is negative, and one beyond 32 bits.
    for weights in
        [format!("91 {}", "01 ".repeat(17)), "81 20".to_owned(), "81 1b 0000000100000000".to_owned()]
    {
        let message = hex(&format!("82 18 19 a2 00 81 63 613a31 01 {weights}"));
        assert!(Message::parse(&message).is_err(), "{weights}");
    }
}
