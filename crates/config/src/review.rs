//! Warnings about a valid configuration that will not do what was meant. Mistakes in the text are
//! refused where it is read.
//!
//! An error keeps the gateway from starting, or would leave something unprotected; a warning does
//! not, and may even be meant. The machine is passed in, but for its accounts.

use std::fmt;
use std::path::Path;

use ipnet::IpNet;
use vpnd_proto::rate::Rates;
use x509_parser::parse_x509_certificate;

use super::check::presented::{self, Fault};
use super::check::{LocalNetwork, first_certificate};
use super::local_ports::LocalPorts;
use super::rate::Rate;
use super::source::SourceKind;
use super::{Invalid, NatMode, Problem, ServerConfig};
use crate::certificate;
use vpnd_pki::revocation_list::RevocationList;
use vpnd_sys::account::UnixUser;
use vpnd_sys::date::rfc3339;

/// A certificate ends soon when less than this part of its life is left, but no sooner than
/// [`SOON_S`] before.
const LAST_PART: i64 = 10;
const SOON_S: i64 = 30 * 86_400;
/// A revocation list ends soon when less than this part of its life is left.
const LAST_PART_OF_LIST: i64 = 4;
/// And always in its last three days, whatever its life is: that is a weekend.
const ALWAYS_S: i64 = 3 * 86_400;

/// The machine that a gateway is to run on.
#[derive(Debug)]
pub struct Machine<'m> {
    /// The names of its interfaces.
    pub interfaces: &'m [String],
    /// The networks that it reaches without the tunnel.
    pub networks: &'m [LocalNetwork],
    /// Its addresses of IPv4, and the ports of its connections.
    pub ports: &'m LocalPorts,
    /// Whether IPv6 is switched on.
    pub ipv6: bool,
    /// Seconds since 1970.
    pub now_s: u64,
}

/// Findings, in the order of the file's lines.
#[derive(Debug, Default)]
pub struct Review {
    /// A gateway with this configuration does not start, or does harm.
    pub errors: Vec<Problem>,
    /// It starts; this may or may not be intended.
    pub warnings: Vec<Problem>,
}

impl Review {
    /// All errors, for callers that stop at them.
    ///
    /// # Errors
    /// If there are some.
    pub fn into_result(self, file: &str) -> Result<Vec<Problem>, Invalid> {
        if self.errors.is_empty() { Ok(self.warnings) } else { Err(Invalid::new(file, self.errors)) }
    }
}

impl ServerConfig {
    /// Looks at everything that a start would find, but for the store. `insecure_lab` is whether
    /// the gateway will be started with that switch.
    pub fn review(&self, machine: &Machine<'_>, insecure_lab: bool) -> Review {
        let mut findings = Findings { config: self, review: Review::default() };
        if let Err(invalid) = self.check(machine.networks, machine.now_s) {
            findings.review.errors = invalid.problems;
        }
        findings.account();
        findings.suites(insecure_lab);
        findings.networks(machine);
        findings.port_blocks(machine.ports);
        if let Some(doubt) = crate::fleet::doubt(self) {
            findings.warning("fleet.id", doubt.to_owned());
        }
        let tls = &self.tls;
        findings.certificate("tls.certificate", &tls.certificate, machine.now_s);
        findings.presented(machine.now_s);
        if let Some(message) = certificate::pinned::fault(self, machine.now_s) {
            findings.warning("tls.ca", message);
        }
        if let Some(authority) = &tls.client_ca {
            findings.certificate("tls.client_ca", authority, machine.now_s);
        }
        findings.portal(machine.now_s);
        findings.revocation_list(machine.now_s);
        findings.rates();
        findings.profiles();
        findings.providers();
        findings.review
    }
}

/// A review that goes on.
pub struct Findings<'c> {
    pub config: &'c ServerConfig,
    pub review: Review,
}

