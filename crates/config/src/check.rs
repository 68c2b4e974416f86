//! The checks of a configuration that look at the machine: files, keys, certificates, networks.
//!
//! Invariants: nothing is changed, and all problems are found in one go. The time and the machine's
//! networks are passed in.

pub(super) mod presented;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use ipnet::IpNet;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::{Invalid, Problem, ServerConfig};
use crate::certificate;
use presented::Fault;
use vpnd_pki::revocation_list::RevocationList;
use vpnd_pki::tls::TlsError;

/// The longest path of a Unix socket, in bytes (`sun_path` with its final zero).
const MAX_SOCKET_PATH: usize = 107;

/// A network that this machine reaches without the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalNetwork {
    pub network: IpNet,
    pub interface: String,
}

impl ServerConfig {
    /// Checks everything that the configuration names. `local` are the machine's networks.
    pub fn check(&self, local: &[LocalNetwork], now_s: u64) -> Result<(), Invalid> {
        let mut check = Check { config: self, problems: Vec::new() };
        check.certificate(now_s);
        check.portal(now_s);
        check.authority(now_s);
        check.client_authority(now_s);
        check.sources();
        check.fleet();
        check.pools(local);
        check.paths();
        check.into_result()
    }

    /// Checks the gateway's certificate and key alone.
    pub fn check_certificate(&self, now_s: u64) -> Result<(), Invalid> {
        let mut check = Check { config: self, problems: Vec::new() };
        check.certificate(now_s);
        check.into_result()
    }

    /// Checks the files that the sources name alone.
    pub fn check_sources(&self) -> Result<(), Invalid> {
        let mut check = Check { config: self, problems: Vec::new() };
        check.sources();
        check.into_result()
    }
}

struct Check<'c> {
    config: &'c ServerConfig,
    problems: Vec<Problem>,
}

