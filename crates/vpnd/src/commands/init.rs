//! `vpnd init`: a certificate authority, the gateway's certificate and a commented configuration in
//! one go.
//!
//! Invariants: nothing that exists is replaced unless requested, and then it is looked for before
//! anything is written; keys are readable by their owner alone; users are never touched. Where a
//! configuration is, everything is and belongs together: it comes last and goes first. What a run
//! that was killed has left is known by [`UNFINISHED`], and the next one puts its own in that
//! place. This module must not know how a gateway runs.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ipnet::{Ipv4Net, Ipv6Net};
use sha2::{Digest as _, Sha256};

use crate::admin_store::{Opening, Stores};
use crate::cli::InitArgs;
use vpnd_config::{Invalid, ServerConfig};
use vpnd_pki::authority::{Authority, CertificateError};
use vpnd_store::StoreError;
use vpnd_sys::secret_file::{self, Existing, PUBLIC_MODE, SECRET_MODE, Staged, WriteError};

/// The commented configuration, with values that [`init`] replaces line by line.
const TEMPLATE: &str = include_str!("../../../../config/server.toml");
/// File with digests of everything that a run is about to write: files that match belong to an
/// unfinished run, and may be replaced.
const UNFINISHED: &str = ".vpnd-init-unfinished";
/// The files that are made; the first is what the others belong to.
const FILES: [&str; 5] = ["server.toml", "ca.pem", "ca-key.pem", "server.pem", "server-key.pem"];

#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("{} exists already; choose another directory, or replace it and all keys with --force", path.display())]
    Exists { path: PathBuf },
    #[error("can't make the directory {}: {source}", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("these arguments make no valid configuration:\n{0}")]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The user store could not be made.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Makes everything that `args` ask for; `now` is when the certificates begin. Returns the
/// configuration's path.
pub fn init(args: &InitArgs, stores: &dyn Stores, now: SystemTime) -> Result<PathBuf, InitError> {
    let place = |name: &str| args.dir.join(name);
    let mut unfinished = read_unfinished(&place(UNFINISHED));
    if !args.force {
        let is_kept = |path: &PathBuf| path.exists() && !is_unfinished(path, &place(FILES[0]), &unfinished);
        if let Some(path) = FILES.map(place).into_iter().find(is_kept) {
            return Err(InitError::Exists { path });
        }
    }
    let pool_v6 = args.pool_v6.unwrap_or_else(random_ula);
    let text = configuration(args.listen, args.pool_v4, pool_v6);
    let config = ServerConfig::parse(&text, "server.toml", &args.dir)?;
    let authority = Authority::new(&args.name[0], now)?;
    let server = authority.server(&args.name, now)?;

    make_directory(&args.dir)?;
    let files = [
        ("ca-key.pem", authority.key_pem(), SECRET_MODE),
        ("ca.pem", authority.certificate_pem(), PUBLIC_MODE),
        ("server-key.pem", &server.key_pem, SECRET_MODE),
        ("server.pem", &server.certificate_pem, PUBLIC_MODE),
    ];
    unfinished.extend(files.iter().map(|(_, text, _)| digest(text.as_bytes())));
    // A file that is replaced on demand is no longer kept either once the configuration is gone.
    let replaced = files.iter().filter_map(|(name, ..)| fs::read(place(name)).ok());
    unfinished.extend(replaced.map(|bytes| digest(&bytes)));
    let note: String = unfinished.into_iter().map(|digest| digest + "\n").collect();
    // All that takes room is written before anything gets its name or loses it.
    // A file that is not there now belongs to this run alone.
    let stage = |(name, text, mode): (&str, &str, u32)| -> Result<_, WriteError> {
        let existing = if place(name).exists() { Existing::Replace } else { Existing::Refuse };
        Ok((Staged::new(&place(name), text.as_bytes(), mode)?, existing))
    };
    let staged = files.into_iter().map(stage).collect::<Result<Vec<_>, _>>()?;
    let (last, _) = stage((FILES[0], &text, PUBLIC_MODE))?;
    drop(stores.open(&config, Opening::Create)?);
    secret_file::write(&place(UNFINISHED), note.as_bytes(), SECRET_MODE, Existing::Replace)?;
    remove(&place(FILES[0]))?;
    for (file, existing) in staged {
        file.publish(existing)?;
    }
    last.publish(Existing::Refuse)?;
    remove(&place(UNFINISHED))?;
    for name in FILES.iter().chain([&UNFINISHED]) {
        let path = place(name);
        secret_file::remove_leftovers(&path).map_err(|source| WriteError::Io { path, source })?;
    }
    Ok(place(FILES[0]))
}

/// Whether a file is what a run has put there that did not come as far as the configuration.
fn is_unfinished(path: &Path, config: &Path, unfinished: &BTreeSet<String>) -> bool {
    !config.exists() && fs::read(path).is_ok_and(|bytes| unfinished.contains(&digest(&bytes)))
}

/// Without the note every file that is there is kept.
fn read_unfinished(note: &Path) -> BTreeSet<String> {
    fs::read_to_string(note).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn remove(path: &Path) -> Result<(), WriteError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(WriteError::Io { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// A random private /64 (RFC 4193 section 3.2: 40 random bits after `fd`).
fn random_ula() -> Ipv6Net {
    let mut octets = [0; 16];
    octets[0] = 0xfd;
    octets[1..6].copy_from_slice(&rand::random::<[u8; 5]>());
    Ipv6Net::new(octets.into(), 64).expect("64 is a prefix length of IPv6")
}

fn configuration(listen: SocketAddr, pool_v4: Ipv4Net, pool_v6: Ipv6Net) -> String {
    let replace = |line: &str| match line {
        _ if line.starts_with("listen = ") => format!("listen = \"{listen}\""),
        _ if line.starts_with("pool_v4 = ") => format!("pool_v4 = \"{pool_v4}\""),
        _ if line.starts_with("pool_v6 = ") => format!("pool_v6 = \"{pool_v6}\""),
        _ => line.to_owned(),
    };
    TEMPLATE.lines().map(|line| replace(line) + "\n").collect()
}

fn make_directory(path: &Path) -> Result<(), InitError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|source| InitError::Directory { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
