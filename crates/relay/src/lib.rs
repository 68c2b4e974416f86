//! Datagrams of the gateway's port over a TCP connection (PROTOCOL §18): a relay at each end moves
//! them between a stream and a socket, after the requests of [`opening`].
//!
//! INVARIANT: what waits to be sent is bounded: a datagram that finds no room is dropped, as a
//! router would. A peer that sends nothing, stops in the middle of a datagram, or takes nothing is
//! given up. This crate must not know what datagrams mean, nor what protects the stream.
#![deny(unsafe_code)]
// A library in form only: its users are the processes of the daemon.
#![allow(missing_docs)]

mod frames;
pub mod opening;
mod runs;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, sleep_until, timeout_at};

use frames::Frames;
pub use frames::{MAX_DATAGRAM, put};
use runs::Collected;
pub use runs::{Run, RunSocket};

/// The name of the protocol in the `Upgrade` header of HTTP.
pub const PROTOCOL: &str = "UoTLV/1";
/// Bytes that wait here for the stream at most. With what the layers below hold, no more than
/// 128 KiB are unsent.
const MAX_QUEUE: usize = 80 << 10;
/// Bytes that the system holds unsent, as far as these relays set it (`TCP_NOTSENT_LOWAT`).
pub const MAX_UNSENT_BELOW: u32 = 32 << 10;
/// Bytes that TLS may hold.
pub const MAX_UNSENT_TLS: usize = 16 << 10;
/// Time for the rest of a datagram whose beginning has come, and for a peer to take anything.
const STALLED: Duration = Duration::from_secs(30);
/// Datagrams or runs of them received before the stream has its turn, and bytes.
const BATCH: usize = 64;
const BATCH_BYTES: usize = 64 << 10;

/// The socket's side.
pub trait Datagrams {
    /// Sends a run: datagrams of `segment` bytes, the last of which may be shorter. Those that
    /// can't be sent at once are lost.
    fn send(&self, run: &[u8], segment: usize);

    /// Waits until a datagram may be there.
    fn readable(&self) -> impl Future<Output = io::Result<()>> + Send;

    /// Receives a run.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is none.
    fn try_receive(&self, into: &mut [u8]) -> io::Result<Run>;
}

/// How patient a relay is.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Time until the first datagram of the socket's side.
    pub first: Duration,
    /// Time in which the stream brings no datagram.
    pub silence: Duration,
}

/// Reason why a relay has ended.
#[derive(Debug, thiserror::Error)]
pub enum End {
    #[error("the peer has closed the connection")]
    Closed,
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("the peer sends nothing")]
    Silent,
    #[error("the peer has stopped in the middle of a datagram")]
    Cut,
    #[error("the peer takes nothing")]
    Stalled,
    #[error("nothing answers the peer")]
    Unanswered,
}

/// Moves datagrams both ways until the connection ends, `before` being what was read of the stream
/// already. Those that find no room are counted in `dropped`.
pub async fn relay<S, D>(
    stream: S,
    before: &[u8],
    datagrams: &D,
    patience: Patience,
    dropped: &AtomicU64,
) -> End
where
    S: AsyncRead + AsyncWrite,
    D: Datagrams,
{
    let (reader, writer) = tokio::io::split(stream);
    let outcome = tokio::select! {
        outcome = from_stream(reader, before, datagrams, patience.silence) => outcome,
        outcome = to_stream(writer, datagrams, patience.first, dropped) => outcome,
    };
    match outcome {
        Ok(never) => match never {},
        Err(end) => end,
    }
}

async fn from_stream(
    mut reader: impl AsyncRead + Unpin,
    before: &[u8],
    datagrams: &impl Datagrams,
    silence: Duration,
) -> Result<std::convert::Infallible, End> {
    let mut frames = Frames::new(before);
    let (mut heard, mut partial) = (Instant::now(), None);
    loop {
        let any = send_all(&mut frames, datagrams);
        let now = Instant::now();
        if any {
            heard = now;
        }
        if any || !frames.is_partial() {
            partial = None;
        }
        let (until, end) = if frames.is_partial() {
            (*partial.get_or_insert(now) + STALLED, End::Cut)
        } else {
            (later(heard, silence), End::Silent)
        };
        match timeout_at(until, reader.read(frames.space())).await {
            Ok(read) => match read? {
                0 => return Err(End::Closed),
                read => frames.filled(read),
            },
            Err(_) => return Err(end),
        }
    }
}

