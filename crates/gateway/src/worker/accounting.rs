//! The traffic of sessions that are accounted for, sent to the auth process when it is due.
//!
//! It decides nothing: whose sessions are accounted for, and how often, the auth process knows.

use std::time::Duration;

use vpnd_proto::session::SessionId;

use crate::worker::auth_client::AuthClient;
use crate::worker::core::Core;
use vpnd_config::source::Source;
use vpnd_ipc::gateway::auth::{SessionTraffic, TrafficReport, id};
use vpnd_ipc::requests::NoReply;

/// Interval at which the auth process is asked whose traffic is due.
const INTERVAL: Duration = Duration::from_secs(1);

/// Sends traffic; never returns. `None` if no source is configured for it.
pub(super) fn report_traffic(
    core: Core,
    auth: AuthClient,
    sources: &[Source],
) -> Option<impl Future<Output = ()> + Send + 'static> {
    let is_wanted = sources.iter().any(|source| source.accounting().is_some());
    let report = async move {
        let mut used = Vec::new();
        loop {
            let sessions = match auth.request(TrafficReport(std::mem::take(&mut used))).await {
                Ok(sessions) => sessions,
                // The daemon is going down.
                Err(NoReply::Gone(_)) => return,
                Err(why) => {
                    tracing::error!(%why, "traffic is not accounted for");
                    Vec::new()
                }
            };
            let sessions: Vec<_> = sessions.into_iter().map(|session| SessionId(session.into())).collect();
            if sessions.is_empty() {
                tokio::time::sleep(INTERVAL).await;
                continue;
            }
            let Ok(traffic) = core.traffic(sessions).await else { return };
            let traffic = traffic.into_iter();
            used = traffic
                .map(|(session, activity)| SessionTraffic { session: id(session), traffic: activity.into() })
                .collect();
        }
    };
    is_wanted.then_some(report)
}
