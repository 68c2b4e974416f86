//! Logins by a short code (PROTOCOL §4.4, RFC 8628): the person is shown it, and the gateway asked
//! until they have answered elsewhere.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use vpnd_proto::control::{Code, LoginAt, Refused, ShortCode};

use super::{BrowserError, BrowserLogin, DialError, DialOutcome, LONGEST};
use crate::messages::BrowserWay;

/// The least time from one attempt to the next, whatever a gateway says.
const LEAST: Duration = Duration::from_secs(1);
/// The longest after an attempt that has failed: a grant is good for a minute.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// Shows the code, and comes back with its grant until the person has answered.
pub(super) async fn log_in(
    login: BrowserLogin<'_>,
    LoginAt { url, time_s, .. }: LoginAt,
    ShortCode { code, grant, from, interval_s }: ShortCode,
) -> Result<DialOutcome, DialError> {
    if !url.starts_with("https://") {
        return Err(BrowserError::NoPage(url.to_string()).into());
    }
    login.dialer.parent.browse(url, BrowserWay::Code { code, from, time_s }).await?;
    let until = Instant::now() + Duration::from_secs(time_s.into()).min(LONGEST);
    let interval = Duration::from_secs(interval_s.into()).max(LEAST);
    let mut wait = interval;
    loop {
        // The gateway says more exactly that the time is over.
        if Instant::now() > until + interval {
            return Err(BrowserError::Nobody.into());
        }
        sleep(wait).await;
        wait = match login.ask_with(grant).await {
            Ok(DialOutcome::Refused(refused)) if is_early(&refused) => wait_after(&refused, interval),
            Err(error) if !error.is_final(false) => {
                // One attempt may fail on the way (RFC 8628 section 3.5).
                tracing::debug!(%error, "the gateway can't be asked for the person's answer now");
                (2 * wait).min(LONGEST_PAUSE)
            }
            outcome => return outcome,
        };
    }
}

/// Whether the gateway can't say yet what the person answers.
fn is_early(refused: &Refused) -> bool {
    matches!(refused.code, Code::Pending | Code::Busy)
}

/// Time until the next attempt after this refusal.
fn wait_after(refused: &Refused, interval: Duration) -> Duration {
    let wait = refused.retry_after_ms.map(|millis| Duration::from_millis(millis.into()));
    wait.unwrap_or_default().max(interval).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use vpnd_proto::control::Text;

    use super::*;

    #[test]
    fn a_client_keeps_the_polling_interval_of_the_gateway() {
        let refused = |code, retry_after_ms| Refused { code, text: Text::default(), retry_after_ms };
        let five = Duration::from_secs(5);
        for (millis, expected_s) in
            [(None, 5), (Some(0), 5), (Some(5_000), 5), (Some(15_000), 15), (Some(u32::MAX), 900)]
        {
            assert_eq!(wait_after(&refused(Code::Pending, millis), five), Duration::from_secs(expected_s));
        }
        assert!(is_early(&refused(Code::Pending, None)) && is_early(&refused(Code::Busy, None)));
        for over in [Code::Credentials, Code::Drain, Code::NoProfile, Code::Throttled] {
            assert!(!is_early(&refused(over, None)), "{over}");
        }
    }
}
