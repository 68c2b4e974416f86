//! Name servers and search domains of a tunnel: in systemd-resolved, in `resolv.conf`, or in both,
//! wherever names go.
//!
//! A change is first planned, which reads what is there now, then applied. The plan can be written
//! to a journal and undone by another process.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::tool::{Tool, ToolError};

mod file;
mod ways;

pub use file::{FileChange, FileState};
use ways::Ways;

const RESOLVECTL: Tool = Tool { program: "resolvectl", package: "systemd-resolved" };

/// The first words of a `resolv.conf` of ours; the rest of the line names the tunnel.
const HEADER: &str = "# Name servers of the vpnd tunnel ";

const SECOND_LINE: &str = "# The former ones come back when it ends (or with `vpnd cleanup`).";

/// Name servers beyond this number are ignored by the system's resolver (`MAXNS` in `resolv.h`).
const MAX_SERVERS: usize = 3;

/// Limit of servers, and of search domains; no source names more.
const MAX_GIVEN: usize = 32;

/// The longest `resolv.conf` that is taken for one, bytes.
const MAX_FILE_LEN: u64 = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsSettings {
    /// Name of the tunnel's interface.
    pub interface: String,
    /// The interface's number, where one of that name could be another program's.
    #[serde(default)]
    pub index: Option<u32>,
    pub servers: Vec<IpAddr>,
    /// Domains that are tried for names without a dot and, with systemd-resolved, asked of these
    /// servers.
    pub search: Vec<String>,
    /// Ask these servers about all names. Without systemd-resolved it is always so.
    pub all_names: bool,
}

impl DnsSettings {
    /// Checks that nothing else can be smuggled in.
    fn check(&self) -> Result<(), DnsError> {
        if self.servers.is_empty() {
            return Err(DnsError::NoServers);
        }
        if self.servers.len() > MAX_GIVEN || self.search.len() > MAX_GIVEN {
            return Err(DnsError::TooMany);
        }
        let name = &self.interface;
        if !crate::text::is_interface_name(name) || name.starts_with('-') {
            return Err(DnsError::BadInterface(name.clone()));
        }
        if let Some(bad) = self.servers.iter().find(|server| server.is_unspecified() || server.is_multicast())
        {
            return Err(DnsError::BadServer(*bad));
        }
        match self.search.iter().find(|domain| !is_domain(domain)) {
            Some(bad) => Err(DnsError::BadDomain(bad.clone())),
            None => Ok(()),
        }
    }
}

/// Paths and programs of the system's name server configuration.
#[derive(Debug, Clone)]
pub struct DnsSystem {
    pub resolv_conf: PathBuf,
    /// The directory of systemd-resolved's sockets and files, which it leaves behind when it is
    /// stopped.
    pub resolved_runtime: PathBuf,
    /// The sources of the C library.
    pub nsswitch: PathBuf,
    /// The servers that NetworkManager gives to a resolver of this machine.
    pub network_manager: PathBuf,
}

impl Default for DnsSystem {
    fn default() -> Self {
        Self {
            resolv_conf: "/etc/resolv.conf".into(),
            resolved_runtime: "/run/systemd/resolve".into(),
            nsswitch: "/etc/nsswitch.conf".into(),
            network_manager: "/run/NetworkManager/no-stub-resolv.conf".into(),
        }
    }
}

