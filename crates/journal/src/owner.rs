//! Which process, on which boot and in which network namespace, wrote a journal.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use vpnd_sys::namespace;

/// The process that a journal belongs to. Whether it lives is decided by its lock on the file, not
/// by these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its id, for people.
    pub pid: u32,
    pub boot: String,
    /// Its network namespace: device and inode number.
    pub namespace: (u64, u64),
    /// A number that no other one of this boot has had; `None` where the kernel did not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<u64>,
    /// For whom its changes stay in force after its end, by a name that only this one has; `None`
    /// has them undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keeper: Option<String>,
}

impl Owner {
    /// The calling process, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When `/proc` can't be read.
    pub fn this_process() -> io::Result<Self> {
        let namespace = fs::metadata("/proc/thread-self/ns/net")?;
        Ok(Self {
            pid: std::process::id(),
            boot: fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned(),
            namespace: (namespace.dev(), namespace.ino()),
            cookie: namespace::cookie().ok(),
            keeper: None,
        })
    }

    /// Whether the network that this one has changed is there no more, so that `now` has nothing of
    /// it: the machine was restarted, or the namespace of `now` has got the number of one that is
    /// gone.
    pub(super) fn has_lost_its_network(&self, now: &Self) -> bool {
        self.boot != now.boot
            || (self.namespace == now.namespace && self.cookies(now).is_some_and(|same| !same))
    }

    /// Whether both are in the same network namespace.
    pub(super) fn shares_network(&self, other: &Self) -> bool {
        self.boot == other.boot && self.cookies(other).unwrap_or(self.namespace == other.namespace)
    }

    /// Whether both have the same cookie, if both are known.
    fn cookies(&self, other: &Self) -> Option<bool> {
        Some(self.cookie? == other.cookie?)
    }
}
