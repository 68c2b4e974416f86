//! Framing of control messages on the stream (PROTOCOL §3.1).

use minicbor::data::Type;
use minicbor::decode::{self, Decode};
use minicbor::encode::Encode;
use zeroize::{Zeroize, Zeroizing};

use super::{
    Attach, Challenge, ChallengeResponse, Close, Established, Login, Message, OneTimeCode, Refused, Update,
};

/// Longest message, in bytes, without its length.
pub const MAX_MESSAGE: usize = 16_384;
/// Bytes of the length in front of a message.
const LENGTH_LEN: usize = 4;

/// The error of a stream that is not one of control messages. The connection is to be closed with `bad-request`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The length is 0 or above [`MAX_MESSAGE`].
    #[error("a control message has a length of {0} bytes; 1 to {MAX_MESSAGE} are allowed")]
    Length(u32),
    /// The item is not the CBOR that it should be, or exceeds a limit.
    #[error("a control message is malformed: {0}")]
    Malformed(String),
    /// Bytes follow the item inside its frame.
    #[error("a control message has bytes behind its item")]
    Trailing,
}

impl From<decode::Error> for MessageError {
    fn from(error: decode::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// The bytes of `message` with its length in front; erased when dropped, since it may hold secrets.
#[must_use]
pub fn encode(message: &Message) -> Zeroizing<Vec<u8>> {
    // Room for the longest message at once: growing would leave copies of secrets behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(LENGTH_LEN + MAX_MESSAGE));
    bytes.extend_from_slice(&[0; LENGTH_LEN]);
    let body: &mut Vec<u8> = &mut bytes;
    match message {
        Message::Login(fields) => item(0, fields, body),
        Message::Attach(fields) => item(1, fields, body),
        Message::OneTimeCode(fields) => item(2, fields, body),
        Message::Bye => item(3, &Nothing, body),
        Message::ChallengeResponse(fields) => item(4, fields, body),
        Message::OneTimeCodeWanted => item(16, &Nothing, body),
        Message::Established(fields) => item(17, fields, body),
        Message::Refused(fields) => item(18, fields, body),
        Message::Close(fields) => item(19, fields, body),
        Message::Update(fields) => item(20, fields, body),
        Message::Wake => item(21, &Nothing, body),
        Message::Challenge(fields) => item(22, fields, body),
        Message::Drain => item(23, &Nothing, body),
        Message::Unknown(number) => item(*number, &Nothing, body),
    }
    let length = bytes.len() - LENGTH_LEN;
    debug_assert!(length <= MAX_MESSAGE, "the limits of the fields keep every message below the limit");
    bytes[..LENGTH_LEN].copy_from_slice(&(length as u32).to_le_bytes());
    bytes
}

fn item(number: u32, fields: &impl Encode<()>, body: &mut Vec<u8>) {
    let mut encoder = minicbor::Encoder::new(body);
    encoder
        .array(2)
        .and_then(|e| e.u32(number))
        .and_then(|e| e.encode(fields))
        .expect("writing to memory does not fail, and no field has a failing encoding");
}

/// The fields of a message that has none; those of later versions are ignored.
struct Nothing;

impl<C> Encode<C> for Nothing {
    fn encode<W: minicbor::encode::Write>(
        &self,
        e: &mut minicbor::Encoder<W>,
        _: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.map(0)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Nothing {
    fn decode(d: &mut minicbor::Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        match d.datatype()? {
            Type::Map | Type::MapIndef => d.skip().map(|()| Self),
            other => Err(decode::Error::type_mismatch(other).at(d.position())),
        }
    }
}

impl Message {
    /// Reads one message without its length.
    ///
    /// # Errors
    /// If it is not exactly one well-formed message within its limits.
    pub fn parse(body: &[u8]) -> Result<Self, MessageError> {
        let mut d = minicbor::Decoder::new(body);
        if d.array()? != Some(2) {
            return Err(decode::Error::message("not an array of two").at(0).into());
        }
        let message = match d.u32()? {
            0 => Self::Login(fields::<Login>(&mut d)?),
            1 => Self::Attach(fields::<Attach>(&mut d)?),
            2 => Self::OneTimeCode(fields::<OneTimeCode>(&mut d)?),
            3 => fields::<Nothing>(&mut d).map(|_| Self::Bye)?,
            4 => Self::ChallengeResponse(fields::<ChallengeResponse>(&mut d)?),
            16 => fields::<Nothing>(&mut d).map(|_| Self::OneTimeCodeWanted)?,
            17 => Self::Established(Box::new(fields::<Established>(&mut d)?)),
            18 => Self::Refused(fields::<Refused>(&mut d)?),
            19 => Self::Close(fields::<Close>(&mut d)?),
            20 => Self::Update(fields::<Update>(&mut d)?),
            21 => fields::<Nothing>(&mut d).map(|_| Self::Wake)?,
            22 => Self::Challenge(fields::<Challenge>(&mut d)?),
            23 => fields::<Nothing>(&mut d).map(|_| Self::Drain)?,
            number => fields::<Nothing>(&mut d).map(|_| Self::Unknown(number))?,
        };
        if d.position() == body.len() { Ok(message) } else { Err(MessageError::Trailing) }
    }
}

fn fields<'b, T: Decode<'b, ()>>(d: &mut minicbor::Decoder<'b>) -> Result<T, MessageError> {
    Ok(d.decode()?)
}

/// Cuts the stream into messages, from pieces of any size.
///
/// It holds at most one message beyond the piece that was pushed last: pull with [`Decoder::next_message`] until it
/// has no more before pushing again.
#[derive(Default)]
pub struct Decoder {
    /// Bytes not consumed yet. May hold secrets.
    bytes: Zeroizing<Vec<u8>>,
}

impl core::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Decoder").field("buffered", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Decoder {
    /// A decoder at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, piece: &[u8]) {
        let wanted = self.bytes.len() + piece.len();
        if wanted > self.bytes.capacity() {
            // Grown by hand, because growing in place would leave the old copy behind unerased.
            let mut grown = Zeroizing::new(Vec::with_capacity(wanted.next_power_of_two()));
            grown.extend_from_slice(&self.bytes);
            self.bytes = grown;
        }
        self.bytes.extend_from_slice(piece);
    }

    /// The next message, if all of it has arrived.
    ///
    /// # Errors
    /// If the stream is not one of control messages; it cannot be resumed then.
    pub fn next_message(&mut self) -> Result<Option<Message>, MessageError> {
        let Some((length, _)) = self.bytes.split_first_chunk::<LENGTH_LEN>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length);
        if length == 0 || length as usize > MAX_MESSAGE {
            return Err(MessageError::Length(length));
        }
        let end = LENGTH_LEN + length as usize;
        let Some(body) = self.bytes.get(LENGTH_LEN..end) else { return Ok(None) };
        let message = Message::parse(body)?;
        self.consume(end);
        Ok(Some(message))
    }

    fn consume(&mut self, count: usize) {
        let rest = self.bytes.len() - count;
        self.bytes.copy_within(count.., 0);
        self.bytes[rest..].zeroize();
        self.bytes.truncate(rest);
    }
}
