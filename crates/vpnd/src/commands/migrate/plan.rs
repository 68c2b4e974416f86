//! Counterparts of the directives of an OpenVPN server: keys of server.toml, addresses of users,
//! and notes about the rest.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use toml::{Table, Value};

use super::openvpn::{self, Directive};
use vpnd_config::profile::{is_login_name, is_user_name};
use vpnd_config::{MAX_MTU, MIN_MTU};
use vpnd_sys::text::is_interface_name;

/// Directives without a counterpart, and what there is instead.
const OTHERWISE: [(&str, &str); 36] = [
    (
        "auth-user-pass-verify",
        "no scripts: 'vpnd user import', or a [[source]] of kind \"ldap\" or \"radius\"",
    ),
    ("plugin", "no plugins: 'vpnd user import', or a [[source]] of kind \"ldap\" or \"radius\""),
    ("verify-client-cert", "[tls] require_client_certificate; passwords are asked for in any case"),
    ("client-cert-not-required", "passwords are always asked for"),
    ("username-as-common-name", "the name is always that of the login"),
    (
        "ca",
        "'vpnd init' makes an authority for the gateway and for client certificates; for those of this one: [tls] client_ca",
    ),
    (
        "cert",
        "'vpnd init' makes one; one of your own needs serverAuth and the gateway's name: [tls] certificate",
    ),
    ("key", "'vpnd init' makes one: [tls] key"),
    ("pkcs12", "[tls] certificate and key take PEM"),
    ("crl-verify", "[tls] client_crl, with client_ca"),
    ("client-connect", "no scripts: the log has a line for each session that begins (docs/OPERATIONS.md)"),
    ("client-disconnect", "no scripts: the log has a line for each session that ends (docs/OPERATIONS.md)"),
    ("learn-address", "no scripts: 'vpnd audit whois' shows who had an address"),
    ("up", "no scripts"),
    ("down", "no scripts"),
    ("tls-verify", "no scripts"),
    ("iroute", "a client is a host, no router for a network"),
    ("iroute-ipv6", "a client is a host, no router for a network"),
    ("port-share", "vpnd has its UDP port for itself, and over TCP relays in [portal]"),
    ("management", "'vpnd status', 'vpnd kick', [admin] metrics"),
    ("status", "'vpnd status'"),
    ("route", "the gateway makes routes for its pools only"),
    ("route-ipv6", "the gateway makes routes for its pools only"),
    ("route-up", "no scripts"),
    ("ipchange", "no scripts"),
    ("tls-crypt-v2-verify", "no scripts"),
    ("client-crresponse", "no scripts: a [[source]] of kind \"radius\" may send challenges"),
    ("management-client-auth", "no management interface: a [[source]] of kind \"ldap\" or \"radius\""),
    ("auth-user-pass-optional", "passwords are always asked for"),
    (
        "server-bridge",
        "Ethernet is not carried: [tunnel] pool_v4 is a separate network, and clients get routes",
    ),
    ("ifconfig-pool", "[tunnel] pool_v4 is a whole network; a [[profile]] can have a part of it"),
    ("ifconfig-ipv6-pool", "[tunnel] pool_v6 is a whole network; a [[profile]] can have a part of it"),
    ("config", "that file is not read: run 'vpnd migrate openvpn' for it, too"),
    ("secret", "no shared keys: each user has a password, and each device a key that it makes itself"),
    ("client", "this is a client's configuration, and not the server's"),
    ("remote", "this is a client's configuration, and not the server's"),
];

