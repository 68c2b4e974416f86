use proptest::prelude::*;

use super::*;
use crate::flows::{FlowKey, Flows, Opener, known};
use crate::time::Time;
use vpnd_packet::{ICMP, TCP, UDP, tcp_flag};

mod fragments;
mod profiles;
mod replies;

const ALICE: &str = "10.8.0.2";
const BOB: &str = "10.8.0.3";
const SERVER: &str = "10.1.0.9";

/// Users of the tests: alice (staff), bob (guests), each with a session.
struct World {
    names: Names,
    alice: Principal,
    bob: Principal,
    policy: Policy,
    flows: [Flows; 2],
    now: Time,
}

impl World {
    fn new(client_to_client: bool, rules: &[RuleSpec]) -> Self {
        let mut names = Names::new();
        let policy = Policy::compile(rules, client_to_client, &mut names).expect("good rules");
        let (alice, bob) = (names.principal("alice", ["staff", "lab"]), names.principal("bob", ["guests"]));
        let flows = [Flows::new([1; 16]), Flows::new([2; 16])];
        Self { names, alice, bob, policy, flows, now: Time::from_nanos(1 << 50) }
    }

    /// Whether a packet passes; who sends and receives follows from the addresses. If it does and
    /// opens a flow, that is remembered.
    fn passes(&self, packet: &[u8]) -> bool {
        let packet = Packet::parse(packet).expect("a good packet");
        let client = |address: std::net::IpAddr| match address.to_string().as_str() {
            ALICE => Some((&self.alice, &self.flows[0])),
            BOB => Some((&self.bob, &self.flows[1])),
            _ => None,
        };
        let (flows, opener, decision) = match (client(packet.src()), client(packet.dst())) {
            (Some((from, flows)), Some((to, theirs))) => {
                let known = known(self.now, (flows, Opener::Client), (theirs, Opener::Client));
                let decision = self.policy.decide(from, Destination::Client(to), &packet, &known);
                (flows, Opener::Client, decision)
            }
            (Some((from, flows)), None) => {
                let known = known(self.now, (flows, Opener::Client), (flows, Opener::Campus));
                let decision = self.policy.decide(from, Destination::Campus, &packet, &known);
                (flows, Opener::Client, decision)
            }
            (None, Some((to, flows))) => {
                let known = known(self.now, (flows, Opener::Campus), (flows, Opener::Client));
                (flows, Opener::Campus, self.policy.decide_from_campus(to, &packet, &known))
            }
            (None, None) => unreachable!("the gateway does not forward from campus to campus"),
        };
        let passes = decision.verdict == Verdict::Allow;
        if passes && decision.opens {
            flows.enter(self.now, opener, &packet);
        }
        if passes {
            flows.note_passed(self.now, opener, &packet);
        }
        passes
    }

    /// Whether nothing was remembered.
    fn remembers_nothing(&self) -> bool {
        self.flows.iter().all(Flows::is_empty)
    }
}

fn rule(
    action: Verdict,
    from: &[Selector],
    to: &[Selector],
    protocol: Protocol,
    ports: &[RangeInclusive<u16>],
) -> RuleSpec {
    RuleSpec { action, from: from.to_vec(), to: to.to_vec(), protocol, ports: ports.to_vec() }
}

fn allow(from: &[Selector], to: &[Selector]) -> RuleSpec {
    rule(Verdict::Allow, from, to, Protocol::Any, &[])
}

fn deny(from: &[Selector], to: &[Selector]) -> RuleSpec {
    rule(Verdict::Deny, from, to, Protocol::Any, &[])
}

fn user(name: &str) -> Selector {
    Selector::User(name.into())
}

fn group(name: &str) -> Selector {
    Selector::Group(name.into())
}

fn net(text: &str) -> Selector {
    Selector::Net(text.parse().unwrap())
}

