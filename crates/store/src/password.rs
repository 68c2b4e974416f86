//! Passwords: argon2id hashes (RFC 9106) in the PHC string format, and making new ones.
//!
//! Invariants: a password is erased from memory when it is dropped and never printed; a hash
//! carries its parameters, so they can be raised later; without memory for a hash nothing is
//! checked, which is no wrong password. The parameters follow the OWASP password storage cheat
//! sheet.

mod foreign;
mod guessable;

use std::fmt;

use argon2::password_hash::{self, PasswordHasher as _, PasswordVerifier as _};
use argon2::{Algorithm, Argon2, Params, Version};
use zeroize::Zeroizing;

use crate::PasswordHash;
use foreign::ForeignHash;
pub use guessable::is_guessable;

/// Memory of one hash, KiB.
const MEMORY_KIB: u32 = 19 * 1024;
/// Passes over that memory.
const PASSES: u32 = 2;
const LANES: u32 = 1;
/// Memory of the costliest argon2 hash of others that is verified.
const MAX_MEMORY_KIB: u32 = 256 * 1024;
/// Its memory, KiB, times its passes: about half a second of a core.
const MAX_WORK: u32 = 512 * 1024;
/// The longest password, in bytes (PROTOCOL §3.2).
pub const MAX_PASSWORD_BYTES: usize = 1024;
/// The shortest password that a person may choose, in characters (NIST SP 800-63B).
pub const MIN_PASSWORD_CHARS: usize = 8;

/// Characters of generated passwords: none that look alike.
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// A password or another short secret that a person types. Never printed.
#[derive(Clone)]
pub struct Password(Zeroizing<String>);

impl Password {
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// A random password of 100 bits, in groups of five characters.
    pub fn generate() -> Self {
        let letters: Vec<char> = rand::random::<[u8; 20]>()
            .iter()
            .map(|byte| char::from(ALPHABET[usize::from(byte % 32)]))
            .collect();
        let groups: Vec<String> = letters.chunks(5).map(|group| group.iter().collect()).collect();
        Self::new(groups.join("-"))
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(<secret>)")
    }
}

/// The system has no memory for a hash now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no memory to hash a password (it takes {} MiB); free some, or raise the limit of this process",
    MEMORY_KIB / 1024
)]
pub struct NoMemory;

/// Makes and checks hashes.
#[derive(Clone, Debug)]
pub struct Hasher {
    params: Params,
}

impl Default for Hasher {
    /// The parameters for real users: 19 MiB, 2 passes.
    fn default() -> Self {
        Self::with_cost(MEMORY_KIB, PASSES)
    }
}

impl Hasher {
    /// Other parameters, such as small ones for tests. `memory_kib` is at least 8.
    pub fn with_cost(memory_kib: u32, passes: u32) -> Self {
        let params = Params::new(memory_kib.max(8), passes.max(1), LANES, None);
        Self { params: params.expect("memory is at least 8 KiB for each lane and there is a pass") }
    }

