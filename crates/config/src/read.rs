//! `server.toml`, section by section: which keys there are, their defaults and ranges.
//!
//! Invariants: every key of the file is named here once; a wrong value is reported and replaced by
//! its default, so that reading goes on, and the defaults are never used in that case because the
//! problems win. This module looks at nothing but the text.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use vpnd_sys::text::is_interface_name;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use vpnd_crypto::suite::UnknownSuite;
use vpnd_crypto::{Preference, Suite};
use vpnd_proto::control::{MAX_DNS, MAX_GATEWAY_ADDRESSES, MAX_ROUTES, MAX_SEARCH};

use crate::JOURNAL_DIRECTORY;
use vpnd_pki::authority::SERVER_DAYS;
use vpnd_sys::sandbox::SandboxMode;

use super::document::{Document, Log as Problems, Problem, Section};
use super::profile::{ADDRESS, KillSwitchMode, ServerAddress};
use super::rate;
use super::{
    Action, Admin, Crypto, Limits, Log, MAX_MTU, MIN_MTU, Nat, NatMode, Offload, Policy, Process, Protocol,
    Push, Rule, Selector, Server, ServerConfig, Timeouts, Tls, Tunnel,
};
use vpnd_sys::logging::LogFormat;

pub(super) const NETWORK: &str = "a network such as \"10.20.0.0/16\" or \"2001:db8::/32\"";
const SELECTOR: &str =
    "\"any\", \"clients\", \"group:NAME\", \"user:NAME\", an address or a network such as \"10.20.0.0/16\"";
/// Each is a name of the gateway more that clients try.
const MAX_MORE_PORTS: usize = 3;
const YEAR_S: u64 = 365 * 86_400;
/// `level` in `[log]` of a file without it.
pub(super) const DEFAULT_LOG_LEVEL: &str = "info";

/// Reads the whole file; relative paths start at `base`.
pub(super) fn server_config(text: &str, file: &str, base: &Path) -> Result<ServerConfig, Vec<Problem>> {
    let mut document = Document::parse(text)?;
    let server = document.section("server", |s, p| server(s, p, base));
    let socket = server.state_dir.join("admin.sock");
    let tunnel = document.section("tunnel", tunnel);
    let has_acme = document.top(|s, _| s.has("acme"));
    let for_portal = ["enabled", "acme"].iter().all(|key| document.is_set("portal", key));
    let mut config = ServerConfig {
        server,
        store: document.section("store", |s, p| super::database::store(s, p, base)),
        tls: document.section("tls", |s, p| tls(s, p, base)),
        push: document.section("push", |s, p| push_or(s, p, &Push::default(), &tunnel)),
        tunnel,
        nat: Nat { mode: NatMode::None, outgoing_interface: None, blocks: None },
        policy: document.section("policy", policy),
        crypto: document.section("crypto", crypto),
        offload: document.section("offload", offload),
        limits: document.section("limits", limits),
        timeouts: document.section("timeouts", timeouts),
        admin: document.section("admin", |s, p| admin(s, p, base, socket)),
        audit: document.section("audit", super::audit::audit),
        process: document.section("process", process),
        log: document.section("log", log),
        acme: document.section("acme", |s, p| super::acme::acme(s, p, base, for_portal)),
        fleet: document.section("fleet", super::fleet::fleet),
        wireguard: None,
        portal: None,
        sources: document.top(|s, p| super::source::sources(s, p, base)),
        profiles: super::AccessProfiles::default(),
        file: file.to_owned(),
        places: super::Places::default(),
    };
    config.nat = document.section("nat", |s, p| nat(s, p, &config));
    let (mtu, requires) = (config.tunnel.mtu, config.tls.require_client_certificate);
    config.wireguard = document.section("wireguard", |s, p| super::wireguard::wireguard(s, p, mtu, requires));
    config.portal = document.section("portal", |s, p| super::portal::portal(s, p, base, &config, has_acme));
    if let Some(pages) = config.pages().cloned() {
        super::source::send_back(&mut config.sources, &pages);
    }
    config.profiles = document.top(|s, p| super::access_profile::profiles(s, p, &config));
    let (problems, places) = document.finish();
    config.places = places;
    if problems.is_empty() { Ok(config) } else { Err(problems) }
}

