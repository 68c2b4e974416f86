//! Reads a password from a file, a file descriptor, or a person at a terminal; never from the
//! command line, which every user of the machine can read.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write as _};
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use vpnd_sys::terminal;

/// The longest password, in bytes (PROTOCOL §3.2).
pub(crate) const MAX_PASSWORD: usize = 1_024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The first line of a file that only its owner can read.
    File(PathBuf),
    /// The first line of an open descriptor.
    Descriptor(RawFd),
}

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file or descriptor can't be read.
    #[error("can't read the password from {from}: {source}")]
    Read {
        /// Which file or descriptor.
        from: String,
        source: io::Error,
    },
    #[error("{} can be read by others than its owner (mode {mode:03o}): run `chmod 600` on it", path.display())]
    Exposed { path: PathBuf, mode: u32 },
    #[error("{0} has no password in its first line")]
    Empty(String),
    #[error("the password from {0} is longer than {MAX_PASSWORD} bytes")]
    TooLong(String),
    #[error("the password from {0} is not UTF-8 text")]
    NotText(String),
    #[error("there is no terminal to ask for a password: use --credentials FILE or --password-fd N")]
    NoTerminal,
    #[error("there was no answer: run `vpnd up` at a terminal")]
    NoAnswer,
    #[error(
        "the profile names no user, and there is no terminal to ask at: use --login NAME, or write 'name' into [user]"
    )]
    NoUser,
}

/// Reads a password.
///
/// # Errors
/// [`CredentialsError`], with the source and a remedy.
pub fn read(source: &Source) -> Result<Zeroizing<String>, CredentialsError> {
    match source {
        Source::File(path) => from_file(path),
        Source::Descriptor(fd) => {
            let name = format!("file descriptor {fd}");
            // Through /proc, so that no descriptor number has to be trusted to be ours to close.
            let file = File::open(format!("/proc/self/fd/{fd}"));
            first_line(file.map_err(|source| CredentialsError::Read { from: name.clone(), source })?, name)
        }
    }
}

/// Asks a person for a secret.
///
/// # Errors
/// If there is no terminal, or it was closed.
pub(crate) fn ask(prompt: &str) -> Result<Zeroizing<String>, CredentialsError> {
    if !io::stdin().is_terminal() {
        return Err(CredentialsError::NoTerminal);
    }
    let answer = terminal::ask_secretly(prompt)
        .map_err(|source| CredentialsError::Read { from: "the terminal".to_owned(), source })?;
    checked(answer, "the terminal".to_owned())
}

/// Asks a person for a code, which may be left out.
///
/// # Errors
/// See [`ask`].
pub(crate) fn ask_for_code(prompt: &str) -> Result<Zeroizing<String>, CredentialsError> {
    match ask(prompt) {
        Err(CredentialsError::Empty(_)) => Ok(Zeroizing::default()),
        asked => asked,
    }
}

/// Asks a person for what may be seen while it is typed, and may be left out.
///
/// # Errors
/// See [`ask`].
pub(crate) fn ask_openly(prompt: &str) -> Result<Zeroizing<String>, CredentialsError> {
    if !io::stdin().is_terminal() {
        return Err(CredentialsError::NoTerminal);
    }
    let name = "the terminal".to_owned();
    let failed = |source| CredentialsError::Read { from: "the terminal".to_owned(), source };
    let mut terminal = OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(failed)?;
    write!(terminal, "{prompt}").map_err(failed)?;
    match first_line(terminal, name) {
        Err(CredentialsError::Empty(_)) => Ok(Zeroizing::default()),
        asked => asked,
    }
}

fn from_file(path: &Path) -> Result<Zeroizing<String>, CredentialsError> {
    let name = path.display().to_string();
    let failed = |source| CredentialsError::Read { from: name.clone(), source };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mode = metadata.mode() & 0o777;
    if metadata.is_file() && mode & 0o077 != 0 {
        return Err(CredentialsError::Exposed { path: path.to_owned(), mode });
    }
    first_line(file, name)
}

fn first_line(mut file: File, name: String) -> Result<Zeroizing<String>, CredentialsError> {
    let mut line = Zeroizing::new(Vec::with_capacity(MAX_PASSWORD + 2));
    let mut byte = [0];
    while line.len() <= MAX_PASSWORD {
        match file.read(&mut byte) {
            Ok(0) => break,
            Ok(_) if byte[0] == b'\n' => break,
            Ok(_) => line.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(CredentialsError::Read { from: name, source }),
        }
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    match std::str::from_utf8(&line) {
        Ok(text) => checked(Zeroizing::new(text.to_owned()), name),
        Err(_) => Err(CredentialsError::NotText(name)),
    }
}

fn checked(password: Zeroizing<String>, from: String) -> Result<Zeroizing<String>, CredentialsError> {
    match password.len() {
        0 => Err(CredentialsError::Empty(from)),
        1..=MAX_PASSWORD => Ok(password),
        _ => Err(CredentialsError::TooLong(from)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(content: &[u8], mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, content).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        file
    }

    fn read_file(content: &[u8], mode: u32) -> Result<Zeroizing<String>, CredentialsError> {
        read(&Source::File(file(content, mode).path().to_owned()))
    }

    #[test]
    fn the_first_line_is_the_password() {
        for content in [&b"open sesame\nsecond"[..], b"open sesame", b"open sesame\r\n"] {
            assert_eq!(read_file(content, 0o600).unwrap().as_str(), "open sesame");
        }
        let longest = "x".repeat(MAX_PASSWORD);
        assert_eq!(*read_file(longest.as_bytes(), 0o600).unwrap(), longest);
    }

    #[test]
    fn what_others_can_read_is_refused() {
        for mode in [0o640, 0o604, 0o620, 0o666] {
            assert!(matches!(read_file(b"secret", mode), Err(CredentialsError::Exposed { .. })), "{mode:o}");
        }
        assert!(read_file(b"secret", 0o400).is_ok());
    }

    #[test]
    fn what_is_no_password_is_refused() {
        assert!(matches!(read_file(b"\nsecret", 0o600), Err(CredentialsError::Empty(_))));
        assert!(matches!(read_file(&[0xFF, 0xFE], 0o600), Err(CredentialsError::NotText(_))));
        let long = vec![b'x'; MAX_PASSWORD + 1];
        assert!(matches!(read_file(&long, 0o600), Err(CredentialsError::TooLong(_))));
        let missing = read(&Source::Descriptor(9_999));
        assert!(matches!(missing, Err(CredentialsError::Read { .. })));
    }
}
