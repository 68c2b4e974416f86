//! Signed tokens of a provider (JWS, RFC 7515) and its keys (JWK, RFC 7517).
//!
//! INVARIANT: claims are handed out only after the signature is verified, by a key of the provider
//! that is for this algorithm; the algorithms are RS256, ES256 and EdDSA with Ed25519, whatever a
//! token's header names. This module must not know what claims mean.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The longest token.
pub(crate) const MAX_TOKEN: usize = 32 << 10;
/// Keys of a provider that are kept.
const MAX_KEYS: usize = 64;
/// Length of an uncompressed point of P-256, and of its coordinates.
const POINT: usize = 65;
const COORDINATE: usize = 32;
const ED25519_KEY: usize = 32;

/// A token does not count.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("the token is malformed: {0}")]
    Malformed(&'static str),
    #[error("the token is signed by an algorithm that does not count: use RS256, ES256 or EdDSA")]
    Algorithm,
    #[error("the token is of the type {0:?}")]
    Type(String),
    #[error("the provider publishes no key like the one that has signed the token")]
    UnknownKey,
    #[error("the token's signature is wrong")]
    Signature,
}

/// Claims of a token.
pub(crate) type Claims = Map<String, Value>;

/// A provider's keys.
#[derive(Debug, Default)]
pub(crate) struct Keys(Vec<Key>);

#[derive(Debug)]
struct Key {
    id: Option<String>,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256([u8; POINT]),
    Ed25519([u8; ED25519_KEY]),
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

/// The parts of a key that count.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    crit: Option<Value>,
}

impl Keys {
    /// Those of a key set that can verify tokens here; `None` if it is no key set.
    pub(crate) fn parse(json: &[u8]) -> Option<Self> {
        let set: KeySet = serde_json::from_slice(json).ok()?;
        // Keys of other kinds may be there and may look as they like.
        Some(Self(set.keys.into_iter().take(MAX_KEYS).filter_map(Key::parse).collect()))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The claims of a token that one of the keys has signed. `types` are those that its header may
    /// name, if it names one.
    pub(crate) fn verify(&self, token: &str, types: &[&str]) -> Result<Claims, TokenError> {
        if token.len() > MAX_TOKEN {
            return Err(TokenError::Malformed("it is too long"));
        }
        let mut parts = token.split('.');
        let (Some(head), Some(body), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenError::Malformed("it has not three parts"));
        };
        let header: Header =
            serde_json::from_slice(&decoded(head).ok_or(TokenError::Malformed("its header"))?)
                .map_err(|_| TokenError::Malformed("its header"))?;
        if header.crit.is_some() {
            return Err(TokenError::Malformed("it demands an extension"));
        }
        if let Some(name) = &header.typ {
            let name = name.to_ascii_lowercase();
            if !types.contains(&name.strip_prefix("application/").unwrap_or(&name)) {
                return Err(TokenError::Type(name.chars().take(32).collect()));
            }
        }
        let signature = decoded(signature).ok_or(TokenError::Malformed("its signature"))?;
        let signed = &token.as_bytes()[..head.len() + 1 + body.len()];
        self.key(&header)?.check(signed, &signature)?;
        let body = decoded(body).ok_or(TokenError::Malformed("its claims"))?;
        serde_json::from_slice(&body).map_err(|_| TokenError::Malformed("its claims"))
    }

    /// The one key that a token names, or the only one for its algorithm if it names none.
    fn key(&self, header: &Header) -> Result<&Key, TokenError> {
        if !["RS256", "ES256", "EdDSA"].contains(&header.alg.as_str()) {
            return Err(TokenError::Algorithm);
        }
        let mut fitting = self.0.iter().filter(|key| {
            key.material.algorithm() == header.alg && (header.kid.is_none() || key.id == header.kid)
        });
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Ok(key),
            _ => Err(TokenError::UnknownKey),
        }
    }
}

impl Key {
    fn parse(value: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        let material = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => {
                Material::Rsa { modulus: number(jwk.n.as_deref()?)?, exponent: number(jwk.e.as_deref()?)? }
            }
            ("EC", Some("P-256")) => {
                let mut point = [4; POINT];
                point[1..=COORDINATE].copy_from_slice(&sized::<COORDINATE>(jwk.x.as_deref()?)?);
                point[1 + COORDINATE..].copy_from_slice(&sized::<COORDINATE>(jwk.y.as_deref()?)?);
                Material::P256(point)
            }
            ("OKP", Some("Ed25519")) => Material::Ed25519(sized(jwk.x.as_deref()?)?),
            _ => return None,
        };
        let is_for_this = jwk.usage.is_none_or(|usage| usage == "sig")
            && jwk.alg.is_none_or(|algorithm| algorithm == material.algorithm());
        is_for_this.then_some(Self { id: jwk.kid, material })
    }

    fn check(&self, signed: &[u8], signature: &[u8]) -> Result<(), TokenError> {
        let checked =
            match &self.material {
                Material::Rsa { modulus, exponent } => RsaPublicKeyComponents { n: modulus, e: exponent }
                    .verify(&RSA_PKCS1_2048_8192_SHA256, signed, signature),
                Material::P256(point) => {
                    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(signed, signature)
                }
                Material::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(signed, signature),
            };
        checked.map_err(|_| TokenError::Signature)
    }
}

