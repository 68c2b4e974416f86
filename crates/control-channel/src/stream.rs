//! Control messages over the one stream of a connection (PROTOCOL §3.1).

use std::time::Duration;

use quinn::{Connection, ConnectionError, ReadError, RecvStream, SendStream, VarInt, WriteError};
use vpnd_proto::control::{Code, Decoder, End, Message, MessageError, encode};

/// Bytes read from the stream at once; most messages are shorter.
const READ: usize = 2_048;

/// An error of the control stream.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The peer broke the protocol.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The connection is gone, or the peer reset its side.
    #[error("reading from the control channel failed: {0}")]
    Read(#[from] ReadError),
    /// The connection is gone, or the peer stopped listening.
    #[error("writing to the control channel failed: {0}")]
    Write(#[from] WriteError),
    /// The peer grants the stream no credit for a message.
    #[error("the peer does not read what it is sent")]
    Unread,
}

/// The receiving side.
pub struct Reader {
    stream: RecvStream,
    decoder: Decoder,
}

impl Reader {
    /// Reads the messages that `from` sends on `stream`.
    #[must_use]
    pub fn new(stream: RecvStream, from: End) -> Self {
        Self { stream, decoder: Decoder::new(from) }
    }

    /// The next message; `None` once the peer finished its side. May be dropped and called again
    /// without losing bytes.
    ///
    /// # Errors
    /// [`StreamError`].
    pub async fn next(&mut self) -> Result<Option<Message>, StreamError> {
        loop {
            if let Some(message) = self.decoder.next_message()? {
                return Ok(Some(message));
            }
            match self.stream.read_chunk(READ, true).await? {
                Some(chunk) => self.decoder.push(&chunk.bytes),
                None => return Ok(None),
            }
        }
    }
}

/// The sending side.
pub struct Writer {
    stream: SendStream,
    patience: Option<Duration>,
}

impl Writer {
    /// Writes messages to `stream`. A message waits until the peer grants credit for it, for as
    /// long as the connection lives.
    #[must_use]
    pub const fn new(stream: SendStream) -> Self {
        Self { stream, patience: None }
    }

    /// From now on a message waits for the peer's credit this long at most.
    pub const fn set_patience(&mut self, patience: Duration) {
        self.patience = Some(patience);
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`StreamError::Write`], and [`StreamError::Unread`] if patience was set and is over.
    pub async fn send(&mut self, message: &Message) -> Result<(), StreamError> {
        let encoded = encode(message);
        let sent = self.stream.write_all(&encoded);
        match self.patience {
            Some(patience) => {
                tokio::time::timeout(patience, sent).await.map_err(|_| StreamError::Unread)??
            }
            None => sent.await?,
        }
        Ok(())
    }

    /// Ends this side, and waits until the peer has everything or the connection is gone.
    pub async fn finish(&mut self) {
        // Finishing twice is the only failure, and then there is nothing left to do.
        let _ = self.stream.finish();
        let _ = self.stream.stopped().await;
    }
}

/// Closes a connection with the reason's number (PROTOCOL §14).
pub fn close(connection: &Connection, code: Code, text: &str) {
    connection.close(VarInt::from_u32(u32::from(code.number())), text.as_bytes());
}

/// The code with which the peer closed a connection, if it did.
#[must_use]
pub fn close_code(error: &ConnectionError) -> Option<Code> {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            u16::try_from(u64::from(close.error_code)).ok().map(Code::from)
        }
        _ => None,
    }
}