impl Findings<'_> {
    pub fn error(&mut self, place: &str, message: String) {
        self.review.errors.push(Problem { line: self.config.places.line(place), message });
    }

    pub fn warning(&mut self, place: &str, message: String) {
        self.review.warnings.push(Problem { line: self.config.places.line(place), message });
    }

    fn account(&mut self) {
        if let Some(name) = &self.config.process.user
            && let Err(error) = UnixUser::of(name)
        {
            self.error("process.user", error.to_string());
        }
    }

    fn suites(&mut self, insecure_lab: bool) {
        if let Some(suite) = self.config.crypto.suites.iter().find(|suite| suite.is_lab_only())
            && !insecure_lab
        {
            let message = format!(
                "the suite '{suite}' is for the laboratory and protects nothing or too little: without --insecure-lab \
                 no gateway starts with it; drop it"
            );
            self.error("crypto.suites", message);
        }
    }

    fn networks(&mut self, machine: &Machine<'_>) {
        let (tunnel, nat) = (&self.config.tunnel, &self.config.nat);
        if !machine.ipv6 && tunnel.pool_v6.is_some() {
            let off = "IPv6 is switched off on this machine (net.ipv6.conf.*.disable_ipv6)";
            match tunnel.pool_v4 {
                Some(_) => {
                    self.warning("tunnel.pool_v6", format!("{off}: the gateway uses IPv4 only"));
                }
                None => {
                    self.error(
                        "tunnel.pool_v6",
                        format!("{off}: give [tunnel] a 'pool_v4', or switch it on"),
                    );
                }
            }
        }
        if let Some(name) = &nat.outgoing_interface {
            if nat.mode == NatMode::None {
                let message = "'outgoing_interface' is of no use with mode = \"none\"; drop it".to_owned();
                self.warning("nat.outgoing_interface", message);
            } else if !machine.interfaces.contains(name) {
                let message = format!(
                    "there is no interface {name} now: until there is, nothing that clients send gets anywhere; there are {}",
                    machine.interfaces.join(", ")
                );
                self.warning("nat.outgoing_interface", message);
            } else {
                self.other_ways(name, machine.networks);
            }
        }
        let routes = self.config.profiles.routes();
        if routes.is_empty() {
            let message = "no routes are pushed: with the usual profile clients reach no network; name yours, such as \
                           routes = [\"10.20.0.0/16\"]";
            self.warning("push.routes", message.to_owned());
        }
        self.name_servers();
    }

    /// Ports of clients that are the machine's as well (port shadowing, CVE-2021-3773).
    fn port_blocks(&mut self, local: &LocalPorts) {
        let Some(blocks) = &self.config.nat.blocks else { return };
        let own = blocks.addresses.iter().find(|address| local.addresses.contains(address));
        if let (Some(address), Some(port), Some((first, last))) =
            (own, local.taken_of(blocks.ports), local.range)
        {
            let message = format!(
                "'ports' in [nat] has {port}, and from {first} to {last} this machine takes ports for its connections at {address} \
                 (net.ipv4.ip_local_port_range): a client could take packets that are meant for the machine; choose ports outside of that range, or \
                 keep them free by net.ipv4.ip_local_reserved_ports"
            );
            self.error("nat.ports", message);
        }
    }

    /// Pushed networks that lie behind another interface than the one by which clients' packets
    /// leave.
    fn other_ways(&mut self, outgoing: &str, networks: &[LocalNetwork]) {
        let ours = [outgoing, "lo", &self.config.tunnel.name];
        // A default route does not show where the campus is.
        let elsewhere = networks.iter().filter(|local| {
            local.network.prefix_len() > 0
                && !local.network.addr().is_loopback()
                && !ours.contains(&local.interface.as_str())
        });
        let mut found = Vec::new();
        for local in elsewhere {
            let lies_in =
                |route: &IpNet| route.prefix_len() > 0 && super::check::overlap(*route, local.network);
            if let Some(route) = self.config.profiles.routes().into_iter().find(lies_in) {
                found.push(format!(
                    "{route} is pushed, but this machine reaches {} by {}, and clients' packets leave by {outgoing} only: they \
                     are dropped there; leave 'outgoing_interface' out to let them leave by any interface",
                    local.network, local.interface
                ));
            }
        }
        for message in found {
            self.warning("nat.outgoing_interface", message);
        }
    }

    fn name_servers(&mut self) {
        let (config, tunnel) = (self.config, &self.config.tunnel);
        for server in &config.profiles.name_servers() {
            let pool = if server.is_ipv4() { tunnel.pool_v4.is_some() } else { tunnel.pool_v6.is_some() };
            if !pool {
                let message = format!(
                    "clients have no address that the name server {server} could be asked from, and don't use it: name one of \
                     the protocol version of the pool, or give [tunnel] the other pool, too"
                );
                self.warning("push.dns", message);
            }
        }
        for profile in config.profiles.iter() {
            for server in profile.push.dns_outside() {
                let (place, which) = match &profile.name {
                    Some(name) => ("profile", format!("of the profile '{name}' ")),
                    None => ("push.dns", String::new()),
                };
                let message = format!(
                    "no route {which}leads to the name server {server}: clients still ask it through the tunnel, if this \
                     gateway reaches it; push its network, too, or name a server of the campus"
                );
                self.warning(place, message);
            }
        }
    }

    fn certificate(&mut self, place: &str, path: &Path, now_s: u64) {
        // A certificate that can't be read or has ended already is an error, and reported as one.
        let Some(first) = first_certificate(path) else { return };
        let Ok((_, parsed)) = parse_x509_certificate(&first) else { return };
        let (begins, ends) = (parsed.validity().not_before, parsed.validity().not_after);
        let left_s = ends.timestamp().saturating_sub(now_s as i64);
        let life_s = ends.timestamp().saturating_sub(begins.timestamp());
        if (0..(life_s / LAST_PART).min(SOON_S).max(ALWAYS_S.min(life_s / 2))).contains(&left_s) {
            let left = TimeLeft(left_s);
            let ends = rfc3339(u64::try_from(ends.timestamp()).unwrap_or(0));
            let remedy = self.remedy(place);
            self.warning(place, format!("{} expires in {left}, at {ends}; {remedy}", path.display()));
        }
    }

    /// The next step for a certificate that was not replaced in time.
    fn remedy(&self, place: &str) -> &'static str {
        let is_ordered = match place {
            "tls.certificate" => self.config.orders_own(),
            "portal.certificate" => self.config.portal.as_ref().is_some_and(|portal| portal.acme),
            _ => false,
        };
        if is_ordered { "'vpnd doctor' shows why no other was ordered" } else { "renew it" }
    }

    /// The portal's own certificate, without which the tunnel goes on.
    fn portal(&mut self, now_s: u64) {
        let Some(portal) = &self.config.portal else { return };
        let path = &portal.certificate;
        self.certificate("portal.certificate", path, now_s);
        if let Some(first) = first_certificate(path)
            && let Ok((_, parsed)) = parse_x509_certificate(&first)
            && parsed.validity().not_after.timestamp() < now_s as i64
        {
            let remedy = self.remedy("portal.certificate");
            let message = format!("{} has expired: browsers refuse the web pages; {remedy}", path.display());
            self.warning("portal.certificate", message);
        }
    }

    /// A certificate that perhaps no client takes.
    fn presented(&mut self, now_s: u64) {
        let chain = certificate::read(&self.config.tls.certificate).map(|pem| vpnd_pki::leaf::chain(&pem));
        let fault = chain.ok().and_then(|chain| presented::fault(self.config, &chain, now_s));
        if let Some(Fault::Possible(message)) = fault {
            self.warning("tls.certificate", message);
        }
    }

    /// One that can't be used or has ended is an error, and reported as one.
    fn revocation_list(&mut self, now_s: u64) {
        let tls = &self.config.tls;
        let (Some(path), Some(authority)) = (&tls.client_crl, &tls.client_ca) else { return };
        let Ok(list) = RevocationList::load(path, authority, now_s) else { return };
        let Some((ends_s, made_s)) = list.life_s() else { return };
        let left_s = ends_s.saturating_sub(now_s as i64);
        // Authorities make a new one long before the old one ends.
        if left_s < ends_s.saturating_sub(made_s) / LAST_PART_OF_LIST {
            let message = format!(
                "{} expires in {}: fetch the authority's newer one, then 'vpnd reload'. One that has expired is not taken at a start",
                path.display(),
                TimeLeft(left_s)
            );
            self.warning("tls.client_crl", message);
        }
    }

    /// Reports profiles without possible users.
    fn profiles(&mut self) {
        let profiles: Vec<_> = self.config.profiles.iter().collect();
        let Some(last) = profiles.iter().position(|profile| profile.members.are_all()) else { return };
        for profile in &profiles[last + 1..] {
            let message = format!(
                "no user is in the profile '{}': all are in '{}', which comes before it and has none of the keys 'groups', 'users' and \
                 'sources'; move it to the end",
                profile.title(),
                profiles[last].title()
            );
            self.warning("profile", message);
        }
    }

    /// Providers whose users have no page to log in on.
    fn providers(&mut self) {
        let config = self.config;
        let provider = config.sources.iter().find(|source| matches!(source.kind, SourceKind::Oidc(_)));
        if let (Some(source), None) = (provider, &config.portal) {
            let message = format!(
                "no user of the source '{}' can log in: its users do so on the pages of [portal], which is not enabled",
                source.name
            );
            self.warning("source.kind", message);
        }
    }

    fn rates(&mut self) {
        let config = self.config;
        let of_profiles = config.profiles.iter().filter_map(|profile| profile.rates.as_ref());
        let groups = config.limits.rates.groups.iter().map(|group| ("group", "limits.groups", group));
        let all = &config.limits.rates;
        self.rates_of("", "limits", [all.session, all.user, Rates::default()]);
        for (kind, place, group) in groups.chain(of_profiles.map(|rates| ("profile", "profile", rates))) {
            let scope = format!(" of the {kind} '{}'", group.name);
            self.rates_of(&scope, place, [group.session, group.user, group.together]);
        }
    }

    /// The limits of a session, of a user and of all: one that is more than a wider one never
    /// counts.
    fn rates_of(&mut self, whose: &str, place: &'static str, rates: [Rates; 3]) {
        const NAMES: [(&str, &str); 3] =
            [("session", "session_rate"), ("user", "user_rate"), ("all of them together", "rate")];
        for (way, rates) in [("down", rates.map(|rates| rates.down)), ("up", rates.map(|rates| rates.up))] {
            for (narrow, wide) in [(0, 1), (0, 2), (1, 2)] {
                if rates[wide] == 0 || rates[narrow] <= rates[wide] {
                    continue;
                }
                let [(name, key), (wide_name, wide_key)] = [NAMES[narrow], NAMES[wide]];
                let unit = if wide == 1 { "each " } else { "" };
                let message = format!(
                    "each {name}{whose} may have {} {way}, more than the {} of {unit}{wide_name}; raise '{wide_key}_{way}' or lower \
                     '{key}_{way}'",
                    Rate(rates[narrow]),
                    Rate(rates[wide])
                );
                self.warning(place, message);
            }
        }
    }
}

/// A number of seconds, for people.
struct TimeLeft(i64);

impl fmt::Display for TimeLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 / 86_400 {
            0 => write!(f, "{} hours", self.0 / 3_600),
            1 => f.write_str("1 day"),
            days => write!(f, "{days} days"),
        }
    }
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
