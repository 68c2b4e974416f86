//! A gateway's status for people: a few lines of facts, then a table with one row a session.
//!
//! Pure: text comes out, nothing is printed. Text that came over the socket loses its control
//! characters here, so that no name can play with the terminal.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use vpnd_ipc::admin::status::{
    Accounting, Counters, Drain, Firewall, FleetMember, Offloads, Pool, Portal, Process, Protocol,
    RefusedDevice, Session, Source, Status, Steering, Tun,
};
use vpnd_sys::sandbox::{Landlock, Protections};

/// Digits of a session's id that the table shows; `vpnd kick` takes them.
pub(super) const ID_DIGITS: usize = 12;
const NOTHING_THERE: &str = "-";
/// WireGuard devices that were not let in of which each has a line.
const REFUSED_DEVICES: usize = 5;

/// Traffic per second between two looks at a gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    /// By session.
    sessions: HashMap<String, Rate>,
}

/// Bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rate {
    rx: f64,
    tx: f64,
}

impl Rates {
    /// Rates between two statuses `elapsed` apart. Sessions that are new in between have no rate
    /// yet.
    pub(crate) fn between(before: &Status, after: &Status, elapsed: Duration) -> Self {
        let earlier: HashMap<&str, &Session> = before.sessions.iter().map(|s| (s.id.as_str(), s)).collect();
        let bits_per_second = |then: u64, now: u64| {
            now.saturating_sub(then) as f64 * 8.0 / elapsed.as_secs_f64().max(f64::EPSILON)
        };
        let rate = |session: &Session| {
            let then = earlier.get(session.id.as_str())?;
            let rx = bits_per_second(then.rx_bytes, session.rx_bytes);
            let tx = bits_per_second(then.tx_bytes, session.tx_bytes);
            Some((session.id.clone(), Rate { rx, tx }))
        };
        Self { sessions: after.sessions.iter().filter_map(rate).collect() }
    }

    fn total(&self) -> Rate {
        self.sessions
            .values()
            .fold(Rate::default(), |sum, rate| Rate { rx: sum.rx + rate.rx, tx: sum.tx + rate.tx })
    }
}

/// The whole status as text, ending with a line break. With `rates`, each session's speed is shown
/// too.
pub(crate) fn render(status: &Status, rates: Option<&Rates>) -> String {
    let mut text = facts(status, rates);
    if !status.sessions.is_empty() {
        text.push('\n');
        text.push_str(&sessions(&status.sessions, rates));
    }
    vpnd_sys::text::plain(&text)
}

fn facts(status: &Status, rates: Option<&Rates>) -> String {
    let mut lines = vec![
        format!("vpnd {}, process {}, up {}", version(status), status.pid, age(status.uptime_s)),
        format!("listening on {}", status.listen),
        format!("{}, {}", count(status.shards, "shard"), steering(status.steering)),
        offloads(&status.offloads),
        format!("suites: {}", suites(status)),
        traffic(&status.sessions, rates),
    ];
    lines.push(certificate(status.certificate_left_s));
    lines.extend(status.processes.iter().map(process));
    lines.extend(status.firewall.as_ref().and_then(firewall));
    lines.extend(status.fleet.as_ref().map(fleet));
    lines.extend(status.drain.map(drain));
    lines.extend(status.audit.as_ref().and_then(|audit| audit.failure.as_deref()).map(not_recorded));
    lines.extend(status.portal.map(portal));
    lines.extend(status.pools.iter().map(pool));
    lines.extend(status.sources.iter().map(|listed| source(listed, &status.counters)));
    lines.extend(refused_devices(&status.refused_devices));
    if let Some(line) = counts("logins", &status.counters.logins) {
        lines.push(line);
    }
    if let Some(line) = counts("handshakes", &status.counters.handshakes) {
        lines.push(line);
    }
    if let Some(line) = counts("dropped", &status.counters.drops) {
        lines.push(line);
    }
    if let Some(line) = counts("polling", &status.counters.polling) {
        lines.push(line);
    }
    if let Some(line) = counts("unused congestion marks", &status.counters.unused_marks) {
        lines.push(line);
    }
    lines.join("\n") + "\n"
}

/// The daemon's version, and its privileged process's where an upgrade has left an older one.
fn version(Status { version, parent_version, .. }: &Status) -> String {
    if parent_version == version {
        version.clone()
    } else {
        format!("{version} (privileged process {parent_version} until a restart)")
    }
}

