//! Parts of the daemon that serve the control channel; the channel itself is `vpnd_control_channel`.

pub(crate) mod quic_forwarder;

use rand::TryRng as _;
use vpnd_proto::session::Random;

/// The operating system's random numbers, for the sans-IO cores.
///
/// # Panics
/// If the operating system has none: no secret could be made then.
pub(crate) fn random() -> Random {
    Box::new(|bytes| {
        rand::rngs::SysRng.try_fill_bytes(bytes).expect("the operating system gives random numbers")
    })
}
