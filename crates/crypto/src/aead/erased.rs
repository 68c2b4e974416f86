//! Erasing the keys of a library that does not erase them itself.
//!
//! aws-lc-rs cleanses its contexts when it frees them, and RustCrypto's do so with their `zeroize`
//! features. ring has no such promise and no access to the bytes, so [`Erased`] keeps a ring key in
//! one place on the heap and, before that memory is freed, overwrites it with the key that ring
//! expands from zeros.

use std::hint::black_box;

use ring::{aead, hmac};

/// A key that can be replaced by one that holds no secret and fills the same memory.
pub(crate) trait Blank {
    /// A key of the same kind made from zeros.
    fn blank(&self) -> Self;
}

/// A boxed key whose memory is overwritten before it is freed.
pub(crate) struct Erased<K: Blank>(Box<K>);

impl<K: Blank> Erased<K> {
    pub(super) fn new(key: K) -> Self {
        Self(Box::new(key))
    }

    fn erase(&mut self) {
        *self.0 = self.0.blank();
        // Without this the compiler may see that the memory is freed next and leave the secret in
        // it.
        black_box(&mut *self.0);
    }
}

impl<K: Blank> std::ops::Deref for Erased<K> {
    type Target = K;

    #[inline]
    fn deref(&self) -> &K {
        &self.0
    }
}

impl<K: Blank> Drop for Erased<K> {
    fn drop(&mut self) {
        self.erase();
    }
}

impl Blank for aead::LessSafeKey {
    fn blank(&self) -> Self {
        let algorithm = self.algorithm();
        let zeros = [0; 32];
        let key = aead::UnboundKey::new(algorithm, &zeros[..algorithm.key_len()]);
        Self::new(key.expect("the length is the algorithm's own"))
    }
}

impl Blank for hmac::Key {
    fn blank(&self) -> Self {
        Self::new(self.algorithm(), &[0; 32])
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    fn tag_of(key: &aead::LessSafeKey) -> Vec<u8> {
        let nonce = aead::Nonce::assume_unique_for_key([3; 12]);
        let tag = key.seal_in_place_separate_tag(nonce, aead::Aad::empty(), &mut [1, 2, 3]).unwrap();
        tag.as_ref().to_vec()
    }

    #[test]
    fn erased_aead_key_is_the_key_of_zeros_in_the_same_place() {
        for algorithm in [&aead::AES_128_GCM, &aead::AES_256_GCM, &aead::CHACHA20_POLY1305] {
            let fresh = |byte: u8| {
                let bytes = [byte; 32];
                aead::LessSafeKey::new(
                    aead::UnboundKey::new(algorithm, &bytes[..algorithm.key_len()]).unwrap(),
                )
            };
            let mut key = Erased::new(fresh(0x5A));
            let place = std::ptr::from_ref(&*key);
            assert_ne!(tag_of(&key), tag_of(&fresh(0)));
            key.erase();
            assert_eq!(tag_of(&key), tag_of(&fresh(0)));
            assert_eq!(std::ptr::from_ref(&*key), place);
        }
    }

    #[test]
    fn erased_hmac_key_is_the_key_of_zeros() {
        let fresh = |byte: u8| hmac::Key::new(hmac::HMAC_SHA256, &[byte; 32]);
        let tag = |key: &hmac::Key| hmac::sign(key, b"text").as_ref().to_vec();
        let mut key = Erased::new(fresh(0x5A));
        assert_ne!(tag(&key), tag(&fresh(0)));
        key.erase();
        assert_eq!(tag(&key), tag(&fresh(0)));
    }

    /// A key that counts how often it was replaced.
    struct Counted(Rc<Cell<usize>>);

    impl Blank for Counted {
        fn blank(&self) -> Self {
            self.0.set(self.0.get() + 1);
            Self(Rc::clone(&self.0))
        }
    }

    #[test]
    fn a_dropped_key_was_replaced_first() {
        let replaced = Rc::new(Cell::new(0));
        let key = Erased::new(Counted(Rc::clone(&replaced)));
        assert_eq!(replaced.get(), 0);
        drop(key);
        assert_eq!(replaced.get(), 1);
    }
}
