//! The promises of seal and open, for every suite over every pair of backends.

use super::cipher::SHORT;
use super::*;
use crate::schedule::{Direction, EpochSecret};

const LAB: Option<LabPermit> = Some(LabPermit::insecure());
const AAD: &[u8; 16] = b"\x80\x01\0\0\x78\x56\x34\x12\x09\0\0\0\0\0\0\0";

fn lane_key(suite: Suite) -> LaneKey {
    EpochSecret::new([0x42; 32]).lane_key(suite, Direction::ToGateway, 1)
}

/// Every suite with every backend that has it.
fn implementations() -> impl Iterator<Item = (Suite, Backend)> {
    let pairs = Suite::ALL.into_iter().flat_map(|suite| Backend::ALL.map(|backend| (suite, backend)));
    pairs.filter(|&(suite, backend)| backend.supports(suite))
}

fn seal_key(suite: Suite, backend: Backend) -> SealKey {
    SealKey::new(suite, backend, &lane_key(suite), LAB).unwrap()
}

fn open_key(suite: Suite, backend: Backend) -> OpenKey {
    OpenKey::new(suite, backend, &lane_key(suite), LAB).unwrap()
}

fn seal(key: &SealKey, counter: u64, aad: &[u8], plaintext: &[u8]) -> Vec<u8> {
    let mut buf = plaintext.to_vec();
    buf.resize(key.suite().sealed_len(plaintext.len()), 0xEE);
    let len = key.seal_in_place(counter, aad, &mut buf, plaintext.len()).unwrap();
    assert_eq!(len, buf.len());
    buf
}

fn open(key: &OpenKey, counter: u64, aad: &[u8], sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
    key.open_in_place(counter, aad, &mut sealed.to_vec()).map(|plaintext| plaintext.to_vec())
}

#[test]
fn what_one_backend_seals_every_other_opens() {
    let plaintext: Vec<u8> = (0..1_424).map(|at| at as u8).collect();
    for (suite, sealer) in implementations() {
        let key = seal_key(suite, sealer);
        for len in [0, 1, 15, 16, 17, 64, 100, SHORT - 1, SHORT, SHORT + 1, 1_424] {
            let sealed = seal(&key, 9, AAD, &plaintext[..len]);
            for opener in Backend::ALL.into_iter().filter(|opener| opener.supports(suite)) {
                let opened = open(&open_key(suite, opener), 9, AAD, &sealed);
                assert_eq!(
                    opened,
                    Ok(plaintext[..len].to_vec()),
                    "{suite}: {sealer} to {opener}, {len} bytes"
                );
            }
        }
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let pairs = implementations().filter(|&(suite, _)| suite != Suite::Null);
    for ((suite, backend), plaintext) in
        pairs.flat_map(|pair| [20, SHORT + 1].map(|len| (pair, vec![7; len])))
    {
        let sealed = seal(&seal_key(suite, backend), 9, AAD, &plaintext);
        let key = open_key(suite, backend);
        assert_eq!(open(&key, 9, AAD, &sealed), Ok(plaintext));
        for bit in (0..sealed.len() * 8).step_by(1 + sealed.len() / 40) {
            let mut forged = sealed.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&key, 9, AAD, &forged), Err(OpenError), "{suite} by {backend}: packet bit {bit}");
        }
        for bit in 0..AAD.len() * 8 {
            let mut forged = *AAD;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                open(&key, 9, &forged, &sealed),
                Err(OpenError),
                "{suite} by {backend}: aad bit {bit}"
            );
        }
        for bit in 0..64 {
            let counter = 9 ^ (1 << bit);
            assert_eq!(open(&key, counter, AAD, &sealed), Err(OpenError), "{suite} by {backend}: {counter}");
        }
    }
}

