//! `[[source]]`: directories, RADIUS servers and OpenID providers that know users besides the local
//! store.
//!
//! Invariants: each user name belongs to one source at most, the first whose rule it matches;
//! secrets are files that are named here, never values.

mod factors;
mod ldap;
mod oidc;
mod radius;
mod recheck;

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::document::{Log as Problems, Section};
use crate::factor::Factors;
pub use ldap::{Bind, GroupSearch, Ldap};
pub(crate) use oidc::send_back;
pub use oidc::{EMAIL, Oidc};
pub use radius::{Accounting, DynamicAuthorization, Radius, RadiusAttribute, RadiusTls, Transport};
pub use recheck::Recheck;

/// Sources at most, and servers of one.
const MAX_SOURCES: usize = 32;
const MAX_SERVERS: usize = 8;
/// Logins that wait for a source, for each that is checked there.
const QUEUE_FACTOR: usize = 8;
/// Limit for one login, over all servers of its source.
pub const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);
const LDAPS_PORT: u16 = 636;
const LDAP_PORT: u16 = 389;
const RADIUS_PORT: u16 = 1812;
const RADSEC_PORT: u16 = 2083;
/// The name of the users who are kept in the gateway's own store.
pub const LOCAL: &str = "local";
/// Begins the name of a secret that the service manager keeps (systemd.exec(5), "Credentials").
const CREDENTIAL: &str = "credential:";

/// One entry of `[[source]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Identifies this source's users in the store; must never change.
    pub name: String,
    pub rule: Rule,
    /// Whether the realm is a part of the name that the source gets.
    pub keep_realm: bool,
    /// In the order in which they are tried.
    pub servers: Vec<SourceServer>,
    /// Limit for the answer of one server.
    pub timeout: Duration,
    /// Logins that are checked at the same time.
    pub max_logins: usize,
    /// Groups of one user at most; who has more is refused.
    pub max_groups: usize,
    /// Whether its users set up one-time codes of the gateway themselves.
    pub own_codes: bool,
    /// Factors that each login that it accepts has proved besides the password.
    pub amr: Factors,
    /// Factors that the right answer to a challenge of its has proved.
    pub challenge_amr: Factors,
    pub kind: SourceKind,
}

/// Which user names belong to a source. Letters have no case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `ann@REALM`.
    Realm(String),
    /// A pattern with `*` for anything.
    Pattern(String),
}

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceServer {
    /// A name or an address.
    pub host: String,
    pub port: u16,
    pub scheme: Scheme,
}

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// LDAP, with TLS from the start.
    Ldaps,
    /// LDAP, with TLS by StartTLS.
    Ldap,
    /// RADIUS by UDP.
    Radius,
    /// RADIUS in TLS.
    Radsec,
    /// HTTP in TLS.
    Https,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceKind {
    Ldap(Box<Ldap>),
    Radius(Box<Radius>),
    Oidc(Box<Oidc>),
}

/// A word for the kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ldap,
    Radius,
    Oidc,
}

/// Where a secret is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretPlace {
    File(PathBuf),
    /// By its name among the service's credentials.
    Credential(String),
}

impl SecretPlace {
    /// The file, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Credential(_) => None,
        }
    }
}

impl Source {
    /// Limit for the replies of all servers to one request, and how long a person may take for it.
    #[must_use]
    pub fn reply_timeout(&self) -> Duration {
        self.push().map_or(LOGIN_TIMEOUT, |push| push.max(LOGIN_TIMEOUT))
    }

    /// Time that a server may wait for a person; `None` if it never does.
    #[must_use]
    pub fn push(&self) -> Option<Duration> {
        match &self.kind {
            SourceKind::Ldap(_) | SourceKind::Oidc(_) => None,
            SourceKind::Radius(radius) => radius.push,
        }
    }

    /// How users with sessions are asked about again; `None` if they are not.
    #[must_use]
    pub fn recheck(&self) -> Option<Recheck> {
        match &self.kind {
            SourceKind::Ldap(ldap) => ldap.recheck,
            SourceKind::Oidc(oidc) => oidc.recheck,
            SourceKind::Radius(_) => None,
        }
    }

    /// Where its sessions are accounted for; `None` if nowhere.
    #[must_use]
    pub fn accounting(&self) -> Option<&Accounting> {
        match &self.kind {
            SourceKind::Ldap(_) | SourceKind::Oidc(_) => None,
            SourceKind::Radius(radius) => radius.accounting.as_ref(),
        }
    }

