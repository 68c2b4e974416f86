//! Replays the committed fuzz corpora, with the bodies of the fuzz targets themselves.

#[path = "model/node.rs"]
mod node;
#[path = "../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../fuzz/bodies/wireguard_cookie.rs"]
mod wireguard_cookie;
#[path = "../../../fuzz/bodies/wireguard_data.rs"]
mod wireguard_data;
#[path = "../../../fuzz/bodies/wireguard_initiation.rs"]
mod wireguard_initiation;
#[path = "../../../fuzz/bodies/wireguard_pair.rs"]
mod wireguard_pair;
#[path = "../../../fuzz/bodies/wireguard_response.rs"]
mod wireguard_response;

use replay::replay;

#[test]
fn initiations() {
    replay("wireguard_initiation", wireguard_initiation::run);
}

#[test]
fn responses() {
    replay("wireguard_response", wireguard_response::run);
}

#[test]
fn cookie_replies() {
    replay("wireguard_cookie", wireguard_cookie::run);
}

#[test]
fn data() {
    replay("wireguard_data", wireguard_data::run);
}