impl Material {
    fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa { .. } => "RS256",
            Self::P256(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
        }
    }
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// A number without leading zeros, which the library refuses.
fn number(text: &str) -> Option<Vec<u8>> {
    let bytes = decoded(text)?;
    let start = bytes.iter().position(|byte| *byte != 0)?;
    Some(bytes[start..].to_vec())
}

fn sized<const N: usize>(text: &str) -> Option<[u8; N]> {
    decoded(text)?.try_into().ok()
}

#[cfg(any(test, fuzzing))]
pub(crate) mod testing;

#[cfg(test)]
mod tests {
    use super::testing::{Signer, encoded};
    use super::*;
    use serde_json::json;

    fn keys(signers: &[&Signer]) -> Keys {
        let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
        Keys::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn tokens_of_each_algorithm_count_with_their_key_alone() {
        let signers = [Signer::rsa("r"), Signer::p256("p"), Signer::ed25519("e")];
        let claims = json!({"sub": "ann"});
        let all = keys(&signers.each_ref());
        for signer in &signers {
            let token = signer.sign(&claims);
            assert_eq!(all.verify(&token, &["jwt"]).map(Value::Object).as_ref(), Ok(&claims));
            assert_eq!(Keys::default().verify(&token, &["jwt"]), Err(TokenError::UnknownKey));
            // Another bit of the claims or of the signature.
            let (signed, _) = token.rsplit_once('.').unwrap();
            let other = signer.sign(&json!({"sub": "bob"}));
            let (_, signature) = other.rsplit_once('.').unwrap();
            let mixed = format!("{signed}.{signature}");
            assert_eq!(all.verify(&mixed, &["jwt"]), Err(TokenError::Signature));
        }
        // A stranger with the same name for its key.
        let stranger = Signer::p256("p").sign(&claims);
        assert_eq!(all.verify(&stranger, &["jwt"]), Err(TokenError::Signature));
        assert_eq!(
            all.verify(&signers[0].sign(&claims), &["at+jwt"]),
            Err(TokenError::Type("jwt".to_owned()))
        );
    }

    #[test]
    fn a_header_chooses_no_other_algorithm() {
        let signer = Signer::rsa("r");
        let keys = keys(&[&signer]);
        let body = encoded(b"{\"sub\":\"ann\"}");
        for (header, problem) in [
            (json!({"alg": "none"}), TokenError::Algorithm),
            (json!({"alg": "HS256", "kid": "r"}), TokenError::Algorithm),
            (json!({"alg": "RS384", "kid": "r"}), TokenError::Algorithm),
            (json!({"alg": "ES256", "kid": "r"}), TokenError::UnknownKey),
            (json!({"alg": "RS256", "kid": "x"}), TokenError::UnknownKey),
            (json!({"alg": "RS256", "kid": "r"}), TokenError::Signature),
            (json!({"alg": "RS256", "crit": ["b64"]}), TokenError::Malformed("it demands an extension")),
        ] {
            let token = format!("{}.{body}.{}", encoded(header.to_string().as_bytes()), encoded(&[0; 256]));
            assert_eq!(keys.verify(&token, &["jwt"]), Err(problem), "{header}");
            let unsigned = format!("{}.{body}.", encoded(header.to_string().as_bytes()));
            assert!(keys.verify(&unsigned, &["jwt"]).is_err(), "{header}");
        }
        for malformed in ["", ".", "..", "a.b", "a.b.c.d", "e30.e30.e30", "=.=.="] {
            assert!(matches!(keys.verify(malformed, &["jwt"]), Err(TokenError::Malformed(_))), "{malformed}");
        }
    }

    #[test]
    fn keys_that_are_for_something_else_are_left_out() {
        let signer = Signer::p256("p");
        let with = |name: &str, value: Value| {
            let mut jwk = signer.jwk();
            jwk[name] = value;
            Keys::parse(json!({ "keys": [jwk] }).to_string().as_bytes()).unwrap().len()
        };
        assert_eq!((with("use", json!("sig")), with("alg", json!("ES256"))), (1, 1));
        assert_eq!((with("use", json!("enc")), with("alg", json!("ES384"))), (0, 0));
        assert_eq!((with("crv", json!("P-384")), with("x", json!("AA")), with("kty", json!(7))), (0, 0, 0));
        assert!(Keys::parse(b"{}").is_none() && Keys::parse(b"").is_none());
        // Two keys that fit are none.
        let (one, two) = (Signer::p256("p"), Signer::p256("p"));
        let token = one.sign(&json!({}));
        assert_eq!(keys(&[&one, &two]).verify(&token, &["jwt"]), Err(TokenError::UnknownKey));
    }
}
