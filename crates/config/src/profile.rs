//! The profile: one file with everything a client needs to reach its gateway and be let in, save
//! the password.
//!
//! Invariants: a [`Profile`] names at least one server, trusts either the CAs it carries or those
//! of the system, and has a key if and only if it has a certificate. Its text is written readable
//! by its owner alone; the key never shows in `Debug` or in a problem. This module must not know
//! how a connection is made.

mod kill_switch;
mod of_gateway;
mod proxy;
mod server_address;
mod tunnel_section;
mod user_section;

use std::fmt::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use vpnd_crypto::Suite;
use vpnd_proto::control::{MAX_GATEWAY_ADDRESSES, UserName};
use zeroize::Zeroizing;

use crate::document::{Document, Log as Problems, Problem, Section};
use crate::{ConfigError, Invalid, Offload};
use vpnd_sys::secret_file::{self, Existing, PUBLIC_MODE, SECRET_MODE, WriteError};

pub use kill_switch::{KillSwitch, KillSwitchMode};
pub use of_gateway::{NoProfile, gateway_names};
pub use proxy::{PROXY, Proxy};
pub use server_address::{ADDRESS, ServerAddress, joined};

/// The format that this program writes and reads.
pub const FORMAT: u64 = 1;
/// The port of a server that names none.
pub const DEFAULT_PORT: u16 = 4433;
/// Lanes of a client that says nothing of them.
pub const DEFAULT_LANES: usize = 1;

/// Everything a client needs to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Addresses of the gateway, tried in this order.
    pub servers: Vec<ServerAddress>,
    /// The name that the gateway's certificate must carry.
    pub server_name: String,
    /// Which authorities may have signed that certificate.
    pub trust: Trust,
    /// Whether the client keeps the addresses that the gateway says it has from now on.
    pub renew: bool,
    /// Whether a login begins at any of the gateway's addresses, rather than at the first.
    pub spread: bool,
    /// The TCP port at which the gateway's addresses carry the same datagrams, for networks that
    /// pass no UDP; `None` if there is none.
    pub tcp_port: Option<u16>,
    /// The proxy through which that port is reached, too.
    pub proxy: Option<Proxy>,
    /// Whether users of this machine may name another proxy in their own profiles; in one of these,
    /// whether the proxy is the user's.
    pub user_proxy: bool,
    /// The name to log in with; `None` if the client asks for it.
    pub user: Option<String>,
    /// Whether to ask for a one-time code at login.
    pub totp: bool,
    /// Whether the user logs in in a browser.
    pub browser: bool,
    /// Whether the user is this machine, which logs in by its certificate alone.
    pub machine: bool,
    /// The client's certificate, if the gateway requires one.
    pub identity: Option<ClientIdentity>,
    /// Suites to offer, best first; empty means by measured speed.
    pub suites: Vec<Suite>,
    /// Destinations that go into the tunnel.
    pub routes: Routes,
    /// Whether to use the DNS servers that the gateway names.
    pub dns: bool,
    /// Whether networks that the machine is directly connected to stay outside a tunnel that
    /// contains them.
    pub local_network: bool,
    pub kill_switch: KillSwitch,
    /// Threads of the data path, each with its own UDP port.
    pub lanes: usize,
    /// Whether outer datagrams show the DSCP of the packets inside.
    pub copy_dscp: bool,
    /// Time for which the data path looks for the next packet before it sleeps; 0 is never.
    pub busy_poll: Duration,
    /// Switches for kernel offloads; steering means nothing to a client.
    pub offload: Offload,
}

/// Trust anchors for the gateway's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The authorities that the machine trusts.
    System,
    /// These authorities and no others.
    Pinned {
        /// One or more PEM certificates.
        ca_pem: String,
    },
}

/// A client certificate and its key.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The PEM certificate chain, the client's own first.
    pub certificate_pem: String,
    pub key_pem: Zeroizing<String>,
}

/// Destinations that a client routes into the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Routes {
    /// The networks that the gateway names.
    Pushed,
    All,
    /// These networks, whatever the gateway names.
    Only(Vec<IpNet>),
}

