//! Records what a second process executes, instruction by instruction (ptrace), for one secret
//! after another, and whether that is the same. Shared by our own ciphers' tests.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, gettid};

/// An instruction for each that the longest work has is less.
const MOST_STEPS: usize = 100_000;

/// Said by the second process: the number of its thread follows.
const THREAD: &str = "thread ";

/// The registers before an instruction; the first is its address.
type Step = [u64; 17];

/// The second process is traced from here on.
pub(crate) fn begin() {
    ptrace::traceme().unwrap();
    println!("\n{THREAD}{}", gettid());
}

/// Before and after the traced work.
pub(crate) fn stop() {
    raise(Signal::SIGSTOP).unwrap();
}

/// The thread's next stop, or its end.
fn next_stop(thread: Pid) -> WaitStatus {
    waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap()
}

/// The steps from one stop to the next.
fn steps(thread: Pid) -> Vec<Step> {
    let mut steps = Vec::new();
    while steps.len() < MOST_STEPS {
        let r = ptrace::getregs(thread).unwrap();
        steps.push([
            r.rip, r.rsp, r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.r8, r.r9, r.r10, r.r11, r.r12,
            r.r13, r.r14, r.r15,
        ]);
        ptrace::step(thread, None).unwrap();
        match next_stop(thread) {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            WaitStatus::Stopped(_, Signal::SIGSTOP) => return steps,
            status => panic!("{status:?}"),
        }
    }
    panic!("more than {MOST_STEPS} instructions");
}

/// How the traces of the secrets differ from the first.
#[derive(Debug, PartialEq)]
pub(crate) struct Differ {
    pub(crate) instructions: bool,
    pub(crate) registers: bool,
}

/// Runs the test `name` again in a second process, with `work` in the environment's `variable`: it
/// has to [`begin`], and to work between two stops ([`stop`]), once to warm up and then once for
/// each of as many `secrets`.
pub(crate) fn traced(name: &str, variable: &str, work: &str, secrets: u8) -> Differ {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--test-threads=1", "--nocapture"])
        .env(variable, work)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let thread = lines.find_map(|line| line.strip_prefix(THREAD)?.parse().ok()).map(Pid::from_raw).unwrap();
    let mut traces = Vec::new();
    while let WaitStatus::Stopped(_, Signal::SIGSTOP) = next_stop(thread) {
        traces.push(steps(thread));
        ptrace::cont(thread, None).unwrap();
    }
    lines.for_each(drop);
    drop(child.wait());
    assert_eq!(traces.len(), 1 + usize::from(secrets));
    // The first call may still have symbols to look up.
    let (first, others) = traces[1..].split_first().unwrap();
    let instructions = |steps: &[Step]| steps.iter().map(|step| step[0]).collect::<Vec<_>>();
    Differ {
        instructions: others.iter().any(|other| instructions(other) != instructions(first)),
        registers: others.iter().any(|other| differ(first, other)),
    }
}

/// Whether a register differs. Those that still have what the caller left in them don't count: no
/// code reads them but to give them back.
fn differ(one: &[Step], other: &[Step]) -> bool {
    one.iter()
        .zip(other)
        .any(|(a, b)| (0..a.len()).any(|r| a[r] != b[r] && (a[r], b[r]) != (one[0][r], other[0][r])))
}
