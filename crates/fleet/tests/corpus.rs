//! Replays the committed fuzz corpus, with the body of the fuzz target itself.

#[path = "../../../fuzz/bodies/fleet_datagram.rs"]
mod fleet_datagram;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn datagrams() {
    replay::replay("fleet_datagram", fleet_datagram::run);
}