fn server(s: &mut Section<'_>, p: &mut Problems, base: &Path) -> Server {
    let listen = s.parsed::<SocketAddr>(p, "listen", "one address with a port such as \"[::]:4433\"");
    let listen = listen.unwrap_or_else(|| SocketAddr::from(([0u16; 8], crate::profile::DEFAULT_PORT)));
    if listen.port() == 0 {
        s.problem(p, "listen", "'listen' in [server] needs a port from 1 to 65535, such as 4433".to_owned());
    }
    let addresses: Vec<ServerAddress> = s.list(p, "addresses", ADDRESS).unwrap_or_default();
    if addresses.len() > MAX_GATEWAY_ADDRESSES {
        let message = format!("'addresses' in [server] takes {MAX_GATEWAY_ADDRESSES} at most");
        s.problem(p, "addresses", message);
    }
    Server {
        listen,
        addresses,
        more_ports: more_ports(s, p, listen),
        shards: s.number(p, "shards", 0..=64, 0) as usize,
        priority: s.number(p, "priority", 0..=20, 10) as u8,
        busy_poll: busy_poll(s, p),
        state_dir: path(s, p, "state_dir", base).unwrap_or_else(|| base.join("state")),
        journal_dir: path(s, p, "journal_dir", base).unwrap_or_else(|| JOURNAL_DIRECTORY.into()),
    }
}

fn more_ports(s: &mut Section<'_>, p: &mut Problems, listen: SocketAddr) -> Vec<u16> {
    const KEY: &str = "more_ports";
    let ports: Vec<u16> = s.list(p, KEY, "a UDP port, as text, such as \"443\"").unwrap_or_default();
    at_most(s, p, KEY, ports.len(), MAX_MORE_PORTS);
    if ports.iter().any(|port| *port == 0 || *port == listen.port()) {
        let message = "'more_ports' in [server] takes ports from 1 to 65535, and not that of 'listen'";
        s.problem(p, KEY, message.to_owned());
    }
    ports
}

fn tls(s: &mut Section<'_>, p: &mut Problems, base: &Path) -> Tls {
    let mut file = |s: &mut Section<'_>, key: &'static str, example: &str| {
        let missing = !s.has(key);
        let value = path(s, p, key, base);
        if missing {
            s.missing(p, key, &format!("write {key} = \"{example}\", the file that 'vpnd init' makes"));
        }
        value.unwrap_or_default()
    };
    let certificate = file(s, "certificate", "server.pem");
    let key = file(s, "key", "server-key.pem");
    let tls = Tls {
        certificate,
        key,
        ca: path(s, p, "ca", base),
        ca_key: path(s, p, "ca_key", base),
        certificate_days: s.number(p, "certificate_days", 1..=825, u64::from(SERVER_DAYS)) as u32,
        client_ca: path(s, p, "client_ca", base),
        client_crl: path(s, p, "client_crl", base),
        client_ca_key: path(s, p, "client_ca_key", base),
        require_client_certificate: s.flag(p, "require_client_certificate", false),
    };
    if tls.require_client_certificate && tls.client_ca.is_none() {
        let message = "'require_client_certificate' in [tls] needs 'client_ca', the CA that signs them";
        s.problem(p, "require_client_certificate", message.to_owned());
    }
    if tls.client_crl.is_some() && tls.client_ca.is_none() {
        let message = "'client_crl' in [tls] needs 'client_ca', the CA whose list that is";
        s.problem(p, "client_crl", message.to_owned());
    }
    tls
}

fn tunnel(s: &mut Section<'_>, p: &mut Problems) -> Tunnel {
    let tunnel = Tunnel {
        name: interface(s, p, "name").unwrap_or_else(|| "vpnd0".to_owned()),
        mtu: s.number(p, "mtu", u64::from(MIN_MTU)..=u64::from(MAX_MTU), 1420) as u16,
        copy_dscp: s.flag(p, "copy_dscp", false),
        pool_v4: s.parsed::<Ipv4Net>(p, "pool_v4", "an IPv4 network such as \"10.86.0.0/16\""),
        pool_v6: s.parsed::<Ipv6Net>(p, "pool_v6", "an IPv6 network such as \"fd12:3456:789a::/64\""),
    };
    if !s.has("pool_v4") && !s.has("pool_v6") {
        s.missing(p, "pool_v4", "write pool_v4 = \"10.86.0.0/16\", or pool_v6, or both");
    }
    if let Some(pool) = tunnel.pool_v4 {
        pool_problems(s, p, "pool_v4", IpNet::V4(pool), 29);
    }
    if let Some(pool) = tunnel.pool_v6 {
        pool_problems(s, p, "pool_v6", IpNet::V6(pool), 125);
    }
    tunnel
}

