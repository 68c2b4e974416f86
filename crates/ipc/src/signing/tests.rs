//! Tests of the messages that the auth process signs and refuses, and of a worker whose auth
//! process stands still.

use std::time::SystemTime;

use rustls::crypto::aws_lc_rs;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::*;
use vpnd_pki::authority::Authority;

fn certified() -> CertifiedKey {
    let authority = Authority::new("tests", SystemTime::now()).unwrap();
    let identity = authority.server(&["localhost".to_owned()], SystemTime::now()).unwrap();
    let chain = vec![CertificateDer::from(identity.certificate_der)];
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).unwrap();
    CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).unwrap()
}

/// The message that a server signs over a transcript hash of this length.
fn certificate_verify(hash_len: usize) -> Vec<u8> {
    [&PADDING[..], CONTEXT, &vec![0xA7; hash_len]].concat()
}

fn keys(certified: &CertifiedKey) -> Keys {
    let keys = Keys::default();
    keys.add(Arc::clone(&certified.key)).unwrap();
    keys
}

/// A worker's key, and how the thread that signs for it ends.
fn remote(certified: &CertifiedKey) -> (Arc<RemoteKey>, oneshot::Receiver<SigningError>) {
    let (worker, auth) = pair().unwrap();
    let ended = serve(auth, keys(certified)).unwrap();
    (RemoteKey::new(KeyDescription::of(certified).unwrap(), SigningClient::new(worker)), ended)
}

fn sign(key: &RemoteKey, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
    key.choose_scheme(&SCHEMES).unwrap().sign(message)
}

#[test]
fn a_handshake_of_a_server_is_signed_as_with_the_key_itself() {
    let certified = certified();
    let (key, _ended) = remote(&certified);
    let spki = certified.key.public_key().unwrap();
    // The last 65 bytes of the public key's info are the point itself.
    let point = &spki.as_ref()[spki.as_ref().len() - 65..];
    let public = aws_lc_rs_signature(point);
    for hash_len in TRANSCRIPT_HASHES {
        let message = certificate_verify(hash_len);
        public.verify(&message, &sign(&key, &message).unwrap()).expect("the signature is the key's");
    }
    assert_eq!(key.algorithm(), SignatureAlgorithm::ECDSA);
    assert!(key.choose_scheme(&[SignatureScheme::ED25519]).is_none(), "the key is of another kind");
}

fn aws_lc_rs_signature(point: &[u8]) -> ::aws_lc_rs::signature::UnparsedPublicKey<Vec<u8>> {
    use ::aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point.to_vec())
}

#[test]
fn nothing_but_a_handshake_of_a_server_is_signed() {
    let whole = certificate_verify(32);
    let client = [&PADDING[..], b"TLS 1.3, client CertificateVerify\0", &[0xA7; 32]].concat();
    let mut other_padding = whole.clone();
    other_padding[63] = 0x21;
    let mut no_zero = whole.clone();
    no_zero[PADDING.len() + CONTEXT.len() - 1] = 1;
    let refused: [&[u8]; 10] = [
        b"",
        b"any text",
        &PADDING,
        &whole[..whole.len() - 1],
        &whole[1..],
        &certificate_verify(0),
        &certificate_verify(33),
        &client,
        &other_padding,
        &no_zero,
    ];
    for message in refused {
        let certified = certified();
        let (key, ended) = remote(&certified);
        assert!(sign(&key, message).is_err(), "{message:?}");
        let error = ended.blocking_recv().unwrap();
        assert!(matches!(error, SigningError::Forbidden), "and nothing is signed any more: {error}");
        assert!(sign(&key, &whole).is_err());
    }
}

#[test]
fn what_is_no_message_ends_the_channel() {
    let certified = certified();
    for bytes in [&b"\xff"[..], &[0; MAX_FRAME + 10], &[0x84, 1, 0x41, 7, 0, 0x40]] {
        let (worker, auth) = pair().unwrap();
        let ended = serve(auth, keys(&certified)).unwrap();
        rustix::net::send(&worker, bytes, SendFlags::empty()).unwrap();
        assert!(matches!(ended.blocking_recv().unwrap(), SigningError::Malformed(_)));
    }
}

#[test]
fn a_new_key_leaves_the_one_before_it_for_handshakes_under_way() {
    let all = [certified(), certified(), certified()];
    let (worker, auth) = pair().unwrap();
    let keys = keys(&all[0]);
    let _ended = serve(auth, keys.clone()).unwrap();
    let client = SigningClient::new(worker);
    let remote = all
        .each_ref()
        .map(|certified| RemoteKey::new(KeyDescription::of(certified).unwrap(), Arc::clone(&client)));
    let message = certificate_verify(32);
    assert!(sign(&remote[1], &message).is_err(), "a key that is not there yet");
    keys.add(Arc::clone(&all[1].key)).unwrap();
    assert!(sign(&remote[0], &message).is_ok() && sign(&remote[1], &message).is_ok());
    keys.add(Arc::clone(&all[1].key)).unwrap();
    assert!(sign(&remote[0], &message).is_ok(), "the same key again takes no place");
    keys.add(Arc::clone(&all[2].key)).unwrap();
    assert!(sign(&remote[0], &message).is_err() && sign(&remote[2], &message).is_ok());
}

#[test]
fn while_the_auth_process_stands_still_only_the_first_handshake_waits() {
    let certified = certified();
    let (worker, auth) = pair().unwrap();
    let key = RemoteKey::new(KeyDescription::of(&certified).unwrap(), SigningClient::new(worker));
    let message = certificate_verify(48);
    let start = Instant::now();
    assert!(sign(&key, &message).is_err());
    assert!(start.elapsed() >= ANSWER_TIMEOUT);
    let start = Instant::now();
    for _ in 0..100 {
        assert!(sign(&key, &message).is_err());
    }
    assert!(start.elapsed() < ANSWER_TIMEOUT, "{:?}", start.elapsed());
    // It goes on, and the late answer is not taken for that of another handshake.
    let _ended = serve(auth, keys(&certified)).unwrap();
    let mut tries = 0;
    let signature = loop {
        match sign(&key, &message) {
            Ok(signature) => break signature,
            Err(_) if tries < 1_000 => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
        tries += 1;
    };
    assert!(!signature.is_empty());
}
