//! `vpnd netcheck`: what the network that this machine is in lets through to a gateway, and what to
//! do about it.
//!
//! INVARIANT: looking changes nothing, and what is sent names neither a user nor a profile.
//! It needs no privilege; a profile that only root can read comes from the client service, without
//! what is secret in it.

mod named;
mod nat;
mod tcp;
mod udp;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::Rng as _;
use serde::Serialize;

use super::doctor::names::look_up;
use super::doctor::passage::FAR;
use super::doctor::{Finding, machine, render};
use crate::cli::NetcheckArgs;
use nat::Mapping;
use tcp::{LoginPage, Pages, Port};
use udp::{Loss, Probed};
use vpnd_client_service::user_commands::ServiceSocket;
use vpnd_config::ConfigError;
use vpnd_config::profile::{Profile, ServerAddress};
use vpnd_sys::netlink::Netlink;

/// Addresses of the gateway that are tried.
const MAX_ADDRESSES: usize = 8;
/// Full packets of a tunnel with the usual MTU of 1,420 travel in packets of this size over IPv6.
const FULL: usize = 1_500;
/// The smallest size that costs little: a tunnel of 1,280 over IPv6.
const ENOUGH: usize = 1_360;

/// Why there is no report, or what it means for the exit code.
#[derive(Debug, thiserror::Error)]
pub enum NetcheckError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(
        "no file '{name}' can be read ({source}), and the client service gives no profile of that name: {why}"
    )]
    NoProfile { name: String, source: io::Error, why: String },
    #[error("this network stands between you and the gateway: {0}")]
    Blocked(String),
    #[error("the network's state can't be read: {0}")]
    HeldBack(String),
    #[error("can't write the report: {0}")]
    Output(#[from] io::Error),
}

/// The findings and one line of advice. INVARIANT: the names are an interface for scripts.
#[derive(Debug, Serialize)]
struct Report {
    findings: Vec<Finding>,
    advice: String,
}

/// Findings at one address of the gateway.
struct Way {
    server: ServerAddress,
    address: SocketAddr,
    udp: io::Result<Probed>,
    /// The TCP port, what was found there, and whether the client would use it.
    tcp: (u16, Port, bool),
    login_page: Option<LoginPage>,
}

/// Looks at the network and writes the report.
///
/// # Errors
/// [`NetcheckError::Blocked`] if no address of the gateway answers over UDP, and
/// [`NetcheckError::HeldBack`] while a kill switch is on or a tunnel takes what is sent.
pub fn netcheck(args: &NetcheckArgs, out: &mut dyn Write) -> Result<(), NetcheckError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let profile = args.profile.as_deref().map(|named| runtime.block_on(profile(named, &args.service)));
    let profile = profile.transpose()?;
    if let Some(state) = vpnd_client::parent::kill_switch_state() {
        let report = held_back(&state);
        write(&report, args.json, out)?;
        return Err(NetcheckError::HeldBack(report.advice));
    }
    let (report, outcome) = runtime.block_on(examine(profile.as_ref(), args.silence));
    write(&report, args.json, out)?;
    match outcome {
        Outcome::Passes => Ok(()),
        Outcome::Blocked => Err(NetcheckError::Blocked(report.advice)),
        Outcome::HeldBack => Err(NetcheckError::HeldBack(report.advice)),
    }
}

/// The exit code that a report leads to.
enum Outcome {
    /// The network passes the VPN, or no gateway is named.
    Passes,
    Blocked,
    /// This machine hides the network.
    HeldBack,
}

/// The profile in this file; or that of this name, whose file only root can read, from the client
/// service.
async fn profile(named: &Path, service: &ServiceSocket) -> Result<Profile, NetcheckError> {
    let source = match Profile::load(named) {
        Err(ConfigError::Read { source, .. })
            if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
        {
            source
        }
        loaded => return Ok(loaded?),
    };
    // Those of the machine are named as `vpnd list` shows them, or by their files.
    let name = named.file_stem().filter(|_| named.extension().is_none_or(|extension| extension == "toml"));
    let name = name.unwrap_or(named.as_os_str()).to_string_lossy().into_owned();
    vpnd_client_service::user_commands::gateway(service, &name)
        .await
        .map_err(|why| NetcheckError::NoProfile { name, source, why: format!("{why:#}") })
}

fn write(report: &Report, is_json: bool, out: &mut dyn Write) -> Result<(), NetcheckError> {
    let text = if is_json {
        serde_json::to_string_pretty(report).map_err(io::Error::from)? + "\n"
    } else {
        render(&report.findings) + "\n" + &report.advice + "\n"
    };
    Ok(out.write_all(text.as_bytes())?)
}

