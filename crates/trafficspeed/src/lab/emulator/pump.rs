//! One direction of an emulated link as a thread: frames from one TAP device to another, each when
//! it is due.
//!
//! In turn it gives out what is due, reads what has come and lets [`Decisions`] decide, and sleeps
//! until the next frame is due or comes. A timerfd wakes the thread: unlike the timeout of `poll`
//! it has no slack. All decisions are in `decision`, all bounds in `transit`; this file knows only
//! descriptors and the clock.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::Observed;
use super::decision::{Decision, Decisions};
use super::transit::Transit;
use crate::clock;
use crate::sys::realtime;
use crate::sys::tap::{MAX_READ_LEN, Tap, VNET_HEADER_LEN};

/// Frames read before those that are due get their turn again.
const BATCH: usize = 32;
/// Frames up to this length are copied out of the read buffer; longer ones take it with them.
const COPIED_LEN: usize = 4096;
/// Read buffers kept for the next long frames.
const SPARE_BUFFERS: usize = 64;

/// A direction of a link, ready to run.
pub(super) struct Pump {
    from: Arc<Tap>,
    to: Arc<Tap>,
    stop: Arc<OwnedFd>,
    timer: OwnedFd,
    /// The timer's present setting; it is not set again to the same.
    timer_ns: Option<u64>,
    decisions: Decisions,
    transit: Transit<Vec<u8>>,
    buffer: Vec<u8>,
    spare: Vec<Vec<u8>>,
    /// Read by others now and then, so the lock is as good as free.
    observed: Arc<Mutex<Observed>>,
}

impl Pump {
    /// # Errors
    /// The kernel has no timer for us.
    pub(super) fn new(
        from: Arc<Tap>,
        to: Arc<Tap>,
        stop: Arc<OwnedFd>,
        decisions: Decisions,
        held_bytes: usize,
        observed: Arc<Mutex<Observed>>,
    ) -> io::Result<Self> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self {
            from,
            to,
            stop,
            timer,
            timer_ns: None,
            decisions,
            transit: Transit::new(held_bytes),
            buffer: vec![0; MAX_READ_LEN],
            spare: Vec::new(),
            observed,
        })
    }

    /// Carries frames until the stop event or until a device is gone.
    pub(super) fn run(mut self) {
        // A wire does not wait for a CPU. Without the right to go first the thread is only later at
        // times, and the report says how late.
        let _ = realtime::run_first();
        loop {
            self.give_out();
            match self.take_in() {
                Ok(true) => {}
                Ok(false) => {
                    self.note_cpu();
                    if !self.wait().unwrap_or(false) {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    fn give_out(&mut self) {
        let mut now_ns = clock::now_ns();
        while let Some((due_ns, frame)) = self.transit.take_due(now_ns) {
            let written = self.to.write(&frame);
            now_ns = clock::now_ns();
            self.note(|observed| {
                *(if written.is_ok() { &mut observed.left } else { &mut observed.refused }) += 1;
                observed.lateness.record(now_ns.saturating_sub(due_ns));
            });
            self.recycle(frame);
        }
    }

    /// Reads a batch; true if there may be more.
    fn take_in(&mut self) -> io::Result<bool> {
        for _ in 0..BATCH {
            match self.from.read(&mut self.buffer) {
                Ok(len) => self.enter(len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                // The link is down for a moment, as it is before it is first set up.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn enter(&mut self, len: usize) {
        let wire_bytes = len.saturating_sub(VNET_HEADER_LEN) as u32;
        let decision = self.decisions.decide(clock::now_ns(), wire_bytes);
        self.note(|observed| {
            observed.entered += 1;
            observed.queue_full += u64::from(decision == Decision::QueueFull);
            observed.lost += u64::from(decision == Decision::Lost);
        });
        if let Decision::Arrives { at_ns } = decision {
            let frame = self.keep(len);
            if let Err(frame) = self.transit.put(at_ns, frame.capacity(), frame) {
                self.note(|observed| observed.overrun += 1);
                self.recycle(frame);
            }
        }
    }

    /// The frame that was just read, as a separate buffer.
    fn keep(&mut self, len: usize) -> Vec<u8> {
        if len <= COPIED_LEN {
            return self.buffer[..len].to_vec();
        }
        let empty = self.spare.pop().unwrap_or_else(|| vec![0; MAX_READ_LEN]);
        let mut frame = std::mem::replace(&mut self.buffer, empty);
        frame.truncate(len);
        frame
    }

    fn recycle(&mut self, mut frame: Vec<u8>) {
        if frame.capacity() >= MAX_READ_LEN && self.spare.len() < SPARE_BUFFERS {
            frame.resize(MAX_READ_LEN, 0);
            self.spare.push(frame);
        }
    }

    fn note(&self, change: impl FnOnce(&mut Observed)) {
        change(&mut self.observed.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn note_cpu(&self) {
        let cpu_ns = clock::thread_cpu_ns();
        self.note(|observed| observed.cpu_ns = cpu_ns);
    }

    /// Sleeps until a frame comes or is due; false if the stop event woke it.
    fn wait(&mut self) -> io::Result<bool> {
        let next_ns = self.transit.next_ns();
        if next_ns != self.timer_ns {
            self.set_timer(next_ns)?;
        }
        let mut waits = [
            PollFd::new(&*self.from, PollFlags::IN),
            PollFd::new(&self.timer, PollFlags::IN),
            PollFd::new(&*self.stop, PollFlags::IN),
        ];
        match poll(&mut waits, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        let [_, timer, stop] = waits.each_ref().map(|wait| !wait.revents().is_empty());
        if timer {
            // It has fired: setting it is needed again, even to an instant that has passed.
            self.timer_ns = None;
            self.set_timer(None)?;
        }
        Ok(!stop)
    }

    /// Sets the timer to an instant, or to none. That also clears what has fired.
    fn set_timer(&mut self, at_ns: Option<u64>) -> io::Result<()> {
        // An instant of zero would mean none.
        let ns = at_ns.map_or(0, |ns| ns.max(1));
        let it_value = Timespec {
            tv_sec: (ns / 1_000_000_000).cast_signed(),
            tv_nsec: (ns % 1_000_000_000).cast_signed(),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value })?;
        self.timer_ns = at_ns;
        Ok(())
    }
}
