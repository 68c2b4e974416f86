//! Short codes of logins (RFC 8628): what a person types on another device, how often, and how
//! often the client asks.
//!
//! INVARIANT: a code is worth nothing without a login on the pages, and codes are typed at a pace
//! for each person and each host, the right ones included: of 20^8 codes a guesser tries some
//! dozens in the ten minutes that one lives (RFC 8628 section 5.1).

use std::net::IpAddr;
use std::time::Duration;

use vpnd_proto::admission::{Network, Source};
use vpnd_proto::time::Time;
use vpnd_store::UserId;

use super::logins::Hash;
use vpnd_admission::authenticator::allowances::Allowances;

/// Letters of codes: no vowels, so they spell no words (RFC 8628 section 6.1).
const LETTERS: &[u8; 20] = b"BCDFGHJKLMNPQRSTVWXZ";
const LENGTH: usize = 8;
/// Time from one attempt of a client to its next, and what each that comes sooner adds (RFC 8628
/// section 3.5).
pub(super) const INTERVAL: Duration = Duration::from_secs(5);
/// Codes that a person may type at once, and the time for each after that.
const OF_PERSON: (u32, Duration) = (10, Duration::from_secs(60));
/// Codes from one host, which many people may share.
const OF_HOST: (u32, Duration) = (40, Duration::from_secs(15));

/// Codes that other gateways do not know of, at most: none do outside a fleet.
const MAX_MADE: usize = 1_024;

/// A code (RFC 8628: `user_code`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Code([u8; LENGTH]);

impl Code {
    pub(super) fn fresh() -> Self {
        Self(std::array::from_fn(|_| LETTERS[rand::random_range(..LETTERS.len())]))
    }

    /// Reads a code as people type it: in either case, with or without anything between its
    /// letters.
    pub(super) fn read(typed: &str) -> Option<Self> {
        let letters = typed.bytes().map(|byte| byte.to_ascii_uppercase());
        let letters: Vec<u8> = letters.filter(|byte| LETTERS.contains(byte)).collect();
        Some(Self(letters.try_into().ok()?))
    }

    /// The code for a person.
    pub(super) fn shown(self) -> String {
        let (first, last) = self.0.split_at(LENGTH / 2);
        [first, b"-", last].concat().into_iter().map(char::from).collect()
    }
}

/// The code that this is, as it is shown, for the fuzzer.
#[cfg(any(test, fuzzing))]
pub(crate) fn read(typed: &str) -> Option<String> {
    Code::read(typed).map(Code::shown)
}

/// The state of a login whose client shows a code.
pub(super) struct ByCode {
    code: Code,
    typed: Option<Typed>,
    interval: Duration,
    asked: Option<Time>,
}

/// A code that a person has typed.
struct Typed {
    /// Hash of the ticket of the question that it has led to.
    ticket: Hash,
    user: UserId,
}

impl ByCode {
    pub(super) fn new(code: Code) -> Self {
        Self { code, typed: None, interval: INTERVAL, asked: None }
    }

    /// One of another gateway, with the ticket of the user who has typed it.
    pub(super) fn restore(code: [u8; LENGTH], typed: Option<(Hash, UserId)>) -> Self {
        let typed = typed.map(|(ticket, user)| Typed { ticket, user });
        Self { typed, ..Self::new(Code(code)) }
    }

    /// For other gateways.
    pub(super) fn facts(&self) -> ([u8; LENGTH], Option<(Hash, UserId)>) {
        (self.code.0, self.typed.as_ref().map(|typed| (typed.ticket, typed.user)))
    }

    pub(super) fn has(&self, code: Code) -> bool {
        self.code == code
    }

    /// Gives this ticket to a user who has typed the code, in place of an earlier one, unless
    /// another user was first.
    pub(super) fn typed_by(&mut self, user: UserId, ticket: Hash) -> bool {
        let is_free = self.typed.as_ref().is_none_or(|typed| typed.user == user);
        if is_free {
            self.typed = Some(Typed { ticket, user });
        }
        is_free
    }

    pub(super) fn has_ticket(&self, ticket: &Hash) -> bool {
        self.typed.as_ref().is_some_and(|typed| typed.ticket == *ticket)
    }

    pub(super) fn is_of(&self, user: UserId) -> bool {
        self.typed.as_ref().is_some_and(|typed| typed.user == user)
    }

    /// The client asks whether the person has answered. The time until it may ask again, which
    /// grows if it has not waited (`slow_down`).
    pub(super) fn ask(&mut self, now: Time) -> Duration {
        if self.asked.is_some_and(|before| now.since(before) < self.interval) {
            self.interval += INTERVAL;
        }
        self.asked = Some(now);
        self.interval
    }
}

/// Limits the codes that people type.
pub(super) struct Guesses {
    of_person: Allowances<UserId>,
    of_host: Allowances<Network>,
    /// Typed here, and not known to the fleet's other gateways.
    made: Vec<(UserId, IpAddr)>,
}

