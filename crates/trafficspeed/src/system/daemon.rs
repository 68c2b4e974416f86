//! One process of a VPN inside a namespace, with its log in a file; the same for every adapter.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{SystemError, pause};
use crate::interrupt::Interrupt;
use crate::lab::namespace::{Namespace, PrivateDirectory};

/// The part of a log's end that an error shows.
const TAIL_BYTES: u64 = 4096;
const TAIL_LINES: usize = 12;
/// Time that a process may take to end in order.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
}

/// The processes of a system that has one at the gateway and one at each client.
#[derive(Debug, Default)]
pub struct Daemons {
    // Clients end first.
    pub clients: Vec<Daemon>,
    pub gateway: Option<Daemon>,
}

impl Daemons {
    /// Their process ids: the gateway's, and the clients'.
    pub fn pids(&self) -> (Vec<u32>, Vec<u32>) {
        (self.gateway.iter().map(Daemon::pid).collect(), self.clients.iter().map(Daemon::pid).collect())
    }

    /// Ends all of them, at the same time.
    pub fn end(&mut self) {
        for daemon in self.clients.iter_mut().chain(&mut self.gateway) {
            daemon.ask_to_end();
        }
        self.clients.clear();
        self.gateway = None;
    }
}

impl Daemon {
    /// Starts `program` with `arguments` inside `namespace`; both its outputs go to `log`.
    pub fn start<A: AsRef<OsStr>>(
        name: &str,
        namespace: &Namespace,
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        log: &Path,
    ) -> Result<Self, SystemError> {
        Self::start_with(&[], name, namespace, program, arguments, log)
    }

    /// Starts a program that sees its own directories in the place of shared ones.
    pub fn start_with<A: AsRef<OsStr>>(
        private: &[PrivateDirectory],
        name: &str,
        namespace: &Namespace,
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        log: &Path,
    ) -> Result<Self, SystemError> {
        let spawn = || {
            let output = OpenOptions::new().create(true).append(true).mode(0o600).open(log)?;
            namespace
                .command(program.as_os_str(), private)
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output)
                .spawn()
        };
        let child =
            spawn().map_err(|source| SystemError::Io { action: format!("starting {name}"), source })?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// Its process id. Entering the namespace replaces the program, not the process, so this is the
    /// VPN's own.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// An error that says what this process did not do, with the end of its log.
    pub fn failed(&self, failure: &str) -> SystemError {
        SystemError::Start { failure: format!("{} {failure}", self.name), log: tail(&self.log) }
    }

    /// Fails if the process has ended.
    pub fn must_run(&mut self) -> Result<(), SystemError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.failed(&format!("ended ({status})"))),
            Err(source) => Err(SystemError::Io { action: format!("waiting for {}", self.name), source }),
        }
    }

    /// Its output until now, as far as it is text.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Asks `ready` again and again while the process runs; `failure` says what it did not do in
    /// time.
    ///
    /// # Errors
    /// [`SystemError::Start`] if it ends or takes too long, [`SystemError::Interrupted`], and those
    /// of `ready`.
    pub fn wait_until<T>(
        &mut self,
        failure: &str,
        timeout: Duration,
        interrupt: &Interrupt,
        mut ready: impl FnMut(&Self) -> Result<Option<T>, SystemError>,
    ) -> Result<T, SystemError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(found) = ready(self)? {
                return Ok(found);
            }
            self.must_run()?;
            if Instant::now() > deadline {
                return Err(self.failed(failure));
            }
            pause(interrupt)?;
        }
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        // Failure means that it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until it has ended in order; for programs that do their work and end.
    ///
    /// # Errors
    /// [`SystemError::Start`] if it fails or takes too long, [`SystemError::Interrupted`].
    pub fn wait_for_success(&mut self, timeout: Duration, interrupt: &Interrupt) -> Result<(), SystemError> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(self.failed(&format!("failed ({status})"))),
                Ok(None) if Instant::now() > deadline => {
                    return Err(self.failed(&format!("took more than {} s", timeout.as_secs())));
                }
                Ok(None) => pause(interrupt)?,
                Err(source) => {
                    return Err(SystemError::Io { action: format!("waiting for {}", self.name), source });
                }
            }
        }
    }

    /// Asks it to end without waiting.
    pub fn ask_to_end(&mut self) {
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), Pid::from_raw(self.child.id().cast_signed())) {
            // It is our child and not reaped, so the id is still its own; failure means that it has
            // just ended.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.ask_to_end();
        let deadline = Instant::now() + STOP_TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                // Failure means that it has just ended.
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The last lines of a log.
pub fn tail(path: &Path) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    let text = String::from_utf8_lossy(&read().unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_lines_only() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text: String = (0..5000).map(|n| format!("line {n}\n")).collect();
        std::fs::write(file.path(), text).unwrap();
        let tail = tail(file.path());
        assert_eq!(tail.lines().count(), TAIL_LINES);
        assert!(tail.ends_with("line 4999"));
        assert_eq!(super::tail(Path::new("/nonexistent")), "");
    }
}
