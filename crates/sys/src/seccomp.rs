//! Which system calls a process may use: a list of what it needs, found by tracing it under all
//! tests.
//!
//! Calls that are not on the list return `ENOSYS`, as in an older kernel, so that a newer C library
//! falls back to what it did before. A call that no part of the daemon ever makes ends the process:
//! it is an attack. The kernel logs that.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Sets of system calls, by the work of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemCalls {
    /// It works on descriptors that it was given.
    Descriptors,
    /// Work on descriptors, without new sockets: it sends only where a socket is connected to.
    NoSockets,
    /// Work on descriptors, with several writes carried out by one call.
    ManyWrites,
    /// Work on descriptors, and on files.
    Files,
    /// Work on descriptors, and look-ups of names with what these read.
    Resolver,
    /// `Resolver` with TCP connections and UDP sockets, but without modules for names and
    /// without a port of its choice.
    Connections,
}

impl SystemCalls {
    /// Whether it may make connections: to name servers, and to nothing else that its confinement
    /// does not name.
    #[must_use]
    pub fn may_ask_name_servers(self) -> bool {
        matches!(self, Self::Resolver | Self::Connections)
    }
}

/// There is no filter.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    #[error("no filter for this kind of machine: {0}")]
    Build(#[from] BackendError),
    #[error("the kernel takes no filter: {0}")]
    Apply(#[from] seccompiler::Error),
}

/// Filters the system calls of this thread and those that it starts.
///
/// # Errors
/// [`SeccompError`]; then only a part of the filters may be in force.
pub fn apply(allowed: SystemCalls) -> Result<(), SeccompError> {
    let architecture = std::env::consts::ARCH.try_into()?;
    let build = |rules, mismatch, matching| -> Result<BpfProgram, BackendError> {
        SeccompFilter::new(rules, mismatch, matching, architecture)?.try_into()
    };
    // The strictest answer of all filters counts.
    let attacks = ATTACKS.iter().map(|number| (*number, Vec::new())).collect();
    let attacks = build(attacks, SeccompAction::Allow, SeccompAction::KillProcess)?;
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    let list = build(rules(allowed)?, unknown, SeccompAction::Allow)?;
    seccompiler::apply_filter(&attacks)?;
    seccompiler::apply_filter(&list)?;
    Ok(())
}

/// Whether a filter is in force for this thread.
#[must_use]
pub fn is_in_force() -> bool {
    // SAFETY: PR_GET_SECCOMP takes no arguments and touches no memory of ours.
    let mode = unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) };
    mode == libc::SECCOMP_MODE_FILTER as libc::c_int
}

fn rules(allowed: SystemCalls) -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALWAYS.iter().map(|number| (*number, Vec::new())).collect();
    let more: &[c_long] = match allowed {
        SystemCalls::Descriptors | SystemCalls::NoSockets => &[],
        SystemCalls::ManyWrites => MANY_WRITES,
        SystemCalls::Files => FILES,
        SystemCalls::Resolver | SystemCalls::Connections => RESOLVER,
    };
    rules.extend(more.iter().map(|number| (*number, Vec::new())));
    rules.extend(limited()?);
    if allowed == SystemCalls::Files {
        // It writes files as root's user, and none of them may become a program that runs as root
        // for any user (set-user-id).
        for (number, mode) in FILE_MODES {
            rules.insert(*number, vec![masked(*mode, SPECIAL_BITS, 0)?]);
        }
    }
    if allowed == SystemCalls::NoSockets {
        // A datagram socket sends to whatever address a call names, even where it is connected.
        for number in [libc::SYS_sendmsg, libc::SYS_sendmmsg] {
            rules.remove(&number);
        }
        let to_peer = SeccompRule::new(vec![
            masked_condition(3, libc::MSG_FASTOPEN as u64, 0)?,
            SeccompCondition::new(4, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?,
        ])?;
        rules.insert(libc::SYS_sendto, vec![to_peer]);
    }
    if allowed == SystemCalls::Resolver {
        // The C library loads the modules of its name services when they are first needed.
        rules.insert(libc::SYS_mmap, Vec::new());
        rules.insert(libc::SYS_mprotect, Vec::new());
        // It asks the kernel for the machine's addresses first, by a socket that it binds.
        rules.insert(libc::SYS_bind, Vec::new());
        let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
        let families = families.map(|family| equal(0, family as u64));
        rules.insert(libc::SYS_socket, families.into_iter().collect::<Result<_, _>>()?);
    } else {
        // QUIC's library tries out offloads on a UDP socket that it makes. It can be neither bound
        // nor connected, and can do no more than the sockets that were given.
        match allowed {
            SystemCalls::Descriptors | SystemCalls::ManyWrites => {
                drop(rules.insert(libc::SYS_socket, sockets(&[UDP])?));
            }
            SystemCalls::Connections => drop(rules.insert(libc::SYS_socket, sockets(&[UDP, TCP])?)),
            SystemCalls::NoSockets | SystemCalls::Files | SystemCalls::Resolver => {}
        }
        // Memory that was written can't be run.
        rules.insert(libc::SYS_mmap, vec![masked(2, libc::PROT_EXEC as u64, 0)?]);
        rules.insert(libc::SYS_mprotect, vec![masked(2, libc::PROT_EXEC as u64, 0)?]);
    }
    Ok(rules)
}

