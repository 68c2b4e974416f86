//! Several gateways and the order in which a database has their notices.

use std::net::IpAddr;

use super::*;

/// Time between two turns of a gateway, in milliseconds.
const TURN_MS: u64 = 400;

struct Fleet {
    gateways: Vec<Throttle>,
    /// Notices with the gateways that have made them.
    log: Vec<(usize, SharedGuess)>,
    read: Vec<usize>,
}

impl Fleet {
    fn of(count: usize) -> Self {
        let gateway = |_| {
            let mut throttle = Throttle::default();
            throttle.share(count as u32);
            throttle
        };
        Self { gateways: (0..count).map(gateway).collect(), log: Vec::new(), read: vec![0; count] }
    }

    fn turn(&mut self, gateway: usize) {
        for (origin, guess) in &self.log[self.read[gateway]..] {
            if *origin != gateway {
                self.gateways[gateway].learn(guess);
            }
        }
        let made = self.gateways[gateway].take_shared().into_iter();
        self.log.extend(made.map(|guess| (gateway, guess)));
        self.read[gateway] = self.log.len();
    }

    fn admit(
        &mut self,
        gateway: usize,
        person: Person,
        from: Source,
        known: bool,
        now_s: u64,
    ) -> Option<Guess> {
        let is_tight = self.gateways[gateway].is_tight(person, from, known, now_s);
        if is_tight {
            self.turn(gateway);
        }
        let admitted = self.gateways[gateway].admit(person, from, known, now_s).ok();
        if is_tight {
            // It is in one change with what was read.
            self.turn(gateway);
        }
        admitted
    }

    /// The guesses of an attacker who tries at each gateway all the time.
    fn attacked(&mut self, for_s: u64, mut guess: impl FnMut(u64) -> (Person, Source)) -> usize {
        let (mut count, mut number) = (0, 0);
        for turn in 0..for_s * 1_000 / TURN_MS {
            for gateway in 0..self.gateways.len() {
                self.turn(gateway);
                loop {
                    let (person, from) = guess(number);
                    if self.admit(gateway, person, from, false, 1_000 + turn * TURN_MS / 1_000).is_none() {
                        break;
                    }
                    (count, number) = (count + 1, number + 1);
                }
            }
        }
        count
    }
}

fn host(number: u64) -> Source {
    Source::from(IpAddr::from(std::net::Ipv4Addr::from_bits(0xC000_0200 + number as u32)))
}

#[test]
fn an_attacker_who_spreads_over_gateways_gets_no_more_guesses_than_at_one() {
    let at = |gateways| Fleet::of(gateways).attacked(3_600, |_| (Person::named("ann"), host(1)));
    let (one, three) = (at(1), at(3));
    // At each of the others one may be checked that is not known yet. Waits grow by it.
    assert!((one..=one + 2).contains(&three), "{three} at three gateways, {one} at one");

    // More guesses at many users may be checked in the first moment, and fewer after it.
    let persons = |number: u64| (Person::named(&format!("user{number}")), host(1));
    let of_all = |gateways, for_s| Fleet::of(gateways).attacked(for_s, persons);
    let (one, three) = (of_all(1, 1), of_all(3, 1));
    assert!((one..2 * one).contains(&three), "{three} at three gateways, {one} at one");
    let (one, three) = (of_all(1, 10_800), of_all(3, 10_800));
    assert!((one..=one + 2).contains(&three), "{three} at three gateways, {one} at one");
    let from_site =
        |gateways| Fleet::of(gateways).attacked(600, |number| (Person::named("ann"), host(number % 200)));
    let (one, three) = (from_site(1), from_site(3));
    assert!((one..=one + 10).contains(&three), "{three} at three gateways, {one} at one");
}

#[test]
fn guesses_count_per_gateway_unless_they_are_shared() {
    let alone = |gateways: usize| {
        let mut fleet = Fleet::of(1);
        (0..gateways)
            .map(|_| std::mem::replace(&mut fleet, Fleet::of(1)))
            .map(|mut gateway| gateway.attacked(1, |_| (Person::named("ann"), host(1))))
            .sum::<usize>()
    };
    assert_eq!([alone(1), alone(3)], [5, 15]);
}

#[test]
fn users_without_failures_wait_for_no_other_gateway() {
    let mut fleet = Fleet::of(3);
    let ann = Person::named("ann");
    for number in 0..50 {
        assert!(!fleet.gateways[0].is_tight(ann, host(number), false, 1_000));
    }
    // Right passwords leave nothing, and nothing is sent of them.
    for _ in 0..50 {
        let guess = fleet.gateways[0].admit(ann, host(1), false, 1_000).unwrap();
        fleet.gateways[0].succeeded(guess);
    }
    assert!(fleet.gateways[0].take_shared().is_empty());
    // One that was sent before it is over is taken back everywhere.
    let guess = fleet.gateways[0].admit(ann, host(1), false, 1_000).unwrap();
    fleet.turn(0);
    fleet.turn(1);
    assert_eq!(fleet.gateways[1].by_person.count(&ann, 1_000), 1);
    fleet.gateways[0].take_back(guess);
    fleet.turn(0);
    fleet.turn(1);
    assert_eq!(fleet.gateways[1].by_person.count(&ann, 1_000), 0);
}

#[test]
fn a_success_at_one_gateway_clears_the_failures_at_all() {
    let mut fleet = Fleet::of(2);
    let ann = Person::named("ann");
    for _ in 0..5 {
        assert!(fleet.admit(0, ann, host(1), true, 1_000).is_some());
    }
    fleet.turn(0);
    fleet.turn(1);
    assert!(fleet.gateways[1].wait_s(&ann, host(1), true, 1_000).is_some());
    let guess = fleet.gateways[1].admit(ann, host(1), true, 1_010).unwrap();
    fleet.gateways[1].succeeded(guess);
    fleet.turn(1);
    fleet.turn(0);
    for gateway in &mut fleet.gateways {
        assert_eq!(gateway.wait_s(&ann, host(1), true, 1_010), None);
    }
}

#[test]
fn an_entry_shares_one_counter_at_all_gateways() {
    let mut fleet = Fleet::of(2);
    let (name, entry) = (Person::named("ann"), Person::entry("staff", "1"));
    fleet.gateways[0].is_entry("ann", entry);
    for _ in 0..3 {
        assert!(fleet.admit(0, name, host(1), true, 1_000).is_some());
        assert!(fleet.admit(1, name, host(1), true, 1_000).is_some());
        fleet.turn(0);
        fleet.turn(1);
        fleet.turn(0);
    }
    assert_eq!(fleet.gateways[0].by_person.count(&entry, 1_000), 6);
    fleet.gateways[1].is_entry("ann", entry);
    assert_eq!(fleet.gateways[1].by_person.count(&entry, 1_000), 6, "earlier ones included");
}
