//! How the gateway's children are started: from which program, and with what first messages.
//!
//! Invariants: the TLS key goes to the auth process alone; all processes of one version are started
//! from one file, whatever another package has put in its place since.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::certificate::revoked_by_authority;
use super::database;
use crate::args::ServerArgs;
use crate::quic_keys;
use vpnd_config::endpoint::Endpoint;
use vpnd_config::profile::Profile;
use vpnd_config::{ConfigError, ServerConfig};
use vpnd_ipc::channel;
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::gateway::{AuthLaunch, Configuration, GatewayCertificate, WorkerLaunch};
use vpnd_ipc::messages::{Common, SecretBytes};
use vpnd_ipc::signing;
use vpnd_ipc::spawn::{self, StartingChild};
use vpnd_sys::sandbox::Protections;

/// A program that children are started from, also when its file is gone.
#[derive(Clone)]
pub(super) struct Program {
    path: PathBuf,
    /// The file to which `path` leads, unless that is this process's own.
    _file: Option<Arc<File>>,
}

impl Program {
    /// The program of this process.
    pub(super) fn own() -> Self {
        Self { path: PathBuf::from(spawn::THIS_PROGRAM), _file: None }
    }

    /// The program that is at this path now.
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // The new process still has the descriptor when the kernel looks for its program, and no
        // longer when that runs.
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(Self { path, _file: Some(Arc::new(file)) })
    }
}

/// Starts children, all from one program and with common settings.
#[derive(Clone)]
pub(super) struct Launcher {
    args: ServerArgs,
    common: Common,
    /// The program that is started.
    program: Program,
    /// Where a later version of it is installed.
    installed: PathBuf,
}

/// The worker's ends of the channels to the auth process.
pub(super) struct WorkerEnds {
    questions: OwnedFd,
    signatures: OwnedFd,
}

impl Launcher {
    /// Starts the program that runs, of which a later version is installed at this path.
    pub(super) fn new(args: ServerArgs, common: Common, installed: PathBuf) -> Self {
        Self { args, common, program: Program::own(), installed }
    }

    /// One that starts the program that is installed now.
    ///
    /// # Errors
    /// If that can't be opened.
    pub(super) fn of_installed(&self) -> io::Result<Self> {
        Ok(Self { program: Program::open(&self.installed)?, ..self.clone() })
    }

    pub(super) fn installed(&self) -> &Path {
        &self.installed
    }

    pub(super) fn program(&self) -> &Program {
        &self.program
    }

    pub(super) fn common(&self) -> &Common {
        &self.common
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// If it can't be read, or is not good.
    pub(super) fn read_configuration(&self) -> Result<(Configuration, ServerConfig), ConfigError> {
        Configuration::read(&self.args.config)
    }

    /// Starts the auth process, which gets the TLS key; with it the worker's ends of the channels
    /// to it, and how it is shut in.
    pub(super) async fn start_auth(
        &self,
        configuration: &Configuration,
        key: SecretBytes,
        is_start: bool,
    ) -> anyhow::Result<(StartingChild, WorkerEnds, Protections)> {
        let config = configuration.parse()?;
        let (questions, to_worker) = channel::pair()?;
        let (signatures, for_signing) = signing::pair()?;
        let (database, dialling) = database::of_auth(config.store.database())?;
        let launch = AuthLaunch {
            // The store stays with its owner: 'vpnd user' works on the same files.
            common: Common { identity: None, ..self.common.clone() },
            configuration: configuration.clone(),
            key,
            is_start,
            endpoint: Endpoint::of(&config).ok().map(Into::into),
            database,
            client_profile: client_profile(&config),
        };
        let descriptors = [to_worker.into(), for_signing].into_iter().chain(dialling).collect();
        let (auth, protections) = start_child(&self.program, ChildRole::Auth, &launch, descriptors).await?;
        Ok((auth, WorkerEnds { questions: questions.into(), signatures }, protections))
    }

    /// The first message of a worker; `auth` is how its auth process is shut in.
    pub(super) fn worker_launch(
        &self,
        config: &ServerConfig,
        configuration: Configuration,
        certificate: GatewayCertificate,
        auth: Protections,
    ) -> anyhow::Result<WorkerLaunch> {
        let client_ca = config.tls.client_ca.as_deref().map(vpnd_config::certificate::read).transpose()?;
        let client_crl = revoked_by_authority(&config.tls)?;
        Ok(WorkerLaunch {
            common: self.common.clone(),
            configuration,
            insecure_lab: self.args.insecure_lab,
            certificate,
            client_ca: client_ca.map(Into::into),
            quic_secret: SecretBytes(quic_keys::load_or_create_secret(&config.server.state_dir)?),
            owner: rustix::process::geteuid().as_raw(),
            pid: std::process::id(),
            auth,
            parent_version: env!("CARGO_PKG_VERSION").to_owned(),
            client_crl: client_crl.map(|list| list.file().into()),
        })
    }

    /// Starts the worker, which has no devices yet.
    pub(super) async fn start_worker(
        &self,
        launch: &WorkerLaunch,
        to_auth: WorkerEnds,
        listeners: &[OwnedFd],
    ) -> anyhow::Result<StartingChild> {
        let mut descriptors = vec![to_auth.questions, to_auth.signatures];
        for listener in listeners {
            descriptors.push(listener.try_clone()?);
        }
        Ok(start_child(&self.program, ChildRole::Worker, launch, descriptors).await?.0)
    }
}

/// The profile of clients for the pages, where clients need no certificates.
pub(super) fn client_profile(config: &ServerConfig) -> Option<String> {
    let is_wanted = config.portal.is_some() && !config.tls.require_client_certificate;
    let profile = is_wanted.then(|| Profile::of_gateway(config))?;
    let profile =
        profile.inspect_err(|error| tracing::warn!(%error, "the pages have no profile for clients"));
    Some(profile.ok()?.to_toml().to_string())
}

/// Starts `program` as a child with its first message.
pub(super) async fn start_child<T: minicbor::Encode<()>>(
    program: &Program,
    role: ChildRole,
    launch: &T,
    descriptors: Vec<OwnedFd>,
) -> anyhow::Result<(StartingChild, Protections)> {
    let mut child = StartingChild::start_from(&program.path, role)?;
    let sent = child.send(launch, &descriptors).await;
    drop(descriptors);
    // If the child has ended by itself, this error has the reason, and the other only that the pipe
    // is closed.
    let protections = child.prepared().await?;
    sent?;
    tracing::info!(
        process = %role,
        uid = protections.uid,
        seccomp = protections.seccomp,
        landlock = ?protections.landlock,
        "privileges given up"
    );
    Ok((child, protections))
}