/// Directives that need no counterpart: vpnd does it always, or has nothing that it could be about.
const UNNEEDED: [&str; 61] = [
    "allow-compression",
    "auth",
    "auth-nocache",
    "bcast-buffers",
    "cd",
    "chroot",
    "cipher",
    "client-config-dir",
    "comp-lzo",
    "comp-noadapt",
    "compress",
    "daemon",
    "data-ciphers",
    "data-ciphers-fallback",
    "dh",
    "dev-type",
    "duplicate-cn",
    "ecdh-curve",
    "explicit-exit-notify",
    "fast-io",
    "float",
    "fragment",
    "group",
    "hash-size",
    "ifconfig-pool-persist",
    "key-direction",
    "log",
    "log-append",
    "mlock",
    "mode",
    "mssfix",
    "mtu-disc",
    "multihome",
    "mute",
    "mute-replay-warnings",
    "ncp-ciphers",
    "nice",
    "opt-verify",
    "passtos",
    "persist-key",
    "persist-tun",
    "ping-timer-rem",
    "push-peer-info",
    "rcvbuf",
    "remote-cert-tls",
    "reneg-bytes",
    "replay-window",
    "script-security",
    "sndbuf",
    "syslog",
    "tls-auth",
    "tls-cipher",
    "tls-ciphersuites",
    "tls-crypt",
    "tls-crypt-v2",
    "tls-groups",
    "tls-server",
    "tls-timeout",
    "tls-version-min",
    "topology",
    "verb",
];

/// Unneeded lines that only some files have.
const UNNEEDED_TOO: [&str; 22] = [
    "txqueuelen",
    "user",
    "writepid",
    "ccd-exclusive",
    "connect-freq",
    "max-routes-per-client",
    "stale-routes-check",
    "tcp-queue-limit",
    "tran-window",
    "hand-window",
    "ifconfig",
    "ifconfig-ipv6",
    "ifconfig-noexec",
    "disable-dco",
    "remote-cert-eku",
    "ns-cert-type",
    "route-gateway",
    "setenv",
    "ignore-unknown-option",
    "tmp-dir",
    "tls-cert-profile",
    "tun-ipv6",
];

/// A configuration in the making.
#[derive(Debug, Default)]
pub(super) struct Plan {
    address: Option<IpAddr>,
    port: Option<u16>,
    config: Table,
    routes: Vec<IpNet>,
    dns: Vec<IpAddr>,
    search: Vec<String>,
    shares_names: bool,
    /// Lines without a counterpart.
    pub(super) notes: Vec<String>,
    /// Addresses that users have for good.
    pub(super) users: Vec<(String, IpAddr)>,
}

impl Plan {
    pub(super) fn take(&mut self, directive: &Directive) {
        if let Err(reason) = self.translate(directive) {
            let Directive { line, words } = directive;
            self.notes.push(format!("line {line}: {}: {reason}", words.join(" ")));
        }
    }

    /// The directives of a user's file.
    pub(super) fn take_user(&mut self, user: &str, directives: &[Directive]) {
        for directive in directives {
            let result = match (user, directive.name()) {
                ("DEFAULT", _) => {
                    Err("it is for all without a file: [push], or a [[profile]] for all users".to_owned())
                }
                (_, "ifconfig-push" | "ifconfig-ipv6-push") if !is_login_name(user) => {
                    Err("that can't be a user's name here".to_owned())
                }
                (_, "ifconfig-push" | "ifconfig-ipv6-push") => address(directive).map(|address| {
                    self.users.push((user.to_owned(), address));
                }),
                (_, "disable") => Err(format!("vpnd user disable {}", word(user))),
                (_, "push" | "push-remove" | "push-reset") => {
                    Err(format!("a [[profile]] with users = [\"{user}\"] and its own routes, dns and search"))
                }
                (_, name) => Err(otherwise(name).to_owned()),
            };
            if let Err(reason) = result {
                let Directive { line, words } = directive;
                self.notes.push(format!("{user}, line {line}: {}: {reason}", words.join(" ")));
            }
        }
    }

