//! The configuration of the gateway: `server.toml` as checked Rust values.
//!
//! Invariants: a [`ServerConfig`] has passed every check that needs nothing but its text, its
//! relative paths are resolved against the directory of the file, and units are in the types. This
//! module must not know how the gateway uses the values.
#![deny(unsafe_code)]
// A library in form only: its users are the daemon's other crates.
#![allow(missing_docs)]

pub mod access_profile;
pub mod acme;
mod audit;
pub mod certificate;
pub mod check;
pub mod database;
pub mod desk;
pub mod document;
pub mod endpoint;
pub mod factor;
mod fixed_address;
pub mod fleet;
pub mod https_url;
pub mod in_force;
pub mod ldap_filter;
pub mod local_ports;
mod owner;
pub mod policy;
pub mod pool;
mod port_blocks;
pub mod portal;
pub mod profile;
mod push;
pub mod rate;
mod read;
pub mod review;
pub mod revocation_cause;
mod rules;
pub mod secret_place;
pub mod source;
pub mod source_files;
pub mod source_tls;
pub mod standing;
pub mod user_name;
pub mod wireguard;

pub use read::{busy_poll, device_offload, suites};

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use vpnd_crypto::{Preference, Suite};

pub use vpnd_sys::logging::LogFormat;
use vpnd_sys::sandbox::SandboxMode;

pub use access_profile::{AccessProfile, AccessProfiles};
pub use acme::{Acme, AcmeChallenge};
pub use audit::{AuditPolicy, OuterAddresses, Retention};
pub use document::{Invalid, Places, Problem};
pub use portal::{LogoFile, Portal};
pub use push::Push;
pub use rules::{Action, Policy, PortRange, Protocol, Rule, Selector};
pub use source::Source;
pub use vpnd_pki::dns_name::DnsName;
pub use wireguard::{WireGuard, WireGuardProfile};

use database::StoreSettings;
use profile::ServerAddress;
use vpnd_sys::tun::TunOffloads;

/// Default path of the gateway's configuration.
pub const DEFAULT_CONFIG: &str = "/etc/vpnd/server.toml";
/// Default directory of journals: on a disk, for a change of a file outlives a restart of
/// the machine, and apart from the state directories, in which less privileged processes write.
pub const JOURNAL_DIRECTORY: &str = "/var/lib/vpnd-journal";
/// The name of the embedded store in a state directory.
pub const STORE_FILE_NAME: &str = "vpnd.db";
/// The smallest inner MTU: IPv6 (RFC 8200 section 5) needs it.
pub const MIN_MTU: u16 = 1280;
/// The largest inner MTU: what fits into one IPv4/UDP datagram with the data header and tag.
pub const MAX_MTU: u16 = 65_400;

/// An error in a configuration or a profile; nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("can't read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file has problems; all of them are listed.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub server: Server,
    pub store: StoreSettings,
    pub tls: Tls,
    pub tunnel: Tunnel,
    /// `[push]`
    pub push: Push,
    /// `[nat]`
    pub nat: Nat,
    /// `[policy]`
    pub policy: Policy,
    /// `[crypto]`
    pub crypto: Crypto,
    /// `[offload]`
    pub offload: Offload,
    /// `[limits]`
    pub limits: Limits,
    /// `[timeouts]`
    pub timeouts: Timeouts,
    /// `[admin]`
    pub admin: Admin,
    pub audit: AuditPolicy,
    /// `[process]`
    pub process: Process,
    /// `[log]`
    pub log: Log,
    /// `[fleet]`, if it is there.
    pub fleet: Option<fleet::Fleet>,
    /// `[acme]`, if it is there.
    pub acme: Option<Acme>,
    /// `[wireguard]`, if it is enabled.
    pub wireguard: Option<WireGuard>,
    /// `[portal]`, if it is switched on.
    pub portal: Option<Portal>,
    /// `[[source]]`
    pub sources: Vec<Source>,
    /// `[[profile]]`, or the one that is implied where there is none.
    pub profiles: AccessProfiles,
    /// The name of the file, as the user knows it.
    pub file: String,
    /// Lines of the keys in the file.
    pub places: Places,
}

