//! The outermost layer of a backup: an archive sealed under a passphrase.
//!
//! Layout: [`MAGIC`], a salt of 16 bytes, then the archive sealed with ChaCha20-Poly1305 (RFC
//! 8439). The key is Argon2id (RFC 9106) of the passphrase and the salt. The header is associated
//! data, and the nonce is zero: a fresh salt makes a key that seals one archive. INVARIANT: no byte
//! of an archive is parsed before its tag is right, so a file can only be restored if it was made
//! by a person who knows the passphrase.

use argon2::{Algorithm, Argon2, Params, Version};
use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

use super::ArchiveError;
use vpnd_store::password::Password;

/// The first bytes of each backup. The number is that of this layout and its costs.
const MAGIC: &[u8; 14] = b"vpnd backup 1\n";
const SALT_BYTES: usize = 16;
const HEADER_BYTES: usize = MAGIC.len() + SALT_BYTES;
const TAG_BYTES: usize = 16;
/// A backup is guessed at offline, so a guess costs more than at the gateway.
const MEMORY_KIB: u32 = 64 * 1024;
const PASSES: u32 = 3;

/// Seals an archive.
///
/// # Errors
/// If there is no memory to derive the key.
pub(crate) fn seal(archive: &[u8], passphrase: &Password) -> std::io::Result<Vec<u8>> {
    let salt: [u8; SALT_BYTES] = rand::random();
    let key = key(passphrase, &salt)?;
    let mut file = Vec::with_capacity(HEADER_BYTES + archive.len() + TAG_BYTES);
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&salt);
    file.extend_from_slice(archive);
    let (header, text) = file.split_at_mut(HEADER_BYTES);
    let tag = key
        .seal_in_place_separate_tag(nonce(), Aad::from(header), text)
        .expect("an archive is shorter than the cipher's limit");
    file.extend_from_slice(tag.as_ref());
    Ok(file)
}

/// Opens the bytes of a backup.
///
/// # Errors
/// [`ArchiveError`]: it isn't a backup, or was sealed under another passphrase, or has been
/// changed.
pub(crate) fn open(file: &[u8], passphrase: &Password) -> Result<Zeroizing<Vec<u8>>, ArchiveError> {
    if file.len() < HEADER_BYTES + TAG_BYTES || !file.starts_with(MAGIC) {
        return Err(ArchiveError::Foreign("it does not begin as one".to_owned()));
    }
    let (header, sealed) = file.split_at(HEADER_BYTES);
    let key =
        key(passphrase, &header[MAGIC.len()..]).map_err(|error| ArchiveError::Foreign(error.to_string()))?;
    let mut archive = Zeroizing::new(sealed.to_vec());
    key.open_in_place(nonce(), Aad::from(header), &mut archive).map_err(|_| ArchiveError::Unauthentic)?;
    archive.truncate(sealed.len() - TAG_BYTES);
    Ok(archive)
}

fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

fn key(passphrase: &Password, salt: &[u8]) -> std::io::Result<LessSafeKey> {
    let length = CHACHA20_POLY1305.key_len();
    let params = Params::new(MEMORY_KIB, PASSES, 1, Some(length)).expect("the costs are valid");
    let mut bytes = Zeroizing::new(vec![0; length]);
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(passphrase.expose().as_bytes(), salt, &mut bytes)
        .map_err(|error| std::io::Error::other(format!("can't derive the key: {error}")))?;
    let key = UnboundKey::new(&CHACHA20_POLY1305, &bytes).expect("the key is as long as the cipher's");
    Ok(LessSafeKey::new(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passphrase(text: &str) -> Password {
        Password::new(text.to_owned())
    }

    #[test]
    fn an_archive_is_opened_by_its_passphrase_alone() {
        let file = seal(b"an archive", &passphrase("four random words")).unwrap();
        assert_eq!(*open(&file, &passphrase("four random words")).unwrap(), b"an archive");
        let error = open(&file, &passphrase("four other words")).unwrap_err();
        assert!(matches!(error, ArchiveError::Unauthentic), "{error}");
        assert!(!file.windows(10).any(|window| window == b"an archive"), "it is encrypted");
    }

    #[test]
    fn a_changed_or_cut_file_is_refused() {
        let file = seal(b"an archive", &passphrase("four random words")).unwrap();
        for index in [MAGIC.len(), HEADER_BYTES, file.len() - 1] {
            let mut changed = file.clone();
            changed[index] ^= 1;
            let error = open(&changed, &passphrase("four random words")).unwrap_err();
            assert!(matches!(error, ArchiveError::Unauthentic), "byte {index}: {error}");
        }
        for length in [0, MAGIC.len(), HEADER_BYTES, file.len() - 1] {
            assert!(open(&file[..length], &passphrase("four random words")).is_err(), "{length}");
        }
    }
}
