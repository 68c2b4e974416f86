//! A gateway's backup: one tar archive with its configuration, certificates, keys and a consistent
//! copy of its store, sealed under a passphrase.
//!
//! The first entry, [`MANIFEST`], names the others with their digests. INVARIANT: an archive is
//! authenticated ([`sealed`]), read as a whole and compared with its manifest before any of it is
//! used. The configuration inside names the places of its files, so `commands/backup/places.rs`
//! limits them. This module knows bytes; `commands/backup.rs` knows files and gateways.

pub(crate) mod sealed;

use std::collections::BTreeMap;
use std::io::{Cursor, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use vpnd_config::portal::MAX_LOGO_BYTES;
use vpnd_config::source::{Bind, RadiusTls, SecretPlace, Source, SourceKind, Transport};
use vpnd_config::{Portal, ServerConfig};
use vpnd_pki::revocation_list::RevocationList;
use vpnd_pki::tls;
use vpnd_sys::secret_file::{PUBLIC_MODE, SECRET_MODE};

/// The format that this version writes, and the newest that it reads.
pub(crate) const FORMAT: u32 = 1;
/// The entry that lists the others.
const MANIFEST: &str = "vpnd-backup.json";
/// The entry with the configuration.
pub(crate) const CONFIGURATION: &str = "server.toml";
/// The entry with the store.
pub(crate) const STORE: &str = "store.db";
/// The entry with the key for WireGuard clients, if there is one.
pub(crate) const WIREGUARD_KEY: &str = "wireguard.key";
/// More is no backup of a gateway: it is read into memory.
pub(crate) const MAX_BYTES: u64 = 1 << 30;

/// An error of an archive; nothing of it is used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("it is not a backup of vpnd, or its beginning is damaged: {0}")]
    Foreign(String),
    #[error(
        "its format is {found}, this vpnd reads up to {FORMAT}: install the vpnd that wrote it ({version}) or a newer one"
    )]
    Newer { found: u32, version: String },
    #[error("it is damaged: {0}; take another backup")]
    Damaged(String),
    #[error("the passphrase is wrong, or the file has been changed since it was made")]
    Unauthentic,
}

/// The manifest of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    /// Version of the vpnd that made it.
    pub(crate) vpnd: String,
    /// When, seconds since 1970.
    pub(crate) made_s: u64,
    /// SHA-256 of each other entry, hexadecimal, by its name.
    pub(crate) files: BTreeMap<String, String>,
}

/// An archive's contents by the names of their entries.
pub(crate) type Contents = BTreeMap<String, Zeroizing<Vec<u8>>>;

/// The content that a file must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// Certificates in PEM.
    Certificates,
    /// A private key in PEM.
    PrivateKey,
    /// Certificate revocation lists, PEM or DER.
    RevocationLists,
    /// The account at an ACME directory, JSON.
    AcmeAccount,
    /// A secret as text; for some sources that is a private key.
    Secret,
    /// The image on the web pages.
    Logo,
}

/// The longest secret of a source, in bytes: a private key in PEM fits.
const MAX_SECRET_BYTES: usize = 16 << 10;

impl FileKind {
    /// The mode of such a file.
    pub(crate) fn mode(self) -> u32 {
        match self {
            Self::Certificates | Self::RevocationLists | Self::Logo => PUBLIC_MODE,
            Self::PrivateKey | Self::AcmeAccount | Self::Secret => SECRET_MODE,
        }
    }

    /// Whether the gateway could read `bytes` as such a file.
    pub(crate) fn accepts(self, bytes: &[u8]) -> bool {
        match self {
            Self::Certificates => !vpnd_pki::leaf::chain(bytes).is_empty(),
            Self::PrivateKey => tls::signing_key(bytes).is_ok(),
            Self::RevocationLists => RevocationList::trusted(bytes).is_ok(),
            Self::AcmeAccount => serde_json::from_slice::<serde_json::Map<_, _>>(bytes).is_ok(),
            Self::Secret => bytes.len() <= MAX_SECRET_BYTES && std::str::from_utf8(bytes).is_ok(),
            Self::Logo => bytes.len() as u64 <= MAX_LOGO_BYTES && is_image(bytes),
        }
    }
}

