//! A database as the store: the command connects to its servers beforehand, and the process that
//! uses them is given the connections.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use minicbor::{Decode, Encode};

use super::message::Opening;
use vpnd_config::ServerConfig;
use vpnd_config::database::{DatabaseHost, PostgresSettings};
use vpnd_config::fleet::Fleet;
use vpnd_ipc::gateway::database::DatabaseLaunch;
use vpnd_store::StoreError;
use vpnd_store::postgres::{Access, Dial, Dialled, Holder, Postgres, Trouble};

/// Connections to each server: a command that moves a store needs this many.
const CONNECTIONS: usize = 6;
/// Limit for the connections to all servers, and for each answer, with [`Opening::Promptly`].
pub(super) const PROMPTLY: Duration = Duration::from_millis(600);

/// How the process reaches the database.
#[derive(Debug, Encode, Decode)]
pub(crate) struct DatabaseTarget {
    #[n(0)]
    launch: DatabaseLaunch,
    #[n(1)]
    hosts: Vec<String>,
    #[n(2)]
    server_name: Option<String>,
    #[n(3)]
    database: String,
    #[n(4)]
    user: String,
    /// For each host why it can't be reached; nothing if the next descriptors are of connections to
    /// it.
    #[n(5)]
    unreachable: Vec<Option<String>>,
    /// The gateway's fleet and its name there, for a command that only looks.
    #[n(6)]
    fleet: Option<(String, String)>,
}

impl DatabaseTarget {
    /// Connects to the database that this configuration has for this opening, if it has one.
    pub(super) fn dial(
        config: &ServerConfig,
        opening: Opening,
    ) -> Result<Option<(Self, Vec<OwnedFd>)>, StoreError> {
        let settings = match opening {
            Opening::Audit | Opening::Replace | Opening::Kicks => None,
            Opening::Move => config.store.postgres.as_ref(),
            Opening::Existing | Opening::Promptly | Opening::Create | Opening::Inspect => {
                config.store.database()
            }
        };
        let Some(settings) = settings else { return Ok(None) };
        let failed = |error: anyhow::Error| StoreError::Database {
            database: format!("'{}' of [store]", settings.database),
            trouble: Trouble::Told(format!("can't be used: {}", vpnd_sys::text::format_chain(&error))),
        };
        let launch = DatabaseLaunch::new(settings.read_files().map_err(failed)?, None);
        let (mut unreachable, mut descriptors) = (Vec::new(), Vec::new());
        let wanted = if opening == Opening::Move { CONNECTIONS } else { 2 };
        for host in &settings.hosts {
            let connect = || match host {
                DatabaseHost::Address(address) if opening == Opening::Promptly => {
                    vpnd_sys::dial::connect(address, PROMPTLY / settings.hosts.len().max(1) as u32)
                }
                host => host.dial(),
            };
            let dialled: io::Result<Vec<OwnedFd>> = (0..wanted).map(|_| connect()).collect();
            match dialled {
                Ok(connections) => {
                    descriptors.extend(connections);
                    unreachable.push(None);
                }
                Err(error) => unreachable.push(Some(error.to_string())),
            }
        }
        let hosts = settings.hosts.iter().map(ToString::to_string).collect();
        let PostgresSettings { server_name, database, user, .. } = settings.clone();
        let fleet = config.fleet.as_ref().filter(|_| opening == Opening::Inspect);
        let fleet = fleet.map(|Fleet { id, name, .. }| (id.clone(), name.clone()));
        Ok(Some((Self { launch, hosts, server_name, database, user, unreachable, fleet }, descriptors)))
    }

    /// The way to it by these descriptors.
    pub(super) fn take(self, descriptors: Vec<OwnedFd>) -> anyhow::Result<Target> {
        let hosts = self.hosts.iter().map(|host| host.parse());
        let settings = PostgresSettings {
            hosts: hosts.collect::<Result<_, ()>>().map_err(|()| anyhow::anyhow!("a host is not valid"))?,
            server_name: self.server_name,
            database: self.database,
            user: self.user,
            password: None,
            identity: None,
            ca: None,
        };
        let access =
            Access::new(&settings, &self.launch.files()).map_err(|why| anyhow::anyhow!("[store]: {why}"))?;
        let reached = self.unreachable.iter().filter(|why| why.is_none()).count().max(1);
        let per_host = descriptors.len() / reached;
        let mut descriptors = descriptors.into_iter();
        let of_host = |why: Option<String>| match why {
            Some(why) => Err(why),
            None => Ok(descriptors.by_ref().take(per_host).collect()),
        };
        let hosts = self.unreachable.into_iter().map(of_host).collect();
        Ok(Target { access, dial: Arc::new(Given(Mutex::new(hosts))), fleet: self.fleet })
    }
}

/// A database, and the connections to it.
pub(super) struct Target {
    pub(super) access: Access,
    pub(super) dial: Arc<dyn Dial>,
    fleet: Option<(String, String)>,
}

impl Target {
    pub(super) fn open(&self, state_dir: &Path, opening: Opening) -> Result<Postgres, StoreError> {
        let holder = match opening {
            Opening::Inspect => Holder::look_up(state_dir),
            _ => Holder::of_state_dir(state_dir, None),
        };
        let mut holder = holder.map_err(|error| failed(state_dir, &error))?;
        if let Some((id, name)) = &self.fleet {
            (holder.fleet, holder.name) = (Some(id.clone()), name.clone());
        }
        if opening == Opening::Create {
            Postgres::create(&self.access, &self.dial, &holder)?;
        }
        Postgres::open(&self.access, Arc::clone(&self.dial), holder, state_dir)
    }
}

pub(super) fn failed(path: &Path, error: &dyn Display) -> StoreError {
    StoreError::Failed { path: path.to_owned(), detail: error.to_string() }
}

/// The connections to each host, or why there are none.
type Hosts = Vec<Result<VecDeque<OwnedFd>, String>>;

/// Connections that were made beforehand.
struct Given(Mutex<Hosts>);

impl Dial for Given {
    fn dial(&self, host: usize) -> io::Result<Dialled> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(host) {
            Some(Ok(connections)) => {
                let connection = connections.pop_front().map(Dialled::from);
                connection.ok_or_else(|| io::Error::other("the connection was lost"))
            }
            Some(Err(why)) => Err(io::Error::other(why.clone())),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}