#[test]
fn every_other_length_is_refused() {
    for (suite, backend) in implementations().filter(|&(suite, _)| suite != Suite::Null) {
        let sealed = seal(&seal_key(suite, backend), 9, AAD, &[7; 40]);
        let key = open_key(suite, backend);
        for len in 0..sealed.len() {
            assert_eq!(open(&key, 9, AAD, &sealed[..len]), Err(OpenError), "{suite} by {backend}: {len}");
        }
        let longer = [&sealed[..], &[0]].concat();
        assert_eq!(open(&key, 9, AAD, &longer), Err(OpenError), "{suite} by {backend}");
    }
}

#[test]
fn the_border_between_aad_and_packet_is_authenticated() {
    for (suite, backend) in implementations().filter(|&(suite, _)| suite != Suite::Null) {
        let sealed = seal(&seal_key(suite, backend), 9, b"ab", b"cd");
        let moved = [b"b", &sealed[..]].concat();
        assert_eq!(open(&open_key(suite, backend), 9, b"a", &moved), Err(OpenError), "{suite} by {backend}");
        let moved = [b"ab", &sealed[..1]].concat();
        assert_eq!(open(&open_key(suite, backend), 9, &moved, &sealed[1..]), Err(OpenError));
    }
}

#[test]
fn lanes_directions_suites_and_epochs_do_not_open_each_others_packets() {
    let secret = EpochSecret::new([0x42; 32]);
    let sealed = seal(&seal_key(Suite::Aes256Gcm, Backend::AwsLc), 9, AAD, b"text");
    let open_with = |lane_key: &LaneKey| {
        let key = OpenKey::new(lane_key.suite(), Backend::Ring, lane_key, None).unwrap();
        open(&key, 9, AAD, &sealed)
    };
    assert!(open_with(&secret.lane_key(Suite::Aes256Gcm, Direction::ToGateway, 1)).is_ok());
    for other in [
        secret.lane_key(Suite::Aes256Gcm, Direction::ToGateway, 2),
        secret.lane_key(Suite::Aes256Gcm, Direction::ToClient, 1),
        secret.lane_key(Suite::ChaCha20Poly1305, Direction::ToGateway, 1),
        EpochSecret::new([0x43; 32]).lane_key(Suite::Aes256Gcm, Direction::ToGateway, 1),
    ] {
        assert_eq!(open_with(&other), Err(OpenError));
    }
}

#[test]
fn counters_at_the_limit_are_neither_sealed_nor_opened() {
    for (suite, backend) in implementations() {
        let limit = suite.limits().refuse_after;
        let (sealer, opener) = (seal_key(suite, backend), open_key(suite, backend));
        let last = seal(&sealer, limit - 1, AAD, b"last");
        assert_eq!(open(&opener, limit - 1, AAD, &last), Ok(b"last".to_vec()));
        for counter in [limit, limit + 1, 1 << 32, u64::MAX] {
            let mut buf = *b"next____________________________________________________";
            let refused = sealer.seal_in_place(counter, AAD, &mut buf, 4);
            assert_eq!(refused, Err(SealError::Exhausted), "{suite} by {backend}: {counter}");
            assert_eq!(&buf[..8], b"next____");
        }
    }
}

/// A peer that goes beyond the limit seals what would open, were the counter not looked at.
#[test]
fn an_authentic_packet_beyond_the_limit_is_refused() {
    for (suite, backend) in implementations() {
        let limit = suite.limits().refuse_after;
        let lane_key = lane_key(suite);
        let cipher = Cipher::new(suite, backend, lane_key.key()).unwrap();
        let mut nonce = *lane_key.iv();
        nonce[4..].iter_mut().zip(limit.to_le_bytes()).for_each(|(byte, limit_byte)| *byte ^= limit_byte);
        let mut sealed = vec![0; suite.sealed_len(4)];
        cipher.seal(nonce, AAD, &mut sealed, 4).unwrap();
        assert!(cipher.open(nonce, AAD, &mut sealed.clone()).is_ok());
        assert_eq!(
            open(&open_key(suite, backend), limit, AAD, &sealed),
            Err(OpenError),
            "{suite} by {backend}"
        );
    }
}

