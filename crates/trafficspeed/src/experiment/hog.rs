//! Processes that want the whole CPU, to see what that does to a measurement.
//!
//! They compute pi, as the original experiment's did. Each ends with its parent, at a deadline of
//! its own, and when the [`Hogs`] that started it are dropped.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::interrupt::Interrupt;
use crate::lab::LabError;
use crate::lab::enter::end_with_parent;
use crate::observe::load_average;

/// Terms between two looks at the clock: well under a millisecond.
const TERMS: u32 = 50_000;

/// The load average has shown the hogs once it is this share of their number: after two to three
/// minutes.
const SHOWN: f64 = 0.93;
/// The longest wait: a load average of 0 comes to 0.95 of its end in three minutes.
pub const LOAD_TIMEOUT: Duration = Duration::from_secs(200);
/// Between two looks at it; the kernel renews it every five seconds.
const LOAD_PERIOD: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct Hogs(Vec<Child>);

impl Hogs {
    /// Starts `count` processes that end within `timeout`.
    pub fn start(count: u32, timeout: Duration) -> Result<Self, LabError> {
        let own = std::env::current_exe().expect("the kernel names a running program");
        let mut hogs = Self::default();
        for _ in 0..count {
            let (parent, seconds) = (std::process::id().to_string(), timeout.as_secs_f64().to_string());
            let child = Command::new(&own)
                .args(["hog", "--parent", &parent, "--seconds", &seconds])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn();
            let failed = |source| LabError::System { action: "starting a CPU hog".into(), source };
            hogs.0.push(child.map_err(failed)?);
        }
        Ok(hogs)
    }

    /// Waits until the load average of the last minute shows them, as the original experiment did
    /// before it measured. It grows towards their number as an average over a minute does.
    pub fn await_load(&self, interrupt: &Interrupt) {
        let end = Instant::now() + LOAD_TIMEOUT;
        while load_average().is_some_and(|load| !shows(load, self.0.len()))
            && Instant::now() < end
            && !interrupt.is_set()
        {
            std::thread::sleep(LOAD_PERIOD);
        }
    }

    /// The number that still run.
    pub fn running(&mut self) -> usize {
        self.0.iter_mut().filter_map(|child| child.try_wait().ok()).filter(Option::is_none).count()
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Failure means that it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether the load average has come to that of this many hogs.
fn shows(load_average: f64, hogs: usize) -> bool {
    load_average >= SHOWN * hogs as f64
}

/// The work of one hog.
///
/// # Errors
/// [`LabError`] if it cannot be tied to its parent.
pub fn run(parent: u32, timeout: Duration) -> Result<f64, LabError> {
    end_with_parent(parent)?;
    Ok(compute(Instant::now() + timeout))
}

/// Pi by Leibniz' series, until `deadline`.
fn compute(deadline: Instant) -> f64 {
    let (mut sum, mut denominator, mut sign) = (0.0, 1.0, 1.0);
    while Instant::now() < deadline {
        for _ in 0..TERMS {
            sum += sign / denominator;
            denominator += 2.0;
            sign = -sign;
        }
    }
    4.0 * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hog_computes_pi_and_ends_at_its_deadline() {
        let since = Instant::now();
        let pi = compute(since + Duration::from_millis(50));
        assert!((pi - std::f64::consts::PI).abs() < 1e-3, "{pi}");
        assert!(since.elapsed() >= Duration::from_millis(50));
        assert_eq!(compute(Instant::now()), 0.0, "one that is late does nothing");
    }

    #[test]
    fn waiting_for_the_load_average_has_a_timeout() {
        assert!(shows(0.0, 0) && shows(1.9, 2) && !shows(1.8, 2) && !shows(0.0, 1));
        // An average over a minute has come to this at the timeout, from nothing.
        assert!(shows(2.0 * (1.0 - (-LOAD_TIMEOUT.as_secs_f64() / 60.0).exp()), 2));
        let interrupt = Interrupt::default();
        let since = Instant::now();
        Hogs::default().await_load(&interrupt);
        assert!(since.elapsed() < LOAD_PERIOD, "no hogs, no wait");
    }
}