    fn translate(&mut self, directive: &Directive) -> Result<(), String> {
        let argument = |at| directive.argument(at).ok_or_else(|| "it lacks an argument".to_owned());
        match directive.name() {
            "port" | "lport" => {
                self.port = Some(argument(0)?.parse().map_err(|_| "that is no port".to_owned())?)
            }
            "local" => self.address = Some(parsed(argument(0)?)?),
            "proto" if argument(0)?.starts_with("udp") => {}
            "proto" => {
                return Err(
                    "the port is UDP's; for networks that block it: TCP 443 by relays in [portal]".to_owned()
                );
            }
            "dev" if argument(0)?.starts_with("tap") => {
                return Err("Ethernet is not carried: clients get routes in place of the bridge".to_owned());
            }
            "dev" => {
                let name = argument(0)?;
                if name != "tun" && is_interface_name(name) {
                    self.set("tunnel", "name", name.into());
                }
            }
            "server" => {
                self.set("tunnel", "pool_v4", net_v4(argument(0)?, argument(1)?)?.to_string().into());
            }
            "server-ipv6" => {
                let net: Ipv6Net = parsed(argument(0)?)?;
                self.set("tunnel", "pool_v6", net.trunc().to_string().into());
            }
            "push" => return self.pushed(&openvpn::words(argument(0)?)),
            "client-to-client" => self.set("policy", "client_to_client", true.into()),
            "duplicate-cn" => self.shares_names = true,
            "max-clients" => self.limited("limits", "max_sessions", number(argument(0)?)?, 1, 1_000_000),
            "keepalive" => {
                let (ping, restart) = (number(argument(0)?)?.clamp(1, 3_600), number(argument(1)?)?);
                self.set("timeouts", "keepalive_s", ping.into());
                self.limited("timeouts", "dead_peer_timeout_s", restart.max(2 * ping), 5, 86_400);
            }
            "reneg-sec" => {
                let seconds = number(argument(0)?)?;
                if (1..120).contains(&seconds) {
                    self.set("timeouts", "rekey_after_s", seconds.into());
                }
            }
            "inactive" => self.limited("timeouts", "idle_timeout_s", number(argument(0)?)?, 0, 31_536_000),
            "tun-mtu" => {
                let mtu = number(argument(0)?)?;
                // 1500 is what a file has that means nothing by it, and more than fits.
                if (i64::from(MIN_MTU)..=i64::from(MAX_MTU)).contains(&mtu) && mtu != 1500 {
                    self.set("tunnel", "mtu", mtu.into());
                }
            }
            // In seconds; 0 is without end, and without a number as long as the connection.
            "auth-gen-token" => {
                if let Some(lifetime) = directive.argument(0).map(number).transpose()?.filter(|s| *s > 0) {
                    self.limited("timeouts", "session_lifetime_s", lifetime, 60, 31_536_000);
                }
            }
            "ping" => self.limited("timeouts", "keepalive_s", number(argument(0)?)?, 1, 3_600),
            "ping-restart" | "ping-exit" => {
                self.limited("timeouts", "dead_peer_timeout_s", number(argument(0)?)?, 5, 86_400);
            }
            name if name.starts_with('<') => {
                return Err("its end is missing: nothing below this line was read".to_owned());
            }
            "shaper" => {
                let kbit = (number(argument(0)?)? * 8 / 1_000).max(64);
                self.set("limits", "session_rate_down", format!("{kbit}kbit").into());
            }
            name if UNNEEDED.contains(&name) || UNNEEDED_TOO.contains(&name) => {}
            name => return Err(otherwise(name).to_owned()),
        }
        Ok(())
    }

