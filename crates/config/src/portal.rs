//! `[portal]`: the gateway's web pages for its users.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::SubjectPublicKeyInfoDer;
use zeroize::Zeroizing;

use super::desk::{Desk, desk};
use super::document::{Log as Problems, Section};
use super::https_url::HttpsUrl;
use super::read::{NETWORK, path};
use super::source::SourceKind;
use super::{Acme, AcmeChallenge, DnsName, ServerConfig, Tls};

const HTTPS_PORT: u16 = 443;
/// Files in the directory of the configuration with an ordered certificate and its key.
const ORDERED: [&str; 2] = ["portal.pem", "portal-key.pem"];
/// The longest name of the service, in bytes.
const MAX_NAME: usize = 64;
/// The most TCP connections of clients.
const MAX_RELAYS: u64 = 20_000;
/// The largest file of an image.
pub const MAX_LOGO_BYTES: u64 = 256 << 10;
/// Endings of files of images, and their media types. A drawing (SVG) is none: it can hold scripts.
const IMAGES: [(&str, &str); 4] =
    [("png", "image/png"), ("jpg", "image/jpeg"), ("jpeg", "image/jpeg"), ("webp", "image/webp")];

/// Where pages are served, and by what name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// TCP address. `[::]:443` takes IPv4 too.
    pub listen: SocketAddr,
    /// PEM file with the portal's own certificate chain.
    pub certificate: PathBuf,
    /// PEM file with its private key, which is not the gateway's.
    pub key: PathBuf,
    /// Whether the gateway makes the key, and orders the certificate from the authority of
    /// `[acme]`.
    pub acme: bool,
    /// The name of the service on each page.
    pub name: String,
    pub logo: Option<LogoFile>,
    /// Where browsers reach the pages, without a path.
    pub url: Option<HttpsUrl>,
    /// Whether browsers are to reach hosts below the one in `url` by TLS alone, too.
    pub hsts_subdomains: bool,
    /// Whether clients without a browser get short codes.
    pub short_codes: bool,
    /// Groups that have the pages of the help desk and of administrators.
    pub desk: Desk,
    /// Clients' TCP connections that carry datagrams, at most; 0 is none.
    pub relays: u32,
    /// Where the name in `url` leads, for devices that reach nothing else; empty if that is at any
    /// address of the machine.
    pub addresses: Vec<IpAddr>,
    /// Networks of the login pages of OpenID providers, which devices reach that reach nothing
    /// else.
    pub provider_networks: Vec<IpNet>,
}

/// A file with an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogoFile {
    pub path: PathBuf,
    pub media_type: &'static str,
}

impl Portal {
    /// Where browsers reach the pages on this machine: at `listen`, or at the other side of a proxy
    /// that is in front of it here.
    #[must_use]
    pub fn front(&self) -> SocketAddr {
        if self.listen.ip().to_canonical().is_loopback() {
            (Ipv6Addr::UNSPECIFIED, self.port()).into()
        } else {
            self.listen
        }
    }

    /// The port in the address of the pages.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.url.as_ref().map_or(self.listen.port(), HttpsUrl::port)
    }
}

/// Reads the section; `None` if the portal is not switched on.
pub(super) fn portal(
    s: &mut Section<'_>,
    p: &mut Problems,
    base: &Path,
    config: &ServerConfig,
    has_acme: bool,
) -> Option<Portal> {
    let enabled = s.flag(p, "enabled", false);
    let listen = s.parsed::<SocketAddr>(p, "listen", "one address with a port such as \"[::]:443\"");
    let acme = s.flag(p, "acme", false);
    let files = ["certificate", "key"].map(|key| path(s, p, key, base));
    let name = s.text(p, "name");
    let logo = path(s, p, "logo", base);
    let url = s.parsed::<HttpsUrl>(p, "url", "the address of the pages such as \"https://vpn.uni.example\"");
    if url.as_ref().is_some_and(|url| !url.is_bare()) {
        let message = "'url' in [portal] has a name and perhaps a port, and nothing behind them";
        s.problem(p, "url", message.to_owned());
    }
    let hsts_subdomains = s.flag(p, "hsts_subdomains", false);
    let short_codes = s.flag(p, "short_codes", false);
    let desk = desk(s, p, config);
    if let Some(name) = &name
        && (name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control))
    {
        s.problem(p, "name", format!("'name' in [portal] needs 1 to {MAX_NAME} characters on one line"));
    }
    let logo = logo.and_then(|path| {
        let image = media_type(&path).map(|media_type| LogoFile { path, media_type });
        if image.is_none() {
            let message = "'logo' in [portal] must be a PNG, JPEG or WebP file, as its name's ending says";
            s.problem(p, "logo", message.to_owned());
        }
        image
    });
    let relays = s.number(p, "relays", 0..=MAX_RELAYS, 0) as u32;
    let addresses = s.list(p, "addresses", "an address such as \"192.0.2.1\"");
    let provider_networks = provider_networks(s, p);
    if !enabled {
        return None;
    }
    if acme {
        order_conflicts(s, p, url.as_ref(), has_acme);
    } else if files.iter().any(Option::is_none) {
        for key in ["certificate", "key"].into_iter().filter(|key| !s.has(key)) {
            let hint = "the portal needs a separate certificate and key, in PEM files; or write acme = true";
            s.missing(p, key, hint);
        }
    }
    let [certificate, key] = if acme { ORDERED.map(|name| Some(base.join(name))) } else { files };
    let listen = listen.unwrap_or_else(|| SocketAddr::from((Ipv6Addr::UNSPECIFIED, HTTPS_PORT)));
    let portal = Portal {
        addresses: addresses.unwrap_or_else(|| {
            let address = listen.ip().to_canonical();
            let is_any = address.is_unspecified() || address.is_loopback();
            if is_any { Vec::new() } else { vec![address] }
        }),
        listen,
        certificate: certificate?,
        key: key?,
        acme,
        name: name.unwrap_or_else(|| "VPN".to_owned()),
        logo,
        url,
        hsts_subdomains,
        short_codes,
        desk,
        relays,
        provider_networks,
    };
    conflicts(s, p, &portal, config);
    Some(portal)
}

