//! Replacing one configuration file for a while, so that the old one comes back exactly, link or
//! mode included.
//!
//! The old one stays next to the new one under a hidden name, and comes back by a rename: with the
//! attributes that a text does not have, and without room on the disk. INVARIANT: it is used only
//! if it still is what was there before, and is gone once the change is undone.
//!
//! Readers never see half a file: the new one takes the place of the old one at once, and of none
//! that another program has written since the old one was read. Only where that is impossible,
//! because the file is mounted from elsewhere (containers, `ip netns exec`), is it written in
//! place.

use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown, symlink};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{AtFlags, CWD, RenameFlags, StatxAttributes, StatxFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{DnsChange, DnsError, DnsFound, DnsSettings, DnsSystem, DnsUndone, MAX_FILE_LEN};

/// Characters of a file's comment that are shown.
const MAX_COMMENT: usize = 100;

/// The bits of a mode that a configuration file may have.
const PLAIN_MODE: u32 = 0o777;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileState {
    Absent,
    Link {
        target: PathBuf,
    },
    File {
        /// Its bytes, in base64, since they may be of any encoding.
        content: String,
        mode: u32,
        uid: u32,
        gid: u32,
    },
}

/// A planned replacement of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    pub path: PathBuf,
    pub before: FileState,
    /// The text that replaces it.
    pub after: String,
    /// A text of ours that the new one takes the place of; what comes back is still `before`.
    pub replaces: Option<String>,
}

impl FileState {
    /// Reads what is at `path` now.
    pub fn read(path: &Path) -> Result<Self, DnsError> {
        let failed = |source| DnsError::Os { path: path.to_owned(), step: "read", source };
        let metadata = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Absent),
            metadata => metadata.map_err(failed)?,
        };
        if metadata.is_symlink() {
            return Ok(Self::Link { target: fs::read_link(path).map_err(failed)? });
        }
        if !metadata.is_file() || metadata.len() > MAX_FILE_LEN {
            return Err(DnsError::NotAFile(path.to_owned()));
        }
        let content = STANDARD.encode(fs::read(path).map_err(failed)?);
        let mode = metadata.permissions().mode() & 0o7777;
        Ok(Self::File { content, mode, uid: metadata.uid(), gid: metadata.gid() })
    }

    /// The bytes of a file.
    fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::File { content, .. } => STANDARD.decode(content).ok(),
            Self::Absent | Self::Link { .. } => None,
        }
    }
}

impl fmt::Display for FileState {
    /// For people who look for the program that wrote it: most begin with a comment that names it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes().unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        match (self, text.lines().find(|line| line.starts_with('#'))) {
            (Self::Absent, _) => f.write_str("no file"),
            (Self::Link { target }, _) => {
                write!(f, "a link to {}", crate::text::harmless(&target.display().to_string()))
            }
            (Self::File { .. }, None) => f.write_str("a file without a comment"),
            (Self::File { .. }, Some(comment)) => {
                let comment: String = crate::text::harmless(comment).chars().take(MAX_COMMENT).collect();
                write!(f, "a file that begins with {comment:?}")
            }
        }
    }
}

impl FileChange {
    /// Checks that it replaces the resolver's configuration by one of ours, and that what comes
    /// back is one, too.
    ///
    /// # Errors
    /// [`DnsError::NotOurs`].
    pub(super) fn check(&self, system: &DnsSystem) -> Result<(), DnsError> {
        let refused = |reason| Err(DnsError::NotOurs { path: self.path.clone(), reason });
        if self.path != system.resolv_conf && self.path != writable_place(&system.resolv_conf)? {
            return refused("it is not the resolver's configuration");
        }
        let texts = [Some(&self.after), self.replaces.as_ref()];
        if !texts.into_iter().flatten().all(|text| super::is_ours(text)) {
            return refused("vpnd does not write such a text");
        }
        match &self.before {
            FileState::Absent => Ok(()),
            FileState::File { mode, .. } if mode & !PLAIN_MODE != 0 => {
                refused("the old file has special bits")
            }
            FileState::File { .. } => match self.before.bytes() {
                Some(bytes) if bytes.len() as u64 <= MAX_FILE_LEN => Ok(()),
                _ => refused("the old text is too long"),
            },
            // Whatever manages name servers calls its file so, wherever it keeps it.
            FileState::Link { target } => match target.file_name().and_then(|name| name.to_str()) {
                Some(name) if name.ends_with("resolv.conf") => Ok(()),
                _ => refused("the old link does not lead to a resolver's configuration"),
            },
        }
    }