    /// Hashes a password with a fresh salt.
    pub fn hash(&self, password: &Password) -> Result<PasswordHash, NoMemory> {
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, self.params.clone());
        match argon2.hash_password(password.expose().as_bytes()) {
            Err(password_hash::Error::OutOfMemory) => Err(NoMemory),
            hash => Ok(PasswordHash::new(
                hash.expect("the parameters are valid and the system has randomness").to_string(),
            )),
        }
    }

    /// Whether `hash` is of `password`. Takes the time of the parameters in the hash.
    ///
    /// # Errors
    /// [`NoMemory`]: it is not known.
    pub fn verify(&self, password: &Password, hash: &PasswordHash) -> Result<bool, NoMemory> {
        // A longer password can't have been set, and hashing it would cost whatever the sender
        // likes.
        let bytes = password.expose().as_bytes();
        let bounded = &bytes[..bytes.len().min(MAX_PASSWORD_BYTES)];
        if let Some(foreign) = ForeignHash::parse(hash.expose()) {
            return Ok(foreign.verify(bounded) && bytes.len() <= MAX_PASSWORD_BYTES);
        }
        if !Self::is_acceptable(hash) {
            tracing::error!(
                "a user's password hash is not valid, or costs more than a login may: set a new password"
            );
            return Ok(false);
        }
        let verified = argon2::PasswordHash::new(hash.expose())
            .map(|hash| Argon2::default().verify_password(bounded, &hash));
        if verified == Ok(Err(password_hash::Error::OutOfMemory)) {
            return Err(NoMemory);
        }
        Ok(verified == Ok(Ok(())) && bytes.len() <= MAX_PASSWORD_BYTES)
    }

    /// Whether verifying `hash` takes the time of today's parameters. Another kind may take less,
    /// which would show.
    pub fn costs_the_same(&self, hash: &PasswordHash) -> bool {
        !self.is_outdated(hash)
    }

    /// Whether a hash that others have made can be verified here, at a bounded cost.
    pub fn is_acceptable(hash: &PasswordHash) -> bool {
        if ForeignHash::parse(hash.expose()).is_some() {
            return true;
        }
        let Ok(parsed) = argon2::PasswordHash::new(hash.expose()) else { return false };
        let bounded = |params: Params| {
            params.m_cost() <= MAX_MEMORY_KIB && params.m_cost().saturating_mul(params.t_cost()) <= MAX_WORK
        };
        parsed.algorithm.as_str().starts_with("argon2")
            && parsed.salt.is_some()
            && parsed.hash.is_some()
            && Params::try_from(&parsed).is_ok_and(bounded)
    }

    /// Whether `hash` was made with other parameters than today's.
    pub fn is_outdated(&self, hash: &PasswordHash) -> bool {
        let found =
            argon2::PasswordHash::new(hash.expose()).ok().and_then(|hash| Params::try_from(&hash).ok());
        found.is_none_or(|found| {
            let cost = |params: &Params| (params.m_cost(), params.t_cost(), params.p_cost());
            cost(&found) != cost(&self.params)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_of_its_password_alone() {
        let hasher = Hasher::default();
        let hash = hasher.hash(&Password::new("correct horse".to_owned())).unwrap();
        assert!(hash.expose().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "the parameters of the docs");
        assert!(hasher.verify(&Password::new("correct horse".to_owned()), &hash).unwrap());
        for wrong in ["", "correct hors", "correct horsf", "correct horse "] {
            assert!(!hasher.verify(&Password::new(wrong.to_owned()), &hash).unwrap(), "{wrong:?}");
        }
        let garbage = PasswordHash::new("garbage".to_owned());
        assert_eq!(hasher.verify(&Password::new("x".to_owned()), &garbage), Ok(false));
    }

    #[test]
    fn a_password_that_is_too_long_is_wrong() {
        let hasher = Hasher::with_cost(8, 1);
        let hash = hasher.hash(&Password::new("x".repeat(MAX_PASSWORD_BYTES))).unwrap();
        assert!(hasher.verify(&Password::new("x".repeat(MAX_PASSWORD_BYTES)), &hash).unwrap());
        assert!(!hasher.verify(&Password::new("x".repeat(MAX_PASSWORD_BYTES + 1)), &hash).unwrap());
    }

    #[test]
    fn a_hash_that_costs_too_much_is_neither_taken_over_nor_verified() {
        let hash_of = |memory: u32, passes: u32| {
            let hash = Hasher::with_cost(8, 1).hash(&Password::new("secret".to_owned())).unwrap();
            let cost = hash.expose().replace("m=8,t=1,", &format!("m={memory},t={passes},"));
            PasswordHash::new(cost)
        };
        for (memory, passes) in [(8, 1), (MEMORY_KIB, PASSES), (64 * 1024, 4), (MAX_MEMORY_KIB, 2)] {
            assert!(Hasher::is_acceptable(&hash_of(memory, passes)), "{memory} KiB, {passes} passes");
        }
        for (memory, passes) in [(MAX_MEMORY_KIB, 3), (MAX_MEMORY_KIB + 1, 1), (64 * 1024, 16), (8, u32::MAX)]
        {
            assert!(!Hasher::is_acceptable(&hash_of(memory, passes)), "{memory} KiB, {passes} passes");
        }
        // This would take days.
        let endless = hash_of(8, u32::MAX);
        assert_eq!(Hasher::default().verify(&Password::new("secret".to_owned()), &endless), Ok(false));
    }

    #[test]
    fn other_parameters_make_a_hash_outdated() {
        let (weak, strong) = (Hasher::with_cost(8, 1), Hasher::with_cost(16, 1));
        let hash = weak.hash(&Password::new("secret".to_owned())).unwrap();
        assert!(!weak.is_outdated(&hash) && strong.is_outdated(&hash));
        assert!(strong.verify(&Password::new("secret".to_owned()), &hash).unwrap(), "it still verifies");
    }

    #[test]
    fn generated_passwords_are_random_and_typable() {
        let (a, b) = (Password::generate(), Password::generate());
        assert_ne!(a.expose(), b.expose());
        assert_eq!(a.expose().len(), 23);
        assert!(a.expose().bytes().all(|b| b == b'-' || ALPHABET.contains(&b)));
        assert!(!format!("{a:?}").contains(a.expose()));
    }
}