    /// Which servers may ask about sessions; `None` if none.
    #[must_use]
    pub fn dynamic(&self) -> Option<&DynamicAuthorization> {
        match &self.kind {
            SourceKind::Ldap(_) | SourceKind::Oidc(_) => None,
            SourceKind::Radius(radius) => radius.dynamic.as_ref(),
        }
    }

    /// The name here of a user whom the source has under this one.
    #[must_use]
    pub fn full_name(&self, user: &str) -> String {
        match &self.rule {
            Rule::Realm(realm) if !self.keep_realm => format!("{user}@{realm}"),
            _ => user.to_owned(),
        }
    }

    /// Logins at most that wait for a person.
    #[must_use]
    pub fn max_waiting(&self) -> usize {
        match &self.kind {
            SourceKind::Ldap(_) | SourceKind::Oidc(_) => 0,
            SourceKind::Radius(radius) => radius.max_waiting,
        }
    }

    /// Logins at most that wait for others to be checked.
    #[must_use]
    pub const fn max_queued(&self) -> usize {
        self.max_logins * QUEUE_FACTOR
    }

    /// Logins at most that are under way at the same time, those among them that wait for a
    /// refusal's time.
    #[must_use]
    pub fn max_under_way(&self) -> usize {
        (self.max_logins + self.max_queued() + self.max_waiting()) * 2
    }

    /// The name for the source of a user who belongs to it.
    #[must_use]
    pub fn name_of(&self, user: &str) -> String {
        match &self.rule {
            Rule::Realm(realm) if !self.keep_realm => {
                user.get(..user.len().saturating_sub(realm.len() + 1)).unwrap_or_default().to_owned()
            }
            _ => user.to_owned(),
        }
    }
}

impl Rule {
    /// Whether this name, in small letters, belongs to the source.
    #[must_use]
    pub fn matches(&self, user: &str) -> bool {
        match self {
            Self::Realm(realm) => user
                .strip_suffix(realm.as_str())
                .and_then(|rest| rest.strip_suffix('@'))
                .is_some_and(|name| !name.is_empty()),
            Self::Pattern(pattern) => matches_pattern(pattern, user),
        }
    }
}

/// Whether `text` is `pattern`, in which `*` stands for anything.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

impl fmt::Display for SourceServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl FromStr for SourceServer {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.split_once("://") {
            Some(("ldaps", place)) => Self::at(place, LDAPS_PORT, Scheme::Ldaps),
            Some(("ldap", place)) => Self::at(place, LDAP_PORT, Scheme::Ldap),
            Some(("radius", place)) => Self::at(place, RADIUS_PORT, Scheme::Radius),
            Some(("radsec", place)) => Self::at(place, RADSEC_PORT, Scheme::Radsec),
            _ => Err(()),
        }
    }
}

impl SourceServer {
    /// The server at `HOST` or `HOST:PORT`.
    fn at(place: &str, port: u16, scheme: Scheme) -> Result<Self, ()> {
        let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, port),
            Some((host, after)) => (host, number(after.strip_prefix(':').ok_or(())?)?),
            None => match place.split_once(':') {
                Some((host, after)) => (host, number(after)?),
                None => (place, port),
            },
        };
        let good = host.parse::<IpAddr>().is_ok() || host.parse::<vpnd_pki::dns_name::DnsName>().is_ok();
        if good && port > 0 { Ok(Self { host: host.to_owned(), port, scheme }) } else { Err(()) }
    }
}

fn number(text: &str) -> Result<u16, ()> {
    text.parse().map_err(|_| ())
}

/// A word for names in the configuration: it shows in logs and the store.
struct Word(String);

