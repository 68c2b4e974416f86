//! The parent's side of a child: starting it, receiving from it, ending it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use minicbor::{Decode, Encode};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::channel::{self, Channel, ChannelError, Received};
use super::child::ChildRole;
use super::messages::{MAX_FRAME, Prepared, Ready, borrowed};
use super::stderr::{self, Relay};
use vpnd_sys::process;
use vpnd_sys::sandbox::Protections;

/// Limit for a child to be ready: the store is checked as a whole, and ciphers are measured.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Limit for a message to be sent: as long as a child leaves its messages unread, nothing else is
/// done, and no signal taken.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Variables that children keep; whatever else the caller's environment holds is none of their
/// business. By `OPENSSL_ia32cap` the administrator chooses which CPU instructions its
/// ciphers may use.
const KEPT_VARIABLES: [&str; 9] = [
    "CREDENTIALS_DIRECTORY",
    "JOURNAL_STREAM",
    "LANG",
    "NO_COLOR",
    "OPENSSL_ia32cap",
    "RUST_BACKTRACE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TZ",
];
/// For the child that looks up names (`resolv.conf(5)`): a name server that is silent is not waited
/// for as long as usual, because the others may be reachable over a protocol version that works.
const RESOLVER_OPTIONS: &str = "timeout:2 attempts:3";
/// The program of this process, whatever has become of its file.
pub const THIS_PROGRAM: &str = "/proc/self/exe";
/// Messages of a child that wait to be read.
const QUEUE: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("the {role} process can't be started: {source}")]
    Start { role: ChildRole, source: io::Error },
    #[error("the {role} process is lost: {source}")]
    Channel { role: ChildRole, source: ChannelError },
    #[error("{0}")]
    Failed(String),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Unreached(String),
    #[error("the {role} process has ended by itself ({how}); see the log above")]
    Ended { role: ChildRole, how: String },
    #[error("the {0} process was not ready in time")]
    Slow(ChildRole),
    #[error("the {0} process has sent an unexpected message")]
    Unexpected(ChildRole),
    #[error("the {0} process does not read what it is sent")]
    Unread(ChildRole),
}

/// A child that has been started, whose messages are received one by one until it works. Dropping
/// it ends it.
pub struct StartingChild {
    role: ChildRole,
    process: Child,
    channel: Channel,
    /// Relay of its log, unless it may write to standard error itself.
    relay: Option<Relay>,
}

/// A child at work, which sends messages `M`. Dropping it ends it.
pub struct RunningChild<M> {
    child: StartingChild,
    inbox: mpsc::Receiver<Result<M, ChannelError>>,
}

impl StartingChild {
    /// Starts this program again as `role`. The caller must be the process's first thread: the
    /// kernel ends a child when the thread that started it ends.
    pub fn start(role: ChildRole) -> Result<Self, ChildError> {
        Self::start_from(Path::new(THIS_PROGRAM), role)
    }

    /// Starts a role of another program, a later version of this one.
    pub fn start_from(program: &Path, role: ChildRole) -> Result<Self, ChildError> {
        let failed = |source| ChildError::Start { role, source };
        let (ours, theirs) = channel::pair().map_err(failed)?;
        process::keep_descriptors_from_programs().map_err(failed)?;
        let (log, relay) = stderr::of_child().map_err(failed)?;
        let kept = KEPT_VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        let process = Command::new(program)
            .arg0("vpnd")
            // In an upgrade an older parent starts a newer program, so the name of this command
            // stays.
            .args(["part", role.name()])
            .env_clear()
            .envs(kept)
            .env("RES_OPTIONS", RESOLVER_OPTIONS)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let channel = Channel::new(ours, MAX_FRAME).map_err(failed)?;
        Ok(Self { role, process, channel, relay })
    }

    /// Sends a message. A child that reads none is given up.
    pub async fn send<T: Encode<()>>(&self, message: &T, descriptors: &[OwnedFd]) -> Result<(), ChildError> {
        let descriptors = borrowed(descriptors);
        let Ok(sent) = tokio::time::timeout(SEND_TIMEOUT, self.channel.send(message, &descriptors)).await
        else {
            // Half a message may be on its way, so nothing can follow.
            let _ = self.channel.close();
            return Err(ChildError::Unread(self.role));
        };
        sent.map_err(|source| ChildError::Channel { role: self.role, source })
    }

