//! How a child process gets into a namespace and is sure to end with its parent.
//!
//! The parent-death signal survives `exec`, so even a `kill -9` of the coordinator ends the VPN
//! processes and the agents that it started; only the namespaces' names then remain for
//! `trafficspeed cleanup`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::{LabError, cpu_limit};

/// Asks the kernel to kill this process when its parent `parent` ends.
///
/// # Errors
/// [`LabError::System`]; [`LabError::Missing`] if the parent has ended already.
pub fn end_with_parent(parent: u32) -> Result<(), LabError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| LabError::System {
        action: "asking to end with the parent".into(),
        source: error.into(),
    })?;
    // The parent may have ended before the kernel was asked.
    let now = getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
    if now == Some(parent) { Ok(()) } else { Err(LabError::Missing("the parent process has ended".into())) }
}

/// Mounts the first of each pair of its arguments over the second, as many pairs as its first
/// argument says, then becomes the program that follows.
const MOUNT_AND_EXEC: &str = r#"n=$1; shift; while [ "$n" -gt 0 ]; do mount --bind -- "$1" "$2" || exit 1; shift 2; n=$((n - 1)); done; exec "$@""#;

/// Replaces this process by `words` inside the namespace; returns only if that fails.
///
/// `ip netns exec` is used rather than a plain change of namespace because it also shows the
/// namespace's own devices under /sys. `private` are pairs of a directory and where the program
/// sees it (see [`super::namespace::PrivateDirectory`]). Every step replaces the process, so its id
/// stays.
pub fn exec_inside(parent: u32, namespace: &str, private: &[PathBuf], words: &[OsString]) -> LabError {
    if let Err(error) = end_with_parent(parent) {
        return error;
    }
    if let Err(error) = cpu_limit::join(namespace) {
        return error;
    }
    // A separate session, as a service manager gives every service: a Ctrl-C at the terminal is
    // for the coordinator alone, which ends the others in order, and where the kernel shares the
    // CPU among sessions (`autogroup` in sched(7)) no VPN has to share the generators' part.
    if let Err(error) = rustix::process::setsid() {
        return LabError::System { action: "beginning a session".into(), source: error.into() };
    }
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]);
    if !private.is_empty() {
        // `ip netns exec` has given the process a mount namespace whose mounts no other process can
        // see, and they end with it, also after a crash. They come after it because they may hide
        // the place of the namespaces' names.
        command.args(["sh", "-c", MOUNT_AND_EXEC, "sh"]).arg((private.len() / 2).to_string()).args(private);
    }
    let source = command.args(words).exec();
    LabError::System { action: format!("starting a program in namespace {namespace}"), source }
}