fn provider_networks(s: &mut Section<'_>, p: &mut Problems) -> Vec<IpNet> {
    let networks: Vec<IpNet> = s.list(p, "provider_networks", NETWORK).unwrap_or_default();
    if let Some(all) = networks.iter().find(|network| network.prefix_len() == 0) {
        let message = format!(
            "'provider_networks' in [portal] has {all}, which is everywhere: name the networks of the login pages alone, since devices whose session is over reach them"
        );
        s.problem(p, "provider_networks", message);
    }
    networks
}

impl Portal {
    /// The name of an ordered certificate.
    #[must_use]
    pub fn ordered_name(&self) -> Option<&str> {
        let host = self.url.as_ref().filter(|_| self.acme)?.host();
        Some(host.strip_suffix('.').unwrap_or(host))
    }

    /// Whether challenges of this authority arrive at the portal's port, so that it answers them.
    #[must_use]
    pub fn answers_challenges(&self, acme: &Acme) -> bool {
        acme.challenge == AcmeChallenge::TlsAlpn01
            && acme.listen.port() == self.listen.port()
            && overlap(acme.listen.ip(), self.listen.ip())
    }
}

/// Whether a socket at one of the addresses takes connections to the other.
fn overlap(one: IpAddr, other: IpAddr) -> bool {
    one == other || one.is_unspecified() || other.is_unspecified()
}

/// Finds what an ordered certificate contradicts or lacks.
fn order_conflicts(s: &Section<'_>, p: &mut Problems, url: Option<&HttpsUrl>, has_acme: bool) {
    for key in ["certificate", "key"].into_iter().filter(|key| s.has(key)) {
        let message = format!(
            "'{key}' in [portal] contradicts acme = true, with which the gateway makes the key and orders the certificate, in {} next to \
             this file: remove one of the two",
            ORDERED.join(" and ")
        );
        s.problem(p, key, message);
    }
    match url {
        Some(url) if url.host().parse::<DnsName>().is_err() || url.host().parse::<IpAddr>().is_ok() => {
            let message = format!(
                "'url' in [portal] names {}: with acme = true it needs a DNS name, for which the certificate is",
                url.host()
            );
            s.problem(p, "url", message);
        }
        None if !s.has("url") => {
            s.missing(
                p,
                "url",
                "with acme = true the certificate is for its name, as in url = \"https://vpn.uni.example\"",
            );
        }
        _ => {}
    }
    if !has_acme {
        let message = "'acme' in [portal] is true, and there is no [acme]: write that section, which names the authority";
        s.problem(p, "acme", message.to_owned());
    }
}

