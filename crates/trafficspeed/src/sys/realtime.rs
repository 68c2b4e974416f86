//! Real-time scheduling of one thread.

use std::io;

/// Lets the calling thread run before all threads without real-time scheduling, as soon as it is ready; the kernel
/// still leaves the others a share of each second.
///
/// # Errors
/// What the kernel says, mostly that the right to do so is missing.
pub fn run_first() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads one `sched_param`, which lives until it returns; thread 0 is the calling one.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_has_what_it_asked_for_or_hears_why_not() {
        let granted = std::thread::spawn(|| {
            run_first()
                .map(|()| std::fs::read_to_string("/proc/thread-self/stat").expect("the thread's own line"))
        });
        match granted.join().expect("it does not panic") {
            Ok(stat) => {
                let (_, rest) = stat.rsplit_once(')').expect("a name in parentheses");
                // Fields 40 and 41 of proc(5): real-time priority and policy (2 = SCHED_RR).
                let fields: Vec<&str> = rest.split_whitespace().collect();
                assert_eq!((fields[37], fields[38]), ("1", "2"), "{stat}");
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
    }
}
