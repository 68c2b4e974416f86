//! Whether the machine's clock is kept right by something.

use std::io;

/// Whether the kernel knows that its clock is synchronised (adjtimex(2)): some NTP client tells it so.
///
/// # Errors
/// If the kernel does not say.
pub fn is_synchronised() -> io::Result<bool> {
    // SAFETY: all fields of `timex` are integers, for which zero is a value; with `modes` zero nothing is set.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a whole `timex` of this frame, which outlives the call.
    match unsafe { libc::adjtimex(&raw mut state) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(state.status & libc::STA_UNSYNC == 0),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_says() {
        super::is_synchronised().unwrap();
    }
}
