//! Framing of control messages on the stream (PROTOCOL §3.1).

use ipnet::IpNet;
use minicbor::data::Type;
use minicbor::decode::{self, Decode};
use minicbor::encode::Encode;
use zeroize::{Zeroize, Zeroizing};

use super::{
    AsText, Attach, Challenge, ChallengeResponse, Close, Drain, End, Established, FEATURE_MORE_ROUTES, List,
    Login, LoginAt, LoginStart, MAX_ROUTES, Message, MoreRoutes, Network, OneTimeCode, ROUTES_IN_MESSAGE,
    Refused, Renewal, Update,
};

/// Longest message, in bytes, without its length.
pub const MAX_MESSAGE: usize = 16_384;
/// Bytes of the length in front of a message.
const LENGTH_LEN: usize = 4;

/// The error of a stream that is not one of control messages: to be closed with `bad-request`.
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
    /// Routes come without the network that they are for, more than it may have, or although the
    /// ends have not agreed on that.
    #[error("routes of a network do not come with it, are more than {MAX_ROUTES}, or were not agreed on")]
    Routes,
    /// It is one that the other end sends.
    #[error("a control message comes from the end that it is for")]
    WrongEnd,
}

impl From<decode::Error> for MessageError {
    fn from(error: decode::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// The bytes of `message` with its length in front, behind those of the routes for which it has no
/// room; erased when dropped, since it may hold secrets.
#[must_use]
pub fn encode(message: &Message) -> Zeroizing<Vec<u8>> {
    let more = message.network().and_then(|network| network.routes.get(ROUTES_IN_MESSAGE..));
    let more = more.unwrap_or_default().chunks(ROUTES_IN_MESSAGE);
    // Room for the longest messages at once: growing would leave copies of secrets behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity((1 + more.len()) * (LENGTH_LEN + MAX_MESSAGE)));
    for routes in more {
        let routes = List::new(routes.to_vec()).expect("a chunk is as long as a message has room for");
        frame(&mut bytes, |body| item(24, &MoreRoutes { routes }, body));
    }
    frame(&mut bytes, |body| write(message, body));
    bytes
}

/// Appends one message, which `write` writes, with its length in front.
fn frame(bytes: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; LENGTH_LEN]);
    write(bytes);
    let length = bytes.len() - start - LENGTH_LEN;
    debug_assert!(length <= MAX_MESSAGE, "the limits of the fields keep every message below the limit");
    bytes[start..start + LENGTH_LEN].copy_from_slice(&(length as u32).to_le_bytes());
}

/// Writes `message`, with as many routes as one message has room for.
fn write(message: &Message, body: &mut Vec<u8>) {
    let fitting =
        |network: &Network| Network { routes: network.routes.first(ROUTES_IN_MESSAGE), ..network.clone() };
    match message {
        Message::Login(fields) => item(0, fields, body),
        Message::Attach(fields) => item(1, fields, body),
        Message::OneTimeCode(fields) => item(2, fields, body),
        Message::Bye => item(3, &Nothing, body),
        Message::ChallengeResponse(fields) => item(4, fields, body),
        Message::LoginStart(fields) => item(5, fields, body),
        Message::OneTimeCodeWanted => item(16, &Nothing, body),
        Message::Established(fields) => {
            item(17, &Established { network: fitting(&fields.network), ..(**fields).clone() }, body);
        }
        Message::Refused(fields) => item(18, fields, body),
        Message::Close(fields) => item(19, fields, body),
        Message::Update(fields) => item(20, &Update { network: fitting(&fields.network) }, body),
        Message::Wake => item(21, &Nothing, body),
        Message::Challenge(fields) => item(22, fields, body),
        Message::Drain(fields) => item(23, fields, body),
        Message::Routes(fields) => item(24, fields, body),
        Message::Renewal(fields) => item(25, fields, body),
        Message::LoginAt(fields) => item(26, fields, body),
        Message::Unknown(number) => item(*number, &Nothing, body),
    }
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
            5 => Self::LoginStart(Box::new(fields::<LoginStart>(&mut d)?)),
            16 => fields::<Nothing>(&mut d).map(|_| Self::OneTimeCodeWanted)?,
            17 => Self::Established(Box::new(fields::<Established>(&mut d)?)),
            18 => Self::Refused(fields::<Refused>(&mut d)?),
            19 => Self::Close(fields::<Close>(&mut d)?),
            20 => Self::Update(fields::<Update>(&mut d)?),
            21 => fields::<Nothing>(&mut d).map(|_| Self::Wake)?,
            22 => Self::Challenge(fields::<Challenge>(&mut d)?),
            23 => Self::Drain(fields::<Drain>(&mut d)?),
            24 => Self::Routes(fields::<MoreRoutes>(&mut d)?),
            25 => Self::Renewal(fields::<Renewal>(&mut d)?),
            26 => Self::LoginAt(fields::<LoginAt>(&mut d)?),
            number => fields::<Nothing>(&mut d).map(|_| Self::Unknown(number))?,
        };
        if d.position() < body.len() {
            return Err(MessageError::Trailing);
        }
        match message.network() {
            Some(network) if network.routes.len() > ROUTES_IN_MESSAGE => Err(MessageError::Routes),
            _ => Ok(message),
        }
    }

    /// The end that sends it; `None` for one of a later version.
    #[must_use]
    pub const fn sender(&self) -> Option<End> {
        match self {
            Self::Login(_)
            | Self::Attach(_)
            | Self::OneTimeCode(_)
            | Self::Bye
            | Self::ChallengeResponse(_)
            | Self::LoginStart(_) => Some(End::Client),
            Self::OneTimeCodeWanted
            | Self::Established(_)
            | Self::Refused(_)
            | Self::Close(_)
            | Self::Update(_)
            | Self::Wake
            | Self::Challenge(_)
            | Self::Drain(_)
            | Self::Routes(_)
            | Self::Renewal(_)
            | Self::LoginAt(_) => Some(End::Gateway),
            Self::Unknown(_) => None,
        }
    }

    /// The network that it carries.
    fn network(&self) -> Option<&Network> {
        match self {
            Self::Established(established) => Some(&established.network),
            Self::Update(update) => Some(&update.network),
            _ => None,
        }
    }

    fn network_mut(&mut self) -> Option<&mut Network> {
        match self {
            Self::Established(established) => Some(&mut established.network),
            Self::Update(update) => Some(&mut update.network),
            _ => None,
        }
    }
}

