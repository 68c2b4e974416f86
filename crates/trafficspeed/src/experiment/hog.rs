//! Processes that want the whole CPU, to see what that does to a measurement.
//!
//! They compute pi, as the original experiment's did. Each ends with its parent, at a deadline of its own, and when
//! the [`Hogs`] that started it are dropped.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::lab::LabError;
use crate::lab::enter::end_with_parent;

/// Terms between two looks at the clock: well under a millisecond.
const TERMS: u32 = 50_000;

#[derive(Debug, Default)]
pub struct Hogs(Vec<Child>);

impl Hogs {
    /// Starts `count` processes that end after `timeout` at the latest.
    ///
    /// # Errors
    /// [`LabError::System`].
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
            let failed = |source| LabError::System { what: "starting a CPU hog".into(), source };
            hogs.0.push(child.map_err(failed)?);
        }
        Ok(hogs)
    }

    /// How many still run.
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
}
