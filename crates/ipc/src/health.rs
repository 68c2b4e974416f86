//! Findings about a gateway by the figures that it has, in the same words for `vpnd doctor`, the
//! pages of the help desk and the API.

pub mod fleet;

use serde::Serialize;

use crate::admin::status::{Accounting, Portal, Source};

const DAY_S: u64 = 86_400;
/// A pool with less than one of this many addresses left is full soon.
const LAST_PART: u64 = 10;

/// The weight of a finding.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, minicbor::Encode, minicbor::Decode,
)]
#[cbor(index_only)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    #[n(0)]
    Good,
    /// It could not be looked at.
    #[n(1)]
    Unknown,
    /// The gateway works, less well than it could, or not for long.
    #[n(2)]
    Warning,
    /// Clients can't connect, or not get where they want.
    #[n(3)]
    Problem,
}

/// The result of one check. INVARIANT: names of checks and fields are an interface for scripts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check.
    pub check: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// The next step, if there is something to do.
    pub advice: Option<String>,
}

impl Finding {
    pub fn good(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Good, found: found.into(), advice: None }
    }

    pub fn unknown(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Unknown, found: found.into(), advice: Some(advice.into()) }
    }

    pub fn warning(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, found: found.into(), advice: Some(advice.into()) }
    }

    pub fn problem(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Problem, found: found.into(), advice: Some(advice.into()) }
    }
}

/// A number of things.
pub fn plural(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// The gateway's certificate, by the time until it expires.
pub fn certificate(left_s: u64) -> Finding {
    let found = "the running gateway's certificate has expired: no client can connect";
    let advice = "renew it ('vpnd renew', or as you got it), then run: vpnd reload";
    time_left("gateway.certificate", "the running gateway's certificate", left_s, found, advice)
}

/// The certificate of web pages that are served.
pub fn portal_certificate(portal: &Portal) -> Option<Finding> {
    let left_s = Some(portal).filter(|portal| portal.up)?.certificate_left_s?;
    let found = "the running portal has no certificate, or it has expired: browsers refuse the web pages";
    let advice = "with acme = true 'portal.certificate' says why; otherwise renew it as you got it, then run: vpnd reload";
    let subject = "the running portal's certificate";
    Some(time_left("gateway.portal.certificate", subject, left_s, found, advice))
}

/// A finding by the time for which a certificate is good yet.
fn time_left(check: &'static str, subject: &str, left_s: u64, over: &str, advice: &str) -> Finding {
    match left_s {
        0 => Finding::problem(check, over, advice),
        left_s @ 1..DAY_S => {
            Finding::problem(check, format!("{subject} expires in {} hours", left_s / 3_600), advice)
        }
        left_s => Finding::good(check, format!("{subject} is good for {} days", left_s / DAY_S)),
    }
}

/// Whether web pages are served that are switched on.
pub fn portal(portal: &Portal) -> Finding {
    const CHECK: &str = "gateway.portal";
    if portal.up {
        let browsers = plural(usize::try_from(portal.visits).unwrap_or(usize::MAX), "browser");
        let relays = plural(usize::try_from(portal.relays).unwrap_or(usize::MAX), "client connection");
        let over_tcp = if portal.relays == 0 { String::new() } else { format!(", {relays} over TCP") };
        Finding::good(CHECK, format!("web pages are served, {browsers} logged in{over_tcp}"))
    } else {
        let advice = "the log says why: journalctl -u vpnd-server | grep -e portal -e 'web pages'; then run: vpnd reload";
        Finding::problem(CHECK, "web pages are switched on, and are not served", advice)
    }
}

/// Whether the gateway records what 'vpnd audit' is asked for.
pub fn audit(failure: Option<&str>, lost: u64) -> Finding {
    const CHECK: &str = "gateway.audit";
    match failure {
        Some(reason) => Finding::problem(
            CHECK,
            format!("nothing is recorded for 'vpnd audit': {reason}"),
            "make room on the disk of the state directory, or do what it says; the gateway keeps running and tries again",
        ),
        None if lost > 0 => Finding::warning(
            CHECK,
            format!("{lost} events were not recorded since the gateway's start"),
            "'vpnd audit export' shows the gap; look at: journalctl -u vpnd-server",
        ),
        None => Finding::good(CHECK, "logins and sessions are recorded"),
    }
}

/// A source of users: whether it answers, whether it shows its users, and whether it has its
/// records.
pub fn source(source: &Source) -> Vec<Finding> {
    let Source { name, missing, .. } = source;
    let mut findings = vec![answers(source)];
    if *missing > 0 {
        let found = format!(
            "the source {name} no longer shows {missing} users who have sessions: too many at once to be believed, so their sessions continue"
        );
        let advice = format!(
            "look at the directory: its base, the rights of the gateway's account, its replicas. If the users have left: vpnd source confirm {name}"
        );
        findings.push(Finding::problem("identity.missing", found, advice));
    }
    if let Some(Accounting { lost: lost @ 1.., .. }) = source.accounting {
        let found = format!("{lost} records of accounting of the source {name} have reached no server");
        let advice = "look at the accounting servers, and at: journalctl -u vpnd-server";
        findings.push(Finding::warning("identity.accounting", found, advice));
    }
    findings
}

fn answers(source: &Source) -> Finding {
    const CHECK: &str = "identity.answers";
    let Source { name, up, silent_s, .. } = source;
    let advice = format!("'vpnd source test {name}' shows each step; correct what it ends at");
    match up {
        Some(true) => Finding::good(CHECK, format!("the source {name} answers")),
        Some(false) => {
            let since = silent_s.map_or_else(String::new, |silent_s| format!(" for {} min", silent_s / 60));
            let found = format!("the source {name} has not answered{since}: its users can't log in");
            Finding::problem(CHECK, found, advice)
        }
        None => Finding::unknown(CHECK, format!("nobody has asked the source {name} yet"), advice),
    }
}

/// A pool with room for this number of clients, of which some have an address.
pub fn pool(pool: &str, room: u64, used: u64) -> Finding {
    const CHECK: &str = "pools";
    let found = format!("{pool} has {room} addresses for clients, {used} in use");
    let advice = "give [tunnel] a larger 'pool_v4'; the gateway takes it over at a restart";
    if used >= room {
        Finding::problem(CHECK, format!("{found}: no further client gets one"), advice)
    } else if used > room - room / LAST_PART {
        Finding::warning(CHECK, found, advice)
    } else {
        Finding::good(CHECK, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_judged_by_what_it_last_did() {
        let source_with = |up, missing, lost| Source {
            name: "uni".to_owned(),
            up,
            last_answer_s: None,
            silent_s: Some(600),
            accounting: Some(Accounting { sent: 1, lost, waiting: 0 }),
            missing,
        };
        let verdicts = |up, missing, lost| {
            source(&source_with(up, missing, lost)).iter().map(|finding| finding.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(Some(true), 0, 0), [Verdict::Good]);
        assert_eq!(verdicts(None, 0, 0), [Verdict::Unknown]);
        assert_eq!(verdicts(Some(false), 5, 1), [Verdict::Problem, Verdict::Problem, Verdict::Warning]);
        assert!(source(&source_with(Some(false), 0, 0))[0].found.contains("for 10 min"));
    }

    #[test]
    fn a_pool_is_full_soon_before_it_is() {
        let verdict = |used| pool("10.86.0.0/24", 250, used).verdict;
        assert_eq!(
            [0, 225, 226, 250].map(verdict),
            [Verdict::Good, Verdict::Good, Verdict::Warning, Verdict::Problem]
        );
    }
}
