use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use Standing::{Known, Returning, Stranger};

const DISPLACE_AFTER: Duration = Duration::from_secs(1);

fn shares(limit: usize) -> Shares {
    Shares::new(Division { limit, displace_after: DISPLACE_AFTER, displaced: Displaced::Oldest })
}

/// A queue in which no place is lost for having been held for long.
fn queue(limit: usize) -> Shares {
    Shares::new(Division { limit, displace_after: Duration::MAX, displaced: Displaced::Newest })
}

fn at(ms: u64) -> Time {
    Time::ZERO + Duration::from_millis(ms)
}

fn source(address: &str) -> Source {
    Source::from(address.parse::<IpAddr>().unwrap())
}

fn v4(bytes: [u8; 4]) -> Source {
    Source::from(IpAddr::from(bytes))
}

fn enter(shares: &mut Shares, from: Source, standing: Standing) -> Option<PermitId> {
    match shares.enter(at(0), from, standing) {
        Entered::In { permit, .. } => Some(permit),
        Entered::Full => None,
    }
}

/// Returns the permit that is lost to a newcomer.
fn displaced(shares: &mut Shares, now: Time, from: Source, standing: Standing) -> Option<PermitId> {
    match shares.enter(now, from, standing) {
        Entered::In { displaced, .. } => displaced,
        Entered::Full => None,
    }
}

#[test]
fn a_host_a_site_and_a_provider_have_a_share_each() {
    let mut shares = shares(96);
    let fill = |shares: &mut Shares, third: u8, fourth: u8| {
        (0..200).filter(|_| enter(shares, v4([10, 0, third, fourth]), Stranger).is_some()).count()
    };
    assert_eq!(fill(&mut shares, 0, 1), 24, "a host");
    assert!(fill(&mut shares, 0, 2) > 0, "a neighbour");
    assert_eq!(shares.taken(), 32, "a site");
    assert!(fill(&mut shares, 1, 1) > 0 && fill(&mut shares, 2, 1) > 0, "other sites");
    assert_eq!(shares.taken(), 48, "a provider");
}

#[test]
fn a_newcomer_takes_from_the_widest_network_that_holds_more_and_there_the_oldest() {
    let mut shares = shares(8);
    let crowd: Vec<_> =
        (1..=4).filter_map(|host| enter(&mut shares, v4([10, 0, host, 1]), Stranger)).collect();
    assert_eq!(crowd.len(), 4, "half of all, from four sites");
    for other in 0..2 {
        assert!(enter(&mut shares, v4([20, other, 0, 1]), Stranger).is_some());
    }
    // Strangers hold six of eight now.
    assert_eq!(displaced(&mut shares, at(0), v4([30, 0, 0, 1]), Stranger), Some(crowd[0]));
    assert_eq!(displaced(&mut shares, at(0), v4([30, 1, 0, 1]), Stranger), Some(crowd[1]));
    assert_eq!(displaced(&mut shares, at(0), v4([30, 2, 0, 1]), Stranger), Some(crowd[2]));
    assert_eq!(shares.enter(at(999), v4([30, 3, 0, 1]), Stranger), Entered::Full, "all hold one");
    let after = displaced(&mut shares, at(1_000), v4([30, 3, 0, 1]), Stranger);
    assert_eq!(after, Some(crowd[3]), "whoever has been there for long makes room");
}

#[test]
fn networks_beside_a_crowded_one_are_admitted() {
    let mut shares = shares(24);
    for _ in 0..9 {
        enter(&mut shares, source("2001:db8:0:101::1"), Stranger);
        enter(&mut shares, source("2001:db8:0:102::1"), Stranger);
    }
    assert!(
        enter(&mut shares, source("2001:db8:0:201::1"), Stranger).is_some(),
        "another site of the provider"
    );
    assert!(enter(&mut shares, source("2001:db8:0:103::1"), Stranger).is_some(), "another host of the site");
}

#[test]
fn a_quarter_is_kept_for_each_standing() {
    let mut shares = shares(16);
    let fill = |shares: &mut Shares, standing, net: u8| {
        (0..64).filter(|host| enter(shares, v4([net + host, 0, 0, 1]), standing).is_some()).count()
    };
    assert_eq!(fill(&mut shares, Stranger, 0), 12);
    assert_eq!(
        fill(&mut shares, Known, 64),
        12,
        "four that were free and what strangers hold above their quarter"
    );
    let count = |shares: &Shares| [Stranger, Known, Returning].map(|standing| shares.count(standing));
    assert_eq!(count(&shares), [4, 12, 0]);
    fill(&mut shares, Returning, 128);
    assert_eq!(count(&shares), [4, 4, 8]);
    assert_eq!(fill(&mut shares, Stranger, 192), 0, "strangers get no more than their quarter back");
    fill(&mut shares, Known, 192);
    assert_eq!(count(&shares), [4, 4, 8]);
}

#[test]
fn turns_rotate_among_providers_then_sites_then_hosts() {
    let mut queue = queue(64);
    let addresses = [
        [10, 0, 0, 1], // 0: five of one host
        [10, 0, 0, 1],
        [10, 0, 0, 1],
        [10, 0, 0, 1],
        [10, 0, 0, 1],
        [10, 0, 0, 2], // 5: its neighbour
        [10, 0, 1, 1], // 6: another site
        [20, 0, 0, 1], // 7: another provider
        [20, 0, 0, 1],
    ];
    for address in addresses {
        enter(&mut queue, v4(address), Stranger).unwrap();
    }
    let order: Vec<u64> = std::iter::from_fn(|| queue.next_turn()).map(|permit| permit.0).collect();
    assert_eq!(order, [0, 7, 6, 8, 5, 1, 2, 3, 4]);
}

