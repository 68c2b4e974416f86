//! Real-time scheduling of one thread.

use std::io;

/// Lets the calling thread run before all threads without real-time scheduling, as soon as it is
/// ready; the kernel still leaves the others a share of each second.
///
/// # Errors
/// By the kernel, mostly that the right to do so is missing.
pub fn run_first() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads one `sched_param`, which lives until it returns; thread 0 is the
    // calling one.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Runs `work` before all threads without real-time scheduling, where that is allowed, and as
/// before where it is not: a reading of several values should not be interrupted between them.
pub fn at_once<T>(work: impl FnOnce() -> T) -> T {
    let first = run_first().is_ok();
    let done = work();
    if first {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: as above. Giving up a priority takes no right, so it can't fail.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters) };
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The calling thread's real-time priority and policy, fields 40 and 41 of proc(5).
    fn scheduling() -> (String, String) {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("the thread's own line");
        let (_, rest) = stat.rsplit_once(')').expect("a name in parentheses");
        let fields: Vec<&str> = rest.split_whitespace().collect();
        (fields[37].to_owned(), fields[38].to_owned())
    }

    #[test]
    fn work_is_done_at_once_and_the_thread_is_as_before() {
        std::thread::spawn(|| {
            let before = scheduling();
            let may = std::thread::spawn(|| run_first().is_ok()).join().expect("it does not panic");
            assert_eq!(at_once(scheduling) != before, may);
            assert_eq!(scheduling(), before);
        })
        .join()
        .expect("it does not panic");
    }

    #[test]
    fn a_realtime_request_succeeds_or_reports_its_reason() {
        let granted = std::thread::spawn(|| run_first().map(|()| scheduling()));
        match granted.join().expect("it does not panic") {
            // 2 is SCHED_RR.
            Ok(scheduling) => assert_eq!(scheduling, ("1".to_owned(), "2".to_owned())),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
    }
}
