//! A `[[source]]` that is an OpenID provider: users log in there, in a browser.
//!
//! INVARIANT: the issuer is compared letter by letter with what tokens say, so it is kept as it was
//! written.

use std::path::{Path, PathBuf};

use super::recheck::{self, Recheck};
use super::{Scheme, SecretPlace, Source, SourceKind, SourceServer, secret};
use crate::document::{Log as Problems, Section};
use crate::https_url::HttpsUrl;

/// The longest text of a button, in bytes.
const MAX_LABEL: usize = 64;

/// The claim with an address, which is a user's name only if it is verified.
pub const EMAIL: &str = "email";

/// How a provider is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oidc {
    pub issuer: HttpsUrl,
    /// PEM file with the CA of the provider's certificate; `None` takes the system's.
    pub ca: Option<PathBuf>,
    /// The gateway's name at the provider.
    pub client_id: String,
    pub secret: SecretPlace,
    /// Scopes besides `openid`.
    pub scopes: Vec<String>,
    /// The claim with the user's name.
    pub user_claim: String,
    /// Whether an address as the name counts although the provider does not say that it is the
    /// user's.
    pub email_is_verified: bool,
    /// The claim with the names of groups.
    pub group_claim: String,
    /// On the button of the login page.
    pub label: Option<String>,
    /// Values of the claim `acr` that say that several factors were checked.
    pub mfa_acr: Vec<String>,
    /// Where the provider sends browsers back to.
    pub redirect: String,
    /// How users with sessions are asked about again, by refresh tokens.
    pub recheck: Option<Recheck>,
}

impl Oidc {
    /// The provider's own host. Other addresses may be at others.
    pub(super) fn server(&self) -> SourceServer {
        SourceServer { host: self.issuer.host().to_owned(), port: self.issuer.port(), scheme: Scheme::Https }
    }
}

/// Has providers send browsers back to the pages at this address.
pub(crate) fn send_back(sources: &mut [Source], pages: &HttpsUrl) {
    for source in sources {
        if let SourceKind::Oidc(oidc) = &mut source.kind {
            oidc.redirect = format!("{pages}/oidc/callback/{}", source.name);
        }
    }
}

/// A text of visible characters without quotes, as scopes are (RFC 6749 appendix A.4).
struct Visible(String);

