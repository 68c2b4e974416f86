//! Which process, on which boot and in which network namespace, wrote a journal.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// The process that a journal belongs to. Whether it lives is decided by its lock on the file, not by these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its id, for people.
    pub pid: u32,
    pub boot: String,
    /// Its network namespace: device and inode number.
    pub namespace: (u64, u64),
    /// For whom its changes stay in force after its end, by a name that only this one has; `None` has them undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
            keeper: None,
        })
    }
}
