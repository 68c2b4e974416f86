//! The number of the portal's requests at the same time, and the source that decides a login there.
//!
//! INVARIANT: whatever waits for all sources at the same time leaves room for the requests that
//! wait for nothing.

use std::sync::Arc;

use super::token::Found;
use super::waiting_logins::WaitingLogin;
use super::{MAX_APPROVALS, Portal, at_provider, now};
use vpnd_ipc::gateway::portal::turns::{LOGINS_AT_ONCE, LOGOUTS_AT_ONCE, STORE, SourceNumber, TurnQuery};
use vpnd_ipc::request::{Answer, Reason};

impl Portal {
    /// Requests at the same time: twice those that wait for something.
    pub(super) fn max_requests(&self) -> usize {
        let at_source = LOGINS_AT_ONCE + LOGOUTS_AT_ONCE + at_provider::ASKED;
        2 * (LOGINS_AT_ONCE + MAX_APPROVALS + at_source * self.authenticator.source_count())
    }
}

impl Answer<TurnQuery> for Portal {
    async fn answer(self: &Arc<Self>, login: TurnQuery) -> Result<SourceNumber, Reason> {
        Ok(match login {
            TurnQuery::User(name) => self.authenticator.number_for(&name),
            TurnQuery::Provider(source) => self.authenticator.number_of(&source),
            TurnQuery::Answer(browser) => {
                let found = self.waiting().find(&browser.token, browser.address, now());
                match found {
                    Found::Here(WaitingLogin { number, .. }) => self.authenticator.number_at(number),
                    Found::Elsewhere(_) | Found::Over(_) | Found::Nothing => STORE,
                }
            }
        })
    }
}
