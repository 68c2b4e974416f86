//! Notices that the machine wakes from suspend, without a wake-up while it runs.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A time that never comes. A timer for it on the system's clock is cancelled when that clock
/// steps, as it does after a suspend.
const NEVER: i64 = i32::MAX as i64 * 2;

pub struct ResumeWatch(AsyncFd<OwnedFd>);

impl ResumeWatch {
    /// Begins within the current tokio runtime.
    ///
    /// # Errors
    /// If the kernel gives no timer.
    pub fn open() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Realtime, flags)?;
        arm(&timer)?;
        // SAFETY: an owned descriptor stays open, and is the same one, until the value is dropped.
        Ok(Self(unsafe { AsyncFd::register(timer) }?))
    }

    /// Waits until the machine has woken, or its clock was set. Safe to cancel.
    ///
    /// # Errors
    /// If the kernel does not report it any more.
    pub async fn resumed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            let mut count = [0; 8];
            match rustix::io::read(self.0.get_ref(), &mut count) {
                Err(Errno::AGAIN) => ready.clear_ready(),
                Ok(_) | Err(Errno::CANCELED) => {
                    ready.clear_ready();
                    arm(self.0.get_ref())?;
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn arm(timer: &OwnedFd) -> io::Result<()> {
    let never = Timespec { tv_sec: NEVER, tv_nsec: 0 };
    let value = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: never };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET, &value)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_running_machine_is_not_woken() {
        let mut watch = ResumeWatch::open().unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(200), watch.resumed()).await.is_err());
    }
}
