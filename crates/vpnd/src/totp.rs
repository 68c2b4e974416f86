//! One-time codes by time (RFC 6238): six digits, SHA-1, steps of 30 s, as every authenticator app makes them.
//!
//! Invariant: a code is accepted one step early or late, no more. That it is used once is the store's part, by its step.

use totp_rs::{Builder, Totp};

use super::password::Password;
use crate::store::TotpSecret;

/// Length of a step, seconds.
pub const STEP_S: u64 = 30;
/// Steps that a clock may be off.
const SKEW: u16 = 1;
/// Bytes of a secret: as many as the hash has (RFC 4226 section 4).
const SECRET_BYTES: usize = 20;
/// Name of the issuer in the authenticator app.
const ISSUER: &str = "vpnd";

pub fn generate() -> TotpSecret {
    TotpSecret::new(rand::random::<[u8; SECRET_BYTES]>().to_vec())
}

/// The step that `code` belongs to, if it is right at `now_s`.
pub fn matching_step(secret: &TotpSecret, code: &Password, now_s: u64) -> Option<u64> {
    let digits: String = code.expose().chars().filter(|c| !c.is_whitespace()).take(16).collect();
    totp(secret, "user")?.check(&digits, now_s)
}

/// The `otpauth://` address with the secret, for a user's authenticator app.
pub fn address(secret: &TotpSecret, user: &str) -> Option<String> {
    totp(secret, user)?.to_url().ok()
}

/// `None` if the secret is shorter than the RFC allows, which only a damaged store has.
fn totp(secret: &TotpSecret, user: &str) -> Option<Totp> {
    let secret = totp_rs::Secret::new(secret.expose().into());
    let builder = Builder::new().with_secret(secret).with_skew(SKEW).with_step_duration(STEP_S);
    builder.with_account_name(user).with_issuer(Some(ISSUER)).build().ok()
}

/// The code at `now_s`.
#[cfg(test)]
pub(super) fn code_at(secret: &TotpSecret, now_s: u64) -> String {
    totp(secret, "user").unwrap().generate(now_s).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Password {
        Password::new(text.to_owned())
    }

    /// RFC 6238 appendix B, SHA-1, the last six of the eight digits.
    #[test]
    fn the_vectors_of_the_rfc_match() {
        let secret = TotpSecret::new(b"12345678901234567890".to_vec());
        for (time, digits) in
            [(59, "287082"), (1_111_111_109, "081804"), (1_234_567_890, "005924"), (20_000_000_000, "353130")]
        {
            assert_eq!(matching_step(&secret, &code(digits), time), Some(time / STEP_S), "{time}");
        }
    }

    #[test]
    fn one_step_early_or_late_is_the_limit() {
        let secret = TotpSecret::new(b"12345678901234567890".to_vec());
        let at = |now_s| matching_step(&secret, &code("005924"), now_s);
        let step = 1_234_567_890 / STEP_S;
        assert_eq!(at(1_234_567_890 - STEP_S), Some(step));
        assert_eq!(at(1_234_567_890 + STEP_S), Some(step));
        assert_eq!(at(1_234_567_890 - 2 * STEP_S), None);
        assert_eq!(at(1_234_567_890 + 2 * STEP_S), None);
        for wrong in ["", "00592", "0059244", "abcdef", "005925"] {
            assert_eq!(matching_step(&secret, &code(wrong), 1_234_567_890), None, "{wrong:?}");
        }
    }

    #[test]
    fn an_address_is_for_authenticator_apps() {
        let address = address(&generate(), "ann").unwrap();
        assert!(address.starts_with("otpauth://totp/vpnd:ann?secret="), "{address}");
        assert!(address.contains("issuer=vpnd"), "{address}");
    }
}
