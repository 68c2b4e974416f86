//! Visits of users who have logged in in a browser.
//!
//! Invariants: every visit ends by itself, unused or used; what is kept is bounded, altogether and
//! for each user. This module must not know of the store.

mod shared;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use super::token::{ByToken, Found, Kept, TokenHash, VisitNumber, add, find, hash};
use shared::Told;
use vpnd_admission::authenticator::Visit;
use vpnd_admission::notices::SharedVisit;
use vpnd_config::factor::Factors;
use vpnd_ipc::gateway::portal::visits::{MAX_VISITS as MAX_OF_USER, OwnVisit};
use vpnd_ipc::gateway::portal::{Browser, Token};
use vpnd_proto::time::Time;
use vpnd_store::{TotpSecret, UserId};

/// Time without use after which a visit ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Time after which a visit ends.
const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Time after a login in which users may change their credentials.
const RECENT: Duration = Duration::from_secs(10 * 60);
/// Visits of all.
const MAX_VISITS: usize = 16_384;

#[derive(Default)]
pub(super) struct Visits {
    visits: ByToken<Visit>,
    /// Secrets of one-time codes that were offered to visits.
    offers: HashMap<TokenHash, TotpSecret>,
    told: Told,
}

impl Visits {
    /// Begins a visit; the token for its browser.
    pub(super) fn begin(&mut self, visit: Visit, address: IpAddr, now: Time) -> Token {
        self.visits.retain(|_, kept| is_on(kept, now));
        while self.visits.values().filter(|kept| kept.content.user == visit.user).count() >= MAX_OF_USER {
            let own = self.visits.iter().filter(|(_, kept)| kept.content.user == visit.user);
            let Some(oldest) = own.min_by_key(|(_, kept)| kept.used).map(|(hash, _)| *hash) else { break };
            self.visits.remove(&oldest);
        }
        make_room(&mut self.visits);
        add(&mut self.visits, Kept::new(visit, address, now))
    }

    /// The visit of this token, which is used now.
    pub(super) fn visit(&mut self, token: &Token, address: IpAddr, now: Time) -> Found<Visit> {
        let found = find(&mut self.visits, token, address, |kept| is_on(kept, now));
        if let Some(kept) = self.visits.get_mut(&hash(token)) {
            kept.used = now;
        }
        found
    }

    /// The browser of this visit has been used.
    pub(super) fn saw(&mut self, browser: &Browser) {
        if let Some(kept) = self.visits.get_mut(&hash(&browser.token)) {
            (kept.from, kept.kind) = (browser.address.to_canonical(), browser.kind);
        }
    }

    /// The visits of a user, as the browser with this token sees them, the newest first.
    pub(super) fn of_user(&self, user: UserId, token: &Token, now: Time) -> Vec<OwnVisit> {
        let own = hash(token);
        let is_shown = |kept: &Kept<Visit>| kept.content.user == user && is_on(kept, now);
        let mut found: Vec<_> = self.visits.iter().filter(|(_, kept)| is_shown(kept)).collect();
        found.sort_by_key(|(_, kept)| kept.age(now));
        let shown = |(hash, kept): (&TokenHash, &Kept<Visit>)| OwnVisit {
            number: kept.number.into(),
            is_this: *hash == own,
            kind: kept.kind,
            age_s: kept.age(now).as_secs(),
            unused_s: now.since(kept.used).as_secs(),
            from: kept.from,
        };
        found.into_iter().map(shown).collect()
    }

    pub(super) fn number(&self, token: &Token) -> Option<VisitNumber> {
        self.visits.get(&hash(token)).map(|kept| kept.number)
    }

    /// The visit with this number, as it is now, unless it has ended.
    pub(super) fn numbered(&self, number: VisitNumber, now: Time) -> Option<Visit> {
        let is_meant = |kept: &&Kept<Visit>| kept.number == number && is_on(kept, now);
        self.visits.values().find(is_meant).map(|kept| kept.content)
    }

