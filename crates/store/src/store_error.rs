//! Errors of the store.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::postgres::Trouble;
use crate::sqlite;

/// An error of the store; nothing was changed, unless it [is uncertain](Self::is_uncertain).
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("there is no user store at {}; make it with 'vpnd init' or the first 'vpnd user add'", path.display())]
    Missing { path: PathBuf },
    /// It may be there, but this process can't get at it.
    #[error("the user store {} can't be opened: {source}; run this as root, or as the owner of that file", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error(
        "the user store {} is damaged ({detail}); nothing was changed and nothing is let in. Keep that file and its \
         -wal file for rescue, put the newest backup in its place (vpnd keeps {}), then disable again whom you \
         disabled since",
        path.display(),
        backup.display()
    )]
    Corrupted { path: PathBuf, backup: PathBuf, detail: String },
    /// vpnd before 0.1 made the file.
    #[error(
        "the user store {} was made by a vpnd before 0.1, which this one does not read. Move it away; to take the users \
         along, write them with 'vpnd user export --with-hashes' of that version, and read them with 'vpnd user import'",
        path.display()
    )]
    Older { path: PathBuf },
    /// A newer version made the file.
    #[error(
        "the user store {} has format {found}, this vpnd supports up to {known}; install the newer vpnd that wrote it",
        path.display()
    )]
    Newer {
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest known format.
        known: u32,
    },
    #[error("the disk with {} is full; the change was not made. Free some space and try again", path.display())]
    Full { path: PathBuf },
    /// Another process held the store for too long.
    #[error("the user store {} is in use by another process; try again", path.display())]
    Busy { path: PathBuf },
    /// Anything else that the database or the system reports.
    #[error("the user store {} failed: {detail}", path.display())]
    Failed { path: PathBuf, detail: String },
    /// The database server, or what is between.
    #[error("the user database {database} {trouble}")]
    Database { database: String, trouble: Trouble },
    /// A store that can't be moved, or moved to.
    #[error("the user store {store} can't be used for that: {detail}")]
    Unsuitable { store: String, detail: String },
    #[error("the embedded user store belongs to one gateway: a fleet needs engine = \"postgres\" in [store]")]
    NoFleet,
    #[error("there is a user '{name}' already; choose another name, or use 'vpnd user passwd {name}'")]
    UserExists { name: String },
    #[error("there is no user '{name}'; 'vpnd user list' shows all")]
    NoSuchUser { name: String },
    /// Another user of a source, or one of another source, has the name.
    #[error(
        "the name '{name}' belongs to another user, {owner}; if that one is gone for good, run 'vpnd user remove {name}'"
    )]
    NameTaken { name: String, owner: String },
    #[error("the user '{name}' is one of the source '{source_name}': password and groups are changed there")]
    External { name: String, source_name: String },
    #[error("{address} can't be an address of '{name}': {holder}")]
    AddressTaken { address: IpAddr, name: String, holder: String },
    #[error(
        "a device of '{holder}' has this key already; make another with 'wg genkey', or remove that device"
    )]
    KeyTaken { holder: String },
    /// More than the access profile allows.
    #[error(
        "the user '{name}' has as many WireGuard devices as the access profile allows ({most}); remove one with \
         'vpnd device remove', or raise 'wireguard_max_devices' of the profile"
    )]
    TooManyDevices { name: String, most: u64 },
    /// A source's description of a user that can't be stored.
    #[error("the user '{name}' can't be stored: {detail}")]
    Unusable { name: String, detail: String },
}

impl StoreError {
    /// Whether the store may be free or there again in a while.
    #[must_use]
    pub fn is_for_now(&self) -> bool {
        match self {
            Self::Busy { .. } => true,
            Self::Database { trouble, .. } => trouble.is_for_now(),
            _ => false,
        }
    }

    /// Whether the change may still have been made.
    #[must_use]
    pub fn is_uncertain(&self) -> bool {
        matches!(self, Self::Database { trouble: Trouble::Uncertain, .. })
    }

    /// A copy of the failure, for another caller that has waited for the same work.
    #[must_use]
    pub fn repeated(&self) -> Self {
        match self {
            Self::Database { database, trouble } => {
                Self::Database { database: database.clone(), trouble: trouble.clone() }
            }
            // The embedded store has no work that callers share.
            other => Self::Failed { path: PathBuf::new(), detail: other.to_string() },
        }
    }

    /// The store at `path` is damaged, in this way.
    pub fn corrupted(path: PathBuf, detail: String) -> Self {
        Self::Corrupted { backup: sqlite::backup_path(&path), path, detail }
    }
}