    /// Waits until it is prepared.
    pub async fn prepared(&mut self) -> Result<Protections, ChildError> {
        match self.receive().await? {
            Prepared::Prepared(protections) => Ok(protections),
            Prepared::Failed(why) => Err(ChildError::Failed(why)),
        }
    }

    /// Waits until it works.
    pub async fn ready<M: FromChild>(mut self) -> Result<RunningChild<M>, ChildError> {
        match self.receive().await? {
            Ready::Ready => Ok(self.at_work()),
            Ready::Failed(why) => Err(ChildError::Failed(why)),
        }
    }

    /// The child's report of its failure, if that comes within this time. Nothing is received from
    /// it afterwards.
    pub async fn failure(&mut self, timeout: Duration) -> Option<ChildError> {
        match tokio::time::timeout(timeout, self.receive()).await.ok()? {
            Ok(Ready::Ready) => None,
            Ok(Ready::Failed(why)) => Some(ChildError::Failed(why)),
            Err(error) => Some(error),
        }
    }

    /// A child that works once it is prepared.
    pub fn at_work<M: FromChild>(self) -> RunningChild<M> {
        let (sender, inbox) = mpsc::channel(QUEUE);
        let channel = self.channel.clone();
        tokio::spawn(async move {
            while let Some(received) = receive(&channel).await.transpose() {
                let broken = received.is_err();
                if sender.send(received).await.is_err() || broken {
                    return;
                }
            }
        });
        RunningChild { child: self, inbox }
    }

    async fn receive<M: FromChild>(&mut self) -> Result<M, ChildError> {
        let role = self.role;
        let received = tokio::time::timeout(START_TIMEOUT, receive(&self.channel)).await;
        match received.map_err(|_| ChildError::Slow(role))? {
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(self.ended().await),
            Err(source) => Err(ChildError::Channel { role, source }),
        }
    }

    async fn ended(&mut self) -> ChildError {
        let how = match self.process.wait().await {
            Ok(status) => describe(status),
            Err(error) => error.to_string(),
        };
        self.finish_log();
        ChildError::Ended { role: self.role, how }
    }

    async fn end(mut self, timeout: Duration) {
        if tokio::time::timeout(timeout, self.process.wait()).await.is_err() {
            tracing::warn!("the {} process does not end by itself and is killed", self.role);
            if let Err(error) = self.process.kill().await {
                tracing::error!(%error, "the {} process can't be killed", self.role);
                return;
            }
        }
        self.finish_log();
    }

    /// Passes on the last of its log, once it has ended.
    fn finish_log(&mut self) {
        if let Some(relay) = self.relay.take() {
            relay.finish();
        }
    }
}

/// A message that a child sends.
pub trait FromChild: for<'b> Decode<'b, ()> + Send + 'static {}

impl<T: for<'b> Decode<'b, ()> + Send + 'static> FromChild for T {}

/// The next message; `None` when the child is gone.
async fn receive<M: FromChild>(channel: &Channel) -> Result<Option<M>, ChannelError> {
    match channel.receive::<M>().await {
        Ok(received) => received.map(Received::alone).transpose(),
        // A child that ends before it has read everything resets its channel: its exit status says
        // more.
        Err(ChannelError::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        Err(error) => Err(error),
    }
}

impl<M> RunningChild<M> {
    pub async fn send<T: Encode<()>>(&self, message: &T, descriptors: &[OwnedFd]) -> Result<(), ChildError> {
        self.child.send(message, descriptors).await
    }

    /// Its next message. A child that has ended is an error. Safe to cancel.
    pub async fn receive(&mut self) -> Result<M, ChildError> {
        match self.inbox.recv().await {
            Some(Ok(message)) => Ok(message),
            Some(Err(source)) => Err(ChildError::Channel { role: self.child.role, source }),
            None => Err(self.child.ended().await),
        }
    }

    /// Waits for its end, which was requested; ends it after `timeout`.
    pub async fn end(mut self, timeout: Duration) {
        // Its messages are of no interest now, but it must not wait for a reader.
        self.inbox.close();
        self.child.end(timeout).await;
    }

    /// Lets it go: it ends when its channel does.
    pub async fn dismiss(mut self, timeout: Duration) {
        self.inbox.close();
        if let Err(error) = self.child.channel.close() {
            tracing::debug!(%error, "a channel was closed already");
        }
        self.child.end(timeout).await;
    }
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match status.signal() {
        Some(libc::SIGSYS) => "a system call that it may not use".to_owned(),
        Some(signal) => format!("signal {signal}"),
        None => status.to_string(),
    }
}
