//! A plane's reports to the control plane: events that wait to be taken, and counts of drops.
//!
//! INVARIANT: never more than [`MAX_EVENTS`], whatever peers send. An event that finds no room is
//! refused and counted, and its caller must not take it for reported: the next datagram with the
//! same cause reports it again. So a flood delays events and loses none.

use std::collections::VecDeque;

use super::command::{Event, Slot};
use super::count::{Counters, DropReason, Dropped};

/// Events that wait at most. The owner takes them after each batch of datagrams, which has fewer;
/// only while it can't pass them on do they pile up.
pub(super) const MAX_EVENTS: usize = 1_024;

/// The events of one plane, oldest first, and its counters. They are one type because code that
/// reports an event may have to count a drop, and borrows both while a session is borrowed.
#[derive(Debug, Default)]
pub(super) struct Reports {
    queue: VecDeque<Event>,
    pub(super) counters: Counters,
    /// Sessions whose clients are to probe the path; no event, since the shard sends the message.
    path_checks: Vec<Slot>,
}

impl Reports {
    /// Takes an event; false if there is no room for it.
    #[must_use = "an event that was refused must be reported again"]
    pub(super) fn push(&mut self, event: Event) -> bool {
        let room = self.queue.len() < MAX_EVENTS;
        if room {
            self.queue.push_back(event);
        } else {
            self.counters.drop(DropReason::EventQueue);
        }
        room
    }

    /// Counts one packet as dropped.
    #[inline]
    pub(super) fn drop(&mut self, reason: DropReason) -> Dropped {
        self.counters.drop(reason)
    }

    /// The client is to probe the path. One without room is forgotten: a large datagram repeats it.
    pub(super) fn push_path_check(&mut self, slot: Slot) {
        if self.path_checks.len() < MAX_EVENTS {
            self.path_checks.push(slot);
        }
    }

    #[inline]
    pub(super) fn pop_path_check(&mut self) -> Option<Slot> {
        self.path_checks.pop()
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
