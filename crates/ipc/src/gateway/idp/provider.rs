//! Logins at an OpenID provider.
//!
//! INVARIANT: what proves that an answer belongs to a login (nonce and verifier) is the auth
//! process's, which sends it with each request: the idp process keeps nothing of a login.

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_config::factor::Factors;
use vpnd_proto::control::{SecretText, Text};

use super::{Identity, SourceName, Subject};

/// A random text of a login: state, nonce, verifier or its hash, base64url.
pub type Random = Text<43>;
/// The code that a provider sends with a browser.
pub type Code = SecretText<2048>;
/// Where a browser is sent.
pub type Url = Text<4096>;

/// The address at the provider where a login begins.
#[derive(Debug, Encode, Decode)]
pub struct LoginAddress {
    #[n(0)]
    pub source: SourceName,
    #[n(1)]
    pub state: Random,
    #[n(2)]
    pub nonce: Random,
    /// SHA-256 of the verifier (RFC 7636).
    #[n(3)]
    pub challenge: Random,
    /// Longest time since the user was asked for credentials, if that counts.
    #[n(4)]
    pub max_age_s: Option<u64>,
}

/// Asks who has logged in, by the code that came back with the browser.
#[derive(Debug, Encode, Decode)]
pub struct RedeemCode {
    #[n(0)]
    pub source: SourceName,
    #[n(1)]
    pub code: Code,
    /// The issuer that came with it (RFC 9207).
    #[n(2)]
    pub issuer: Option<Text<512>>,
    #[n(3)]
    pub nonce: Random,
    #[n(4)]
    pub verifier: SecretText<43>,
    /// The value of [`LoginAddress`].
    #[n(5)]
    pub max_age_s: Option<u64>,
}

/// The token that a provider sends when a user has logged out there.
pub type LogoutToken = SecretText<12_288>;

/// Asks who has logged out at a provider, by the token that it has sent.
#[derive(Debug, Encode, Decode)]
pub struct ReadLogout {
    #[n(0)]
    pub source: SourceName,
    #[n(1)]
    pub token: LogoutToken,
}

/// A hash by which a browser's session at a provider is known (`sid`).
pub type ProviderSession = ByteArray<32>;

/// A logout that a provider has signed.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ProviderLogout {
    #[n(0)]
    pub who: LoggedOut,
    /// Hash of its number: each counts once.
    #[n(1)]
    pub id: ByteArray<32>,
}

/// The user who has logged out at a provider.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum LoggedOut {
    #[n(0)]
    Subject(#[n(0)] Subject),
    /// The one whose login this session was.
    #[n(1)]
    Session(#[n(0)] ProviderSession),
}

/// The token that a provider gives with a login, for later questions about the user.
pub type RefreshToken = SecretText<4096>;

/// A code was good.
#[derive(Debug, Encode, Decode)]
pub struct Redeemed {
    #[n(0)]
    pub login: ProviderLogin,
    /// If the provider gives one.
    #[n(1)]
    pub refresh: Option<RefreshToken>,
}

/// Whether the user whose login had this token may still log in at the provider.
#[derive(Debug, Encode, Decode)]
pub struct RefreshLogin {
    #[n(0)]
    pub source: SourceName,
    #[n(1)]
    pub token: RefreshToken,
}

/// The user may.
#[derive(Debug, Encode, Decode)]
pub struct RefreshedLogin {
    #[n(0)]
    pub identity: Identity,
    /// In place of the one that was used, if the provider gives another.
    #[n(1)]
    pub refresh: Option<RefreshToken>,
}

/// A login that a provider vouches for.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ProviderLogin {
    #[n(0)]
    pub identity: Identity,
    /// By what the provider says that the user has proved.
    #[n(1)]
    pub factors: Factors,
    /// When the user was asked for credentials last, if the provider states it: Unix time.
    #[n(2)]
    pub auth_time_s: Option<u64>,
    /// The browser's session there, if the provider names it.
    #[n(3)]
    pub session: Option<ProviderSession>,
}