/// Calls that every process needs, with the arguments that it needs and no others.
fn limited() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let any_of = |argument, values: &[u32]| {
        values.iter().map(|value| equal(argument, u64::from(*value))).collect::<Result<Vec<_>, _>>()
    };
    // A thread, but no process.
    let thread = masked(0, libc::CLONE_THREAD as u64, libc::CLONE_THREAD as u64)?;
    // To a datagram socket of this kind any other on the machine could be reached by its path.
    let stream = SeccompRule::new(vec![
        equal_condition(0, libc::AF_UNIX as u64)?,
        masked_condition(1, SOCKET_TYPE, libc::SOCK_STREAM as u64)?,
    ])?;
    // The calling thread, or a thread of this process: other processes of the same user are out of
    // reach.
    let this_thread =
        SeccompRule::new(vec![equal_condition(0, libc::PRIO_PROCESS.into())?, equal_condition(1, 0)?])?;
    // By this flag a TCP socket connects as it sends, which neither the list of calls nor Landlock
    // sees: a listening one that is shut down first is enough.
    let sent = |flags| masked(flags, libc::MSG_FASTOPEN as u64, 0);
    Ok(BTreeMap::from([
        (libc::SYS_clone, vec![thread]),
        (libc::SYS_ioctl, any_of(1, IOCTLS)?),
        (libc::SYS_fcntl, any_of(1, FCNTLS)?),
        (libc::SYS_prctl, any_of(0, PRCTLS)?),
        (libc::SYS_sched_getattr, vec![equal(0, 0)?]),
        (libc::SYS_sched_setaffinity, vec![equal(0, 0)?]),
        (libc::SYS_sched_setattr, vec![equal(0, 0)?]),
        (libc::SYS_sendmmsg, vec![sent(3)?]),
        (libc::SYS_sendmsg, vec![sent(2)?]),
        (libc::SYS_sendto, vec![sent(3)?]),
        (libc::SYS_setpriority, vec![this_thread]),
        (libc::SYS_socketpair, vec![stream]),
        (libc::SYS_tgkill, vec![equal(0, std::process::id().into())?]),
    ]))
}

/// The argument's bits of `mask` are those of `value`.
fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![masked_condition(argument, mask, value)?])
}

fn equal(argument: u8, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![equal_condition(argument, value)?])
}

fn masked_condition(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value)
}

