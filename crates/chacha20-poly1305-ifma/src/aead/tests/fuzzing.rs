//! Replays the committed corpus with the body of the fuzz target, which names this crate from
//! outside.

#[path = "../../../../../fuzz/bodies/chacha.rs"]
pub(super) mod chacha;
#[path = "../../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn packets_whole_and_forged() {
    replay::replay("chacha", chacha::run);
}
