//! The operating system's random numbers.

use rand::TryRng as _;
use vpnd_proto::session::Random;

/// The operating system's random numbers, for the sans-IO cores.
///
/// # Panics
/// If the operating system has none: no secret could be made then.
pub fn random() -> Random {
    Box::new(|bytes| {
        rand::rngs::SysRng.try_fill_bytes(bytes).expect("the operating system gives random numbers")
    })
}
