//! Attach tokens and the rules of their use (PROTOCOL §5).
//!
//! INVARIANT: only hashes of tokens are kept; a token itself is in its message and in the client.

use core::fmt;

use minicbor::decode::{self, Decode, Decoder};
use minicbor::encode::{self, Encode, Encoder, Write};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes of a token, and of its hash.
pub const TOKEN_LEN: usize = 32;

/// The token with which a client gets a new epoch. Erased when dropped, never printed.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Token([u8; TOKEN_LEN]);

impl Token {
    /// Takes 32 random bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; TOKEN_LEN]) -> Self {
        Self(bytes)
    }

    /// The token itself, to be stored where only its owner can read it.
    #[must_use]
    pub const fn expose(&self) -> &[u8; TOKEN_LEN] {
        &self.0
    }

    /// Its hash, which the gateway keeps.
    #[must_use]
    pub fn hash(&self) -> TokenHash {
        TokenHash(Sha256::digest(self.0).into())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(<secret>)")
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Token {}

impl<C> Encode<C> for Token {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        e.bytes(&self.0)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Token {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        let at = d.position();
        let bytes = d.bytes()?.try_into();
        bytes.map(Self).map_err(|_| decode::Error::message("a token has 32 bytes").at(at))
    }
}

/// SHA-256 of a token. Tokens are random, so nothing slower is needed.
#[derive(Clone, Copy)]
pub struct TokenHash([u8; TOKEN_LEN]);

impl TokenHash {
    /// A hash from the store.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; TOKEN_LEN]) -> Self {
        Self(bytes)
    }

    /// For the store.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; TOKEN_LEN] {
        &self.0
    }
}

/// In constant time.
impl PartialEq for TokenHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for TokenHash {}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

/// The tokens of one session that are good now.
///
/// Each answer carries a fresh token. The one before it stays good until the answer's epoch is
/// confirmed, because the answer may have been lost. A client that shows the fresh one has got the
/// answer, which voids the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Good until a successor's epoch is confirmed.
    settled: TokenHash,
    /// Issued with the epoch that is not confirmed yet.
    fresh: Option<TokenHash>,
}

impl Tokens {
    /// The tokens after a login, whose answer carried `first`.
    #[must_use]
    pub const fn new(first: TokenHash) -> Self {
        Self { settled: first, fresh: None }
    }

    /// Tokens from the store.
    #[must_use]
    pub const fn restore(settled: TokenHash, fresh: Option<TokenHash>) -> Self {
        Self { settled, fresh }
    }

    /// The hash of the token that is good until the fresh one's epoch is confirmed.
    #[must_use]
    pub const fn settled(&self) -> TokenHash {
        self.settled
    }

    /// The hash of the token whose epoch is not confirmed yet.
    #[must_use]
    pub const fn fresh(&self) -> Option<TokenHash> {
        self.fresh
    }

    /// Whether a token with this hash is good.
    #[must_use]
    pub fn accept(&self, shown: TokenHash) -> bool {
        // Both comparisons are always made, so that time does not tell which one failed.
        let settled = shown == self.settled;
        let fresh = self.fresh.is_some_and(|fresh| shown == fresh);
        settled | fresh
    }

    /// Issues `next` to the client that showed `shown`, which was accepted.
    pub fn issue(&mut self, shown: TokenHash, next: TokenHash) {
        debug_assert!(self.accept(shown), "tokens are issued only against a good one");
        self.settled = shown;
        self.fresh = Some(next);
    }

    /// The epoch of the last issued token was confirmed: the one before is void.
    pub fn confirm(&mut self) {
        if let Some(fresh) = self.fresh.take() {
            self.settled = fresh;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(byte: u8) -> TokenHash {
        Token::from_bytes([byte; 32]).hash()
    }

    #[test]
    fn hash_is_sha256() {
        // The digest of 32 zero bytes.
        let want = "66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925";
        let got: String = hash(0).as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn a_lost_answer_costs_nothing() {
        let mut tokens = Tokens::new(hash(1));
        tokens.issue(hash(1), hash(2));
        assert!(tokens.accept(hash(1)), "the answer with token 2 may be lost");
        tokens.issue(hash(1), hash(3));
        assert!(tokens.accept(hash(1)) && tokens.accept(hash(3)));
        assert!(!tokens.accept(hash(2)), "nobody got token 2");
    }

    #[test]
    fn confirmation_voids_the_token_before() {
        let mut tokens = Tokens::new(hash(1));
        tokens.issue(hash(1), hash(2));
        tokens.confirm();
        assert!(!tokens.accept(hash(1)) && tokens.accept(hash(2)));
        tokens.confirm();
        assert!(tokens.accept(hash(2)), "a second confirmation changes nothing");
    }

    #[test]
    fn showing_the_fresh_token_voids_the_one_before() {
        let mut tokens = Tokens::new(hash(1));
        tokens.issue(hash(1), hash(2));
        tokens.issue(hash(2), hash(3));
        assert!(!tokens.accept(hash(1)), "token 2 proves that its answer arrived");
        assert!(tokens.accept(hash(2)) && tokens.accept(hash(3)));
    }

    #[test]
    fn tokens_are_not_printed() {
        let token = Token::from_bytes([0xAB; 32]);
        let printed = format!("{token:?} {:?}", token.hash());
        assert_eq!(printed, "Token(<secret>) TokenHash(..)");
    }
}
