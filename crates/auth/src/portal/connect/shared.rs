//! Logins in a browser at all gateways of a fleet: the client, the browser and the client that
//! comes back may each be at another one.
//!
//! INVARIANT: a login is answered once and a grant is redeemed once, over all gateways: both are
//! done in the order of notices.

use std::collections::HashMap;
use std::time::Duration;

use minicbor::bytes::ByteArray;
use vpnd_proto::time::Time;
use vpnd_store::UserId;

use super::logins::{Answered, Hash, Started};
use super::short_code::ByCode;
use vpnd_admission::notices::SharedLogin;

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

/// A login of this age that another gateway has let know of.
pub(super) fn restore(shared: &SharedLogin, age: Duration, now: Time) -> Started {
    let typed = shared.typed.as_ref().map(|(ticket, user)| ((*ticket).into(), UserId((*user).into())));
    let answer = match shared.visit {
        Some(visit) => Some(Answered::Yes(visit.into())),
        None => shared.is_answered.then_some(Answered::No),
    };
    Started {
        begun: shared.begun.clone(),
        since: now,
        before: age,
        permit: None,
        by_code: shared.code.map(|code| ByCode::restore(code.into(), typed)),
        answer,
    }
}

/// Logins as the other gateways of a fleet know them.
#[derive(Default)]
pub(super) struct Told(HashMap<Hash, SharedLogin>);

impl Told {
    /// Those of these logins that have begun, changed or ended since the last call, by their
    /// hashes, and their ages in seconds.
    pub(super) fn made(
        &mut self,
        logins: &HashMap<Hash, Started>,
        now: Time,
    ) -> Vec<(Hash, Option<(SharedLogin, u64)>)> {
        let mut made = Vec::new();
        for (hash, login) in logins {
            let shared = shared(login);
            if self.0.get(hash) != Some(&shared) {
                self.0.insert(*hash, shared.clone());
                made.push((*hash, Some((shared, login.age(now).as_secs()))));
            }
        }
        // One that is over by itself is so at each gateway.
        made.extend(self.0.extract_if(|hash, _| !logins.contains_key(hash)).map(|(hash, _)| (hash, None)));
        made
    }

    /// Another gateway has let know of this one.
    pub(super) fn learn(&mut self, hash: Hash, shared: SharedLogin) {
        self.0.insert(hash, shared);
    }

    pub(super) fn forget(&mut self, hash: &Hash) {
        self.0.remove(hash);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
