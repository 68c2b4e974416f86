//! `[[source]]` of the kind "radius": how its servers are asked, and where sessions are accounted
//! for.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::{MAX_SERVERS, RADSEC_PORT, Scheme, SecretPlace, SourceServer, Word, secret};
use crate::document::{Log as Problems, Section};

/// The longest wait for a person who approves a login elsewhere, seconds: a login takes 120 s at
/// most (PROTOCOL §4.2).
const MAX_PUSH_S: u64 = 110;
const ACCOUNTING_PORT: u16 = 1813;

/// How a RADIUS server is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Radius {
    pub transport: Transport,
    /// How the gateway names itself.
    pub nas_identifier: String,
    /// Attributes whose values are groups.
    pub group_attributes: Vec<RadiusAttribute>,
    /// Logins at most that wait for a person: to answer a challenge, or to approve a request
    /// elsewhere.
    pub max_waiting: usize,
    /// Limit for a reply while a person approves the request on another device; `None` if the
    /// server never waits for that.
    pub push: Option<Duration>,
    /// `None` if sessions are not accounted for.
    pub accounting: Option<Accounting>,
    /// `None` if no server may ask about sessions.
    pub dynamic: Option<DynamicAuthorization>,
}

/// How packets get to the servers of a source, those for accounting among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By UDP, with a shared secret.
    Udp(SecretPlace),
    /// In TLS (RFC 6614).
    Tls(RadiusTls),
}

/// The certificates of RADIUS in TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RadiusTls {
    /// PEM file with the CA of the servers' certificates; `None` takes the system's.
    pub ca: Option<PathBuf>,
    /// The gateway's own, for servers that require one: a PEM file with the chain, and the key.
    pub identity: Option<(PathBuf, SecretPlace)>,
}

/// Which servers may end sessions of the source and change users' groups (RFC 5176), and where they
/// ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicAuthorization {
    pub listen: SocketAddr,
    pub clients: Vec<IpAddr>,
    pub secret: SecretPlace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RadiusAttribute {
    FilterId,
    Class,
}

/// Where and how often the sessions of a source are accounted for (RFC 2866).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accounting {
    /// In the order in which they are tried.
    pub servers: Vec<SourceServer>,
    /// Time between two records of a session that goes on, zero for none; `None` leaves it to the
    /// server.
    pub interim: Option<Duration>,
}

impl Radius {
    /// The certificates, if packets go in TLS.
    #[must_use]
    pub fn tls(&self) -> Option<&RadiusTls> {
        match &self.transport {
            Transport::Udp(_) => None,
            Transport::Tls(tls) => Some(tls),
        }
    }
}

/// Reads one with these servers.
pub(super) fn read(
    s: &mut Section<'_>,
    p: &mut Problems,
    base: &Path,
    servers: &[SourceServer],
) -> Option<Radius> {
    let is_tls = servers.iter().any(|server| server.scheme == Scheme::Radsec);
    if is_tls && servers.iter().any(|server| server.scheme != Scheme::Radsec) {
        let reason = "a source has radius:// or radsec:// servers, not both: passwords would leave TLS as soon as a server fails";
        s.problem(p, "servers", reason.to_owned());
    }
    let transport = transport(s, p, base, is_tls);
    let nas_identifier = s.parsed::<Word>(p, "nas_identifier", "1 to 32 letters, digits, '.', '_' and '-'");
    let names = "\"Filter-Id\" or \"Class\"";
    let group_attributes = s.list::<RadiusAttribute>(p, "group_attributes", names);
    let push = s.flag(p, "push", false);
    let push_timeout_s = s.number(p, "push_timeout_s", 5..=MAX_PUSH_S, 45);
    if s.has("push_timeout_s") && !push {
        s.problem(p, "push_timeout_s", "it counts with push = true alone".to_owned());
    }
    Some(Radius {
        transport: transport?,
        nas_identifier: nas_identifier.map_or_else(|| "vpnd".to_owned(), |word| word.0),
        group_attributes: group_attributes.unwrap_or_else(|| vec![RadiusAttribute::FilterId]),
        max_waiting: s.number(p, "max_waiting", 1..=256, 64) as usize,
        push: push.then_some(Duration::from_secs(push_timeout_s)),
        accounting: accounting(s, p, is_tls),
        dynamic: dynamic(s, p, base),
    })
}

