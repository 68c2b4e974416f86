//! One network namespace: made, entered, removed.
//!
//! Invariants: its name holds the id of the process that made it, so whatever a killed test has
//! left behind is found and removed by the next run ([`remove_leftovers`]); dropping it ends the
//! processes in it and removes it. This module must not know what a namespace is for.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Begins the name of each namespace of these tests, followed by `PID-NUMBER-ROLE`.
const PREFIX: &str = "vpndtest-";

/// A prefix that no other laboratory of this machine has.
pub(crate) fn unique_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{PREFIX}{}-{}-", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A network namespace with its loopback up.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes it.
    pub(crate) fn new(name: String) -> Self {
        ip(&["netns", "add", &name]);
        let namespace = Self { name };
        namespace.ip_batch("link set lo up");
        // No other host has the same address here; without this, IPv6 begins to work after a second
        // only.
        namespace.sysctl("net/ipv6/conf/default/accept_dad", "0");
        namespace.sysctl("net/ipv6/conf/default/dad_transmits", "0");
        namespace
    }

    /// The name that `ip netns` knows it by.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` in a thread that lives in the namespace: sockets made there belong to it.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.handle().enter();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A handle by which a thread enters it at any time.
    pub(crate) fn handle(&self) -> NamespaceHandle {
        NamespaceHandle(File::open(format!("/run/netns/{}", self.name)).expect("the namespace exists"))
    }

    /// Runs lines of `ip -batch` in it; all must succeed.
    pub(crate) fn ip_batch(&self, lines: &str) {
        feed(Command::new("ip").args(["-n", &self.name, "-batch", "-"]), lines);
    }

    /// Loads an nftables script in it.
    pub(crate) fn nft(&self, script: &str) {
        feed(Command::new("ip").args(["netns", "exec", &self.name, "nft", "-f", "-"]), script);
    }

    /// Output of `ip ARGUMENTS` in it.
    pub(crate) fn ip(&self, arguments: &[&str]) -> String {
        let mut all = vec!["-n", &self.name];
        all.extend(arguments);
        ip(&all)
    }

    /// Sets a kernel parameter in it, as in `net/ipv4/ip_forward`.
    pub(crate) fn sysctl(&self, key: &str, value: &str) {
        self.within(|| fs::write(format!("/proc/sys/{key}"), value))
            .unwrap_or_else(|error| panic!("{key}: {error}"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// The way into a namespace.
pub(crate) struct NamespaceHandle(File);

impl NamespaceHandle {
    /// Moves the calling thread into the namespace, for good.
    pub(crate) fn enter(&self) {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("root may enter it");
    }
}

/// Removes the namespaces of test processes that are no more, once for each process.
pub(crate) fn remove_leftovers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let listed = ip(&["netns", "list"]);
        for name in listed.lines().filter_map(|line| line.split_whitespace().next()) {
            let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
            if owner.is_some_and(|pid| !PathBuf::from("/proc").join(pid).exists()) {
                remove(name);
            }
        }
    });
}

/// Ends what runs in a namespace of ours and deletes it. Must not panic: it runs while tests fail.
fn remove(name: &str) {
    let pids = Command::new("ip").args(["netns", "pids", name]).output();
    let pids = pids.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for pid in pids.lines().filter_map(|line| line.trim().parse().ok()).filter_map(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
    let _ = Command::new("ip").args(["netns", "delete", name]).stderr(Stdio::null()).status();
}

fn ip(arguments: &[&str]) -> String {
    let output = Command::new("ip").args(arguments).output().expect("iproute2 is installed");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {}: {complaint}", arguments.join(" "));
    String::from_utf8(output.stdout).expect("ip prints text")
}

fn feed(command: &mut Command, input: &str) {
    let mut child =
        command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program is installed");
    let mut stdin = child.stdin.take().expect("it was piped");
    stdin.write_all(input.as_bytes()).expect("the program reads its input");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} refused:\n{input}\n{complaint}");
}
