//! OpenID providers: users log in there with a browser, and what comes back with it is proved here.
//!
//! Invariants: what a browser brings counts only together with the nonce and the verifier of the
//! login that auth began, in a token that the provider has signed for this gateway and that came
//! from the provider itself; the browser's part names no user. Addresses of the provider come from
//! its own description, which must be of the configured issuer, and are https. A provider that
//! lies, is slow or is down costs the one login. Refresh tokens are auth's: none is kept here, and
//! what this module holds of tokens and secrets is erased after its use. The buffers of HTTP and
//! TLS are not.

pub(crate) mod claims;
mod https;
pub(crate) mod jwt;
mod provider;
#[cfg(any(test, fuzzing))]
pub(crate) use provider::addresses;

use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use form_urlencoded::{Serializer, byte_serialize};
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;
use zeroize::Zeroizing;

use super::trial::{End, Steps};
use crate::servers::ServerError;
use claims::ClaimError;
use https::Https;
use jwt::{Claims, Keys, TokenError};
use provider::{Description, Known};
use vpnd_config::https_url::HttpsUrl;
use vpnd_config::secret_place;
use vpnd_config::source::{Oidc, Source};
use vpnd_config::source_tls::SourceTls;
use vpnd_ipc::gateway::idp::{
    LoginAddress, ProviderLogin, ProviderLogout, ReadLogout, RedeemCode, Redeemed, RefreshLogin,
    RefreshToken, RefreshedLogin, SourceRefusal, Url,
};
use vpnd_sys::clock::wall_s;
use vpnd_sys::log_limit::LogLimit;

/// Types of an ID token.
const ID_TOKEN: [&str; 1] = ["jwt"];
/// Types of a logout token: some providers have no special one.
const LOGOUT_TOKEN: [&str; 2] = ["logout+jwt", "jwt"];
/// Lines of the log about what proves nothing at once, and the time for another one.
const REFUSALS: u32 = 20;
const REFUSAL_INTERVAL: Duration = Duration::from_secs(10);
/// Time after which keys are fetched again for a token that is signed by none of those, and the
/// description after a failure.
const NEXT_FETCH: Duration = Duration::from_secs(2);
/// Limit for the description: less than for a whole request, which is given up where it stands.
const DESCRIPTION_TIMEOUT: Duration = Duration::from_secs(8);

/// A provider, ready to be asked.
pub(super) struct Provider {
    settings: Oidc,
    secret: Zeroizing<String>,
    https: Https,
    /// Lines about what proves nothing: anybody can send that.
    refusals: LogLimit,
    description: Mutex<Described>,
    keys: RwLock<Known<Keys>>,
    /// When keys were asked for last. Tokens whose key is known do not wait for it.
    asked_for_keys: Mutex<Option<Instant>>,
}

/// A provider's description of itself.
#[derive(Default)]
struct Described {
    known: Known<Description>,
    /// When it was asked for last, if that failed.
    failed: Option<Instant>,
}

/// The response to a code or a refresh token.
#[derive(Deserialize)]
struct Tokens {
    #[serde(default, deserialize_with = "erased")]
    id_token: Option<Zeroizing<String>>,
    #[serde(default, deserialize_with = "erased")]
    access_token: Option<Zeroizing<String>>,
    #[serde(default, deserialize_with = "erased")]
    refresh_token: Option<Zeroizing<String>>,
}

/// A text that is erased when dropped.
fn erased<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Zeroizing<String>>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.map(Zeroizing::new))
}

/// The refusal of a code (RFC 6749 §5.2).
#[derive(Deserialize)]
struct TokenProblem {
    error: String,
}

/// Why what a provider has sent does not count.
#[derive(Debug, thiserror::Error)]
enum NotProved {
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error("the browser comes from the issuer {0:?}, and not from this one")]
    Issuer(String),
    #[error("the provider says that the code is not its own, or is used up")]
    Code,
    #[error("the provider has sent no ID token and no user information")]
    Nothing,
}

impl Provider {
    /// Reads its authorities and the gateway's secret there.
    pub(super) fn prepare(settings: &Oidc) -> anyhow::Result<Self> {
        Ok(Self {
            settings: settings.clone(),
            secret: secret_place::read(&settings.secret)?,
            https: Https::new(SourceTls::trusting(settings.ca.as_deref())?),
            refusals: LogLimit::new(REFUSALS, REFUSAL_INTERVAL),
            description: Mutex::default(),
            keys: RwLock::default(),
            asked_for_keys: Mutex::default(),
        })
    }

