//! Access profiles: whose rules decide, and that no session gets the rules of another profile.

use super::*;

/// Alice in one profile and Bob in another, each with these rules.
fn world(client_to_client: [bool; 2], rules: [&[RuleSpec]; 2]) -> World {
    let mut world = World::new(false, &[]);
    let [staff, guests] = ["staff", "guests"].map(|name| world.names.profile(name));
    let set = |names: &mut Names, which: usize| {
        RuleSet::compile(rules[which], client_to_client[which], names).expect("good rules")
    };
    let sets = [(staff, set(&mut world.names, 0)), (guests, set(&mut world.names, 1))];
    world.policy = Policy::of_profiles(sets);
    (world.alice, world.bob) = (world.alice.in_profile(staff), world.bob.in_profile(guests));
    world
}

#[test]
fn a_profile_that_the_policy_does_not_know_reaches_nothing() {
    let names = &mut Names::new();
    let (known, gone) = (names.profile("staff"), names.profile("gone"));
    let policy = Policy::of_profiles([(known, RuleSet::without_rules(true))]);
    let packet = udp(ALICE, 1, SERVER, 2);
    let packet = Packet::parse(&packet).unwrap();
    let staff = Principal::default().in_profile(known);
    assert_eq!(policy.decide(&staff, Destination::Campus, &packet, &|_| true).verdict, Verdict::Allow);
    for profile in [gone, ProfileId::IMPLIED, ProfileId::NONE] {
        let other = Principal::default().in_profile(profile);
        assert_eq!(
            policy.decide(&other, Destination::Campus, &packet, &|_| true).verdict,
            Verdict::Deny,
            "{profile:?}"
        );
        assert_eq!(
            policy.decide_from_campus(&other, &packet, &|_| true).verdict,
            Verdict::Deny,
            "{profile:?}"
        );
        for (from, to) in [(&other, &staff), (&staff, &other), (&other, &other)] {
            let decision = policy.decide(from, Destination::Client(to), &packet, &|_| true);
            assert_eq!(
                decision,
                Decision { verdict: Verdict::Deny, ground: Ground::UnknownProfile(profile), opens: false }
            );
        }
    }
    let everything = Policy::of_profiles([(ProfileId::NONE, RuleSet::without_rules(true))]);
    let nobody = Principal::default().in_profile(ProfileId::NONE);
    assert_eq!(everything.decide(&nobody, Destination::Campus, &packet, &|_| true).verdict, Verdict::Deny);
}

