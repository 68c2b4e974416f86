//! Sessions of browsers at OpenID providers, by which their users are logged out.
//!
//! Invariants: of a user the latest are kept, a few; they go with the user. What names one is a
//! hash.

use crate::{StoreError, User, UserId};

/// Sessions of one user that are kept.
pub(crate) const MAX_PROVIDER_SESSIONS: usize = 16;

/// The sessions at providers of a gateway's users.
pub trait ProviderSessions: Send + Sync {
    /// Notes that a user has logged in by this session. A user who is not there has none.
    fn keep_provider_session(&self, id: UserId, session: &[u8; 32], now_s: u64) -> Result<(), StoreError>;
    /// The users of this source who have logged in by this session: one, unless the provider lies.
    fn users_of_provider_session(&self, source: &str, session: &[u8; 32]) -> Result<Vec<User>, StoreError>;
    /// Forgets those of a user.
    fn forget_provider_sessions(&self, id: UserId) -> Result<(), StoreError>;
}