fn pool_problems(s: &Section<'_>, p: &mut Problems, key: &str, pool: IpNet, longest: u8) {
    if pool.prefix_len() > longest {
        let message = format!("'{key}' in [tunnel] is too small: {pool}; give it at least a /{longest}");
        s.problem(p, key, message);
    } else if pool.prefix_len() < 8 {
        s.problem(p, key, format!("'{key}' in [tunnel] is too large: {pool}; give it at most a /8"));
    } else if pool != pool.trunc() {
        let message = format!("'{key}' in [tunnel] has host bits set: {pool}; write {}", pool.trunc());
        s.problem(p, key, message);
    }
}

/// The settings for clients that a section has; those that it has not are as in `otherwise`.
pub(super) fn push_or(s: &mut Section<'_>, p: &mut Problems, otherwise: &Push, tunnel: &Tunnel) -> Push {
    let dns = s.list(p, "dns", "an IP address such as \"10.20.0.53\"");
    let search = s.list(p, "search", "a DNS name such as \"campus.example\"");
    let push = Push {
        routes: s.list(p, "routes", NETWORK).unwrap_or_else(|| otherwise.routes.clone()),
        dns: dns.unwrap_or_else(|| otherwise.dns.clone()),
        search: search.unwrap_or_else(|| otherwise.search.clone()),
        kill_switch: s.choice(p, "kill_switch", &KillSwitchMode::WORDS).unwrap_or(otherwise.kill_switch),
    };
    let own = s.has("routes");
    if let Some(route) = push.routes.iter().find(|route| own && **route != route.trunc()) {
        let message = format!("'routes' has a network with host bits set: {route}; write {}", route.trunc());
        s.problem(p, "routes", message);
    }
    at_most(s, p, "dns", push.dns.len(), MAX_DNS);
    at_most(s, p, "search", push.search.len(), MAX_SEARCH);
    let routes = push.count_routes(tunnel);
    if routes > MAX_ROUTES {
        let message = format!(
            "'routes' has {} networks, which makes {routes} routes of a client with the pools, the gateway's addresses and name \
             servers outside of them; at most {MAX_ROUTES} are taken: put neighbouring networks together",
            push.routes.len()
        );
        s.problem(p, "routes", message);
    }
    push
}

fn nat(s: &mut Section<'_>, p: &mut Problems, config: &ServerConfig) -> Nat {
    let modes = [("nftables", NatMode::Nftables), ("route", NatMode::Route), ("none", NatMode::None)];
    let mode = s.choice(p, "mode", &modes).unwrap_or(NatMode::None);
    if mode == NatMode::None && !config.server.more_ports.is_empty() {
        let message = "'more_ports' in [server] are rules of the firewall, and there are none with mode = \"none\": choose \"route\" or \
                       \"nftables\", or lead these ports to that of 'listen' yourself and name them in 'addresses'";
        s.problem(p, "mode", message.to_owned());
    }
    Nat {
        mode,
        outgoing_interface: interface(s, p, "outgoing_interface"),
        blocks: super::port_blocks::read(s, p, mode, config),
    }
}

fn policy(s: &mut Section<'_>, p: &mut Problems) -> Policy {
    let client_to_client = s.flag(p, "client_to_client", false);
    let campus_to_client = s.flag(p, "campus_to_client", false);
    let client_to_gateway = s.flag(p, "client_to_gateway", false);
    let rules = s.tables(p, "rules", rule);
    at_most(s, p, "rules", rules.len(), 1024);
    Policy { client_to_client, campus_to_client, client_to_gateway, rules }
}

pub(super) fn rule(s: &mut Section<'_>, p: &mut Problems) -> Option<Rule> {
    let line = s.line();
    let protocols = [("tcp", Protocol::Tcp), ("udp", Protocol::Udp), ("icmp", Protocol::Icmp)];
    let missing = !s.has("action");
    let action = s.choice(p, "action", &[("allow", Action::Allow), ("deny", Action::Deny)]);
    if missing {
        s.missing(p, "action", "write action = \"allow\" or action = \"deny\"");
    }
    let mut side = |s: &mut Section<'_>, key| {
        let list: Vec<Selector> = s.list(p, key, SELECTOR).unwrap_or_default();
        at_most(s, p, key, list.len(), 256);
        list
    };
    let (from, to) = (side(s, "from"), side(s, "to"));
    let protocol = s.choice(p, "protocol", &protocols);
    let ports = s.list(p, "ports", "a port or a range, as text, such as \"443\" or \"8000-8080\"");
    let ports = ports.unwrap_or_default();
    at_most(s, p, "ports", ports.len(), 64);
    if !ports.is_empty() && !matches!(protocol, Some(Protocol::Tcp | Protocol::Udp)) {
        let message = "'ports' needs protocol = \"tcp\" or protocol = \"udp\" in the same rule";
        s.problem(p, "ports", message.to_owned());
    }
    Some(Rule { line, action: action?, from, to, protocol, ports })
}

