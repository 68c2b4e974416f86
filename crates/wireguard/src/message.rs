//! The four messages as bytes (§5.4.1 to §5.4.7). All integers are little-endian.
//!
//! Raw bytes stop here: a parsed message has its length and its type. What is in it is not checked
//! yet. Nothing in this module knows of keys.

use vpnd_proto::wire::Index;
pub use vpnd_proto::wireguard::{PADDING, TAG_LEN, TRANSPORT_HEADER_LEN, TransportHeader};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::hash::MAC_LEN;
use crate::timestamp::Timestamp;

const INITIATION: u32 = 1;
const RESPONSE: u32 = 2;
const COOKIE_REPLY: u32 = 3;
const TRANSPORT: u32 = 4;

/// The first message of a handshake (§5.4.2).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Initiation {
    kind: U32,
    sender: U32,
    pub(crate) ephemeral: [u8; 32],
    pub(crate) sealed_static: [u8; 32 + TAG_LEN],
    pub(crate) sealed_timestamp: [u8; Timestamp::LEN + TAG_LEN],
    pub(crate) mac1: [u8; MAC_LEN],
    pub(crate) mac2: [u8; MAC_LEN],
}

/// The second message of a handshake (§5.4.3).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Response {
    kind: U32,
    sender: U32,
    receiver: U32,
    pub(crate) ephemeral: [u8; 32],
    pub(crate) sealed_nothing: [u8; TAG_LEN],
    pub(crate) mac1: [u8; MAC_LEN],
    pub(crate) mac2: [u8; MAC_LEN],
}

/// The request for a proof of the sender's address (§5.4.7).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CookieReply {
    kind: U32,
    receiver: U32,
    pub(crate) nonce: [u8; 24],
    pub(crate) sealed_cookie: [u8; MAC_LEN + TAG_LEN],
}

/// The sizes of the paper.
const _: () =
    assert!(size_of::<Initiation>() == 148 && size_of::<Response>() == 92 && size_of::<CookieReply>() == 64);

/// A message of known type and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Type 1.
    Initiation(&'a Initiation),
    /// Type 2.
    Response(&'a Response),
    /// Type 3.
    CookieReply(&'a CookieReply),
    /// Type 4: the header; the ciphertext is behind it.
    Transport(TransportHeader),
}

/// The error of bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// None of the types 1 to 4, or reserved bytes that are not zero.
    #[error("the type is not one of WireGuard's")]
    Kind,
    /// The length is not the type's.
    #[error("the length is not that of the type")]
    Length,
}

impl<'a> Message<'a> {
    /// Reads a datagram.
    ///
    /// # Errors
    /// If its type is unknown, or its length is not the type's.
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Self, MessageError> {
        let (kind, _) = U32::read_from_prefix(datagram).map_err(|_| MessageError::Length)?;
        Ok(match kind.get() {
            INITIATION => Self::Initiation(whole(datagram)?),
            RESPONSE => Self::Response(whole(datagram)?),
            COOKIE_REPLY => Self::CookieReply(whole(datagram)?),
            TRANSPORT => Self::Transport(TransportHeader::parse(datagram).map_err(|_| MessageError::Length)?),
            _ => return Err(MessageError::Kind),
        })
    }
}

fn whole<T: FromBytes + KnownLayout + Immutable + Unaligned>(datagram: &[u8]) -> Result<&T, MessageError> {
    T::ref_from_bytes(datagram).map_err(|_| MessageError::Length)
}

impl Initiation {
    /// A message without indexes and MACs, which the sender's worker adds.
    pub(crate) fn new(
        ephemeral: [u8; 32],
        sealed_static: [u8; 32 + TAG_LEN],
        sealed_timestamp: [u8; Timestamp::LEN + TAG_LEN],
    ) -> Self {
        Self {
            kind: U32::new(INITIATION),
            sender: U32::new(0),
            ephemeral,
            sealed_static,
            sealed_timestamp,
            mac1: [0; MAC_LEN],
            mac2: [0; MAC_LEN],
        }
    }

    /// The index that the responder shall send to.
    #[must_use]
    pub fn sender(&self) -> Index {
        Index(self.sender.get())
    }

    /// Returns the message with `sender` in it.
    #[must_use]
    pub fn from(self, sender: Index) -> Self {
        Self { sender: U32::new(sender.0), ..self }
    }
}

impl Response {
    /// A message without indexes and MACs, which the sender's worker adds.
    pub(crate) fn new(ephemeral: [u8; 32], sealed_nothing: [u8; TAG_LEN]) -> Self {
        Self {
            kind: U32::new(RESPONSE),
            sender: U32::new(0),
            receiver: U32::new(0),
            ephemeral,
            sealed_nothing,
            mac1: [0; MAC_LEN],
            mac2: [0; MAC_LEN],
        }
    }

    /// The index that the initiator shall send to.
    #[must_use]
    pub fn sender(&self) -> Index {
        Index(self.sender.get())
    }

    /// The initiator's index.
    #[must_use]
    pub fn receiver(&self) -> Index {
        Index(self.receiver.get())
    }

    /// Returns the message with both indexes in it.
    #[must_use]
    pub fn between(self, sender: Index, receiver: Index) -> Self {
        Self { sender: U32::new(sender.0), receiver: U32::new(receiver.0), ..self }
    }
}

impl CookieReply {
    pub(crate) fn new(receiver: Index, nonce: [u8; 24], sealed_cookie: [u8; MAC_LEN + TAG_LEN]) -> Self {
        Self { kind: U32::new(COOKIE_REPLY), receiver: U32::new(receiver.0), nonce, sealed_cookie }
    }

    /// The index of the message that it answers.
    #[must_use]
    pub fn receiver(&self) -> Index {
        Index(self.receiver.get())
    }
}

macro_rules! show_kind {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )*};
}

