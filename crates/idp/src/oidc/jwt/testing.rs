//! A provider's side of tokens, for tests.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

pub(crate) fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A key and its name.
pub(crate) struct Signer {
    name: &'static str,
    pair: Pair,
}

enum Pair {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    pub(crate) fn rsa(name: &'static str) -> Self {
        let pair = RsaKeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap();
        Self { name, pair: Pair::Rsa(pair) }
    }

    pub(crate) fn p256(name: &'static str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        Self { name, pair: Pair::P256(pair) }
    }

    pub(crate) fn ed25519(name: &'static str) -> Self {
        Self { name, pair: Pair::Ed25519(Ed25519KeyPair::generate().unwrap()) }
    }

    fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::Rsa(_) => "RS256",
            Pair::P256(_) => "ES256",
            Pair::Ed25519(_) => "EdDSA",
        }
    }

    /// Its public half, as a provider publishes it.
    pub(crate) fn jwk(&self) -> Value {
        match &self.pair {
            Pair::Rsa(pair) => {
                let public = pair.public_key();
                let [n, e] = [public.modulus(), public.exponent()]
                    .map(|n| encoded(n.big_endian_without_leading_zero()));
                json!({"kty": "RSA", "kid": self.name, "n": n, "e": e})
            }
            Pair::P256(pair) => {
                let point = pair.public_key().as_ref();
                let (x, y) = (encoded(&point[1..33]), encoded(&point[33..]));
                json!({"kty": "EC", "crv": "P-256", "kid": self.name, "x": x, "y": y})
            }
            Pair::Ed25519(pair) => {
                let x = encoded(pair.public_key().as_ref());
                json!({"kty": "OKP", "crv": "Ed25519", "kid": self.name, "x": x})
            }
        }
    }

    /// A token with these claims.
    pub(crate) fn sign(&self, claims: &Value) -> String {
        self.sign_as("JWT", claims)
    }

    pub(crate) fn sign_as(&self, kind: &str, claims: &Value) -> String {
        let header = json!({"alg": self.algorithm(), "kid": self.name, "typ": kind});
        let signed =
            format!("{}.{}", encoded(header.to_string().as_bytes()), encoded(claims.to_string().as_bytes()));
        let random = SystemRandom::new();
        let signature = match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).unwrap();
                signature
            }
            Pair::P256(pair) => pair.sign(&random, signed.as_bytes()).unwrap().as_ref().to_vec(),
            Pair::Ed25519(pair) => pair.sign(signed.as_bytes()).as_ref().to_vec(),
        };
        format!("{signed}.{}", encoded(&signature))
    }
}