fn crypto(s: &mut Section<'_>, p: &mut Problems) -> Crypto {
    let suites = suites(s, p, "suites");
    let backends: Vec<_> = Preference::named().collect();
    Crypto { suites, backend: s.choice(p, "backend", &backends).unwrap_or_default() }
}

/// An ordered list of suites without repetition; empty for `auto`, or if the key is missing.
pub fn suites(s: &mut Section<'_>, p: &mut Problems, key: &'static str) -> Vec<Suite> {
    const EXPECTS: &str = "\"auto\" or a list of suites, best first, out of \"aes-128-gcm\", \"aes-256-gcm\" and \
                           \"chacha20-poly1305\"";
    let words: Vec<SuiteWord> = s.list(p, key, EXPECTS).unwrap_or_default();
    let named: Vec<Suite> = words.iter().filter_map(|word| word.0).collect();
    if named.len() != words.len() && words.len() > 1 {
        s.problem(p, key, format!("'{key}' takes either \"auto\" or suites by name, not both"));
    }
    if (1..named.len()).any(|i| named[..i].contains(&named[i])) {
        s.problem(p, key, format!("'{key}' names a suite twice; the order says which is preferred"));
    }
    named
}

/// `auto` (none) or the name of a suite.
struct SuiteWord(Option<Suite>);

impl FromStr for SuiteWord {
    type Err = UnknownSuite;

    fn from_str(text: &str) -> Result<Self, UnknownSuite> {
        if text == "auto" { Ok(Self(None)) } else { text.parse().map(|suite| Self(Some(suite))) }
    }
}

fn offload(s: &mut Section<'_>, p: &mut Problems) -> Offload {
    Offload { steering: s.flag(p, "steering", true), ..device_offload(s, p) }
}

/// Time for which the data path looks for the next packet before it sleeps. No wake-up takes longer
/// than the limit.
pub fn busy_poll(s: &mut Section<'_>, p: &mut Problems) -> Duration {
    Duration::from_micros(s.number(p, "busy_poll_us", 0..=10_000, 0))
}

/// The switches that gateway and client have in common.
pub fn device_offload(s: &mut Section<'_>, p: &mut Problems) -> Offload {
    Offload {
        tun: s.flag(p, "tun", true),
        tso: s.flag(p, "tso", true),
        uso: s.flag(p, "uso", true),
        udp_gso: s.flag(p, "udp_gso", true),
        udp_gro: s.flag(p, "udp_gro", true),
        ..Offload::default()
    }
}

fn limits(s: &mut Section<'_>, p: &mut Problems) -> Limits {
    Limits {
        max_sessions: s.number(p, "max_sessions", 1..=1_000_000, 4096) as usize,
        max_sessions_per_user: sessions_per_user(s, p, 8),
        max_connections_per_address: NonZeroU32::new(s.number(
            p,
            "max_connections_per_address",
            0..=1_000_000,
            4096,
        ) as u32),
        logins_per_user: s.number(p, "logins_per_user", 1..=1_000_000, 30) as u32,
        max_handshakes: s.number(p, "max_handshakes", 1..=65_536, 256) as usize,
        handshakes_per_address_s: s.number(p, "handshakes_per_address_s", 1..=100_000, 500) as u32,
        password_workers: s.number(p, "password_workers", 0..=64, 0) as usize,
        password_queue: s.number(p, "password_queue", 1..=65_536, 256) as usize,
        rates: rate::limits(s, p),
    }
}