    /// Replaces the file. The new one has the permissions of the old one, or is readable by all.
    ///
    /// # Errors
    /// [`DnsError::Changed`] if it is no longer what it was when this was planned.
    pub fn apply(&self) -> Result<(), DnsError> {
        let (mode, owner) = match &self.before {
            FileState::File { mode, uid, gid, .. } => (*mode, Some((*uid, *gid))),
            FileState::Absent | FileState::Link { .. } => (0o644, None),
        };
        self.replace(self.after.as_bytes(), mode, owner)
    }

    /// Compares it with these settings, and with what is there now. A text of this tunnel is ours
    /// whatever else it says: some program has kept it and put it back.
    pub(super) fn find(&self, settings: &DnsSettings) -> Result<DnsFound, DnsError> {
        let now = FileState::read(&self.path)?;
        let text = now.bytes().and_then(|bytes| String::from_utf8(bytes).ok());
        let is_this_tunnels = |text: &&String| super::owner(text) == Some(settings.interface.as_str());
        let Some(text) = text.as_ref().filter(is_this_tunnels) else { return Ok(DnsFound::Foreign(now)) };
        let after = super::resolv_conf(settings, &self.after);
        if *text == after {
            return Ok(DnsFound::InForce);
        }
        let (path, before) = (self.path.clone(), self.before.clone());
        // One to which a program has added lines is found by its first line.
        let replaces = Some(text.clone()).filter(|text| super::is_ours(text));
        let change = Self { path, before, after, replaces };
        Ok(DnsFound::Outdated(DnsChange::File(change)))
    }

    /// Puts the old state back if the present one is ours.
    pub fn undo(&self) -> Result<DnsUndone, DnsError> {
        let undone = self.put_back()?;
        // Ours by now, or left by a killed process, or older than what another program has written.
        let _ = fs::remove_file(self.temporary());
        let _ = fs::remove_file(self.kept());
        Ok(undone)
    }

    fn put_back(&self) -> Result<DnsUndone, DnsError> {
        let now = FileState::read(&self.path)?;
        if now == self.before {
            return Ok(DnsUndone::WasRestored);
        }
        if !self.is_ours(&now) {
            return Ok(DnsUndone::NotOurs);
        }
        let failed = |source| DnsError::Os { path: self.path.clone(), step: "restored", source };
        // A process killed between two renames has left it in the other place.
        let kept = [self.kept(), self.temporary()].into_iter().find(|place| self.is_old(place));
        match kept.map(|kept| self.put(&kept)) {
            Some(Ok(true)) => {
                sync_directory(&self.path).map_err(failed)?;
                return Ok(DnsUndone::Restored);
            }
            Some(Ok(false)) => return Ok(DnsUndone::NotOurs),
            // Another file may have been mounted there.
            Some(Err(_)) | None => {}
        }
        match &self.before {
            FileState::Absent => fs::remove_file(&self.path).map_err(failed)?,
            FileState::Link { target } => {
                let _ = fs::remove_file(self.temporary());
                symlink(target, self.temporary()).map_err(failed)?;
                fs::rename(self.temporary(), &self.path).map_err(failed)?;
            }
            FileState::File { content, .. } => {
                let invalid = |error| failed(io::Error::new(io::ErrorKind::InvalidData, error));
                let bytes = STANDARD.decode(content).map_err(invalid)?;
                // Mode and owner as they are: ours has those of the old file, and a journal can't
                // change them.
                let FileState::File { mode, uid, gid, .. } = now else { return Ok(DnsUndone::NotOurs) };
                match self.replace(&bytes, mode & PLAIN_MODE, Some((uid, gid))) {
                    Err(DnsError::Changed(_)) => return Ok(DnsUndone::NotOurs),
                    Err(error) if lacks_room(&error) && self.is_still(&now) => {
                        write_in_place(&self.path, &bytes).map_err(failed)?;
                    }
                    outcome => outcome?,
                }
            }
        }
        Ok(DnsUndone::Restored)
    }

    /// Whether the file is what we wrote, with lines of others or without. A process killed before
    /// it wrote leaves the text of ours that was there; one killed while writing in place the
    /// beginning of the new text, or on the way back that of the old one or the old one and the end
    /// of ours.
    fn is_ours(&self, now: &FileState) -> bool {
        let Some(bytes) = now.bytes() else { return false };
        let (old, text) = (self.before.bytes(), String::from_utf8_lossy(&bytes));
        super::owner(&text).is_some_and(|tunnel| super::owner(&self.after) == Some(tunnel))
            || self.after.as_bytes().starts_with(&bytes)
            || self.replaces.as_ref().is_some_and(|replaced| replaced.as_bytes() == bytes)
            || old.is_some_and(|old| match bytes.strip_prefix(old.as_slice()) {
                Some(rest) => rest.is_empty() || self.after.as_bytes().get(old.len()..) == Some(rest),
                None => old.starts_with(&bytes),
            })
    }