impl FromStr for Word {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let good = (1..=32).contains(&text.len()) && text.bytes().all(is_allowed);
        if good { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

/// Reads all of them.
pub(super) fn sources(s: &mut Section<'_>, p: &mut Problems, base: &Path) -> Vec<Source> {
    let mut found: Vec<Source> = Vec::new();
    s.tables(p, "source", |s, p| {
        let source = source(s, p, base)?;
        if source.name == LOCAL || found.iter().any(|other| other.name == source.name) {
            let reason =
                format!("another source is named '{}' already; 'local' is the gateway's own", source.name);
            s.problem(p, "name", reason);
        }
        if found.iter().any(|other| other.rule == source.rule) {
            let reason =
                "another source has this rule already, and a login is tried at one source".to_owned();
            s.problem(p, if s.has("realm") { "realm" } else { "match" }, reason);
        }
        let listens = |source: &Source| source.dynamic().map(|dynamic| dynamic.listen);
        if listens(&source).is_some_and(|listen| found.iter().any(|other| listens(other) == Some(listen))) {
            s.problem(p, "coa_listen", "another source has this address already".to_owned());
        }
        if found.len() >= MAX_SOURCES {
            s.problem(p, "name", format!("there are more than {MAX_SOURCES} sources"));
        }
        found.push(source);
        Some(())
    });
    found
}

/// The time for one server, which leaves some of a login's for a second one.
fn timeout(s: &mut Section<'_>, p: &mut Problems, servers: usize) -> Duration {
    let all_ms = LOGIN_TIMEOUT.as_millis() as u64;
    let timeout_ms = s.number(p, "timeout_ms", 100..=all_ms, 3_000);
    if servers > 1 && timeout_ms > all_ms / 2 {
        let reason = format!(
            "a login ends after {all_ms} ms, so the second server would get no time: write {} at most",
            all_ms / 2
        );
        s.problem(p, "timeout_ms", reason);
    }
    Duration::from_millis(timeout_ms)
}

fn source(s: &mut Section<'_>, p: &mut Problems, base: &Path) -> Option<Source> {
    let word = "1 to 32 letters, digits, '.', '_' and '-'";
    if !s.has("name") {
        s.missing(
            p,
            "name",
            "write name = \"staff\"; users of the source are kept under it, so don't change it later",
        );
    }
    let name = s.parsed::<Word>(p, "name", word).map(|word| word.0);
    if !s.has("kind") {
        s.missing(p, "kind", "write kind = \"ldap\", kind = \"radius\" or kind = \"oidc\"");
    }
    let kinds = [("ldap", Kind::Ldap), ("radius", Kind::Radius), ("oidc", Kind::Oidc)];
    let kind = s.choice(p, "kind", &kinds).or_else(|| s.leave())?;
    let rule = rule(s, p);
    let keep_realm = s.flag(p, "keep_realm", false);
    let servers = if kind == Kind::Oidc { Vec::new() } else { servers(s, p, kind == Kind::Ldap) };
    let timeout = timeout(s, p, servers.len());
    let challenge_amr =
        if kind == Kind::Radius { factors::read(s, p, "challenge_amr") } else { Factors::default() };
    // Servers of the other kinds check second factors themselves.
    let own_codes = s.flag(p, "own_codes", kind == Kind::Ldap);
    let kind = match kind {
        Kind::Ldap => ldap::read(s, p, base).map(|ldap| SourceKind::Ldap(Box::new(ldap))),
        Kind::Radius => radius::read(s, p, base, &servers).map(|radius| SourceKind::Radius(Box::new(radius))),
        Kind::Oidc => oidc::read(s, p, base).map(|oidc| SourceKind::Oidc(Box::new(oidc))),
    };
    let servers = match &kind {
        Some(SourceKind::Oidc(oidc)) => vec![oidc.server()],
        _ => servers,
    };
    let source = Source {
        name: name?,
        rule: rule?,
        keep_realm,
        servers,
        timeout,
        max_logins: s.number(p, "max_logins", 1..=1_024, 32) as usize,
        max_groups: s.number(p, "max_groups", 1..=200, 100) as usize,
        own_codes,
        amr: factors::read(s, p, "amr"),
        challenge_amr,
        kind: kind?,
    };
    Some(source)
}

fn rule(s: &mut Section<'_>, p: &mut Problems) -> Option<Rule> {
    let realm = s.parsed::<vpnd_pki::dns_name::DnsName>(p, "realm", "a domain such as \"uni.example\"");
    let pattern = s.text(p, "match");
    match (realm, pattern) {
        (Some(realm), None) => Some(Rule::Realm(realm.as_str().to_ascii_lowercase())),
        (None, Some(pattern)) => Some(Rule::Pattern(pattern.to_ascii_lowercase())),
        (Some(_), Some(_)) => {
            s.problem(p, "match", "a source has a 'realm' or a 'match', not both".to_owned());
            None
        }
        (None, None) if s.has("realm") || s.has("match") => None,
        (None, None) => {
            s.missing(
                p,
                "realm",
                "write realm = \"uni.example\" for users such as ann@uni.example, or match = \"s*\"",
            );
            None
        }
    }
}

fn servers(s: &mut Section<'_>, p: &mut Problems, is_ldap: bool) -> Vec<SourceServer> {
    let example = if is_ldap {
        "\"ldaps://ldap.uni.example\", or \"ldap://…\" for StartTLS"
    } else {
        "\"radius://radius.uni.example\", or \"radsec://…\" for TLS"
    };
    if !s.has("servers") {
        s.missing(p, "servers", &format!("write servers = [\"…\"] with addresses such as {example}"));
    }
    let found = s.list(p, "servers", &format!("a server such as {example}")).unwrap_or_default();
    let is_right = |server: &SourceServer| matches!(server.scheme, Scheme::Ldaps | Scheme::Ldap) == is_ldap;
    if let Some(other) = found.iter().find(|server| !is_right(server)) {
        s.problem(p, "servers", format!("{other} is a server of another kind; write {example}"));
    }
    if found.len() > MAX_SERVERS {
        s.problem(p, "servers", format!("a source has {MAX_SERVERS} servers at most"));
    }
    found
}

pub(super) fn secret(
    s: &mut Section<'_>,
    p: &mut Problems,
    key: &'static str,
    base: &Path,
) -> Option<SecretPlace> {
    let text = s.text(p, key)?;
    Some(match text.strip_prefix(CREDENTIAL) {
        Some(name) => SecretPlace::Credential(name.to_owned()),
        None => SecretPlace::File(base.join(text)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServerConfig;

    const REST: &str = "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n";

    fn read(text: &str) -> Result<Vec<Source>, String> {
        let config = ServerConfig::parse(&format!("{REST}{text}"), "server.toml", Path::new("/etc/vpnd"));
        config.map(|config| config.sources).map_err(|error| error.to_string())
    }

    #[test]
    fn a_directory_and_a_radius_server_are_read() {
        let sources = read(
            "[[source]]\nname = \"staff\"\nkind = \"ldap\"\nrealm = \"Uni.example\"\nservers = [\"ldaps://a.uni.example\", \
             \"ldap://[2001:db8::1]:3890\"]\nbind_dn = \"cn=vpn\"\nbind_password_file = \"ldap.secret\"\nbase = \"dc=uni\"\n\
             [[source]]\nname = \"guests\"\nkind = \"radius\"\nmatch = \"g-*\"\nservers = \"radius://10.0.0.1\"\n\
             secret_file = \"credential:radius\"\n",
        );
        let sources = sources.unwrap();
        let [staff, guests] = &sources[..] else { panic!("{sources:?}") };
        assert!(staff.rule.matches("ann@uni.example") && !staff.rule.matches("@uni.example"));
        assert!(!staff.rule.matches("ann@evil-uni.example") && !staff.rule.matches("ann@uni.example.org"));
        assert_eq!(staff.name_of("ann@uni.example"), "ann");
        let second = &staff.servers[1];
        assert_eq!((second.host.as_str(), second.port, second.scheme), ("2001:db8::1", 3890, Scheme::Ldap));
        assert!(guests.rule.matches("g-bob") && !guests.rule.matches("bob-g-"));
        assert_eq!(guests.servers[0].port, RADIUS_PORT);
        let SourceKind::Radius(radius) = &guests.kind else { panic!("{guests:?}") };
        assert_eq!(radius.transport, Transport::Udp(SecretPlace::Credential("radius".to_owned())));
        assert_eq!((radius.push, guests.reply_timeout()), (None, LOGIN_TIMEOUT));
        let (every, grace) = (Duration::from_secs(900), Duration::from_secs(14_400));
        assert_eq!((staff.recheck(), guests.recheck()), (Some(Recheck { every, grace }), None));
        let push = "[[source]]\nname = \"guests\"\nkind = \"radius\"\nmatch = \"g-*\"\nservers = \"radius://10.0.0.1\"\n\
                    secret_file = \"s\"\n";
        let waiting = read(&format!("{push}push = true\n")).unwrap();
        assert_eq!((waiting[0].push(), waiting[0].max_waiting()), (Some(Duration::from_secs(45)), 64));
        let error = read(&format!("{push}push_timeout_s = 30\n")).unwrap_err();
        assert!(error.contains("push = true"), "{error}");
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let ldap = "bind_dn = \"cn=vpn\"\nbind_password_file = \"s\"\nbase = \"dc=uni\"\n";
        let start =
            |rest: &str| format!("[[source]]\nname = \"a\"\nkind = \"ldap\"\nrealm = \"a.example\"\n{rest}");
        for (text, problem) in [
            (start(&format!("servers = \"http://a\"\n{ldap}")), "a server such as"),
            (start(&format!("servers = \"radius://a\"\n{ldap}")), "another kind"),
            (start(&format!("servers = \"ldaps://a\"\nfilter = \"(uid=ann)\"\n{ldap}")), "{user}"),
            (start("servers = \"ldaps://a\"\nbase = \"b\"\n"), "bind_dn"),
            (start(&format!("servers = \"ldaps://a\"\nbind_password = \"x\"\n{ldap}")), "bind_password_file"),
            (start(&format!("servers = \"ldaps://a\"\nmatch = \"*\"\n{ldap}")), "not both"),
            (start(&format!("servers = \"ldaps://a\"\ntimeout_ms = 10001\n{ldap}")), "timeout_ms"),
            (start("servers = \"ldaps://a\"\nuser_dn = \"uid={user}\"\nrecheck_s = 60\n"), "bind_dn"),
            (
                start(&format!("servers = [\"ldaps://a\", \"ldaps://b\"]\ntimeout_ms = 5001\n{ldap}")),
                "the second server would get no time",
            ),
            (start(&format!("servers = \"ldaps://a\"\nnested_groups = true\n{ldap}")), "group_base"),
            (start("servers = \"ldaps://a\"\nbase = \"b\"\nnested_groups = true\n"), "group_base"),
            (
                start(&format!(
                    "servers = \"ldaps://a\"\ngroup_base = \"b\"\ngroup_filter = \"(memberUid={{user}})\"\n\
                     nested_groups = true\n{ldap}"
                )),
                "needs the place {dn}",
            ),
            ("[[source]]\nkind = \"ldap\"\n".to_owned(), "needs the key 'name'"),
        ] {
            let error = read(&text).expect_err(&text);
            assert!(error.contains(problem), "{text}\n{error}");
        }
        // Which keys there are depends on the kind.
        let error = read(&start(ldap).replace("\"ldap\"", "\"ad\"")).unwrap_err();
        let kinds = "'kind' in [source] must be one of 'ldap', 'radius', 'oidc', not \"ad\"";
        assert!(error.contains(kinds) && !error.contains("unknown key"), "{error}");
        // A key of one source is not one of another.
        let second = format!(
            "{}[[source]]\nname = \"b\"\nkind = \"ldap\"\nrealm = \"b.example\"\n{ldap}",
            start(&format!("servers = \"ldaps://a\"\n{ldap}"))
        );
        let error = read(&second).unwrap_err();
        assert!(error.contains("needs the key 'servers'"), "{error}");
        let twice = start(&format!("servers = \"ldaps://a\"\n{ldap}")).repeat(2);
        let error = read(&twice).unwrap_err();
        assert!(error.contains("is named 'a' already") && error.contains("has this rule already"), "{error}");
    }

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "acb", false),
            ("aa*aa", "aaa", false),
            ("*@x", "ann@x", true),
            ("ann", "anna", false),
            ("a*b*c", "a1b2c", true),
        ] {
            assert_eq!(matches_pattern(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn factors_of_a_source_are_those_that_its_administrator_names_and_an_approval() {
        let factors = |rest: &str| {
            let text = format!(
                "[[source]]\nname = \"guests\"\nkind = \"radius\"\nmatch = \"g-*\"\nservers = \"radius://10.0.0.1\"\n\
                 secret_file = \"s\"\n{rest}"
            );
            let source = read(&text).unwrap().remove(0);
            [false, true].map(|challenged| source.factors(challenged).to_string())
        };
        assert_eq!(factors(""), ["pwd", "pwd"], "nobody knows what a challenge was");
        assert_eq!(factors("challenge_amr = \"otp\"\n"), ["pwd", "pwd otp"]);
        assert_eq!(factors("amr = [\"otp\"]\n"), ["pwd otp", "pwd otp"]);
        assert_eq!(factors("push = true\n"), ["pwd mca", "pwd mca"]);
    }
}
