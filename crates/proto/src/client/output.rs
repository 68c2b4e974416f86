//! The core's orders to its owner, and its timers.
//!
//! INVARIANT: the owner gets no network twice in a row, nor opens a lane again too soon.

use std::collections::VecDeque;

use super::Action;
use super::epoch::Epoch;
use super::lane_ports::LanePorts;
use crate::control::{Code, Network};
use crate::plane::{Command, Slot};
use crate::session::ConnectionId;
use crate::time::Time;
use crate::timer::TimerQueue;

/// The reason of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A connection is to be tried again.
    Reconnect,
    /// The epoch is old enough to be replaced, if it was used.
    Rekey,
    /// The current epoch has ceased to seal, and is to be erased.
    Expire,
    /// Nothing was received in a new epoch.
    Unconfirmed,
    /// An old epoch's keys are to be erased.
    Retire,
    /// Probes were not answered yet.
    Probe,
    /// A probe of the path's MTU was not answered yet, or another is due.
    PathMtu,
    /// A lane may have been silent for long.
    Keepalive(u8),
}

/// The orders and timers that an input leaves.
pub(super) struct Output {
    pub(super) timers: TimerQueue<Reason>,
    actions: VecDeque<Action>,
    /// The network that the owner got last.
    configured: Option<Network>,
    pub(super) ports: LanePorts,
}

impl Output {
    pub(super) fn new(lanes: usize) -> Self {
        let (timers, actions) = (TimerQueue::new(), VecDeque::new());
        Self { timers, actions, configured: None, ports: LanePorts::new(lanes) }
    }

    pub(super) fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(super) fn pop(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(super) fn disconnect(&mut self, connection: ConnectionId, code: Code) {
        self.push(Action::Disconnect { connection, code });
    }

    pub(super) fn command(&mut self, shard: usize, command: Command) {
        self.push(Action::Command { shard, command });
    }

    pub(super) fn command_all(&mut self, command: impl Fn(usize) -> Command) {
        for shard in 0..self.ports.lanes() {
            self.command(shard, command(shard));
        }
    }

    /// Erases an epoch's keys, if there is one.
    pub(super) fn retire(&mut self, slot: Slot, epoch: Option<Epoch>) {
        if let Some(Epoch { number, .. }) = epoch {
            self.command_all(|_| Command::Retire { slot, epoch: number });
        }
    }

    pub(super) fn configure(&mut self, network: &Network) {
        if self.configured.as_ref() != Some(network) {
            self.configured = Some(network.clone());
            self.push(Action::Configure(network.clone()));
        }
    }

    /// Opens those of `lanes` again that were not opened just before.
    pub(super) fn reopen(&mut self, now: Time, lanes: u16) {
        let (due, too_often) = self.ports.open(now, lanes);
        if due != 0 {
            self.push(Action::Reopen(due));
        }
        if too_often {
            self.push(Action::LanesBlocked);
        }
    }

    /// The gateway has granted an epoch at `began`, and answers on none of its lanes.
    pub(super) fn check_blocked(&mut self, began: Time) {
        if self.ports.is_any_opened_since(began) {
            self.push(Action::LanesBlocked);
        }
    }
}