    /// Where a browser begins this login.
    pub(super) async fn address(&self, login: &LoginAddress) -> Result<Url, ServerError> {
        let description = self.description().await?;
        let scopes = std::iter::once("openid").chain(self.settings.scopes.iter().map(String::as_str));
        let scopes = scopes.collect::<Vec<_>>().join(" ");
        let mut query = Serializer::new(String::new());
        query
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.settings.client_id)
            .append_pair("redirect_uri", &self.settings.redirect)
            .append_pair("scope", &scopes)
            .append_pair("state", &login.state)
            .append_pair("nonce", &login.nonce)
            .append_pair("code_challenge", &login.challenge)
            .append_pair("code_challenge_method", "S256");
        if let Some(max_age_s) = login.max_age_s {
            query.append_pair("max_age", &max_age_s.to_string());
        }
        // Without it a provider gives no such tokens (OpenID Connect Core §11).
        if self.settings.scopes.iter().any(|scope| scope == "offline_access") {
            query.append_pair("prompt", "consent");
        }
        let query = query.finish();
        let base = description.authorization_endpoint.as_str();
        let separator = if base.contains('?') { '&' } else { '?' };
        Url::new(format!("{base}{separator}{query}"))
            .map_err(|_| ServerError::Answer("the address of its login page is too long".to_owned()))
    }

    /// The user that has logged in.
    pub(super) async fn redeem(
        &self,
        source: &Source,
        redeem: &RedeemCode,
    ) -> Result<Result<Redeemed, SourceRefusal>, ServerError> {
        let description = self.description().await?;
        let (claims, refresh) = match self.proved(&description, redeem).await? {
            Ok(claims) => claims,
            Err(reason) => {
                if self.refusals.admits() {
                    tracing::warn!(source = source.name, %reason, "a login at a provider is not proved");
                }
                return Ok(Err(SourceRefusal::NotProved));
            }
        };
        Ok(claims::login(&claims, source, &self.settings).map(|login| Redeemed { login, refresh }))
    }

    /// The user to whom a refresh token was given, if the provider still lets the user in (OpenID
    /// Connect Core §12).
    pub(super) async fn refresh(
        &self,
        source: &Source,
        asked: &RefreshLogin,
    ) -> Result<Result<RefreshedLogin, SourceRefusal>, ServerError> {
        let description = self.description().await?;
        let form = self.refresh_form(&description, &asked.token);
        let Some(tokens) = self.tokens(&description, form).await? else {
            return Ok(Err(SourceRefusal::UnknownUser));
        };
        let claims = match self.refreshed(&description, &tokens).await? {
            Ok(claims) => claims,
            // A provider that lies says nothing about the user.
            Err(reason) => return Err(ServerError::Answer(format!("its answer about a user: {reason}"))),
        };
        let refresh = tokens.refresh();
        let login = claims::login(&claims, source, &self.settings);
        Ok(login.map(|ProviderLogin { identity, .. }| RefreshedLogin { identity, refresh }))
    }

    /// The claims that come with a refresh token.
    async fn refreshed(
        &self,
        description: &Description,
        tokens: &Tokens,
    ) -> Result<Result<Claims, NotProved>, ServerError> {
        let mut claims = None;
        if let Some(token) = &tokens.id_token {
            let verified = match self.verify(description, token, &ID_TOKEN).await? {
                Ok(verified) => verified,
                Err(error) => return Ok(Err(error.into())),
            };
            if let Err(error) = claims::check_refreshed(&verified, &self.settings, wall_s()) {
                return Ok(Err(error.into()));
            }
            claims = Some(verified);
        }
        let is_whole = claims.as_ref().is_some_and(|claims| !claims::are_incomplete(claims, &self.settings));
        let asked = description.userinfo_endpoint.as_ref().zip(tokens.access_token.as_ref());
        if let (false, Some((endpoint, token))) = (is_whole, asked) {
            let more = self.user_information(endpoint, token).await?;
            let known = claims.get_or_insert_with(|| more.clone());
            if let Err(error) = claims::complete(known, more, &self.settings) {
                return Ok(Err(error.into()));
            }
        }
        Ok(claims.ok_or(NotProved::Nothing))
    }

    /// The claims of the user whose code this is, and what asks about the user later.
    async fn proved(
        &self,
        description: &Description,
        redeem: &RedeemCode,
    ) -> Result<Result<(Claims, Option<RefreshToken>), NotProved>, ServerError> {
        let issuer = redeem.issuer.as_deref();
        // Before the code is sent anywhere: it may be another provider's (RFC 9207).
        if issuer.map_or(description.names_issuer, |issuer| issuer != self.settings.issuer.as_str()) {
            return Ok(Err(NotProved::Issuer(issuer.unwrap_or_default().to_owned())));
        }
        let Some(tokens) = self.tokens(description, self.form(description, redeem)).await? else {
            return Ok(Err(NotProved::Code));
        };
        let Some(token) = &tokens.id_token else { return Ok(Err(NotProved::Nothing)) };
        let mut claims = match self.verify(description, token, &ID_TOKEN).await? {
            Ok(claims) => claims,
            Err(error) => return Ok(Err(error.into())),
        };
        let checked = claims::check_login(&claims, &self.settings, &redeem.nonce, wall_s())
            .and_then(|()| claims::check_age(&claims, redeem.max_age_s, wall_s()));
        if let Err(error) = checked {
            return Ok(Err(error.into()));
        }
        if let (true, Some(endpoint), Some(token)) = (
            claims::are_incomplete(&claims, &self.settings),
            &description.userinfo_endpoint,
            &tokens.access_token,
        ) {
            let more = self.user_information(endpoint, token).await?;
            if let Err(error) = claims::complete(&mut claims, more, &self.settings) {
                return Ok(Err(error.into()));
            }
        }
        Ok(Ok((claims, tokens.refresh())))
    }

    /// The provider's tokens for a code or a refresh token; `None` if it does not accept that.
    async fn tokens(
        &self,
        description: &Description,
        form: Zeroizing<String>,
    ) -> Result<Option<Tokens>, ServerError> {
        let authorization = if description.takes_basic { Some(self.basic()?) } else { None };
        let endpoint = &description.token_endpoint;
        let response = self.https.post(endpoint, authorization, form).await?;
        if response.status == StatusCode::OK {
            return response.json(endpoint).map(Some);
        }
        let problem = serde_json::from_slice::<TokenProblem>(&response.body).map(|problem| problem.error);
        match problem.as_deref() {
            Ok("invalid_grant") => Ok(None),
            Ok(error) => {
                let error = error.chars().take(64).collect::<String>();
                Err(ServerError::Answer(format!("{endpoint} answers {}: {error:?}", response.status)))
            }
            Err(_) => Err(ServerError::Answer(format!("{endpoint} answers {}", response.status))),
        }
    }

    fn form(&self, description: &Description, redeem: &RedeemCode) -> Zeroizing<String> {
        let pairs = [
            ("grant_type", "authorization_code"),
            ("code", redeem.code.expose()),
            ("redirect_uri", &self.settings.redirect),
            ("code_verifier", redeem.verifier.expose()),
        ];
        self.with_credentials(description, &pairs)
    }

    fn refresh_form(&self, description: &Description, token: &RefreshToken) -> Zeroizing<String> {
        let pairs = [("grant_type", "refresh_token"), ("refresh_token", token.expose())];
        self.with_credentials(description, &pairs)
    }

    fn with_credentials(&self, description: &Description, pairs: &[(&str, &str)]) -> Zeroizing<String> {
        let own = [("client_id", self.settings.client_id.as_str()), ("client_secret", self.secret.as_str())];
        let own = if description.takes_basic { &[][..] } else { &own };
        encoded_form(&[pairs, own].concat())
    }

    /// The gateway's own credentials (RFC 6749 §2.3.1).
    fn basic(&self) -> Result<HeaderValue, ServerError> {
        let (id, secret) = (encoded(&self.settings.client_id), encoded(&self.secret));
        let pair = Zeroizing::new([id.as_str(), secret.as_str()].join(":"));
        authorization("Basic", &Zeroizing::new(STANDARD.encode(pair.as_bytes())))
    }

    async fn user_information(&self, endpoint: &HttpsUrl, token: &str) -> Result<Claims, ServerError> {
        let bearer = authorization("Bearer", token)?;
        self.https.get(endpoint, Some(bearer)).await?.json(endpoint)
    }

    /// The claims of a token. If its key is unknown, or is not what has signed it, the provider may
    /// have another now, perhaps by the same name: it is asked for its keys once at a time, and
    /// seldom, since anybody can send such a token.
    async fn verify(
        &self,
        description: &Description,
        token: &str,
        types: &[&str],
    ) -> Result<Result<Claims, TokenError>, ServerError> {
        match self.by_known_keys(token, types) {
            Some(Err(TokenError::UnknownKey | TokenError::Signature)) | None => {}
            Some(verified) => return Ok(verified),
        }
        let mut asked = self.asked_for_keys.lock().await;
        let known = self.by_known_keys(token, types);
        let is_too_soon = asked.is_some_and(|at| at.elapsed() < NEXT_FETCH);
        match known {
            Some(Err(error @ (TokenError::UnknownKey | TokenError::Signature))) if is_too_soon => {
                return Ok(Err(error));
            }
            None if is_too_soon => {
                return Err(ServerError::Answer(format!("{} had no keys just now", description.jwks_uri)));
            }
            Some(Err(TokenError::UnknownKey | TokenError::Signature)) | None => {}
            Some(verified) => return Ok(verified),
        }
        *asked = Some(Instant::now());
        let fetched = self.fetch_keys(description).await;
        *asked = Some(Instant::now());
        let fetched = fetched?;
        let verified = fetched.verify(token, types);
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Known::new(fetched, Instant::now());
        Ok(verified)
    }

    fn by_known_keys(&self, token: &str, types: &[&str]) -> Option<Result<Claims, TokenError>> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.current().map(|keys| keys.verify(token, types))
    }

    async fn fetch_keys(&self, description: &Description) -> Result<Keys, ServerError> {
        let response = self.https.get(&description.jwks_uri, None).await?;
        let fetched = (response.status == StatusCode::OK).then(|| Keys::parse(&response.body)).flatten();
        fetched.ok_or_else(|| {
            ServerError::Answer(format!("{} has no keys: {}", description.jwks_uri, response.status))
        })
    }

    /// The user that has logged out at the provider; `None` if the token does not prove that.
    pub(super) async fn logout(
        &self,
        source: &Source,
        read: &ReadLogout,
    ) -> Result<Option<ProviderLogout>, ServerError> {
        let description = self.description().await?;
        let verified = self.verify(&description, read.token.expose(), &LOGOUT_TOKEN).await?;
        let checked = verified.map_err(NotProved::from).and_then(|claims| {
            let (who, number) = claims::check_logout(&claims, &self.settings, wall_s())?;
            Ok(ProviderLogout { who, id: <[u8; 32]>::from(Sha256::digest(number)).into() })
        });
        if let Err(reason) = &checked
            && self.refusals.admits()
        {
            tracing::warn!(source = source.name, %reason, "a logout token does not count");
        }
        Ok(checked.ok())
    }

    /// The provider's description of itself.
    async fn description(&self) -> Result<Description, ServerError> {
        let mut described = self.description.lock().await;
        if let Some(description) = described.known.current() {
            return Ok(description.clone());
        }
        // Callers that have waited for another's request get the same answer.
        if described.failed.is_some_and(|at| at.elapsed() < NEXT_FETCH) {
            return Err(ServerError::Answer(format!(
                "{} did not describe itself just now",
                self.settings.issuer
            )));
        }
        let fetched = provider::fetch(&self.https, &self.settings);
        let fetched = tokio::time::timeout(DESCRIPTION_TIMEOUT, fetched).await;
        let fetched = fetched.unwrap_or(Err(ServerError::Slow));
        described.failed = fetched.is_err().then(Instant::now);
        let fetched = fetched?;
        described.known = Known::new(fetched.clone(), Instant::now());
        Ok(fetched)
    }

    /// Every step of a login that needs no user.
    pub(super) async fn trial(&self, steps: &mut Steps) -> Result<(), End> {
        let description = self.description().await.map_err(|error| ("discovery", error.to_string()))?;
        steps.good("discovery", format!("it is the issuer {}", self.settings.issuer));
        let response = self.https.get(&description.jwks_uri, None).await;
        let response = response.map_err(|error| ("keys", error.to_string()))?;
        let count = Keys::parse(&response.body).map_or(0, |keys| keys.len());
        if count == 0 {
            let reason = format!("{} has none for RS256, ES256 or EdDSA", description.jwks_uri);
            return Err(("keys", reason));
        }
        steps.good("keys", format!("{count} keys of algorithms that count"));
        steps.good("redirect", format!("the provider must know this address: {}", self.settings.redirect));
        steps.good("answer", "whether it knows the gateway's client_id and secret shows a login");
        Ok(())
    }
}

