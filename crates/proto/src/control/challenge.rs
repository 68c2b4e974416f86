//! Rounds of a login after its password (PROTOCOL §4.2).

use minicbor::decode::{self, Decoder};
use minicbor::encode::{self, Encoder, Write};
use minicbor::{Decode, Encode};

use super::{SecretText, Text};

/// The text of a challenge, for a person. It comes from a server behind the gateway: code that
/// shows it removes control characters first.
pub type ChallengeText = Text<512>;
/// An answer as it was typed.
pub type ChallengeAnswer = SecretText<256>;

/// A demand beyond the password (message 22).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Challenge {
    /// The form of the answer.
    #[n(0)]
    pub kind: ChallengeKind,
    /// The demand, for a person.
    #[n(1)]
    pub text: ChallengeText,
    /// Time that is left for it, in seconds.
    #[n(2)]
    pub time_s: u16,
}

/// The form of the answer to a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChallengeKind {
    /// 0: a secret that is not shown while it is typed.
    Code,
    /// 1: none on this channel; the person acts elsewhere.
    Push,
    /// 2: an answer that may be shown.
    Choice,
}

/// The answer to a challenge (message 4).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct ChallengeResponse {
    /// The answer as it was typed.
    #[n(0)]
    pub answer: ChallengeAnswer,
}

impl From<u8> for ChallengeKind {
    /// A kind of a later version is taken for a code.
    fn from(number: u8) -> Self {
        match number {
            1 => Self::Push,
            2 => Self::Choice,
            _ => Self::Code,
        }
    }
}

impl<C> Encode<C> for ChallengeKind {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        let number = match self {
            Self::Code => 0,
            Self::Push => 1,
            Self::Choice => 2,
        };
        e.u8(number)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for ChallengeKind {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        d.u8().map(Self::from)
    }
}
