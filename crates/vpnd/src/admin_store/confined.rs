//! A command's end of the process that opens the store, which has shut itself in.
//!
//! INVARIANT: the command opens nothing in the state directory, and waits for no answer without
//! limit.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::database::{DatabaseTarget, PROMPTLY};
use super::message::{FromStore, Opening, StoreLaunch};
use super::request::StoreRequest;
use super::{AdminStore, Requests, Stores};
use vpnd_config::ServerConfig;
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::messages::{Common, SecretBytes};
use vpnd_ipc::spawn::{ChildError, RunningChild, StartingChild};
use vpnd_store::StoreError;
use vpnd_store::postgres::Trouble;
use vpnd_sys::account::UnixUser;
use vpnd_sys::logging::LogFormat;

/// Limit for a reply: a store is checked as a whole when it is opened.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Limit for closing the store.
const END_TIMEOUT: Duration = Duration::from_secs(6);

/// Opens stores in a process that has shut itself in. Only for a process's first thread, as
/// [`StartingChild::start`] is.
#[derive(Clone, Copy, Debug)]
pub struct Confined;

impl Stores for Confined {
    fn open(&self, config: &ServerConfig, opening: Opening) -> Result<AdminStore, StoreError> {
        let (path, directory) = (config.server.store_path(), &config.server.state_dir);
        let failed = |detail: String| StoreError::Failed { path: path.clone(), detail };
        if matches!(opening, Opening::Create | Opening::Replace | Opening::Move) {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.map_err(|error| failed(format!("its directory can't be made: {error}")))?;
        }
        let owner = match std::fs::metadata(directory) {
            Ok(found) => found.uid(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(StoreError::Missing { path });
            }
            Err(source) => return Err(StoreError::Unreadable { path, source }),
        };
        let identity = UnixUser::to_become(owner).map_err(|error| failed(error.to_string()))?;
        let (database, connections) = DatabaseTarget::dial(config, opening)?.unzip();
        let launch = StoreLaunch {
            common: Common::new("warn", LogFormat::Text, config.process.sandbox, identity),
            directory: directory.as_os_str().as_bytes().to_vec().into(),
            opening,
            database,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(error.to_string()))?;
        let running = runtime
            .block_on(start(&launch, &connections.unwrap_or_default()))
            .map_err(|error| failed(error.to_string()))?;
        let is_prompt = opening == Opening::Promptly && config.store.database().is_some();
        let limit = if is_prompt { PROMPTLY } else { ANSWER_TIMEOUT };
        let mut process = StoreProcess { runtime, running: Some(running), path: path.clone(), limit };
        match process.receive(limit)? {
            FromStore::Opened(opened) => opened.map_err(|fault| fault.into_error(&path, ""))?,
            _ => return Err(process.unexpected()),
        }
        Ok(AdminStore { requests: Box::new(process), path, records: config.audit.enabled })
    }
}

async fn start(launch: &StoreLaunch, connections: &[OwnedFd]) -> Result<RunningChild<FromStore>, ChildError> {
    let mut child = StartingChild::start(ChildRole::Store)?;
    let sent = child.send(launch, connections).await;
    // If it has ended by itself, this error has the reason, and the other only that the pipe is
    // closed.
    child.prepared().await?;
    sent?;
    Ok(child.at_work())
}

/// The command's end of the process.
struct StoreProcess {
    runtime: Runtime,
    /// `None` once it is ended.
    running: Option<RunningChild<FromStore>>,
    path: PathBuf,
    /// For a reply of the store.
    limit: Duration,
}

impl StoreProcess {
    fn failed(&self, detail: impl ToString) -> StoreError {
        StoreError::Failed { path: self.path.clone(), detail: detail.to_string() }
    }

    fn unexpected(&self) -> StoreError {
        self.failed("the process that opened it has sent an unexpected message")
    }

    /// Its next message. A process that sends none in time is ended.
    fn receive(&mut self, limit: Duration) -> Result<FromStore, StoreError> {
        let Some(running) = &mut self.running else {
            return Err(self.failed("the process that opened it has ended"));
        };
        let answer = self.runtime.block_on(async { tokio::time::timeout(limit, running.receive()).await });
        match answer {
            Ok(Ok(FromStore::Failed(reason))) => Err(self.failed(reason)),
            Ok(Ok(message)) => Ok(message),
            Ok(Err(error)) => Err(self.failed(error)),
            Err(_) => {
                // Dropping it kills it.
                self.running = None;
                if limit == PROMPTLY {
                    let trouble = Trouble::ToldForNow("does not answer in time".to_owned());
                    return Err(StoreError::Database { database: "of [store]".to_owned(), trouble });
                }
                Err(self.failed(format!(
                    "it could not be read within {} s: look what lies in its directory",
                    ANSWER_TIMEOUT.as_secs()
                )))
            }
        }
    }
}

impl Requests for StoreProcess {
    fn request(&mut self, request: StoreRequest) -> Result<SecretBytes, StoreError> {
        // The audit file is another matter.
        let is_store = !matches!(request, StoreRequest::RecordDeed(_));
        let limit = if is_store { self.limit } else { ANSWER_TIMEOUT };
        if let Some(running) = &self.running {
            let sent = self.runtime.block_on(running.send(&request, &[]));
            sent.map_err(|error| self.failed(error))?;
        }
        match self.receive(limit)? {
            FromStore::Reply(reply) => Ok(reply),
            _ => Err(self.unexpected()),
        }
    }
}

impl Drop for StoreProcess {
    /// Lets it close the store, which empties its write-ahead log.
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            self.runtime.block_on(running.dismiss(END_TIMEOUT));
        }
    }
}
