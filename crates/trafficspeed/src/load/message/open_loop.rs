//! Messages of a call, a video or any steady source: each leaves when it is due, late or not, and
//! none is skipped.
//!
//! A sender that waits for the path would leave out the very messages that fared worst. Here every
//! message carries the instant at which it was due, and its delay counts from then, whatever held
//! it up; one that the kernel does not take is lost. Several messages may be due at once, as the
//! packets of one picture are: those show whether a path keeps the order.

use std::io::ErrorKind;
use std::net::UdpSocket;

use serde::{Deserialize, Serialize};

use super::{Batch, MAX_REFUSALS, Messages, is_momentary};
use crate::clock;
use crate::load::delays::Delays;
use crate::load::udp::{BATCH, send_batch};
use crate::load::worker_pool::{SharedState, WorkerResult};

/// Longest sleep, so that an end before the time is seen soon.
const NAP_NS: u64 = 100_000_000;

/// When messages are due, and when they come too late.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenLoop {
    /// Messages that are due at once.
    pub burst: u32,
    /// A message with a longer one-way delay counts as late, in microseconds.
    pub late_after_us: u32,
}

impl OpenLoop {
    /// One message at a time, and none comes too late.
    pub const EVEN: Self = Self { burst: 1, late_after_us: u32::MAX };

    /// The first thing that is out of bounds, in words.
    pub(super) fn problem(&self) -> Option<String> {
        let wrong = !(1..=BATCH as u32).contains(&self.burst);
        wrong.then(|| format!("bursts of {} messages asked for, 1 to {BATCH} are possible", self.burst))
    }
}

/// Sends until all messages that are due before the schedule's end have left.
pub(super) fn send(
    stage: &SharedState,
    work: &Messages,
    open: &OpenLoop,
    stream: u32,
    socket: &UdpSocket,
) -> WorkerResult {
    let burst = u64::from(open.burst);
    let mut batch = Batch::new(work, stream, open.burst as usize);
    let mut lateness = Delays::default();
    let mut share = WorkerResult::default();
    let mut refusals = 0;
    for number in 0.. {
        let due_ns = due(work, burst, number, stage.schedule.start_ns);
        if due_ns >= stage.schedule.end_ns || !wait_until(stage, due_ns) {
            break;
        }
        let counted = stage.schedule.counts(due_ns);
        let first = batch.next[usize::from(counted)];
        match send_batch(socket, work.cut(batch.stamp(burst, counted, due_ns), first)) {
            Ok(_) => refusals = 0,
            // No room in the kernel: lost, as a telephone would lose it.
            Err(error) if is_momentary(&error) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && refusals < MAX_REFUSALS => {
                refusals += 1;
            }
            Err(error) => {
                share.fault = Some(format!("sending datagrams of {} bytes: {error}", work.longest()));
                break;
            }
        }
        if counted {
            lateness.record(clock::now_ns().saturating_sub(due_ns));
        }
        stage.meter.sent(burst, batch.took(burst, counted));
    }
    share.sent = batch.next[1];
    share.lateness = Some(lateness);
    share
}

/// When burst `number` is due; bursts are evenly spaced, by the rate.
fn due(work: &Messages, burst: u64, number: u64, start_ns: u64) -> u64 {
    let bits = u128::from(number * burst) * u128::from(work.length) * 8;
    start_ns + (bits * 1_000_000_000 / u128::from(work.bits_per_second.unwrap_or(1).max(1))) as u64
}

/// Waits until an instant; false if the work ends before it. What is due already still leaves.
pub(in crate::load) fn wait_until(stage: &SharedState, instant_ns: u64) -> bool {
    loop {
        let now_ns = clock::now_ns();
        if stage.aborted() {
            return false;
        }
        if now_ns >= instant_ns {
            return true;
        }
        if !stage.runs() {
            return false;
        }
        clock::sleep_until(instant_ns.min(now_ns + NAP_NS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::task::Protocol;

    fn voice() -> Messages {
        let open_loop = Some(OpenLoop { burst: 1, late_after_us: 150_000 });
        Messages { length: 172, bits_per_second: Some(68_800), open_loop, ..Messages::default() }
    }

    #[test]
    fn messages_are_due_evenly_and_bursts_together() {
        let at = |burst, number| due(&voice(), burst, number, 7);
        assert_eq!([at(1, 0), at(1, 1), at(1, 50)], [7, 20_000_007, 1_000_000_007]);
        assert_eq!(at(10, 5), 1_000_000_007, "fifty messages in five bursts");
    }

    #[test]
    fn paced_messages_are_open_loop_up_to_a_rate() {
        let chosen = |protocol, streams, bits_per_second| {
            let work =
                Messages { open_loop: None, protocol, streams, length: 1_000, bits_per_second, ..voice() };
            let work = work.when_due();
            assert_eq!(work.problem(), None);
            work.open_loop
        };
        assert_eq!(chosen(Protocol::Udp, 1, Some(80_000_000)), Some(OpenLoop::EVEN), "10,000 a second");
        assert_eq!(chosen(Protocol::Udp, 2, Some(80_000_000)), None);
        assert_eq!(chosen(Protocol::Udp, 1, Some(81_000_000)), None);
        assert_eq!(chosen(Protocol::Udp, 1, None), None, "as fast as possible");
        assert_eq!(chosen(Protocol::Tcp, 1, Some(8_000)), None, "a stream makes its sender wait");
    }

    #[test]
    fn an_open_loop_needs_datagrams_a_rate_and_bursts() {
        assert_eq!(voice().problem(), None);
        let open_loop = |burst| Some(OpenLoop { burst, late_after_us: 1 });
        for work in [
            Messages { protocol: Protocol::Tcp, ..voice() },
            Messages { bits_per_second: None, ..voice() },
            Messages { open_loop: open_loop(0), ..voice() },
            Messages { open_loop: open_loop(BATCH as u32 + 1), ..voice() },
        ] {
            assert!(work.problem().is_some(), "{work:?}");
        }
    }
}