    /// Ends the visit of a user that has this number: `false` if there is none.
    pub(super) fn end_one(&mut self, user: UserId, number: VisitNumber) -> bool {
        let before = self.visits.len();
        self.visits.retain(|_, kept| kept.content.user != user || kept.number != number);
        self.visits.len() < before
    }

    /// Ends all visits of a user but that of this token; their number.
    pub(super) fn end_others(&mut self, user: UserId, token: &Token) -> usize {
        let (before, own) = (self.visits.len(), hash(token));
        self.visits.retain(|hash, kept| kept.content.user != user || *hash == own);
        before - self.visits.len()
    }

    /// The users who have visits, each once, with the generations of these.
    pub(super) fn users(&self, now: Time) -> HashSet<(UserId, u64)> {
        let on = self.visits.values().filter(|kept| is_on(kept, now));
        on.map(|kept| (kept.content.user, kept.content.generation)).collect()
    }

    /// The number of visits.
    pub(super) fn count(&self, now: Time) -> usize {
        self.visits.values().filter(|kept| is_on(kept, now)).count()
    }

    /// Time that is left of the visit at most.
    pub(super) fn time_left(&self, token: &Token, now: Time) -> Duration {
        let age = self.visits.get(&hash(token)).map(|kept| kept.age(now));
        age.map_or(Duration::ZERO, |age| LIFETIME.saturating_sub(age))
    }

    /// The user was revoked something by this visit itself, which goes on.
    pub(super) fn set_generation(&mut self, token: &Token, generation: u64) {
        if let Some(kept) = self.visits.get_mut(&hash(token)) {
            kept.content.generation = generation;
        }
    }

    /// The user has proved this besides, during the visit.
    pub(super) fn prove(&mut self, token: &Token, factors: Factors) {
        if let Some(kept) = self.visits.get_mut(&hash(token)) {
            kept.content.factors = kept.content.factors.and(factors);
        }
    }

    /// The factors that its user has proved.
    pub(super) fn factors(&self, token: &Token) -> Option<Factors> {
        self.visits.get(&hash(token)).map(|kept| kept.content.factors)
    }

    /// Whether its user has logged in just now.
    pub(super) fn is_recent(&self, token: &Token, now: Time) -> bool {
        self.visits.get(&hash(token)).is_some_and(|kept| kept.age(now) < RECENT)
    }

    /// Whether the user was also asked for credentials just then: a provider may have let the
    /// browser in by a login of the morning.
    pub(super) fn is_fresh(&self, token: &Token, now: Time, now_s: u64) -> bool {
        let kept = self.visits.get(&hash(token));
        let age_s = kept.map(|kept| now_s.saturating_sub(kept.content.login.auth_time_s));
        self.is_recent(token, now) && age_s.is_some_and(|age_s| age_s < RECENT.as_secs())
    }

    /// The secret that was offered to this visit, or this one, which is from now on.
    pub(super) fn offer(&mut self, token: &Token, fresh: TotpSecret) -> TotpSecret {
        self.offers.retain(|hash, _| self.visits.contains_key(hash));
        self.offers.entry(hash(token)).or_insert(fresh).clone()
    }

    pub(super) fn offered(&self, token: &Token) -> Option<TotpSecret> {
        self.offers.get(&hash(token)).cloned()
    }

    /// It is taken.
    pub(super) fn remove_offer(&mut self, token: &Token) {
        self.offers.remove(&hash(token));
    }

    pub(super) fn end(&mut self, token: &Token) -> Option<Visit> {
        self.visits.remove(&hash(token)).map(|kept| kept.content)
    }

    /// Ends all visits of a user; their number.
    pub(super) fn end_of(&mut self, user: UserId) -> usize {
        let before = self.visits.len();
        self.visits.retain(|_, kept| kept.content.user != user);
        before - self.visits.len()
    }

    /// Those that have begun, changed or ended here since the last call, by their tokens' hashes.
    pub(super) fn made(&mut self, now: Time, now_s: u64) -> Vec<(TokenHash, Option<SharedVisit>)> {
        self.told.made(&self.visits, now, now_s)
    }