/// `[server]`: the process and its sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Outer UDP address to listen on. `[::]:4433` takes IPv4 too.
    pub listen: SocketAddr,
    /// More UDP ports at which clients reach it.
    pub more_ports: Vec<u16>,
    /// Addresses of the gateway in the profiles of its clients, if they are not those of its
    /// certificate.
    pub addresses: Vec<ServerAddress>,
    /// Number of shards; 0 means one per CPU.
    pub shards: usize,
    /// Priority of the shards over other work of the machine, 0 to 20: the negative of their nice
    /// value.
    pub priority: u8,
    /// Time for which a shard looks for the next packet before it sleeps; 0 is never.
    pub busy_poll: Duration,
    /// The directory of the user store and other state.
    pub state_dir: PathBuf,
    /// The directory of the undo journal, which no process but the first may reach.
    pub journal_dir: PathBuf,
}

impl Server {
    /// The gateway at these names, in the order in which clients try them: at the port of `listen`
    /// everywhere, then at the others.
    pub fn reached_at(&self, names: Vec<String>) -> Vec<ServerAddress> {
        let first: Vec<ServerAddress> = match self.addresses.as_slice() {
            [] => names.into_iter().map(|host| ServerAddress { host, port: self.listen.port() }).collect(),
            addresses => addresses.to_vec(),
        };
        let mut all = first.clone();
        for port in &self.more_ports {
            for ServerAddress { host, .. } in &first {
                let address = ServerAddress { host: host.clone(), port: *port };
                if !all.contains(&address) {
                    all.push(address);
                }
            }
        }
        all.truncate(vpnd_proto::control::MAX_GATEWAY_ADDRESSES);
        all
    }

    /// The file of the embedded store.
    pub fn store_path(&self) -> PathBuf {
        self.state_dir.join(crate::STORE_FILE_NAME)
    }
}

/// `[tls]`: the gateway's certificate, and its demands on clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// PEM file with the gateway's certificate chain.
    pub certificate: PathBuf,
    /// PEM file with its private key.
    pub key: PathBuf,
    /// PEM file with the CA of the gateway's own certificate; `None` if that is the clients' CA, or
    /// a public one.
    pub ca: Option<PathBuf>,
    /// PEM file with that CA's key. Where it exists, the privileged process renews the gateway's
    /// certificate with it.
    pub ca_key: Option<PathBuf>,
    /// Validity of a renewed certificate, days.
    pub certificate_days: u32,
    /// PEM file with the CA that signs client certificates; without it none are asked for.
    pub client_ca: Option<PathBuf>,
    /// File with that CA's lists of revoked certificates, if it publishes some.
    pub client_crl: Option<PathBuf>,
    /// PEM file with that CA's key, for `vpnd user add --client-cert`.
    pub client_ca_key: Option<PathBuf>,
    /// Whether every client must show a certificate.
    pub require_client_certificate: bool,
}

impl Tls {
    /// The CA that may have signed the gateway's certificate, and its key.
    pub fn authority(&self) -> (Option<&Path>, Option<&Path>) {
        match &self.ca {
            Some(ca) => (Some(ca), self.ca_key.as_deref()),
            None => (self.client_ca.as_deref(), self.ca_key.as_deref().or(self.client_ca_key.as_deref())),
        }
    }
}

/// `[tunnel]`: the TUN device and the inner addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tunnel {
    /// Name of the TUN device, at most 15 bytes.
    pub name: String,
    /// MTU of the TUN device, bytes.
    pub mtu: u16,
    /// Whether outer datagrams show the DSCP of the packets inside.
    pub copy_dscp: bool,
    /// Inner IPv4 addresses; the gateway takes the first host address.
    pub pool_v4: Option<Ipv4Net>,
    /// Inner IPv6 addresses; the gateway takes the first host address.
    pub pool_v6: Option<Ipv6Net>,
}