fn ip(protocol: u8, src: &str, dst: &str, place: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x45, 0];
    bytes.extend((20 + payload.len() as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(place.to_be_bytes());
    bytes.extend([64, protocol, 0, 0]);
    for address in [src, dst] {
        bytes.extend(address.parse::<std::net::Ipv4Addr>().unwrap().octets());
    }
    bytes.extend(payload);
    bytes
}

fn tcp(src: &str, from: u16, dst: &str, to: u16, flags: u8) -> Vec<u8> {
    let mut payload = [from.to_be_bytes(), to.to_be_bytes()].concat();
    payload.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    ip(TCP, src, dst, 0, &payload)
}

fn udp(src: &str, from: u16, dst: &str, to: u16) -> Vec<u8> {
    ip(UDP, src, dst, 0, &[&from.to_be_bytes()[..], &to.to_be_bytes(), &[0, 8, 0, 0]].concat())
}

fn icmp(src: &str, dst: &str, kind: u8) -> Vec<u8> {
    ip(ICMP, src, dst, 0, &[kind, 0, 0, 0, 0, 0, 0, 0])
}

fn later_fragment(protocol: u8, src: &str, dst: &str) -> Vec<u8> {
    ip(protocol, src, dst, 100, &[0; 8])
}

const SYN: u8 = tcp_flag::SYN;
const ACK: u8 = tcp_flag::ACK;

#[test]
fn by_default_clients_reach_the_campus_but_not_each_other() {
    let world = World::new(false, &[]);
    assert!(world.passes(&tcp(ALICE, 5000, SERVER, 80, SYN)));
    assert!(world.passes(&tcp(SERVER, 80, ALICE, 5000, SYN | ACK)));
    assert!(world.passes(&later_fragment(UDP, ALICE, SERVER)));
    for packet in [
        tcp(ALICE, 5000, BOB, 80, SYN),
        tcp(ALICE, 5000, BOB, 80, ACK),
        udp(ALICE, 1, BOB, 2),
        icmp(ALICE, BOB, 8),
    ] {
        assert!(!world.passes(&packet));
    }
}

#[test]
fn addresses_of_clients_that_are_away_lead_nowhere() {
    let pools = Pools { nets: vec!["10.8.0.0/24".parse().unwrap()], own: vec!["10.8.0.1".parse().unwrap()] };
    // A user who may send to everyone may send there no more than others.
    for rules in [vec![], vec![allow(&[], &[Selector::Any])]] {
        let mut world = World::new(true, &rules);
        let packet = udp(ALICE, 1, "10.8.0.77", 2);
        assert!(world.passes(&packet), "without pools it is the campus's");
        world.policy = world.policy.with_pools(pools.clone());
        assert!(!world.passes(&packet));
        for to in ["10.8.0.1", "10.8.1.77", SERVER, BOB] {
            assert!(world.passes(&udp(ALICE, 1, to, 2)), "{to}");
        }
    }
}

#[test]
fn clients_reach_each_other_if_switched_on() {
    let world = World::new(true, &[]);
    assert!(world.passes(&tcp(ALICE, 5000, BOB, 80, SYN)));
    assert!(world.passes(&later_fragment(UDP, BOB, ALICE)));
}

#[test]
fn the_default_policy_is_the_strict_one() {
    let policy = Policy::default();
    let packet = udp(ALICE, 1, BOB, 2);
    let packet = Packet::parse(&packet).unwrap();
    let nobody = Principal::default();
    let to = |destination| policy.decide(&nobody, destination, &packet, &|_| true).verdict;
    assert_eq!((to(Destination::Client(&nobody)), to(Destination::Campus)), (Verdict::Deny, Verdict::Allow));
}

#[test]
fn the_first_rule_that_matches_decides() {
    let (one, all) = (deny(&[user("alice")], &[net("10.1.0.9/32")]), allow(&[], &[]));
    let packet = udp(ALICE, 1, SERVER, 2);
    assert!(!World::new(false, &[one.clone(), all.clone()]).passes(&packet));
    assert!(World::new(false, &[all, one]).passes(&packet));
}

#[test]
fn each_selector_selects() {
    let cases = [
        (vec![], true, true),
        (vec![Selector::Any], true, true),
        (vec![Selector::Clients], true, true),
        (vec![user("alice")], true, false),
        (vec![group("lab")], true, false),
        (vec![group("alice")], false, false),
        (vec![user("staff")], false, false),
        (vec![net("10.8.0.3/32")], false, true),
        (vec![group("guests"), group("staff")], true, true),
        (vec![net("10.1.0.0/16")], false, false),
    ];
    for (from, alice, bob) in cases {
        let world = World::new(false, &[deny(&from, &[])]);
        assert_eq!(!world.passes(&udp(ALICE, 1, SERVER, 2)), alice, "{from:?}");
        assert_eq!(!world.passes(&udp(BOB, 1, SERVER, 2)), bob, "{from:?}");
    }
}

#[test]
fn clients_as_receivers_are_not_the_campus() {
    let world = World::new(true, &[deny(&[], &[Selector::Clients])]);
    assert!(!world.passes(&udp(ALICE, 1, BOB, 2)));
    assert!(!world.passes(&udp(SERVER, 1, BOB, 2)));
    assert!(world.passes(&udp(ALICE, 1, SERVER, 2)));
}

#[test]
fn protocols_and_ports() {
    let rules = [rule(Verdict::Deny, &[], &[], Protocol::Tcp, &[22..=22, 8000..=8080])];
    let world = World::new(false, &rules);
    for (port, passes) in
        [(21, true), (22, false), (23, true), (7999, true), (8000, false), (8080, false), (8081, true)]
    {
        assert_eq!(world.passes(&tcp(ALICE, 5000, SERVER, port, SYN)), passes, "{port}");
    }
    assert!(world.passes(&tcp(ALICE, 22, SERVER, 5000, ACK)), "the source port is not meant");
    assert!(world.passes(&udp(ALICE, 5000, SERVER, 22)));
    let numbered = World::new(false, &[rule(Verdict::Deny, &[], &[], Protocol::Number(UDP), &[])]);
    assert!(!numbered.passes(&udp(ALICE, 1, SERVER, 2)));
    assert!(numbered.passes(&icmp(ALICE, SERVER, 8)));
    let icmp_only = World::new(false, &[rule(Verdict::Deny, &[], &[], Protocol::Icmp, &[])]);
    assert!(icmp_only.passes(&udp(ALICE, 1, SERVER, 2)));
    assert!(!icmp_only.passes(&icmp(ALICE, SERVER, 8)));
}

#[test]
fn an_allowed_service_may_answer_and_nothing_else() {
    let world = World::new(
        false,
        &[rule(Verdict::Allow, &[user("alice")], &[user("bob")], Protocol::Tcp, &[22..=22])],
    );
    assert!(world.passes(&tcp(ALICE, 5000, BOB, 22, SYN)));
    assert!(world.passes(&tcp(BOB, 22, ALICE, 5000, SYN | ACK)));
    assert!(world.passes(&tcp(BOB, 22, ALICE, 5000, tcp_flag::RST)));
    assert!(!world.passes(&tcp(BOB, 22, ALICE, 5000, SYN)), "no connection the other way");
    assert!(!world.passes(&tcp(BOB, 5000, ALICE, 22, SYN)));
    assert!(!world.passes(&tcp(BOB, 5000, ALICE, 22, ACK)), "only from the allowed port");
    assert!(!world.passes(&udp(ALICE, 5000, BOB, 22)));
}

#[test]
fn answers_of_udp_and_icmp() {
    let world = World::new(false, &[rule(Verdict::Allow, &[user("alice")], &[], Protocol::Udp, &[53..=53])]);
    assert!(world.passes(&udp(ALICE, 5000, BOB, 53)));
    assert!(world.passes(&udp(BOB, 53, ALICE, 5000)));
    assert!(!world.passes(&udp(BOB, 5000, ALICE, 53)));
    let world = World::new(false, &[rule(Verdict::Allow, &[user("alice")], &[], Protocol::Icmp, &[])]);
    assert!(world.passes(&icmp(ALICE, BOB, 8)));
    assert!(world.passes(&icmp(BOB, ALICE, 0)));
    assert!(!world.passes(&icmp(BOB, ALICE, 8)));
    assert!(!world.passes(&ip(ICMP, BOB, ALICE, 0, &[0])), "no type, so no reply");
}

#[test]
fn a_closed_campus_still_answers_what_is_allowed() {
    let rules = [
        rule(Verdict::Allow, &[group("staff")], &[net("10.1.0.0/16")], Protocol::Tcp, &[443..=443]),
        deny(&[], &[]),
    ];
    let world = World::new(false, &rules);
    assert!(world.passes(&tcp(ALICE, 5000, SERVER, 443, SYN)));
    assert!(world.passes(&tcp(SERVER, 443, ALICE, 5000, ACK)));
    assert!(!world.passes(&tcp(SERVER, 443, ALICE, 5000, SYN)));
    assert!(!world.passes(&tcp(SERVER, 443, BOB, 5000, ACK)));
    assert!(!world.passes(&tcp(BOB, 5000, SERVER, 443, SYN)));
}

#[test]
fn a_denial_in_front_holds_for_replies_too() {
    let world = World::new(
        false,
        &[deny(&[user("bob")], &[Selector::Clients]), allow(&[Selector::Clients], &[Selector::Clients])],
    );
    assert!(world.passes(&udp(ALICE, 1, BOB, 2)));
    assert!(!world.passes(&udp(BOB, 2, ALICE, 1)));
}

#[test]
fn a_denial_allows_nothing_the_other_way() {
    let world = World::new(false, &[deny(&[user("alice")], &[user("bob")])]);
    assert!(!world.passes(&tcp(BOB, 1, ALICE, 2, ACK)));
    assert!(!world.passes(&udp(BOB, 1, ALICE, 2)));
}

#[test]
fn names_keep_their_numbers_when_rules_change() {
    let mut world = World::new(false, &[]);
    let packet = udp(ALICE, 1, BOB, 2);
    assert!(!world.passes(&packet));
    world.policy = Policy::compile(
        &[allow(&[group("guests")], &[]), allow(&[group("staff")], &[group("guests")])],
        false,
        &mut world.names,
    )
    .unwrap();
    assert!(world.passes(&packet));
    assert_eq!(world.names.principal("alice", ["staff", "lab"]), world.alice);
}

#[test]
fn rules_that_make_no_sense_are_refused() {
    let mut names = Names::new();
    let mut compile = |rules: &[RuleSpec]| Policy::compile(rules, false, &mut names).map(|_| ());
    let ports = |protocol, range| rule(Verdict::Allow, &[], &[], protocol, &[range]);
    assert_eq!(
        compile(&[allow(&[], &[]), ports(Protocol::Icmp, 1..=2)]),
        Err(PolicyError::PortsWithoutProtocol(2))
    );
    #[expect(clippy::reversed_empty_ranges, reason = "the mistake is what is tested")]
    let reversed = ports(Protocol::Tcp, 2..=1);
    assert_eq!(compile(&[reversed]), Err(PolicyError::EmptyPortRange(1)));
    assert_eq!(compile(&vec![allow(&[], &[]); MAX_RULES + 1]), Err(PolicyError::TooManyRules(MAX_RULES + 1)));
    assert_eq!(compile(&vec![allow(&[], &[]); MAX_RULES]), Ok(()));
}

/// The documented meaning, written down without compiling anything.
mod model {
    use super::*;

    /// One side of a packet: address, and name and groups if it is a client.
    pub(super) type Party = (&'static str, Option<(&'static str, &'static [&'static str])>);

    fn selected(selectors: &[Selector], (address, client): Party) -> bool {
        selectors.is_empty()
            || selectors.iter().any(|selector| match selector {
                Selector::Any => true,
                Selector::Clients => client.is_some(),
                Selector::User(name) => client.is_some_and(|(user, _)| user == name),
                Selector::Group(name) => client.is_some_and(|(_, groups)| groups.contains(&name.as_str())),
                Selector::Net(net) => net.contains(&address.parse::<std::net::IpAddr>().unwrap()),
            })
    }

    /// Source, destination, protocol and ports of a packet.
    pub(super) type Key = (&'static str, &'static str, u8, u16, u16);

    /// Adds the flow to `opened` if a rule allows it.
    pub(super) fn passes(
        rules: &[RuleSpec],
        client_to_client: bool,
        opened: &mut Vec<Key>,
        (from, to): (Party, Party),
        (protocol, ports, flags): (u8, (u16, u16), u8),
    ) -> bool {
        for rule in rules {
            let named = if protocol == TCP { Protocol::Tcp } else { Protocol::Udp };
            if rule.protocol != Protocol::Any && rule.protocol != named {
                continue;
            }
            let port = |port| rule.ports.is_empty() || rule.ports.iter().any(|range| range.contains(&port));
            if selected(&rule.from, from) && selected(&rule.to, to) && port(ports.1) {
                if rule.action == Verdict::Allow {
                    opened.push((from.0, to.0, protocol, ports.0, ports.1));
                }
                return rule.action == Verdict::Allow;
            }
            let reply = selected(&rule.from, to)
                && selected(&rule.to, from)
                && port(ports.0)
                && (protocol == UDP || flags & ACK != 0)
                && opened.contains(&(to.0, from.0, protocol, ports.1, ports.0));
            if rule.action == Verdict::Allow && reply {
                return true;
            }
        }
        client_to_client || from.1.is_none() || to.1.is_none()
    }
}

