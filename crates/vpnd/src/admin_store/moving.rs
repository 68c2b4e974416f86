//! Requests about a store that moves, or of which the database is looked at.

use minicbor::{Decode, Encode};

use super::request::Replied;
use super::served::{Engine, Serve, Served};
use super::{AdminStore, StoreError};
use vpnd_store::migrate;
use vpnd_store::postgres::{Holder, Postgres};

/// Copy the store from one engine to the other; answered with the number of users.
#[derive(Debug, Encode, Decode)]
pub(crate) struct MoveStore {
    #[n(0)]
    pub(crate) to_postgres: bool,
}

/// Make the database of the gateway of this name this gateway's.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Adopt {
    #[n(0)]
    pub(crate) from: String,
}

/// The database server's statement about itself; nothing where the store is a file.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Facts;

#[derive(Debug, Encode, Decode)]
pub(crate) struct DatabaseFacts {
    #[n(0)]
    pub(crate) version: String,
    #[n(1)]
    pub(crate) synchronous_commit: String,
    #[n(2)]
    pub(crate) fsync: bool,
    #[n(3)]
    pub(crate) connections_left: u64,
    #[n(4)]
    pub(crate) clock_apart_s: u64,
}

impl AdminStore {
    /// Copies the store to the other engine; the number of users. Only for
    /// [`Opening::Move`](super::Opening::Move).
    pub(crate) fn move_store(&mut self, to_postgres: bool) -> Result<u64, StoreError> {
        self.ask(MoveStore { to_postgres })
    }

    /// Makes the database of the gateway of this name this gateway's. Only for
    /// [`Opening::Move`](super::Opening::Move).
    pub(crate) fn adopt(&mut self, from: &str) -> Result<(), StoreError> {
        self.ask(Adopt { from: from.to_owned() })
    }

    /// The database server's statement about itself, if the store is a database.
    pub(crate) fn facts(&mut self) -> Result<Option<DatabaseFacts>, StoreError> {
        self.ask(Facts)
    }
}

impl Serve<MoveStore> for Served {
    fn serve(&mut self, MoveStore { to_postgres }: MoveStore) -> Replied<u64> {
        let (path, target) = self.moving()?;
        let state_dir = vpnd_sys::secret_file::parent(path);
        let failed = |error: std::io::Error| super::database::failed(state_dir, &error);
        let holder = Holder::of_state_dir(state_dir, None).map_err(failed)?;
        let (access, dial) = (&target.access, &target.dial);
        let users = if to_postgres {
            migrate::to_postgres(path, access, dial, &holder)?
        } else {
            migrate::to_sqlite(access, dial, &holder, path)?
        };
        Ok(users as u64)
    }
}

impl Serve<Adopt> for Served {
    fn serve(&mut self, Adopt { from }: Adopt) -> Replied<()> {
        let (path, target) = self.moving()?;
        let state_dir = vpnd_sys::secret_file::parent(path);
        let failed = |error: std::io::Error| super::database::failed(state_dir, &error);
        let holder = Holder::of_state_dir(state_dir, None).map_err(failed)?;
        Ok(Postgres::adopt(&target.access, &target.dial, &holder, &from)?)
    }
}

impl Serve<Facts> for Served {
    fn serve(&mut self, Facts: Facts) -> Replied<Option<DatabaseFacts>> {
        Ok(match self {
            Self::Store(Engine::Postgres(store), _) => {
                let facts = store.facts().clone();
                Some(DatabaseFacts {
                    version: facts.version,
                    synchronous_commit: facts.synchronous_commit,
                    fsync: facts.fsync,
                    connections_left: facts.connections_left,
                    clock_apart_s: facts.clock_apart_s,
                })
            }
            _ => None,
        })
    }
}
