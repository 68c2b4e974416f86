//! One-time codes by time (RFC 6238): six digits, SHA-1, steps of 30 s, as every authenticator app
//! makes them.
//!
//! Invariant: a code is accepted one step early or late, no more. That it is used once is the
//! store's part, by its step.

use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};
use totp_rs::{Builder, Totp};

use super::password::Password;
use crate::TotpSecret;

/// Length of a step, seconds.
pub const STEP_S: u64 = 30;
/// Steps that a clock may be off.
const SKEW: u16 = 1;
/// Bytes of a secret: as many as the hash has (RFC 4226 section 4).
const SECRET_BYTES: usize = 20;
pub fn generate() -> TotpSecret {
    TotpSecret::new(rand::random::<[u8; SECRET_BYTES]>().to_vec())
}

/// The step that `code` belongs to, if it is right at `now_s`.
pub fn matching_step(secret: &TotpSecret, code: &Password, now_s: u64) -> Option<u64> {
    let digits: String = code.expose().chars().filter(|c| !c.is_whitespace()).take(16).collect();
    totp(secret, "user", None)?.check(&digits, now_s)
}

/// The `otpauth://` address with the secret, for a user's authenticator app, which shows it under
/// the gateway's name.
pub fn address(secret: &TotpSecret, user: &str, gateway: &str) -> Option<String> {
    totp(secret, user, Some(gateway))?.to_url().ok()
}

/// The secret as a person types it into an app (base32), in groups of four.
pub fn to_type(secret: &TotpSecret) -> String {
    let letters: Vec<char> = totp_rs::Secret::new(secret.expose().into()).to_base32().chars().collect();
    let groups: Vec<String> = letters.chunks(4).map(|group| group.iter().collect()).collect();
    groups.join(" ")
}

/// The secret that [`to_type`] has made this of.
pub fn from_typed(text: &str) -> Option<TotpSecret> {
    let letters: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
    let secret = totp_rs::Secret::try_from_base32(letters).ok()?;
    (secret.as_ref().len() == SECRET_BYTES).then(|| TotpSecret::new(secret.as_ref().to_vec()))
}

/// The address as a QR code for a terminal, black on white whatever its colours are.
pub fn qr_code(address: &str) -> Option<String> {
    let code = QrCode::with_error_correction_level(address, EcLevel::L).ok()?;
    let image = code.render::<Dense1x2>().build();
    Some(image.lines().map(|line| format!("\x1b[30;107m{line}\x1b[0m\n")).collect())
}

/// `None` if the secret is shorter than the RFC allows, which only a damaged store has.
fn totp(secret: &TotpSecret, user: &str, gateway: Option<&str>) -> Option<Totp> {
    let secret = totp_rs::Secret::new(secret.expose().into());
    let builder = Builder::new().with_secret(secret).with_skew(SKEW).with_step_duration(STEP_S);
    builder.with_account_name(user).with_issuer(gateway).build().ok()
}

/// The code at `now_s`.
#[cfg(any(test, feature = "testing"))]
pub fn code_at(secret: &TotpSecret, now_s: u64) -> String {
    totp(secret, "user", None).expect("a secret makes a code").generate(now_s).to_string()
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
    fn secrets_are_160_random_bits() {
        let secrets: Vec<TotpSecret> = (0..256).map(|_| generate()).collect();
        for bit in 0..8 * SECRET_BYTES {
            let ones = secrets.iter().filter(|secret| secret.expose()[bit / 8] >> (bit % 8) & 1 == 1).count();
            assert!((64..192).contains(&ones), "bit {bit} is set in {ones} of 256");
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
        let address = address(&generate(), "ann", "vpn.example.org").unwrap();
        assert!(address.starts_with("otpauth://totp/vpn.example.org:ann?secret="), "{address}");
        assert!(address.contains("issuer=vpn.example.org"), "{address}");
        let code = qr_code(&address).unwrap();
        let widths: Vec<usize> = code.lines().map(|line| line.chars().count()).collect();
        assert!((20..40).contains(&widths.len()) && widths.iter().all(|width| *width == widths[0]), "{code}");
        // A quiet zone of four modules is around it.
        assert!(code.lines().all(|line| line.starts_with("\x1b[30;107m    ")), "{code}");
    }
}