fn selectors() -> impl Strategy<Value = Vec<Selector>> {
    let one = prop_oneof![
        Just(Selector::Any),
        Just(Selector::Clients),
        Just(user("alice")),
        Just(group("guests")),
        Just(net("10.8.0.0/31")),
        Just(net("10.1.0.0/16")),
    ];
    prop::collection::vec(one, 0..3)
}

fn any_rule() -> impl Strategy<Value = RuleSpec> {
    let protocol = prop_oneof![Just(Protocol::Any), Just(Protocol::Tcp), Just(Protocol::Udp)];
    let ports = prop_oneof![Just(vec![]), Just(vec![22..=22]), Just(vec![80..=81, 5000..=6000])];
    (any::<bool>(), selectors(), selectors(), protocol, ports).prop_map(
        |(allow, from, to, protocol, ports)| {
            let action = if allow { Verdict::Allow } else { Verdict::Deny };
            RuleSpec { action, from, to, protocol, ports }
        },
    )
}

const PARTIES: [model::Party; 3] =
    [(ALICE, Some(("alice", &["staff", "lab"]))), (BOB, Some(("bob", &["guests"]))), (SERVER, None)];

/// Numbers of sender and receiver among the parties, protocol, ports and flags.
type Sent = ((usize, usize), u8, (u16, u16), u8);

