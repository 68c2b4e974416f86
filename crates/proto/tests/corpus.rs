//! Replays the committed fuzz corpora, with the bodies of the fuzz targets themselves.

#[path = "../../../fuzz/bodies/control_message.rs"]
mod control_message;
#[path = "../../../fuzz/bodies/handover.rs"]
mod handover;
#[path = "../../../fuzz/bodies/inner_packet.rs"]
mod inner_packet;
#[path = "../../../fuzz/bodies/offload.rs"]
mod offload;
#[path = "../../../fuzz/bodies/outer_header.rs"]
mod outer_header;

#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn control_messages() {
    replay("control_message", control_message::run);
}

#[test]
fn inner_packets() {
    replay("inner_packet", inner_packet::run);
}

#[test]
fn offloads() {
    replay("offload", offload::run);
}

#[test]
fn outer_headers() {
    replay("outer_header", outer_header::run);
}

#[test]
fn handed_sessions() {
    replay("handover", handover::run);
}
