//! BLAKE2s in the four roles that WireGuard gives it (§5.4): hash, MAC, HMAC and key derivation.

use blake2::digest::{Digest as _, FixedOutput as _, KeyInit as _, Mac as _, Update as _};
use blake2::{Blake2s256, Blake2sMac};
use hmac::SimpleHmac;
use vpnd_crypto::Secret;

/// Bytes of a MAC and of a cookie.
pub(crate) const MAC_LEN: usize = 16;

type ShortMac = Blake2sMac<blake2::digest::consts::U16>;

/// HASH(parts, one behind the other).
pub(crate) fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut state = Blake2s256::new();
    for part in parts {
        blake2::digest::Update::update(&mut state, part);
    }
    state.finalize().into()
}

/// MAC(key, parts): keyed BLAKE2s of 16 bytes.
pub(crate) fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; MAC_LEN] {
    let mut state = ShortMac::new_with_salt_and_personal(Some(key), &[], &[])
        .expect("keys of MACs have 16 or 32 bytes, which BLAKE2s takes");
    for part in parts {
        blake2::digest::Update::update(&mut state, part);
    }
    state.finalize_fixed().into()
}

/// HMAC(key, parts): HMAC over BLAKE2s, unlike [`mac`].
fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> Secret<32> {
    let state = SimpleHmac::<Blake2s256>::new_from_slice(key).expect("HMAC takes keys of any length");
    let state = parts.iter().fold(state, |state, part| state.chain(part));
    Secret::new(state.finalize().into_bytes().into())
}

/// KDF: `N` secrets from `input`, under `key`.
pub(crate) fn kdf<const N: usize>(key: &[u8; 32], input: &[u8]) -> [Secret<32>; N] {
    let extracted = hmac(key, &[input]);
    let mut last: Option<Secret<32>> = None;
    std::array::from_fn(|at| {
        let before = last.as_ref().map_or(&[][..], |secret| &secret.expose()[..]);
        let next = hmac(extracted.expose(), &[before, &[at as u8 + 1]]);
        last = Some(Secret::copy_of(next.expose()));
        next
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// RFC 7693, appendix B, and the first lines of `blake2s.txt` of the reference implementation's
    /// test vectors.
    #[test]
    fn hash_and_mac_are_the_published_ones() {
        let abc = hash(&[b"a", b"bc"]);
        assert_eq!(hex(&abc), "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982");
        assert_eq!(hex(&hash(&[])), "69217a3079908094e11121d042354a7c1f55b6482ca1a51e1b250dfd1ed0eef9");
    }

    /// The values that wireguard-go's `device/kdf_test.go` has for KDF1, KDF2 and KDF3.
    #[test]
    fn derived_keys_are_those_of_wireguard_go() {
        let key = |text: &[u8]| {
            let mut key = [0; 32];
            key[..text.len()].copy_from_slice(text);
            key
        };
        // HMAC pads a short key with zeros, so the padded key is the same key.
        let (test_key, test_input) = (key(b"test-key"), b"test-input");
        let [a, b, c] = kdf::<3>(&test_key, test_input);
        assert_eq!(hex(a.expose()), "6f0e5ad38daba1bea8a0d213688736f19763239305e0f58aba697f9ffc41c633");
        assert_eq!(hex(b.expose()), "df1194df20802a4fe594cde27e92991c8cae66c366e8106aaa937a55fa371e8a");
        assert_eq!(hex(c.expose()), "fac6e2745a325f5dc5d11a5b165aad08b0ada28e7b4e666b7c077934a4d76c24");
        let [a, b] = kdf::<2>(&key(b"wireguard"), b"wireguard");
        assert_eq!(hex(a.expose()), "491d43bbfdaa8750aaf535e334ecbfe5129967cd64635101c566d4caefda96e8");
        assert_eq!(hex(b.expose()), "1e71a379baefd8a79aa4662212fcafe19a23e2b609a3db7d6bcba8f560e3d25f");
        let [a] = kdf::<1>(&key(b""), b"");
        assert_eq!(hex(a.expose()), "8387b46bf43eccfcf349552a095d8315c4055beb90208fb1be23b894bc2ed5d0");
    }
}
