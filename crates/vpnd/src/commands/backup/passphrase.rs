//! The passphrase of a backup, from a file or from the terminal.
//!
//! Invariant: it is kept nowhere but in a [`Password`], which is erased when dropped.

use std::io::{self, IsTerminal as _};
use std::path::Path;

use crate::commands::users::secret_input::{InputError, first_line};
use vpnd_store::password::{MIN_PASSWORD_CHARS, Password};
use vpnd_sys::terminal;

#[derive(Debug, thiserror::Error)]
pub enum PassphraseError {
    #[error("a backup needs a passphrase and there is no terminal to type it: give --passphrase-file FILE")]
    NoTerminal,
    #[error("the passphrase has fewer than {MIN_PASSWORD_CHARS} characters; take four random words or more")]
    TooShort,
    #[error("the two entries differ; nothing was written")]
    Differ,
    #[error(transparent)]
    Input(#[from] InputError),
    #[error("can't read the passphrase from the terminal: {0}")]
    Terminal(#[source] io::Error),
}

/// One for a new backup; typed twice.
pub(super) fn new(file: Option<&Path>) -> Result<Password, PassphraseError> {
    let passphrase = known(file)?;
    if passphrase.expose().chars().count() < MIN_PASSWORD_CHARS {
        return Err(PassphraseError::TooShort);
    }
    if file.is_none() && prompt("Again: ")?.expose() != passphrase.expose() {
        return Err(PassphraseError::Differ);
    }
    Ok(passphrase)
}

/// The passphrase of an existing backup.
pub(super) fn known(file: Option<&Path>) -> Result<Password, PassphraseError> {
    match file {
        Some(path) => Ok(first_line(path, &path.display().to_string())?),
        None => prompt("Passphrase of the backup: "),
    }
}

fn prompt(question: &str) -> Result<Password, PassphraseError> {
    if !io::stdin().is_terminal() {
        return Err(PassphraseError::NoTerminal);
    }
    let answer = terminal::ask_secretly(question).map_err(PassphraseError::Terminal)?;
    Ok(Password::new(answer.to_string()))
}