/// The report while a kill switch is on: a look would show what that holds back, and not the
/// network.
fn held_back(state: &str) -> Report {
    let advice = "this machine's kill switch holds back what netcheck sends: end it with 'vpnd down', or 'vpnd cleanup' as root, \
                  then try again";
    let finding = Finding::problem("kill_switch", state.to_owned(), advice);
    Report { findings: vec![finding], advice: advice.to_owned() }
}

/// The report while a tunnel of vpnd takes what is sent to the gateway.
fn in_tunnel(address: IpAddr, tunnel: &str) -> Report {
    let advice = "a tunnel of this machine takes what netcheck sends: end it with 'vpnd down' or Ctrl-C at its client, then try again";
    let finding = Finding::problem("tunnel", format!("{address} is behind {tunnel}"), advice);
    Report { findings: vec![finding], advice: advice.to_owned() }
}

/// The tunnel of vpnd into which packets for this address go.
async fn tunnel_to(address: IpAddr) -> Option<String> {
    let netlink = Netlink::open().ok()?;
    let is_there = netlink.rules().await.ok()?.iter().any(|rule| rule.made_by_vpnd);
    let index = netlink.route_to(address, None).await.ok()??.interface.filter(|_| is_there)?;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    let name = rustix::net::netdevice::index_to_name(&socket, index).ok()?;
    netlink.link(&name).await.ok()??.is_tun.then_some(name)
}

async fn examine(profile: Option<&Profile>, waits: bool) -> (Report, Outcome) {
    let mut findings = families();
    findings.push(machine::clock());
    findings.push(invented_name().await);
    let mut addresses = Vec::new();
    for server in profile.iter().flat_map(|profile| &profile.servers) {
        let (finding, found) = addresses_of(server).await;
        findings.extend(finding);
        addresses.extend(found.into_iter().map(|address| (server.clone(), address)));
    }
    addresses.truncate(MAX_ADDRESSES);
    for (_, address) in &addresses {
        if let Some(tunnel) = tunnel_to(address.ip()).await {
            return (in_tunnel(address.ip(), &tunnel), Outcome::HeldBack);
        }
    }
    let pages = profile.map(Pages::of);
    let proxy = async { pages.as_ref()?.by_proxy().await };
    let ways = pages.iter().flat_map(|pages| {
        addresses.iter().map(move |(server, address)| Way::examine(server.clone(), *address, pages))
    });
    let (ways, proxy, (named, is_captive)) = tokio::join!(join_all(ways), proxy, named::portals());
    findings.extend(named);
    findings.extend(ways.iter().flat_map(Way::findings));
    findings.extend(proxy.iter().map(|(server, port)| through_tcp("proxy", server.to_string(), port, true)));
    findings.extend(translator(&ways, waits).await);
    let proxy = proxy.filter(|(_, port)| matches!(port, Port::Open | Port::Password));
    let proxy = proxy.map(|(server, _)| server);
    let is_usable = profile.is_none() || proxy.is_some() || ways.iter().any(Way::is_usable);
    let advice = advice(profile.is_some(), &ways, proxy.as_ref(), is_captive);
    (Report { findings, advice }, if is_usable { Outcome::Passes } else { Outcome::Blocked })
}

/// Findings about an address translator on the way to the gateway.
async fn translator(ways: &[Way], waits: bool) -> Vec<Finding> {
    const PORT: &str = "nat.port";
    const SILENCE: &str = "nat.silence";
    let answering: Vec<_> = ways.iter().filter(|way| way.answers()).map(|way| way.address).collect();
    // More ports of one address would not do: the gateway's machine redirects them, and gives the
    // second flow from one port another.
    let other = |at: SocketAddr| {
        let is_other = |other: &&SocketAddr| other.is_ipv4() == at.is_ipv4() && other.ip() != at.ip();
        answering.iter().find(is_other).copied()
    };
    let Some(at) = answering.iter().find(|at| other(**at).is_some()).or(answering.first()).copied() else {
        return Vec::new();
    };
    let (ip, other) = (at.ip(), other(at));
    let found = match nat::look(at, other, waits).await {
        Ok(found) => found,
        Err(error) => {
            return vec![Finding::unknown(
                PORT,
                format!("nothing can be sent to {at}: {error}"),
                "try again",
            )];
        }
    };
    let addresses = other.map_or_else(|| ip.to_string(), |other| format!("{ip} and {}", other.ip()));
    let mut findings = vec![match found.mapping {
        None => Finding::unknown(
            PORT,
            format!("one address of the gateway, {ip}, does not show which kind of NAT is here"),
            "it matters to nothing that vpnd does",
        ),
        Some(Mapping::Unknown) => {
            Finding::unknown(PORT, format!("{addresses} have not answered enough"), "try again")
        }
        Some(Mapping::Same) => {
            Finding::good(PORT, format!("{addresses} see one port of this machine (endpoint-independent)"))
        }
        Some(Mapping::Differs) => Finding::unknown(
            PORT,
            format!("{addresses} see two ports of this machine (endpoint-dependent), or are two gateways"),
            "vpnd works with both",
        ),
    }];
    let s = nat::silence_s();
    findings.extend(found.outlives_silence.map(|outlives| match outlives {
        true => Finding::good(SILENCE, format!("after {s} s of silence {ip} sees the same port of this machine")),
        false => Finding::warning(
            SILENCE,
            format!("after {s} s of silence {ip} sees another port of this machine"),
            "what the campus begins may not reach an idle tunnel: an address translator here forgets it so soon",
        ),
    }));
    findings
}

