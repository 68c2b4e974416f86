//! Visits at all gateways of a fleet.
//!
//! INVARIANT: a visit that was ended is over at all of them. One that was not used at a gateway for
//! long is over at that one alone: it may be in use at another.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use vpnd_proto::admission::Source;
use vpnd_proto::session::DeviceId;
use vpnd_proto::time::Time;
use vpnd_store::UserId;

use super::{ByToken, IDLE_TIMEOUT, Kept, TokenHash, is_on};
use vpnd_admission::authenticator::{LoginFacts, Visit};
use vpnd_admission::notices::{SharedVisit, VisitFacts};

/// A visit, as other gateways need it. `before` has where the browser was seen; that it was seen
/// elsewhere in its network is no news.
fn facts(kept: &Kept<Visit>, before: Option<&VisitFacts>) -> VisitFacts {
    let Visit { user, generation, factors, login } = kept.content;
    let [ipv4, ipv6] = kept.networks.map(|host| host.map(IpAddr::from));
    VisitFacts {
        user: user.0.into(),
        generation,
        factors,
        device: login.device.0.into(),
        auth_time_s: login.auth_time_s,
        limits: login.limits,
        addresses: login.addresses,
        ipv4,
        ipv6,
        number: kept.number.into(),
        from: before.map_or(kept.from, |before| before.from),
        kind: before.map_or(kept.kind, |before| before.kind),
    }
}

/// A visit that another gateway has let know of.
pub(super) fn restore(SharedVisit { facts, began_s }: &SharedVisit, now: Time, now_s: u64) -> Kept<Visit> {
    let login = LoginFacts {
        device: DeviceId(facts.device.into()),
        auth_time_s: facts.auth_time_s,
        limits: facts.limits,
        addresses: facts.addresses,
    };
    let user = UserId(facts.user.into());
    Kept {
        content: Visit { user, generation: facts.generation, factors: facts.factors, login },
        networks: [facts.ipv4, facts.ipv6].map(|host| host.map(Source::from)),
        began: now,
        before: Duration::from_secs(now_s.saturating_sub(*began_s)),
        used: now,
        number: facts.number.into(),
        from: facts.from,
        kind: facts.kind,
    }
}

/// Visits as the other gateways of a fleet know them, and when these were used.
#[derive(Default)]
pub(super) struct Told(HashMap<TokenHash, (VisitFacts, Time)>);

impl Told {
    /// Those of these visits that have begun, changed or ended since the last call.
    pub(super) fn made(
        &mut self,
        visits: &ByToken<Visit>,
        now: Time,
        now_s: u64,
    ) -> Vec<(TokenHash, Option<SharedVisit>)> {
        let mut known = HashMap::with_capacity(visits.len());
        let mut made = Vec::new();
        for (hash, kept) in visits {
            let before = self.0.remove(hash);
            let before = before.map(|(facts, _)| facts);
            let facts = facts(kept, before.as_ref());
            if before != Some(facts) && is_on(kept, now) {
                let began_s = now_s.saturating_sub(kept.age(now).as_secs());
                made.push((*hash, Some(SharedVisit { facts, began_s })));
            }
            known.insert(*hash, (facts, kept.used));
        }
        let is_ended = |(_, (_, used)): &(_, (_, Time))| now.since(*used) < IDLE_TIMEOUT;
        made.extend(self.0.drain().filter(is_ended).map(|(hash, _)| (hash, None)));
        self.0 = known;
        made
    }

    /// Another gateway has let know of this one.
    pub(super) fn learn(&mut self, hash: TokenHash, facts: VisitFacts, now: Time) {
        self.0.insert(hash, (facts, now));
    }

    pub(super) fn forget(&mut self, hash: &TokenHash) {
        self.0.remove(hash);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Found, Token, Visits};
    use super::*;
    use vpnd_config::factor::Factors;
    use vpnd_ipc::gateway::idp::{SourceAddresses, SourceLimits};