fn sent() -> impl Strategy<Value = Sent> {
    (
        prop::sample::select(vec![(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]),
        prop::sample::select(vec![TCP, UDP]),
        prop::sample::select(vec![(5000_u16, 22_u16), (22, 5000), (80, 90), (90, 80), (1, 2)]),
        prop::sample::select(vec![SYN, ACK, SYN | ACK]),
    )
}

proptest! {
    #[test]
    fn compiled_rules_mean_what_is_written(
        rules in prop::collection::vec(any_rule(), 0..5),
        client_to_client: bool,
        packets in prop::collection::vec(sent(), 1..30),
    ) {
        let world = World::new(client_to_client, &rules);
        let mut opened = Vec::new();
        for (pair, protocol, ports, flags) in packets {
            let (from, to) = (PARTIES[pair.0], PARTIES[pair.1]);
            let about = (protocol, ports, flags);
            let expected = model::passes(&rules, client_to_client, &mut opened, (from, to), about);
            let packet = match protocol {
                TCP => tcp(from.0, ports.0, to.0, ports.1, flags),
                _ => udp(from.0, ports.0, to.0, ports.1),
            };
            prop_assert_eq!(world.passes(&packet), expected, "{:?} after {:?}", (from, to, about), opened);
        }
    }
}

const ELSEWHERE: &str = "203.0.113.9";

fn reaching(rules: &[RuleSpec]) -> World {
    let mut world = World::new(false, rules);
    let own = vec!["10.8.0.1".parse().unwrap()];
    let pools = Pools { nets: vec!["10.8.0.0/24".parse().unwrap()], own };
    let set = RuleSet::compile(rules, false, &mut world.names).unwrap().with_reach(&[parse("10.1.0.0/16")]);
    world.policy = Policy::of_profiles([(ProfileId::IMPLIED, set)]).with_pools(pools);
    world
}

fn parse(network: &str) -> IpNet {
    network.parse().unwrap()
}

#[test]
fn clients_reach_what_is_pushed_and_nothing_else() {
    let world = reaching(&[]);
    for host in [SERVER, "10.8.0.1", "10.1.255.255"] {
        assert!(world.passes(&tcp(ALICE, 5000, host, 80, SYN)), "{host}");
    }
    for host in [ELSEWHERE, "10.2.0.0", "10.0.255.255", "224.0.0.251", "255.255.255.255"] {
        for packet in
            [tcp(ALICE, 5000, host, 80, SYN), tcp(ALICE, 5000, host, 80, ACK), udp(ALICE, 1, host, 2)]
        {
            assert!(!world.passes(&packet), "{host}");
        }
        assert!(
            !world.passes(&icmp(ALICE, host, 0)) && !world.passes(&later_fragment(UDP, ALICE, host)),
            "{host}"
        );
    }
    let everything = RuleSet::without_rules(false).with_reach(&[parse("0.0.0.0/0")]);
    let world = World { policy: Policy::of_profiles([(ProfileId::IMPLIED, everything)]), ..world };
    assert!(world.passes(&tcp(ALICE, 5000, ELSEWHERE, 80, SYN)), "it was pushed");
}

#[test]
fn a_rule_opens_more_than_is_pushed_only_by_naming_it() {
    let beyond = tcp(ALICE, 5000, ELSEWHERE, 80, SYN);
    for rules in [
        vec![allow(&[], &[])],
        vec![allow(&[group("staff")], &[Selector::Any])],
        vec![allow(&[Selector::Clients], &[Selector::Clients, net("198.51.100.0/24")])],
        vec![deny(&[], &[net("203.0.113.0/24")]), allow(&[], &[net("203.0.113.0/24")])],
        vec![allow(&[group("guests")], &[net("203.0.113.0/24")])],
    ] {
        let world = reaching(&rules);
        assert!(!world.passes(&beyond), "{rules:?}");
        assert!(!world.passes(&tcp(ALICE, 5000, ELSEWHERE, 80, ACK)), "nor as a reply: {rules:?}");
    }
    let world = reaching(&[allow(&[group("staff")], &[net("203.0.113.0/24")])]);
    assert!(world.passes(&beyond));
    assert!(!world.passes(&tcp(BOB, 5000, ELSEWHERE, 80, SYN)), "it is for staff only");
    let https = [rule(Verdict::Allow, &[], &[net("0.0.0.0/0")], Protocol::Tcp, &[443..=443])];
    assert!(!reaching(&https).passes(&beyond));
    assert!(reaching(&https).passes(&tcp(ALICE, 5000, ELSEWHERE, 443, SYN)));
    assert!(!reaching(&https).passes(&later_fragment(TCP, ALICE, ELSEWHERE)));

    let answers = reaching(&[allow(&[net("203.0.113.0/24")], &[Selector::Clients])]);
    let answer = tcp(ALICE, 80, ELSEWHERE, 5000, ACK);
    assert!(!answers.passes(&answer), "nobody has asked");
    assert!(answers.passes(&tcp(ELSEWHERE, 5000, ALICE, 80, SYN)));
    assert!(answers.passes(&answer), "whom the host asks may answer");
    let any = reaching(&[allow(&[Selector::Any], &[Selector::Clients])]);
    assert!(
        any.passes(&tcp(ELSEWHERE, 5000, ALICE, 80, SYN)) && !any.passes(&answer),
        "any is the campus alone"
    );
    assert!(!answers.passes(&beyond), "and not ask");
}

#[test]
fn a_name_server_at_the_gateway_answers_the_profiles_that_have_it() {
    let own = "10.8.0.1";
    let with = |rules: &[RuleSpec], servers: &[&str]| {
        let mut world = reaching(rules);
        let servers = servers.iter().map(|server| server.parse().unwrap()).collect();
        let set =
            RuleSet::compile(rules, false, &mut world.names).unwrap().with_reach(&[parse("10.1.0.0/16")]);
        let pools = Pools { nets: vec![parse("10.8.0.0/24")], own: vec![own.parse().unwrap()] };
        let set = set.with_own_name_servers(servers);
        World { policy: Policy::of_profiles([(ProfileId::IMPLIED, set)]).with_pools(pools), ..world }
    };
    let queries = [udp(ALICE, 5000, own, 53), tcp(ALICE, 5000, own, 53, SYN), tcp(ALICE, 5000, own, 53, ACK)];
    for query in queries {
        assert!(with(&[], &[own]).passes(&query));
        assert!(!with(&[], &[]).passes(&query) && !with(&[], &["10.1.0.53"]).passes(&query));
        assert!(
            !with(&[allow(&[], &[])], &[]).passes(&query),
            "no more than anything else that is not pushed"
        );
        assert!(with(&[allow(&[], &[net("10.8.0.1/32")])], &[]).passes(&query), "but a rule may name it");
    }
    for other in [icmp(ALICE, own, 8), udp(ALICE, 53, own, 5000), udp(ALICE, 5000, SERVER, 53)] {
        assert!(with(&[], &[]).passes(&other), "all else is as without");
    }
    let fragment = later_fragment(UDP, ALICE, own);
    assert!(with(&[], &[own]).passes(&fragment) && !with(&[], &[]).passes(&fragment));
}