/// Whether it begins as a PNG, JPEG or WebP file does.
fn is_image(bytes: &[u8]) -> bool {
    let is_webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
    is_webp || bytes.starts_with(b"\x89PNG\r\n\x1a\n") || bytes.starts_with(&[0xff, 0xd8, 0xff])
}

/// A file that a configuration names, and its entry's name.
pub(crate) struct NamedFile {
    pub(crate) entry: String,
    pub(crate) path: PathBuf,
    pub(crate) kind: FileKind,
    pub(crate) absence: Absence,
}

/// The fate of a file that is not there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absence {
    /// A gateway does not start without it: there is no backup.
    Refused,
    /// It may be kept elsewhere: the command reports that.
    Reported,
    /// Only some gateways have it.
    Usual,
}

/// The files, besides the store, that a gateway with this configuration reads. Authorities' keys
/// may be kept elsewhere.
pub(crate) fn named_files(config: &ServerConfig) -> Vec<NamedFile> {
    let tls = &config.tls;
    let pinned = tls.pinned_certificate();
    let all = [
        ("certificate.pem", Some(&tls.certificate), FileKind::Certificates, Absence::Refused),
        ("pinned-certificate.pem", Some(&pinned), FileKind::Certificates, Absence::Usual),
        ("key.pem", Some(&tls.key), FileKind::PrivateKey, Absence::Refused),
        ("ca.pem", tls.ca.as_ref(), FileKind::Certificates, Absence::Reported),
        ("ca-key.pem", tls.ca_key.as_ref(), FileKind::PrivateKey, Absence::Reported),
        ("client-ca.pem", tls.client_ca.as_ref(), FileKind::Certificates, Absence::Refused),
        ("client-ca-key.pem", tls.client_ca_key.as_ref(), FileKind::PrivateKey, Absence::Reported),
        ("client-crl", tls.client_crl.as_ref(), FileKind::RevocationLists, Absence::Refused),
    ];
    let of_tls = all.into_iter().filter_map(|(entry, path, kind, absence)| {
        Some(NamedFile { entry: entry.to_owned(), path: path?.clone(), kind, absence })
    });
    let of_acme = config.acme.iter().flat_map(|acme| {
        let eab = acme.external_account.as_ref().and_then(|external| external.key.file());
        let files = [
            ("acme-account.json", Some(config.acme_account()), FileKind::AcmeAccount),
            ("acme-directory-ca.pem", acme.directory_ca.clone(), FileKind::Certificates),
            ("acme-eab", eab.map(Path::to_owned), FileKind::Secret),
        ];
        files.into_iter().filter_map(|(entry, path, kind)| {
            Some(NamedFile { entry: entry.to_owned(), path: path?, kind, absence: Absence::Reported })
        })
    });
    of_tls
        .chain(of_acme)
        .chain(config.portal.iter().flat_map(of_portal))
        .chain((1..).zip(&config.sources).flat_map(|(number, source)| of_source(number, source)))
        .collect()
}

/// The files of the web pages. Those of an ordered certificate are made again where they are
/// missing.
fn of_portal(portal: &Portal) -> impl Iterator<Item = NamedFile> {
    let absence = if portal.acme { Absence::Usual } else { Absence::Reported };
    let logo = portal.logo.as_ref().map(|logo| &logo.path);
    let files = [
        ("portal-certificate.pem", Some(&portal.certificate), FileKind::Certificates, absence),
        ("portal-key.pem", Some(&portal.key), FileKind::PrivateKey, absence),
        ("portal-logo", logo, FileKind::Logo, Absence::Reported),
    ];
    files.into_iter().filter_map(|(entry, path, kind, absence)| {
        Some(NamedFile { entry: entry.to_owned(), path: path?.clone(), kind, absence })
    })
}