impl DnsSystem {
    /// The file in which systemd-resolved remembers the settings of the interface with this number.
    pub fn memory_of(&self, interface: u32) -> PathBuf {
        self.resolved_runtime.join(format!("netif/{interface}"))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    #[error("no name servers are given")]
    NoServers,
    #[error("more than {MAX_GIVEN} name servers or search domains are given")]
    TooMany,
    /// The interface's name could be taken for something else.
    #[error("`{0}` is not the name of a tunnel")]
    BadInterface(String),
    #[error("{0} can't be a name server")]
    BadServer(IpAddr),
    /// It would change something else than the resolver's configuration, or more of it.
    #[error("vpnd does not make this change to {path}: {reason}")]
    NotOurs { path: PathBuf, reason: &'static str },
    /// A domain could smuggle in other settings.
    #[error("`{0}` is not a domain name")]
    BadDomain(String),
    /// Another tunnel has replaced the file; both would put the other's servers back on their end.
    #[error("{path} belongs to the tunnel {interface} now: end that one first, or run `vpnd cleanup`")]
    HeldBy {
        path: PathBuf,
        /// The other tunnel.
        interface: String,
    },
    #[error("{0} is not a resolver configuration, which is a file of at most 64 KiB")]
    NotAFile(PathBuf),
    #[error("name servers can't be set: {0}")]
    Tool(#[from] ToolError),
    /// The file is immutable, or so is what it lies on.
    #[error(
        "{path} can't be changed: {source}. If it is to stay as it is (`lsattr {path}` shows the attribute i), connect with \
         --no-dns, or write dns = false in [tunnel] of the profile: then the machine goes on asking its own name servers"
    )]
    Immutable { path: PathBuf, source: io::Error },
    /// Another program was faster. What it has written stays.
    #[error("another program has just written {0}")]
    Changed(PathBuf),
    /// A file could not be read or written.
    #[error("{path} can't be {step}: {source}")]
    Os { path: PathBuf, step: &'static str, source: io::Error },
}

/// A planned change of name servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DnsChange {
    /// Through systemd-resolved, for one interface.
    Resolved(DnsSettings),
    /// In the resolver's configuration file.
    File(FileChange),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DnsUndone {
    /// The old state is back.
    Restored,
    /// The old state was back already.
    WasRestored,
    /// Someone else has changed it since; it stays.
    NotOurs,
}

/// A change of name servers that was made, as it is found later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsFound {
    InForce,
    /// Made for other settings: this one takes its place, and what comes back is the same.
    Outdated(DnsChange),
    /// Another program has replaced the file by this.
    Foreign(FileState),
}

impl DnsChange {
    /// Finds the ways that names take on this machine and reads what is there now: a change for
    /// each way that none of `made` goes.
    pub fn plan(settings: &DnsSettings, system: &DnsSystem, made: &[&Self]) -> Result<Vec<Self>, DnsError> {
        settings.check()?;
        let ways = Ways::find(system)?;
        let mut changes = Vec::new();
        if ways.resolved && !made.iter().any(|change| !change.is_file()) {
            changes.push(Self::Resolved(settings.clone()));
        }
        if ways.file && !made.iter().any(|change| change.is_file()) {
            let path = file::writable_place(&system.resolv_conf)?;
            let before = FileState::read(&path)?;
            // A link's text is that of the file behind it.
            let text = read_text(&system.resolv_conf)?;
            if let Some(interface) = holder(&text) {
                return Err(DnsError::HeldBy { path, interface: interface.to_owned() });
            }
            let after = resolv_conf(settings, &text);
            changes.push(Self::File(FileChange { path, before, after, replaces: None }));
        }
        Ok(changes)
    }

    /// Compares it with these settings, and with what is there now. What systemd-resolved has is
    /// not read.
    pub fn find(&self, settings: &DnsSettings) -> Result<DnsFound, DnsError> {
        settings.check()?;
        match self {
            Self::Resolved(now) if now == settings => Ok(DnsFound::InForce),
            Self::Resolved(_) => Ok(DnsFound::Outdated(Self::Resolved(settings.clone()))),
            Self::File(change) => change.find(settings),
        }
    }

    /// Whether it is one of `resolv.conf`.
    pub fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// Checks that it is a change of name servers, and of nothing else than what `system` is.
    pub fn check(&self, system: &DnsSystem) -> Result<(), DnsError> {
        match self {
            Self::Resolved(settings) => settings.check(),
            Self::File(change) => change.check(system),
        }
    }

    /// The interface whose settings it changes, if it is about one: its name, and its number if it
    /// is known.
    pub fn interface(&self) -> Option<(&str, Option<u32>)> {
        match self {
            Self::Resolved(settings) => Some((&settings.interface, settings.index)),
            Self::File(_) => None,
        }
    }

    /// Sets the name servers.
    ///
    /// # Errors
    /// [`DnsError`]; undoing puts back what was changed by then.
    pub async fn apply(&self) -> Result<(), DnsError> {
        match self {
            Self::Resolved(settings) => {
                for arguments in resolvectl_calls(settings) {
                    RESOLVECTL.run(&arguments, "").await?;
                }
                Ok(())
            }
            Self::File(change) => change.apply(),
        }
    }

