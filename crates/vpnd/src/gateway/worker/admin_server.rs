//! The gateway's end of the control socket.
//!
//! Invariants: from its first moment nobody but its owner can connect to the socket, and whoever connects is asked
//! for by the kernel's word (`SO_PEERCRED`) as well; two daemons never share a path, and a dead daemon's socket never
//! blocks a new one; a slow or silent peer holds one of a few places for a bounded time.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Mode;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::admin::{Handler, MAX_REQUEST, Request, Response};
use crate::own_file;
use crate::sys::lock::LockedFile;

/// Conversations at the same time; more wait in the kernel's queue.
const MAX_CONVERSATIONS: usize = 16;
/// Connections that may wait in the kernel's queue.
const BACKLOG: i32 = 16;
/// Pause after the kernel had no descriptor or memory for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the control socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    /// A daemon is alive.
    #[error("another vpnd uses the control socket {}: stop it, or set another `socket` in [admin]", .0.display())]
    InUse(PathBuf),
    /// Something that is no socket is in the way.
    #[error("{} is no socket: remove it, or set another `socket` in [admin]", .0.display())]
    NotASocket(PathBuf),
    /// The operating system refused.
    #[error("can't {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// How long each part of a conversation may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines {
    /// Waiting for a request.
    pub(super) request: Duration,
    /// Working out the answer.
    pub(super) handler: Duration,
    /// Working out the answer to [`Request::Upgrade`]: a whole gateway starts meanwhile.
    pub(super) upgrade: Duration,
    /// Sending it.
    pub(super) response: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        let request = Duration::from_secs(10);
        let (handler, upgrade) = (Duration::from_secs(20), Duration::from_secs(60));
        Self { request, handler, upgrade, response: Duration::from_secs(10) }
    }
}

/// The open control socket.
#[derive(Debug)]
pub(crate) struct AdminSocket {
    listener: UnixListener,
    /// The user who may connect besides root: the daemon's own.
    pub(super) owner: u32,
    pub(super) deadlines: Deadlines,
    /// Its file, unless another process looks after that.
    place: Option<Place>,
}

/// The file of a control socket. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    /// Held while the daemon lives. It is the lock, not the socket, that tells a live daemon from a dead one.
    _lock: LockedFile,
}

