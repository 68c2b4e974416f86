//! Replays the committed corpus with the body of the fuzz target, which names this crate from
//! outside.

#[path = "../../../../../fuzz/bodies/aead.rs"]
pub(super) mod aead;
#[path = "../../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn packets_whole_and_forged() {
    replay::replay("aead", aead::run);
}
