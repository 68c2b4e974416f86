//! Any bytes as sealed data: only what the peer has sealed is opened, once, and only that moves the
//! peer.

use crate::wireguard_pair::{CLIENT, NOW, Pair, at, change};

/// Checks one input: as it is, behind a header of the session, as changes of genuine data, and as
/// genuine data.
pub(crate) fn run(data: &[u8]) {
    let mut pair = Pair::new();
    pair.shake();
    assert!(pair.client.send(NOW, pair.gateway_at_client, data), "there is a session");
    let genuine = pair.client.sent.pop().expect("it was sealed").1;
    let crafted = [&genuine[..16], data].concat();
    let mut changed = genuine.clone();
    // Without the index: it only finds the key.
    let is_changed = change(&mut changed[8..], data);
    for forged in [data.to_vec(), crafted] {
        assert!(pair.gateway.receive(NOW, at(7), forged).is_none());
    }
    assert!(!is_changed || pair.gateway.receive(NOW, at(7), changed).is_none());
    assert_eq!(pair.gateway.peers.endpoint(pair.client_at_gateway), Some(at(CLIENT)));

    let opened = pair.gateway.receive(NOW, at(9), genuine.clone()).expect("it is genuine");
    assert_eq!(opened.peer, pair.client_at_gateway);
    let (packet, padding) = opened.plaintext.split_at(data.len());
    assert!(packet == data && padding.len() < 16 && padding.iter().all(|byte| *byte == 0));
    assert_eq!(pair.gateway.peers.endpoint(pair.client_at_gateway), Some(at(9)));
    assert!(pair.gateway.receive(NOW, at(7), genuine).is_none(), "a replay");
}
