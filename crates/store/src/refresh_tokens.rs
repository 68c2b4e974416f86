//! Refresh tokens of OpenID providers, by which users are asked about between logins.
//!
//! Invariants: a user has one at most, the latest; it goes with the user, and a backup of the
//! embedded store brings none back. The auth process has sealed it: a database can't use it.

use std::fmt;

use zeroize::Zeroizing;

use crate::{StoreError, UserId};

/// A refresh token, sealed. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct RefreshToken(Zeroizing<String>);

impl RefreshToken {
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RefreshToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RefreshToken(<secret>)")
    }
}

/// The refresh tokens of a gateway's users.
pub trait RefreshTokens: Send + Sync {
    /// Keeps this one for a user, in place of an earlier one, or none from now on. A user who is
    /// not there gets none.
    fn keep_refresh_token(&self, id: UserId, token: Option<&RefreshToken>) -> Result<(), StoreError>;
    /// Puts the next one in place of this one, unless another is there by now, or none.
    fn replace_refresh_token(
        &self,
        id: UserId,
        before: &RefreshToken,
        next: &RefreshToken,
    ) -> Result<(), StoreError>;
    /// The token of a user.
    fn refresh_token(&self, id: UserId) -> Result<Option<RefreshToken>, StoreError>;
}
