//! Ctrl-C and SIGTERM as a flag that the measuring loops look at.
//!
//! The first signal asks for an orderly end: stop sending, collect what was measured, remove the
//! lab, print. A later one gives up at once (the lab is then left to `trafficspeed cleanup`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Signals within this time are one: `timeout` sends its signal to the process and to its group, a
/// terminal that is closed sends two.
const ONE_SIGNAL: Duration = Duration::from_millis(500);

/// True once the user asked the program to end.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches SIGINT, SIGTERM and SIGHUP for the whole process.
    ///
    /// # Errors
    /// When the operating system refuses a signal handler or a thread.
    pub fn install() -> io::Result<Self> {
        let this = Self::default();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let asked = this.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            let mut first = None;
            for _ in signals.forever() {
                asked.0.store(true, Ordering::Relaxed);
                if first.get_or_insert_with(Instant::now).elapsed() > ONE_SIGNAL {
                    signal_hook::low_level::exit(130);
                }
            }
        })?;
        Ok(this)
    }

    /// Whether the program was asked to end.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_comes_twice_at_once_is_one() {
        let interrupt = Interrupt::install().expect("the system has signals");
        assert!(!interrupt.is_set());
        let own = rustix::process::getpid();
        for _ in 0..2 {
            rustix::process::kill_process(own, rustix::process::Signal::HUP).expect("it is ours");
            // Not merged with the one before.
            std::thread::sleep(Duration::from_millis(20));
        }
        let end = Instant::now() + Duration::from_secs(5);
        while !interrupt.is_set() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(interrupt.is_set(), "and this process goes on");
    }
}