#[test]
fn a_profile_keeps_its_number_and_no_other_gets_it() {
    let mut names = Names::new();
    let numbers = ["a", "b", "c"].map(|name| names.profile(name));
    assert_eq!(["c", "a", "b"].map(|name| names.profile(name)), [numbers[2], numbers[0], numbers[1]]);
    assert_eq!(numbers.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
    assert!(!numbers.contains(&ProfileId::IMPLIED));
    // Rules that are compiled again forget users and groups of before, and no profile.
    let principal = |names: &mut Names, user| names.principal(user, ["staff"]);
    let first = principal(&mut names, "ann");
    assert_ne!(principal(&mut names, "bob"), first);
    let mut renewed = names.renewed();
    assert_eq!(principal(&mut renewed, "bob"), first, "numbers begin again");
    assert_eq!(["c", "d"].map(|name| renewed.profile(name)), [numbers[2], names.profile("d")]);
}

#[test]
fn each_client_has_the_rules_of_its_own_profile() {
    let world = world([false; 2], [&[deny(&[], &[net("10.1.0.0/16")])], &[]]);
    for (client, passes) in [(ALICE, false), (BOB, true)] {
        assert_eq!(world.passes(&udp(client, 1, SERVER, 2)), passes);
    }
    let world = self::world([false; 2], [&[], &[deny(&[net("10.1.0.0/16")], &[])]]);
    for (client, passes) in [(ALICE, true), (BOB, false)] {
        assert_eq!(world.passes(&udp(SERVER, 1, client, 2)), passes);
    }
}

#[test]
fn between_clients_both_profiles_have_to_allow() {
    let open = [allow(&[], &[])];
    for (rules, passes) in
        [([&open[..], &open[..]], true), ([&open, &[]], false), ([&[], &open], false), ([&[], &[]], false)]
    {
        let world = world([false; 2], rules);
        for packet in [udp(ALICE, 1, BOB, 2), udp(BOB, 1, ALICE, 2)] {
            assert_eq!(world.passes(&packet), passes, "{rules:?}");
        }
    }
    assert!(world([true; 2], [&[], &[]]).passes(&udp(ALICE, 1, BOB, 2)));
    assert!(!world([true, false], [&[], &[]]).passes(&udp(ALICE, 1, BOB, 2)));
    assert!(!world([false, true], [&[], &[]]).passes(&udp(ALICE, 1, BOB, 2)));
}

#[test]
fn hosts_of_other_profiles_open_no_connection_to_a_client() {
    let mut names = Names::new();
    let rules = [allow(&[Selector::Clients], &[net("203.0.113.0/24")])];
    let set = RuleSet::compile(&rules, false, &mut names).unwrap();
    let set = set.with_reach(&[parse("10.1.0.0/16")]).with_inbound_from_reach();
    let profile = names.profile("guests");
    let mut world = World::new(false, &[]);
    world.alice = world.alice.in_profile(profile);
    let own = vec!["10.8.0.1".parse().unwrap()];
    world.policy = Policy::of_profiles([(profile, set)]).with_pools(Pools { nets: Vec::new(), own });
    for (from, passes) in [(SERVER, true), ("10.8.0.1", true), ("10.2.0.9", false), (ELSEWHERE, false)] {
        assert_eq!(world.passes(&udp(from, 1, ALICE, 2)), passes, "{from}");
    }
    assert!(world.passes(&udp(ALICE, 2, ELSEWHERE, 1)) && world.passes(&udp(ELSEWHERE, 1, ALICE, 2)));
    assert!(!world.passes(&tcp("10.2.0.9", 1, ALICE, 2, SYN | ACK)));
    assert!(!world.passes(&tcp(ELSEWHERE, 1, ALICE, 2, SYN)), "it may answer, and not ask");
    assert!(world.passes(&icmp("10.2.0.9", ALICE, 3)), "routers report errors");
    assert!(
        !world.passes(&icmp("10.2.0.9", ALICE, 8)) && !world.passes(&later_fragment(UDP, "10.2.0.9", ALICE))
    );
}

#[test]
fn a_decision_names_its_ground() {
    let rules = [deny(&[], &[net("10.1.0.9/32")]), allow(&[], &[net("10.8.0.3/32")])];
    let world = world([false; 2], [&rules, &rules[..1]]);
    let (staff, guests) = (world.alice.profile(), world.bob.profile());
    let ground = |to: &str, destination: Destination<'_>| {
        let packet = udp(ALICE, 1, to, 2);
        world.policy.decide(&world.alice, destination, &Packet::parse(&packet).unwrap(), &|_| false).ground
    };
    assert_eq!(ground(SERVER, Destination::Campus), Ground::Rule(staff, 1));
    assert_eq!(ground("10.1.0.8", Destination::Campus), Ground::Networks(staff));
    assert_eq!(ground(BOB, Destination::Client(&world.bob)), Ground::Clients(guests), "the one that denies");
    assert_eq!(ground(BOB, Destination::Client(&world.alice)), Ground::Rule(staff, 2));
}

proptest! {
    /// Alice's and Bob's profiles, against the meaning of the rules as it is written down in
    /// [`model`].
    #[test]
    fn profiles_mean_what_is_written(
        of_alice in prop::collection::vec(any_rule(), 0..4),
        of_bob in prop::collection::vec(any_rule(), 0..4),
        client_to_client: [bool; 2],
        packets in prop::collection::vec(sent(), 1..30),
    ) {
        let parties: [model::Party; 3] =
            [(ALICE, Some(("alice", &["staff", "lab"]))), (BOB, Some(("bob", &["guests"]))), (SERVER, None)];
        let rules = [&of_alice[..], &of_bob[..]];
        let world = world(client_to_client, rules);
        let mut opened = [Vec::new(), Vec::new()];
        for (pair, protocol, ports, flags) in packets {
            let (from, to) = (parties[pair.0], parties[pair.1]);
            // Every client at an end of the packet has a profile, and all of these have to allow
            // it.
            let mut after = opened.clone();
            let verdicts = [pair.0, pair.1].into_iter().filter(|party| *party < 2).map(|party| {
                let about = (protocol, ports, flags);
                model::passes(rules[party], client_to_client[party], &mut after[party], (from, to), about)
            });
            let expected = verdicts.collect::<Vec<_>>().into_iter().all(|passes| passes);
            if expected {
                opened = after;
            }
            let packet = match protocol {
                TCP => tcp(from.0, ports.0, to.0, ports.1, flags),
                _ => udp(from.0, ports.0, to.0, ports.1),
            };
            prop_assert_eq!(world.passes(&packet), expected);
        }
    }
}
