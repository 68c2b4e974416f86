//! The reasons of refusals and closes (PROTOCOL §14). They are also the QUIC application close codes.

use minicbor::decode::{Decode, Decoder, Error};
use minicbor::encode::{self, Encode, Encoder, Write};

/// The reason of a refusal or a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// 0: nothing is wrong, the user ended the session.
    Bye,
    /// 1: the login was wrong.
    Credentials,
    /// 2: the attach token is not good any more: log in.
    Token,
    /// 3: malformed or unexpected message.
    BadRequest,
    /// 4: no cipher suite in common.
    NoSuite,
    /// 5: the address pool is used up.
    NoAddress,
    /// 6: sessions of this user, or of the gateway, are at their limit.
    TooMany,
    /// 7: try later.
    Busy,
    /// 8: the user was disabled or removed while connected.
    Disabled,
    /// 9: an administrator ended the session.
    Kicked,
    /// 10: idle for longer than allowed.
    Idle,
    /// 11: another connection of this session took over.
    Superseded,
    /// 12: the gateway goes down; attach again.
    Shutdown,
    /// 13: the session's lifetime is over: log in.
    Lifetime,
    /// 14: a client certificate is wanted, or not valid for this user.
    Certificate,
    /// 15: the gateway failed.
    Internal,
    /// 16: too many wrong guesses: nothing was checked, try later.
    Throttled,
    /// 17: the user may not use this gateway: no access profile is for them.
    NoProfile,
    /// 18: the gateway is being drained: use another one, or come back later.
    Drain,
    /// 19: the login lacks a factor that the user's access profile requires.
    Factor,
    /// A code of a later version.
    Other(u16),
}

impl Code {
    /// Every code of this version, in the order of their numbers, which start at 0.
    const KNOWN: [Self; 20] = [
        Self::Bye,
        Self::Credentials,
        Self::Token,
        Self::BadRequest,
        Self::NoSuite,
        Self::NoAddress,
        Self::TooMany,
        Self::Busy,
        Self::Disabled,
        Self::Kicked,
        Self::Idle,
        Self::Superseded,
        Self::Shutdown,
        Self::Lifetime,
        Self::Certificate,
        Self::Internal,
        Self::Throttled,
        Self::NoProfile,
        Self::Drain,
        Self::Factor,
    ];

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Bye => 0,
            Self::Credentials => 1,
            Self::Token => 2,
            Self::BadRequest => 3,
            Self::NoSuite => 4,
            Self::NoAddress => 5,
            Self::TooMany => 6,
            Self::Busy => 7,
            Self::Disabled => 8,
            Self::Kicked => 9,
            Self::Idle => 10,
            Self::Superseded => 11,
            Self::Shutdown => 12,
            Self::Lifetime => 13,
            Self::Certificate => 14,
            Self::Internal => 15,
            Self::Throttled => 16,
            Self::NoProfile => 17,
            Self::Drain => 18,
            Self::Factor => 19,
            Self::Other(number) => number,
        }
    }

    /// A name for logs and counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bye => "bye",
            Self::Credentials => "credentials",
            Self::Token => "token",
            Self::BadRequest => "bad-request",
            Self::NoSuite => "no-suite",
            Self::NoAddress => "no-address",
            Self::TooMany => "too-many",
            Self::Busy => "busy",
            Self::Disabled => "disabled",
            Self::Kicked => "kicked",
            Self::Idle => "idle",
            Self::Superseded => "superseded",
            Self::Shutdown => "shutdown",
            Self::Lifetime => "lifetime",
            Self::Certificate => "certificate",
            Self::Internal => "internal",
            Self::Throttled => "throttled",
            Self::NoProfile => "no-profile",
            Self::Drain => "drain",
            Self::Factor => "factor",
            Self::Other(_) => "other",
        }
    }

    /// Whether waiting does not cure it, so that a client stops (PROTOCOL §11).
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(
            self,
            Self::Credentials
                | Self::Disabled
                | Self::Certificate
                | Self::NoSuite
                | Self::BadRequest
                | Self::Kicked
                | Self::Idle
                | Self::NoProfile
                | Self::Factor
        )
    }

    /// An explanation for a person who sees this code.
    #[must_use]
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::Bye => "the user ended the session",
            Self::Credentials => {
                "the login was refused: check user name, password and one-time code; if they are right, ask the administrator whether \
                 your account is admitted, and which factor it needs, such as one-time codes"
            }
            Self::Token => "the session is not known here any more; log in again",
            Self::BadRequest => "a malformed or unexpected message was sent",
            Self::NoSuite => {
                "no cipher suite is allowed by both ends: compare the suites of the profile and of the gateway"
            }
            Self::NoAddress => "the gateway has no inner address left; try later or ask the administrator",
            Self::TooMany => "too many sessions of this user, or on this gateway; end one or try later",
            Self::Busy => "the gateway is busy; try later",
            Self::Disabled => "this user was disabled",
            Self::Kicked => "an administrator ended the session",
            Self::Idle => "the session was idle for longer than allowed",
            Self::Superseded => "another connection took over the session",
            Self::Shutdown => "the gateway is going down",
            Self::Lifetime => "the session's lifetime is over; log in again",
            Self::Certificate => "a valid client certificate is needed",
            Self::Internal => "the gateway failed",
            Self::Throttled => "too many attempts",
            Self::NoProfile => {
                "your account is not admitted to this gateway; ask the administrator for access"
            }
            Self::Drain => {
                "the gateway takes no new sessions now, because it is going to stop; use another one or try later"
            }
            Self::Factor => {
                "your account needs another factor for this access; ask the administrator to set it up"
            }
            Self::Other(_) => "a reason that this version does not know",
        }
    }
}

impl From<u16> for Code {
    fn from(number: u16) -> Self {
        let known = Self::KNOWN.into_iter().find(|code| code.number() == number);
        known.unwrap_or(Self::Other(number))
    }
}

impl core::fmt::Display for Code {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Other(number) => write!(f, "code {number}"),
            known => f.write_str(known.explanation()),
        }
    }
}

impl<C> Encode<C> for Code {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        e.u16(self.number())?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Code {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, Error> {
        d.u16().map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_are_the_published_ones() {
        for (at, code) in Code::KNOWN.into_iter().enumerate() {
            assert_eq!(usize::from(code.number()), at);
            assert_eq!(Code::from(code.number()), code);
        }
        let names: BTreeSet<_> = Code::KNOWN.into_iter().map(Code::name).collect();
        assert_eq!(names.len(), Code::KNOWN.len(), "no two have one name");
        assert_eq!(Code::from(20), Code::Other(20));
        assert_eq!(Code::Other(4711).number(), 4711);
    }
}
