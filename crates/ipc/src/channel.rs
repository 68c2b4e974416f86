//! Typed messages, with descriptors if need be, between two processes of one daemon.
//!
//! A frame is a length and a number of descriptors (both u32, little-endian), then one CBOR item of
//! that length. Descriptors travel with the first byte of their frame. Invariants: a frame is as
//! long as both ends agree at most, and so is what is allocated for it; a frame that breaks a rule
//! ends the channel; buffers are erased, since passwords and keys pass through here. This module
//! must not know what the messages mean.

use std::convert::Infallible;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;

use minicbor::{Decode, Encode};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use tokio::io::Interest;
use tokio::net::UnixStream;
use zeroize::Zeroizing;

const HEADER: usize = 8;
/// Descriptors that one frame may carry: the most that the kernel passes at once (`SCM_MAX_FD`).
pub const MAX_DESCRIPTORS: usize = 253;

#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("a channel between the daemon's processes failed: {0}")]
    Io(#[from] io::Error),
    /// The other end broke the rules of frames.
    #[error("a channel between the daemon's processes broke: {0}")]
    Broken(&'static str),
    /// The other end sent something else than the messages of this channel.
    #[error("a channel between the daemon's processes carried a message that makes no sense: {0}")]
    Malformed(#[from] minicbor::decode::Error),
}

/// One end of a channel. Frames of several senders don't mix only if the senders take turns.
#[derive(Clone, Debug)]
pub struct Channel {
    stream: Arc<UnixStream>,
    max_len: usize,
}

/// A message and the descriptors that came with it, in the sender's order.
pub struct Received<T> {
    pub message: T,
    pub descriptors: Vec<OwnedFd>,
}

impl<T> Received<T> {
    /// The message, and its descriptor if it came with one, from a sender who has no more to send.
    pub fn into_parts(mut self) -> Result<(T, Option<OwnedFd>), ChannelError> {
        let descriptor = self.descriptors.pop();
        Ok((self.alone()?, descriptor))
    }

    /// The message, from a sender who has no descriptors to send.
    pub fn alone(self) -> Result<T, ChannelError> {
        if self.descriptors.is_empty() {
            Ok(self.message)
        } else {
            Err(ChannelError::Broken("an unexpected descriptor"))
        }
    }
}

/// Both ends of a new channel, as descriptors to pass to other processes.
pub fn pair() -> io::Result<(StdStream, StdStream)> {
    StdStream::pair()
}

impl Channel {
    /// Takes one end, within a tokio runtime. Frames have `max_len` bytes at most in either
    /// direction.
    pub fn new(stream: StdStream, max_len: usize) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream: Arc::new(UnixStream::from_std(stream)?), max_len })
    }

    /// Sends one message. Not to be cancelled half-way unless the channel is given up.
    pub async fn send<T: Encode<()>>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        // The frame is erased, but a vector that grows leaves what it held before.
        let mut length = Length(HEADER);
        minicbor::encode(message, &mut length).expect("all is counted");
        let mut frame = Zeroizing::new(Vec::with_capacity(length.0));
        frame.resize(HEADER, 0);
        minicbor::encode(message, &mut *frame).expect("a vector takes all that is written to it");
        let len = frame.len() - HEADER;
        if len > self.max_len || descriptors.len() > MAX_DESCRIPTORS {
            return Err(ChannelError::Broken("a message that is too long to send"));
        }
        // Both fit: they are far below 4 GiB.
        frame[..4].copy_from_slice(&(len as u32).to_le_bytes());
        frame[4..HEADER].copy_from_slice(&(descriptors.len() as u32).to_le_bytes());
        let mut sent = self.write(|| send_with_descriptors(&self.stream, &frame, descriptors)).await?;
        while sent < frame.len() {
            sent += self.write(|| send_with_descriptors(&self.stream, &frame[sent..], &[])).await?;
        }
        Ok(())
    }

    /// The next message; `None` when the other end is gone. Not to be cancelled unless the channel
    /// is given up.
    pub async fn receive<T: for<'b> Decode<'b, ()>>(&self) -> Result<Option<Received<T>>, ChannelError> {
        let mut header = [0; HEADER];
        let mut descriptors = Vec::new();
        let mut have = self.read(|| receive_part(&self.stream, &mut header, &mut descriptors)).await?;
        if have == 0 {
            return Ok(None);
        }
        while have < HEADER {
            have += self.read_more(&mut header[have..]).await?;
        }
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]) as usize
        };
        let (len, count) = (word(0), word(4));
        if len > self.max_len {
            return Err(ChannelError::Broken("a message that is too long"));
        }
        if count != descriptors.len() {
            return Err(ChannelError::Broken("another number of descriptors than announced"));
        }
        let mut body = Zeroizing::new(vec![0; len]);
        let mut have = 0;
        while have < len {
            have += self.read_more(&mut body[have..]).await?;
        }
        let mut decoder = minicbor::Decoder::new(&body);
        let message = decoder.decode()?;
        if decoder.position() != len {
            return Err(ChannelError::Broken("bytes after a message"));
        }
        Ok(Some(Received { message, descriptors }))
    }

    /// Closes both directions, which ends the other side's reads.
    pub fn close(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(self.stream.as_fd(), rustix::net::Shutdown::Both)?)
    }

    /// Bytes in the middle of a frame, where neither the end nor descriptors have a place.
    async fn read_more(&self, into: &mut [u8]) -> Result<usize, ChannelError> {
        let mut strays = Vec::new();
        let count = self.read(|| receive_part(&self.stream, into, &mut strays)).await?;
        match (count, strays.is_empty()) {
            (0, _) => Err(ChannelError::Broken("the end in the middle of a message")),
            (_, false) => Err(ChannelError::Broken("a descriptor in the middle of a message")),
            (count, true) => Ok(count),
        }
    }

    async fn write(&self, send: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        self.stream.async_io(Interest::WRITABLE, send).await
    }

    async fn read(&self, receive: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        self.stream.async_io(Interest::READABLE, receive).await
    }
}

