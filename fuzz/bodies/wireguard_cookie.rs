//! Any bytes as a cookie reply: only the peer that was asked can give one, and none of them moves
//! the peer.

use vpnd_wireguard::message::Message;

use crate::wireguard_pair::{CLIENT, GATEWAY, LATER, NOW, Pair, at, change};

/// Checks one input: as it is, with the index of a message that waits, and as changes of a genuine
/// reply.
pub(crate) fn run(data: &[u8]) {
    let mut pair = Pair::new();
    let initiation = pair.initiation(NOW);
    let mut crafted = [0; 64];
    let len = data.len().min(crafted.len() - 8);
    crafted[0] = 3;
    crafted[4..8].copy_from_slice(&initiation[4..8]);
    crafted[8..][..len].copy_from_slice(&data[..len]);
    pair.client.receive(NOW, at(7), data.to_vec());
    pair.client.receive(NOW, at(7), crafted.to_vec());

    // More than one host may begin, so that the gateway asks for a proof.
    while pair.gateway.peers.gate_counts().cookies == 0 {
        pair.gateway.sent.clear();
        pair.gateway.receive(NOW, at(CLIENT), initiation.clone());
    }
    let genuine = pair.gateway.sent.pop().expect("a cookie").1;
    let mut changed = genuine.clone();
    if change(&mut changed[8..], data) {
        pair.client.receive(NOW, at(7), changed);
    }
    pair.client.timeout(LATER);
    assert!(mac2_is_zero(&pair.client.sent.pop().expect("a retry").1), "a forged cookie is shown");
    assert_eq!(pair.client.peers.endpoint(pair.gateway_at_client), Some(at(GATEWAY)));
}

fn mac2_is_zero(datagram: &[u8]) -> bool {
    assert!(matches!(Message::parse(datagram), Ok(Message::Initiation(_))));
    datagram[132..].iter().all(|byte| *byte == 0)
}
