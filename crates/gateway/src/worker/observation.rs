//! What the pages of the help desk show of the worker, sent to the auth process while somebody
//! looks at them.

use std::sync::Arc;
use std::time::Duration;

use minicbor::bytes::ByteArray;
use vpnd_proto::control::{Text, UserName};

use crate::worker::administration::Administration;
use vpnd_ipc::admin::Handler as _;
use vpnd_ipc::admin::status::{Session, Status};
use vpnd_ipc::gateway::auth::{Count, MAX_WRITES, Observed, SessionUse, WorkerState};
use vpnd_ipc::requests::NoReply;

/// Interval at which the auth process is asked whether somebody looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Reports until the daemon goes down.
pub(super) async fn report(administration: Arc<Administration>) {
    let mut observed = None;
    loop {
        let was_reported = observed.is_some();
        let wanted = match administration.auth.request(Observed(observed.take())).await {
            Ok(wanted) => wanted,
            Err(NoReply::Gone(_)) => return,
            Err(why) => {
                tracing::error!(%why, "the pages of the help desk have no figures");
                None
            }
        };
        match wanted {
            // A page waits for it.
            Some(users) if !was_reported => {
                observed = administration.status().await.ok().map(|status| state(&status, &users));
            }
            _ => tokio::time::sleep(INTERVAL).await,
        }
    }
}

/// The part of the status that is shown, with the sessions of these users.
fn state(status: &Status, users: &[UserName]) -> WorkerState {
    let of_users = status.sessions.iter().filter(|session| users.iter().any(|user| **user == *session.user));
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
        sessions: of_users.filter_map(session_use).take(MAX_WRITES).collect(),
    }
}

fn session_use(session: &Session) -> Option<SessionUse> {
    let device = u128::from_str_radix(&session.device, 16).ok()?;
    Some(SessionUse {
        user: UserName::new(session.user.as_str()).ok()?,
        device: ByteArray::from(device.to_be_bytes()),
        rx_bytes: session.rx_bytes,
        tx_bytes: session.tx_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sessions_of_those_who_are_looked_at_are_reported() {
        let mut status = vpnd_ipc::admin::testing::status();
        status.sessions[0].user = "ann".to_owned();
        status.sessions[0].device = "0a".repeat(16);
        status.counters.drops = [("replayed".to_owned(), 3), ("send".to_owned(), 0)].into();
        assert!(state(&status, &[]).sessions.is_empty());
        let reported = state(&status, &[UserName::new("ann").unwrap()]);
        let anns = status.sessions.iter().filter(|session| session.user == "ann").count();
        assert_eq!((reported.sessions.len(), reported.sessions[0].device), (anns, [10; 16].into()));
        assert_eq!(reported.drops, [Count { name: Text::cut("replayed"), count: 3 }]);
    }
}