impl Tokens {
    fn refresh(&self) -> Option<RefreshToken> {
        RefreshToken::new(self.refresh_token.as_ref()?.as_str()).ok()
    }
}

/// The lengths of the tokens in a provider's response, for the fuzzer; `None` if it is none.
#[cfg(any(test, fuzzing))]
pub(crate) fn token_lengths(bytes: &[u8]) -> Option<[Option<usize>; 3]> {
    let Tokens { id_token, access_token, refresh_token } = serde_json::from_slice(bytes).ok()?;
    Some([id_token, access_token, refresh_token].map(|token| token.map(|token| token.len())))
}

/// In memory that is large enough from the beginning: what grows leaves copies behind.
fn encoded_form(pairs: &[(&str, &str)]) -> Zeroizing<String> {
    // Encoded, a byte is three, and each pair has two signs.
    let length = pairs.iter().map(|(name, value)| 3 * (name.len() + value.len()) + 2).sum();
    let mut form = Zeroizing::new(String::with_capacity(length));
    Serializer::new(&mut *form).extend_pairs(pairs);
    form
}

/// Encodes one text in the same way.
fn encoded(text: &str) -> Zeroizing<String> {
    let mut encoded = Zeroizing::new(String::with_capacity(3 * text.len()));
    encoded.extend(byte_serialize(text.as_bytes()));
    encoded
}

