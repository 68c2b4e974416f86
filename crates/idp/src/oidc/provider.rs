//! A provider's description of itself (OpenID Connect Discovery 1.0), and how long it counts.
//!
//! INVARIANT: the description is that of the configured issuer, letter by letter; all its addresses
//! are https.

use std::time::{Duration, Instant};

use serde::Deserialize;

use super::https::Https;
use crate::servers::ServerError;
use vpnd_config::https_url::HttpsUrl;
use vpnd_config::source::Oidc;

const PATH: &str = "/.well-known/openid-configuration";
/// For how long what was fetched counts: a key that the provider gives up counts no longer than
/// this.
const LIFETIME: Duration = Duration::from_secs(3_600);

/// A provider's own addresses, and how it is asked.
#[derive(Clone, Debug)]
pub(super) struct Description {
    pub(super) authorization_endpoint: HttpsUrl,
    pub(super) token_endpoint: HttpsUrl,
    pub(super) jwks_uri: HttpsUrl,
    pub(super) userinfo_endpoint: Option<HttpsUrl>,
    /// Whether each browser comes back with the issuer (RFC 9207).
    pub(super) names_issuer: bool,
    /// Whether the gateway's secret goes into a header.
    pub(super) takes_basic: bool,
}

#[derive(Deserialize)]
struct Metadata {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    userinfo_endpoint: Option<String>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    code_challenge_methods_supported: Option<Vec<String>>,
}

/// A value that was fetched, and when.
pub(super) struct Known<T>(Option<(T, Instant)>);

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Known<T> {
    pub(super) fn new(value: T, at: Instant) -> Self {
        Self(Some((value, at)))
    }

    /// The value, if it still counts.
    pub(super) fn current(&self) -> Option<&T> {
        self.0.as_ref().filter(|(_, at)| at.elapsed() < LIFETIME).map(|(value, _)| value)
    }
}

/// Asks the provider.
pub(super) async fn fetch(https: &Https, settings: &Oidc) -> Result<Description, ServerError> {
    let url = format!("{}{PATH}", settings.issuer.as_str().trim_end_matches('/'));
    let url: HttpsUrl =
        url.parse().map_err(|()| ServerError::Answer("the issuer's address is too long".to_owned()))?;
    read(https.get(&url, None).await?.json(&url)?, settings)
}

fn read(metadata: Metadata, settings: &Oidc) -> Result<Description, ServerError> {
    let refused = |reason: String| ServerError::Answer(reason);
    if metadata.issuer != settings.issuer.as_str() {
        let said = metadata.issuer.chars().take(200).collect::<String>();
        return Err(refused(format!("it says that its issuer is {said:?}: write that, or correct it there")));
    }
    if metadata.code_challenge_methods_supported.is_some_and(|known| !known.iter().any(|one| one == "S256")) {
        return Err(refused("it does not know PKCE with S256".to_owned()));
    }
    let address = |name: &str, text: &str| {
        text.parse::<HttpsUrl>().map_err(|()| refused(format!("its {name} is no https address")))
    };
    let methods = metadata.token_endpoint_auth_methods_supported;
    let knows = |method: &str| methods.as_ref().is_some_and(|known| known.iter().any(|one| one == method));
    let takes_basic = methods.is_none() || knows("client_secret_basic");
    if !takes_basic && !knows("client_secret_post") {
        return Err(refused(
            "it takes no client secret, by client_secret_basic or client_secret_post".to_owned(),
        ));
    }
    Ok(Description {
        authorization_endpoint: address("authorization_endpoint", &metadata.authorization_endpoint)?,
        token_endpoint: address("token_endpoint", &metadata.token_endpoint)?,
        jwks_uri: address("jwks_uri", &metadata.jwks_uri)?,
        userinfo_endpoint: match &metadata.userinfo_endpoint {
            Some(endpoint) => Some(address("userinfo_endpoint", endpoint)?),
            None => None,
        },
        names_issuer: metadata.authorization_response_iss_parameter_supported,
        takes_basic,
    })
}

/// The addresses of the description of this issuer, for the fuzzer; `None` if it is none.
#[cfg(any(test, fuzzing))]
pub(crate) fn addresses(bytes: &[u8], settings: &Oidc) -> Option<Vec<HttpsUrl>> {
    let known = read(serde_json::from_slice(bytes).ok()?, settings).ok()?;
    let needed = [known.authorization_endpoint, known.token_endpoint, known.jwks_uri];
    Some(needed.into_iter().chain(known.userinfo_endpoint).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::super::tests::settings;
    use super::*;

    #[test]
    fn a_description_is_the_issuers_own_with_addresses_of_https() {
        let good = json!({
            "issuer": "https://id.uni.example",
            "authorization_endpoint": "https://id.uni.example/auth",
            "token_endpoint": "https://id.uni.example/token",
            "jwks_uri": "https://id.uni.example/keys",
        });
        let with = |key: &str, value: Json| {
            let mut changed = good.clone();
            changed[key] = value;
            read(serde_json::from_value(changed).unwrap(), &settings())
        };
        assert!(with("userinfo_endpoint", json!("https://id.uni.example/me")).is_ok());
        for (key, value) in [
            ("issuer", json!("https://id.uni.example/")),
            ("issuer", json!("https://other.example")),
            ("token_endpoint", json!("http://id.uni.example/token")),
            ("jwks_uri", json!("file:///keys")),
            ("userinfo_endpoint", json!("http://id.uni.example/me")),
            ("code_challenge_methods_supported", json!(["plain"])),
            ("token_endpoint_auth_methods_supported", json!(["none"])),
        ] {
            assert!(with(key, value.clone()).is_err(), "{key}: {value}");
        }
    }
}