    fn replace(&self, bytes: &[u8], mode: u32, owner: Option<(u32, u32)>) -> Result<(), DnsError> {
        let failed = |step| move |source| refused(&self.path, step, source);
        let temporary = self.temporary();
        let _ = fs::remove_file(&temporary);
        if let Err(source) = write_new(&temporary, bytes, mode, owner) {
            // Half of it would take room from what is done instead.
            let _ = fs::remove_file(&temporary);
            return Err(failed("written")(source));
        }
        let put = self.put(&temporary);
        // The file that has changed places with it.
        let is_old = matches!(put, Ok(true)) && self.is_old(&temporary);
        if !is_old || fs::rename(&temporary, self.kept()).is_err() {
            let _ = fs::remove_file(&temporary);
        }
        match put {
            Ok(true) => sync_directory(&self.path).map_err(failed("made durable")),
            Ok(false) => Err(DnsError::Changed(self.path.clone())),
            Err(Errno::BUSY) => write_in_place(&self.path, bytes).map_err(failed("written")),
            Err(errno) => Err(failed("replaced")(errno.into())),
        }
    }

    /// Has a file change places with the one that is expected at the path. Whether it was: another
    /// program may have written one while the disk was slow, which then stays.
    fn put(&self, new: &Path) -> Result<bool, Errno> {
        let rename = |flags| renameat_with(CWD, new, CWD, &self.path, flags);
        match rename(RenameFlags::EXCHANGE) {
            Ok(()) => {}
            Err(Errno::NOENT) => match rename(RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => return Ok(false),
                outcome => return outcome.map(|()| true),
            },
            // The file system can't.
            Err(Errno::INVAL) => return rename(RenameFlags::empty()).map(|()| true),
            Err(errno) => return Err(errno),
        }
        if FileState::read(new).is_ok_and(|old| old == self.before || self.is_ours(&old)) {
            return Ok(true);
        }
        rename(RenameFlags::EXCHANGE).map(|()| false)
    }

    /// Whether what is at `place` is the file or link that was replaced.
    fn is_old(&self, place: &Path) -> bool {
        self.before != FileState::Absent && FileState::read(place).is_ok_and(|found| found == self.before)
    }

    /// Whether no other program has changed the file since it was `read`.
    fn is_still(&self, read: &FileState) -> bool {
        FileState::read(&self.path).is_ok_and(|now| now == *read)
    }

    fn temporary(&self) -> PathBuf {
        self.hidden("")
    }

    /// The place of the old file or link meanwhile, which no other tunnel uses.
    fn kept(&self) -> PathBuf {
        self.hidden(&format!("-{}", super::owner(&self.after).unwrap_or_default()))
    }

    fn hidden(&self, suffix: &str) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.vpnd{suffix}"))
    }
}

/// The path to change for the resolver to see it: `path` itself, unless it is a link to a file that
/// is mounted from elsewhere. Replacing that link would reach beyond the mount, to the whole
/// machine.
pub(super) fn writable_place(path: &Path) -> Result<PathBuf, DnsError> {
    let failed = |source| DnsError::Os { path: path.to_owned(), step: "found", source };
    let attributes = match rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::TYPE) {
        Ok(status) => status.stx_attributes,
        Err(Errno::NOENT) => return Ok(path.to_owned()),
        Err(errno) => return Err(failed(errno.into())),
    };
    if attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return fs::canonicalize(path).map_err(failed);
    }
    Ok(path.to_owned())
}

/// The error of a step that changes a file.
fn refused(path: &Path, step: &'static str, source: io::Error) -> DnsError {
    let path = path.to_owned();
    match Errno::from_io_error(&source) {
        Some(Errno::PERM | Errno::ROFS) => DnsError::Immutable { path, source },
        _ => DnsError::Os { path, step, source },
    }
}

/// Whether a file could not be written for want of room on the disk.
fn lacks_room(error: &DnsError) -> bool {
    let DnsError::Os { source, .. } = error else { return false };
    matches!(Errno::from_io_error(source), Some(Errno::NOSPC | Errno::DQUOT))
}

fn write_new(path: &Path, bytes: &[u8], mode: u32, owner: Option<(u32, u32)>) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    if let Some((uid, gid)) = owner {
        fchown(&file, Some(uid), Some(gid))?;
    }
    // After the owner: a change of owner may clear bits. And not by `open`, which the umask would
    // weaken.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

/// Writes over what is there, and cuts it to the right length only then: on a full disk the room
/// that it has is the only one.
fn write_in_place(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_all()
}

fn sync_directory(of: &Path) -> io::Result<()> {
    match of.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}