fn equal_condition(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// Permitted requests of `ioctl`: whether a descriptor waits, how much there is to read, that
/// programs don't get it, whether it is a terminal. A request that is not here could type into the
/// terminal from which the daemon was started (`TIOCSTI`, `TIOCLINUX`) or change the tunnel's
/// device.
const IOCTLS: &[u32] =
    &[libc::FIONBIO as u32, libc::FIONREAD as u32, libc::FIOCLEX as u32, libc::TCGETS as u32];

/// Permitted operations of `fcntl`: copies, flags and locks. Having signals sent (`F_SETOWN`) is
/// not among them.
const FCNTLS: &[u32] = &[
    libc::F_DUPFD as u32,
    libc::F_DUPFD_CLOEXEC as u32,
    libc::F_GETFD as u32,
    libc::F_SETFD as u32,
    libc::F_GETFL as u32,
    libc::F_SETFL as u32,
    libc::F_GETLK as u32,
    libc::F_SETLK as u32,
    libc::F_SETLKW as u32,
    libc::F_OFD_GETLK as u32,
    libc::F_OFD_SETLK as u32,
    libc::F_OFD_SETLKW as u32,
];

/// Permitted operations of `prctl`: naming threads and memory, and reading protections. None can be
/// changed.
const PRCTLS: &[u32] = &[
    libc::PR_GET_DUMPABLE as u32,
    libc::PR_GET_NAME as u32,
    libc::PR_GET_NO_NEW_PRIVS as u32,
    libc::PR_GET_SECCOMP as u32,
    libc::PR_SET_NAME as u32,
    libc::PR_SET_VMA as u32,
];

/// The bits of a socket's type that are the type.
const SOCKET_TYPE: u64 = 0xF;

/// Type and protocol of a kind of sockets; the protocol may also be given as 0.
const UDP: (libc::c_int, libc::c_int) = (libc::SOCK_DGRAM, libc::IPPROTO_UDP);
const TCP: (libc::c_int, libc::c_int) = (libc::SOCK_STREAM, libc::IPPROTO_TCP);

/// Sockets of these kinds, for IPv4 and IPv6.
fn sockets(kinds: &[(libc::c_int, libc::c_int)]) -> Result<Vec<SeccompRule>, BackendError> {
    let mut rules = Vec::new();
    for (kind, protocol) in kinds {
        for family in [libc::AF_INET, libc::AF_INET6] {
            for protocol in [0, *protocol] {
                rules.push(SeccompRule::new(vec![
                    equal_condition(0, family as u64)?,
                    masked_condition(1, SOCKET_TYPE, *kind as u64)?,
                    equal_condition(2, protocol as u64)?,
                ])?);
            }
        }
    }
    Ok(rules)
}

/// Memory, threads, time, randomness, waiting, and work on open descriptors. `clone3`, whose flags
/// a filter can't see, is left out: the C library takes `clone` instead.
const ALWAYS: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_brk,
    libc::SYS_capget,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_geteuid,
    libc::SYS_getpeername,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpriority,
    libc::SYS_getrandom,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_write,
    libc::SYS_writev,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// Several writes to a TUN device by one call. With a descriptor these can do nothing that the
/// calls above can't, but flush it to a disk.
const MANY_WRITES: &[c_long] = &[libc::SYS_io_getevents, libc::SYS_io_setup, libc::SYS_io_submit];

/// `renameat`, which the `libc` crate does not name on every machine that has it.
#[cfg(target_arch = "x86_64")]
const RENAMEAT: c_long = libc::SYS_renameat;
#[cfg(not(target_arch = "x86_64"))]
const RENAMEAT: c_long = 38;

/// File operations of the store; Landlock limits the paths.
const FILES: &[c_long] = &[
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchown,
    libc::SYS_fdatasync,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readlinkat,
    RENAMEAT,
    libc::SYS_renameat2,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
];

/// Set-user-id, set-group-id and sticky bit of a file's mode.
const SPECIAL_BITS: u64 = 0o7000;

/// The calls of [`FILES`] that set a file's mode, and which argument it is.
const FILE_MODES: &[(c_long, u8)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_openat, 3),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 2),
];

/// Calls of a name lookup: the C library reads its configuration and opens sockets.
const RESOLVER: &[c_long] = &[
    libc::SYS_connect,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fstatfs,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_readlinkat,
    libc::SYS_statx,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
];

/// Programs, other processes, the kernel itself, the machine: nothing that runs in a sandbox here
/// ever uses these.
const ATTACKS: &[c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_delete_module,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_finit_module,
    libc::SYS_fsopen,
    libc::SYS_init_module,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];
