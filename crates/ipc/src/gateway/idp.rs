//! Messages between the auth process and the idp process.
//!
//! Invariants: auth alone asks, and idp answers each request once, or says for the log why none of
//! the source's servers gave an answer that counts; texts and lists have a largest length, so that
//! a frame has one. For whom an answer is follows from the request.

mod accounting;
mod dynamic_authorization;
mod provider;

use std::net::IpAddr;

use minicbor::{Decode, Encode};
use vpnd_proto::control::{ChallengeAnswer, ChallengeKind, ChallengeText, List, SecretText, Text, UserName};

use crate::messages::Common;

use super::Configuration;
pub use super::auth::SourceName;
pub use accounting::{
    AcceptAttributes, AccountedSession, AccountingEvent, AccountingRecord, Classes, MAX_CLASSES, MAX_RECORDS,
    SourceAddresses, SourceLimits, TerminateCause, Usage,
};
pub use dynamic_authorization::{
    DynamicAction, DynamicRequest, DynamicResult, ErrorCause, SessionAttributes,
};
pub use provider::{
    Code, LoggedOut, LoginAddress, LogoutToken, ProviderLogin, ProviderLogout, ProviderSession, Random,
    ReadLogout, RedeemCode, Redeemed, RefreshLogin, RefreshToken, RefreshedLogin, Url,
};

/// The longest frame in either direction, bytes.
pub const MAX_FRAME: usize = 64 << 10;
/// Groups of one user, at most.
pub const MAX_GROUPS: usize = 200;
/// The longest State of a RADIUS server: the longest value of an attribute.
pub const MAX_STATE: usize = 253;

/// A group's name.
pub type GroupName = Text<128>;
/// Identifies a user of a source; never changes.
pub type Subject = Text<128>;

/// The idp process's first message; with descriptors: its end of the channel to the auth process,
/// and the sockets for requests of RADIUS servers, in the order of their sources.
#[derive(Debug, Encode, Decode)]
pub struct IdpLaunch {
    #[n(0)]
    pub common: Common,
    #[n(1)]
    pub configuration: Configuration,
}

/// Idp process → parent, once it is prepared.
#[derive(Debug, Encode, Decode)]
pub enum FromIdp {
    /// The child failed, and why. The number is that of each child's first report.
    #[n(2)]
    Failed(#[n(0)] String),
}

crate::requests! {
    /// A request of the auth process.
    pub IdpRequest {
        Check = 0, LoginCheck => Verdict;
        Answer = 1, LoginAnswer => Verdict;
        Recheck = 2, UserRecheck => Result<Identity, SourceRefusal>;
        Account = 3, AccountingRecord => ();
        Next = 4, NextDynamicRequest => DynamicRequest;
        Address = 5, LoginAddress => Url;
        Redeem = 6, RedeemCode => Result<Redeemed, SourceRefusal>;
        ReadLogout = 7, ReadLogout => Option<ProviderLogout>;
        Refresh = 8, RefreshLogin => Result<RefreshedLogin, SourceRefusal>;
    }
}

/// Whether this is the user's password.
#[derive(Debug, Encode, Decode)]
pub struct LoginCheck {
    #[n(0)]
    pub source: SourceName,
    /// The name in the source's form.
    #[n(1)]
    pub user: UserName,
    #[n(2)]
    pub password: SecretText<1024>,
    /// From where the user comes.
    #[n(3)]
    pub address: IpAddr,
}

/// Whether this is the answer to the challenge.
#[derive(Debug, Encode, Decode)]
pub struct LoginAnswer {
    #[n(0)]
    pub source: SourceName,
    #[n(1)]
    pub user: UserName,
    #[n(2)]
    pub answer: ChallengeAnswer,
    #[n(3)]
    pub address: IpAddr,
    /// Copied from the challenge.
    #[n(4)]
    pub round: Continuation,
}

/// Whether a user who has sessions is still there, without a password.
#[derive(Debug, Encode, Decode)]
pub struct UserRecheck {
    #[n(0)]
    pub source: SourceName,
    /// The name in the source's form.
    #[n(1)]
    pub user: UserName,
}

/// The next request of a server, whenever there is one. With the result of the one before.
#[derive(Debug, Encode, Decode)]
pub struct NextDynamicRequest(#[n(0)] pub Option<DynamicResult>);

/// By what a server recognises a login that it has challenged. The auth process keeps it and reads
/// nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Continuation {
    /// The server that has challenged and that alone is asked again.
    #[n(0)]
    pub server: Text<300>,
    #[n(1)]
    pub state: Option<List<u8, MAX_STATE>>,
}

/// A demand of a server beyond the password.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct IdpChallenge {
    #[n(0)]
    pub kind: ChallengeKind,
    #[n(1)]
    pub text: ChallengeText,
    #[n(2)]
    pub round: Continuation,
}

