//! The gateway's end of the control socket, which its worker serves.
//!
//! Invariants: a caller is root or the daemon's own user, by the kernel's account of them
//! (`SO_PEERCRED`); a slow or silent peer holds one of a few permits for a bounded time. The parent
//! has opened the socket, for its owner alone.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use vpnd_ipc::admin::{Handler, Kicked, MAX_REQUEST, Request, Response};

/// Conversations at the same time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 16;
/// Pause after the kernel had no descriptor or memory for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits for the parts of an exchange with an administrator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// Waiting for a request.
    pub(super) request: Duration,
    /// Working out the answer.
    pub(super) handler: Duration,
    /// Working out the answer to [`Request::Upgrade`]: a whole gateway starts meanwhile.
    pub(super) upgrade: Duration,
    /// Sending it.
    pub(super) response: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let request = Duration::from_secs(10);
        let (handler, upgrade) = (Duration::from_secs(20), Duration::from_secs(60));
        Self { request, handler, upgrade, response: Duration::from_secs(10) }
    }
}

#[derive(Debug)]
pub(crate) struct AdminSocket {
    listener: UnixListener,
    /// The user who may connect besides root: the daemon's own.
    pub(super) owner: u32,
    pub(super) timeouts: Timeouts,
}

impl AdminSocket {
    /// Takes over a listening descriptor; `owner` is the user who may connect besides root.
    ///
    /// # Errors
    /// If the descriptor can't be used by the runtime.
    pub(crate) fn adopt(listener: OwnedFd, owner: u32) -> io::Result<Self> {
        let listener = std::os::unix::net::UnixListener::from(listener);
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        Ok(Self { listener, owner, timeouts: Timeouts::default() })
    }

    /// Answers requests until the future is dropped, or `over` is notified: then it accepts no more
    /// connections, and ends with the last.
    pub(crate) async fn serve<H: Handler>(self, handler: Arc<H>, over: Arc<Notify>) {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        // Dropping the set ends the connections, so nothing outlives this future.
        let mut connections = JoinSet::new();
        let address = self.listener.local_addr().ok();
        let socket = address.as_ref().and_then(|address| address.as_pathname()).map(Path::display);
        info!(socket = socket.map(tracing::field::display), "control socket open");
        loop {
            let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
            while connections.try_join_next().is_some() {}
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = over.notified() => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (handler, owner, timeouts) = (handler.clone(), self.owner, self.timeouts);
                    connections.spawn(async move {
                        if let Err(error) = serve_connection(stream, &*handler, owner, timeouts).await {
                            debug!(%error, "a conversation on the control socket broke off");
                        }
                        drop(permit);
                    });
                }
                Err(error) => {
                    warn!(%error, "can't accept on the control socket");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        while connections.join_next().await.is_some() {}
    }
}

/// Whether the peer, as the kernel reports it, may use the control socket.
fn is_admitted(peer: u32, owner: u32) -> bool {
    peer == 0 || peer == owner
}

/// Answers the requests of one peer, in turn, until it closes or breaks a rule.
async fn serve_connection<H: Handler>(
    mut stream: UnixStream,
    handler: &H,
    owner: u32,
    timeouts: Timeouts,
) -> io::Result<()> {
    let peer = stream.peer_cred()?;
    if !is_admitted(peer.uid(), owner) {
        warn!(uid = peer.uid(), pid = peer.pid(), "refused on the control socket");
        let text = "only root and the user of the daemon may use the control socket";
        return respond(&mut stream, &Response::Error(text.to_owned()), timeouts).await;
    }
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = (&mut reader).take(MAX_REQUEST as u64);
        timeout(timeouts.request, limited.read_until(b'\n', &mut line)).await??;
        if line.is_empty() {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            let text = format!("a request is one line of at most {MAX_REQUEST} bytes");
            return respond(&mut writer, &Response::Error(text), timeouts).await;
        }
        let response = match serde_json::from_slice(&line) {
            Ok(request) => handle(handler, request, timeouts).await,
            Err(error) => Response::Error(format!("not a request: {error}")),
        };
        respond(&mut writer, &response, timeouts).await?;
    }
}

async fn handle<H: Handler>(handler: &H, request: Request, timeouts: Timeouts) -> Response {
    let limit = if request == Request::Upgrade { timeouts.upgrade } else { timeouts.handler };
    let work = async {
        match request {
            Request::Status => handler.status().await.map(|status| Response::Status(Box::new(status))),
            Request::Kick { target } => {
                let kicked = handler.kick(target.clone()).await;
                match &kicked {
                    Ok(Kicked { sessions, is_kept }) => {
                        info!(?target, sessions, is_kept, "an administrator ends sessions");
                    }
                    Err(why) => info!(?target, why, "an administrator would end sessions"),
                }
                kicked.map(Response::from)
            }
            Request::Reload => handler.reload().await.map(Response::Reloaded),
            Request::Upgrade => handler.upgrade().await.map(Response::Upgraded),
            Request::Fleet => handler.fleet().await.map(Response::Fleet),
            Request::Drain { within_s, fleet_safe } => {
                let drained = handler.drain(within_s.map(Duration::from_secs), fleet_safe).await;
                drained.map(|()| Response::Done)
            }
            Request::ConfirmAbsences { source } => {
                let confirmed = handler.confirm_absences(source.clone()).await;
                match &confirmed {
                    Ok(users) => info!(source, users, "an administrator confirms that users are gone"),
                    Err(why) => info!(source, why, "an administrator would confirm that users are gone"),
                }
                confirmed.map(Response::Confirmed)
            }
            Request::CancelDrain => handler.cancel_drain().await.map(|()| Response::Done),
        }
    };
    let late = |_| Err(format!("the gateway did not answer within {} s", limit.as_secs()));
    timeout(limit, work).await.unwrap_or_else(late).unwrap_or_else(Response::Error)
}

async fn respond(
    writer: &mut (impl AsyncWrite + Unpin),
    response: &Response,
    timeouts: Timeouts,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    timeout(timeouts.response, writer.write_all(&line)).await?
}

#[cfg(test)]
mod tests;
