//! Logging out of other browsers.
//!
//! INVARIANT: it takes a login of the last ten minutes, or a stolen browser could keep its owner
//! out; a user ends the own visits alone.

use std::sync::Arc;

use super::{Portal, now};
use vpnd_ipc::gateway::portal::OwnChange;
use vpnd_ipc::gateway::portal::visits::EndVisit;
use vpnd_ipc::request::{Answer, Reason};
use vpnd_store::StoreError;

impl Portal {
    fn end_visit(&self, end: &EndVisit) -> Result<OwnChange, StoreError> {
        let EndVisit { browser, visit } = end;
        let Some(user) = self.visitor(browser)? else { return Ok(OwnChange::NoVisit) };
        let mut visits = self.visits();
        if !visits.is_recent(&browser.token, now()) {
            return Ok(OwnChange::LogInAgain);
        }
        let ended = match visit {
            Some(number) => usize::from(visits.end_one(user.id, (*number).into())),
            None => visits.end_others(user.id, &browser.token),
        };
        drop(visits);
        if ended > 0 {
            self.record.add("portal-ended", &user.name, browser.address, &format!("by-user {ended}"));
        }
        // A visit that is not there is over as well.
        Ok(OwnChange::Done)
    }
}

impl Answer<EndVisit> for Portal {
    async fn answer(self: &Arc<Self>, end: EndVisit) -> Result<OwnChange, Reason> {
        self.from_store(move |portal| portal.end_visit(&end)).await
    }
}