/// Whether the machine has a route for each version of IP.
fn families() -> Vec<Finding> {
    let finding = |far: IpAddr| {
        let (name, any): (_, SocketAddr) =
            if far.is_ipv4() { ("IPv4", ([0; 4], 0).into()) } else { ("IPv6", ([0; 16], 0).into()) };
        let own = UdpSocket::bind(any).and_then(|socket| {
            socket.connect((far, 443))?;
            socket.local_addr()
        });
        match own {
            Ok(own) => Finding::good("ip", format!("{name} goes out from {}", own.ip())),
            Err(_) => Finding::unknown("ip", format!("there is no {name} here"), "one of the two is enough"),
        }
    };
    let findings: Vec<Finding> = FAR.into_iter().map(finding).collect();
    if findings.iter().all(|finding| finding.advice.is_some()) {
        return vec![Finding::problem("ip", "no route leads out of this machine", "connect it to a network")];
    }
    findings
}

/// Whether the name servers answer for a name that cannot exist (RFC 6761).
async fn invented_name() -> Finding {
    const CHECK: &str = "dns";
    let name = format!("vpnd-{:016x}.invalid", rand::rng().next_u64());
    match look_up(&name, 443).await {
        Ok(found) if !found.is_empty() => Finding::warning(
            CHECK,
            format!(
                "a name that does not exist has the address {}: the name servers here change answers",
                found[0].ip()
            ),
            "log in to the network in a browser if it asks for that; else use another network",
        ),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            Finding::warning(CHECK, "the name servers do not answer", "see /etc/resolv.conf")
        }
        Ok(_) | Err(_) => Finding::good(CHECK, "a name that does not exist has no address"),
    }
}

/// Where a server of the profile is.
async fn addresses_of(server: &ServerAddress) -> (Option<Finding>, Vec<SocketAddr>) {
    const CHECK: &str = "name";
    if let Some(literal) = server.literal() {
        return (None, vec![literal]);
    }
    let (host, began) = (&server.host, Instant::now());
    match look_up(host, server.port).await {
        Ok(found) => {
            let list: Vec<String> = found.iter().map(|address| address.ip().to_string()).collect();
            let line = format!("{host} is {}, after {}", list.join(", "), in_ms(began.elapsed()));
            (Some(Finding::good(CHECK, line)), found)
        }
        Err(error) => {
            let advice = "is the profile right, and does another network know the name?";
            (Some(Finding::problem(CHECK, format!("{host} can't be looked up: {error}"), advice)), Vec::new())
        }
    }
}

impl Way {
    async fn examine(server: ServerAddress, address: SocketAddr, pages: &Pages) -> Self {
        let (udp, tcp, login_page) = tokio::join!(
            udp::probe(address),
            pages.examine(address.ip()),
            tcp::login_page(&server.host, address.ip())
        );
        Self { server, address, udp, tcp: (pages.port, tcp, pages.is_used()), login_page }
    }

    fn answers(&self) -> bool {
        self.udp.as_ref().is_ok_and(|probed| probed.median().is_some())
    }

    /// Whether the client would use TCP, and could.
    fn carries_tcp(&self) -> bool {
        matches!(self.tcp, (_, Port::Open, true))
    }

    fn is_usable(&self) -> bool {
        self.answers() || self.carries_tcp()
    }

    fn findings(&self) -> Vec<Finding> {
        let mut findings = self.over_udp();
        let (port, found, is_used) = &self.tcp;
        let at = SocketAddr::new(self.address.ip(), *port);
        findings.push(through_tcp("tcp", at.to_string(), found, *is_used));
        findings.extend(self.login_page.as_ref().map(|page| {
            let answer = page.location.as_deref().unwrap_or("an answer without an address");
            Finding::problem(
                "login.page",
                format!("something else answers for {} on TCP port 80: {answer}", self.server.host),
                "log in to this network in a browser, then try again",
            )
        }));
        findings
    }