fn authorization(scheme: &str, credentials: &str) -> Result<HeaderValue, ServerError> {
    let value = Zeroizing::new([scheme, credentials].join(" "));
    let mut value = HeaderValue::from_maybe_shared(Bytes::from_owner(value))
        .map_err(|_| ServerError::Answer("a credential can't be sent in a header".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use serde_json::json;
    use tokio::net::TcpListener;

    use super::jwt::testing::Signer;
    use super::*;
    use vpnd_config::ServerConfig;
    use vpnd_config::source::SourceKind;

    pub(super) fn settings() -> Oidc {
        let text = "[tls]\ncertificate = 'a'\nkey = 'b'\n[tunnel]\npool_v4 = '10.86.0.0/16'\n[portal]\nenabled = true\n\
                    certificate = 'c'\nkey = 'd'\nurl = 'https://vpn.uni.example'\n[[source]]\nname = 'uni'\nkind = 'oidc'\n\
                    realm = 'uni.example'\nissuer = 'https://id.uni.example'\nclient_id = 'vpn'\nclient_secret_file = 's'\n";
        let config = ServerConfig::parse(text, "server.toml", Path::new("/")).unwrap();
        match config.sources.into_iter().map(|source| source.kind).next() {
            Some(SourceKind::Oidc(settings)) => *settings,
            _ => panic!("it is a provider"),
        }
    }

    #[test]
    fn forms_and_credentials_are_encoded_in_memory_that_does_not_grow() {
        let pairs = [("code", "a b&c=ä"), ("client_secret", "\u{7}:/")];
        let form = encoded_form(&pairs);
        assert_eq!(&**form, "code=a+b%26c%3D%C3%A4&client_secret=%07%3A%2F");
        assert_eq!(&**encoded("a:ä"), "a%3A%C3%A4");
        let long = "ä".repeat(1_000);
        assert_eq!(encoded_form(&[("ä", &long)]).capacity(), 3 * 2_002 + 2);
        assert_eq!(encoded(&long).capacity(), 3 * 2_000);
        let value = authorization("Basic", "YTpi").unwrap();
        assert!(value == "Basic YTpi" && value.is_sensitive());
        assert!(authorization("Bearer", "a\nb").is_err());
    }

    fn provider(settings: Oidc, keys: Keys) -> Provider {
        Provider {
            settings,
            secret: Zeroizing::default(),
            https: Https::new(SourceTls::trusting(None).unwrap()),
            refusals: LogLimit::new(REFUSALS, REFUSAL_INTERVAL),
            description: Mutex::default(),
            keys: RwLock::new(Known::new(keys, Instant::now())),
            asked_for_keys: Mutex::default(),
        }
    }

    #[tokio::test]
    async fn a_token_of_an_unknown_key_has_keys_fetched_seldom_and_keeps_no_other_waiting() {
        let slow = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("https://{}", slow.local_addr().unwrap());
        let url = |path: &str| format!("{base}/{path}").parse::<HttpsUrl>().unwrap();
        let description = Description {
            authorization_endpoint: url("auth"),
            token_endpoint: url("token"),
            jwks_uri: url("keys"),
            userinfo_endpoint: None,
            names_issuer: false,
            takes_basic: true,
        };
        let [own, strange] = [Signer::p256("own"), Signer::p256("strange")];
        let keys = Keys::parse(json!({ "keys": [own.jwk()] }).to_string().as_bytes()).unwrap();
        let provider = Arc::new(provider(settings(), keys));
        let verify = |token: String| {
            let (provider, description) = (Arc::clone(&provider), description.clone());
            async move { provider.verify(&description, &token, &ID_TOKEN).await }
        };
        let claims = json!({"sub": "ann"});
        let waiting = tokio::spawn(verify(strange.sign(&claims)));
        let (connection, _) = slow.accept().await.unwrap();
        let second = Duration::from_secs(1);
        let known = tokio::time::timeout(second, verify(own.sign(&claims))).await;
        assert!(known.expect("it waits for the provider").unwrap().is_ok());
        drop(connection);
        assert!(waiting.await.unwrap().is_err(), "the provider does not answer");
        let namesake = Signer::p256("own");
        // Were it asked again, it would not answer.
        let at_once = async |token| tokio::time::timeout(10 * second, verify(token)).await.unwrap().unwrap();
        for _ in 0..10 {
            assert_eq!(at_once(strange.sign(&claims)).await, Err(TokenError::UnknownKey));
            assert_eq!(at_once(namesake.sign(&claims)).await, Err(TokenError::Signature));
        }
        assert!(tokio::time::timeout(second / 5, slow.accept()).await.is_err(), "it was asked again");
        tokio::time::sleep(NEXT_FETCH).await;
        let waiting = tokio::spawn(verify(namesake.sign(&claims)));
        let asked = tokio::time::timeout(10 * second, slow.accept()).await;
        drop(asked.expect("the provider may have another key by that name").unwrap());
        assert!(waiting.await.unwrap().is_err());
    }

    #[test]
    fn a_redirection_is_not_followed() {
        let url = "https://id.uni.example/token".parse::<HttpsUrl>().unwrap();
        for status in [301, 302, 303, 307, 308] {
            let status = StatusCode::from_u16(status).unwrap();
            let body = Bytes::from_static(br#"{"id_token": "a.b.c"}"#);
            let answer = https::Response { status, body }.json::<Tokens>(&url);
            assert!(matches!(answer, Err(ServerError::Answer(_))), "{status}");
        }
        let body = Bytes::from_static(br#"{"id_token": "a.b.c"}"#);
        assert!(https::Response { status: StatusCode::OK, body }.json::<Tokens>(&url).is_ok());
    }

    #[tokio::test]
    async fn a_provider_that_has_not_described_itself_is_not_asked_again_at_once() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("https://{}", silent.local_addr().unwrap()).parse().unwrap();
        let provider = Arc::new(provider(Oidc { issuer, ..settings() }, Keys::default()));
        let describe = || {
            let provider = Arc::clone(&provider);
            tokio::spawn(async move { provider.description().await.map(drop) })
        };
        let waiting = [describe(), describe()];
        drop(silent.accept().await.unwrap());
        for description in waiting {
            assert!(description.await.unwrap().is_err());
        }
        assert!(describe().await.unwrap().is_err());
        let again = tokio::time::timeout(Duration::from_millis(200), silent.accept()).await;
        assert!(again.is_err(), "it was asked again");
    }
}
