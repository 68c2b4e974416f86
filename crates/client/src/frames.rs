//! Frames between a user's command, the client service and the clients that it runs: a length (u32,
//! little-endian), then one CBOR item of that length.
//!
//! Invariants: a frame is as long as its receiver permits at most, and so is what is allocated for
//! it; one that has begun is complete soon; descriptors sent with it are closed unseen; buffers
//! are erased, since passwords pass through here. This module must not know what the messages mean.

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use minicbor::{Decode, Encode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::user_messages::MAX_PROFILE;

/// The longest frame of a user, bytes: the longest profile fits.
pub const MAX_FROM_USER: usize = MAX_PROFILE + (4 << 10);
/// The longest frame of the service or a client, bytes: all tunnels with all their routes fit.
pub const MAX_FROM_SERVICE: usize = 1 << 20;
/// Limit for the rest of a frame once its first byte is there, and for sending one.
const FRAME_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
const HEADER: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("a message is too long")]
    TooLong,
    #[error("a message does not arrive as a whole, or is not read, within {FRAME_TIMEOUT:?}")]
    Slow,
    #[error("a message makes no sense: {0}")]
    Malformed(#[from] minicbor::decode::Error),
    #[error("there are bytes after a message")]
    Trailing,
}

/// The receiving direction of a connection.
pub struct Reader {
    stream: OwnedReadHalf,
    max_len: usize,
}

/// The sending direction of a connection, which closes with it.
pub struct Writer {
    stream: OwnedWriteHalf,
}

/// Both directions of a connection, whose frames to this end have `max_len` bytes at most.
pub fn split(stream: UnixStream, max_len: usize) -> (Reader, Writer) {
    let (read, write) = stream.into_split();
    (Reader { stream: read, max_len }, Writer { stream: write })
}

/// Splits a connection that the runtime does not know yet.
///
/// # Errors
/// If the runtime can't take it.
pub fn split_std(stream: StdStream, max_len: usize) -> io::Result<(Reader, Writer)> {
    stream.set_nonblocking(true)?;
    Ok(split(UnixStream::from_std(stream)?, max_len))
}

impl Reader {
    /// The next message, for which it waits without a limit; `None` when the other end is gone. Not
    /// to be cancelled unless the connection is given up.
    ///
    /// # Errors
    /// [`FrameError`]: the connection is of no use any more.
    pub async fn next<T: for<'b> Decode<'b, ()>>(&mut self) -> Result<Option<T>, FrameError> {
        let mut header = [0; HEADER];
        if self.stream.read(&mut header[..1]).await? == 0 {
            return Ok(None);
        }
        let body = timeout(FRAME_TIMEOUT, self.rest(header)).await.map_err(|_| FrameError::Slow)??;
        let mut decoder = minicbor::Decoder::new(&body);
        let message = decoder.decode()?;
        if decoder.position() != body.len() {
            return Err(FrameError::Trailing);
        }
        Ok(Some(message))
    }

    /// The body of the frame whose first byte is in `header`.
    async fn rest(&mut self, mut header: [u8; HEADER]) -> Result<Zeroizing<Vec<u8>>, FrameError> {
        self.stream.read_exact(&mut header[1..]).await?;
        let len = u32::from_le_bytes(header) as usize;
        if len > self.max_len {
            return Err(FrameError::TooLong);
        }
        let mut body = Zeroizing::new(vec![0; len]);
        self.stream.read_exact(&mut body).await?;
        Ok(body)
    }
}

impl Writer {
    /// Sends one message. Not to be cancelled unless the connection is given up.
    ///
    /// # Errors
    /// [`FrameError`]: the connection is of no use any more.
    pub async fn send<T: Encode<()>>(&mut self, message: &T) -> Result<(), FrameError> {
        // Growing would leave a copy of a password behind.
        let mut frame = Zeroizing::new(Vec::with_capacity(MAX_FROM_USER + HEADER));
        frame.extend([0; HEADER]);
        minicbor::encode(message, &mut *frame).expect("a vector takes all that is written to it");
        let len = u32::try_from(frame.len() - HEADER).map_err(|_| FrameError::TooLong)?;
        frame[..HEADER].copy_from_slice(&len.to_le_bytes());
        let sent = timeout(FRAME_TIMEOUT, self.stream.write_all(&frame)).await;
        Ok(sent.map_err(|_| FrameError::Slow)??)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    use super::*;

    #[tokio::test]
    async fn a_message_arrives_and_the_end_is_no_error() {
        let (a, b) = UnixStream::pair().unwrap();
        let ((mut reader, _own), (_, mut writer)) = (split(a, 1 << 10), split(b, 1 << 10));
        writer.send(&"x".repeat(900)).await.unwrap();
        assert_eq!(reader.next::<String>().await.unwrap().unwrap().len(), 900);
        drop(writer);
        assert!(reader.next::<String>().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn what_breaks_the_rules_is_an_error() {
        let frames: [&[u8]; 6] = [
            &[1, 0],
            &[2, 0, 0, 0, 1],
            &[0xFF, 0xFF, 0xFF, 0xFF, 1],
            &[1, 4, 0, 0, 1],
            &[2, 0, 0, 0, 1, 1],
            &[1, 0, 0, 0, 0xFF],
        ];
        for frame in frames {
            let (mut a, b) = StdStream::pair().unwrap();
            a.write_all(frame).unwrap();
            drop(a);
            let (mut reader, _writer) = split_std(b, 1 << 10).unwrap();
            assert!(reader.next::<u8>().await.is_err(), "{frame:?}");
        }
    }

    #[tokio::test]
    async fn a_length_beyond_the_limit_is_refused_before_its_bytes_come() {
        let (mut a, b) = StdStream::pair().unwrap();
        let (mut reader, _writer) = split_std(b, 1 << 10).unwrap();
        a.write_all(&u32::to_le_bytes((1 << 10) + 1)).unwrap();
        assert!(matches!(reader.next::<u8>().await, Err(FrameError::TooLong)));
    }

    #[tokio::test]
    async fn half_a_frame_is_not_waited_for() {
        let (mut a, b) = StdStream::pair().unwrap();
        let (mut reader, _writer) = split_std(b, 1 << 10).unwrap();
        a.write_all(&[4, 0, 0, 0, 1]).unwrap();
        assert!(matches!(reader.next::<u64>().await, Err(FrameError::Slow)));
    }

    #[tokio::test]
    async fn an_end_that_reads_nothing_is_given_up() {
        let (a, _b) = StdStream::pair().unwrap();
        let (_reader, mut writer) = split_std(a, 1 << 10).unwrap();
        let sent = loop {
            if let Err(error) = writer.send(&"x".repeat(1 << 19)).await {
                break error;
            }
        };
        assert!(matches!(sent, FrameError::Slow), "{sent}");
    }

    #[tokio::test]
    async fn unexpected_descriptors_are_closed() {
        let (a, b) = StdStream::pair().unwrap();
        let (mut reader, _writer) = split_std(b, 1 << 10).unwrap();
        let (mut watched, passed) = StdStream::pair().unwrap();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let descriptors = [passed.as_fd()];
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&descriptors)));
        let frame = [std::io::IoSlice::new(&[1, 0, 0, 0, 7])];
        rustix::net::sendmsg(&a, &frame, &mut control, rustix::net::SendFlags::empty()).unwrap();
        drop(passed);
        assert_eq!(reader.next::<u8>().await.unwrap(), Some(7));
        // Its last holder is gone.
        let gone = watched.write_all(&[0]).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::BrokenPipe);
    }
}