/// The files of one source of users, by its number: a name may be anything.
fn of_source(number: usize, source: &Source) -> impl Iterator<Item = NamedFile> {
    let dynamic = source.dynamic().map(|dynamic| &dynamic.secret);
    let (ca, secret, certificate) = match &source.kind {
        SourceKind::Ldap(ldap) => match &ldap.bind {
            Bind::Service { password, .. } => (ldap.ca.as_ref(), Some(password), None),
            Bind::User(_) => (ldap.ca.as_ref(), None, None),
        },
        SourceKind::Oidc(oidc) => (oidc.ca.as_ref(), Some(&oidc.secret), None),
        SourceKind::Radius(radius) => match &radius.transport {
            Transport::Udp(secret) => (None, Some(secret), None),
            Transport::Tls(RadiusTls { ca, identity: Some((certificate, key)) }) => {
                (ca.as_ref(), Some(key), Some(certificate))
            }
            Transport::Tls(RadiusTls { ca, identity: None }) => (ca.as_ref(), None, None),
        },
    };
    // A credential is kept by the service manager, and not in a file of the gateway's.
    let (secret, dynamic) = (secret.and_then(SecretPlace::file), dynamic.and_then(SecretPlace::file));
    let (ca, certificate) = (ca.map(PathBuf::as_path), certificate.map(PathBuf::as_path));
    let files = [
        ("ca.pem", ca, FileKind::Certificates),
        ("certificate.pem", certificate, FileKind::Certificates),
        ("secret", secret, FileKind::Secret),
        ("coa-secret", dynamic, FileKind::Secret),
    ];
    files.into_iter().filter_map(move |(entry, path, kind)| {
        let entry = format!("source-{number}-{entry}");
        Some(NamedFile { entry, path: path?.to_owned(), kind, absence: Absence::Refused })
    })
}

/// Makes an archive.
///
/// # Errors
/// Only if there is no memory for it.
pub(crate) fn write(contents: &Contents, made_s: u64) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let files = contents.iter().map(|(name, bytes)| (name.clone(), digest(bytes)));
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let manifest = Manifest { format: FORMAT, vpnd: version, made_s, files: files.collect() };
    // Grown in one step, so that no copy of a key stays behind in memory.
    let room = contents.values().map(|bytes| bytes.len() + 2048).sum::<usize>() + (64 << 10);
    let mut archive = tar::Builder::new(Vec::with_capacity(room));
    append(&mut archive, MANIFEST, &serde_json::to_vec_pretty(&manifest)?, made_s)?;
    for (name, bytes) in contents {
        append(&mut archive, name, bytes, made_s)?;
    }
    archive.into_inner().map(Zeroizing::new)
}

fn append(archive: &mut tar::Builder<Vec<u8>>, name: &str, bytes: &[u8], made_s: u64) -> std::io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o600);
    header.set_mtime(made_s);
    header.set_size(bytes.len() as u64);
    archive.append_data(&mut header, name, bytes)
}

/// Reads an archive and compares it with its manifest.
///
/// # Errors
/// [`ArchiveError`].
pub(crate) fn read(archive: &[u8]) -> Result<(Manifest, Contents), ArchiveError> {
    let mut archive = tar::Archive::new(Cursor::new(archive));
    let mut manifest: Option<Manifest> = None;
    let mut contents = Contents::new();
    let foreign = |error: std::io::Error| ArchiveError::Foreign(error.to_string());
    for entry in archive.entries().map_err(foreign)? {
        // Before the manifest it may be anything; behind it, it is one of ours.
        let spoilt = |error: std::io::Error| match manifest {
            None => ArchiveError::Foreign(error.to_string()),
            Some(_) => ArchiveError::Damaged(error.to_string()),
        };
        let mut entry = entry.map_err(spoilt)?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let mut bytes = Zeroizing::new(Vec::new());
        entry.read_to_end(&mut bytes).map_err(spoilt)?;
        match &manifest {
            None if name == MANIFEST => manifest = Some(parse(&bytes)?),
            None => return Err(ArchiveError::Foreign(format!("its first entry is not {MANIFEST}"))),
            Some(manifest) => {
                if manifest.files.get(&name) != Some(&digest(&bytes)) {
                    return Err(ArchiveError::Damaged(format!(
                        "{} is not as it was written",
                        vpnd_sys::text::plain(&name)
                    )));
                }
                contents.insert(name, bytes);
            }
        }
    }
    let manifest = manifest.ok_or_else(|| ArchiveError::Foreign("it is empty".to_owned()))?;
    match manifest.files.keys().find(|name| !contents.contains_key(*name)) {
        Some(missing) => Err(ArchiveError::Damaged(format!("{} is missing", vpnd_sys::text::plain(missing)))),
        None => Ok((manifest, contents)),
    }
}

