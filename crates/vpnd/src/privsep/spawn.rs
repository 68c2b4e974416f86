//! The opener's side of a part: starting it, hearing from it, ending it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use minicbor::Encode;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::channel::{self, Channel, ChannelError};
use super::launch::{MAX_FRAME, ToOpener, borrowed};
use super::part::Part;
use super::stderr::{self, Relay};
use crate::sys::process;
use crate::sys::sandbox::Protections;

/// How long a part may take to be ready: the store is checked as a whole, and ciphers are measured.
const STARTS_WITHIN: Duration = Duration::from_secs(120);
/// How long a message may take until there is room for it: as long as a part leaves its messages unread, nothing else is done, and no
/// signal taken.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Variables that parts keep; whatever else the caller's environment holds is none of their business.
/// `OPENSSL_ia32cap` is whoever starts the gateway saying which CPU instructions its ciphers may use.
const KEPT_VARIABLES: [&str; 8] = [
    "JOURNAL_STREAM",
    "LANG",
    "NO_COLOR",
    "OPENSSL_ia32cap",
    "RUST_BACKTRACE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TZ",
];
/// For the part that looks up names (`resolv.conf(5)`): a name server that is silent is not waited for as long as usual, because the
/// others may be asked over a protocol version that works.
const RESOLVER_OPTIONS: &str = "timeout:2 attempts:3";
/// The program of this process, whatever has become of its file.
pub(crate) const THIS_PROGRAM: &str = "/proc/self/exe";
/// Messages of a part that wait to be read.
const QUEUE: usize = 64;

/// Why there is no part, or no more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PartError {
    #[error("the {part} process can't be started: {source}")]
    Start { part: Part, source: io::Error },
    #[error("the {part} process is lost: {source}")]
    Channel { part: Part, source: ChannelError },
    #[error("{0}")]
    Failed(String),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Unreached(String),
    #[error("the {part} process has ended by itself ({how}); see the log above")]
    Ended { part: Part, how: String },
    #[error("the {0} process was not ready in time")]
    Slow(Part),
    #[error("the {0} process has said something else than was expected")]
    Unexpected(Part),
    #[error("the {0} process does not read what it is sent")]
    Unread(Part),
}

/// A running part. Dropping it ends it.
pub(crate) struct Running {
    part: Part,
    child: Child,
    channel: Channel,
    inbox: mpsc::Receiver<Result<ToOpener, ChannelError>>,
    /// What it logs, unless it may write to standard error itself.
    relay: Option<Relay>,
}

impl Running {
    /// Starts this program again as `part`. The caller must be the process's first thread: the kernel ends a part when
    /// the thread that started it ends.
    pub(crate) fn start(part: Part) -> Result<Self, PartError> {
        Self::start_from(Path::new(THIS_PROGRAM), part)
    }

    /// The same with another program, a later version of this one.
    pub(crate) fn start_from(program: &Path, part: Part) -> Result<Self, PartError> {
        let failed = |source| PartError::Start { part, source };
        let (ours, theirs) = channel::pair().map_err(failed)?;
        process::keep_descriptors_from_programs().map_err(failed)?;
        let (log, relay) = stderr::of_part().map_err(failed)?;
        let kept = KEPT_VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        let child = Command::new(program)
            .arg0("vpnd")
            .args(["part", part.name()])
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
        let (news, inbox) = mpsc::channel(QUEUE);
        let ear = channel.clone();
        tokio::spawn(async move {
            loop {
                let heard = match ear.receive::<ToOpener>().await {
                    Ok(Some(received)) => received.alone(),
                    Ok(None) => return,
                    // A part that ends before it has read everything resets its channel: how it ended says more.
                    Err(ChannelError::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset => return,
                    Err(error) => Err(error),
                };
                let broken = heard.is_err();
                if news.send(heard).await.is_err() || broken {
                    return;
                }
            }
        });
        Ok(Self { part, child, channel, inbox, relay })
    }

    /// Sends a message. A part that reads none is given up.
    pub(crate) async fn tell<T: Encode<()>>(
        &self,
        message: &T,
        descriptors: &[OwnedFd],
    ) -> Result<(), PartError> {
        let descriptors = borrowed(descriptors);
        let Ok(sent) = tokio::time::timeout(SEND_TIMEOUT, self.channel.send(message, &descriptors)).await
        else {
            // Half a message may be on its way, so nothing can follow.
            let _ = self.channel.close();
            return Err(PartError::Unread(self.part));
        };
        sent.map_err(|source| PartError::Channel { part: self.part, source })
    }

    /// Waits until it says that it is prepared.
    pub(crate) async fn prepared(&mut self) -> Result<Protections, PartError> {
        match self.starting().await? {
            ToOpener::Prepared(protections) => Ok(protections),
            _ => Err(PartError::Unexpected(self.part)),
        }
    }

    /// Waits until it says that it works.
    pub(crate) async fn ready(&mut self) -> Result<(), PartError> {
        match self.starting().await? {
            ToOpener::Ready => Ok(()),
            _ => Err(PartError::Unexpected(self.part)),
        }
    }

    async fn starting(&mut self) -> Result<ToOpener, PartError> {
        tokio::time::timeout(STARTS_WITHIN, self.hear()).await.map_err(|_| PartError::Slow(self.part))?
    }

    /// What it says next. A part that has ended is an error, as is one that gives up. Safe to cancel.
    pub(crate) async fn hear(&mut self) -> Result<ToOpener, PartError> {
        let part = self.part;
        match self.inbox.recv().await {
            Some(Ok(ToOpener::Failed(text))) => Err(PartError::Failed(text)),
            Some(Ok(ToOpener::Refused(text))) => Err(PartError::Refused(text)),
            Some(Ok(ToOpener::Unreached(text))) => Err(PartError::Unreached(text)),
            Some(Ok(message)) => Ok(message),
            Some(Err(source)) => Err(PartError::Channel { part, source }),
            None => {
                let how = match self.child.wait().await {
                    Ok(status) => told(status),
                    Err(error) => error.to_string(),
                };
                self.finish_log();
                Err(PartError::Ended { part, how })
            }
        }
    }

    /// Waits for its end, which was asked for; ends it when `patience` is over.
    pub(crate) async fn end(mut self, patience: Duration) {
        // What it says now is of no interest, but it must not wait for a reader.
        self.inbox.close();
        if tokio::time::timeout(patience, self.child.wait()).await.is_err() {
            tracing::warn!("the {} process does not end by itself and is killed", self.part);
            if let Err(error) = self.child.kill().await {
                tracing::error!(%error, "the {} process can't be killed", self.part);
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

    /// Lets it go: it ends when its channel does.
    pub(crate) async fn dismiss(mut self, patience: Duration) {
        self.inbox.close();
        if let Err(error) = self.channel.close() {
            tracing::debug!(%error, "a channel was closed already");
        }
        self.end(patience).await;
    }
}

fn told(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match status.signal() {
        Some(libc::SIGSYS) => "a system call that it may not use".to_owned(),
        Some(signal) => format!("signal {signal}"),
        None => status.to_string(),
    }
}