    /// Takes what clients are given.
    fn pushed(&mut self, words: &[String]) -> Result<(), String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["route" | "route-ipv6", .., "net_gateway" | "net_gateway_ipv6"]
            | ["route" | "route-ipv6", _, _, "net_gateway" | "net_gateway_ipv6", _]
            | ["route-ipv6", _, "net_gateway" | "net_gateway_ipv6", _] => {
                return Err("a route past the tunnel: write the networks in [push] routes so that this one is in none".to_owned());
            }
            ["route", net, mask, ..] => self.route(net_v4(net, mask)?.into()),
            ["route", host] => self.route(IpNet::from(IpAddr::V4(parsed(host)?))),
            ["route-ipv6", net, ..] => self.route(parsed::<Ipv6Net>(net)?.trunc().into()),
            ["redirect-gateway", ref flags @ ..] => {
                if !flags.contains(&"!ipv4") {
                    self.route(IpNet::V4(Ipv4Net::default()));
                }
                if flags.contains(&"ipv6") {
                    self.route(IpNet::V6(Ipv6Net::default()));
                }
            }
            ["dhcp-option", "DNS" | "DNS6", server] => self.dns.push(parsed(server)?),
            ["dns", "server", _, "address", ref servers @ ..] => {
                for server in servers {
                    self.dns.push(parsed(server)?);
                }
            }
            ["dns", "search-domains", ref domains @ ..] => {
                self.search.extend(domains.iter().map(|domain| (*domain).to_owned()));
            }
            ["dhcp-option", "DOMAIN" | "DOMAIN-SEARCH" | "ADAPTER_DOMAIN_SUFFIX", domain] => {
                self.search.push(domain.to_owned());
            }
            ["dhcp-option", ..] => return Err("clients are given name servers and domains alone".to_owned()),
            [
                "route-gateway"
                | "topology"
                | "ping"
                | "ping-restart"
                | "persist-tun"
                | "persist-key"
                | "comp-lzo"
                | "compress"
                | "block-outside-dns"
                | "sndbuf"
                | "rcvbuf"
                | "explicit-exit-notify"
                | "cipher"
                | "tun-mtu"
                | "route-metric"
                | "inactive"
                | "setenv"
                | "auth-token-user"
                | "peer-id",
                ..,
            ] => {}
            _ => return Err("clients are given routes, name servers and domains alone".to_owned()),
        }
        Ok(())
    }

    fn route(&mut self, net: IpNet) {
        if !self.routes.contains(&net) {
            self.routes.push(net);
        }
    }

    fn set(&mut self, section: &str, key: &str, value: Value) {
        let table = self.config.entry(section).or_insert_with(|| Table::new().into());
        if let Some(table) = table.as_table_mut() {
            table.insert(key.to_owned(), value);
        }
    }

    fn limited(&mut self, section: &str, key: &str, number: i64, least: i64, most: i64) {
        self.set(section, key, number.clamp(least, most).into());
    }

    /// The configuration as text.
    pub(super) fn to_toml(&self) -> String {
        let texts = |list: Vec<String>| Value::Array(list.into_iter().map(Value::String).collect());
        let mut whole = Self { config: self.config.clone(), ..Self::default() };
        let listen = std::net::SocketAddr::new(
            self.address.unwrap_or(Ipv6Addr::UNSPECIFIED.into()),
            self.port.unwrap_or(1194),
        );
        whole.set("server", "listen", listen.to_string().into());
        for (key, file) in [
            ("certificate", "server.pem"),
            ("key", "server-key.pem"),
            ("ca", "ca.pem"),
            ("ca_key", "ca-key.pem"),
            ("client_ca", "ca.pem"),
            ("client_ca_key", "ca-key.pem"),
        ] {
            whole.set("tls", key, file.into());
        }
        whole.set("push", "routes", texts(self.routes.iter().map(ToString::to_string).collect()));
        if !self.dns.is_empty() {
            whole.set("push", "dns", texts(self.dns.iter().map(ToString::to_string).collect()));
        }
        if !self.search.is_empty() {
            whole.set("push", "search", texts(self.search.clone()));
        }
        whole.set("nat", "mode", "nftables".into());
        if !self.shares_names {
            whole.set("limits", "max_sessions_per_user", 1.into());
        }
        toml::to_string(&whole.config).unwrap_or_default()
    }
}

/// A name as one word of a shell's: a file may have any name, and who reads the commands may copy
/// them.
pub(super) fn word(name: &str) -> String {
    if is_user_name(name) { name.to_owned() } else { format!("'{}'", name.replace('\'', "'\\''")) }
}

/// The alternative to a directive.
fn otherwise(name: &str) -> &'static str {
    let known = OTHERWISE.iter().find(|(known, _)| *known == name);
    known.map_or("not known here: docs/MIGRATION.md has what there is", |(_, instead)| instead)
}

/// The address of `ifconfig-push` and its kin.
fn address(directive: &Directive) -> Result<IpAddr, String> {
    let text = directive.argument(0).unwrap_or_default();
    parsed(text.split('/').next().unwrap_or_default())
}

fn net_v4(net: &str, mask: &str) -> Result<Ipv4Net, String> {
    let (net, mask): (Ipv4Addr, Ipv4Addr) = (parsed(net)?, parsed(mask)?);
    let net = Ipv4Net::with_netmask(net, mask).map_err(|_| format!("{mask} is no netmask"))?;
    Ok(net.trunc())
}

fn number(text: &str) -> Result<i64, String> {
    text.parse::<u32>().map(i64::from).map_err(|_| format!("{text} is no number"))
}

fn parsed<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no address here"))
}
