//! Tokens of programs that use the API in place of a person.

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use crate::StoreError;
use vpnd_config::desk::DeskRole;

/// Characters of the longest name.
const MAX_TOKEN_NAME: usize = 32;

/// The record of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiToken {
    /// For people, and the part of the token that is no secret.
    pub name: String,
    pub role: DeskRole,
    pub created_s: u64,
    /// The first second at which it is no good any more.
    pub until_s: u64,
    /// A hash of the secret and of all that is above, so that none of it changes by damage.
    pub hash: [u8; 32],
}

impl ApiToken {
    /// A new token, and its text, which is shown once.
    #[must_use]
    pub fn new(name: &str, role: DeskRole, created_s: u64, until_s: u64) -> (Self, Zeroizing<String>) {
        let hex = |text: String, byte: &u8| format!("{text}{byte:02x}");
        let secret = Zeroizing::new(rand::random::<[u8; 32]>().iter().fold(String::new(), hex));
        let mut token = Self { name: name.to_owned(), role, created_s, until_s, hash: [0; 32] };
        token.hash = token.hash_with(&secret);
        (token, Zeroizing::new(format!("{name}.{}", *secret)))
    }

    /// Whether this is a name: part of a header, and of lines of the audit file.
    #[must_use]
    pub fn is_name(name: &str) -> bool {
        let is_fine = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        !name.is_empty() && name.len() <= MAX_TOKEN_NAME && name.bytes().all(is_fine)
    }

    /// The name and the secret in the text of a token.
    #[must_use]
    pub fn parts(text: &str) -> Option<(&str, &str)> {
        text.split_once('.').filter(|(name, secret)| Self::is_name(name) && secret.len() == 64)
    }

    /// Whether it is this token's secret, and its time is not over.
    #[must_use]
    pub fn is_good(&self, secret: &str, now_s: u64) -> bool {
        bool::from(self.hash_with(secret).ct_eq(&self.hash)) && now_s < self.until_s
    }

    fn hash_with(&self, secret: &str) -> [u8; 32] {
        let Self { name, role, created_s, until_s, .. } = self;
        let text = Zeroizing::new(format!("{secret} {name} {} {created_s} {until_s}", role.name()));
        Sha256::digest(text.as_bytes()).into()
    }
}

/// The API's tokens of a gateway.
pub trait ApiTokens: Send + Sync {
    /// `false`, and nothing is kept, if there is one of that name.
    fn add_api_token(&self, token: &ApiToken) -> Result<bool, StoreError>;
    /// All of them, by name.
    fn api_tokens(&self) -> Result<Vec<ApiToken>, StoreError>;
    /// `false` if there is none of that name.
    fn remove_api_token(&self, name: &str) -> Result<bool, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_as_it_was_made_until_its_time() {
        let (token, text) = ApiToken::new("idm", DeskRole::HelpDesk, 10, 1_000);
        let (name, secret) = ApiToken::parts(&text).unwrap();
        assert_eq!(name, "idm");
        assert!(token.is_good(secret, 999) && !token.is_good(secret, 1_000));
        assert!(!token.is_good(&"0".repeat(64), 10));
        for damaged in [
            ApiToken { role: DeskRole::Administrator, ..token.clone() },
            ApiToken { until_s: 5_000, ..token.clone() },
            ApiToken { name: "other".to_owned(), ..token.clone() },
        ] {
            assert!(!damaged.is_good(secret, 10), "{damaged:?}");
        }
        for wrong in ["", "idm", "idm.x", &format!("a b.{}", "0".repeat(64)), &format!(".{}", "0".repeat(64))]
        {
            assert!(ApiToken::parts(wrong).is_none(), "{wrong}");
        }
    }
}
