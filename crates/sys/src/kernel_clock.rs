//! Whether the machine's clock is kept right by something, and its time zone.

use std::io;

/// Whether the kernel knows that its clock is synchronised (adjtimex(2)): some NTP client tells it
/// so.
///
/// # Errors
/// If the kernel does not say.
pub fn is_synchronised() -> io::Result<bool> {
    // SAFETY: all fields of `timex` are integers, for which zero is a value; with `modes` zero
    // nothing is set.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a whole `timex` of this frame, which outlives the call.
    match unsafe { libc::adjtimex(&raw mut state) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(state.status & libc::STA_UNSYNC == 0),
    }
}

/// Seconds by which this machine's time zone is ahead of UTC at a moment; `None` where the zone has
/// no such time.
pub fn local_offset_s(at_s: i64) -> Option<i64> {
    // SAFETY: all fields of `tm` are integers or a pointer, for which zero is a value.
    let mut local: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values of this frame, which outlive the call; it writes one of
    // them.
    let found = unsafe { libc::localtime_r(&raw const at_s, &raw mut local) };
    (!found.is_null()).then_some(local.tm_gmtoff)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernels_clock_synchronisation_is_readable() {
        super::is_synchronised().unwrap();
    }

    #[test]
    fn a_zone_is_no_farther_than_a_day() {
        assert!(super::local_offset_s(1_800_000_000).is_some_and(|offset| offset.abs() <= 86_400));
    }
}