#[test]
fn laboratory_suites_need_the_permit() {
    for (suite, backend) in implementations() {
        let lane_key = lane_key(suite);
        let sealer = SealKey::new(suite, backend, &lane_key, None).err();
        let opener = OpenKey::new(suite, backend, &lane_key, None).err();
        let wanted = suite.is_lab_only().then_some(KeyError::LabOnly(suite));
        assert_eq!((sealer, opener), (wanted, wanted), "{suite} by {backend}");
    }
}

#[test]
fn a_key_is_used_only_with_its_suite_and_a_backend_that_has_it() {
    let derived = Suite::Aes256Gcm;
    let wanted = Suite::ChaCha20Poly1305;
    let refused = SealKey::new(wanted, Backend::Ring, &lane_key(derived), None).err();
    assert_eq!(refused, Some(KeyError::OtherSuite { wanted, derived }));

    let (suite, backend) = (Suite::Aes256CbcHmacSha256, Backend::Ring);
    let refused = OpenKey::new(suite, backend, &lane_key(suite), LAB).err();
    assert_eq!(refused, Some(KeyError::Unsupported { suite, backend }));
}

#[test]
fn a_buffer_without_room_is_refused_and_left_alone() {
    for (suite, backend) in implementations() {
        let key = seal_key(suite, backend);
        let mut buf = [7; 100];
        for room in 0..suite.sealed_len(20) {
            let refused = key.seal_in_place(0, AAD, &mut buf[..room], 20);
            assert_eq!(refused, Err(SealError::BufferTooShort), "{suite} by {backend}: {room} bytes");
        }
        assert_eq!(buf, [7; 100]);
        assert_eq!(key.seal_in_place(0, AAD, &mut buf, 20), Ok(suite.sealed_len(20)));
        assert!(buf[suite.sealed_len(20)..].iter().all(|&byte| byte == 7), "{suite} by {backend}");
    }
}

#[test]
fn the_longest_packet_is_sealed_and_a_longer_one_refused() {
    for (suite, backend) in implementations() {
        let key = seal_key(suite, backend);
        let mut buf = vec![7; MAX_PLAINTEXT_LEN + 1 + suite.overhead()];
        let refused = key.seal_in_place(0, AAD, &mut buf, MAX_PLAINTEXT_LEN + 1);
        assert_eq!(refused, Err(SealError::TooLong), "{suite} by {backend}");
        let len = key.seal_in_place(0, AAD, &mut buf, MAX_PLAINTEXT_LEN).unwrap();
        let opened = open(&open_key(suite, backend), 0, AAD, &buf[..len]).unwrap();
        assert!(opened.len() == MAX_PLAINTEXT_LEN && opened.iter().all(|&byte| byte == 7));
    }
}

#[test]
fn a_noise_key_too_seals_the_longest_packet_and_none_longer() {
    let key = |backend| noise::NoiseKey::new(backend, &Secret::new([7; 32]));
    for (backend, key) in Backend::ALL.into_iter().filter_map(|backend| Some((backend, key(backend)?))) {
        let mut buf = vec![7; MAX_PLAINTEXT_LEN + 1 + TAG_LEN];
        let refused = key.seal_in_place(0, AAD, &mut buf, MAX_PLAINTEXT_LEN + 1);
        assert_eq!(refused, Err(SealError::TooLong), "{backend}");
        let len = key.seal_in_place(0, AAD, &mut buf, MAX_PLAINTEXT_LEN).unwrap();
        let opened = key.open_in_place(0, AAD, &mut buf[..len]).unwrap();
        assert!(opened.len() == MAX_PLAINTEXT_LEN && opened.iter().all(|&byte| byte == 7), "{backend}");
    }
}