impl Check<'_> {
    fn into_result(self) -> Result<(), Invalid> {
        if self.problems.is_empty() {
            Ok(())
        } else {
            Err(Invalid::new(self.config.file.clone(), self.problems))
        }
    }

    fn problem(&mut self, place: &str, message: String) {
        self.problems.push(Problem { line: self.config.places.line(place), message });
    }

    fn certificate(&mut self, now_s: u64) {
        let tls = &self.config.tls;
        let chain = self.chain("tls.certificate", &tls.certificate, now_s);
        let key = self.key("tls.key", &tls.key);
        if let Some(chain) = &chain
            && let Some(Fault::Certain(message)) = presented::fault(self.config, chain, now_s)
        {
            self.problem("tls.certificate", message);
        }
        if let (Some(chain), Some(key)) = (chain, key) {
            self.matching("tls.key", chain, key);
        }
    }

    fn portal(&mut self, now_s: u64) {
        let Some(portal) = &self.config.portal else { return };
        if portal.acme && !portal.key.exists() {
            // The gateway makes it.
            return;
        }
        // A certificate that can't be used is ordered again.
        let chain =
            (!portal.acme).then(|| self.chain("portal.certificate", &portal.certificate, now_s)).flatten();
        let key = self.key("portal.key", &portal.key);
        let Some(key) = key else { return };
        if let Some(other) = crate::portal::other_use(&key, &self.config.tls) {
            let path = portal.key.display();
            self.problem("portal.key", format!("{path} is '{other}' of [tls] as well: make another"));
        }
        if let Some(chain) = chain {
            self.matching("portal.key", chain, key);
        }
    }

    /// The authority that clients pin; its key may be on another machine.
    fn authority(&mut self, now_s: u64) {
        let tls = &self.config.tls;
        let chain = tls.ca.as_deref().and_then(|path| self.chain("tls.ca", path, now_s));
        let key = tls.ca_key.as_deref().filter(|path| path.exists());
        let key = key.and_then(|path| self.key("tls.ca_key", path));
        if let (Some(chain), Some(key)) = (chain, key) {
            self.matching("tls.ca_key", chain, key);
        }
    }

    fn fleet(&mut self) {
        if let Some(fault) = crate::fleet::fault(self.config) {
            self.problem("fleet.id", fault.to_owned());
        }
    }

    fn sources(&mut self) {
        for source in &self.config.sources {
            for (key, reason) in crate::source_files::faults(source) {
                self.problem(
                    &format!("source.{key}"),
                    format!("the source '{}' can't be asked: {reason}", source.name),
                );
            }
        }
    }

    fn client_authority(&mut self, now_s: u64) {
        let tls = &self.config.tls;
        let chain = tls.client_ca.as_deref().and_then(|path| self.chain("tls.client_ca", path, now_s));
        if let (Some(list), Some(authority)) = (&tls.client_crl, &tls.client_ca)
            && chain.is_some()
            && let Err(error) = RevocationList::load(list, authority, now_s)
        {
            self.problem("tls.client_crl", error.to_string());
        }
        // The key may well be on another machine: it is looked at only if it is here.
        let key = tls.client_ca_key.as_deref().filter(|path| path.exists());
        let key = key.and_then(|path| self.key("tls.client_ca_key", path));
        if let (Some(chain), Some(key)) = (chain, key) {
            self.matching("tls.client_ca_key", chain, key);
        }
    }

    fn chain(&mut self, place: &str, path: &Path, now_s: u64) -> Option<Vec<CertificateDer<'static>>> {
        let text = self.read(place, path)?;
        let chain: Vec<_> =
            CertificateDer::pem_slice_iter(&text).collect::<Result<_, _>>().unwrap_or_default();
        let Some(first) = chain.first() else {
            self.problem(place, format!("{} has no certificate in PEM format", path.display()));
            return None;
        };
        match x509_parser::parse_x509_certificate(first) {
            Err(error) => {
                self.problem(
                    place,
                    format!("{} has a certificate that can't be read: {error}", path.display()),
                );
                return None;
            }
            Ok((_, parsed)) => {
                let (validity, now) = (parsed.validity(), now_s as i64);
                if validity.not_after.timestamp() < now {
                    self.expired(place, path, &iso(validity.not_after), now_s);
                } else if validity.not_before.timestamp() > now && !self.is_renewed(place, now_s) {
                    let message = format!(
                        "{} is valid from {} on; is this machine's clock right?",
                        path.display(),
                        iso(validity.not_before)
                    );
                    self.problem(place, message);
                }
            }
        }
        Some(chain)
    }

    /// Whether a gateway replaces what is in this place before it begins: a certificate that it
    /// made while its clock was ahead.
    fn is_renewed(&self, place: &str, now_s: u64) -> bool {
        let now = UNIX_EPOCH + Duration::from_secs(now_s);
        place == "tls.certificate" && certificate::renewable(&self.config.tls, now).is_ok()
    }

    /// The gateway renews its own certificate before it begins, if it can.
    fn expired(&mut self, place: &str, path: &Path, when: &str, now_s: u64) {
        let advice = if place == "tls.certificate" {
            match certificate::renewable(&self.config.tls, UNIX_EPOCH + Duration::from_secs(now_s)) {
                Ok(()) => return,
                Err(error) => error.to_string(),
            }
        } else if place == "tls.ca" && self.config.orders_own() {
            // Only the profiles that pin it are cut off, which is a warning.
            return;
        } else if place == "portal.certificate" {
            // Only browsers refuse it, which is a warning: the tunnel does without.
            return;
        } else {
            "renew it".to_owned()
        };
        self.problem(place, format!("{} expired at {when}; {advice}", path.display()));
    }

    fn key(&mut self, place: &str, path: &Path) -> Option<PrivateKeyDer<'static>> {
        let text = zeroize::Zeroizing::new(self.read(place, path)?);
        if let Ok(metadata) = fs::metadata(path) {
            let mode = metadata.permissions().mode() & 0o777;
            if mode & 0o077 != 0 {
                let path = path.display();
                let message = format!(
                    "{path} is a private key that others can use (mode {mode:o}); run: chmod 600 {path}"
                );
                self.problem(place, message);
            }
        }
        match vpnd_pki::tls::private_key(&text) {
            Ok(key) => Some(key),
            Err(TlsError::Encrypted) => {
                let path = path.display();
                let message = format!(
                    "{path} is encrypted, and a daemon can't ask for its passphrase: run 'openssl pkey -in {path} -out NEW' \
                     and 'chmod 600 NEW', and put the new file in its place"
                );
                self.problem(place, message);
                None
            }
            Err(_) => {
                self.problem(place, format!("{} has no private key in PEM format", path.display()));
                None
            }
        }
    }

    fn matching(&mut self, place: &str, chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        if let Err(error) = CertifiedKey::from_der(chain, key, &provider) {
            let message = format!("the key does not belong to the certificate, or can't be used: {error}");
            self.problem(place, message);
        }
    }

    fn pools(&mut self, local: &[LocalNetwork]) {
        let tunnel = &self.config.tunnel;
        for pool in tunnel.pools() {
            let place = if matches!(pool, IpNet::V4(_)) { "tunnel.pool_v4" } else { "tunnel.pool_v6" };
            // A default route overlaps everything, and the tunnel itself has the pool.
            let near =
                local.iter().filter(|near| near.network.prefix_len() > 0 && near.interface != tunnel.name);
            for near in near.filter(|near| overlap(pool, near.network)) {
                let message = format!(
                    "the pool {pool} overlaps {}, which this machine reaches by {}; choose another pool",
                    near.network, near.interface
                );
                self.problem(place, message);
            }
            // Pushing the pool itself is how clients reach each other.
            let pushed = self.config.profiles.routes().into_iter();
            for route in
                pushed.filter(|route| route.prefix_len() > 0 && *route != pool && overlap(pool, *route))
            {
                let message = format!(
                    "the pushed route {route} overlaps the pool {pool}: hosts behind it with such an address would \
                     be out of reach; choose another pool"
                );
                self.problem("push.routes", message);
            }
        }
    }

    fn paths(&mut self) {
        let socket = &self.config.admin.socket;
        if socket.as_os_str().len() > MAX_SOCKET_PATH {
            let message = format!(
                "the path of the control socket {} has more than {MAX_SOCKET_PATH} bytes; give [admin] a shorter \
                 'socket', such as \"/run/vpnd/admin.sock\"",
                socket.display()
            );
            self.problem("admin.socket", message);
        }
        let state = &self.config.server.state_dir;
        if state.exists() && !state.is_dir() {
            self.problem("server.state_dir", format!("{} is not a directory", state.display()));
        }
        let journals = &self.config.server.journal_dir;
        if journals.starts_with(state) {
            let message = format!(
                "'journal_dir' in [server], {}, lies in 'state_dir', which the auth process writes: undo journals need a \
                 separate directory that only root writes",
                journals.display()
            );
            self.problem("server.journal_dir", message);
        }
    }

    fn read(&mut self, place: &str, path: &Path) -> Option<Vec<u8>> {
        fs::read(path)
            .map_err(|error| self.problem(place, format!("can't read {}: {error}", path.display())))
            .ok()
    }
}

