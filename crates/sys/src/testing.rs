//! Network namespaces for tests that change the machine: each test gets its own and can't touch the
//! host.
#![allow(clippy::unwrap_used, clippy::new_without_default, reason = "a panic is how a test fails")]

use std::io::Write;
use std::process::Command;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Runs `test` in a thread that has its own network and mount namespace, with loopback up. The
/// namespaces, and all devices and mounts in them, are gone when the thread and its children have
/// ended.
///
/// Without the privilege, prints a warning and returns; fails when the variable `CI` is set.
pub(crate) fn in_namespace<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let thread = std::thread::spawn(move || {
        // SAFETY: only namespaces of this new thread are unshared. The descriptor table stays
        // shared, so no code here or elsewhere can see a descriptor change its meaning.
        if let Err(errno) = unsafe { unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWNS) } {
            let message = format!("SKIPPED: this test needs root for network namespaces: {errno}");
            assert!(std::env::var_os("CI").is_none(), "{message}");
            // Not by `eprintln`, which the harness hides for a test that passes.
            let _ = writeln!(std::io::stderr(), "{message}");
            return None;
        }
        run("mount", &["--make-rprivate", "/"]);
        run("ip", &["link", "set", "lo", "up"]);
        Some(test())
    });
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Like [`in_namespace`] for a test that awaits: runs it on a runtime of the namespace's thread.
pub fn in_namespace_async<F: Future>(test: impl FnOnce() -> F + Send + 'static)
where
    F::Output: Send + 'static,
{
    in_namespace(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test())
    });
}

/// Runs a program that must succeed and returns what it printed.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}
