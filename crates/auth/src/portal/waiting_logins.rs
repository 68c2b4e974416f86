//! Logins of browsers that wait for a person.
//!
//! Invariants: each ends by itself; their number is bounded, and networks share it fairly.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use super::token::{ByToken, Found, Kept, add, find, hash};
use vpnd_ipc::gateway::portal::Token;
use vpnd_proto::admission::Source;
use vpnd_proto::admission::shares::{Displaced, Division, Entered, PermitId, Shares, Standing};
use vpnd_proto::session::DeviceId;
use vpnd_proto::time::Time;

/// Limit for a login; the authenticator's own is shorter.
const TIMEOUT: Duration = Duration::from_secs(180);
/// They share as many places as the authenticator has.
const DIVISION: Division =
    Division { limit: 1_024, displace_after: Duration::from_secs(20), displaced: Displaced::Oldest };

/// A login that waits for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitingLogin {
    /// The authenticator's number of it.
    pub(super) number: u64,
    /// The one that it was begun with.
    pub(super) device: DeviceId,
}

pub(super) struct WaitingLogins {
    logins: ByToken<(WaitingLogin, PermitId)>,
    shares: Shares,
}

impl Default for WaitingLogins {
    fn default() -> Self {
        Self { logins: HashMap::new(), shares: Shares::new(DIVISION) }
    }
}

impl WaitingLogins {
    /// Keeps a login; the token for its browser, if there is room for one from its network.
    pub(super) fn add(&mut self, login: WaitingLogin, address: IpAddr, now: Time) -> Option<Token> {
        let overdue = |_: &_, kept: &mut Kept<_>| now.since(kept.began) >= TIMEOUT;
        for (_, Kept { content: (_, permit), .. }) in self.logins.extract_if(overdue) {
            self.shares.leave(permit);
        }
        let entered = self.shares.enter(now, Source::from(address), Standing::Stranger);
        let Entered::In { permit, displaced } = entered else { return None };
        if let Some(displaced) = displaced {
            self.logins.retain(|_, kept| kept.content.1 != displaced);
        }
        Some(add(&mut self.logins, Kept::new((login, permit), address, now)))
    }

    /// The login of this token.
    pub(super) fn find(&mut self, token: &Token, address: IpAddr, now: Time) -> Found<WaitingLogin> {
        let is_on = |kept: &Kept<_>| now.since(kept.began) < TIMEOUT;
        let found = find(&mut self.logins, token, address, is_on);
        if let Found::Over((_, permit)) | Found::Elsewhere((_, permit)) = found {
            self.shares.leave(permit);
        }
        found.map(|(login, _)| login)
    }

    /// Forgets the login of this token, which has its answer.
    pub(super) fn remove(&mut self, token: &Token) -> Option<WaitingLogin> {
        let (login, permit) = self.logins.remove(&hash(token))?.content;
        self.shares.leave(permit);
        Some(login)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGIN: WaitingLogin = WaitingLogin { number: 7, device: DeviceId([2; 16]) };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_waiting_logins_token_is_good_from_its_network_alone() {
        let mut waiting = WaitingLogins::default();
        let token = waiting.add(LOGIN, address("192.0.2.1"), Time::ZERO).unwrap();
        assert_eq!(waiting.find(&token, address("192.0.2.1"), Time::ZERO), Found::Here(LOGIN));
        assert_eq!(waiting.find(&token, address("192.0.2.2"), Time::ZERO), Found::Elsewhere(LOGIN));
        assert_eq!(waiting.find(&token, address("192.0.2.1"), Time::ZERO), Found::Nothing);
    }

    #[test]
    fn one_network_never_takes_the_waiting_logins_of_others() {
        let mut waiting = WaitingLogins::default();
        let honest = waiting.add(LOGIN, address("192.0.2.1"), Time::ZERO).unwrap();
        let crowd = (0..5_000u32).map(|n| IpAddr::from(std::net::Ipv4Addr::from_bits(0x0A00_0000 + n)));
        let taken = crowd.filter(|from| waiting.add(LOGIN, *from, Time::ZERO).is_some()).count();
        assert!(taken >= 64, "{taken}");
        assert_eq!(waiting.find(&honest, address("192.0.2.1"), Time::ZERO), Found::Here(LOGIN));
        assert_eq!(waiting.remove(&honest), Some(LOGIN));
        let late = Time::ZERO + TIMEOUT;
        let last = waiting.add(LOGIN, address("10.0.0.1"), late).unwrap();
        assert_eq!((waiting.logins.len(), waiting.shares.taken()), (1, 1), "the others are over");
        assert_eq!(waiting.find(&last, address("10.0.0.2"), late), Found::Elsewhere(LOGIN));
        assert_eq!((waiting.logins.len(), waiting.shares.taken()), (0, 0));
    }
}
