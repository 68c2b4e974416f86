//! One named network namespace.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{LabError, run_tool};

/// A directory that one process sees in the place of another, so that programs with fixed paths can
/// run side by side and leave nothing on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateDirectory {
    /// The directory, usually one of the lab's.
    pub own: PathBuf,
    /// Where the process sees it; it must exist, as a directory and no symbolic link.
    pub seen_as: PathBuf,
}

/// A namespace that `ip netns` knows by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Names a namespace without making it.
    pub fn unmade(name: &str) -> Self {
        Self { name: name.to_owned() }
    }

    /// Makes it and brings up its loopback.
    pub fn make(&self) -> Result<(), LabError> {
        run_tool(Command::new("ip").args(["netns", "add", &self.name]))?;
        self.ip(&["link", "set", "lo", "up"])
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` on it.
    pub fn ip(&self, words: &[&str]) -> Result<(), LabError> {
        run_tool(Command::new("ip").args(["-n", &self.name]).args(words)).map(drop)
    }

    /// Gives a device addresses, with the lengths of their networks or for itself alone. An IPv6
    /// address that is still being probed for would be of no use yet, so none is.
    pub fn add_addresses(&self, device: &str, addresses: &[impl ToString]) -> Result<(), LabError> {
        for address in addresses.iter().map(ToString::to_string) {
            let nodad: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
            self.ip(&[&["addr", "add", &address, "dev", device], nodad].concat())?;
        }
        Ok(())
    }

    /// A command that will run in it as its own process group and end when this program ends.
    ///
    /// Where it looks for a directory of `private` it sees another one instead.
    pub fn command(&self, program: &OsStr, private: &[PrivateDirectory]) -> Command {
        let own = std::env::current_exe().expect("the kernel names a running program");
        let mut command = Command::new(own);
        command.args(["inside", "--parent", &std::process::id().to_string()]);
        for directory in private {
            command.arg("--private").arg(&directory.own).arg(&directory.seen_as);
        }
        command.args([&self.name, "--"]).arg(program);
        command
    }

    /// A command for an agent in it.
    pub fn agent(&self) -> Command {
        let own = std::env::current_exe().expect("the kernel names a running program");
        let mut command = Command::new(own);
        command
            .args(["agent", "--parent", &std::process::id().to_string(), "--netns", &self.name])
            .process_group(0);
        command
    }

    /// Moves the calling thread into it.
    pub fn enter(&self) -> Result<(), LabError> {
        let enter = || {
            let file = File::open(self.path())?;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(())
        };
        enter().map_err(|source| LabError::System {
            action: format!("entering namespace {}", self.name),
            source,
        })
    }

    /// Runs `work` on a thread inside it.
    ///
    /// # Errors
    /// [`LabError::System`] when it cannot be entered; otherwise what `work` returns.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> Result<T, LabError> + Send) -> Result<T, LabError> {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter()?;
                work()
            });
            inside.join().expect("the work does not panic")
        })
    }

    /// Sets a sysctl of it, given as its path below /proc/sys.
    pub fn sysctl(&self, path: &str, value: &str) -> Result<(), LabError> {
        let action = format!("setting {path} to {value} in namespace {}", self.name);
        self.within(|| {
            fs::write(PathBuf::from("/proc/sys").join(path), value)
                .map_err(|source| LabError::System { action, source })
        })
    }

    /// The identity that a namespace of the same name made later does not have; `None` if it is not
    /// there.
    pub fn identity(&self) -> Option<u64> {
        fs::metadata(self.path()).ok().map(|meta| meta.ino())
    }

    pub fn processes(&self) -> Vec<u32> {
        let Some(own) = self.identity() else { return Vec::new() };
        let inside =
            |pid: &u32| fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|meta| meta.ino() == own);
        crate::observe::process_ids().into_iter().filter(inside).collect()
    }

    /// Removes its name; the kernel removes the rest with its last process.
    pub fn remove(&self) -> Result<(), LabError> {
        run_tool(Command::new("ip").args(["netns", "delete", &self.name])).map(drop)
    }

    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }
}