impl Profile {
    /// Reads and parses the file at `path`.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = Zeroizing::new(crate::read_text(path)?);
        Ok(Self::parse(&text, &path.display().to_string())?)
    }

    /// The profile and its text, for a process that can't read the file.
    pub fn load_text(path: &Path) -> Result<(Zeroizing<String>, Self), ConfigError> {
        let text = Zeroizing::new(crate::read_text(path)?);
        let profile = Self::parse(&text, &path.display().to_string())?;
        Ok((text, profile))
    }

    /// Parses `text`; `file` names it in problems.
    pub fn parse(text: &str, file: &str) -> Result<Self, Invalid> {
        read(text).map_err(|problems| Invalid::new(file, problems))
    }

    /// Removes the user, the certificate and the proxy's password: what is left is no secret.
    #[must_use]
    pub fn without_secrets(self) -> Self {
        let proxy = self.proxy.map(Proxy::without_credentials);
        Self { user: None, machine: false, identity: None, proxy, ..self }
    }

    /// Writes the profile to a new file; with a client certificate's key it is one that only its
    /// owner can read.
    pub fn save(&self, path: &Path) -> Result<(), WriteError> {
        let has_password = self.proxy.as_ref().is_some_and(|proxy| proxy.credentials.is_some());
        let mode = if self.identity.is_some() || has_password { SECRET_MODE } else { PUBLIC_MODE };
        secret_file::write(path, self.to_toml().as_bytes(), mode, Existing::Refuse)
    }

    /// The commented text that [`Profile::parse`] reads back.
    pub fn to_toml(&self) -> Zeroizing<String> {
        let mut text = String::with_capacity(4096);
        // Writing to a String can't fail.
        let _ = self.write_toml(&mut text);
        Zeroizing::new(text)
    }

    fn write_toml(&self, out: &mut String) -> fmt::Result {
        let owner = self.user.as_deref().unwrap_or("any user");
        writeln!(out, "# Profile of vpnd for {owner}. Use: vpnd connect THIS_FILE")?;
        writeln!(out, "version = {FORMAT}\n\n[server]")?;
        self.write_server(out)?;
        writeln!(out, "\n[user]")?;
        match &self.user {
            Some(user) => writeln!(out, "name = {}", quoted(user))?,
            None => {
                writeln!(out, "# The user is asked for the name, or gives it with --login.\n# name = \"\"")?
            }
        }
        writeln!(out, "# Ask for a one-time code at login.\ntotp = {}", self.totp)?;
        if self.browser {
            writeln!(out, "# The user logs in in a browser, on the gateway's web pages.\nbrowser = true")?;
        }
        if self.machine {
            writeln!(out, "# This machine logs in by its certificate alone.\nmachine = true")?;
        }
        if let Some(identity) = &self.identity {
            writeln!(out, "certificate = {}", *pem(&identity.certificate_pem))?;
            let use_of_key = if self.machine { "log in" } else { "try passwords" };
            writeln!(out, "# Secret: with this key an attacker can {use_of_key} as {owner}.")?;
            writeln!(out, "key = {}", *pem(&identity.key_pem))?;
        }
        writeln!(out, "\n[tunnel]")?;
        writeln!(out, "# \"pushed\": what the gateway names; \"all\": everything; or a list of networks.")?;
        match &self.routes {
            Routes::Pushed => writeln!(out, "routes = \"pushed\"")?,
            Routes::All => writeln!(out, "routes = \"all\"")?,
            Routes::Only(networks) => {
                writeln!(out, "routes = {}", list(networks.iter().map(ToString::to_string)))?
            }
        }
        writeln!(out, "dns = {}", self.dns)?;
        if !self.local_network {
            writeln!(
                out,
                "# Hosts of the local network are not reachable outside the tunnel.\nlocal_network = false"
            )?;
        }
        self.kill_switch.write(out)?;
        match self.suites.as_slice() {
            [] => writeln!(out, "suites = \"auto\"")?,
            suites => writeln!(out, "suites = {}", list(suites.iter().map(ToString::to_string)))?,
        }
        if self.lanes != DEFAULT_LANES {
            writeln!(out, "lanes = {}", self.lanes)?;
        }
        if self.copy_dscp {
            writeln!(out, "# The path sees which kind of traffic is inside.\ncopy_dscp = true")?;
        }
        if !self.busy_poll.is_zero() {
            writeln!(out, "busy_poll_us = {}", self.busy_poll.as_micros())?;
        }
        self.write_offload(out)
    }

    fn write_server(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "addresses = {}", list(self.servers.iter().map(ToString::to_string)))?;
        writeln!(out, "# The name that the gateway's certificate must carry.")?;
        writeln!(out, "name = {}", quoted(&self.server_name))?;
        match &self.trust {
            Trust::System => writeln!(out, "trust = \"system\"")?,
            Trust::Pinned { ca_pem } => {
                writeln!(out, "# Only this authority may vouch for the gateway.\ntrust = \"pinned\"")?;
                writeln!(out, "ca = {}", *pem(ca_pem))?;
            }
        }
        if !self.renew {
            writeln!(out, "# The gateway is where this file says, whatever it says itself.\nrenew = false")?;
        }
        if self.spread {
            writeln!(out, "# Any of the addresses may be the first to be tried.\nspread = true")?;
        }
        if let Some(port) = self.tcp_port {
            writeln!(out, "# The same over TCP, where a network passes no UDP.\ntcp_port = {port}")?;
        }
        if let Some(proxy) = &self.proxy {
            writeln!(out, "proxy = {}", quoted(proxy.as_str()))?;
        }
        if self.user_proxy {
            writeln!(out, "# Users may name another proxy in their own profiles.\nuser_proxy = true")?;
        }
        Ok(())
    }

    fn write_offload(&self, out: &mut String) -> fmt::Result {
        let Offload { tun, tso, uso, udp_gso, udp_gro, .. } = self.offload;
        let switches = [("tun", tun), ("tso", tso), ("uso", uso), ("udp_gso", udp_gso), ("udp_gro", udp_gro)];
        if switches.iter().any(|(_, on)| !on) {
            writeln!(out, "\n[offload]")?;
            switches
                .iter()
                .filter(|(_, on)| !on)
                .try_for_each(|(name, _)| writeln!(out, "{name} = false"))?;
        }
        Ok(())
    }
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientIdentity").finish_non_exhaustive()
    }
}