#[test]
fn repeated_requests_do_not_overtake_waiting_ones() {
    let mut queue = queue(64);
    for _ in 0..3 {
        enter(&mut queue, v4([10, 0, 0, 1]), Stranger).unwrap();
    }
    for round in 0..3 {
        enter(&mut queue, v4([20, 0, 0, 1]), Stranger).unwrap();
        assert_eq!(queue.next_turn().map(|permit| permit.0 < 3), Some(true), "round {round}");
        assert_eq!(queue.next_turn().map(|permit| permit.0 < 3), Some(false), "round {round}");
    }
}

#[test]
fn better_standings_have_more_turns_and_none_starves() {
    let mut queue = queue(400);
    for number in 0..50 {
        for standing in [Stranger, Known, Returning] {
            enter(&mut queue, v4([number, standing as u8, 0, 1]), standing).unwrap();
        }
    }
    let mut order = [0; 3];
    for _ in 0..49 {
        let before = queue.counts;
        queue.next_turn().unwrap();
        for (count, (before, after)) in order.iter_mut().zip(before.into_iter().zip(queue.counts)) {
            *count += before - after;
        }
    }
    assert_eq!(order, [7, 14, 28]);
}

/// A step of a test.
#[derive(Clone, Debug)]
enum Step {
    Enter([u8; 4], usize),
    Leave(usize),
    Next,
    Later(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let address = (0u8..4, 0u8..2, 0u8..3, 0u8..3).prop_map(|(a, b, c, d)| [a, b, c, d]);
    prop_oneof![
        6 => (address, 0usize..5).prop_map(|(address, standing)| Step::Enter(address, standing.saturating_sub(2))),
        1 => (0usize..64).prop_map(Step::Leave),
        1 => Just(Step::Next),
        1 => (0u64..800).prop_map(Step::Later),
    ]
}

/// The permits and their holders, as a list.
type Model = Vec<(PermitId, [u8; 4], Standing)>;

fn held(model: &Model, standing: Standing, prefix: &[u8]) -> usize {
    model.iter().filter(|(_, address, theirs)| *theirs == standing && address.starts_with(prefix)).count()
}

proptest! {
    /// Against a list: no source has more than a share; a newcomer is refused only if no other
    /// holds more than its networks do.
    #[test]
    fn shares_are_kept_whatever_happens(limit in 1usize..24, steps in prop::collection::vec(step(), 1..200)) {
        let mut shares = shares(limit);
        let (mut model, mut now) = (Model::new(), 0);
        for step in steps {
            match step {
                Step::Later(ms) => now += ms,
                Step::Leave(number) if !model.is_empty() => {
                    let (permit, ..) = model.remove(number % model.len());
                    prop_assert!(shares.leave(permit) && !shares.leave(permit));
                }
                Step::Leave(_) => {}
                Step::Next => {
                    let permit = shares.next_turn();
                    prop_assert_eq!(permit.is_some(), !model.is_empty());
                    model.retain(|(theirs, ..)| Some(*theirs) != permit);
                }
                Step::Enter(address, number) => {
                    let standing = STANDINGS[number];
                    match shares.enter(at(now), v4(address), standing) {
                        Entered::In { permit, displaced } => {
                            let before = model.len();
                            model.retain(|(theirs, ..)| Some(*theirs) != displaced);
                            prop_assert_eq!(before - model.len(), usize::from(displaced.is_some()));
                            model.push((permit, address, standing));
                        }
                        Entered::Full if standing == Stranger => {
                            let ours = held(&model, Stranger, &address[..2]);
                            let most = (0..4).flat_map(|a| (0..2).map(move |b| [a, b]));
                            let most = most.map(|net| held(&model, Stranger, &net)).max().unwrap_or(0);
                            let own = held(&model, Stranger, &address) >= (limit / 4).max(1)
                                || held(&model, Stranger, &address[..3]) >= (limit / 3).max(1);
                            prop_assert!(own || ours + 1 >= most, "{} while another has {}", ours, most);
                        }
                        Entered::Full => prop_assert!(held(&model, standing, &[]) >= limit / 4),
                    }
                }
            }
            prop_assert_eq!(shares.taken(), model.len());
            prop_assert!(model.len() <= limit);
            prop_assert!(held(&model, Stranger, &[]) <= limit - limit / 4);
            for (_, address, standing) in &model {
                let (host, site, wide) = (held(&model, *standing, address), held(&model, *standing, &address[..3]),
                    held(&model, *standing, &address[..2]));
                if *standing == Stranger {
                    prop_assert!(host <= (limit / 4).max(1) && site <= (limit / 3).max(1) && wide <= (limit / 2).max(1));
                } else {
                    prop_assert!(host <= (limit / 2).max(1));
                }
            }
        }
        let loads: usize = shares.loads.len();
        prop_assert!(loads <= 3 * model.len(), "nothing is kept of those who have left");
    }

    /// Each provider of strangers gets its turn in each round, however many wait for another.
    #[test]
    fn the_wait_is_at_most_one_turn_per_network(crowd in 1usize..120, providers in 1u8..10) {
        let mut queue = queue(512);
        for number in 0..crowd {
            enter(&mut queue, v4([1, 0, (number / 16) as u8, (number % 16) as u8]), Stranger);
        }
        for provider in 0..providers {
            enter(&mut queue, v4([2 + provider, 0, 0, 1]), Stranger).unwrap();
        }
        let first = queue.next_id - u64::from(providers);
        let last = (0..).map_while(|turn| queue.next_turn().map(|permit| (turn, permit.0)))
            .filter(|(_, id)| *id >= first).map(|(turn, _)| turn).max();
        prop_assert_eq!(last, Some(usize::from(providers)));
    }
}