    /// Another gateway has begun, changed or ended it.
    pub(super) fn learn(&mut self, hash: TokenHash, shared: Option<&SharedVisit>, now: Time, now_s: u64) {
        let Some(shared) = shared else {
            self.told.forget(&hash);
            self.visits.remove(&hash);
            return;
        };
        let kept = shared::restore(shared, now, now_s);
        if is_on(&kept, now) {
            if !self.visits.contains_key(&hash) {
                make_room(&mut self.visits);
            }
            self.visits.insert(hash, kept);
            self.told.learn(hash, shared.facts, now);
        }
    }

    /// Forgets all: which of them were ended elsewhere is not known.
    pub(super) fn forget(&mut self) {
        self.visits.clear();
        self.told.clear();
    }
}

fn is_on(kept: &Kept<Visit>, now: Time) -> bool {
    now.since(kept.used) < IDLE_TIMEOUT && kept.age(now) < LIFETIME
}

/// Removes the one that was unused for longest, if there is no room for another.
fn make_room(all: &mut ByToken<Visit>) {
    if all.len() >= MAX_VISITS
        && let Some(oldest) = all.iter().min_by_key(|(_, kept)| kept.used).map(|(hash, _)| *hash)
    {
        all.remove(&oldest);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use vpnd_admission::authenticator::LoginFacts;
    use vpnd_ipc::gateway::idp::{SourceAddresses, SourceLimits};
    use vpnd_ipc::gateway::portal::visits::{BrowserKind, Program, System};
    use vpnd_proto::session::DeviceId;

    const LOGIN: LoginFacts = LoginFacts {
        device: DeviceId([9; 16]),
        auth_time_s: 5,
        limits: SourceLimits { session_s: None, idle_s: None },
        addresses: SourceAddresses { ipv4: None, ipv6: None },
    };
    pub(in crate::portal) const ANN: Visit =
        Visit { user: UserId([1; 16]), generation: 3, factors: Factors::PASSWORD, login: LOGIN };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_login_is_fresh_once_credentials_were_asked_for() {
        let (mut visits, now, now_s) = (Visits::default(), Time::ZERO, 1_000_000);
        let mut asked = |auth_time_s| {
            let login = LoginFacts { auth_time_s, ..ANN.login };
            visits.begin(Visit { login, ..ANN }, address("192.0.2.1"), now)
        };
        let (just_now, this_morning, unsaid) = (asked(now_s - 10), asked(now_s - 600), asked(0));
        assert!(visits.is_fresh(&just_now, now, now_s));
        assert!(
            !visits.is_fresh(&just_now, now, now_s + 590) && !visits.is_fresh(&just_now, now + RECENT, now_s)
        );
        for token in [this_morning, unsaid] {
            assert!(visits.is_recent(&token, now) && !visits.is_fresh(&token, now, now_s));
        }
    }

    #[test]
    fn a_token_is_256_random_bits() {
        let mut visits = Visits::default();
        let tokens: Vec<Token> =
            (0..256).map(|_| visits.begin(ANN, address("192.0.2.1"), Time::ZERO)).collect();
        for bit in 0..256 {
            let ones = tokens.iter().filter(|token| token.0[bit / 8] >> (bit % 8) & 1 == 1).count();
            assert!((64..192).contains(&ones), "bit {bit} is set in {ones} of 256");
        }
    }

    #[test]
    fn a_token_is_good_from_its_network_alone() {
        let mut visits = Visits::default();
        let token = visits.begin(ANN, address("2001:db8::1"), Time::ZERO);
        assert_eq!(visits.visit(&token, address("2001:db8::2"), Time::ZERO), Found::Here(ANN), "one /64");
        for from in ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"] {
            assert_eq!(visits.visit(&token, address(from), Time::ZERO), Found::Here(ANN), "{from}");
        }
        let other = visits.begin(ANN, address("192.0.2.1"), Time::ZERO);
        assert_eq!(visits.visit(&other, address("192.0.2.2"), Time::ZERO), Found::Elsewhere(ANN));
        assert_eq!(visits.visit(&token, address("2001:db8:0:1::1"), Time::ZERO), Found::Elsewhere(ANN));
        assert_eq!(visits.visit(&token, address("2001:db8::1"), Time::ZERO), Found::Nothing, "it is over");
    }

    #[test]
    fn visits_end_by_idle_time_and_by_lifetime() {
        let from = address("192.0.2.1");
        let mut visits = Visits::default();
        let token = visits.begin(ANN, from, Time::ZERO);
        let almost = IDLE_TIMEOUT - Duration::from_secs(1);
        let (mut now, mut uses) = (Time::ZERO, 0);
        while visits.visit(&token, from, now) == Found::Here(ANN) {
            (now, uses) = (now + almost, uses + 1);
        }
        assert_eq!(uses, LIFETIME.as_secs().div_ceil(almost.as_secs()));
        let token = visits.begin(ANN, from, now);
        assert_eq!(visits.visit(&token, from, now + IDLE_TIMEOUT), Found::Over(ANN));
        assert_eq!(visits.visit(&token, from, now), Found::Nothing);
    }

    #[test]
    fn a_user_ends_only_own_visits_by_their_public_numbers() {
        let from = address("192.0.2.1");
        let mut visits = Visits::default();
        let step = |n: u64| Time::ZERO + Duration::from_secs(n);
        let tokens: Vec<Token> = (0..3).map(|n| visits.begin(ANN, from, step(n))).collect();
        let bob = Visit { user: UserId([2; 16]), ..ANN };
        let his = visits.begin(bob, from, step(3));
        let (program, system) = (Program::Firefox, System::Linux);
        let kind = BrowserKind { program, system };
        visits.saw(&Browser { token: tokens[0].clone(), address: address("::ffff:192.0.2.1"), kind });
        let shown = visits.of_user(ANN.user, &tokens[0], step(9));
        assert_eq!(
            shown.iter().map(|visit| (visit.age_s, visit.is_this)).collect::<Vec<_>>(),
            [(7, false), (8, false), (9, true)]
        );
        assert_eq!((shown[2].kind, shown[2].from, shown[0].kind), (kind, from, BrowserKind::default()));
        assert!(
            shown
                .iter()
                .all(|visit| *visit.number != tokens[0].0[..16] && *visit.number != hash(&tokens[0])[..16])
        );
        let number = shown[0].number.into();
        assert!(!visits.end_one(bob.user, number), "it is hers");
        assert!(visits.end_one(ANN.user, number) && !visits.end_one(ANN.user, number));
        assert_eq!(visits.visit(&tokens[2], from, step(9)), Found::Nothing);
        assert_eq!(visits.end_others(ANN.user, &tokens[0]), 1);
        assert_eq!(visits.visit(&tokens[0], from, step(9)), Found::Here(ANN));
        assert_eq!(visits.visit(&tokens[1], from, step(9)), Found::Nothing);
        assert_eq!(visits.visit(&his, from, step(9)), Found::Here(bob));
        assert!(
            visits.of_user(ANN.user, &tokens[0], step(9) + IDLE_TIMEOUT).is_empty(),
            "those that are over"
        );
    }

    #[test]
    fn visits_of_a_user_are_limited_and_expire() {
        let from = address("192.0.2.1");
        let mut visits = Visits::default();
        let step = |n: u64| Time::ZERO + Duration::from_secs(n);
        let tokens: Vec<Token> = (0..9).map(|n| visits.begin(ANN, from, step(n))).collect();
        let is_there =
            |visits: &mut Visits, n: usize| visits.visit(&tokens[n], from, step(9)) == Found::Here(ANN);
        assert!(!is_there(&mut visits, 0) && is_there(&mut visits, 1) && is_there(&mut visits, 8));
        let other = Visit { user: UserId([2; 16]), ..ANN };
        let others = visits.begin(other, from, step(9));
        assert_eq!(visits.end_of(ANN.user), MAX_OF_USER);
        assert!(!is_there(&mut visits, 8));
        assert_eq!(visits.visit(&others, from, step(9)), Found::Here(other));
    }
}
