//! What seal and open promise, for every suite over every pair of backends.

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
    let plaintext: Vec<u8> = (0..100).collect();
    for (suite, sealer) in implementations() {
        let key = seal_key(suite, sealer);
        for len in [0, 1, 15, 16, 17, 64, 100] {
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