show_kind!(Initiation, Response, CookieReply);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_message_has_exactly_the_length_of_its_type() {
        for (kind, length) in [(1, 148), (2, 92), (3, 64)] {
            for len in 0..300 {
                let mut datagram = vec![0; len];
                if let Some(first) = datagram.first_mut() {
                    *first = kind;
                }
                assert_eq!(Message::parse(&datagram).is_ok(), len == length, "type {kind}, {len} bytes");
            }
        }
        let mut datagram = vec![0; 31];
        datagram[0] = 4;
        assert_eq!(Message::parse(&datagram), Err(MessageError::Length));
        datagram.push(0);
        assert!(matches!(Message::parse(&datagram), Ok(Message::Transport(_))));
    }

    #[test]
    fn reserved_bytes_are_zero() {
        for at in 1..4 {
            let mut datagram = [0; 148];
            datagram[0] = 1;
            datagram[at] = 1;
            assert_eq!(Message::parse(&datagram), Err(MessageError::Kind));
        }
    }

    #[test]
    fn the_header_of_data_is_the_published_one() {
        let header = TransportHeader { receiver: Index(0x0403_0201), counter: 0x0807_0605_0403_0201 };
        let bytes = header.to_bytes();
        assert_eq!(bytes, [4, 0, 0, 0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(TransportHeader::parse(&[&bytes[..], &[0; TAG_LEN]].concat()), Ok(header));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(
            kind in 0u8..6,
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let datagram = [&[kind, 0, 0, 0], &bytes[..]].concat();
            match Message::parse(&datagram) {
                Ok(Message::Initiation(message)) => prop_assert_eq!(message.as_bytes(), &datagram[..]),
                Ok(Message::Response(message)) => prop_assert_eq!(message.as_bytes(), &datagram[..]),
                Ok(Message::CookieReply(message)) => prop_assert_eq!(message.as_bytes(), &datagram[..]),
                Ok(Message::Transport(header)) => {
                    prop_assert_eq!(&header.to_bytes()[..], &datagram[..TRANSPORT_HEADER_LEN]);
                }
                Err(MessageError::Kind) => prop_assert!(!(1..=4).contains(&kind)),
                Err(MessageError::Length) => prop_assert!((1..=4).contains(&kind)),
            }
        }
    }
}