fn read(text: &str) -> Result<Profile, Vec<Problem>> {
    let mut document = Document::parse(text)?;
    let format = document.top(|s, p| s.number(p, "version", 1..=FORMAT, 0));
    document.top(|s, p| {
        if !s.has("version") {
            s.missing(p, "version", &format!("write version = {FORMAT}"));
        }
    });
    let server = document.section("server", read_server);
    let user = document.section("user", user_section::read);
    let tunnel = document.section("tunnel", tunnel_section::read);
    let offload = document.section("offload", crate::device_offload);
    let (problems, _) = document.finish();
    if !problems.is_empty() || format != FORMAT {
        return Err(problems);
    }
    Ok(Profile {
        servers: server.servers,
        server_name: server.name,
        trust: server.trust,
        renew: server.renew,
        spread: server.spread,
        tcp_port: server.tcp_port,
        proxy: server.proxy,
        user_proxy: server.user_proxy,
        user: user.name,
        totp: user.totp,
        browser: user.browser,
        machine: user.machine,
        identity: user.identity,
        suites: tunnel.suites,
        routes: tunnel.routes,
        dns: tunnel.dns,
        local_network: tunnel.local_network,
        kill_switch: tunnel.kill_switch,
        lanes: tunnel.lanes,
        copy_dscp: tunnel.copy_dscp,
        busy_poll: tunnel.busy_poll,
        offload,
    })
}

/// `[server]`, as in [`Profile`].
struct ServerSection {
    servers: Vec<ServerAddress>,
    name: String,
    trust: Trust,
    renew: bool,
    spread: bool,
    tcp_port: Option<u16>,
    proxy: Option<Proxy>,
    user_proxy: bool,
}