#[test]
fn a_failed_open_leaves_no_plaintext_behind() {
    let plaintext: [u8; 1_000] = std::array::from_fn(|i| i as u8);
    let encrypting = implementations().filter(|(suite, _)| !matches!(suite, Suite::Null | Suite::AuthOnly));
    for (suite, backend) in encrypting {
        let mut forged = seal(&seal_key(suite, backend), 9, AAD, &plaintext);
        *forged.last_mut().unwrap() ^= 1;
        assert_eq!(open_key(suite, backend).open_in_place(9, AAD, &mut forged), Err(OpenError));
        let leaked = plaintext.windows(4).any(|known| forged.windows(4).any(|seen| seen == known));
        assert!(!leaked, "{suite} by {backend}");
    }
}

#[test]
fn a_counter_changes_everything() {
    let plaintext = [7; 64];
    for (suite, backend) in implementations().filter(|&(suite, _)| !matches!(suite, Suite::Null)) {
        let key = seal_key(suite, backend);
        let packets: Vec<_> = (0..4).map(|i| seal(&key, i << 8, AAD, &plaintext)).collect();
        let encrypts = suite != Suite::AuthOnly;
        for (i, one) in packets.iter().enumerate() {
            for other in &packets[i + 1..] {
                assert_ne!(one[one.len() - 16..], other[other.len() - 16..], "{suite} by {backend}: tags");
                let same = one.iter().zip(other).filter(|(a, b)| a == b).count();
                assert!(!encrypts || same < 16, "{suite} by {backend}: {same} equal bytes");
            }
        }
    }
}

#[test]
fn debug_shows_no_byte_of_a_key() {
    for (suite, backend) in implementations() {
        let about = format!("{{ suite: {suite:?}, backend: {backend:?}, .. }}");
        assert_eq!(format!("{:?}", seal_key(suite, backend)), format!("SealKey {about}"));
        assert_eq!(format!("{:?}", open_key(suite, backend)), format!("OpenKey {about}"));
    }
}

/// ring's keys are tested in [`erased`]; the other libraries promise by type, or in C.
#[test]
fn rustcrypto_contexts_erase_themselves() {
    const fn erases<T: zeroize::ZeroizeOnDrop>() {}
    const {
        erases::<aes_gcm::Aes128Gcm>();
        erases::<aes_gcm::Aes256Gcm>();
        erases::<chacha20poly1305::ChaCha20Poly1305>();
        erases::<aes::Aes256Enc>();
        erases::<aes::Aes256Dec>();
        // HMAC and HKDF hold nothing but states of their hash.
        erases::<sha2::Sha256>();
    }
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    fn any_implementation() -> impl Strategy<Value = (Suite, Backend)> {
        proptest::sample::select(implementations().collect::<Vec<_>>())
    }

    proptest! {
        #[test]
        fn backends_agree_on_every_byte(
            secret: [u8; 32],
            (suite, backend) in any_implementation(),
            other in proptest::sample::select(Backend::ALL.to_vec()),
            counter in 0..1_u64 << 26,
            aad in proptest::collection::vec(any::<u8>(), 0..40),
            plaintext in proptest::collection::vec(any::<u8>(), 0..3_000),
        ) {
            prop_assume!(other.supports(suite));
            let lane_key = EpochSecret::new(secret).lane_key(suite, Direction::ToClient, 7);
            let sealed = seal(&SealKey::new(suite, backend, &lane_key, LAB).unwrap(), counter, &aad, &plaintext);
            let again = seal(&SealKey::new(suite, other, &lane_key, LAB).unwrap(), counter, &aad, &plaintext);
            prop_assert_eq!(&sealed, &again);
            let opener = OpenKey::new(suite, other, &lane_key, LAB).unwrap();
            prop_assert_eq!(open(&opener, counter, &aad, &sealed), Ok(plaintext));
        }

        #[test]
        fn noise_never_opens_and_never_panics(
            (suite, backend) in any_implementation(),
            counter: u64,
            noise in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            prop_assume!(suite != Suite::Null);
            prop_assert_eq!(open(&open_key(suite, backend), counter, AAD, &noise), Err(OpenError));
        }
    }
}
