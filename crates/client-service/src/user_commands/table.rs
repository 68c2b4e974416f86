//! Tunnels for people: a few lines for each.
//!
//! Pure: text comes out, nothing is printed. Text that came from a gateway loses its control
//! characters here.

use std::fmt::Write as _;
use std::time::Duration;

use vpnd_client::user_messages::{Transport, TunnelDetails, TunnelState, TunnelStatus};
use vpnd_sys::text::harmless;

/// Routes that are named.
const NAMED_ROUTES: usize = 8;

/// All of them, each line with a line break. With a look before, and the time since, rates too.
pub(super) fn render(
    tunnels: &[TunnelStatus],
    earlier: Option<(Duration, &[TunnelStatus])>,
    now_s: u64,
) -> String {
    if tunnels.is_empty() {
        return "nothing is connected; `vpnd list` shows the profiles of this machine\n".to_owned();
    }
    let mut text = String::new();
    for tunnel in tunnels {
        let before = earlier.and_then(|(elapsed, all)| {
            let same = |other: &&TunnelStatus| {
                (&other.profile, other.uid, other.since_s) == (&tunnel.profile, tunnel.uid, tunnel.since_s)
            };
            Some((elapsed, all.iter().find(same)?.details.as_ref()?))
        });
        // Writing to a String can't fail.
        let _ = writeln!(text, "{}", headline(tunnel, now_s));
        for line in tunnel.details.iter().flat_map(|details| facts(details, before)) {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

/// One line for a tunnel that has just been connected.
pub(super) fn connected(tunnel: &TunnelStatus) -> String {
    let Some(details) = &tunnel.details else { return format!("{}: connected", tunnel.profile) };
    let addresses = joined(&details.addresses);
    let (over, interface) = (transport(details), &details.interface);
    harmless(&format!("{}: connected{over} as {addresses} on {interface}", tunnel.profile))
}

fn headline(tunnel: &TunnelStatus, now_s: u64) -> String {
    let since = age(now_s.saturating_sub(tunnel.since_s));
    let summary = match (tunnel.state, &tunnel.details) {
        (TunnelState::Connected, Some(details)) => {
            let address = details.gateway_address.as_ref().map(|address| format!(" ({address})"));
            let (over, gateway) = (transport(details), &details.gateway);
            format!("connected{over} to {gateway}{} for {since}", address.unwrap_or_default())
        }
        (TunnelState::Connected, None) => format!("connected for {since}"),
        (TunnelState::Connecting, _) => format!("{}, for {since}", tunnel.said),
        (TunnelState::Ended, _) => format!("ended {since} ago: {}", tunnel.said),
    };
    let ownership = if tunnel.machine { " (this machine's own)" } else { "" };
    harmless(&format!("{}{ownership}: {summary}", tunnel.profile))
}

fn transport(details: &TunnelDetails) -> &'static str {
    match details.transport {
        Some(Transport::Udp) => " over UDP",
        Some(Transport::Tcp) => " over TCP, which is slower",
        None => "",
    }
}

fn facts(details: &TunnelDetails, before: Option<(Duration, &TunnelDetails)>) -> Vec<String> {
    let rate = |now: u64, of: fn(&TunnelDetails) -> u64| match before {
        Some((elapsed, before)) => {
            let bits = now.saturating_sub(of(before)) as f64 * 8.0 / elapsed.as_secs_f64().max(1e-9);
            format!(" ({})", scaled(bits, "bit/s"))
        }
        None => String::new(),
    };
    let mut path: Vec<String> = Vec::new();
    path.extend(details.rtt_us.map(|rtt_us| format!("round trip {:.1} ms", rtt_us as f64 / 1e3)));
    if details.control_sent > 0 {
        let loss = details.control_lost as f64 * 100.0 / details.control_sent as f64;
        path.push(format!("loss {loss:.1} %"));
    }
    path.extend(details.mtu.map(|mtu| format!("packets up to {mtu} bytes")));
    let more = details.routes.len().saturating_sub(NAMED_ROUTES);
    let mut routes = joined(&details.routes[..details.routes.len().min(NAMED_ROUTES)]);
    if more > 0 {
        let _ = write!(routes, " and {more} more");
    }
    let mut dns = joined(&details.dns);
    if !details.search.is_empty() {
        let _ = write!(dns, " for {}", joined(&details.search));
    }
    let traffic = format!(
        "received {}{}, sent {}{}",
        scaled(details.rx_bytes as f64, "B"),
        rate(details.rx_bytes, |details| details.rx_bytes),
        scaled(details.tx_bytes as f64, "B"),
        rate(details.tx_bytes, |details| details.tx_bytes),
    );
    let addresses = format!("{} on {}", joined(&details.addresses), details.interface);
    let lines = [
        ("addresses", addresses),
        ("routes", routes),
        ("DNS", dns),
        ("path", path.join(", ")),
        ("traffic", traffic),
    ];
    let lines = lines.iter().map(|(name, value)| harmless(&format!("{name}: {value}")));
    details.refusal.as_deref().map(harmless).into_iter().chain(lines).collect()
}

fn joined(all: &[String]) -> String {
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

/// A number with a decimal prefix.
fn scaled(number: f64, unit: &str) -> String {
    let steps = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match steps.iter().find(|(size, _)| number >= *size) {
        Some((size, prefix)) => format!("{:.1} {prefix}{unit}", number / size),
        None => format!("{number:.0} {unit}"),
    }
}

fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunnel() -> TunnelStatus {
        let text = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let details = TunnelDetails {
            interface: "vpn0".to_owned(),
            gateway: "vpn.example".to_owned(),
            gateway_address: Some("192.0.2.1:4433".to_owned()),
            transport: Some(Transport::Udp),
            addresses: text(&["10.86.0.9", "fd86::9"]),
            routes: text(&["10.200.0.0/24"]),
            dns: text(&["10.0.0.53"]),
            search: text(&["uni.example"]),
            mtu: Some(1_420),
            rtt_us: Some(12_345),
            control_sent: 200,
            control_lost: 3,
            rx_bytes: 1_234_567,
            tx_bytes: 89,
            rx_packets: 1_000,
            tx_packets: 2,
            refusal: None,
        };
        let (profile, said) = ("work".to_owned(), "connected over UDP".to_owned());
        TunnelStatus {
            profile,
            uid: 1_000,
            state: TunnelState::Connected,
            since_s: 100,
            said,
            details: Some(details),
            machine: false,
        }
    }

    #[test]
    fn a_tunnel_is_a_few_lines() {
        let now = tunnel();
        assert_eq!(
            render(std::slice::from_ref(&now), None, 230),
            "work: connected over UDP to vpn.example (192.0.2.1:4433) for 2 min\n  \
             addresses: 10.86.0.9, fd86::9 on vpn0\n  \
             routes: 10.200.0.0/24\n  \
             DNS: 10.0.0.53 for uni.example\n  \
             path: round trip 12.3 ms, loss 1.5 %, packets up to 1420 bytes\n  \
             traffic: received 1.2 MB, sent 89 B\n"
        );
        let mut before = now.clone();
        before.details.as_mut().unwrap().rx_bytes = 234_567;
        let text = render(std::slice::from_ref(&now), Some((Duration::from_secs(2), &[before])), 230);
        assert!(text.contains("received 1.2 MB (4.0 Mbit/s), sent 89 B (0 bit/s)"), "{text}");
        let machines = TunnelStatus { machine: true, ..now.clone() };
        assert!(
            render(&[machines], None, 230).starts_with("work (this machine's own): connected over UDP to")
        );
        let mut refused = now.clone();
        refused.details.as_mut().unwrap().refusal = Some("not in force\x1b[2J".to_owned());
        let text = render(&[refused], None, 230);
        assert_eq!(text.lines().nth(1), Some("  not in force [2J"), "{text}");
        assert_eq!(connected(&now), "work: connected over UDP as 10.86.0.9, fd86::9 on vpn0");
    }

    #[test]
    fn a_tunnel_that_is_down_shows_the_reason() {
        let ended = TunnelStatus {
            state: TunnelState::Ended,
            said: "the login was refused\x1b[2J\nroot: ".to_owned(),
            details: None,
            ..tunnel()
        };
        assert_eq!(
            render(&[ended], None, 4_000),
            "work: ended 1 h 5 min ago: the login was refused [2J root:\n"
        );
        assert!(render(&[], None, 0).contains("nothing is connected"));
    }

    #[test]
    fn the_names_in_json_stay() {
        let json = serde_json::to_value(tunnel()).unwrap();
        let names =
            |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&json), ["details", "machine", "profile", "said", "since_s", "state", "uid"]);
        assert_eq!(
            names(&json["details"]),
            [
                "addresses",
                "control_lost",
                "control_sent",
                "dns",
                "gateway",
                "gateway_address",
                "interface",
                "mtu",
                "refusal",
                "routes",
                "rtt_us",
                "rx_bytes",
                "rx_packets",
                "search",
                "transport",
                "tx_bytes",
                "tx_packets",
            ]
        );
        assert_eq!((&json["state"], &json["details"]["transport"]), (&"connected".into(), &"udp".into()));
    }
}