/// A source's decision about a login.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Verdict {
    /// The source knows the user, and the password or the answer was right.
    #[n(0)]
    Accepted(#[n(0)] Identity),
    #[n(1)]
    Refused(#[n(0)] SourceRefusal),
    /// The user has this entry, and is still refused.
    #[n(2)]
    RefusedEntry(#[n(0)] SourceRefusal, #[n(1)] Subject),
    /// Not without an answer to this, by [`LoginAnswer`].
    #[n(3)]
    Challenge(#[n(0)] IdpChallenge),
}

/// A user, as a source has it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Identity {
    #[n(0)]
    pub subject: Subject,
    /// Sorted, each once.
    #[n(1)]
    pub groups: List<GroupName, MAX_GROUPS>,
    /// Attributes of a RADIUS server.
    #[n(2)]
    pub accept: AcceptAttributes,
    /// The user's name by the entry, which may have several that are accepted at a login; `None` if
    /// the source has only the one that was typed.
    #[n(3)]
    pub name: Option<UserName>,
}

/// Why a source does not let a user in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum SourceRefusal {
    #[n(0)]
    UnknownUser,
    #[n(1)]
    WrongPassword,
    /// Disabled or locked there.
    #[n(2)]
    Disabled,
    /// Several entries have the name.
    #[n(3)]
    SeveralUsers,
    /// The entry lacks the attribute that never changes.
    #[n(4)]
    NoSubject,
    /// More groups than are configured to be taken.
    #[n(5)]
    TooManyGroups,
    /// The provider's answer proves no login that was begun here.
    #[n(6)]
    NotProved,
    /// A provider names no user that can be one here.
    #[n(7)]
    NoName,
}

#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
pub mod testing {
    use vpnd_proto::control::{List, Text, UserName};

    use super::*;
    use crate::gateway::auth::SourceName;

    /// A record of the session of `ann`.
    pub fn record(event: AccountingEvent) -> AccountingRecord {
        let class = |bytes: &[u8]| List::new(bytes.to_vec()).unwrap();
        let session = AccountedSession {
            id: Text::cut("0123456789abcdef"),
            user: UserName::new("ann").unwrap(),
            station: Some("192.0.2.1".parse().unwrap()),
            ipv4: Some([10, 86, 0, 2].into()),
            ipv6: Some("fd86::2".parse().unwrap()),
            classes: List::new(vec![class(&[0, 255]), class(b"two")]).unwrap(),
        };
        let session = (!matches!(event, AccountingEvent::On | AccountingEvent::Off)).then_some(session);
        AccountingRecord {
            source: SourceName::cut("guests"),
            event,
            at_s: 1_700_000_000,
            delay_s: 0,
            session,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::Prepared;

    #[test]
    fn the_reason_of_a_process_that_can_not_start_arrives() {
        let sent = minicbor::to_vec(FromIdp::Failed("no secret".to_owned())).unwrap();
        let received = minicbor::decode::<Prepared>(&sent).unwrap();
        assert!(matches!(received, Prepared::Failed(why) if why == "no secret"));
    }
}