/// The first certificate of a PEM file, if there is one.
pub(super) fn first_certificate(path: &Path) -> Option<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(&fs::read(path).ok()?).next()?.ok()
}

/// The names of the machine's network interfaces.
pub fn interfaces() -> Vec<String> {
    let listed = fs::read_dir("/sys/class/net").into_iter().flatten();
    listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

pub(super) fn overlap(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// The networks in the kernel's routing tables, as `/proc/net/route` and `/proc/net/ipv6_route`
/// show them.
pub fn local_networks() -> Vec<LocalNetwork> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut networks: Vec<_> = read("/proc/net/route").lines().filter_map(parse_route_v4).collect();
    networks.extend(read("/proc/net/ipv6_route").lines().filter_map(parse_route_v6));
    networks
}

/// Interface, destination and, as the eighth field, mask: hexadecimal in the machine's byte order.
fn parse_route_v4(line: &str) -> Option<LocalNetwork> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    // An "unreachable" route has no interface.
    let is_real = *fields.first()? != "*";
    let number = |i: usize| fields.get(i).and_then(|hex| u32::from_str_radix(hex, 16).ok());
    let address = std::net::Ipv4Addr::from(number(1)?.to_ne_bytes());
    let mask = std::net::Ipv4Addr::from(number(7)?.to_ne_bytes());
    let network = ipnet::Ipv4Net::with_netmask(address, mask).ok()?;
    is_real.then(|| LocalNetwork { network: IpNet::V4(network), interface: fields[0].to_owned() })
}

/// Destination and prefix length in hexadecimal; the interface is the last field. The loopback
/// interface also lists addresses that are unreachable, and multicast is everywhere.
fn parse_route_v6(line: &str) -> Option<LocalNetwork> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let address = u128::from_str_radix(fields.first()?, 16).ok()?;
    let prefix_len = u8::from_str_radix(fields.get(1)?, 16).ok()?;
    let network = ipnet::Ipv6Net::new(address.into(), prefix_len).ok()?;
    let interface = *fields.last()?;
    let is_real = interface != "lo" && !network.addr().is_multicast();
    is_real.then(|| LocalNetwork { network: IpNet::V6(network), interface: interface.to_owned() })
}

fn iso(time: x509_parser::time::ASN1Time) -> String {
    vpnd_sys::date::rfc3339(u64::try_from(time.timestamp()).unwrap_or(0))
}

#[cfg(test)]
mod tests;
