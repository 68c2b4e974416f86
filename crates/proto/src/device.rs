//! How a device proves itself on each of its connections (PROTOCOL §4.1).
//!
//! INVARIANT: a device is named by its key and that of its client certificate, so a client without
//! both is another device: it gets neither the place of a session nor its addresses, and attaches
//! to nothing. A proof is good on one connection only.

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use sha2::{Digest, Sha256};
use vpnd_crypto::device::{Binding, PUBLIC_KEY_LEN, SIGNATURE_LEN, is_signed};

use crate::session::DeviceId;

/// Stands before the key in the hash that names a device.
const NAME_CONTEXT: &[u8] = b"vpnd/1 device name\0";

/// The key of the client certificate that a connection has shown, as the hash of its public part. A
/// renewed certificate of the same key has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateKey([u8; 32]);

impl CertificateKey {
    /// The key whose `SubjectPublicKeyInfo` (DER) a verified certificate has.
    #[must_use]
    pub fn of(subject_public_key_info: &[u8]) -> Self {
        Self(Sha256::digest(subject_public_key_info).into())
    }
}

/// A device's public key, and its signature over what only this connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct DeviceProof {
    #[n(0)]
    key: ByteArray<PUBLIC_KEY_LEN>,
    #[n(1)]
    signature: ByteArray<SIGNATURE_LEN>,
}

/// The signature is not that of the key over this connection's binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device's signature is not for this connection")]
pub struct BadProof;

impl DeviceProof {
    /// The proof of the holder of `key`.
    #[must_use]
    pub fn new(key: [u8; PUBLIC_KEY_LEN], signature: [u8; SIGNATURE_LEN]) -> Self {
        Self { key: key.into(), signature: signature.into() }
    }

    /// The device whose proof this is, on a connection with a certificate of this key, or without.
    ///
    /// # Errors
    /// If the signature is not one over `binding`, which the verifier takes from the connection.
    pub fn verify(
        &self,
        binding: &Binding,
        certificate: Option<&CertificateKey>,
    ) -> Result<DeviceId, BadProof> {
        if is_signed(&self.key, binding, &self.signature) {
            Ok(device_name(&self.key, certificate))
        } else {
            Err(BadProof)
        }
    }
}

/// The name of the device that has this key, and a certificate of that key if it has one: 128 bits
/// of SHA-256, so that other keys of that name can't be found. The length of the hashed text gives
/// the number of keys, so no two lists of keys are alike.
fn device_name(key: &[u8; PUBLIC_KEY_LEN], certificate: Option<&CertificateKey>) -> DeviceId {
    let mut hash = Sha256::new().chain_update(NAME_CONTEXT).chain_update(key);
    if let Some(CertificateKey(certificate)) = certificate {
        hash.update(certificate);
    }
    let hash: [u8; 32] = hash.finalize().into();
    let mut name = [0; 16];
    name.copy_from_slice(&hash[..16]);
    DeviceId(name)
}

#[cfg(test)]
mod tests {
    use vpnd_crypto::{DeviceKey, Secret};

    use super::*;

    #[test]
    fn a_proof_names_its_device_on_its_own_connection_only() {
        let key = DeviceKey::from_seed(Secret::new([1; 32]));
        let (here, elsewhere) = (Binding::new([2; 32]), Binding::new([3; 32]));
        let proof = DeviceProof::new(key.public(), key.sign(&here));
        assert_eq!(proof.verify(&here, None), Ok(device_name(&key.public(), None)));
        assert_eq!(proof.verify(&elsewhere, None), Err(BadProof), "replayed on another connection");
        let other = DeviceKey::from_seed(Secret::new([4; 32]));
        let claimed = DeviceProof::new(key.public(), other.sign(&here));
        assert_eq!(claimed.verify(&here, None), Err(BadProof), "another's key is claimed");
        assert_ne!(device_name(&key.public(), None), device_name(&other.public(), None));
    }

    #[test]
    fn a_certificate_is_a_part_of_the_device() {
        let (key, here) = (DeviceKey::from_seed(Secret::new([1; 32])), Binding::new([2; 32]));
        let proof = DeviceProof::new(key.public(), key.sign(&here));
        let [one, renewed, other] = [b"key one", b"key one", b"key two"].map(|key| CertificateKey::of(key));
        let named = |certificate| proof.verify(&here, certificate).unwrap();
        assert_eq!(named(Some(&one)), named(Some(&renewed)), "the key counts, not the certificate");
        assert_ne!(named(Some(&one)), named(Some(&other)));
        assert_ne!(named(Some(&one)), named(None));
    }
}