    /// Puts the old name servers back, if the present ones are still ours.
    pub async fn undo(&self) -> Result<DnsUndone, DnsError> {
        match self {
            Self::Resolved(settings) => {
                // The settings of an interface go away with it. And the tool would start a
                // systemd-resolved that was stopped.
                let is_there = Path::new("/sys/class/net").join(&settings.interface).exists();
                if !is_there || !ways::resolved_runs(&DnsSystem::default()) {
                    return Ok(DnsUndone::WasRestored);
                }
                RESOLVECTL.run(&["revert".to_owned(), settings.interface.clone()], "").await?;
                Ok(DnsUndone::Restored)
            }
            Self::File(change) => change.undo(),
        }
    }
}

/// The name servers that the machine's resolver asks now, those behind systemd-resolved's own
/// address included while it runs.
pub fn servers_in_use(system: &DnsSystem) -> Vec<IpAddr> {
    let behind = ways::resolved_runs(system).then(|| system.resolved_runtime.join("resolv.conf"));
    let texts = [Some(system.resolv_conf.clone()), behind].into_iter().flatten();
    texts.filter_map(|path| read_text(&path).ok()).flat_map(|text| ways::servers_of(&text)).collect()
}

/// The name servers beyond this machine that its resolver asks now, link-local ones with the name
/// of their interface. Those of a resolver of this machine are known only where a file names them.
pub fn servers_beyond(system: &DnsSystem) -> Vec<(IpAddr, Option<String>)> {
    let behind = system.resolved_runtime.join("resolv.conf");
    let texts = [&system.resolv_conf, &behind, &system.network_manager];
    for path in texts {
        let servers = read_text(path).map(|text| ways::scoped_servers_of(&text)).unwrap_or_default();
        let beyond: Vec<_> = servers.into_iter().filter(|(address, _)| !address.is_loopback()).collect();
        if !beyond.is_empty() {
            return beyond;
        }
    }
    Vec::new()
}

/// Reads what systemd-resolved remembers of an interface's settings, to see whether they have
/// changed. `None` while it does not run.
pub fn resolved_memory(system: &DnsSystem, interface: u32) -> Option<Vec<u8>> {
    let memory = fs::read(system.memory_of(interface)).unwrap_or_default();
    ways::resolved_runs(system).then_some(memory)
}

/// The listing of the domains that systemd-resolved has for each link.
///
/// # Errors
/// If it does not run, or not answer.
pub async fn domains_in_resolved() -> Result<String, DnsError> {
    Ok(RESOLVECTL.read(&["domain".to_owned()], "").await?)
}

/// The arguments of each call of `resolvectl`.
fn resolvectl_calls(settings: &DnsSettings) -> Vec<Vec<String>> {
    let interface = &settings.interface;
    let start = |verb: &str| vec![verb.to_owned(), interface.clone()];
    let mut dns = start("dns");
    dns.extend(settings.servers.iter().map(ToString::to_string));
    let mut domain = start("domain");
    domain.extend(settings.search.iter().cloned());
    if settings.all_names {
        domain.push("~.".to_owned());
    }
    if domain.len() == 2 {
        // An empty word clears the list, where no word at all would only show it.
        domain.push(String::new());
    }
    let mut default_route = start("default-route");
    default_route.push(if settings.all_names { "yes" } else { "no" }.to_owned());
    vec![dns, domain, default_route]
}

/// The text of our `resolv.conf`; the resolver's options of the old one are kept.
fn resolv_conf(settings: &DnsSettings, old: &str) -> String {
    let mut lines = vec![format!("{HEADER}{}", settings.interface), SECOND_LINE.to_owned()];
    let servers = settings.servers.iter().take(MAX_SERVERS);
    lines.extend(servers.map(|server| format!("nameserver {server}")));
    if !settings.search.is_empty() {
        lines.push(format!("search {}", settings.search.join(" ")));
    }
    lines.extend(old.lines().filter(|line| is_option(line)).map(str::to_owned));
    lines.join("\n") + "\n"
}

/// Whether a line sets the resolver's options, and does nothing else.
fn is_option(line: &str) -> bool {
    line.starts_with("options") && !line.contains(|c: char| c.is_control() && c != '\t')
}

/// The tunnel that a text belongs to.
fn holder(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix(HEADER))
}

/// The tunnel whose text it is, if it begins as such a text does.
fn owner(text: &str) -> Option<&str> {
    text.lines().next()?.strip_prefix(HEADER)
}

/// Whether a text is one that [`resolv_conf`] writes.
fn is_ours(text: &str) -> bool {
    let Some((first, rest)) = text.split_once('\n') else { return false };
    let interface = first.strip_prefix(HEADER);
    let mut rest = rest.lines();
    interface.is_some_and(crate::text::is_interface_name)
        && rest.next() == Some(SECOND_LINE)
        && rest.all(|line| {
            let server =
                line.strip_prefix("nameserver ").is_some_and(|server| server.parse::<IpAddr>().is_ok());
            let search = line.strip_prefix("search ").is_some_and(|list| list.split(' ').all(is_domain));
            server || search || is_option(line)
        })
}

/// The text behind a path; none if there is no such file.
fn read_text(path: &Path) -> Result<String, DnsError> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(source) => return Err(DnsError::Os { path: path.to_owned(), step: "read", source }),
        Ok(metadata) if !metadata.is_file() || metadata.len() > MAX_FILE_LEN => {
            return Err(DnsError::NotAFile(path.to_owned()));
        }
        Ok(_) => {}
    }
    let bytes =
        fs::read(path).map_err(|source| DnsError::Os { path: path.to_owned(), step: "read", source })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether it is a host name as in RFC 1123, section 2.1, underscores allowed.
fn is_domain(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    name.len() <= 253 && name.strip_suffix('.').unwrap_or(name).split('.').all(label)
}

#[cfg(test)]
mod tests;
