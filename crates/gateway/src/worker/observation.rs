//! The worker's data for pages of the help desk, sent to the auth process while a user
//! looks at them.

use std::sync::Arc;
use std::time::Duration;

use minicbor::bytes::ByteArray;
use vpnd_proto::control::Text;

use crate::worker::administration::Administration;
use vpnd_config::access_profile::WALLED;
use vpnd_ipc::admin::Handler as _;
use vpnd_ipc::admin::status::{Session, Status};
use vpnd_ipc::gateway::auth::{Count, MAX_SESSION_USES, Observed, SessionUse, WorkerState};
use vpnd_ipc::requests::NoReply;

/// Interval at which the auth process is asked whether such a page is open.
const INTERVAL: Duration = Duration::from_secs(1);

/// Reports until the daemon goes down.
pub(super) async fn report(administration: Arc<Administration>) {
    let mut parts = Vec::new();
    loop {
        let part = parts.pop();
        let is_report = part.is_some();
        let wanted = match administration.auth.request(Observed(part)).await {
            Ok(wanted) => wanted,
            Err(NoReply::Gone(_)) => return,
            Err(why) => {
                tracing::error!(%why, "the pages of the help desk have no figures");
                parts.clear();
                false
            }
        };
        if wanted && !is_report {
            parts = administration.status().await.map(|status| report_of(&status)).unwrap_or_default();
            parts.reverse();
        }
        if parts.is_empty() {
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// The parts of a report.
fn report_of(status: &Status) -> Vec<WorkerState> {
    let sessions: Vec<SessionUse> = status.sessions.iter().filter_map(session_use).collect();
    let mut parts: Vec<WorkerState> =
        sessions.chunks(MAX_SESSION_USES).map(|sessions| state(status, sessions.to_vec())).collect();
    if parts.is_empty() {
        parts.push(state(status, Vec::new()));
    }
    if let Some(last) = parts.last_mut() {
        last.is_last = true;
    }
    parts
}

/// The part of the status that is shown, with these sessions.
fn state(status: &Status, sessions: Vec<SessionUse>) -> WorkerState {
    WorkerState {
        version: Text::cut(&status.version),
        uptime_s: status.uptime_s,
        certificate_left_s: status.certificate_left_s,
        drops: status
            .counters
            .drops
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(reason, count)| Count { name: Text::cut(reason), count: *count })
            .collect(),
        sessions,
        is_last: false,
    }
}

fn session_use(session: &Session) -> Option<SessionUse> {
    let id = u128::from_str_radix(&session.id, 16).ok()?;
    Some(SessionUse {
        session: ByteArray::from(id.to_be_bytes()),
        rx_bytes: session.rx_bytes,
        tx_bytes: session.tx_bytes,
        outer: session.outer.first().map(|outer| outer.ip()),
        walled: session.profile.as_deref() == Some(WALLED),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sessions_are_reported_in_parts_that_fit_into_a_frame() {
        let mut status = vpnd_ipc::admin::testing::status();
        let session = Session { profile: Some(WALLED.to_owned()), ..status.sessions[0].clone() };
        let numbered = |number: usize| Session { id: format!("{number:032x}"), ..session.clone() };
        status.sessions = (0..MAX_SESSION_USES + 2).map(numbered).collect();
        status.counters.drops = [("replayed".to_owned(), 3), ("send".to_owned(), 0)].into();
        let parts = report_of(&status);
        let lengths: Vec<_> = parts.iter().map(|part| (part.sessions.len(), part.is_last)).collect();
        assert_eq!(lengths, [(MAX_SESSION_USES, false), (2, true)]);
        let last = &parts[1].sessions[1];
        assert_eq!(u128::from_be_bytes(*last.session), MAX_SESSION_USES as u128 + 1);
        assert!(last.walled && last.outer == session.outer.first().map(|outer| outer.ip()));
        assert_eq!(parts[1].drops, [Count { name: Text::cut("replayed"), count: 3 }]);
        let longest = minicbor::to_vec(Observed(Some(parts[0].clone()))).unwrap().len();
        assert!(longest < vpnd_ipc::gateway::auth::MAX_FRAME / 2, "{longest}");
        status.sessions.clear();
        assert!(report_of(&status)[0].is_last, "no session is a report, too");
    }
}