/// The remaining validity of the gateway's certificate.
fn certificate(left_s: u64) -> String {
    match left_s {
        0 => "certificate: EXPIRED, so no client can connect; see 'vpnd renew --help'".to_owned(),
        left_s => format!("certificate: good for {}", age(left_s)),
    }
}

/// Events of the firewall table, if there were any.
fn firewall(Firewall { table, rules, renewals, over_limit }: &Firewall) -> Option<String> {
    let mut parts = Vec::new();
    if rules.is_none() {
        parts.push("NOT KNOWN TO BE IN FORCE, see the log".to_owned());
    }
    if *renewals > 0 {
        parts.push(format!("put back {renewals} times after another program had removed or changed it"));
    }
    if *over_limit > 0 {
        parts.push(format!("{over_limit} packets over max_connections_per_address dropped"));
    }
    (!parts.is_empty()).then(|| format!("firewall inet {table}: {}", parts.join("; ")))
}

/// The state of a drain.
pub(crate) fn drain(Drain { in_use, left_s, over }: Drain) -> String {
    let sessions = count(in_use, "session");
    match (over, left_s) {
        (true, _) => "DRAINED: no client is connected; 'vpnd drain --cancel' accepts logins again".to_owned(),
        (false, None) => format!("DRAINING: logins are refused, {sessions} in use yet"),
        (false, Some(left_s)) => {
            format!("DRAINING: logins are refused, {sessions} in use yet, closed in {}", age(left_s))
        }
    }
}

fn fleet(FleetMember { fleet, name }: &FleetMember) -> String {
    format!("gateway {name} of the fleet {fleet}; the sessions shown are this gateway's")
}

fn not_recorded(reason: &str) -> String {
    format!("audit: NOTHING IS RECORDED: {}", vpnd_sys::text::plain(reason))
}

fn portal(Portal { up, visits, relays, certificate_left_s }: Portal) -> String {
    let state = if up { "served" } else { "NOT SERVED: the portal's process is not there" };
    let number = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let over_tcp = match relays {
        0 => String::new(),
        relays => format!(", {} for clients over TCP", count(number(relays), "connection")),
    };
    let certificate = match certificate_left_s {
        None => String::new(),
        Some(0) => ", certificate MISSING OR EXPIRED, so browsers refuse them; see 'vpnd doctor'".to_owned(),
        Some(left_s) => format!(", certificate good for {}", age(left_s)),
    };
    format!("web pages: {state}, {} logged in{over_tcp}{certificate}", count(number(visits), "browser"))
}

fn pool(pool: &Pool) -> String {
    let full = if pool.taken >= pool.total { ", FULL" } else { "" };
    format!("pool {}: {} of {} addresses taken{full}", pool.pool, pool.taken, pool.total)
}

/// A source of identities, and how it has answered.
fn source(source: &Source, counters: &Counters) -> String {
    let failures = Counters::of(&counters.source_failures, &source.name);
    let state = match (source.up, source.silent_s) {
        (None, _) => "not asked yet".to_owned(),
        (Some(true), _) => "up".to_owned(),
        (Some(false), Some(ago_s)) => format!("NO ANSWER for {}", age(ago_s)),
        (Some(false), None) => "NO ANSWER".to_owned(),
    };
    let answers = Counters::of(&counters.source_answers, &source.name);
    let accounting = source.accounting.map_or_else(String::new, |Accounting { sent, lost, waiting }| {
        format!("; accounting: sent {sent}, waiting {waiting}, lost {lost}")
    });
    let missing = match source.missing {
        0 => String::new(),
        users => format!("; NO LONGER SHOWS {users} USERS with sessions, which go on: see 'vpnd doctor'"),
    };
    format!("source {}: {state}, answered {answers}, failed {failures}{accounting}{missing}", source.name)
}

/// WireGuard devices that were not let in: a line for each of the latest, and one for the others.
fn refused_devices(devices: &[RefusedDevice]) -> Vec<String> {
    let shown = devices.len().min(REFUSED_DEVICES);
    let line = |RefusedDevice { key, why, walled, times, last_s }: &RefusedDevice| {
        let state = if *walled { "WALLED" } else { "NOT LET IN" };
        let attempts = if *times == 1 { String::new() } else { format!(", {times} attempts") };
        format!("WireGuard device {key}: {state} {} ago{attempts}: {why}", age(*last_s))
    };
    let others = devices.len() - shown;
    let rest = format!("and {}: see 'vpnd device list'", count(others, "other WireGuard device"));
    devices[..shown].iter().map(line).chain((others > 0).then_some(rest)).collect()
}