impl Tunnel {
    /// The gateway's own inner IPv4 address: the first host address of the pool.
    pub fn gateway_v4(&self) -> Option<Ipv4Addr> {
        self.pool_v4.map(|pool| Ipv4Addr::from(u32::from(pool.network()) + 1))
    }

    /// The gateway's own inner IPv6 address: the first host address of the pool.
    pub fn gateway_v6(&self) -> Option<Ipv6Addr> {
        self.pool_v6.map(|pool| Ipv6Addr::from(u128::from(pool.network()) + 1))
    }

    /// Both pools.
    pub fn pools(&self) -> impl Iterator<Item = IpNet> {
        self.pool_v4.map(IpNet::V4).into_iter().chain(self.pool_v6.map(IpNet::V6))
    }
}

/// `[nat]`: how inner packets get to the campus networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nat {
    pub mode: NatMode,
    /// The only interface by which clients' packets leave and come back; `None` means any but the
    /// tunnel.
    pub outgoing_interface: Option<String>,
    /// Blocks of ports of public addresses, if there are some, in place of the gateway's own
    /// address.
    pub blocks: Option<vpnd_sys::port_blocks::PortBlocks>,
}

/// Source addresses of inner packets that leave the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatMode {
    /// Forwarding is switched on and an nftables table masquerades inner addresses.
    Nftables,
    /// Forwarding is switched on; the campus routes the pools back to the gateway.
    Route,
    /// The machine's forwarding is not touched.
    None,
}

/// `[crypto]`: suites and their implementation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crypto {
    /// Suites that the gateway offers, best first; empty means `auto`: by measured speed.
    pub suites: Vec<Suite>,
    /// The implementation; by default the fastest of each suite.
    pub backend: Preference,
}

/// `[offload]`: switches for kernel offloads. Each is also probed at start, and falls back by
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// Unfinished checksums on the TUN device; needed for `tso` and `uso`.
    pub tun: bool,
    /// TCP super-packets on the TUN device.
    pub tso: bool,
    /// UDP super-packets on the TUN device.
    pub uso: bool,
    /// Batches of outer datagrams in one send (`UDP_SEGMENT`).
    pub udp_gso: bool,
    /// Batches of outer datagrams in one receive (`UDP_GRO`).
    pub udp_gro: bool,
    /// Steering of datagrams to their shard by a BPF program in the kernel.
    pub steering: bool,
}

impl Default for Offload {
    fn default() -> Self {
        Self { tun: true, tso: true, uso: true, udp_gso: true, udp_gro: true, steering: true }
    }
}

impl Offload {
    /// Offloads to request from the TUN device.
    pub fn tun_offloads(&self) -> TunOffloads {
        TunOffloads { checksum: self.tun, tso4: self.tso, tso6: self.tso, tso_ecn: self.tso, uso: self.uso }
    }
}

/// `[limits]`: bounds on what clients can take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub max_sessions: usize,
    /// Live sessions of one user.
    pub max_sessions_per_user: usize,
    /// Connections of each inner address in the kernel's table; `None` is without a limit.
    pub max_connections_per_address: Option<NonZeroU32>,
    /// Logins of one user that are let in at once; after that one each 20 s.
    pub logins_per_user: u32,
    /// Connections that have not authenticated yet.
    pub max_handshakes: usize,
    /// New connections each second from one IPv4 address or IPv6 /64.
    pub handshakes_per_address_s: u32,
    /// Threads that check passwords; 0 means half of the CPUs.
    pub password_workers: usize,
    /// Logins that may wait for such a thread; more are refused.
    pub password_queue: usize,
    /// Rates of sessions and groups.
    pub rates: rate::RateLimits,
}

/// `[timeouts]`. A `None` means that there is no such limit (0 in the file).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// A session without inner traffic for this long ends.
    pub idle_timeout: Option<Duration>,
    /// A session whose client is silent for this long is dead.
    pub dead_peer_timeout: Duration,
    /// Interval of keep-alives of a silent end.
    pub keepalive: Duration,
    /// Age at which an epoch's keys are replaced.
    pub rekey_after: Duration,
    /// Time from the first datagram to a successful login.
    pub authentication_deadline: Duration,
    /// Longest life of a session; then the user must log in again.
    pub session_lifetime: Option<Duration>,
    /// Time after its last session at which a device loses its addresses to other devices.
    pub forget_device: Duration,
}