fn transport(s: &mut Section<'_>, p: &mut Problems, base: &Path, is_tls: bool) -> Option<Transport> {
    if is_tls && s.has("secret_file") {
        let reason = "radsec:// needs no secret, for TLS protects what is sent; take it out".to_owned();
        s.problem(p, "secret_file", reason);
    }
    for key in ["ca", "certificate", "key"] {
        if !is_tls && s.has(key) {
            s.problem(p, key, "it counts with radsec:// servers alone".to_owned());
        }
    }
    if !is_tls && !s.has("secret_file") {
        s.missing(
            p,
            "secret_file",
            "write secret_file = \"radius.secret\", a file of mode 600 with the shared secret",
        );
    }
    let ca = crate::read::path(s, p, "ca", base);
    let certificate = crate::read::path(s, p, "certificate", base);
    let (key, secret) = (secret(s, p, "key", base), secret(s, p, "secret_file", base));
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            let given = if s.has("certificate") { "certificate" } else { "key" };
            s.problem(p, given, "write 'certificate' and 'key' together, or neither".to_owned());
            None
        }
    };
    if is_tls { Some(Transport::Tls(RadiusTls { ca, identity })) } else { secret.map(Transport::Udp) }
}

fn accounting(s: &mut Section<'_>, p: &mut Problems, is_tls: bool) -> Option<Accounting> {
    let example = if is_tls {
        "a server such as \"radsec://radius.uni.example\", as in 'servers'"
    } else {
        "a server such as \"radius://radius.uni.example\", as in 'servers'"
    };
    let servers = s.list::<AccountingServer>(p, "accounting_servers", example);
    let is_given = s.has("interim_s");
    let interim_s = s.number(p, "interim_s", 0..=86_400, 600);
    let servers: Vec<_> = servers.unwrap_or_default().into_iter().map(|server| server.0).collect();
    if servers.iter().any(|server| (server.scheme == Scheme::Radsec) != is_tls) {
        s.problem(p, "accounting_servers", format!("write {example}"));
    }
    if servers.len() > MAX_SERVERS {
        s.problem(p, "accounting_servers", format!("a source has {MAX_SERVERS} servers at most"));
    }
    if is_given && servers.is_empty() {
        s.problem(p, "interim_s", "it counts with accounting_servers alone".to_owned());
    }
    let interim = is_given.then_some(Duration::from_secs(interim_s));
    (!servers.is_empty()).then_some(Accounting { servers, interim })
}

fn dynamic(s: &mut Section<'_>, p: &mut Problems, base: &Path) -> Option<DynamicAuthorization> {
    let is_wanted = ["coa_listen", "coa_clients", "coa_secret_file"].into_iter().any(|key| s.has(key));
    let listen = s.parsed::<SocketAddr>(p, "coa_listen", "an address with a port such as \"10.1.2.3:3799\"");
    let clients = s.list::<IpAddr>(p, "coa_clients", "an address such as \"10.1.2.4\"");
    let secret = secret(s, p, "coa_secret_file", base);
    let clients = clients.filter(|clients| !clients.is_empty());
    if clients.as_ref().is_some_and(|clients| clients.len() > MAX_SERVERS) {
        s.problem(p, "coa_clients", format!("a source has {MAX_SERVERS} of them at most"));
    }
    let (Some(listen), Some(clients), Some(secret)) = (listen, clients, secret) else {
        if is_wanted {
            let hint = "write coa_listen = \"10.1.2.3:3799\", coa_clients = [\"10.1.2.4\"] and \
                        coa_secret_file = \"coa.secret\" together";
            s.missing(p, "coa_listen", hint);
        }
        return None;
    };
    Some(DynamicAuthorization { listen, clients, secret })
}

/// A server whose port is another than for logins.
struct AccountingServer(SourceServer);

impl FromStr for AccountingServer {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let server = match text.split_once("://") {
            Some(("radius", place)) => SourceServer::at(place, ACCOUNTING_PORT, Scheme::Radius),
            // One port for everything.
            Some(("radsec", place)) => SourceServer::at(place, RADSEC_PORT, Scheme::Radsec),
            _ => Err(()),
        };
        server.map(Self)
    }
}