fn timeouts(s: &mut Section<'_>, p: &mut Problems) -> Timeouts {
    let seconds = |s: &mut Section<'_>, p: &mut Problems, key, range: RangeInclusive<u64>, default| {
        Duration::from_secs(s.number(p, key, range, default))
    };
    let timeouts = Timeouts {
        idle_timeout: limit(seconds(s, p, "idle_timeout_s", 0..=YEAR_S, 0)),
        dead_peer_timeout: seconds(s, p, "dead_peer_timeout_s", 5..=86_400, 90),
        keepalive: seconds(s, p, "keepalive_s", 1..=3_600, 25),
        rekey_after: seconds(s, p, "rekey_after_s", 1..=120, 120),
        authentication_deadline: seconds(s, p, "authentication_deadline_s", 1..=600, 10),
        session_lifetime: session_lifetime(s, p, Some(Duration::from_secs(86_400))),
        forget_device: seconds(s, p, "forget_device_s", 86_400..=10 * YEAR_S, 90 * 86_400),
    };
    if timeouts.keepalive.saturating_mul(2) > timeouts.dead_peer_timeout {
        let message = format!(
            "'keepalive_s' in [timeouts] is {} s: it must be at most half of 'dead_peer_timeout_s' ({} s), \
             or one lost datagram ends a session",
            timeouts.keepalive.as_secs(),
            timeouts.dead_peer_timeout.as_secs(),
        );
        s.problem(p, "keepalive_s", message);
    }
    timeouts
}

/// Live sessions of one user, at most.
pub(super) fn sessions_per_user(s: &mut Section<'_>, p: &mut Problems, default: usize) -> usize {
    s.number(p, "max_sessions_per_user", 1..=1024, default as u64) as usize
}

pub(super) fn session_lifetime(
    s: &mut Section<'_>,
    p: &mut Problems,
    default: Option<Duration>,
) -> Option<Duration> {
    let default_s = default.unwrap_or_default().as_secs();
    limit(Duration::from_secs(s.number(p, "session_lifetime_s", 0..=YEAR_S, default_s)))
}

pub(super) fn max_login_age(s: &mut Section<'_>, p: &mut Problems) -> Option<Duration> {
    limit(Duration::from_secs(s.number(p, "max_login_age_s", 0..=YEAR_S, 0)))
}

/// 0 in the file means that there is no limit.
fn limit(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

fn admin(s: &mut Section<'_>, p: &mut Problems, base: &Path, default_socket: PathBuf) -> Admin {
    let socket = path(s, p, "socket", base).unwrap_or(default_socket);
    let metrics: Option<SocketAddr> =
        s.parsed(p, "metrics", "an address with a port such as \"127.0.0.1:9586\"");
    let public = s.flag(p, "metrics_public", false);
    if let Some(address) = metrics.filter(|address| !address.ip().is_loopback() && !public) {
        let message = format!(
            "'metrics' in [admin] is {address}, which other machines can reach without a login; use \
             127.0.0.1 or [::1], or add metrics_public = true"
        );
        s.problem(p, "metrics", message);
    }
    let metrics_by_session = s.flag(p, "metrics_by_session", false);
    Admin { socket, metrics, metrics_by_session }
}

fn process(s: &mut Section<'_>, p: &mut Problems) -> Process {
    let user = s.text(p, "user");
    if user.as_ref().is_some_and(|name| name.is_empty() || name.contains(['\0', ':', '/'])) {
        s.problem(p, "user", "'user' in [process] must be the name of a user of this machine".to_owned());
    }
    let modes = [("on", SandboxMode::On), ("require", SandboxMode::Require), ("off", SandboxMode::Off)];
    Process { user, sandbox: s.choice(p, "sandbox", &modes).unwrap_or_default() }
}

fn log(s: &mut Section<'_>, p: &mut Problems) -> Log {
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let level = s.text(p, "level").unwrap_or_else(|| DEFAULT_LOG_LEVEL.to_owned());
    if let Err(error) = vpnd_sys::logging::check_filter(&level) {
        s.problem(p, "level", format!("'level' in [log]: {error}"));
    }
    Log { level, format: s.choice(p, "format", &formats).unwrap_or(LogFormat::Text) }
}

pub(super) fn path(s: &mut Section<'_>, p: &mut Problems, key: &'static str, base: &Path) -> Option<PathBuf> {
    let text = s.text(p, key)?;
    if text.is_empty() || text.contains('\0') {
        s.problem(p, key, format!("'{key}' must be the path of a file or directory, not {text:?}"));
    }
    Some(base.join(text))
}

/// A network interface's name, by the kernel's rules.
fn interface(s: &mut Section<'_>, p: &mut Problems, key: &'static str) -> Option<String> {
    let name = s.text(p, key)?;
    if !is_interface_name(&name) {
        let message = format!(
            "'{key}' must be an interface name: 1 to 15 letters, digits, '-', '_' or '.', not {name:?}"
        );
        s.problem(p, key, message);
    }
    Some(name)
}

fn at_most(s: &Section<'_>, p: &mut Problems, key: &str, found: usize, limit: usize) {
    if found > limit {
        s.problem(p, key, format!("'{key}' has {found} entries; at most {limit} are taken"));
    }
}