    const NOW: Time = Time::ZERO;
    const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn visit(user: u8) -> Visit {
        let login = LoginFacts {
            device: DeviceId([1; 16]),
            auth_time_s: 900,
            limits: SourceLimits::default(),
            addresses: SourceAddresses::default(),
        };
        Visit { user: UserId([user; 16]), generation: 3, factors: Factors::PASSWORD, login }
    }

    /// Sends what one has made to the other.
    fn exchange(from: &mut Visits, to: &mut Visits, now: Time, now_s: u64) -> usize {
        let made = from.made(now, now_s);
        made.iter().for_each(|(hash, shared)| to.learn(*hash, shared.as_ref(), now, now_s));
        made.len()
    }

    fn is_there(visits: &mut Visits, token: &Token, now: Time) -> bool {
        matches!(visits.visit(token, HOST, now), Found::Here(_))
    }

    #[test]
    fn a_visit_is_good_at_all_gateways_until_it_is_ended_at_one() {
        let [mut first, mut second] = [Visits::default(), Visits::default()];
        let token = first.begin(visit(1), HOST, NOW);
        assert_eq!(exchange(&mut first, &mut second, NOW, 1_000), 1);
        assert_eq!(second.visit(&token, HOST, NOW), Found::Here(visit(1)));
        assert_eq!(first.number(&token), second.number(&token));
        let still =
            [exchange(&mut first, &mut second, NOW, 1_000), exchange(&mut second, &mut first, NOW, 1_000)];
        assert_eq!(still, [0, 0], "what was learnt is no news");
        second.prove(&token, Factors::ONE_TIME_CODE);
        exchange(&mut second, &mut first, NOW, 1_000);
        let Found::Here(proved) = first.visit(&token, HOST, NOW) else { panic!("it is over") };
        assert_eq!(proved.factors, Factors::PASSWORD.and(Factors::ONE_TIME_CODE));
        second.end(&token);
        exchange(&mut second, &mut first, NOW, 1_000);
        assert!(!is_there(&mut first, &token, NOW) && !is_there(&mut second, &token, NOW));
    }

    #[test]
    fn a_cookie_from_another_network_ends_the_visit_everywhere() {
        let [mut first, mut second] = [Visits::default(), Visits::default()];
        let token = first.begin(visit(1), HOST, NOW);
        exchange(&mut first, &mut second, NOW, 1_000);
        let thief = second.visit(&token, [198, 51, 100, 1].into(), NOW);
        assert_eq!(thief, Found::Elsewhere(visit(1)));
        exchange(&mut second, &mut first, NOW, 1_000);
        assert!(!is_there(&mut first, &token, NOW));
    }

    #[test]
    fn a_visit_used_at_another_gateway_does_not_time_out_as_idle() {
        let [mut first, mut second] = [Visits::default(), Visits::default()];
        let token = first.begin(visit(1), HOST, NOW);
        exchange(&mut first, &mut second, NOW, 1_000);
        let later = NOW + IDLE_TIMEOUT / 2;
        assert!(is_there(&mut first, &token, later));
        let idle = NOW + IDLE_TIMEOUT;
        second.begin(visit(2), HOST, idle);
        assert_eq!(exchange(&mut second, &mut first, idle, 1_000 + idle.since(NOW).as_secs()), 1);
        assert!(is_there(&mut first, &token, idle) && !is_there(&mut second, &token, idle));

        // One that comes late to another gateway is no younger there.
        let (token, mut third) = (first.begin(visit(3), HOST, idle), Visits::default());
        let made = first.made(idle, 1_000);
        for (hash, shared) in &made {
            third.learn(*hash, shared.as_ref(), NOW, 1_000 + 12 * 3_600 - 1);
        }
        assert!(is_there(&mut third, &token, NOW) && !third.is_recent(&token, NOW));
        assert!(!is_there(&mut third, &token, NOW + Duration::from_secs(1)));
    }
}