impl AdminSocket {
    /// Opens the socket at `path`. Its directory is made, for its owner alone, if it is missing.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`BindError`]; a live daemon's socket is left alone then.
    pub(crate) fn bind(path: &Path) -> Result<Self, BindError> {
        let failed = |action| move |source| BindError::Io { action, path: path.to_owned(), source };
        let directory = crate::secret_file::parent(path);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed("make the directory of the control socket"))?;
        let lock = lock(path)?;
        remove_stale(path)?;
        let listener = listen(path).map_err(failed("open the control socket"))?;
        let owner = rustix::process::geteuid().as_raw();
        let place = Place { path: path.to_owned(), _lock: lock };
        Ok(Self { listener, owner, deadlines: Deadlines::default(), place: Some(place) })
    }

    /// The listening descriptor, for another process, and the place that this one goes on to look after.
    ///
    /// # Errors
    /// If the runtime does not let go of it.
    pub(crate) fn into_parts(self) -> io::Result<(OwnedFd, Option<Place>)> {
        Ok((self.listener.into_std()?.into(), self.place))
    }

    /// Takes over a listening descriptor; `owner` is the user who may connect besides root.
    ///
    /// # Errors
    /// If the descriptor can't be used by the runtime.
    pub(crate) fn adopt(listener: OwnedFd, owner: u32) -> io::Result<Self> {
        let listener = std::os::unix::net::UnixListener::from(listener);
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        Ok(Self { listener, owner, deadlines: Deadlines::default(), place: None })
    }

    /// Answers requests until the future is dropped, or `over` is notified: then it takes no more conversations, and ends with
    /// the last.
    pub(crate) async fn serve<H: Handler>(self, handler: Arc<H>, over: Arc<Notify>) {
        let places = Arc::new(Semaphore::new(MAX_CONVERSATIONS));
        // Dropping the set ends the conversations, so nothing outlives this future.
        let mut conversations = JoinSet::new();
        info!(socket = ?self.listener.local_addr().ok(), "control socket open");
        loop {
            let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
            while conversations.try_join_next().is_some() {}
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = over.notified() => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (handler, owner, deadlines) = (handler.clone(), self.owner, self.deadlines);
                    conversations.spawn(async move {
                        if let Err(error) = converse(stream, &*handler, owner, deadlines).await {
                            debug!(%error, "a conversation on the control socket broke off");
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    warn!(%error, "can't accept on the control socket");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        while conversations.join_next().await.is_some() {}
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What stays after a failure is a stale socket, which the next start replaces.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Takes the lock beside the socket. The kernel lets go of it when the process ends, however it ends.
fn lock(path: &Path) -> Result<LockedFile, BindError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock = PathBuf::from(name);
    let failed = |source| BindError::Io { action: "lock", path: lock.clone(), source };
    // Less privileged processes may write in the directory.
    let file = own_file::open_or_create(&lock).map_err(failed)?;
    LockedFile::try_lock(file).map_err(failed)?.ok_or_else(|| BindError::InUse(path.to_owned()))
}

/// Removes what a dead daemon left. The caller holds the lock.
fn remove_stale(path: &Path) -> Result<(), BindError> {
    let failed = |source| BindError::Io { action: "replace", path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path).map_err(failed),
        Ok(_) => Err(BindError::NotASocket(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Linux gives the file the mode that the socket has when it is bound, so there is no moment at which others could
    // connect, and the umask, which belongs to the whole process, stays as it is.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(socket.into())
}

/// Whether the kernel's word on who connected is good enough.
fn is_admitted(peer: u32, owner: u32) -> bool {
    peer == 0 || peer == owner
}

/// Answers the requests of one peer, in turn, until it leaves or breaks a rule.
async fn converse<H: Handler>(
    mut stream: UnixStream,
    handler: &H,
    owner: u32,
    deadlines: Deadlines,
) -> io::Result<()> {
    let peer = stream.peer_cred()?;
    if !is_admitted(peer.uid(), owner) {
        warn!(uid = peer.uid(), pid = peer.pid(), "refused on the control socket");
        let text = "only root and the user of the daemon may use the control socket";
        return respond(&mut stream, &Response::Error(text.to_owned()), deadlines).await;
    }
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = (&mut reader).take(MAX_REQUEST as u64);
        timeout(deadlines.request, limited.read_until(b'\n', &mut line)).await??;
        if line.is_empty() {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            let text = format!("a request is one line of at most {MAX_REQUEST} bytes");
            return respond(&mut writer, &Response::Error(text), deadlines).await;
        }
        let response = match serde_json::from_slice(&line) {
            Ok(request) => answer(handler, request, deadlines).await,
            Err(error) => Response::Error(format!("not a request: {error}")),
        };
        respond(&mut writer, &response, deadlines).await?;
    }
}

async fn answer<H: Handler>(handler: &H, request: Request, deadlines: Deadlines) -> Response {
    let limit = if request == Request::Upgrade { deadlines.upgrade } else { deadlines.handler };
    let work = async {
        match request {
            Request::Status => handler.status().await.map(|status| Response::Status(Box::new(status))),
            Request::Kick { target } => {
                let ended = handler.kick(target.clone()).await;
                info!(?target, ?ended, "an administrator ends sessions");
                ended.map(Response::Ended)
            }
            Request::Reload => handler.reload().await.map(Response::Reloaded),
            Request::Upgrade => handler.upgrade().await.map(Response::Upgraded),
        }
    };
    let late = |_| Err(format!("the gateway did not answer within {} s", limit.as_secs()));
    timeout(limit, work).await.unwrap_or_else(late).unwrap_or_else(Response::Error)
}

async fn respond(
    writer: &mut (impl AsyncWrite + Unpin),
    response: &Response,
    deadlines: Deadlines,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    timeout(deadlines.response, writer.write_all(&line)).await?
}

#[cfg(test)]
mod tests;
