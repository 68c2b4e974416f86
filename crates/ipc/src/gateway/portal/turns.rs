//! Where a login waits for its turn.
//!
//! INVARIANT: the number of a source discloses nothing but the configuration; the portal has it for
//! its queues, and shows it to no browser.

use minicbor::{Decode, Encode};
use vpnd_proto::control::UserName;

use super::Browser;
use crate::gateway::auth::SourceName;

/// Logins and logouts at each source at the same time; the auth process answers all of them at
/// once.
pub const LOGINS_AT_ONCE: usize = 40;
pub const LOGOUTS_AT_ONCE: usize = 8;

/// A source by its number: a silent one keeps no other's users waiting. 0 is the store.
pub type SourceNumber = u16;
pub const STORE: SourceNumber = 0;

/// Asks by which source a login is decided, before it takes a turn.
#[derive(Debug, Encode, Decode)]
pub enum TurnQuery {
    /// A login by this name.
    #[n(0)]
    User(#[n(0)] UserName),
    /// The answer of this browser's user.
    #[n(1)]
    Answer(#[n(0)] Browser),
    /// A browser that is back from this provider.
    #[n(2)]
    Provider(#[n(0)] SourceName),
}
