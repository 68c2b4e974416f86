//! Refusals at the portal: counts for the metrics and the help desk, and lines of the log.
//!
//! Invariants: there are as many counts as there are names here. The portal's own counts are what
//! it says. Anybody can cause lines, so those of a second are bounded.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use vpnd_admission::notices::lock;
use vpnd_ipc::gateway::auth::Count;
use vpnd_proto::control::Text;
use vpnd_sys::log_limit::LogLimit;

/// Lines of the log about what was refused at once, and the time for another one.
const LINES: u32 = 100;
const LINE_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Refusals {
    lines: LogLimit,
    by_name: Mutex<BTreeMap<&'static str, u64>>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { lines: LogLimit::new(LINES, LINE_INTERVAL), by_name: Mutex::default() }
    }
}

impl Refusals {
    /// Whether there may be a line about one.
    pub(super) fn admits(&self) -> bool {
        self.lines.admits()
    }

    /// Logs the number of lines left out since the last call.
    pub(super) fn report(&self) {
        self.lines.report("refused at the portal");
    }

    /// One was refused for this reason.
    pub(super) fn count(&self, name: &'static str) {
        self.count_all(name, 1);
    }

    pub(super) fn count_all(&self, name: &'static str, count: u64) {
        let mut counts = lock(&self.by_name);
        let of_name = counts.entry(name).or_default();
        *of_name = of_name.saturating_add(count);
    }

    /// All of them since this process began.
    pub(super) fn counts(&self) -> Vec<Count> {
        let counts = lock(&self.by_name);
        counts.iter().map(|(name, count)| Count { name: Text::cut(name), count: *count }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::portal::desk::tests::Bench;
    use vpnd_ipc::gateway::auth::SourceName;
    use vpnd_ipc::gateway::portal::desk::{Caller, DeskQuery};
    use vpnd_ipc::gateway::portal::refusals::PortalRefusals;
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