    fn over_udp(&self) -> Vec<Finding> {
        const CHECK: &str = "udp";
        let at = self.address;
        let probed = match &self.udp {
            Ok(probed) => probed,
            Err(error) => {
                let advice = "there is no way there: see 'ip route get' with that address";
                return vec![Finding::unknown(
                    CHECK,
                    format!("nothing can be sent to {at}: {error}"),
                    advice,
                )];
            }
        };
        let (Some(median), Some(slowest)) = (probed.median(), probed.slowest()) else {
            if self.carries_tcp() {
                let advice = "the client goes over TCP by itself, which is slower";
                return vec![Finding::warning(CHECK, format!("{at} does not answer over UDP"), advice)];
            }
            let advice = "is the gateway up? Another network tells: if it answers there, this one blocks it";
            return vec![Finding::problem(CHECK, format!("{at} does not answer over UDP"), advice)];
        };
        let Loss { sent, lost } = probed.loss;
        let found = format!(
            "{at} answers after {} (at most {}), {lost} of {sent} lost",
            in_ms(median),
            in_ms(slowest)
        );
        let loss = if lost * 20 > sent {
            Finding::warning(
                CHECK,
                found,
                "a lossy network is slow: a cable or another place helps, the VPN can't",
            )
        } else {
            Finding::good(CHECK, found)
        };
        vec![loss, self.sizes(probed.largest)]
    }

    fn sizes(&self, largest: usize) -> Finding {
        const CHECK: &str = "udp.size";
        let found = format!("{} gets packets of up to {largest} bytes", self.address);
        if largest >= FULL {
            Finding::good(CHECK, found)
        } else if largest >= ENOUGH {
            Finding::good(CHECK, format!("{found}; vpnd finds that size by itself"))
        } else {
            let advice = "vpnd works with that, slower. Stock WireGuard clients need 'MTU = 1280' or less in their file";
            Finding::warning(CHECK, found, advice)
        }
    }
}

/// The finding about a way over TCP, directly or through a proxy.
fn through_tcp(check: &'static str, at: String, found: &Port, is_used: bool) -> Finding {
    match found {
        Port::Open if is_used => {
            Finding::good(check, format!("{at} can be reached, and carries the VPN where UDP is blocked"))
        }
        Port::Open => {
            Finding::good(check, format!("{at} can be reached; the profile has no 'tcp_port' to use it"))
        }
        Port::NoTunnel(answer) => Finding::warning(
            check,
            format!("{at} answers, and carries no VPN: {answer}"),
            "the gateway needs 'relays' in [portal], and what stands before it has to pass the upgrade on",
        ),
        Port::Password => Finding::good(
            check,
            format!("{at} asks for user and password, which vpnd connect sends if the profile has them"),
        ),
        Port::Untrusted(reason) => Finding::warning(
            check,
            format!("{at} answers, but TLS fails: {reason}"),
            "a proxy of this network may look into TLS: the VPN does not go through it",
        ),
        Port::Refused => {
            Finding::good(check, format!("{at} can be reached; the gateway serves nothing there"))
        }
        Port::Silent => {
            Finding::warning(check, format!("{at} does not answer"), "it matters where UDP is blocked")
        }
    }
}

/// One line of advice.
fn advice(has_profile: bool, ways: &[Way], proxy: Option<&ServerAddress>, is_captive: bool) -> String {
    let answering = ways.iter().filter(|way| way.answers());
    let best = answering.min_by_key(|way| way.udp.as_ref().ok().and_then(Probed::median));
    let has_page = is_captive || ways.iter().any(|way| way.login_page.is_some());
    let has_open = ways.iter().any(|way| way.tcp.1 == Port::Open);
    match best {
        _ if !has_profile && is_captive => "log in to this network in a browser first".to_owned(),
        _ if !has_profile => "name a profile to see what this network lets through to its gateway".to_owned(),
        Some(way) => {
            format!("this network lets the VPN through: vpnd connect reaches the gateway at {}", way.address)
        }
        None if has_page => {
            "log in to this network in a browser first: it keeps everything else back".to_owned()
        }
        None if ways.iter().any(Way::carries_tcp) => {
            "this network lets no UDP through to the gateway: vpnd connect uses TCP, which is slower"
                .to_owned()
        }
        None if proxy.is_some() => {
            let proxy = proxy.map(ToString::to_string).unwrap_or_default();
            format!("only the proxy {proxy} leads to the gateway: vpnd connect uses it, which is slower")
        }
        None if has_open => {
            "this network lets no UDP through to the gateway, but TCP: ask for a profile with 'tcp_port'"
                .to_owned()
        }
        None if ways.is_empty() => "the gateway's name has no address here".to_owned(),
        None => {
            "no address of the gateway answers: try another network, then ask who runs the gateway".to_owned()
        }
    }
}

fn in_ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1_000.0)
}

/// Bytes of the headers of UDP and IP.
const fn headers(address: IpAddr) -> usize {
    if address.is_ipv4() { 28 } else { 48 }
}