impl FromStr for RadiusAttribute {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "Filter-Id" => Ok(Self::FilterId),
            "Class" => Ok(Self::Class),
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Source, SourceKind};
    use super::*;
    use crate::ServerConfig;

    fn read(rest: &str) -> Result<Option<Accounting>, String> {
        Ok(parsed(rest)?[0].accounting().cloned())
    }

    fn parsed_text(rest: &str) -> String {
        format!(
            "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n[[source]]\nname = \"guests\"\n\
             kind = \"radius\"\nmatch = \"*\"\nservers = \"radius://10.0.0.1\"\nsecret_file = \"s\"\n{rest}"
        )
    }

    fn parsed(rest: &str) -> Result<Vec<Source>, String> {
        let config = ServerConfig::parse(&parsed_text(rest), "server.toml", Path::new("/"));
        config.map(|config| config.sources).map_err(|error| error.to_string())
    }

    #[test]
    fn servers_in_tls_are_read() {
        let sources = |servers: &str, rest: &str| {
            let text = parsed_text(rest).replace("\"radius://10.0.0.1\"\nsecret_file = \"s\"\n", servers);
            let config = ServerConfig::parse(&text, "server.toml", Path::new("/at"));
            config.map(|config| config.sources).map_err(|error| error.to_string())
        };
        let two = "[\"radsec://a.example\", \"radsec://[2001:db8::1]:99\"]\n";
        let rest = "ca = \"ca.pem\"\ncertificate = \"c.pem\"\nkey = \"credential:k\"\n\
                    accounting_servers = \"radsec://a.example\"\n";
        let source = sources(two, rest).unwrap().remove(0);
        assert_eq!(source.servers.iter().map(|server| server.port).collect::<Vec<_>>(), [RADSEC_PORT, 99]);
        let SourceKind::Radius(radius) = source.kind else { panic!("it is one") };
        let key = SecretPlace::Credential("k".to_owned());
        let tls = RadiusTls { ca: Some("/at/ca.pem".into()), identity: Some(("/at/c.pem".into(), key)) };
        assert_eq!(radius.transport, Transport::Tls(tls));
        assert_eq!(radius.accounting.unwrap().servers[0].port, RADSEC_PORT);
        for (servers, rest, problem) in [
            ("[\"radsec://a.example\", \"radius://a.example\"]\n", "", "not both"),
            (two, "secret_file = \"s\"\n", "needs no secret"),
            (two, "certificate = \"c.pem\"\n", "together"),
            (two, "accounting_servers = \"radius://a.example\"\n", "as in 'servers'"),
            ("\"radius://a.example\"\nsecret_file = \"s\"\n", "ca = \"ca.pem\"\n", "alone"),
            ("\"radius://a.example\"\n", "", "secret_file"),
        ] {
            let error = sources(servers, rest).expect_err(problem);
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn dynamic_authorization_clients_are_read() {
        let all = [
            "coa_listen = \"10.1.2.3:3799\"\n",
            "coa_clients = [\"10.1.2.4\", \"2001:db8::4\"]\n",
            "coa_secret_file = \"c\"\n",
        ];
        let dynamic = |text: &str| {
            let SourceKind::Radius(radius) = parsed(text)?.remove(0).kind else { panic!("it is one") };
            Ok::<_, String>(radius.dynamic)
        };
        assert_eq!(dynamic(""), Ok(None));
        assert_eq!(dynamic(&all.concat()).unwrap().unwrap().clients.len(), 2);
        for without in 0..all.len() {
            let rest: String = (0..all.len()).filter(|at| *at != without).map(|at| all[at]).collect();
            assert!(dynamic(&rest).unwrap_err().contains("together"), "{rest}");
        }
    }

    #[test]
    fn accounting_is_read() {
        assert_eq!(read(""), Ok(None));
        let found = read("accounting_servers = [\"radius://10.0.0.2\", \"radius://[2001:db8::1]:99\"]\n");
        let found = found.unwrap().unwrap();
        let ports: Vec<_> = found.servers.iter().map(|server| server.port).collect();
        assert_eq!((ports, found.interim), (vec![ACCOUNTING_PORT, 99], None));
        let never = read("accounting_servers = \"radius://a.example\"\ninterim_s = 0\n").unwrap().unwrap();
        assert_eq!(never.interim, Some(Duration::ZERO));
        for (text, problem) in [
            ("interim_s = 60\n", "accounting_servers alone"),
            ("accounting_servers = \"ldaps://a.example\"\n", "a server such as"),
            ("accounting_servers = \"radius://a.example\"\ninterim_s = 86401\n", "interim_s"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(problem), "{error}");
        }
    }
}
