//! Ctrl-C and SIGTERM as a flag that the measuring loops look at.
//!
//! The first signal asks for an orderly end: stop sending, collect what was measured, remove the lab, print.
//! A second one gives up at once (the lab is then left to `trafficspeed cleanup`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// True once the user asked the program to end.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches SIGINT, SIGTERM and SIGHUP for the whole process.
    ///
    /// # Errors
    /// When the operating system refuses a signal handler.
    pub fn install() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Order matters: the shutdown is conditional on the flag that the second line sets, so that only
            // the second signal exits.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Self(flag))
    }

    /// Whether the program was asked to end.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
