//! The files of one vpnd in a lab: its directory with configuration, passwords and socket.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::status::Status;
use crate::lab::run_tool;
use crate::system::SystemError;

/// The files of one run.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) directory: PathBuf,
}

impl Files {
    pub(super) fn make(directory: PathBuf) -> Result<Self, SystemError> {
        fs::create_dir_all(&directory).map_err(|source| SystemError::Io {
            action: format!("making {}", directory.display()),
            source,
        })?;
        Ok(Self { directory })
    }

    pub(super) fn config(&self) -> PathBuf {
        self.directory.join("server.toml")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.join("admin.sock")
    }

    /// A file with a new password, and the password.
    pub(super) fn make_password(&self, user: &str) -> Result<(PathBuf, String), SystemError> {
        let path = self.directory.join(format!("{user}.password"));
        let secret: [u64; 2] = rand::random();
        let password = format!("{:016x}{:016x}", secret[0], secret[1]);
        write_private(&path, &format!("{password}\n"))?;
        Ok((path, password))
    }

    /// The gateway's status; `None` until it answers.
    pub(super) fn status(&self, program: &Path) -> Option<Status> {
        let mut command = Command::new(program);
        command.args(["status", "--socket"]).arg(self.socket()).arg("--json");
        serde_json::from_str(&run_tool(&mut command).ok()?).ok()
    }
}

fn write_private(path: &Path, text: &str) -> Result<(), SystemError> {
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())
    };
    write().map_err(|source| SystemError::Io { action: format!("writing {}", path.display()), source })
}
