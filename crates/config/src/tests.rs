//! `server.toml`: every problem at once, each with its line and what would be right.

use std::path::Path;

use vpnd_proto::control::MAX_ROUTES;

use super::testing::LEAST;
use super::*;

fn parse(text: &str) -> Result<ServerConfig, Invalid> {
    ServerConfig::parse(text, "server.toml", Path::new("/etc/vpnd"))
}

/// The problems of the smallest configuration with `extra` after it, as the user sees them.
fn problems(extra: &str) -> Vec<String> {
    match parse(&format!("{LEAST}{extra}")) {
        Ok(_) => Vec::new(),
        Err(invalid) => invalid.to_string().lines().map(str::to_owned).collect(),
    }
}

fn only_problem(extra: &str) -> String {
    let mut all = problems(extra);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

#[test]
fn the_smallest_configuration_has_safe_defaults() {
    let config = parse(LEAST).unwrap();
    assert_eq!(config.tls.certificate, Path::new("/etc/vpnd/server.pem"));
    assert_eq!(config.server.state_dir, Path::new("/etc/vpnd/state"));
    assert_eq!(config.admin.socket, Path::new("/etc/vpnd/state/admin.sock"));
    assert_eq!(config.server.listen, "[::]:4433".parse().unwrap());
    assert_eq!(config.tunnel.gateway_v4(), Some(Ipv4Addr::new(10, 86, 0, 1)));
    assert_eq!((config.tunnel.gateway_v6(), config.tunnel.mtu), (None, 1420));
    assert!(!config.policy.client_to_client && config.policy.rules.is_empty());
    assert_eq!((config.nat.mode, config.admin.metrics), (NatMode::None, None));
    assert_eq!((config.timeouts.rekey_after, config.timeouts.idle_timeout), (Duration::from_secs(120), None));
    assert!(config.crypto.suites.is_empty());
}

#[test]
fn an_unknown_key_has_its_line_and_the_nearest_known_key() {
    assert_eq!(
        only_problem("poool_v4 = '10.0.0.0/8'\n"),
        "server.toml:6: unknown key 'poool_v4' in [tunnel]; did you mean 'pool_v4'?"
    );
    assert_eq!(
        only_problem("[limit]\nmax_sessions = 3\n"),
        "server.toml:6: unknown section 'limit' in the top of the file; did you mean 'limits'?"
    );
    assert_eq!(
        only_problem("[nat]\nzzz = 1\n"),
        "server.toml:7: unknown key 'zzz' in [nat]; it knows 'mode', 'outgoing_interface', 'addresses', 'ports', \
         'ports_per_client'"
    );
    let rule = "[[policy.rules]]\naction = 'allow'\nprotocl = 'tcp'\n";
    assert_eq!(
        only_problem(rule),
        "server.toml:8: unknown key 'protocl' in [policy.rules]; did you mean 'protocol'?"
    );
}

#[test]
fn a_wrong_type_or_value_says_what_would_be_right() {
    for (extra, expected) in [
        (
            "mtu = '1420'",
            "server.toml:6: 'mtu' in [tunnel] must be a whole number from 1280 to 65400, not a string",
        ),
        ("mtu = 576", "server.toml:6: 'mtu' in [tunnel] must be a whole number from 1280 to 65400, not 576"),
        ("mtu = -1", "server.toml:6: 'mtu' in [tunnel] must be a whole number from 1280 to 65400, not -1"),
        (
            "pool_v6 = '10.0.0.0/8'",
            "server.toml:6: 'pool_v6' in [tunnel] must be an IPv6 network such as \"fd12:3456:789a::/64\", \
             not \"10.0.0.0/8\"",
        ),
        ("[nat]\nmode = 'nftable'", "did you mean 'nftables'?"),
        (
            "[policy]\nclient_to_client = 'yes'",
            "server.toml:7: 'client_to_client' in [policy] must be true or false",
        ),
        ("[push]\nroutes = ['10.0.0.0/8', 7]", "server.toml:7: 'routes' in [push] must be a list"),
        ("[push]\nroutes = ['10.20.1.1/16']", "write 10.20.0.0/16"),
        ("[crypto]\nsuites = ['aes-256-gcm', 'rot13']", "not \"rot13\""),
        ("[crypto]\nsuites = ['auto', 'aes-256-gcm']", "not both"),
        ("[crypto]\nsuites = ['aes-256-gcm', 'aes-256-gcm']", "twice"),
        ("[crypto]\nbackend = 'rings'", "did you mean 'ring'?"),
        ("[timeouts]\nkeepalive_s = 50", "at most half of 'dead_peer_timeout_s' (90 s)"),
        ("[server]\nlisten = ['[::]:4433', '[::]:443']", "one address with a port"),
        ("[server]\nlisten = '[::]:0'", "port from 1 to 65535"),
        ("[tls.x]", "unknown key 'x' in [tls]"),
        ("[log]\nlevel = 'info,,=='", "'level' in [log]: the log filter"),
        ("[log]\nlevel = 'wran'", "'level' in [log]: the log filter \"wran\" names neither a level"),
        ("[[policy.rules]]\nfrom = 'any'", "server.toml:6: [policy.rules] needs the key 'action'"),
        ("[[policy.rules]]\naction = 'allow'\nports = '80'", "'ports' needs protocol"),
        ("[[policy.rules]]\naction = 'allow'\nprotocol = 'tcp'\nports = '90-80'", "not \"90-80\""),
        ("name = 'a/b'", "'name' must be an interface name"),
        (
            "[limits]\nsession_rate_down = '50 mbps'",
            "server.toml:7: 'session_rate_down' in [limits] must be bits per second such as \"800kbit\"",
        ),
        (
            "[limits]\nsession_rate_up = 50",
            "\"50mbit\" or \"1.5gbit\", from 64kbit to 1000gbit, or \"none\", not a whole number",
        ),
        ("[server]\nmore_ports = '443'", "choose \"route\" or \"nftables\""),
        ("[nat]\nmode = 'route'\n[server]\nmore_ports = '4433'", "not that of 'listen'"),
        ("[[limits.groups]]\nrate_up = '1mbit'", "server.toml:6: [limits.groups] needs the key 'name'"),
        ("[[limits.groups]]\nname = 'a'\nrate_dwn = '1mbit'", "did you mean 'rate_down'?"),
        (
            "[[limits.groups]]\nname = 'a'\n[[limits.groups]]\nname = 'a'",
            "the group 'a' has two entries in [[limits.groups]]",
        ),
    ] {
        let problem = only_problem(extra);
        assert!(problem.contains(expected), "{extra:?} gives {problem:?}");
    }
}

#[test]
fn a_gateway_is_reached_at_its_names_and_then_at_more_ports() {
    let reached = |more: &str| {
        let config = parse(&format!("{LEAST}[nat]\nmode = 'route'\n[server]\n{more}")).unwrap();
        let all = config.server.reached_at(vec!["vpn.example".to_owned(), "192.0.2.1".to_owned()]);
        all.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(reached(""), ["vpn.example:4433", "192.0.2.1:4433"]);
    let expected = ["vpn.example:4433", "192.0.2.1:4433", "vpn.example:443", "192.0.2.1:443"];
    assert_eq!(reached("more_ports = ['443']\n"), expected);
    let named = "more_ports = '443'\naddresses = ['a.example:4433', 'a.example:443', 'b.example:53']\n";
    assert_eq!(reached(named), ["a.example:4433", "a.example:443", "b.example:53", "b.example:443"]);
}

/// A list of this many networks.
fn networks(count: usize) -> String {
    let networks: Vec<_> = (0..count).map(|n| format!("'10.{}.{}.0/24'", 100 + n / 256, n % 256)).collect();
    format!("[{}]", networks.join(", "))
}

#[test]
fn no_profile_has_more_routes_than_its_clients_can_be_given() {
    // The pool, the gateway's address in it and a name server that stands alone come on top.
    let most = MAX_ROUTES - 3;
    let servers = "dns = ['10.90.0.53', '10.100.0.53']";
    let push = |count| format!("[push]\nroutes = {}\n{servers}\n", networks(count));
    let profile = |count| format!("[[profile]]\nname = 'staff'\nroutes = {}\n{servers}\n", networks(count));
    for fitting in [push(most), profile(most)] {
        assert!(parse(&format!("{LEAST}{fitting}")).is_ok());
    }
    for (extra, line) in [(push(most + 1), 7), (profile(most + 1), 8)] {
        let problem = only_problem(&extra);
        let expected = format!(
            "server.toml:{line}: 'routes' has {} networks, which makes {} routes of a client",
            most + 1,
            MAX_ROUTES + 1
        );
        assert!(
            problem.contains(&expected) && problem.contains(&format!("at most {MAX_ROUTES}")),
            "{problem}"
        );
    }
    // A profile without networks has those of [push], and its own name servers.
    let more = "[[profile]]\nname = 'staff'\ndns = ['10.90.0.53', '10.90.0.54']\n";
    let problem = only_problem(&format!("{}{more}", push(most)));
    assert!(problem.contains("routes of a client"), "{problem}");
}

#[test]
fn all_problems_are_listed_at_once_in_the_order_of_their_lines() {
    let invalid = parse("[tunnel]\nmtu = 1\nnam = 'x'\n[nat]\nmode = 1\n").unwrap_err();
    let lines: Vec<_> = invalid.problems.iter().map(|problem| problem.line).collect();
    // certificate and key are missing with their whole section, so they have no line.
    assert_eq!(lines, [Some(1), Some(2), Some(3), Some(5), None, None], "{invalid}");
    let syntax = parse("[tunnel\nmtu = = 3\n").unwrap_err();
    assert!(syntax.problems.iter().all(|problem| problem.line.is_some()), "{syntax}");
    assert!(!syntax.problems.is_empty());
    let twice = parse("[tunnel]\nmtu = 1400\n[nat]\n[tunnel]\nname = 'x'\n").unwrap_err();
    assert!(twice.to_string().contains(":4: 'tunnel' is there already"), "{twice}");
}

#[test]
fn metrics_listen_on_loopback_by_default() {
    assert!(only_problem("[admin]\nmetrics = '0.0.0.0:9586'").contains("metrics_public"));
    assert!(problems("[admin]\nmetrics = '[::1]:9586'").is_empty());
    assert!(problems("[admin]\nmetrics = '0.0.0.0:9586'\nmetrics_public = true").is_empty());
}

#[test]
fn a_group_has_the_session_rates_of_all_unless_it_names_its_own() {
    let text = "[limits]\nsession_rate_down = '80mbit'\nsession_rate_up = '8mbit'\nuser_rate_up = '24mbit'\n\
                [[limits.groups]]\nname = 'guests'\nrate_down = '1gbit'\nsession_rate_down = '16mbit'\n\
                user_rate_down = '32mbit'\n\
                [[limits.groups]]\nname = 'staff'\nsession_rate_up = 'none'\n";
    let rates = parse(&format!("{LEAST}{text}")).unwrap().limits.rates;
    let pair = |rates: vpnd_proto::rate::Rates| (rates.down, rates.up);
    assert_eq!(pair(rates.session), (10_000_000, 1_000_000));
    let [guests, staff] = rates.groups.as_slice() else { panic!("two groups") };
    assert_eq!((pair(guests.together), pair(guests.session)), ((125_000_000, 0), (2_000_000, 1_000_000)));
    assert_eq!((pair(rates.user), pair(guests.user)), ((0, 3_000_000), (4_000_000, 3_000_000)));
    assert_eq!((pair(staff.together), pair(staff.session)), ((0, 0), (10_000_000, 0)));
}

#[test]
fn rules_are_read_in_order() {
    let rules = "[[policy.rules]]\naction = 'deny'\nfrom = 'group:guests'\nto = ['10.20.0.0/16', '2001:db8::1']\n\
                 [[policy.rules]]\naction = 'allow'\nto = 'clients'\nprotocol = 'tcp'\nports = ['22', '8000-8080']\n";
    let config = parse(&format!("{LEAST}{rules}")).unwrap();
    let [first, second] = config.policy.rules.as_slice() else { panic!("two rules") };
    assert_eq!(
        (first.action, first.from.as_slice()),
        (Action::Deny, &[Selector::Group("guests".into())][..])
    );
    assert_eq!(first.to[1], Selector::Net("2001:db8::1/128".parse().unwrap()));
    assert_eq!((second.to.as_slice(), second.protocol), (&[Selector::Clients][..], Some(Protocol::Tcp)));
    assert_eq!(second.ports, [PortRange { first: 22, last: 22 }, PortRange { first: 8000, last: 8080 }]);
}

#[test]
fn a_huge_or_deep_document_is_refused() {
    let huge = "#".repeat(document::MAX_DOCUMENT_BYTES + 1);
    assert!(parse(&huge).unwrap_err().to_string().contains("more than"));
    let deep = format!("x = {}", "[".repeat(10_000));
    assert!(!parse(&deep).unwrap_err().problems.is_empty());
}