impl std::str::FromStr for Visible {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_allowed = |b: u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\');
        let good = (1..=255).contains(&text.len()) && text.bytes().all(is_allowed);
        if good { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

/// Reads the keys of a provider.
pub(super) fn read(s: &mut Section<'_>, p: &mut Problems, base: &Path) -> Option<Oidc> {
    let example = "the https address of a provider, such as \"https://login.uni.example/realms/uni\"";
    let issuer = s.parsed::<HttpsUrl>(p, "issuer", example);
    if !s.has("issuer") {
        s.missing(
            p,
            "issuer",
            "write issuer = \"https://login.uni.example\", as the provider itself says it",
        );
    }
    if issuer.as_ref().is_some_and(|issuer| !issuer.is_plain()) {
        s.problem(p, "issuer", "'issuer' has no '?' and no '#'".to_owned());
    }
    let visible = "visible characters without spaces";
    let client_id = s.parsed::<Visible>(p, "client_id", visible);
    if !s.has("client_id") {
        s.missing(p, "client_id", "write client_id = \"vpn\", the name of the gateway at the provider");
    }
    let secret = secret(s, p, "client_secret_file", base);
    if !s.has("client_secret_file") {
        let hint =
            "write client_secret_file = \"oidc.secret\", a file of mode 600 with what the provider gave";
        s.missing(p, "client_secret_file", hint);
    }
    let mut words = |s: &mut Section<'_>, key| {
        let list = s.list::<Visible>(p, key, visible);
        list.map(|list| list.into_iter().map(|word| word.0).collect::<Vec<_>>())
    };
    let scopes = words(s, "scopes").unwrap_or_else(|| vec!["profile".to_owned()]);
    let mfa_acr = words(s, "mfa_acr").unwrap_or_default();
    let user_claim = s.parsed::<Visible>(p, "user_claim", "a claim such as \"preferred_username\"");
    let user_claim = user_claim.map_or_else(|| "preferred_username".to_owned(), |claim| claim.0);
    let email_is_verified = s.flag(p, "email_is_verified", false);
    if email_is_verified && user_claim != EMAIL {
        let problem = format!("'email_is_verified' is for user_claim = \"{EMAIL}\" alone: remove it");
        s.problem(p, "email_is_verified", problem);
    }
    let group_claim = s.parsed::<Visible>(p, "group_claim", "a claim such as \"groups\"");
    let label = s.text(p, "label");
    if label.as_ref().is_some_and(|label| {
        label.is_empty() || label.len() > MAX_LABEL || label.chars().any(char::is_control)
    }) {
        s.problem(p, "label", format!("'label' needs 1 to {MAX_LABEL} characters on one line"));
    }
    Some(Oidc {
        ca: crate::read::path(s, p, "ca", base),
        issuer: issuer?,
        client_id: client_id?.0,
        secret: secret?,
        scopes,
        user_claim,
        email_is_verified,
        group_claim: group_claim.map_or_else(|| "groups".to_owned(), |claim| claim.0),
        label,
        mfa_acr,
        redirect: String::new(),
        recheck: recheck::read_of_provider(s, p),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServerConfig;
    use crate::testing::LEAST;

    const PORTAL: &str = "[portal]\nenabled = true\ncertificate = 'p.pem'\nkey = 'p-key.pem'\nurl = 'https://vpn.uni.example'\n";
    const LEAST_KEYS: &str = "[[source]]\nname = 'uni'\nkind = 'oidc'\nrealm = 'uni.example'\n\
                              issuer = 'https://login.uni.example:8443/r'\nclient_id = 'vpn'\n\
                              client_secret_file = 'oidc.secret'\n";

    fn read(text: &str) -> Result<Oidc, String> {
        let config = ServerConfig::parse(&format!("{LEAST}{text}"), "server.toml", Path::new("/etc/vpnd"));
        let config = config.map_err(|error| error.to_string())?;
        let [source] = &config.sources[..] else { panic!("one source") };
        let server = &source.servers[0];
        assert_eq!((server.host.as_str(), server.port), ("login.uni.example", 8443));
        let SourceKind::Oidc(oidc) = &source.kind else { panic!("a provider") };
        Ok(Oidc::clone(oidc))
    }

    #[test]
    fn a_provider_is_read() {
        let oidc = read(&format!("{PORTAL}{LEAST_KEYS}")).unwrap();
        assert_eq!(oidc.redirect, "https://vpn.uni.example/oidc/callback/uni");
        assert_eq!(oidc.issuer.as_str(), "https://login.uni.example:8443/r");
        assert_eq!((oidc.user_claim.as_str(), oidc.group_claim.as_str()), ("preferred_username", "groups"));
        assert!(!oidc.email_is_verified);
        assert_eq!(
            (oidc.scopes, oidc.secret),
            (vec!["profile".to_owned()], SecretPlace::File("/etc/vpnd/oidc.secret".into()))
        );
    }

    #[test]
    fn addresses_may_count_as_verified() {
        let claim = "user_claim = 'email'\nemail_is_verified = true\n";
        assert!(read(&format!("{PORTAL}{LEAST_KEYS}{claim}")).unwrap().email_is_verified);
    }

    #[test]
    fn mistakes_are_reported() {
        for (before, after, problem) in [
            ("https://login", "http://login", "https address"),
            ("8443/r'", "8443/r?x'", "no '?'"),
            ("'vpn'", "'v pn'", "without spaces"),
            ("client_secret_file = 'oidc.secret'\n", "", "'client_secret_file'"),
            ("client_id", "servers", "unknown key 'servers'"),
            ("client_id", "email_is_verified = true\nclient_id", "for user_claim = \"email\" alone"),
            ("url = 'https://vpn.uni.example'", "", "needs the key 'url'"),
            ("url = 'https://vpn.uni.example'", "url = 'https://vpn.uni.example/'", "nothing behind"),
        ] {
            let text = format!("{PORTAL}{LEAST_KEYS}").replace(before, after);
            let error = read(&text).expect_err(problem);
            assert!(error.contains(problem), "{problem}: {error}");
        }
    }
}
