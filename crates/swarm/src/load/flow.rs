//! The account of one flow: packets that were sent, that arrived, and that must be lost.
//!
//! INVARIANT: a gateway keeps the order of a flow. So when packet `n` arrives, each of the `n`
//! before it has arrived or is lost.

use std::time::Duration;

use vpnd_proto::time::Time;

/// A flow in which nothing arrived for this long has lost what was on its way: many times the delay
/// of any full queue here.
const EXPIRY: Duration = Duration::from_millis(500);
/// One run in this time is opened at least. A gateway asks often whether large datagrams still
/// arrive, and a client that has opened one in the 50 ms before needs not find out by probes; those
/// would cost the gateway more than it has to do for real clients.
const OPEN_EVERY: Duration = Duration::from_millis(40);
/// The least that a flow may have on its way, in bursts: one travels while the other is received.
pub(super) const BURSTS: u64 = 2;

#[derive(Clone, Debug)]
pub(crate) struct Flow {
    /// Bursts that are on their way or have a turn at most.
    window: u64,
    sent: u64,
    /// Bursts that were sent.
    bursts: u64,
    arrived: u64,
    /// Bytes of payload that arrived.
    payload: u64,
    lost: u64,
    reordered: u64,
    /// Merged runs in which they arrived.
    runs: u64,
    /// One more than the highest number that was opened.
    next: u64,
    /// Turns to send that it waits for.
    turns: u64,
    /// When something last arrived, or was sent while nothing was on its way.
    last: Option<Time>,
    /// When a run that was opened last arrived.
    opened: Option<Time>,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            window: BURSTS,
            sent: 0,
            bursts: 0,
            arrived: 0,
            payload: 0,
            lost: 0,
            reordered: 0,
            runs: 0,
            next: 0,
            turns: 0,
            last: None,
            opened: None,
        }
    }
}

impl Flow {
    pub(super) fn set_window(&mut self, bursts: u64) {
        self.window = bursts;
    }

    /// The number of the next burst.
    pub(super) fn next_burst(&self) -> u64 {
        self.bursts
    }

    pub(super) fn payload(&self) -> u64 {
        self.payload
    }

    /// The number of the next packet.
    pub(crate) fn number(&self) -> u64 {
        self.sent
    }

    pub(super) fn all_arrived(&self) -> u64 {
        self.arrived
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn reordered(&self) -> u64 {
        self.reordered
    }

    pub(super) fn runs(&self) -> u64 {
        self.runs
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.sent.saturating_sub(self.arrived + self.lost)
    }

    /// Whether no run of it was opened for so long that the gateway's next question about the path
    /// would find none.
    pub(super) fn wants_opening(&self, now: Time) -> bool {
        self.opened.is_none_or(|opened| now.since(opened) >= OPEN_EVERY)
    }

    /// Takes a turn to wait for, if the flow may send one more burst.
    pub(super) fn wants_turn(&mut self, burst: u64) -> bool {
        let wants = self.in_flight() + (self.turns + 1) * burst <= self.window * burst;
        self.turns += u64::from(wants);
        wants
    }

    /// A turn has come.
    pub(super) fn turn_taken(&mut self) {
        self.turns -= 1;
    }

    pub(super) fn sent(&mut self, packets: u64, now: Time) {
        if self.in_flight() == 0 {
            self.last = Some(now);
        }
        self.sent += packets;
        self.bursts += 1;
    }

    /// A run of packets with its bytes of payload arrived side by side, the first with this
    /// number if it was opened.
    pub(super) fn arrived(&mut self, (packets, payload): (u64, u64), first: Option<u64>, now: Time) {
        match first {
            Some(first) if first < self.next => self.reordered += 1,
            Some(first) => {
                // Corrects it too where what was given up has come late.
                self.lost = first.saturating_sub(self.arrived);
                self.next = first + 1;
            }
            None => {}
        }
        if first.is_some() {
            self.opened = Some(now);
        }
        self.arrived += packets;
        self.payload += payload;
        self.runs += 1;
        self.last = Some(now);
    }

    /// Gives up what is on its way if nothing arrived for too long.
    pub(super) fn expire(&mut self, now: Time) {
        if self.last.is_some_and(|last| now.since(last) >= EXPIRY) {
            self.lost += self.in_flight();
            self.last = None;
        }
    }
}