/// A newer format may have any other fields.
fn parse(bytes: &[u8]) -> Result<Manifest, ArchiveError> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
        vpnd: String,
    }
    let foreign = |error: serde_json::Error| ArchiveError::Foreign(error.to_string());
    let head: Head = serde_json::from_slice(bytes).map_err(foreign)?;
    if head.format > FORMAT {
        return Err(ArchiveError::Newer { found: head.format, version: vpnd_sys::text::plain(&head.vpnd) });
    }
    serde_json::from_slice(bytes).map_err(foreign)
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn contents() -> Contents {
        let entry = |name: &str, bytes: &[u8]| (name.to_owned(), Zeroizing::new(bytes.to_vec()));
        [entry(CONFIGURATION, b"[tls]"), entry(STORE, &[7; 5000]), entry("key.pem", b"secret")].into()
    }

    #[test]
    fn what_was_written_is_read() {
        let archive = write(&contents(), 1_000).unwrap();
        let (manifest, read) = read(&archive).unwrap();
        assert_eq!((manifest.format, manifest.made_s, read), (FORMAT, 1_000, contents()));
    }

    #[test]
    fn a_newer_format_is_refused_whatever_else_it_has() {
        let mut archive = tar::Builder::new(Vec::new());
        append(&mut archive, MANIFEST, br#"{"format": 2, "vpnd": "9.0", "other": 1}"#, 0).unwrap();
        let error = read(&archive.into_inner().unwrap()).unwrap_err();
        assert!(matches!(&error, ArchiveError::Newer { found: 2, version } if version == "9.0"), "{error}");
    }

    #[test]
    fn anything_else_is_foreign() {
        for bytes in [&b""[..], b"hello", &[0; 4096]] {
            assert!(matches!(read(bytes), Err(ArchiveError::Foreign(_))), "{bytes:?}");
        }
        let mut other = tar::Builder::new(Vec::new());
        append(&mut other, "etc/passwd", b"root", 0).unwrap();
        assert!(matches!(read(&other.into_inner().unwrap()), Err(ArchiveError::Foreign(_))));
    }

    #[test]
    fn an_entry_that_the_manifest_does_not_name_is_refused() {
        let archive = write(&contents(), 0).unwrap();
        // Behind the last entry stand two empty blocks.
        let mut longer = tar::Builder::new(archive[..archive.len() - 1024].to_vec());
        append(&mut longer, "ca-key.pem", b"forged", 0).unwrap();
        let error = read(&longer.into_inner().unwrap()).unwrap_err();
        assert!(matches!(&error, ArchiveError::Damaged(reason) if reason.contains("ca-key.pem")), "{error}");
    }

    proptest! {
        #[test]
        fn a_cut_archive_is_refused(part in 0.0..1.0_f64) {
            let archive = write(&contents(), 0).unwrap();
            // The last two blocks are only an end mark.
            let length = ((archive.len() - 1024) as f64 * part) as usize;
            prop_assert!(read(&archive[..length]).is_err());
        }

        #[test]
        fn a_changed_byte_never_changes_what_is_read(at in any::<prop::sample::Index>(), mask in 1..=255_u8) {
            let mut archive = write(&contents(), 0).unwrap();
            let at = at.index(archive.len());
            archive[at] ^= mask;
            if let Ok((_, read)) = read(&archive) {
                prop_assert_eq!(read, contents());
            }
        }
    }
}
