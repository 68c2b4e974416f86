//! The notices that the gateways of a fleet send one another.
//!
//! INVARIANT: a notice is data in the form that it has in the database; those who make and learn it
//! know what it means.

use std::net::{IpAddr, SocketAddr};

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_config::factor::Factors;
use vpnd_ipc::gateway::auth::BrowserLogin;
use vpnd_ipc::gateway::idp::{SourceAddresses, SourceLimits};
use vpnd_ipc::gateway::portal::visits::BrowserKind;
use vpnd_store::audit::query::Record;
use vpnd_sys::clock::steady_s;

/// A notice. What a later vpnd adds is skipped.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Notice {
    /// A guess of a password counts, or counts no longer. At the portal, or else at the tunnel.
    #[n(0)]
    Guess(#[n(0)] bool, #[n(1)] SharedGuess),
    /// A visit of the pages, by the hash of its token, has begun or changed, or else ended.
    #[n(1)]
    Visit(#[n(0)] ByteArray<32>, #[n(1)] Option<SharedVisit>),
    /// So has a login in a browser. When it began, by the clock that the gateways share, comes
    /// last.
    #[n(2)]
    Login(#[n(0)] ByteArray<32>, #[n(1)] Option<SharedLogin>, #[n(2)] u64),
    /// An administrator asks who had an address; with the time of that.
    #[n(3)]
    Asked(#[n(0)] ByteArray<16>, #[n(1)] Question, #[n(2)] u64),
    /// The answer of one gateway.
    #[n(4)]
    Answered(#[n(0)] ByteArray<16>, #[n(1)] OfGateway),
    /// A user or host has done a thing that is limited; with the time of that, by the clock that
    /// the gateways share.
    #[n(5)]
    Taken(#[n(0)] Taken, #[n(1)] u64),
    /// The gateway of this name takes datagrams of others here, sealed for this key.
    #[n(6)]
    Gateway(#[n(0)] String, #[n(1)] ByteArray<32>, #[n(2)] SocketAddr),
    /// A RADIUS server has sent a request about sessions (RFC 5176): its authenticator, the user
    /// whose sessions it means, and when it was made by the server's clock.
    #[n(7)]
    ServerRequest(#[n(0)] ByteArray<16>, #[n(1)] Option<ByteArray<16>>, #[n(2)] u64),
}

/// A thing of which a user or host has a number at all gateways together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Taken {
    /// This user has logged in.
    #[n(0)]
    Login(#[n(0)] ByteArray<16>),
    /// A WireGuard device of this user was admitted.
    #[n(1)]
    Device(#[n(0)] ByteArray<16>),
    /// This user has typed a short code, at this host.
    #[n(2)]
    Code(#[n(0)] ByteArray<16>, #[n(1)] IpAddr),
}

impl Taken {
    /// The notice of it, of just now.
    pub fn now(self) -> Notice {
        Notice::Taken(self, steady_s())
    }
}

/// A change of the guesses that are counted.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SharedGuess {
    #[n(0)]
    pub event: GuessEvent,
    #[n(1)]
    pub person: ByteArray<32>,
    /// The host.
    #[n(2)]
    pub from: IpAddr,
    #[n(3)]
    pub known: bool,
    #[n(4)]
    pub at_s: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum GuessEvent {
    #[n(0)]
    Counted,
    /// It was no guess.
    #[n(1)]
    TakenBack,
    /// The person was let in: failures from this host are forgotten.
    #[n(2)]
    Forgiven,
}

/// A visit of the pages, as other gateways need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SharedVisit {
    #[n(0)]
    pub facts: VisitFacts,
    /// When it began, by the clock that the fleet's gateways share.
    #[n(1)]
    pub began_s: u64,
}

/// The part that stays while no one changes the visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct VisitFacts {
    #[n(0)]
    pub user: ByteArray<16>,
    #[n(1)]
    pub generation: u64,
    #[n(2)]
    pub factors: Factors,
    #[n(3)]
    pub device: ByteArray<16>,
    #[n(4)]
    pub auth_time_s: u64,
    #[n(5)]
    pub limits: SourceLimits,
    #[n(6)]
    pub addresses: SourceAddresses,
    /// The networks of its browser.
    #[n(7)]
    pub ipv4: Option<IpAddr>,
    #[n(8)]
    pub ipv6: Option<IpAddr>,
    #[n(9)]
    pub number: ByteArray<16>,
    #[n(10)]
    pub from: IpAddr,
    #[n(11)]
    pub kind: BrowserKind,
}

/// A login in a browser, as other gateways need it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SharedLogin {
    #[n(0)]
    pub begun: BrowserLogin,
    #[n(1)]
    pub code: Option<ByteArray<8>>,
    /// The hash of the ticket of who has typed the code, and that user.
    #[n(2)]
    pub typed: Option<(ByteArray<32>, ByteArray<16>)>,
    #[n(3)]
    pub is_answered: bool,
    /// The visit that grants it, if the answer was yes.
    #[n(4)]
    pub visit: Option<ByteArray<16>>,
}

/// A question who had an address, and who asks for which reason.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Question {
    #[n(0)]
    pub address: IpAddr,
    #[n(1)]
    pub port: Option<u16>,
    #[n(2)]
    pub at_s: u64,
    /// With its reason, for the record.
    #[n(3)]
    pub detail: String,
    /// Ends with the name of the gateway at which they ask.
    #[n(4)]
    pub by: String,
}

/// The records of one gateway.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Recorded {
    #[n(0)]
    pub found: Vec<Record>,
    /// Why it may be wrong, or why there is nothing.
    #[n(1)]
    pub notes: Vec<String>,
}

/// Another gateway, and its answer if there is one.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OfGateway {
    #[n(0)]
    pub name: String,
    #[n(1)]
    pub recorded: Option<Recorded>,
}
