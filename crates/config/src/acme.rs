//! `[acme]`: the gateway's certificate from an authority that speaks ACME (RFC 8555).

use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::ServerConfig;
use super::document::{Log as Problems, Section};
use super::https_url::HttpsUrl;
use super::read::path;
use super::source::{SecretPlace, secret};
use vpnd_pki::dns_name::DnsName;

/// Names in one certificate at most.
const MAX_NAMES: usize = 16;
const HTTPS_PORT: u16 = 443;
/// Where an authority connects to: RFC 8555 section 8.3 and RFC 8737 section 3.
const HTTP_CHALLENGE_PORT: u16 = 80;

/// Where the certificate comes from, and by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acme {
    pub directory: HttpsUrl,
    /// PEM file with the CA of the directory's own certificate; `None` takes the system's.
    pub directory_ca: Option<PathBuf>,
    /// Names of the tunnel's certificate, which is not ordered if there are none.
    pub names: Vec<DnsName>,
    pub challenge: AcmeChallenge,
    /// Where challenges are answered while they last.
    pub listen: SocketAddr,
    /// Where the authority sends mail about the account.
    pub contact: Vec<String>,
    /// How the authority knows its customer (RFC 8555 section 7.3.4).
    pub external_account: Option<ExternalAccount>,
}

/// By what the authority sees that the names are the gateway's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    TlsAlpn01,
    Http01,
}

impl AcmeChallenge {
    /// Its name in RFC 8555 and RFC 8737.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TlsAlpn01 => "tls-alpn-01",
            Self::Http01 => "http-01",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAccount {
    pub key_id: String,
    /// The MAC key, base64url.
    pub key: SecretPlace,
}

/// An address such as `mailto:vpn@uni.example`.
struct Contact(String);

impl FromStr for Contact {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_good = text.strip_prefix("mailto:").is_some_and(|address| address.contains('@'))
            && text.len() <= 254
            && text.bytes().all(|b| b.is_ascii_graphic());
        if is_good { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

/// Reads the section; `None` if it is not there, or its problems are in the log. Without
/// `for_portal` there is only the tunnel's certificate to order.
pub(super) fn acme(s: &mut Section<'_>, p: &mut Problems, base: &Path, for_portal: bool) -> Option<Acme> {
    s.line()?;
    let example =
        "the https address of an ACME directory, such as \"https://acme-v02.api.letsencrypt.org/directory\"";
    let directory = s.parsed::<HttpsUrl>(p, "directory", example);
    if !s.has("directory") {
        s.missing(p, "directory", "write directory = \"https://acme-v02.api.letsencrypt.org/directory\"");
    }
    let names = s.list::<DnsName>(p, "names", "a DNS name such as \"vpn.uni.example\"").unwrap_or_default();
    if for_portal && !s.has("names") {
        // The portal's certificate alone is ordered.
    } else if !s.has("names") {
        s.missing(p, "names", "write names = [\"vpn.uni.example\"], by which clients reach this gateway");
    } else if !(1..=MAX_NAMES).contains(&names.len()) {
        s.problem(p, "names", format!("'names' in [acme] needs 1 to {MAX_NAMES} names"));
    }
    let choices =
        [AcmeChallenge::TlsAlpn01, AcmeChallenge::Http01].map(|challenge| (challenge.name(), challenge));
    let challenge = s.choice(p, "challenge", &choices).unwrap_or(AcmeChallenge::TlsAlpn01);
    let port = if challenge == AcmeChallenge::Http01 { HTTP_CHALLENGE_PORT } else { HTTPS_PORT };
    let listen = s.parsed::<SocketAddr>(p, "listen", "one address with a port such as \"[::]:443\"");
    let directory_ca = path(s, p, "directory_ca", base);
    let contact = s.list::<Contact>(p, "contact", "an address such as \"mailto:vpn@uni.example\"");
    let key_id = s.text(p, "eab_key_id").filter(|id| !id.is_empty());
    let key = secret(s, p, "eab_key_file", base);
    if key_id.is_some() != key.is_some() {
        let reason = "'eab_key_id' and 'eab_key_file' in [acme] belong together: the authority gives both";
        s.problem(p, "eab_key_id", reason.to_owned());
    }
    let agreed = s.flag(p, "terms_of_service_agreed", false);
    if !agreed {
        let reason = "read the authority's terms of service (its directory names them), then write \
                   terms_of_service_agreed = true";
        s.problem(p, "terms_of_service_agreed", format!("[acme]: {reason}"));
    }
    Some(Acme {
        directory: directory?,
        directory_ca,
        names,
        challenge,
        listen: listen.unwrap_or_else(|| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))),
        contact: contact.unwrap_or_default().into_iter().map(|contact| contact.0).collect(),
        external_account: key_id.zip(key).map(|(key_id, key)| ExternalAccount { key_id, key }),
    })
}

impl ServerConfig {
    /// The file with the account at the authority.
    #[must_use]
    pub fn acme_account(&self) -> PathBuf {
        self.server.state_dir.join("acme-account.json")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str = "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n";

    fn read(text: &str) -> Result<Option<Acme>, String> {
        let config = ServerConfig::parse(&format!("{REST}{text}"), "server.toml", Path::new("/etc/vpnd"));
        config.map(|config| config.acme).map_err(|error| error.to_string())
    }

    const LEAST: &str = "[acme]\ndirectory = \"https://ca.uni.example:9000/acme/directory\"\n\
                         names = [\"vpn.uni.example\"]\nterms_of_service_agreed = true\n";

    #[test]
    fn the_section_is_read_and_its_absence_too() {
        assert_eq!(read(""), Ok(None));
        let acme = read(LEAST).expect("it is good").expect("it is there");
        assert_eq!((acme.directory.port(), acme.listen.port()), (9000, 443));
        let http = read(&format!("{LEAST}challenge = \"http-01\"\n")).expect("it is good");
        assert_eq!(http.expect("it is there").listen.to_string(), "[::]:80");
        let bound = read(&format!("{LEAST}eab_key_id = \"kid\"\neab_key_file = \"eab\"\n")).expect("good");
        let bound = bound.and_then(|acme| acme.external_account).expect("it is there");
        assert_eq!(bound.key, SecretPlace::File("/etc/vpnd/eab".into()));
    }

    #[test]
    fn mistakes_are_reported() {
        let wrong = |change: (&str, &str)| read(&LEAST.replace(change.0, change.1)).expect_err("it is wrong");
        assert!(wrong(("https://ca", "http://ca")).contains("https address"));
        assert!(wrong(("https://ca", "https://me@ca")).contains("https address"));
        assert!(wrong(("\"vpn.uni.example\"", "")).contains("1 to 16 names"));
        assert!(wrong(("true", "false")).contains("terms of service"));
        assert!(wrong(("true", "true\neab_key_id = \"x\"")).contains("belong together"));
        assert!(wrong(("true", "true\ncontact = \"vpn@uni.example\"")).contains("mailto:"));
    }
}
