//! Any bytes as the first message of a handshake: no sender without a known peer's key gets an
//! answer, even with a right MAC.

use vpnd_wireguard::mac::{HandshakeMessage, Mac1Key};
use vpnd_wireguard::message::Initiation;
use zerocopy::{FromBytes, IntoBytes};

use crate::wireguard_pair::{CLIENT, NOW, Pair, at, change};

/// Type and index, which only the MACs cover.
const HEADER: usize = 8;
/// Bytes of the message that the first MAC covers.
const COVERED: usize = 116;

/// Checks one input: as it is, as the content of a message with a right MAC, and as changes of a
/// genuine message.
pub(crate) fn run(data: &[u8]) {
    let mut pair = Pair::new();
    pair.gateway.receive(NOW, at(CLIENT), data.to_vec());
    let mut bytes = [0; 148];
    let len = data.len().min(COVERED - HEADER);
    bytes[HEADER..][..len].copy_from_slice(&data[..len]);
    bytes[0] = 1;
    let crafted = stamped(&pair, &bytes);
    pair.gateway.receive(NOW, at(CLIENT), crafted);
    assert!(pair.gateway.sent.is_empty() && pair.gateway.openers() == 0, "a stranger was answered");

    let mut genuine = pair.initiation(NOW);
    let changed = change(&mut genuine[HEADER..COVERED], data);
    let genuine = stamped(&pair, &genuine);
    pair.gateway.receive(NOW, at(CLIENT), genuine);
    assert_eq!(pair.gateway.sent.len(), usize::from(!changed));
    assert_eq!(pair.gateway.openers(), usize::from(!changed));
    assert_eq!(pair.gateway.peers.endpoint(pair.client_at_gateway).is_some(), !changed);
}

/// This message with a right first MAC.
fn stamped(pair: &Pair, bytes: &[u8]) -> Vec<u8> {
    let mut message = *Initiation::ref_from_bytes(bytes).expect("148 bytes");
    message.stamp(&Mac1Key::new(pair.gateway.public()), None);
    message.as_bytes().to_vec()
}
