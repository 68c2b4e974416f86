//! The reasons of refusals and closes (PROTOCOL §14): QUIC's application close codes, too.

use minicbor::decode::{Decode, Decoder, Error};
use minicbor::encode::{self, Encode, Encoder, Write};

/// Declares the codes once: number, name, whether a client tries again, and what a person reads.
macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $code:ident = $number:literal, $name:literal, $retry:ident, $explanation:literal;)+) => {
        /// The reason of a refusal or a close.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[doc = $doc])+ $code,)+
            /// A code of a later version.
            Other(u16),
        }

        impl Code {
            /// Every code of this version, in the order of their numbers, which start at 0.
            pub const KNOWN: &'static [Self] = &[$(Self::$code,)+];

            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> u16 {
                match self {
                    $(Self::$code => $number,)+
                    Self::Other(number) => number,
                }
            }

            /// A name for logs and counters.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$code => $name,)+
                    Self::Other(_) => "other",
                }
            }

            /// Whether waiting does not cure it, so that a client stops (PROTOCOL §11).
            #[must_use]
            pub const fn is_final(self) -> bool {
                match self {
                    $(Self::$code => matches!(Retry::$retry, Retry::Stop),)+
                    Self::Other(_) => false,
                }
            }

            /// An explanation for a person who sees this code.
            #[must_use]
            pub const fn explanation(self) -> &'static str {
                match self {
                    $(Self::$code => $explanation,)+
                    Self::Other(_) => "a reason that this version does not know",
                }
            }
        }
    };
}

/// The reaction of a client to a code.
enum Retry {
    Again,
    Stop,
}

codes! {
    /// 0: nothing is wrong, the user ended the session.
    Bye = 0, "bye", Again,
        "the user ended the session";
    /// 1: the login was wrong.
    Credentials = 1, "credentials", Stop,
        "the login was refused: check user name and password, and the one-time code if you were asked for one; if they are right, ask \
        the administrator whether your account is admitted, and which factor it needs";
    /// 2: the attach token is not good any more: log in.
    Token = 2, "token", Again,
        "the session is not known here any more; log in again";
    /// 3: malformed or unexpected message.
    BadRequest = 3, "bad-request", Stop,
        "a malformed or unexpected message was sent";
    /// 4: no cipher suite in common.
    NoSuite = 4, "no-suite", Stop,
        "no cipher suite is allowed by both ends: compare the suites of the profile and of the gateway";
    /// 5: the address pool is used up.
    NoAddress = 5, "no-address", Again,
        "the gateway has no inner address left; try later or ask the administrator";
    /// 6: sessions of this user, or of the gateway, are at their limit.
    TooMany = 6, "too-many", Again,
        "too many sessions: end one of your account on another device; one that was switched off without a goodbye counts for some \
        minutes. If no other device of yours is connected, the gateway is full: try later";
    /// 7: try later.
    Busy = 7, "busy", Again,
        "the gateway is busy; try later";
    /// 8: the user was disabled or removed while connected.
    Disabled = 8, "disabled", Stop,
        "this user was disabled";
    /// 9: an administrator ended the session.
    Kicked = 9, "kicked", Stop,
        "an administrator ended the session";
    /// 10: idle for longer than allowed.
    Idle = 10, "idle", Stop,
        "the session was idle for longer than allowed";
    /// 11: another connection of this session took over.
    Superseded = 11, "superseded", Again,
        "another connection took over the session";
    /// 12: the gateway goes down; attach again.
    Shutdown = 12, "shutdown", Again,
        "the gateway is going down";
    /// 13: the session's lifetime is over: log in.
    Lifetime = 13, "lifetime", Again,
        "the session's lifetime is over; log in again";
    /// 14: a client certificate is wanted, or not valid for this user.
    Certificate = 14, "certificate", Stop,
        "a valid client certificate is needed";
    /// 15: the gateway failed.
    Internal = 15, "internal", Again,
        "the gateway failed";
    /// 16: too many wrong guesses: nothing was checked, try later.
    Throttled = 16, "throttled", Again,
        "too many attempts";
    /// 17: the user may not use this gateway: no access profile is for them.
    NoProfile = 17, "no-profile", Stop,
        "your account is not admitted to this gateway; ask the administrator for access";
    /// 18: the gateway is being drained: use another one, or come back later.
    Drain = 18, "drain", Again,
        "the gateway takes no new sessions now, because it is going to stop; use another one or try later";
    /// 19: the login lacks a factor that the user's access profile requires.
    Factor = 19, "factor", Stop,
        "your account needs another factor for this access; ask the administrator to set it up";
    /// 20: this user logs in through a browser.
    Browser = 20, "browser", Stop,
        "your account logs in through a browser: use 'vpnd connect --browser', or write browser = true into [user] of the profile";
    /// 21: the person has not answered on the web page yet.
    Pending = 21, "pending", Again,
        "the code has not been typed and confirmed on the web page yet";
}

impl From<u16> for Code {
    fn from(number: u16) -> Self {
        let known = Self::KNOWN.iter().copied().find(|code| code.number() == number);
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
        for (at, &code) in Code::KNOWN.iter().enumerate() {
            assert_eq!(usize::from(code.number()), at);
            assert_eq!(Code::from(code.number()), code);
        }
        assert_eq!(Code::from(22), Code::Other(22));
        assert_eq!(Code::Other(4711).number(), 4711);
    }

    #[test]
    fn each_has_its_own_name_and_explanation_and_its_row_in_the_specification() {
        let distinct = |text: fn(Code) -> &'static str| {
            Code::KNOWN.iter().map(|code| text(*code)).collect::<BTreeSet<_>>().len()
        };
        assert_eq!(distinct(Code::name), Code::KNOWN.len());
        assert_eq!(distinct(Code::explanation), Code::KNOWN.len());
        let specification = include_str!("../../../../docs/PROTOCOL.md");
        let (_, section) = specification.split_once("\n## 14. Codes\n").unwrap();
        let (section, _) = section.split_once("\n### 14.1").unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
        let rows: Vec<_> = rows.filter(|(number, _)| number.parse::<u16>().is_ok()).collect();
        for (code, (number, rest)) in Code::KNOWN.iter().zip(&rows) {
            assert_eq!(*number, code.number().to_string());
            assert!(rest.starts_with(&format!("{} | ", code.name())), "{number}: {rest}");
        }
        assert_eq!(rows.len(), Code::KNOWN.len());
        let (_, after) = specification.split_once("a code that waiting does not cure (").unwrap();
        let (cured, _) = after.split_once(')').unwrap();
        let documented: BTreeSet<_> = cured.split(',').map(str::trim).collect();
        let finals = Code::KNOWN.iter().filter(|code| code.is_final()).map(|code| code.name());
        assert_eq!(documented, finals.collect());
    }
}
