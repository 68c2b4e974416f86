//! Logins in a browser at all gateways of a fleet: the client, the browser and the client that
//! comes back may each be at another one.
//!
//! INVARIANT: a login is answered once and a grant is redeemed once, over all gateways: both are
//! done in the order of notices.

use std::net::IpAddr;
use std::time::Duration;

use minicbor::bytes::ByteArray;
use vpnd_proto::time::Time;
use vpnd_store::UserId;

use super::short_code::ByCode;
use super::{Answered, Connects, Hash, LIMIT, Started};
use crate::notices::{SharedLogin, Taken};

/// A login, as other gateways need it.
fn shared(login: &Started) -> SharedLogin {
    let (code, typed) = login.by_code.as_ref().map(ByCode::facts).unzip();
    let visit = match login.answer {
        Some(Answered::Yes(visit)) => Some(visit.into()),
        Some(Answered::No) | None => None,
    };
    SharedLogin {
        begun: login.begun.clone(),
        code: code.map(ByteArray::from),
        typed: typed.flatten().map(|(ticket, user)| (ticket.into(), user.0.into())),
        is_answered: login.answer.is_some(),
        visit,
    }
}

impl Connects {
    /// Those that have begun, changed or ended here since the last call, by their hashes, and their
    /// ages in seconds.
    pub(in super::super) fn made(&mut self, now: Time) -> Vec<(Hash, Option<(SharedLogin, u64)>)> {
        let (mut made, told) = (Vec::new(), &mut self.told);
        for (hash, login) in &self.logins {
            let shared = shared(login);
            if told.get(hash) != Some(&shared) {
                told.insert(*hash, shared.clone());
                made.push((*hash, Some((shared, (now.since(login.since) + login.before).as_secs()))));
            }
        }
        // One that is over by itself is so at each gateway.
        let logins = &self.logins;
        made.extend(told.extract_if(|hash, _| !logins.contains_key(hash)).map(|(hash, _)| (hash, None)));
        made
    }

    /// Another gateway has begun, changed or ended it.
    pub(in super::super) fn learn(
        &mut self,
        hash: Hash,
        shared: Option<&SharedLogin>,
        age: Duration,
        now: Time,
    ) {
        self.remove_where(|login| !login.is_on(now));
        let before = self.logins.remove(&hash);
        let permit = before.and_then(|before| before.permit);
        let Some(shared) = shared else {
            self.told.remove(&hash);
            return self.leave(permit);
        };
        let typed = shared.typed.as_ref().map(|(ticket, user)| ((*ticket).into(), UserId((*user).into())));
        let answer = match shared.visit {
            Some(visit) => Some(Answered::Yes(visit.into())),
            None => shared.is_answered.then_some(Answered::No),
        };
        let login = Started {
            begun: shared.begun.clone(),
            since: now,
            before: age,
            permit,
            by_code: shared.code.map(|code| ByCode::restore(code.into(), typed)),
            answer,
        };
        if login.is_on(now) && self.logins.len() < 4 * LIMIT {
            self.told.insert(hash, shared.clone());
            self.logins.insert(hash, login);
        } else {
            self.leave(permit);
        }
    }

    /// Codes that were typed here since the last call, for other gateways.
    pub(in super::super) fn codes_typed(&mut self) -> Vec<Taken> {
        let typed = self.guesses.take_shared().into_iter();
        typed.map(|(user, address)| Taken::Code(user.0.into(), address)).collect()
    }

    /// A code was typed at another gateway.
    pub(in super::super) fn learn_of_code(&mut self, user: UserId, from: IpAddr, age: Duration, now: Time) {
        self.guesses.learn(user, from, age, now);
    }

    /// Forgets all: which of them were used elsewhere is not known.
    pub(in super::super) fn forget(&mut self) {
        self.remove_where(|_| true);
        self.told.clear();
    }
}
