//! `vpnd init`: a certificate authority, the gateway's certificate and a commented configuration in one go.
//!
//! Invariants: nothing that exists is replaced unless asked for, and then it is looked for before anything is written;
//! keys are readable by their owner alone; users are never touched. This module must not know how a gateway runs.

pub mod authority;

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ipnet::{Ipv4Net, Ipv6Net};

use crate::cli::InitArgs;
use crate::config::{Invalid, ServerConfig};
use crate::secret_file::{self, Existing, PUBLIC_MODE, SECRET_MODE, WriteError};
use crate::store::StoreError;
use crate::store::sqlite::Sqlite;
use authority::{Authority, CertificateError};

/// The commented configuration, with values that [`init`] replaces line by line.
const TEMPLATE: &str = include_str!("../../../config/server.toml");
/// The files that are made; the first is what the others belong to.
const FILES: [&str; 5] = ["server.toml", "ca.pem", "ca-key.pem", "server.pem", "server-key.pem"];

/// Why nothing usable was made.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// A file is there already.
    #[error("{} exists already; choose another directory, or replace it and all keys with --force", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The directory could not be made.
    #[error("can't make the directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// What was asked for is not a valid configuration.
    #[error("these arguments make no valid configuration:\n{0}")]
    Invalid(#[from] Invalid),
    /// The certificates could not be made.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The user store could not be made.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Makes everything that `args` ask for; `now` is when the certificates begin. Returns the configuration's path.
pub fn init(args: &InitArgs, now: SystemTime) -> Result<PathBuf, InitError> {
    let existing = if args.force { Existing::Replace } else { Existing::Refuse };
    if existing == Existing::Refuse
        && let Some(path) = FILES.iter().map(|name| args.dir.join(name)).find(|path| path.exists())
    {
        return Err(InitError::Exists { path });
    }
    let pool_v6 = args.pool_v6.unwrap_or_else(random_ula);
    let text = configuration(&listen(args), args.pool_v4, pool_v6);
    let config = ServerConfig::parse(&text, "server.toml", &args.dir)?;
    let authority = Authority::new(&args.name[0], now)?;
    let server = authority.server(&args.name, now)?;

    make_directory(&args.dir)?;
    let write = |name: &str, text: &str, mode| {
        secret_file::write(&args.dir.join(name), text.as_bytes(), mode, existing)
    };
    write("ca-key.pem", authority.key_pem(), SECRET_MODE)?;
    write("ca.pem", authority.certificate_pem(), PUBLIC_MODE)?;
    write("server-key.pem", &server.key_pem, SECRET_MODE)?;
    write("server.pem", &server.certificate_pem, PUBLIC_MODE)?;
    // The configuration comes last: where it is, everything is.
    write("server.toml", &text, PUBLIC_MODE)?;
    Sqlite::open_or_create(&config.server.store_path())?;
    Ok(args.dir.join("server.toml"))
}

/// A random private /64 (RFC 4193 section 3.2: 40 random bits after `fd`).
fn random_ula() -> Ipv6Net {
    let mut octets = [0; 16];
    octets[0] = 0xfd;
    octets[1..6].copy_from_slice(&rand::random::<[u8; 5]>());
    Ipv6Net::new(octets.into(), 64).expect("64 is a prefix length of IPv6")
}

fn listen(args: &InitArgs) -> String {
    let quoted: Vec<String> = args.listen.iter().map(|address| format!("\"{address}\"")).collect();
    quoted.join(", ")
}

fn configuration(listen: &str, pool_v4: Ipv4Net, pool_v6: Ipv6Net) -> String {
    let replace = |line: &str| match line {
        _ if line.starts_with("listen = ") => format!("listen = [{listen}]"),
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