fn read_server(s: &mut Section<'_>, p: &mut Problems) -> ServerSection {
    let present = s.has("addresses");
    let servers: Vec<ServerAddress> = s.list(p, "addresses", ADDRESS).unwrap_or_default();
    if !present {
        s.missing(p, "addresses", "write addresses = [\"vpn.example.org:4433\"]");
    } else if !(1..=MAX_GATEWAY_ADDRESSES).contains(&servers.len()) {
        s.problem(
            p,
            "addresses",
            format!("'addresses' in [server] takes 1 to {MAX_GATEWAY_ADDRESSES} servers"),
        );
    }
    let name = s.text(p, "name").or_else(|| servers.first().map(|server| server.host.clone()));
    let name = name.unwrap_or_default();
    if s.has("name") && ServerName::try_from(name.as_str()).is_err() {
        s.problem(p, "name", format!("'name' in [server] must be a DNS name or an address, not {name:?}"));
    }
    let pinned = s.choice(p, "trust", &[("pinned", true), ("system", false)]);
    let ca = s.text(p, "ca");
    let trust = match (pinned, ca) {
        (Some(false), None) => Trust::System,
        (Some(false), Some(_)) => {
            s.problem(
                p,
                "ca",
                "'ca' in [server] is of no use with trust = \"system\"; drop one of them".into(),
            );
            Trust::System
        }
        (Some(true) | None, Some(ca_pem)) => {
            check_certificates(s, p, "ca", &ca_pem);
            Trust::Pinned { ca_pem }
        }
        (Some(true) | None, None) => {
            if !s.has("ca") && (pinned.is_some() || !s.has("trust")) {
                s.missing(p, "ca", "the gateway's CA as PEM text, or trust = \"system\"");
            }
            Trust::System
        }
    };
    let tcp_port = s.has("tcp_port").then(|| s.number(p, "tcp_port", 1..=65_535, 443) as u16);
    // It may hold a password, which no message shows.
    let proxy = s.text(p, "proxy").map(Zeroizing::new).and_then(|text| {
        let proxy = text.parse::<Proxy>().ok();
        if proxy.is_none() {
            s.problem(p, "proxy", format!("'proxy' in [server] must be {PROXY}"));
        }
        proxy
    });
    let user_proxy = s.flag(p, "user_proxy", false);
    if tcp_port.is_none() && (proxy.is_some() || user_proxy) {
        s.missing(p, "tcp_port", "a proxy carries TCP alone: write tcp_port = 443, or what the gateway has");
    }
    let (renew, spread) = (s.flag(p, "renew", true), s.flag(p, "spread", false));
    ServerSection { servers, name, trust, renew, spread, tcp_port, proxy, user_proxy }
}

fn check_certificates(s: &Section<'_>, p: &mut Problems, key: &str, text: &str) {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let is_valid = certificates.is_ok_and(|all| {
        !all.is_empty() && all.iter().all(|der| x509_parser::parse_x509_certificate(der).is_ok())
    });
    if !is_valid {
        s.problem(p, key, format!("'{key}' must be certificates as PEM text (-----BEGIN CERTIFICATE-----)"));
    }
}

/// The rule for names to log in with, for messages.
pub const LOGIN_NAME_RULE: &str = "1 to 128 bytes, without control characters";

/// Whether `name` can be sent as a user's name. Which users there are, and how their names may be
/// written, the gateway knows.
pub fn is_login_name(name: &str) -> bool {
    !name.trim().is_empty() && UserName::new(name).is_ok() && !name.chars().any(char::is_control)
}

/// The rule for names of local users, for messages.
pub const USER_NAME_RULE: &str =
    "1 to 64 ASCII letters, digits, '.', '_', '@', '+' or '-', the first a letter or digit";

/// Whether `name` can be a local user's name; local groups follow the same rule.
pub fn is_user_name(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'@' | b'+' | b'-');
    (1..=64).contains(&name.len())
        && name.bytes().all(is_allowed)
        && name.as_bytes()[0].is_ascii_alphanumeric()
}

/// A TOML basic string. Every character that is not plain is escaped, so nothing can break out of
/// the quotes.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.map(|item| quoted(&item)).collect::<Vec<_>>().join(", "))
}

/// A TOML multi-line literal string: PEM text has no quotes. Text that has some goes into a basic
/// string instead.
fn pem(text: &str) -> Zeroizing<String> {
    let plain = text.bytes().all(|b| matches!(b, b'\n' | b' '..=b'~') && b != b'\'');
    Zeroizing::new(if plain { format!("'''\n{}\n'''", text.trim_end()) } else { quoted(text) })
}

#[cfg(test)]
mod tests;
