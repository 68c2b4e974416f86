use super::*;
use crate::message::Initiation;

fn key(byte: u8) -> StaticKey {
    StaticKey::new(Secret::new([byte; 32]))
}

fn timestamp() -> Timestamp {
    Timestamp::from_bytes([7; Timestamp::LEN])
}

/// A first message from `from` to `to`.
fn begin(from: &StaticKey, to: &StaticKey) -> (Initiator, Initiation) {
    let shared = agree(&from.private, &to.public()).expect("ordinary keys");
    initiate(from, to.public(), &shared, Secret::new([30; 32]), timestamp()).expect("ordinary keys")
}

fn prove(own: &StaticKey, message: &Initiation) -> Result<Opened, NotAuthentic> {
    let claimed = open(own, message)?;
    let shared = agree(&own.private, &claimed.peer())?;
    claimed.prove(&shared, message)
}

#[test]
fn both_ends_get_the_same_keys_and_each_learns_who_the_other_is() {
    let (client, gateway) = (key(1), key(2));
    let preshared = Secret::new([9; 32]);
    let (initiator, message) = begin(&client, &gateway);
    let opened = prove(&gateway, &message).expect("it is for the gateway");
    assert_eq!((opened.peer, opened.timestamp()), (client.public(), timestamp()));
    let (response, of_gateway) = opened.respond(&preshared, &Secret::new([40; 32])).expect("ordinary keys");
    let of_client = initiator.finish(&client, &preshared, &response).expect("it is for the client");
    assert_eq!(of_client.send, of_gateway.receive);
    assert_eq!(of_client.receive, of_gateway.send);
    assert_ne!(of_client.send, of_client.receive);
}

#[test]
fn only_the_peer_opens_a_message_and_only_an_unchanged_one() {
    let (client, gateway) = (key(1), key(2));
    let (_, message) = begin(&client, &gateway);
    assert_eq!(prove(&key(3), &message).err(), Some(NotAuthentic));
    let mut changed = message;
    for at in 0..changed.sealed_static.len() {
        changed.sealed_static[at] ^= 1;
        assert!(open(&gateway, &changed).is_err(), "key, byte {at}");
        changed = message;
    }
    for at in 0..changed.sealed_timestamp.len() {
        changed.sealed_timestamp[at] ^= 1;
        assert!(prove(&gateway, &changed).is_err(), "timestamp, byte {at}");
        changed = message;
    }
    changed.ephemeral[0] ^= 1;
    assert!(open(&gateway, &changed).is_err());
}

#[test]
fn a_preshared_key_that_differs_gives_no_session() {
    let (client, gateway) = (key(1), key(2));
    let (initiator, message) = begin(&client, &gateway);
    let opened = prove(&gateway, &message).expect("it is for the gateway");
    let (response, _) = opened.respond(&Secret::new([9; 32]), &Secret::new([40; 32])).expect("ordinary keys");
    assert_eq!(initiator.finish(&client, &Secret::new([0; 32]), &response), Err(NotAuthentic));
    assert!(initiator.finish(&client, &Secret::new([9; 32]), &response).is_ok(), "it still waits");
}

#[test]
fn a_message_with_the_claim_of_another_key_proves_nothing() {
    let (thief, gateway, victim) = (key(1), key(2), key(4));
    // Seals the victim's public key, which everyone may know, and its own secret with the gateway.
    let shared = agree(&thief.private, &gateway.public()).expect("ordinary keys");
    let claiming = StaticKey::claiming(thief.private, victim.public());
    let (_, message) = initiate(&claiming, gateway.public(), &shared, Secret::new([30; 32]), timestamp())
        .expect("ordinary keys");
    let claimed = open(&gateway, &message).expect("whoever knows the gateway's key can make this");
    assert_eq!(claimed.peer(), victim.public());
    assert_eq!(prove(&gateway, &message).err(), Some(NotAuthentic));
}

#[test]
fn points_of_low_order_are_refused() {
    for point in crate::key::tests::LOW_ORDER {
        assert_eq!(
            agree(&PrivateKey::new(&Secret::new([1; 32])), &PublicKey(point)).err(),
            Some(NotAuthentic)
        );
        let (client, gateway) = (key(1), key(2));
        let (initiator, mut message) = begin(&client, &gateway);
        let opened = prove(&gateway, &message).expect("it is for the gateway");
        message.ephemeral = point;
        assert!(open(&gateway, &message).is_err());
        let (mut response, _) =
            opened.respond(&Secret::new([0; 32]), &Secret::new([40; 32])).expect("ordinary keys");
        response.ephemeral = point;
        assert_eq!(initiator.finish(&client, &Secret::new([0; 32]), &response), Err(NotAuthentic));
    }
}

/// The first two values that every handshake begins with, as the kernel's and wireguard-go's are:
/// BLAKE2s of the name, and of that with the identifier.
#[test]
fn a_handshake_begins_with_the_published_values() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let chaining = hash(&[CONSTRUCTION]);
    assert_eq!(hex(&chaining), "60e26daef327efc02ec335e2a025d2d016eb4206f87277f52d38d1988b78cd36");
    let named = hash(&[&chaining, IDENTIFIER]);
    assert_eq!(hex(&named), "2211b361081ac566691243db458ad5322d9c6c662293e8b70ee19c65ba079ef3");
}

#[test]
fn keys_are_decoded_as_they_were_and_only_whole() {
    let keys = SessionKeys::new(Secret::new([1; 32]), Secret::new([2; 32]));
    let encoded = minicbor::to_vec(&keys).expect("a vector takes everything");
    assert_eq!(minicbor::decode::<SessionKeys>(&encoded).ok(), Some(keys));
    for short in [(vec![1_u8; 31], vec![2_u8; 32]), (vec![1; 32], vec![2; 33])] {
        let bytes = |key: &[u8]| minicbor::bytes::ByteVec::from(key.to_vec());
        let encoded =
            minicbor::to_vec([bytes(&short.0), bytes(&short.1)]).expect("a vector takes everything");
        assert!(minicbor::decode::<SessionKeys>(&encoded).is_err());
    }
    for end in 0..encoded.len() {
        assert!(minicbor::decode::<SessionKeys>(&encoded[..end]).is_err(), "{end} bytes");
    }
}
