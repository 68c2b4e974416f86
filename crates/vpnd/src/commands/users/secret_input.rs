//! Obtains a new password from a file descriptor, a file, the person at the terminal, or the random
//! generator.
//!
//! Invariant: nothing read here is kept anywhere but in a [`Password`], which is erased when
//! dropped.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::cli::PasswordArgs;
use vpnd_store::password::{MAX_PASSWORD_BYTES, MIN_PASSWORD_CHARS, Password, is_guessable};
use vpnd_sys::terminal;

/// Bits of a mode by which others than the owner write a file.
const WRITABLE_BY_OTHERS: u32 = 0o022;

#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("can't read the password from {place}: {source}")]
    Read { place: String, source: io::Error },
    #[error(
        "the password has fewer than {MIN_PASSWORD_CHARS} characters; choose a longer one, such as four random words"
    )]
    TooShort,
    #[error("the password has more than {MAX_PASSWORD_BYTES} bytes; choose a shorter one")]
    TooLong,
    #[error(
        "the password is one that is tried first: many people have it, or the user's name or the service suggests it; choose another one, such as four random words"
    )]
    Guessable,
    #[error("the two entries differ; nothing was changed")]
    Differ,
}

#[derive(Debug)]
pub(super) enum Source {
    File(PathBuf),
    Descriptor(i32),
    /// A prompt if there is a terminal, else a password is made.
    Terminal,
    /// A password is made and not shown.
    Nobody,
}

/// A password, and whether a person has seen it yet.
pub(super) struct Chosen {
    pub(super) password: Password,
    pub(super) is_generated: bool,
}

impl From<&PasswordArgs> for Source {
    fn from(args: &PasswordArgs) -> Self {
        if args.invite {
            return Self::Nobody;
        }
        match (args.password_fd, &args.password_file) {
            (Some(fd), _) => Self::Descriptor(fd),
            (None, Some(path)) => Self::File(path.clone()),
            (None, None) => Self::Terminal,
        }
    }
}

/// Gets a new password for `user`.
pub(super) fn choose(source: Source, user: &str) -> Result<Chosen, InputError> {
    let password = match source {
        Source::File(path) => first_line(&path, &path.display().to_string())?,
        // Opening it by its name in /proc gives a separate descriptor without owning another
        // process's.
        Source::Descriptor(fd) => {
            first_line(Path::new(&format!("/proc/self/fd/{fd}")), &format!("file descriptor {fd}"))?
        }
        Source::Nobody => return Ok(Chosen { password: Password::generate(), is_generated: false }),
        Source::Terminal if io::stdin().is_terminal() => prompt_twice(user)?,
        Source::Terminal => return Ok(Chosen { password: Password::generate(), is_generated: true }),
    };
    if password.expose().len() > MAX_PASSWORD_BYTES {
        return Err(InputError::TooLong);
    }
    if password.expose().chars().count() < MIN_PASSWORD_CHARS {
        return Err(InputError::TooShort);
    }
    if is_guessable(&password, user) {
        return Err(InputError::Guessable);
    }
    Ok(Chosen { password, is_generated: false })
}

/// Refuses a file that another user than root, this one and the one who called sudo can write:
/// another user could have chosen the passwords.
pub(super) fn own(file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    // A pipe or a terminal was opened by the caller.
    if !found.is_file() {
        return Ok(());
    }
    let us = rustix::process::geteuid().as_raw();
    let caller = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
    if ![Some(0), Some(us), caller].contains(&Some(found.uid())) {
        return Err(io::Error::other(format!(
            "it belongs to user {}, who could have written anything into it: make a copy of your own",
            found.uid()
        )));
    }
    if found.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(io::Error::other(
            "others can write it, so it may hold anything: look into it, then chmod go-w",
        ));
    }
    Ok(())
}

pub(in crate::commands) fn first_line(path: &Path, place: &str) -> Result<Password, InputError> {
    let read = || {
        let file = File::open(path)?;
        own(&file)?;
        // One byte more than allowed shows that there is too much; the two others are a line break.
        let file = file.take(MAX_PASSWORD_BYTES as u64 + 3);
        let mut line = Zeroizing::new(Vec::with_capacity(MAX_PASSWORD_BYTES + 3));
        BufReader::with_capacity(MAX_PASSWORD_BYTES + 3, file).read_until(b'\n', &mut line)?;
        let text = std::str::from_utf8(&line).map_err(|_| io::Error::other("it is not text in UTF-8"))?;
        Ok(Password::new(text.trim_end_matches(['\n', '\r']).to_owned()))
    };
    read().map_err(|source| InputError::Read { place: place.to_owned(), source })
}

fn prompt_twice(user: &str) -> Result<Password, InputError> {
    let ask = |question: String| {
        let answer = terminal::ask_secretly(&question).map(|answer| Password::new(answer.to_string()));
        answer.map_err(|source| InputError::Read { place: "the terminal".to_owned(), source })
    };
    let first = ask(format!("New password of {user}: "))?;
    let second = ask("Again: ".to_owned())?;
    if first.expose() == second.expose() { Ok(first) } else { Err(InputError::Differ) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn file(text: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text).unwrap();
        file
    }

    fn from_file(text: &[u8]) -> Result<Chosen, InputError> {
        choose(Source::File(file(text).path().to_owned()), "ann")
    }

    #[test]
    fn the_first_line_of_a_file_or_descriptor_counts() {
        for text in ["correct horse", "correct horse\n", "correct horse\r\n", "correct horse\nmore\n"] {
            let chosen = from_file(text.as_bytes()).unwrap();
            assert_eq!((chosen.password.expose(), chosen.is_generated), ("correct horse", false));
        }
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"correct horse\n").unwrap();
        drop(writer);
        let chosen = choose(Source::Descriptor(reader.as_raw_fd()), "ann").unwrap();
        assert_eq!(chosen.password.expose(), "correct horse");
    }

    /// Security: a user who writes the file knows the password.
    #[test]
    fn a_file_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let written = file(b"correct horse\n");
        for mode in [0o620, 0o602, 0o666] {
            std::fs::set_permissions(written.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let error = choose(Source::File(written.path().to_owned()), "ann").map(drop).unwrap_err();
            assert!(error.to_string().contains("others can write it"), "{error}");
        }
        std::fs::set_permissions(written.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(choose(Source::File(written.path().to_owned()), "ann").is_ok());
    }

    #[test]
    fn what_is_no_password_is_refused() {
        assert!(matches!(from_file(b"1234567\n"), Err(InputError::TooShort)));
        assert!(matches!(from_file(b""), Err(InputError::TooShort)));
        assert!(from_file("\u{e4}\u{f6}\u{fc}\u{df}1234".as_bytes()).is_ok(), "characters count, not bytes");
        let long: Vec<u8> = (0..=MAX_PASSWORD_BYTES).map(|at| b'!' + (at * at % 89) as u8).collect();
        assert!(from_file(&long[..MAX_PASSWORD_BYTES]).is_ok());
        assert!(matches!(from_file(&long), Err(InputError::TooLong)));
        assert!(matches!(from_file(&[0xff; 20]), Err(InputError::Read { .. })));
        assert!(matches!(choose(Source::Descriptor(987), "ann"), Err(InputError::Read { .. })));
    }
}
