//! Invitations: links by which users choose their own password and second factor, once. Users of
//! another source have no password here, and choose the second factor.

use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::{PasswordHash, StoreError, TotpSecret, User};

/// For how long an invitation is good, seconds.
pub const INVITATION_LIFETIME_S: u64 = 7 * 86_400;
const TOKEN_BYTES: usize = 32;

/// SHA-256 of an invitation's token.
pub type InvitationHash = [u8; 32];

/// The secret of an invitation, as it is in the link. Never printed.
pub struct InvitationToken(Zeroizing<String>);

impl InvitationToken {
    /// A random one.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "no two are the same")]
    pub fn new() -> Self {
        let hex = rand::random::<[u8; TOKEN_BYTES]>().iter().map(|byte| format!("{byte:02x}")).collect();
        Self(Zeroizing::new(hex))
    }

    /// The text of a link.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let is_one = text.len() == 2 * TOKEN_BYTES && text.bytes().all(|b| b.is_ascii_hexdigit());
        is_one.then(|| Self(Zeroizing::new(text.to_owned())))
    }

    /// The link on the pages that are at `pages`, which has no path.
    #[must_use]
    pub fn link(&self, pages: &str) -> Zeroizing<String> {
        Zeroizing::new(format!("{}/invitation/{}", pages.trim_end_matches('/'), *self.0))
    }

    #[must_use]
    pub fn hash(&self) -> InvitationHash {
        Sha256::digest(self.0.as_bytes()).into()
    }
}

/// The choices of a user by an invitation.
#[derive(Clone, Debug)]
pub struct Accepted {
    pub invitation: InvitationHash,
    /// `None` of a user of another source.
    pub password: Option<PasswordHash>,
    pub totp: TotpSecret,
    /// The step of the code that was shown, which is good for no login.
    pub step: u64,
}

/// The invitations of a gateway.
///
/// INVARIANT: an invitation is good once, until its time, as long as its user is enabled and was
/// revoked nothing since. A user has one at most.
pub trait Invitations: Send + Sync {
    /// Makes the invitation of a user, in place of an earlier one.
    fn invite(&self, name: &str, invitation: &InvitationHash, until_s: u64) -> Result<(), StoreError>;
    /// The user of an invitation that is good.
    fn invited(&self, invitation: &InvitationHash, now_s: u64) -> Result<Option<User>, StoreError>;
    /// Gives the invitation's user this password, which is a revocation, and these codes: `false`,
    /// and nothing is changed, if it is not good any more, or if a local user has chosen no
    /// password.
    fn accept_invitation(&self, accepted: &Accepted, now_s: u64) -> Result<bool, StoreError>;
}
