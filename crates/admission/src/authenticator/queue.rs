//! The turns of logins: few are checked at the same time, the others wait.
//!
//! INVARIANT: whose turn it is depends on addresses and devices, never on whether a user exists; a
//! login waits no longer than its client does.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use vpnd_proto::admission::Source;
use vpnd_proto::admission::shares::Standing;

use super::Login;
use super::history::History;
use vpnd_ipc::turns::{Turn, Turns};

pub(super) struct Queue {
    turns: Arc<Turns>,
    longest_wait: Duration,
    history: Arc<History>,
}

impl Queue {
    /// A queue with this many turns at the same time, and this many logins that wait for them.
    pub(super) fn new(turns: usize, waiting: usize, longest_wait: Duration, history: Arc<History>) -> Self {
        Self { turns: Turns::new(turns, waiting), longest_wait, history }
    }

    /// The turn of a login that is checked here; `None` if it does not come in time, or too many of
    /// its network wait already.
    pub(super) async fn turn(&self, login: &Login, now_s: u64) -> Option<Turn> {
        self.turn_of(&self.turns, login, now_s).await
    }

    /// The turn of a login that is one of these.
    pub(super) async fn turn_of(&self, turns: &Arc<Turns>, login: &Login, now_s: u64) -> Option<Turn> {
        // The standing costs queries to the store, so it is found only for logins that wait.
        match turns.at_once() {
            Some(turn) => Some(turn),
            None => {
                let standing = self.history.standing(login, now_s).await;
                turns.wait(Source::from(login.source), standing, self.longest_wait).await
            }
        }
    }

    /// The turn of a user who is logged in.
    pub(super) async fn turn_of_known(&self, source: IpAddr) -> Option<Turn> {
        match self.turns.at_once() {
            Some(turn) => Some(turn),
            None => self.turns.wait(Source::from(source), Standing::Known, self.longest_wait).await,
        }
    }

    #[cfg(test)]
    pub(super) fn at_once(&self) -> Option<Turn> {
        self.turns.at_once()
    }
}