fn fields<'b, T: Decode<'b, ()>>(d: &mut minicbor::Decoder<'b>) -> Result<T, MessageError> {
    Ok(d.decode()?)
}

/// Cuts the stream into messages, from pieces of any size.
///
/// It holds at most one message beyond the piece that was pushed last, and [`MAX_ROUTES`]: pull
/// with [`Decoder::next_message`] until it has no more before pushing again.
pub struct Decoder {
    /// The end that sends the stream.
    from: End,
    /// Whether the ends have agreed on [`FEATURE_MORE_ROUTES`].
    more_routes: bool,
    /// Bytes not consumed yet. May hold secrets.
    bytes: Zeroizing<Vec<u8>>,
    /// Routes of the network that is to come.
    routes: Vec<AsText<IpNet>>,
}

impl core::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Decoder").field("buffered", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Decoder {
    /// A decoder at the start of the stream that this end sends.
    #[must_use]
    pub fn new(from: End) -> Self {
        Self { from, more_routes: false, bytes: Zeroizing::default(), routes: Vec::new() }
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

    /// The next message, if all of it has arrived, with the routes that came before it.
    ///
    /// # Errors
    /// If the stream is not one of control messages; it cannot be resumed then.
    pub fn next_message(&mut self) -> Result<Option<Message>, MessageError> {
        while let Some(mut message) = self.next_single()? {
            if let Message::Routes(MoreRoutes { routes }) = &message {
                // An empty one would let a peer keep this end busy for nothing.
                if routes.is_empty() || self.routes.len() + routes.len() > MAX_ROUTES {
                    return Err(MessageError::Routes);
                }
                self.routes.extend_from_slice(routes);
                continue;
            }
            if let Message::Established(established) = &message {
                self.more_routes = established.features & FEATURE_MORE_ROUTES != 0;
            }
            if !self.routes.is_empty() {
                let network = message.network_mut().filter(|_| self.more_routes);
                let network = network.ok_or(MessageError::Routes)?;
                let all = [&network.routes[..], &core::mem::take(&mut self.routes)].concat();
                network.routes = List::new(all).map_err(|_| MessageError::Routes)?;
            }
            return Ok(Some(message));
        }
        Ok(None)
    }

    /// The next message as it stands in the stream.
    fn next_single(&mut self) -> Result<Option<Message>, MessageError> {
        let Some((length, _)) = self.bytes.split_first_chunk::<LENGTH_LEN>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length);
        if length == 0 || length as usize > MAX_MESSAGE {
            return Err(MessageError::Length(length));
        }
        let end = LENGTH_LEN + length as usize;
        let Some(body) = self.bytes.get(LENGTH_LEN..end) else { return Ok(None) };
        let message = Message::parse(body)?;
        if message.sender().is_some_and(|sender| sender != self.from) {
            return Err(MessageError::WrongEnd);
        }
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
