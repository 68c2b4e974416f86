//! What a plane has seen and the control plane has not taken yet.
//!
//! INVARIANT: never more than [`MAX_EVENTS`], whatever peers send. What finds no room is refused, so whoever reports must not
//! take its cause for reported then: the next datagram with the same cause reports it again. So a flood delays what the control
//! plane must know, and loses none of it.

use std::collections::VecDeque;

use super::command::{Event, Slot};

/// Events that wait at most. The owner takes them after each batch of datagrams, which has fewer; only while it can't pass
/// them on do they pile up.
pub(super) const MAX_EVENTS: usize = 1_024;

/// The events of one plane, oldest first.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: VecDeque<Event>,
    refused: u64,
    /// Sessions whose clients are to probe the path; no event, for the shard sends the message itself.
    path_checks: Vec<Slot>,
}

impl Events {
    /// Takes an event; false if there is no room for it.
    #[must_use = "an event that was refused must be reported again"]
    pub(super) fn push(&mut self, event: Event) -> bool {
        let room = self.queue.len() < MAX_EVENTS;
        if room {
            self.queue.push_back(event);
        } else {
            self.refused += 1;
        }
        room
    }

    /// The session's client is to probe the path; forgotten if there is no room, for it is said again.
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

    /// How many were refused since this was asked last.
    pub(super) fn take_refused(&mut self) -> u64 {
        core::mem::take(&mut self.refused)
    }
}
