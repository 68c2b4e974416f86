//! A failure of the store, on its way to the command.

use std::net::IpAddr;
use std::path::Path;

use minicbor::{Decode, Encode};

use vpnd_store::StoreError;
use vpnd_store::postgres::Trouble;

/// A [`StoreError`] without the names that the command has itself.
#[derive(Debug, Encode, Decode)]
pub(crate) enum Fault {
    #[n(0)]
    Missing,
    #[n(1)]
    Unreadable(#[n(0)] String),
    #[n(2)]
    Corrupted(#[n(0)] String),
    #[n(3)]
    Newer {
        #[n(0)]
        found: u32,
        #[n(1)]
        known: u32,
    },
    #[n(4)]
    Full,
    #[n(5)]
    Busy,
    #[n(6)]
    Failed(#[n(0)] String),
    /// The name that is taken, which may differ in case from the one that was asked for.
    #[n(7)]
    UserExists(#[n(0)] String),
    #[n(8)]
    NoSuchUser,
    /// The user is one of this source.
    #[n(9)]
    External(#[n(0)] String),
    /// Why the address is not the user's.
    #[n(10)]
    AddressTaken {
        #[n(0)]
        address: IpAddr,
        #[n(1)]
        name: String,
        #[n(2)]
        holder: String,
    },
    #[n(11)]
    Older,
    /// The user and device that have the key.
    #[n(12)]
    KeyTaken(#[n(0)] String),
    #[n(13)]
    TooManyDevices(#[n(0)] u64),
    /// A database's name, what is wrong with it, and whether it may be there again in a while.
    #[n(14)]
    Database(#[n(0)] String, #[n(1)] String, #[n(2)] bool),
    /// A store's name, and why it can't be moved or moved to.
    #[n(15)]
    Unsuitable(#[n(0)] String, #[n(1)] String),
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Missing { .. } => Self::Missing,
            StoreError::Unreadable { source, .. } => Self::Unreadable(source.to_string()),
            StoreError::Corrupted { detail, .. } => Self::Corrupted(detail),
            StoreError::Older { .. } => Self::Older,
            StoreError::Newer { found, known, .. } => Self::Newer { found, known },
            StoreError::Full { .. } => Self::Full,
            StoreError::Busy { .. } => Self::Busy,
            StoreError::Failed { detail, .. } => Self::Failed(detail),
            StoreError::UserExists { name } => Self::UserExists(name),
            StoreError::NoSuchUser { .. } => Self::NoSuchUser,
            StoreError::External { source_name, .. } => Self::External(source_name),
            StoreError::AddressTaken { address, name, holder } => {
                Self::AddressTaken { address, name, holder }
            }
            StoreError::KeyTaken { holder } => Self::KeyTaken(holder),
            StoreError::TooManyDevices { most, .. } => Self::TooManyDevices(most),
            StoreError::Database { database, trouble } => {
                Self::Database(database, trouble.to_string(), trouble.is_for_now())
            }
            StoreError::Unsuitable { store, detail } => Self::Unsuitable(store, detail),
            // Only the auth process stores users of other sources, and moves sessions.
            error @ (StoreError::NameTaken { .. } | StoreError::Unusable { .. } | StoreError::NoFleet) => {
                Self::Failed(error.to_string())
            }
        }
    }
}

impl Fault {
    /// The error for people, about the store at `path` and the user `name`.
    pub(crate) fn into_error(self, path: &Path, name: &str) -> StoreError {
        let (path, name) = (path.to_owned(), name.to_owned());
        match self {
            Self::Missing => StoreError::Missing { path },
            Self::Unreadable(reason) => {
                StoreError::Unreadable { path, source: std::io::Error::other(reason) }
            }
            Self::Corrupted(detail) => StoreError::corrupted(path, detail),
            Self::Older => StoreError::Older { path },
            Self::Newer { found, known } => StoreError::Newer { path, found, known },
            Self::Full => StoreError::Full { path },
            Self::Busy => StoreError::Busy { path },
            Self::Failed(detail) => StoreError::Failed { path, detail },
            Self::UserExists(taken) => StoreError::UserExists { name: vpnd_sys::text::plain(&taken) },
            Self::External(source) => {
                StoreError::External { name, source_name: vpnd_sys::text::plain(&source) }
            }
            Self::NoSuchUser => StoreError::NoSuchUser { name },
            Self::KeyTaken(holder) => StoreError::KeyTaken { holder: vpnd_sys::text::plain(&holder) },
            Self::TooManyDevices(most) => StoreError::TooManyDevices { name, most },
            Self::Database(database, trouble, is_for_now) => {
                let (database, told) = (vpnd_sys::text::plain(&database), vpnd_sys::text::plain(&trouble));
                let trouble = if is_for_now { Trouble::ToldForNow(told) } else { Trouble::Told(told) };
                StoreError::Database { database, trouble }
            }
            Self::Unsuitable(store, detail) => StoreError::Unsuitable {
                store: vpnd_sys::text::plain(&store),
                detail: vpnd_sys::text::plain(&detail),
            },
            Self::AddressTaken { address, name, holder } => StoreError::AddressTaken {
                address,
                name: vpnd_sys::text::plain(&name),
                holder: vpnd_sys::text::plain(&holder),
            },
        }
    }
}