/// Sends what is whole, in runs; whether there was anything.
fn send_all(frames: &mut Frames, datagrams: &impl Datagrams) -> bool {
    thread_local! {
        static COLLECTED: std::cell::RefCell<Collected> = std::cell::RefCell::default();
    }
    COLLECTED.with_borrow_mut(|collected| {
        let mut any = false;
        while let Some(datagram) = frames.next() {
            any = true;
            if !collected.take(datagram) {
                flush(collected, datagrams);
                collected.take(datagram);
            }
        }
        flush(collected, datagrams);
        any
    })
}

fn flush(collected: &mut Collected, datagrams: &impl Datagrams) {
    if let Some((run, segment)) = collected.run() {
        datagrams.send(run, segment);
        collected.clear();
    }
}

async fn to_stream(
    mut writer: impl AsyncWrite + Unpin,
    datagrams: &impl Datagrams,
    first: Duration,
    dropped: &AtomicU64,
) -> Result<std::convert::Infallible, End> {
    let mut queue = Queue::default();
    let (begun, mut received) = (Instant::now(), false);
    loop {
        // Waiting data is sent before more is awaited.
        let mut since = Instant::now();
        while !queue.is_flushed {
            tokio::select! {
                moved = queue.push(&mut writer) => {
                    if moved? { since = Instant::now(); }
                }
                ready = datagrams.readable() => {
                    ready?;
                    queue.fill(datagrams, dropped);
                }
                () = sleep_until(since + STALLED) => return Err(End::Stalled),
            }
        }
        if received {
            datagrams.readable().await?;
        } else {
            let ready = timeout_at(later(begun, first), datagrams.readable()).await;
            ready.map_err(|_| End::Unanswered)??;
        }
        received |= queue.fill(datagrams, dropped);
    }
}

fn later(since: Instant, by: Duration) -> Instant {
    // A limit that is no limit.
    since.checked_add(by).unwrap_or(since + Duration::from_secs(1 << 30))
}

/// Datagrams in the form of the stream that wait for it.
struct Queue {
    bytes: Vec<u8>,
    /// The number that has been sent.
    sent: usize,
    /// Nothing waits here or in the layers below that only a flush moves on.
    is_flushed: bool,
}

impl Default for Queue {
    fn default() -> Self {
        Self { bytes: Vec::new(), sent: 0, is_flushed: true }
    }
}

impl Queue {
    /// Receives what is there, as far as there is room; whether there was anything.
    fn fill(&mut self, datagrams: &impl Datagrams, dropped: &AtomicU64) -> bool {
        thread_local! {
            static ROOM: std::cell::RefCell<Box<[u8]>> =
                std::cell::RefCell::new(vec![0; MAX_DATAGRAM].into_boxed_slice());
        }
        self.bytes.drain(..std::mem::take(&mut self.sent));
        ROOM.with_borrow_mut(|room| {
            let (mut any, mut bytes) = (false, 0);
            for _ in 0..BATCH {
                match datagrams.try_receive(room) {
                    Ok(run) => {
                        self.append(&room[..run.len], run.segment, dropped);
                        any = true;
                        bytes += run.len;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // About a datagram that was sent before, such as an unreachable port.
                    Err(_) => {}
                }
                if bytes >= BATCH_BYTES {
                    break;
                }
            }
            any
        })
    }

    /// Takes the datagrams of a run for which there is room, and counts the others.
    fn append(&mut self, run: &[u8], segment: usize, dropped: &AtomicU64) {
        for datagram in run.chunks(segment.max(1)) {
            if self.bytes.len() + datagram.len() > MAX_QUEUE {
                dropped.fetch_add(1, Ordering::Relaxed);
            } else {
                put(&mut self.bytes, datagram);
                self.is_flushed = false;
            }
        }
    }

    /// Sends some of it; whether anything moved. Safe to cancel.
    async fn push(&mut self, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<bool> {
        if self.sent < self.bytes.len() {
            match writer.write(&self.bytes[self.sent..]).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                sent => self.sent += sent,
            }
        } else {
            writer.flush().await?;
            self.bytes.clear();
            (self.sent, self.is_flushed) = (0, true);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