fn steering(steering: Steering) -> &'static str {
    match steering {
        Steering::Cbpf => "the kernel steers datagrams to their shard",
        Steering::Hash => "no steering: the kernel spreads datagrams by address, shards pass them on",
    }
}

/// The protections of a process, with those that are missing.
fn process(process: &Process) -> String {
    let Protections { uid, no_capabilities, no_new_privs, seccomp, landlock, undumpable } =
        &process.protections;
    let landlock = match landlock {
        Landlock::Full => "landlock",
        Landlock::Partial => "landlock as far as this kernel has it",
        Landlock::Missing => "NO landlock",
    };
    let protections = [
        if *no_capabilities { "no capabilities" } else { "CAPABILITIES LEFT" },
        if *no_new_privs { "no new privileges" } else { "NEW PRIVILEGES POSSIBLE" },
        if *seccomp { "seccomp" } else { "NO seccomp" },
        landlock,
        if *undumpable { "no dumps" } else { "DUMPS POSSIBLE" },
    ];
    format!("process {}: user {uid}, {}", process.name, protections.join(", "))
}

fn offloads(offloads: &Offloads) -> String {
    let (tun, udp) = (&offloads.tun, &offloads.udp);
    let features = [
        (tun.checksum, "checksum"),
        (tun.tso4, "tso4"),
        (tun.tso6, "tso6"),
        (tun.tso_ecn, "tso-ecn"),
        (tun.uso, "uso"),
    ];
    let on: Vec<&str> = features.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
    let on = if on.is_empty() { "none".to_owned() } else { on.join(" ") };
    let refused = if udp.gso_gave_up { ", refused for some peers" } else { "" };
    let gso = match udp.gso_segments {
        segments @ 2.. => format!("gso of {segments}{refused}"),
        _ => "no gso".to_owned(),
    };
    let gro = if udp.gro { "gro" } else { "no gro" };
    let fragments = if udp.may_fragment { ", datagrams may be fragmented" } else { "" };
    let buffers =
        format!("buffers {} in, {} out", bytes(udp.recv_buffer as u64), bytes(udp.send_buffer as u64));
    format!("offloads: tun {on}{}; udp {gso}, {gro}, {buffers}{fragments}", refusals(tun))
}

/// Offloads that the kernel accepted and later refused.
fn refusals(tun: &Tun) -> String {
    let gave_up = [(tun.checksum_gave_up, "checksum"), (tun.tso_gave_up, "tso"), (tun.uso_gave_up, "uso")];
    let gave_up = join(gave_up.iter().filter(|(gone, _)| *gone).map(|(_, name)| name), " ");
    match (tun.refused, gave_up.as_str()) {
        (0, _) => String::new(),
        (refused, "") => format!(" ({refused} writes refused)"),
        (refused, gave_up) => format!(" ({refused} writes refused, writing {gave_up} given up)"),
    }
}

fn suites(status: &Status) -> String {
    join(status.suites.iter().map(|s| format!("{} ({}, {} MB/s)", s.suite, s.backend, s.mbps)), ", ")
}

fn traffic(sessions: &[Session], rates: Option<&Rates>) -> String {
    let connected = sessions.iter().filter(|session| session.connected).count();
    let rx = sessions.iter().map(|session| session.rx_bytes).sum();
    let tx = sessions.iter().map(|session| session.tx_bytes).sum();
    let mut line = format!(
        "{}, {connected} connected, received {}, sent {}",
        count(sessions.len(), "session"),
        bytes(rx),
        bytes(tx)
    );
    if let Some(total) = rates.map(Rates::total) {
        // Writing to a string does not fail.
        let _ = write!(line, "; now receiving {}, sending {}", bits(total.rx), bits(total.tx));
    }
    line
}

