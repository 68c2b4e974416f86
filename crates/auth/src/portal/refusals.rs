//! Counts of what was refused at the portal, for the metrics and the help desk.
//!
//! INVARIANT: there are as many as there are names here. The portal's own counts are what it says.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use super::Portal;
use vpnd_ipc::gateway::auth::Count;
use vpnd_ipc::gateway::portal::refusals::PortalRefusals;
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_ipc::request::{Answer, Reason};
use vpnd_proto::control::Text;

/// Counts by name.
pub(super) type Refusals = BTreeMap<&'static str, u64>;

impl Portal {
    /// A login was refused for this reason.
    pub(super) fn count_refused(&self, refusal: Refusal) {
        self.count(refusal.portal_counter(), 1);
    }

    pub(super) fn count(&self, name: &'static str, count: u64) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let of_name = refused.entry(name).or_default();
        *of_name = of_name.saturating_add(count);
    }

    /// All of them since this process began.
    pub(crate) fn refusals(&self) -> Vec<Count> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.iter().map(|(name, count)| Count { name: Text::cut(name), count: *count }).collect()
    }
}

impl Answer<PortalRefusals> for Portal {
    async fn answer(self: &Arc<Self>, refused: PortalRefusals) -> Result<(), Reason> {
        for (name, count) in refused.named() {
            self.count(name, count);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::portal::desk::tests::Bench;
    use vpnd_ipc::gateway::auth::SourceName;
    use vpnd_ipc::gateway::portal::desk::{Caller, DeskQuery};
    use vpnd_ipc::gateway::portal::{Browser, FinishAtProvider, PortalLogin};
    use vpnd_proto::control::{SecretText, UserName};

    #[tokio::test]
    async fn refusals_are_counted_by_name_and_a_portal_makes_no_others() {
        let bench = Bench::new();
        assert!(bench.portal.refusals().is_empty());
        let login = PortalLogin {
            user: UserName::new("ann").unwrap(),
            password: SecretText::new("wrong").unwrap(),
            address: [192, 0, 2, 1].into(),
        };
        bench.ask(login).await;
        let browser = bench.browser("vic", [10, 86, 0, 7]).await;
        let (state, source) = (Text::cut("another's"), SourceName::cut("uni"));
        bench
            .ask(FinishAtProvider { source, browser: browser.clone(), state, code: None, issuer: None })
            .await;
        let (token, address) = (SecretText::new("idm.0").unwrap(), browser.address);
        assert!(bench.ask(DeskQuery(Caller::Program { token, address })).await.is_err());
        let elsewhere = Browser { address: [192, 0, 2, 1].into(), ..browser };
        assert!(bench.ask(DeskQuery(Caller::Browser(elsewhere.clone()))).await.is_err());
        assert!(bench.ask(DeskQuery(Caller::Browser(elsewhere))).await.is_err(), "that is none any more");
        let all = PortalRefusals { rate: u64::MAX, place: 1, form: 2, login: 3, request: 4 };
        bench.ask(all).await;
        bench.ask(all).await;
        let counted = bench.portal.refusals();
        let counted: Vec<_> = counted.iter().map(|refused| (&*refused.name, refused.count)).collect();
        let expected = [
            ("api", 1),
            ("connection_place", 2),
            ("connection_rate", u64::MAX),
            ("cookie", 1),
            ("form", 4),
            ("login_at_once", 6),
            ("login_credentials", 1),
            ("login_not_confirmed", 1),
            ("request_rate", 8),
        ];
        assert_eq!(counted, expected);
    }
}
