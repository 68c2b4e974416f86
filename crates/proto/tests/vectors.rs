//! The test vectors of `docs/PROTOCOL.md` (§16), held against the code: neither can change alone.
//!
//! They were computed by another implementation: an encoder of CBOR written by hand, and Python's
//! `cryptography`.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and helper functions of integration tests are not known as tests"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use vpnd_crypto::{
    Backend, Binding, DeviceKey, Direction, EpochSecret, LabPermit, OpenKey, SealKey, Secret, Suite,
};
use vpnd_proto::control::{
    Decoder, End, List, Login, Message, Offer, SecretText, Software, SuiteSpeed, UserName, encode,
};
use vpnd_proto::device::DeviceProof;
use vpnd_proto::lane::{ReceiveLane, SendLane};
use vpnd_proto::time::Time;
use vpnd_proto::wire::{HEADER_LEN, Header, Index};

const PAGE: &str = include_str!("../../../docs/PROTOCOL.md");
/// Values that all datagrams of the page have in common.
const LANE: u8 = 1;
const INDEX: Index = Index(0x0102_0304);
const COUNTER: u64 = 5;
const NOW: Time = Time::from_nanos(0);

/// The vectors by name: a name stands alone on its line, its bytes on indented ones.
fn vectors() -> BTreeMap<&'static str, Vec<u8>> {
    let (_, block) = PAGE.split_once("```vectors\n").expect("the page has vectors");
    let (block, _) = block.split_once("```").expect("they end");
    let mut vectors: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    let mut name = "";
    for line in block.lines() {
        match line.strip_prefix("  ") {
            Some(hex) => vectors.entry(name).or_default().extend(bytes(hex)),
            None => name = line,
        }
    }
    vectors
}

fn bytes(hex: &str) -> Vec<u8> {
    let pair = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(pair).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn array<const N: usize>(name: &str) -> [u8; N] {
    vectors()[name].as_slice().try_into().unwrap()
}

#[test]
fn the_login_frame_is_the_pages() {
    let key = DeviceKey::from_seed(Secret::new(array("device seed")));
    let signature = key.sign(&Binding::new(array("device binding")));
    assert_eq!(hex(&key.public()), hex(&vectors()["device public key"]));
    assert_eq!(hex(&signature), hex(&vectors()["device signature"]));
    let suites = [(2, 4000), (3, 1500)].map(|(suite, mbps)| SuiteSpeed { suite, mbps });
    let login = Message::Login(Login {
        user: UserName::new("ann").unwrap(),
        password: SecretText::new("correct horse").unwrap(),
        device: DeviceProof::new(key.public(), signature),
        offer: Offer {
            indexes: List::new(vec![0x1122_3344]).unwrap(),
            suites: List::new(suites.into()).unwrap(),
            features: 1,
            lab: false,
        },
        code: None,
        software: Some(Software::cut("vector/1")),
        grant: None,
    });
    let frame = &vectors()["login frame"];
    assert_eq!(hex(&encode(&login)), hex(frame));
    let mut decoder = Decoder::new(End::Client);
    decoder.push(frame);
    assert_eq!(decoder.next_message().unwrap(), Some(login));
}

/// HMAC (RFC 2104) of SHA-256, for a key of at most a block.
fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let padded =
        |with: u8| -> [u8; 64] { std::array::from_fn(|at| key.get(at).copied().unwrap_or(0) ^ with) };
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(padded(0x5C)).chain_update(inner).finalize().into()
}

#[test]
fn keys_follow_from_the_epoch_secret_as_the_page_says() {
    let vectors = vectors();
    for suite in Suite::ALL.into_iter().filter(|suite| *suite != Suite::Null) {
        let info = [b"vpnd/1 lane\0".as_slice(), &suite.id().to_le_bytes(), &[0, LANE]].concat();
        let (mut material, mut block) = (Vec::new(), Vec::new());
        for number in 1..=4 {
            block = hmac(&vectors["epoch secret"], &[block.as_slice(), &info, &[number]].concat()).to_vec();
            material.extend(&block);
        }
        let (key, rest) = material.split_at(suite.key_len());
        assert_eq!(hex(key), hex(&vectors[format!("{suite} key").as_str()]), "{suite}");
        assert_eq!(hex(&rest[..12]), hex(&vectors[format!("{suite} iv").as_str()]), "{suite}");
    }
}

#[test]
fn one_datagram_of_each_suite_is_the_pages() {
    let (vectors, permit) = (vectors(), Some(LabPermit::insecure()));
    let secret = EpochSecret::new(array("epoch secret"));
    let plaintext = &vectors["plaintext"];
    let mut compared = 0;
    for suite in Suite::ALL {
        let Some(published) = vectors.get(format!("{suite} datagram").as_str()) else {
            assert_eq!(suite, Suite::Null, "each suite but the one that does nothing has a vector");
            continue;
        };
        let key = || secret.lane_key(suite, Direction::ToGateway, LANE);
        for backend in Backend::ALL.into_iter().filter(|backend| backend.supports(suite)) {
            let Ok(seal) = SealKey::new(suite, backend, &key(), permit) else { continue };
            let mut lane = SendLane::new(seal, suite, LANE, INDEX, NOW + Duration::from_secs(1));
            lane.resume_at(COUNTER);
            let mut datagram = vec![0; HEADER_LEN + plaintext.len() + 48];
            datagram[HEADER_LEN..][..plaintext.len()].copy_from_slice(plaintext);
            let len = lane.seal(NOW, &mut datagram, plaintext.len(), false).unwrap();
            assert_eq!(hex(&datagram[..len]), hex(published), "{suite} by {backend:?}");

            let open = OpenKey::new(suite, backend, &key(), permit).unwrap();
            let mut received = published.clone();
            let header = Header::parse(&received).unwrap();
            let opened = ReceiveLane::new(open, suite.limits()).open(header, &mut received).unwrap();
            assert_eq!(hex(&received[HEADER_LEN..][..opened.len]), hex(plaintext), "{suite} by {backend:?}");
            compared += 1;
        }
    }
    assert!(compared >= 5, "{compared} were compared");
}