/// Counts bytes.
struct Length(usize);

impl minicbor::encode::Write for Length {
    type Error = Infallible;

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), Infallible> {
        self.0 += bytes.len();
        Ok(())
    }
}

fn send_with_descriptors(
    stream: &UnixStream,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    // By a call that names no address, since not every process may use one that can.
    if descriptors.is_empty() {
        return Ok(rustix::net::send(stream.as_fd(), bytes, SendFlags::NOSIGNAL)?);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
    debug_assert!(fits, "the caller has counted them");
    Ok(rustix::net::sendmsg(stream.as_fd(), &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

fn receive_part(stream: &UnixStream, into: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(into)];
    let received = rustix::net::recvmsg(stream.as_fd(), &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other("descriptors were lost on their way: the process has too many open"));
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, Write as _};

    use super::*;

    fn ends(max_len: usize) -> (Channel, Channel) {
        let (a, b) = pair().unwrap();
        (Channel::new(a, max_len).unwrap(), Channel::new(b, max_len).unwrap())
    }

    #[tokio::test]
    async fn a_long_message_arrives_with_its_descriptors_in_order() {
        let (a, b) = ends(1 << 20);
        let files: Vec<_> = (0..MAX_DESCRIPTORS as u8)
            .map(|n| {
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(&[n]).unwrap();
                file.rewind().unwrap();
                file
            })
            .collect();
        let text = "x".repeat(900_000);
        let borrowed: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        let (sent, received) = tokio::join!(a.send(&text, &borrowed), b.receive::<String>());
        sent.unwrap();
        let received = received.unwrap().unwrap();
        assert!(received.message == text);
        for (n, descriptor) in received.descriptors.into_iter().enumerate() {
            let mut byte = [0];
            std::fs::File::from(descriptor).read_exact(&mut byte).unwrap();
            assert_eq!(usize::from(byte[0]), n);
        }
        drop(a);
        assert!(b.receive::<String>().await.unwrap().is_none(), "the end is no error");
    }

    #[tokio::test]
    async fn what_is_too_long_is_neither_sent_nor_taken() {
        let (a, b) = ends(1 << 10);
        assert!(matches!(a.send(&"x".repeat(2_000), &[]).await, Err(ChannelError::Broken(_))));
        let long = Channel { stream: Arc::clone(&a.stream), max_len: 1 << 20 };
        long.send(&"x".repeat(2_000), &[]).await.unwrap();
        assert!(matches!(b.receive::<String>().await, Err(ChannelError::Broken(_))));
    }

    #[tokio::test]
    async fn a_frame_that_breaks_the_rules_ends_the_channel() {
        let frames: [&[u8]; 5] = [
            &[1, 0, 0],
            &[2, 0, 0, 0, 0, 0, 0, 0, 1],
            &[1, 0, 0, 0, 1, 0, 0, 0, 1],
            &[2, 0, 0, 0, 0, 0, 0, 0, 1, 1],
            &[1, 0, 0, 0, 0, 0, 0, 0, 0xFF],
        ];
        for frame in frames {
            let (mut a, b) = pair().unwrap();
            a.write_all(frame).unwrap();
            drop(a);
            let b = Channel::new(b, 1 << 10).unwrap();
            assert!(b.receive::<u8>().await.is_err(), "{frame:?}");
        }
    }

    #[tokio::test]
    async fn an_unexpected_descriptor_is_refused() {
        let (a, b) = ends(1 << 10);
        let file = tempfile::tempfile().unwrap();
        a.send(&7_u8, &[file.as_fd()]).await.unwrap();
        let received = b.receive::<u8>().await.unwrap().unwrap();
        assert!(matches!(received.alone(), Err(ChannelError::Broken(_))));
    }
}
