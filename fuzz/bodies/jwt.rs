//! Any bytes as a provider's keys and as a token, and any JSON as claims: nothing panics, claims
//! come out of a token only if one of the keys has signed these very bytes, and who has logged in
//! has the subject, the name and the groups that this source may give.
//!
//! Input: a key set, a zero byte, and a token; the first part is tried as claims, too.

use std::path::Path;
use std::sync::LazyLock;

use serde_json::json;

use crate::oidc::claims;
use crate::oidc::jwt::testing::Signer;
use crate::oidc::jwt::{Claims, Keys, MAX_TOKEN};
use vpnd_config::ServerConfig;
use vpnd_config::source::{Oidc, Source, SourceKind};
use vpnd_ipc::gateway::idp::LoggedOut;

const NOW: u64 = 1_800_000_000;
const TYPES: [&str; 2] = ["logout+jwt", "jwt"];

static SOURCE: LazyLock<Source> = LazyLock::new(|| {
    let text = "[tls]\ncertificate = 'a'\nkey = 'b'\n[tunnel]\npool_v4 = '10.86.0.0/16'\n[portal]\nenabled = true\n\
                certificate = 'c'\nkey = 'd'\nurl = 'https://vpn.example'\n[[source]]\nname = 'uni'\nkind = 'oidc'\n\
                realm = 'uni.example'\nissuer = 'https://login.example'\nclient_id = 'vpn'\nclient_secret_file = 's'\n\
                mfa_acr = ['strong']\n";
    ServerConfig::parse(text, "server.toml", Path::new("/")).expect("it is a configuration").sources.remove(0)
});
static SIGNER: LazyLock<Signer> = LazyLock::new(|| Signer::ed25519("own"));
static OWN: LazyLock<Keys> = LazyLock::new(|| {
    Keys::parse(json!({ "keys": [SIGNER.jwk()] }).to_string().as_bytes()).expect("it is a key set")
});

fn settings() -> &'static Oidc {
    match &SOURCE.kind {
        SourceKind::Oidc(settings) => settings,
        _ => unreachable!("it is a provider"),
    }
}

/// Checks one input.
pub fn run(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (keys, token) = (&data[..at], data.get(at + 1..).unwrap_or_default());
    if let Ok(claims) = serde_json::from_slice::<Claims>(keys) {
        check_claims(&claims);
        let signed = SIGNER.sign(&claims.clone().into());
        if signed.len() <= MAX_TOKEN {
            assert_eq!(OWN.verify(&signed, &TYPES).as_ref(), Ok(&claims), "what was signed");
        }
    }
    let token = String::from_utf8_lossy(token);
    assert!(OWN.verify(&token, &TYPES).is_err(), "nobody else has this key: {token}");
    let Some(keys) = Keys::parse(keys) else { return };
    let Ok(claims) = keys.verify(&token, &TYPES) else { return };
    assert!(token.len() <= MAX_TOKEN && token.matches('.').count() == 2 && keys.len() > 0);
    check_claims(&claims);
    // Tries these claims with another signature, and other claims with this one.
    let (signed, signature) = token.rsplit_once('.').expect("it has three parts");
    assert!(keys.verify(&format!("{signed}."), &TYPES).is_err(), "without a signature");
    assert!(keys.verify(&format!("x{signed}.{signature}"), &TYPES).is_err(), "another header");
}

fn check_claims(known: &Claims) {
    let settings = settings();
    for nonce in ["n", ""] {
        let _ = claims::check_login(known, settings, nonce, NOW);
    }
    let _ = (claims::check_refreshed(known, settings, NOW), claims::check_age(known, Some(300), NOW));
    if let Ok((who, number)) = claims::check_logout(known, settings, NOW) {
        assert!(!number.is_empty() && !known.contains_key("nonce"));
        if let LoggedOut::Subject(subject) = who {
            assert_eq!(subject.len(), 64);
        }
    }
    let mut more = known.clone();
    if claims::complete(&mut more, known.clone(), settings).is_ok() {
        assert_eq!(&more, known, "claims of the token itself add nothing");
    }
    let _ = claims::are_incomplete(known, settings);
    let Ok(login) = claims::login(known, &SOURCE, settings) else { return };
    let identity = &login.identity;
    assert!(identity.subject.len() == 64 && identity.subject.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let name = identity.name.as_deref().expect("a login has a name");
    assert!(SOURCE.rule.matches(name), "{name:?} is of another source");
    assert!(identity.groups.windows(2).all(|pair| pair[0] < pair[1]), "each once, in order");
}
