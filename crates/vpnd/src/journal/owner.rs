//! Which process, on which boot and in which network namespace, wrote a journal.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A process that can't be mistaken for another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its id.
    pub pid: u32,
    /// When it started, in clock ticks since boot: tells it from a later process with the same id.
    pub started: u64,
    /// The machine's boot.
    pub boot: String,
    /// Its network namespace: device and inode number.
    pub namespace: (u64, u64),
}

impl Owner {
    /// The calling process, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When `/proc` can't be read.
    pub fn this_process() -> io::Result<Self> {
        let pid = std::process::id();
        let namespace = fs::metadata("/proc/thread-self/ns/net")?;
        Ok(Self {
            pid,
            started: start_time(pid)?,
            boot: fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned(),
            namespace: (namespace.dev(), namespace.ino()),
        })
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        let this_boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let same_boot = this_boot.is_ok_and(|boot| boot.trim_end() == self.boot);
        same_boot && runs(self.pid, self.started)
    }

    /// The name of its journal, without ending.
    pub(super) fn file_stem(&self) -> String {
        format!("{}-{}", self.pid, self.started)
    }

    /// Whether the process that a journal's file name tells still runs.
    pub(super) fn stem_is_alive(path: &Path) -> bool {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let parts = stem.split_once('-').map(|(pid, started)| (pid.parse(), started.parse()));
        matches!(parts, Some((Ok(pid), Ok(started))) if runs(pid, started))
    }
}

/// Whether process `pid` runs and started at that time. A dead one that nobody has waited for does not run.
fn runs(pid: u32, started: u64) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let dead = matches!(fields(&status).next(), None | Some("Z" | "X"));
    !dead && parse_start_time(&status) == Some(started)
}

fn start_time(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_start_time(&status).ok_or_else(|| io::Error::other("/proc/self/stat has no start time"))
}

/// Field 22 of `/proc/PID/stat`, see proc(5).
fn parse_start_time(status: &str) -> Option<u64> {
    fields(status).nth(19)?.parse().ok()
}

/// The fields from the third on, the state. The second is the program's name, which may hold anything, spaces
/// and parentheses included.
fn fields(status: &str) -> impl Iterator<Item = &str> {
    let after_name = status.rfind(')').map_or("", |end| &status[end + 1..]);
    after_name.split_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive() {
        let this = Owner::this_process().unwrap();
        assert!(this.is_alive());
        assert!(Owner::stem_is_alive(Path::new(&format!("/x/{}.journal", this.file_stem()))));
    }

    #[test]
    fn a_process_of_the_same_id_but_another_time_is_not_it() {
        let this = Owner::this_process().unwrap();
        assert!(!Owner { started: this.started - 1, ..this.clone() }.is_alive());
        assert!(!Owner { boot: "another".to_owned(), ..this.clone() }.is_alive());
        assert!(!Owner::stem_is_alive(Path::new(&format!("{}-1.journal", this.pid))));
        assert!(!Owner::stem_is_alive(Path::new("nonsense.journal")));
    }

    #[test]
    fn a_dead_process_is_dead_before_its_parent_knows() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let started = start_time(child.id()).unwrap();
        assert!(runs(child.id(), started));
        child.kill().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while runs(child.id(), started) {
            assert!(std::time::Instant::now() < deadline, "a zombie counts as running");
        }
        child.wait().unwrap();
        assert!(!runs(child.id(), started));
    }

    #[test]
    fn a_program_may_have_any_name() {
        let status = "7 (a) b (c d) S 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1";
        assert_eq!(parse_start_time(status), Some(4242));
        assert_eq!(parse_start_time("7 (cut"), None);
    }
}
