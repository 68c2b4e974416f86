//! Files of the state directory with one key: 32 bytes in base64 and a line break, as `wg genkey`
//! writes them.
//!
//! INVARIANT: a file is durable before its key is used. This module must not know what keys are
//! for.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{FlockOperation, fcntl_lock};
use vpnd_crypto::Secret;
use vpnd_sys::own_file;
use vpnd_sys::secret_file::parent;
use zeroize::Zeroizing;

/// A key and a line break.
pub const MAX_BYTES: u64 = 64;

/// The content of such a file.
pub enum Content {
    Key(Secret<32>),
    /// It was just made.
    Nothing,
    Damaged,
}

/// Opens the file, or makes it, and keeps other processes from it while it is open: another one may
/// be making the key at the same time.
///
/// # Errors
/// If it can't be opened or read.
pub fn open_or_create(path: &Path) -> io::Result<(File, Content)> {
    let mut file = own_file::open_or_create(path)?;
    fcntl_lock(&file, FlockOperation::LockExclusive)?;
    let mut text = Zeroizing::new(Vec::with_capacity(2 * MAX_BYTES as usize));
    (&mut file).take(MAX_BYTES + 1).read_to_end(&mut text)?;
    let content = match parse(&text) {
        Some(key) => Content::Key(key),
        None if text.is_empty() => Content::Nothing,
        None => Content::Damaged,
    };
    Ok((file, content))
}

/// The key in the content of such a file, if it is one.
pub fn parse(text: &[u8]) -> Option<Secret<32>> {
    let mut bytes = Zeroizing::new([0; 33]);
    let length = STANDARD.decode_slice(text.trim_ascii(), &mut *bytes).ok()?;
    let key: [u8; 32] = bytes[..length].try_into().ok()?;
    Some(Secret::new(key))
}

/// Makes a key of random bytes and writes it to the file, which is empty.
///
/// # Errors
/// If it can't be written.
pub fn make(file: &mut File, path: &Path) -> io::Result<Secret<32>> {
    let key = Secret::new(rand::random());
    write(file, path, &key).map(|()| key)
}

/// Makes a key as [`make`] does, in place of what is in the file.
///
/// # Errors
/// If it can't be written.
pub fn make_again(file: &mut File, path: &Path) -> io::Result<Secret<32>> {
    file.set_len(0)?;
    io::Seek::rewind(file)?;
    make(file, path)
}

/// Writes a key to the file, which is empty.
///
/// # Errors
/// If it can't be written.
pub fn write(file: &mut File, path: &Path, key: &Secret<32>) -> io::Result<()> {
    let mut text = Zeroizing::new(STANDARD.encode(key.expose()));
    text.push('\n');
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    File::open(parent(path))?.sync_all()
}
