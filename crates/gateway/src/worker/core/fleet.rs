//! Sessions that other gateways of the fleet have taken over: they are dropped here.
//!
//! INVARIANT: that a session is dropped is said only when its packets are, and its addresses are no
//! longer announced, so that their next user gets no packet of before.

use std::time::Duration;

use vpnd_proto::session::SessionId;

use super::{Core, CoreRequest, CoreTask, Stopped, ToEnd};
use crate::worker::auth_client::AuthClient;
use crate::worker::hosts::{Hosts, SILENCE};
use vpnd_ipc::gateway::auth::{Dropped, TakenAway};
use vpnd_ipc::requests::NoReply;
use vpnd_proto::control::Code;
use vpnd_sys::clock::now;

/// Interval of queries.
const INTERVAL: Duration = Duration::from_millis(400);
/// Time for the parent to withdraw routes.
const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason for clients, which have left long ago.
const MOVED: &str = "the session goes on at another gateway";

/// Drops what others have taken over, as it comes.
pub(crate) async fn follow(core: Core, auth: AuthClient, hosts: Hosts) {
    let (mut dropped, mut is_away) = (Vec::new(), false);
    loop {
        match auth.request(Dropped(std::mem::take(&mut dropped))).await {
            Ok(taken) => {
                hosts.answered(now());
                is_away = false;
                match drop_taken(&core, &hosts, taken).await {
                    Ok(done) => dropped = done,
                    Err(Stopped) => return,
                }
            }
            // The daemon is going down.
            Err(NoReply::Gone(_)) => return,
            Err(NoReply::Failed(error)) => {
                if !std::mem::replace(&mut is_away, true) {
                    tracing::warn!(%error, "can't tell whether sessions have moved to other gateways");
                }
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Those that are dropped; the others are named again.
async fn drop_taken(core: &Core, hosts: &Hosts, taken: Vec<TakenAway>) -> Result<Vec<TakenAway>, Stopped> {
    if taken.is_empty() {
        return Ok(taken);
    }
    let sessions = taken.iter().map(|taken| (SessionId(taken.session.into()), taken.generation));
    core.leave(sessions.collect()).await?;
    let withdrawn = tokio::time::timeout(WITHDRAWAL_TIMEOUT, hosts.settled()).await;
    Ok(if withdrawn.is_ok() { taken } else { Vec::new() })
}

impl Core {
    /// Drops these sessions, if they are here since these generations or earlier ones.
    async fn leave(&self, sessions: Vec<(SessionId, u64)>) -> Result<(), Stopped> {
        self.ask(|reply| CoreRequest::Leave { sessions, reply }).await
    }
}

impl CoreTask {
    pub(super) fn leave(&mut self, sessions: Vec<(SessionId, u64)>) {
        for (session, generation) in sessions {
            let member = self.registry.member(session);
            if member.is_some_and(|member| member.generation <= generation) {
                self.end_with_batch(ToEnd::session(session, Code::Superseded, MOVED));
            }
        }
    }

    /// Whether the session, whose claim is not good here, is another gateway's by now; if so, it is
    /// dropped.
    pub(super) async fn has_left(&mut self, session: SessionId) -> bool {
        let has_left = self.registry.hosts().is_some()
            && self.registry.member(session).is_some()
            && self.registry.is_missing(session).await;
        if has_left {
            self.end_with_batch(ToEnd::session(session, Code::Superseded, MOVED));
        }
        has_left
    }

    /// Withdraws the addresses of silent clients while the database is away, and announces them again
    /// once they are heard, or the database is.
    pub(super) fn announce_heard(&mut self) {
        let (hosts, now) = (self.registry.hosts().cloned(), now());
        let Some(hosts) = hosts else { return };
        let Some(is_cut_off) = hosts.look(now) else { return };
        for session in self.gateway.sessions() {
            let Some(member) = self.registry.member(session.id) else { continue };
            let silence = now.since(session.activity.last_rx.max(session.since));
            if is_cut_off && silence > SILENCE {
                hosts.withdraw(member.addresses, member.generation);
            } else {
                hosts.announce(member.addresses, member.generation);
            }
        }
    }
}