impl Default for Guesses {
    fn default() -> Self {
        let [(person, each), (host, each_of_host)] = [OF_PERSON, OF_HOST];
        let (of_person, of_host) = (Allowances::new(person, each), Allowances::new(host, each_of_host));
        Self { of_person, of_host, made: Vec::new() }
    }
}

impl Guesses {
    /// Counts a code before it is looked at, or returns the seconds after which there may be
    /// another.
    pub(super) fn take(&mut self, user: UserId, address: IpAddr, now: Time) -> Result<(), u64> {
        self.of_host.take(host(address), now)?;
        self.of_person.take(user, now)?;
        if self.made.len() < MAX_MADE {
            self.made.push((user, address));
        }
        Ok(())
    }

    /// Those that were typed here since the last call.
    pub(super) fn take_shared(&mut self) -> Vec<(UserId, IpAddr)> {
        std::mem::take(&mut self.made)
    }

    /// One was typed at another gateway, that long ago.
    pub(super) fn learn(&mut self, user: UserId, address: IpAddr, age: Duration, now: Time) {
        self.of_host.learn(host(address), age, now);
        self.of_person.learn(user, age, now);
    }
}

fn host(address: IpAddr) -> Network {
    let [_, _, host] = Source::from(address).networks();
    host
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_are_read_as_people_type_them_and_differ() {
        let code = Code(*b"WDJBMJHT");
        assert_eq!(code.shown(), "WDJB-MJHT");
        for typed in ["WDJB-MJHT", "wdjbmjht", " wdjb mjht ", "W.D.J.B.M.J.H.T", "WDJB\u{2011}MJHT"] {
            assert!(Code::read(typed) == Some(code), "{typed}");
        }
        for typed in ["", "WDJB-MJH", "WDJB-MJHTT", "WDJB-MJHA", "ÄÄÄÄÄÄÄÄ"] {
            assert!(Code::read(typed).is_none(), "{typed}");
        }
        let codes: HashSet<_> = (0..1_000).map(|_| Code::fresh().0).collect();
        let letters: HashSet<u8> = codes.iter().flatten().copied().collect();
        assert_eq!((codes.len(), letters.len()), (1_000, LETTERS.len()));
    }

    #[test]
    fn short_code_attempts_are_limited_per_user_and_host() {
        let from = |last: u8| IpAddr::from([192, 0, 2, last]);
        let person = |number: u8| UserId([number; 16]);
        let mut guesses = Guesses::default();
        // From as many addresses as there are.
        let typed = (0..200).filter(|last| guesses.take(person(1), from(*last), Time::ZERO).is_ok()).count();
        assert_eq!(typed, OF_PERSON.0 as usize);
        assert_eq!(guesses.take(person(1), from(201), Time::ZERO), Err(OF_PERSON.1.as_secs()));
        assert!(guesses.take(person(2), from(201), Time::ZERO).is_ok());
        assert!(guesses.take(person(1), from(202), Time::ZERO + OF_PERSON.1).is_ok(), "a minute later");
        // By as many people as there are.
        let mut guesses = Guesses::default();
        let typed = (0..200).filter(|number| guesses.take(person(*number), from(1), Time::ZERO).is_ok());
        assert_eq!(typed.count(), OF_HOST.0 as usize);
        assert!(guesses.take(person(250), from(2), Time::ZERO).is_ok());
    }

    #[test]
    fn short_code_attempts_at_another_gateway_count() {
        let (user, from, now) = (UserId([1; 16]), IpAddr::from([192, 0, 2, 1]), Time::ZERO);
        let [mut here, mut there] = [0, 1].map(|_| Guesses::default());
        for _ in 0..OF_PERSON.0 {
            here.take(user, from, now).unwrap();
        }
        assert!(here.take(user, from, now).is_err());
        let typed = here.take_shared();
        assert_eq!(
            (typed.len(), here.take_shared().len()),
            (OF_PERSON.0 as usize, 0),
            "none that was refused"
        );
        typed.iter().for_each(|(user, from)| there.learn(*user, *from, Duration::ZERO, now));
        assert!(there.take(user, [192, 0, 2, 9].into(), now).is_err(), "the person has typed them");
        let left = (2..200).filter(|number| there.take(UserId([*number; 16]), from, now).is_ok());
        assert_eq!(left.count() as u32, OF_HOST.0 - OF_PERSON.0, "and so has the host");
    }

    #[test]
    fn a_client_that_asks_too_often_waits_longer_each_time() {
        let mut login = ByCode::new(Code::fresh());
        let second = Duration::from_secs(1);
        assert_eq!(login.ask(Time::ZERO), 5 * second);
        assert_eq!(login.ask(Time::ZERO + 5 * second), 5 * second, "as it was told");
        assert_eq!(login.ask(Time::ZERO + 9 * second), 10 * second);
        assert_eq!(login.ask(Time::ZERO + 18 * second), 15 * second, "and so for all that follow");
        assert_eq!(login.ask(Time::ZERO + 33 * second), 15 * second);
    }
}
