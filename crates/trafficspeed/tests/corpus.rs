//! Replays the committed fuzz corpus of what hosts of an experiment say to each other, with the
//! body of the fuzz target itself.

#[path = "../../../fuzz/bodies/coordination.rs"]
mod coordination;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn lines_between_hosts() {
    replay::replay("coordination", coordination::run);
}
