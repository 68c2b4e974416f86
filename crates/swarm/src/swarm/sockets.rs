//! The sockets for data: a few that all sessions share, or one for each.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::mpsc::Sender;

use super::{MAX_DATAGRAM, Received, SOCKETS, SwarmError, bind, local, source};
use crate::load::socket::SessionSockets;
use crate::message::Job;

/// Pause of a socket's reader after an error.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

pub(super) enum Sockets {
    /// Each has a task that passes on what arrives.
    Shared(Vec<Arc<UdpSocket>>),
    /// The one for each session has its number.
    Own(SessionSockets),
}

impl Sockets {
    pub(super) fn new(job: &Job, datagrams: &Sender<Received>) -> Result<Self, SwarmError> {
        if job.own_sockets {
            return Ok(Self::Own(SessionSockets::new(
                job.count,
                job.gateway,
                |_| local(job.gateway, source(job, 0)),
                job.campus.as_deref(),
            )?));
        }
        let share = |number| {
            let socket = Arc::new(UdpSocket::from_std(bind(local(job.gateway, source(job, number)))?)?);
            tokio::spawn(receive(Arc::clone(&socket), datagrams.clone()));
            Ok(socket)
        };
        Ok(Self::Shared((0..SOCKETS).map(share).collect::<Result<_, SwarmError>>()?))
    }

    /// The socket that a session has at first.
    pub(super) fn of(&self, session: usize) -> usize {
        match self {
            Self::Shared(sockets) => session % sockets.len(),
            Self::Own(_) => session,
        }
    }

    /// Sends a datagram. A full socket loses it, as any does.
    pub(super) fn send(&self, socket: usize, datagram: &[u8], to: SocketAddr) {
        match self {
            Self::Shared(sockets) => {
                let _ = sockets[socket].try_send_to(datagram, to);
            }
            Self::Own(sockets) => {
                let _ = sockets.send(socket, datagram, datagram.len());
            }
        }
    }

    /// Waits until sessions have received something at their own sockets, and notes which.
    pub(super) async fn ready(&self, sessions: &mut Vec<usize>) {
        match self {
            Self::Shared(_) => std::future::pending().await,
            Self::Own(sockets) => sockets.ready(sessions).await,
        }
    }
}

async fn receive(socket: Arc<UdpSocket>, datagrams: Sender<Received>) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let Ok((len, from)) = socket.recv_from(&mut buffer).await else {
            // An ICMP error from a gateway that is down; the clients find that out by themselves.
            tokio::time::sleep(ERROR_PAUSE).await;
            continue;
        };
        if datagrams.send((buffer[..len].to_vec(), from)).await.is_err() {
            return;
        }
    }
}
