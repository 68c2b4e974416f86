//! Any bytes as the second message of a handshake: only what the peer that was asked has made gives
//! a session.

use vpnd_wireguard::mac::{HandshakeMessage, Mac1Key};
use vpnd_wireguard::message::Response;
use zerocopy::{FromBytes, IntoBytes};

use crate::wireguard_pair::{GATEWAY, NOW, Pair, at, change};

/// Type and indexes, which only the MACs cover.
const HEADER: usize = 12;
/// Bytes of the message that the first MAC covers.
const COVERED: usize = 60;

/// Checks one input: as it is, as the content of a message with a right MAC, and as changes of a
/// genuine message.
pub(crate) fn run(data: &[u8]) {
    let mut pair = Pair::new();
    let genuine = pair.response(NOW);
    pair.client.receive(NOW, at(7), data.to_vec());
    let mut bytes = genuine.clone();
    let len = data.len().min(COVERED - HEADER);
    bytes[HEADER..COVERED].fill(0);
    bytes[HEADER..][..len].copy_from_slice(&data[..len]);
    let crafted = stamped(&pair, &bytes);
    pair.client.receive(NOW, at(7), crafted);
    assert!(pair.client.sent.is_empty() && pair.client.openers() == 0, "a stranger was believed");
    assert_eq!(pair.client.peers.endpoint(pair.gateway_at_client), Some(at(GATEWAY)));

    let mut changed_bytes = genuine.clone();
    if change(&mut changed_bytes[HEADER..COVERED], data) {
        let changed = stamped(&pair, &changed_bytes);
        pair.client.receive(NOW, at(7), changed);
        assert_eq!(pair.client.openers(), 0);
    }
    pair.client.receive(NOW, at(GATEWAY), genuine);
    assert_eq!(pair.client.openers(), 1, "forgeries keep the true answer from nobody");
}

/// This message with a right first MAC.
fn stamped(pair: &Pair, bytes: &[u8]) -> Vec<u8> {
    let mut message = *Response::ref_from_bytes(bytes).expect("92 bytes");
    message.stamp(&Mac1Key::new(pair.client.public()), None);
    message.as_bytes().to_vec()
}
