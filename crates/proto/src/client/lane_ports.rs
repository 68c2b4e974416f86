//! Lanes at whose ports nothing passes any more, as behind a firewall that ends flows after a
//! while: they are opened again at other ports, and where that does not last, the session is to go
//! another way (PROTOCOL §11.1).
//!
//! INVARIANT: a lane is opened again only while the gateway answers otherwise, since an outage says
//! nothing of ports; each time later than before. It has no timer: lanes are tried as packets flow.

use core::time::Duration;

use crate::time::Time;

/// A flow that ends sooner than this after it was opened was not helped by that.
const SHORT_LIVED: Duration = Duration::from_secs(60);
/// Number of these in a row after which UDP is of no use here.
const MAX_SHORT_LIVED: u32 = 3;
/// The time between the first two openings of a lane; it doubles with each that is short-lived.
const FIRST_WAIT: Duration = Duration::from_secs(2);

/// The history of a lane's ports.
#[derive(Clone, Copy, Debug, Default)]
struct Opened {
    last: Option<Time>,
    /// How often in a row its port was good for a short time only, this one included.
    in_a_row: u32,
}

impl Opened {
    fn is_due(&self, now: Time) -> bool {
        let doublings = self.in_a_row.saturating_sub(1).min(4);
        self.last.is_none_or(|last| now - last >= FIRST_WAIT * (1 << doublings))
    }
}

/// The ports of all lanes.
#[derive(Clone, Debug)]
pub(super) struct LanePorts(Vec<Opened>);

impl LanePorts {
    pub(super) fn new(lanes: usize) -> Self {
        Self(vec![Opened::default(); lanes])
    }

    pub(super) fn lanes(&self) -> usize {
        self.0.len()
    }

    /// Those of `lanes` that are due, and count as opened now; whether one was opened too often.
    pub(super) fn open(&mut self, now: Time, lanes: u16) -> (u16, bool) {
        let (mut due, mut too_often) = (0, false);
        for (lane, opened) in self.0.iter_mut().enumerate() {
            if lanes & (1 << lane) == 0 || !opened.is_due(now) {
                continue;
            }
            let was_short = opened.last.is_some_and(|last| now - last < SHORT_LIVED);
            opened.in_a_row = if was_short { opened.in_a_row.saturating_add(1) } else { 1 };
            opened.last = Some(now);
            too_often |= opened.in_a_row >= MAX_SHORT_LIVED;
            due |= 1 << lane;
        }
        (due, too_often)
    }

    pub(super) fn is_any_opened_since(&self, at: Time) -> bool {
        self.0.iter().any(|opened| opened.last.is_some_and(|last| last >= at))
    }
}
