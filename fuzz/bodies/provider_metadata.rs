//! Any bytes as an OpenID provider's description of itself, and as its response to a code: nothing
//! panics, a description counts for its issuer alone, and every address in it is one of https.
//!
//! In the input `ISSUER` stands for the configured one.

use std::path::Path;
use std::sync::LazyLock;

use crate::oidc::{addresses, token_lengths};
use vpnd_config::ServerConfig;
use vpnd_config::source::{Oidc, SourceKind};

const ISSUER: &str = "https://login.example";

fn settings(issuer: &str) -> Oidc {
    let text = format!(
        "[tls]\ncertificate = 'a'\nkey = 'b'\n[tunnel]\npool_v4 = '10.86.0.0/16'\n[portal]\nenabled = true\n\
         certificate = 'c'\nkey = 'd'\nurl = 'https://vpn.example'\n[[source]]\nname = 'uni'\nkind = 'oidc'\n\
         realm = 'uni.example'\nissuer = '{issuer}'\nclient_id = 'vpn'\nclient_secret_file = 's'\n"
    );
    let config = ServerConfig::parse(&text, "server.toml", Path::new("/")).expect("it is a configuration");
    match config.sources.into_iter().map(|source| source.kind).next() {
        Some(SourceKind::Oidc(settings)) => *settings,
        _ => unreachable!("it is a provider"),
    }
}

static OWN: LazyLock<Oidc> = LazyLock::new(|| settings(ISSUER));
static OTHER: LazyLock<Oidc> = LazyLock::new(|| settings("https://login.example/"));

/// Checks one input.
pub fn run(data: &[u8]) {
    if let Some(lengths) = token_lengths(data) {
        assert!(lengths.into_iter().flatten().sum::<usize>() <= data.len(), "they were there");
    }
    let text = String::from_utf8_lossy(data).replace("ISSUER", ISSUER);
    let Some(known) = addresses(text.as_bytes(), &OWN) else { return };
    assert!(addresses(text.as_bytes(), &OTHER).is_none(), "another issuer's: {text}");
    assert!((3..=4).contains(&known.len()));
    for address in known {
        // A scheme has letters of either size (RFC 3986 section 3.1).
        let address = address.as_str().to_ascii_lowercase();
        assert!(address.starts_with("https://") && !address.contains('@'), "{address}");
    }
}