/// The key of the gateway or of one of its authorities that this key is as well, as it is called in
/// the configuration; the form of its file does not matter.
pub fn other_use(key: &PrivateKeyDer<'static>, tls: &Tls) -> Option<&'static str> {
    let own = public_key(key)?;
    let others = [
        ("key", Some(&tls.key)),
        ("ca_key", tls.ca_key.as_ref()),
        ("client_ca_key", tls.client_ca_key.as_ref()),
    ];
    let is_same = |path: &PathBuf| {
        // One that can't be read is judged elsewhere.
        let text = std::fs::read(path).map(Zeroizing::new).ok();
        let other = text.and_then(|text| vpnd_pki::tls::private_key(&text).ok());
        other.and_then(|other| public_key(&other)).is_some_and(|other| other == own)
    };
    others.into_iter().find(|(_, path)| path.is_some_and(is_same)).map(|(name, _)| name)
}

fn public_key(key: &PrivateKeyDer<'static>) -> Option<SubjectPublicKeyInfoDer<'static>> {
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(key).ok()?;
    Some(key.public_key()?.into_owned())
}

fn media_type(path: &Path) -> Option<&'static str> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    IMAGES.iter().find(|(known, _)| *known == ending).map(|(_, media_type)| *media_type)
}

/// Finds conflicts with the rest of the file.
fn conflicts(s: &Section<'_>, p: &mut Problems, portal: &Portal, config: &ServerConfig) {
    if portal.key == config.tls.key {
        let message =
            "'key' in [portal] is the gateway's own; make another, since a web server's key is worth less";
        s.problem(p, "key", message.to_owned());
    }
    let provider = config.sources.iter().find(|source| matches!(source.kind, SourceKind::Oidc(_)));
    if let (Some(source), None) = (provider, &portal.url) {
        let hint = format!(
            "write url = \"https://vpn.uni.example\", where the provider of the source '{}' sends browsers back to",
            source.name
        );
        s.missing(p, "url", &hint);
    }
    if portal.short_codes && portal.url.is_none() {
        let hint =
            "write url = \"https://vpn.uni.example\", where people type the short codes of their devices";
        s.missing(p, "url", hint);
    }
    let port = portal.listen.port();
    if port == 0 {
        let message = "'listen' in [portal] needs a port from 1 to 65535, such as 443";
        s.problem(p, "listen", message.to_owned());
    }
    let has_port = |other: SocketAddr| other.port() == port && overlap(other.ip(), portal.listen.ip());
    if config.admin.metrics.is_some_and(has_port) {
        s.problem(
            p,
            "listen",
            format!("'listen' in [portal] is port {port}, which 'metrics' in [admin] has"),
        );
    }
    if config.acme.as_ref().is_some_and(|acme| has_port(acme.listen) && !portal.answers_challenges(acme)) {
        let message = format!(
            "'listen' in [portal] is port {port}, which [acme] needs for http-01; pages answer tls-alpn-01 alone"
        );
        s.problem(p, "listen", message);
    }
    if config.nat.blocks.as_ref().is_some_and(|blocks| (blocks.ports.0..=blocks.ports.1).contains(&port)) {
        let message = format!(
            "'listen' in [portal] is port {port}, which is one of 'ports' in [nat]: a client could take packets that are meant for the portal"
        );
        s.problem(p, "listen", message);
    }
}

#[cfg(test)]
mod tests {
    use crate::ServerConfig;
    use crate::testing::{LEAST, smallest};
    use std::path::Path;

    fn problems(section: &str) -> String {
        let text = format!("{LEAST}{section}");
        let parsed = ServerConfig::parse(&text, "server.toml", Path::new("/etc/vpnd"));
        parsed.map(|_| String::new()).unwrap_or_else(|invalid| invalid.to_string())
    }

    #[test]
    fn the_portal_is_off_by_default() {
        assert_eq!(smallest("").portal, None);
        assert_eq!(smallest("[portal]\ncertificate = 'p.pem'\nkey = 'p-key.pem'\n").portal, None);
        let portal = smallest("[portal]\nenabled = true\ncertificate = 'p.pem'\nkey = 'p-key.pem'\n").portal;
        let portal = portal.unwrap();
        assert_eq!((portal.listen.to_string().as_str(), portal.name.as_str()), ("[::]:443", "VPN"));
        assert!(problems("[portal]\nenabled = true\n").contains("needs the key 'certificate'"));
    }

    const ACME: &str = "[acme]\ndirectory = 'https://a.example/d'\nterms_of_service_agreed = true\n";

    #[test]
    fn an_ordered_certificate_contradicts_files_and_needs_a_name_and_an_authority() {
        let on = "[portal]\nenabled = true\nacme = true\n";
        let url = "url = 'https://vpn.uni.example:8443'\n";
        // The line of a problem: those of LEAST are before.
        let line = |text: &str| {
            format!(
                "server.toml:{}: ",
                LEAST.lines().count() + 1 + on.lines().position(|line| line == text).unwrap_or(3)
            )
        };
        let portal = smallest(&format!("{on}{url}{ACME}")).portal.unwrap();
        assert_eq!(portal.ordered_name(), Some("vpn.uni.example"));
        assert_eq!(portal.certificate, Path::new("/etc/vpnd/portal.pem"));
        assert_eq!(portal.key, Path::new("/etc/vpnd/portal-key.pem"));
        for key in ["certificate", "key"] {
            let found = problems(&format!("{on}{key} = 'p.pem'\n{url}{ACME}"));
            let message = format!("{}'{key}' in [portal] contradicts acme = true", line("next"));
            assert!(found.contains(&message) && found.lines().count() == 1, "{found}");
        }
        let found = problems(&format!("{on}{ACME}"));
        assert!(found.contains(&format!("{}[portal] needs the key 'url'", line("[portal]"))), "{found}");
        for address in ["192.0.2.1", "[2001:db8::1]"] {
            let found = problems(&format!("{on}url = 'https://{address}'\n{ACME}"));
            assert!(found.contains(&line("next")) && found.contains("needs a DNS name"), "{found}");
        }
        let found = problems(&format!("{on}{url}"));
        assert!(found.contains(&format!("{}'acme' in [portal]", line("acme = true"))), "{found}");
        // The tunnel's own certificate is ordered where it has names.
        let without =
            ACME.replace("[acme]", "[portal]\nenabled = true\ncertificate = 'p'\nkey = 'k'\n[acme]");
        assert!(problems(&without).contains("[acme] needs the key 'names'"));
        // Switched off, it contradicts nothing.
        assert_eq!(smallest("[portal]\nacme = true\ncertificate = 'p.pem'\n").portal, None);
    }

    #[test]
    fn challenges_at_the_port_of_the_pages_are_answered_there() {
        let answers = |listen: &str, acme: &str| {
            let text = format!(
                "[portal]\nenabled = true\nacme = true\nurl = 'https://a.example'\nlisten = '{listen}'\n{ACME}{acme}"
            );
            let config = smallest(&text);
            config.portal.unwrap().answers_challenges(&config.acme.unwrap())
        };
        assert!(answers("[::]:443", "") && answers("192.0.2.1:443", ""));
        assert!(!answers("[::]:8443", "") && answers("[::]:8443", "listen = '[::]:8443'\n"));
        assert!(!answers("[::]:443", "challenge = 'http-01'\n"));
        assert!(!answers("192.0.2.1:443", "listen = '192.0.2.2:443'\n"));
    }

    #[test]
    fn networks_of_providers_are_never_everywhere() {
        let named = |networks: &str| {
            problems(&format!(
                "[portal]\nenabled = true\ncertificate = 'p.pem'\nkey = 'p.key'\nprovider_networks = {networks}\n"
            ))
        };
        assert!(named("['198.51.100.16/28', '::/0']").contains("::/0, which is everywhere"));
        assert!(named("['198.51.100.16/28', '2001:db8::/64']").is_empty());
    }

    #[test]
    fn short_codes_are_off_and_need_an_address_of_the_pages() {
        let on = "[portal]\nenabled = true\ncertificate = 'p.pem'\nkey = 'k'\n";
        assert!(!smallest(on).portal.unwrap().short_codes);
        let codes = format!("{on}short_codes = true\n");
        assert!(problems(&codes).contains("needs the key 'url'"), "{}", problems(&codes));
        let portal = smallest(&format!("{codes}url = 'https://vpn.uni.example'\n")).portal.unwrap();
        assert!(portal.short_codes);
    }

    #[test]
    fn key_and_port_of_the_portal_are_not_shared() {
        let on = "[portal]\nenabled = true\ncertificate = 'p.pem'\n";
        assert!(problems(&format!("{on}key = 'server-key.pem'\n")).contains("the gateway's own"));
        let acme = "[acme]\ndirectory = 'https://a.example/d'\nnames = ['a.example']\nterms_of_service_agreed = true\n";
        assert!(problems(&format!("{on}key = 'k'\n{acme}")).is_empty());
        let http = format!("{on}key = 'k'\n{acme}challenge = 'http-01'\n");
        assert!(problems(&http).is_empty());
        assert!(problems(&format!("{http}listen = '[::]:443'\n")).contains("[acme] needs for http-01"));
        let at = |listen: &str, rest: &str| problems(&format!("{on}key = 'k'\nlisten = '{listen}'\n{rest}"));
        assert!(at("[::]:0", "").contains("from 1 to 65535"));
        let metrics = "[admin]\nmetrics = '127.0.0.1:9586'\n";
        assert!(at("[::]:9586", metrics).contains("'metrics' in [admin]"));
        assert!(at("192.0.2.1:9586", metrics).is_empty() && at("[::]:443", metrics).is_empty());
        let nat = "[nat]\nmode = 'nftables'\naddresses = ['192.0.2.1']\n";
        let is_named = |listen: &str| at(listen, nat).contains("which is one of 'ports' in [nat]");
        assert!(is_named("[::]:10443") && !is_named("[::]:443"));
        assert!(problems(&format!("{on}key = 'k'\nlogo = 'a.svg'\n")).contains("PNG, JPEG or WebP"));
        assert!(problems(&format!("{on}key = 'k'\nname = ''\n")).contains("'name' in [portal]"));
    }
}
