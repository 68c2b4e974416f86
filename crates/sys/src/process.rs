//! The process and its threads: cores, core dumps, privileges, the clock that runs through suspend.

use std::io;
use std::time::Duration;

use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CpuSet};

/// The cores that this process may run on, in ascending order; never empty.
pub fn available_cores() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// Pins the calling thread to one core, so that its caches, queue and interrupts stay together.
///
/// # Errors
/// `EINVAL` when the machine or container has no such core.
pub fn pin_current_thread(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Puts the calling thread before other work of the machine: its nice value becomes `-priority`.
/// Threads that it starts inherit that, and may ask for it again, or for less, without any
/// privilege.
///
/// # Errors
/// `EACCES` or `EPERM` without CAP_SYS_NICE, unless RLIMIT_NICE allows it.
pub fn prefer_current_thread(priority: u8) -> io::Result<()> {
    // To the kernel the nice value belongs to a thread, and "no process" is the calling one.
    Ok(rustix::process::setpriority_process(None, -i32::from(priority.min(20)))?)
}

/// Has the calling thread scheduled sooner without more of the core in all: a shorter time slice is
/// an earlier deadline to the scheduler, so a thread that wakes up goes before those with longer
/// ones, as long as it has had no more than its part (EEVDF, from Linux 6.12). Needs no privilege;
/// the nice value stays. A thread of another scheduling class has no slices, and stays as it is.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] from kernels before 6.12, which take the request and do nothing;
/// `ENOSYS` in some containers.
pub fn shorten_current_slice(slice: Duration) -> io::Result<()> {
    let mut attributes = scheduling()?;
    let policy = attributes.sched_policy.cast_signed();
    if !matches!(policy, libc::SCHED_OTHER | libc::SCHED_BATCH) {
        return Ok(());
    }
    attributes.sched_runtime = slice.as_nanos() as u64;
    // SAFETY: the kernel reads as many bytes as `size` in the structure says, which is its length;
    // 0 is the calling thread.
    let status = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    let taken = scheduling()?.sched_runtime == attributes.sched_runtime;
    if taken { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// The calling thread's policy and its parameters. Of an ordinary thread the "runtime" is its
/// slice; a kernel that has no slices shows 0.
fn scheduling() -> io::Result<libc::sched_attr> {
    let mut attributes = libc::sched_attr {
        size: 0,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes at most `size` bytes, the structure's length; 0 is the calling
    // thread.
    let status = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if status == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

/// Lets other threads that wait for this core run first; returns at once if there are none.
#[inline]
pub fn yield_core() {
    rustix::thread::sched_yield();
}

/// Has the calling thread prefer itself to no other work: a thread that was put before others goes
/// back among them, and one that stands behind them stays there.
pub fn prefer_no_longer() {
    let usual = rustix::process::getpriority_process(None).unwrap_or(0);
    // To go back takes no privilege.
    let _ = rustix::process::setpriority_process(None, usual.max(0));
}

/// Has the calling thread, and those that it starts, go behind other work of the machine.
pub fn go_behind_others() {
    let usual = rustix::process::getpriority_process(None).unwrap_or(0);
    // Where this is refused, the work is done like any other.
    let _ = rustix::process::setpriority_process(None, usual.max(0) + STEP_BACK);
}

/// Nice value of [`behind_others`]: such work gets a third of what other work of the same process
/// gets, so that it is slow on a busy machine but never starves.
const STEP_BACK: i32 = 5;

/// Does `work` on a new thread that lets other threads of this process go first, and waits for it.
/// The calling thread keeps its place: stepping back can't be undone without a privilege.
pub fn behind_others<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let (mut work, mut result) = (Some(work), None);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || {
            go_behind_others();
            result = work.take().map(|work| work());
        });
        if let Ok(Err(panic)) = thread.map(std::thread::ScopedJoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
    });
    // Without a thread it is done here.
    result.or_else(|| work.map(|work| work())).expect("it is done either there or here")
}

/// Puts the calling process's session before the others. Where the kernel groups threads by session
/// (`autogroup` in sched(7)), nice values count inside a group only, and this is the nice value of
/// the group itself.
///
/// # Errors
/// `ENOENT` where it doesn't group them, and then nothing is missing; `EPERM` without CAP_SYS_NICE.
pub fn prefer_session(priority: u8) -> io::Result<()> {
    std::fs::write("/proc/self/autogroup", format!("{}", -i32::from(priority.min(20))))
}

/// Forbids core dumps and attaching by other programs of the same user, since memory holds keys.
///
/// # Errors
/// If the system call fails; the daemon should refuse to go on.
pub fn forbid_core_dumps() -> io::Result<()> {
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// Whether the memory of this process can't be dumped, nor read by others of its user.
pub fn is_undumpable() -> io::Result<bool> {
    Ok(rustix::process::dumpable_behavior()? == DumpableBehavior::NotDumpable)
}

/// Leaves the caller's session and terminal for a new session.
///
/// # Errors
/// `EPERM` for the leader of a process group.
pub fn leave_session() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}

/// Keeps all descriptors but the first three from programs that this process starts, whatever
/// opened them: programs must not get what a shell or a service manager has left open.
pub fn keep_descriptors_from_programs() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: only a flag of descriptors is set, which matters when another program is started;
    // none is closed.
    let status =
        unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if status == 0 {
        return Ok(());
    }
    // A kernel before 5.11.
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(number @ 3..) = number {
            // SAFETY: as above. A number that is not open any more is refused, which changes
            // nothing.
            let _ = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Ignores the signals that a terminal or a service manager sends to all processes of a daemon: its
/// first process notifies the others what to do.
pub fn ignore_signals() -> io::Result<()> {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: the process has one thread, and ignoring a signal runs no code of ours.
        let before = unsafe { libc::signal(signal, libc::SIG_IGN) };
        if before == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Lets the C library give large blocks back to the system as soon as they are freed, and serve all
/// threads from one heap. By itself it learns to keep large blocks, in each thread that ever freed
/// one: some megabytes of every password check would stay for good. And it gives each thread its
/// own heap, so that memory freed by one is of no use to another; no thread of the data path
/// allocates, so none waits for a heap.
pub fn keep_memory_small() {
    const LARGE: libc::c_int = 1 << 20;
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt only sets a parameter of the allocator, under the allocator's own lock.
    unsafe {
        // It fails only for values out of range, and then everything stays as it was.
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// A privilege that the daemon needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Devices, addresses, routes, rules, firewall, marks.
    NetAdmin,
    /// Ports below 1024.
    NetBindService,
}

impl Capability {
    /// The kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetBindService => "CAP_NET_BIND_SERVICE",
        }
    }

    fn bit(self) -> CapabilitySet {
        match self {
            Self::NetAdmin => CapabilitySet::NET_ADMIN,
            Self::NetBindService => CapabilitySet::NET_BIND_SERVICE,
        }
    }
}

/// A privilege is missing.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    #[error(
        "vpnd needs {0}: run it as root, or grant it (systemd: AmbientCapabilities={0}; \
         otherwise: setcap {0}+ep on the program)"
    )]
    Missing(&'static str),
    #[error("the process's capabilities can't be read: {0}")]
    Unknown(#[source] io::Error),
}

/// Checks that the calling thread has `capability`, before anything is changed.
///
/// # Errors
/// [`PrivilegeError`] with what to do.
pub fn require(capability: Capability) -> Result<(), PrivilegeError> {
    let sets = rustix::thread::capabilities(None).map_err(|errno| PrivilegeError::Unknown(errno.into()))?;
    if sets.effective.contains(capability.bit()) {
        Ok(())
    } else {
        Err(PrivilegeError::Missing(capability.name()))
    }
}

/// Time since boot, suspend included: timers of sessions and keys go on while a laptop sleeps.
///
/// By the C library, which knows the kernel's clock in user space (vDSO) from the start of the
/// program. `rustix` looks for it when the first time is read, and a confined process may not: each
/// batch of packets would cost a system call more.
pub fn boottime() -> Duration {
    clock(libc::CLOCK_BOOTTIME)
}

/// CPU time that this process has used, that of all its threads.
#[must_use]
pub fn cpu_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel or its code in user space writes the structure during the call.
    let status = unsafe { libc::clock_gettime(id, &raw mut now) };
    assert_eq!(status, 0, "Linux has these clocks since 2.6.39, and the structure is writable");
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn background_work_lowers_only_its_own_priority() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let usual = nice();
        assert_eq!(behind_others(nice), (usual.max(0) + STEP_BACK).min(19));
        assert_eq!(nice(), usual);
    }

    #[test]
    fn the_time_of_work_is_counted() {
        let (before, began) = (cpu_time(), std::time::Instant::now());
        while cpu_time() == before {
            assert!(began.elapsed() < Duration::from_secs(60), "this loop is work");
        }
    }

    #[test]
    fn a_thread_stays_on_its_core() {
        let cores = available_cores().unwrap();
        let core = *cores.last().unwrap();
        std::thread::spawn(move || {
            pin_current_thread(core).unwrap();
            assert_eq!(available_cores().unwrap(), [core]);
            assert_eq!(rustix::thread::sched_getcpu(), core);
        })
        .join()
        .unwrap();
        assert_eq!(available_cores().unwrap(), cores, "the other threads are free");
    }

    #[test]
    fn a_preferred_thread_runs_before_the_others() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        std::thread::spawn(move || {
            prefer_current_thread(7).unwrap();
            assert_eq!(nice(), -7);
        })
        .join()
        .unwrap();
        assert_eq!(nice(), before, "the other threads are as they were");
    }

    #[test]
    fn a_thread_with_a_short_slice_keeps_its_nice_value_and_changes_no_other() {
        let slices =
            || (scheduling().unwrap().sched_runtime, rustix::process::getpriority_process(None).unwrap());
        let before = slices();
        let (shortened, after) = std::thread::spawn(move || {
            rustix::process::setpriority_process(None, before.1 + 3).unwrap();
            (shorten_current_slice(Duration::from_micros(300)), slices())
        })
        .join()
        .unwrap();
        // Which kernel this is shows in another way than by the code under test: only one that has
        // slices reports one.
        let expected = if before.0 > 0 { 300_000 } else { 0 };
        assert_eq!(after, (expected, before.1 + 3));
        assert_eq!(shortened.is_ok(), before.0 > 0, "{shortened:?}");
        assert_eq!(slices(), before, "the other threads are as they were");
    }

    #[test]
    fn a_thread_of_another_class_stays_in_it() {
        let policy = std::thread::spawn(|| {
            let idle = libc::sched_param { sched_priority: 0 };
            // SAFETY: the kernel reads one structure during the call; 0 is the calling thread.
            assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const idle) }, 0);
            shorten_current_slice(Duration::from_micros(300)).unwrap();
            scheduling().unwrap().sched_policy.cast_signed()
        });
        assert_eq!(policy.join().unwrap(), libc::SCHED_IDLE);
    }

    #[test]
    fn a_core_that_does_not_exist_is_refused() {
        assert!(pin_current_thread(CpuSet::MAX_CPU - 1).is_err());
        assert!(pin_current_thread(usize::MAX).is_err());
    }

    #[test]
    fn a_missing_privilege_is_named() {
        std::thread::spawn(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::NET_ADMIN);
            rustix::thread::set_capabilities(None, sets).unwrap();
            let message = require(Capability::NetAdmin).unwrap_err().to_string();
            assert!(message.contains("CAP_NET_ADMIN"), "{message}");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn boot_time_never_runs_backwards() {
        let before = boottime();
        assert!(!before.is_zero());
        assert!(boottime() >= before);
    }
}