/// `[admin]`: control socket and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Unix socket of `vpnd status`, `kick` and `reload`.
    pub socket: PathBuf,
    /// Local address of the Prometheus metrics.
    pub metrics: Option<SocketAddr>,
    /// Whether they have series for each session, with its user's name.
    pub metrics_by_session: bool,
}

/// `[process]`: the privileges of the daemon's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The user that the network worker becomes; `None` takes `vpnd`, or else an unused
    /// number.
    pub user: Option<String>,
    pub sandbox: SandboxMode,
}

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// A level or a filter, such as `info` or `info,vpnd::control=debug`.
    pub level: String,
    pub format: LogFormat,
}

impl ServerConfig {
    /// Where clients with one address find the gateway: by a name if it has one, since that stays
    /// when addresses change. `names` are those of its certificate.
    pub fn preferred_address(&self, names: Vec<String>) -> Option<ServerAddress> {
        let mut all = self.server.reached_at(names);
        all.sort_by_key(|address| address.host.parse::<std::net::IpAddr>().is_ok());
        all.into_iter().next()
    }

    /// Where browsers reach the pages, if that is known.
    pub fn pages(&self) -> Option<&https_url::HttpsUrl> {
        self.portal.as_ref()?.url.as_ref()
    }

    /// Reads and parses the file at `path`. Its relative paths are relative to the directory it is
    /// in.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = read_text(path)?;
        let base = vpnd_sys::secret_file::parent(path);
        Ok(Self::parse(&text, &path.display().to_string(), base)?)
    }

    /// Parses `text`; `file` names it in problems, `base` is where relative paths start.
    pub fn parse(text: &str, file: &str, base: &Path) -> Result<Self, Invalid> {
        read::server_config(text, file, base).map_err(|problems| Invalid::new(file, problems))
    }

    /// The network for a machine on which IPv6 is switched off: without its pool, and without name
    /// servers that are out of reach.
    #[must_use]
    pub fn without_ipv6(mut self) -> Self {
        self.tunnel.pool_v6 = None;
        self.push.dns.retain(IpAddr::is_ipv4);
        self.profiles = self.profiles.without_ipv6();
        self
    }

    /// Returns the configuration for a machine with these addresses: the portal is at all of them,
    /// unless the file says where.
    #[must_use]
    pub fn on_machine(mut self, addresses: &[IpAddr]) -> Self {
        if let Some(portal) = self.portal.as_mut().filter(|portal| portal.addresses.is_empty()) {
            portal.addresses = addresses.to_vec();
        }
        self
    }

    /// Whether users can be of a source with this name.
    fn has_source(&self, name: &str) -> bool {
        name == source::LOCAL || self.sources.iter().any(|source| source.name == name)
    }
}

/// Reads a whole text file, but never more than a document may have.
pub fn read_text(path: &Path) -> Result<String, ConfigError> {
    use std::io::Read as _;
    let read = || {
        let limit = document::MAX_DOCUMENT_BYTES as u64 + 1;
        let mut text = String::new();
        std::fs::File::open(path)?.take(limit).read_to_string(&mut text).map(|_| text)
    };
    read().map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
pub mod testing {
    use super::*;

    pub const LEAST: &str =
        "[tls]\ncertificate = 'server.pem'\nkey = 'server-key.pem'\n[tunnel]\npool_v4 = '10.86.0.0/16'\n";

    /// The smallest configuration, with `extra` after it.
    pub fn smallest(extra: &str) -> ServerConfig {
        let text = format!("{}{extra}", LEAST);
        ServerConfig::parse(&text, "server.toml", Path::new("/etc/vpnd")).expect("a good configuration")
    }
}

#[cfg(test)]
mod tests;