/// The counts that are not zero; `None` if all are.
fn counts(title: &str, counts: &std::collections::BTreeMap<String, u64>) -> Option<String> {
    let list = join(counts.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{name} {n}")), ", ");
    (!list.is_empty()).then(|| format!("{title}: {list}"))
}

fn sessions(sessions: &[Session], rates: Option<&Rates>) -> String {
    let mut header = vec!["SESSION", "USER", "INNER", "OUTER", "SUITE", "EPOCH", "STATE", "MTU", "RX", "TX"];
    if rates.is_some() {
        header.extend(["RX RATE", "TX RATE"]);
    }
    let any_user_limit = sessions.iter().any(|session| session.user_rx_limit + session.user_tx_limit != 0);
    let any_limit = any_user_limit || sessions.iter().any(is_limited);
    if any_limit {
        header.extend(["RX LIMIT", "TX LIMIT", "GROUP"]);
    }
    if any_user_limit {
        header.extend(["USER RX LIMIT", "USER TX LIMIT"]);
    }
    header.extend(["AGE", "KEYS", "IDLE"]);
    let profiles = sessions.iter().any(|session| session.profile.is_some());
    if profiles {
        header.insert(2, "PROFILE");
    }
    let numbers = header.iter().position(|title| *title == "RX").unwrap_or(header.len());
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header);
    for session in sessions {
        let mut row = row(session, rates, (any_limit, any_user_limit));
        if profiles {
            row.insert(2, session.profile.clone().unwrap_or_else(|| NOTHING_THERE.to_owned()));
        }
        table.add_row(row);
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if i >= numbers {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn outer_address(outer: &SocketAddr, over_tcp: bool) -> String {
    if over_tcp { format!("{outer} (TCP)") } else { outer.to_string() }
}

fn is_limited(session: &Session) -> bool {
    session.rx_limit != 0 || session.tx_limit != 0 || session.group_limit
}

fn row(session: &Session, rates: Option<&Rates>, (limits, user_limits): (bool, bool)) -> Vec<String> {
    let inner_v4 = session.inner_v4.map(|address| address.to_string());
    let inner_v6 = session.inner_v6.map(|address| address.to_string());
    let suite = session.suite.iter().chain(&session.backend).map(String::as_str);
    let suite = suite.chain((session.protocol == Protocol::WireGuard).then_some("wireguard"));
    let suite = suite.chain(session.two_devices_s.map(|_| "two devices!"));
    let mut row = vec![
        session.id.chars().take(ID_DIGITS).collect(),
        session.user.clone(),
        or_nothing(join(inner_v4.iter().chain(&inner_v6), "\n")),
        or_nothing(join(session.outer.iter().map(|outer| outer_address(outer, session.over_tcp)), "\n")),
        or_nothing(join(suite, "\n")),
        session.epoch.map_or(NOTHING_THERE.to_owned(), |epoch| epoch.to_string()),
        if session.connected { "connected" } else { "away" }.to_owned(),
        session.path_mtu.map_or(NOTHING_THERE.to_owned(), |mtu| path(mtu, session.is_narrow())),
        bytes(session.rx_bytes),
        bytes(session.tx_bytes),
    ];
    if let Some(rates) = rates {
        let rate = rates.sessions.get(&session.id);
        row.extend([rate.map(|rate| rate.rx), rate.map(|rate| rate.tx)].map(|rate| match rate {
            Some(rate) => bits(rate),
            None => NOTHING_THERE.to_owned(),
        }));
    }
    if limits {
        row.extend([session.rx_limit, session.tx_limit].map(limit));
        // The group's limits are those of all its sessions together.
        row.push(if session.group_limit { "shared" } else { NOTHING_THERE }.to_owned());
    }
    if user_limits {
        row.extend([session.user_rx_limit, session.user_tx_limit].map(limit));
    }
    row.push(age(session.connected_s));
    row.push(session.last_handshake_s.map_or(NOTHING_THERE.to_owned(), age));
    row.push(age(session.idle_s));
    row
}

fn limit(bytes_per_s: u64) -> String {
    if bytes_per_s == 0 { NOTHING_THERE.to_owned() } else { bits(bytes_per_s as f64 * 8.0) }
}

/// The largest packet that the path carries, and whether longer ones of IPv6 travel in halves.
fn path(mtu: u16, narrow: bool) -> String {
    if narrow { format!("{mtu}, halves") } else { mtu.to_string() }
}

fn or_nothing(text: String) -> String {
    if text.is_empty() { NOTHING_THERE.to_owned() } else { text }
}

fn join(items: impl Iterator<Item = impl ToString>, separator: &str) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(separator)
}

fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Seconds in their two largest units.
pub(super) fn age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{minutes}m {}s", seconds % 60),
        3_600..86_400 => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}

/// Binary units, as files have.
fn bytes(n: u64) -> String {
    if n < 1_024 { format!("{n} B") } else { scaled(n as f64, 1_024.0, &["KiB", "MiB", "GiB", "TiB", "PiB"]) }
}

/// Decimal units, as links have.
fn bits(per_second: f64) -> String {
    if per_second < 1_000.0 {
        format!("{per_second:.0} bit/s")
    } else {
        scaled(per_second, 1_000.0, &["kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
    }
}

/// `value`, at least `base`, in the unit that leaves less than `base`. Values that would round up
/// to it count too.
fn scaled(value: f64, base: f64, units: &[&str]) -> String {
    let mut value = value / base;
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    for larger in units {
        if value < base - 0.05 {
            break;
        }
        value /= base;
        unit = larger;
    }
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_ipc::admin::testing::status;

    #[test]
    fn units_change_where_they_should() {
        assert_eq!(
            [0, 59, 60, 3_599, 3_600, 86_399, 86_400, 183_600].map(age),
            ["0s", "59s", "1m 0s", "59m 59s", "1h 0m", "23h 59m", "1d 0h", "2d 3h"]
        );
        let most = (1 << 20) - 1;
        assert_eq!(
            [0, 1_023, 1_024, most, 1 << 20, u64::MAX].map(bytes),
            ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.0 MiB", "16384.0 PiB"]
        );
        assert_eq!(
            [0.0, 999.0, 1_000.0, 999_999.0, 8.25e9].map(bits),
            ["0 bit/s", "999 bit/s", "1.0 kbit/s", "1.0 Mbit/s", "8.2 Gbit/s"]
        );
    }

    #[test]
    fn a_status_for_people() {
        let wanted = "\
vpnd 0.1.0, process 812, up 2d 3h
listening on [::]:4433
2 shards, the kernel steers datagrams to their shard
offloads: tun checksum tso4 tso6; udp gso of 64, gro, buffers 4.0 MiB in, 4.0 MiB out
suites: aes-256-gcm (aws-lc, 9800 MB/s), chacha20-poly1305 (ring, 1900 MB/s)
2 sessions, 1 connected, received 1.5 GiB, sent 2.0 KiB
certificate: good for 21d 23h
process worker: user 990, no capabilities, no new privileges, seccomp, landlock as far as this kernel has it, no dumps
firewall inet vpnd_vpnd0: put back 2 times after another program had removed or changed it; 30 packets over max_connections_per_address dropped
web pages: served, 3 browsers logged in, 2 connections for clients over TCP, certificate good for 23d 3h
pool 10.86.0.0/16: 2 of 65533 addresses taken
pool fd00::/64: 1 of 1048576 addresses taken
source campus: NO ANSWER for 10s, answered 12, failed 3; NO LONGER SHOWS 12 USERS with sessions, which go on: see 'vpnd doctor'
source guests: not asked yet, answered 0, failed 0; accounting: sent 41, waiting 1, lost 2
logins: accepted 2, wrong_password 1
handshakes: accepted 4, retried 8
dropped: replayed 7
polling: found 9, time_ms 12
unused congestion marks: ce_in_ect1 3

SESSION       USER  INNER      OUTER            SUITE        EPOCH  STATE      MTU                RX       TX    AGE    KEYS  IDLE
0123456789ab  ann   10.86.0.2  192.0.2.7:40001  aes-256-gcm  3      connected  1200, halves  1.5 GiB  2.0 KiB  1h 1m  1m 30s    2s
                    fd00::2    192.0.2.7:40002  aws-lc
ba9876543210  bob   10.86.0.3  -                -            -      away       -                 0 B      0 B     5s       -    5s
";
        assert_eq!(render(&status(), None), wanted);
    }

    #[test]
    fn web_pages_without_a_valid_certificate_are_reported() {
        let line = |certificate_left_s| portal(Portal { certificate_left_s, ..status().portal.unwrap() });
        assert!(line(Some(0)).contains("MISSING OR EXPIRED"));
        assert!(line(Some(3_600)).ends_with("certificate good for 1h 0m"));
        assert!(!line(None).contains("certificate"), "an older daemon does not say");
    }

    #[test]
    fn limits_are_shown_where_one_is_set() {
        let mut status = status();
        assert!(!render(&status, None).contains("LIMIT"));
        (status.sessions[0].rx_limit, status.sessions[0].tx_limit) = (250_000, 1_500_000_000);
        status.sessions[1].group_limit = true;
        status.sessions[1].profile = Some("guests".to_owned());
        let text = render(&status, None);
        let wanted = "\
TX    RX LIMIT     TX LIMIT   GROUP    AGE    KEYS  IDLE
2.0 KiB  2.0 Mbit/s  12.0 Gbit/s       -  1h 1m  1m 30s    2s
0 B           -            -  shared     5s       -    5s
";
        for line in wanted.lines() {
            assert!(text.contains(line), "{text}");
        }
        status.sessions[1].user_tx_limit = 500_000;
        let text = render(&status, None);
        assert!(text.contains("GROUP  USER RX LIMIT  USER TX LIMIT    AGE"), "{text}");
        assert!(text.contains("shared              -     4.0 Mbit/s     5s"), "{text}");
    }

    #[test]
    fn wireguard_devices_that_are_not_let_in_are_shown_with_the_reason() {
        let mut status = status();
        assert!(!render(&status, None).contains("WireGuard"));
        let device = |key: &str, walled, times| RefusedDevice {
            key: key.to_owned(),
            why: "so".to_owned(),
            walled,
            times,
            last_s: 95,
        };
        status.refused_devices = vec![device("AAAAAAAA", true, 1), device("BBBBBBBB", false, 12)];
        let text = render(&status, None);
        let wanted = "WireGuard device AAAAAAAA: WALLED 1m 35s ago: so\n\
                      WireGuard device BBBBBBBB: NOT LET IN 1m 35s ago, 12 attempts: so\nlogins: ";
        assert!(text.contains(wanted), "{text}");
        status.refused_devices = vec![device("CCCCCCCC", true, 1); 7];
        let text = render(&status, None);
        assert_eq!(text.matches("CCCCCCCC").count(), REFUSED_DEVICES, "{text}");
        assert!(text.contains("and 2 other WireGuard devices: see 'vpnd device list'\n"), "{text}");
    }

    #[test]
    fn a_drain_is_shown() {
        let mut status = status();
        let mut shown = |drain| {
            status.drain = drain;
            render(&status, None)
        };
        assert!(!shown(None).contains("DRAIN"));
        let drain = Drain { in_use: 1, left_s: Some(95), over: false };
        assert!(
            shown(Some(drain))
                .contains("DRAINING: logins are refused, 1 session in use yet, closed in 1m 35s")
        );
        assert!(shown(Some(Drain { left_s: None, ..drain })).contains("1 session in use yet\n"));
        assert!(shown(Some(Drain { over: true, ..drain })).contains("DRAINED"));
    }

    #[test]
    fn rates_are_of_the_same_session() {
        let before = status();
        let mut after = before.clone();
        after.sessions[0].rx_bytes += 250_000_000;
        after.sessions[0].tx_bytes += 125;
        after.sessions[1].id = "f".repeat(32);
        after.sessions[1].rx_bytes += 1 << 40;
        let rates = Rates::between(&before, &after, Duration::from_secs(2));
        assert_eq!(rates.total(), Rate { rx: 1e9, tx: 500.0 });
        let text = render(&after, Some(&rates));
        assert!(text.contains("now receiving 1.0 Gbit/s, sending 500 bit/s"), "{text}");
        assert!(text.contains("RX RATE"), "{text}");
        // A gateway that was restarted counts from zero again.
        let restarted = Rates::between(&after, &before, Duration::from_secs(1));
        assert_eq!(restarted.total(), Rate::default());
    }

    #[test]
    fn disabled_features_are_shown_and_names_are_sanitised() {
        let mut status = status();
        status.steering = Steering::Hash;
        status.offloads = Offloads::default();
        (status.offloads.udp.gso_segments, status.offloads.udp.gso_gave_up) = (64, true);
        (status.offloads.tun.refused, status.offloads.tun.uso_gave_up) = (3, true);
        status.sessions[0].user = "ann\u{1b}[2J".to_owned();
        let text = render(&status, None);
        assert!(text.contains("no steering"), "{text}");
        assert!(
            text.contains("tun none (3 writes refused, writing uso given up); udp gso of 64, refused for some peers, no gro"),
            "{text}"
        );
        assert!(text.contains("ann?[2J"), "{text}");
    }

    #[test]
    fn a_privileged_process_that_an_upgrade_left_behind_is_named() {
        let mut status = status();
        status.version = "0.2.0".to_owned();
        let text = render(&status, None);
        assert!(
            text.starts_with("vpnd 0.2.0 (privileged process 0.1.0 until a restart), process 812"),
            "{text}"
        );
    }
}
