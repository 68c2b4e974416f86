//! The one clock of a measurement: CLOCK_MONOTONIC in nanoseconds. CPU clocks as well.
//!
//! All processes of one machine share it, whatever network namespace they are in, so that an
//! instant agreed by the coordinator means the same to each of them. Between machines
//! `coordinate::offset` translates.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

fn read_ns(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    // INVARIANT: the clocks that are read here count up from zero, so neither field is negative.
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

pub fn now_ns() -> u64 {
    read_ns(ClockId::Monotonic)
}

/// CPU time that this process has used, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    read_ns(ClockId::ProcessCPUTime)
}

/// CPU time that the calling thread has used, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    read_ns(ClockId::ThreadCPUTime)
}

/// Time until `instant_ns`; zero if it has passed.
pub fn until(instant_ns: u64) -> Duration {
    Duration::from_nanos(instant_ns.saturating_sub(now_ns()))
}

/// Sleeps until `instant_ns`; returns at once if it has passed.
pub fn sleep_until(instant_ns: u64) {
    std::thread::sleep(until(instant_ns));
}

/// The wall clock as RFC 3339 text in UTC with seconds, for reports; never used to measure.
pub fn wall_text() -> String {
    let now = time::OffsetDateTime::now_utc().replace_nanosecond(0).expect("zero is a valid nanosecond");
    now.format(&time::format_description::well_known::Rfc3339).expect("the current year has four digits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_until_an_instant_reaches_it_and_a_past_one_returns_at_once() {
        let target = now_ns() + 20_000_000;
        sleep_until(target);
        assert!(now_ns() >= target);
        assert_eq!(until(1), Duration::ZERO);
    }

    #[test]
    fn wall_text_is_utc_in_whole_seconds() {
        let text = wall_text();
        assert!(text.ends_with('Z') && text.len() == 20, "{text}");
    }
}
