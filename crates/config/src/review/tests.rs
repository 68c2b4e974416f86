//! Each thing that hardly anybody means is found, on its line, and what is meant is left alone.

use std::time::{Duration, UNIX_EPOCH};

use super::testing::{BASE, Bench, ROUTES};
use super::*;
use vpnd_sys::clock::wall_s;

fn only(problems: &[Problem], line: usize, words: &str) {
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].line, Some(line), "{problems:?}");
    assert!(problems[0].message.contains(words), "{problems:?}");
}

#[test]
fn a_sound_configuration_has_no_findings() {
    let review = Bench::new().review(ROUTES);
    assert!(review.errors.is_empty() && review.warnings.is_empty(), "{review:?}");
}

#[test]
fn a_worker_account_that_is_root_or_missing_is_an_error() {
    let bench = Bench::new();
    only(&bench.review(&format!("{ROUTES}[process]\nuser = 'root'\n")).errors, 11, "root");
    only(
        &bench.review(&format!("{ROUTES}[process]\nuser = 'no-such-user'\n")).errors,
        11,
        "no user 'no-such-user'",
    );
    let nobody = bench.review(&format!("{ROUTES}[process]\nuser = 'nobody'\n"));
    assert!(nobody.errors.is_empty(), "{nobody:?}");
}

#[test]
fn a_laboratory_suite_is_an_error_without_its_switch() {
    let bench = Bench::new();
    let extra = format!("{ROUTES}[crypto]\nsuites = ['aes-256-gcm', 'none']\n");
    only(&bench.review(&extra).errors, 11, "'none'");
    let machine = Machine {
        interfaces: &[],
        networks: &[],
        ports: &LocalPorts::default(),
        ipv6: true,
        now_s: wall_s(),
    };
    assert!(bench.config(&extra).review(&machine, true).errors.is_empty());
}

#[test]
fn an_interface_that_is_not_there_is_a_warning() {
    let bench = Bench::new();
    let nat = |mode: &str, name: &str| {
        bench.review(&format!("{ROUTES}[nat]\nmode = '{mode}'\noutgoing_interface = '{name}'\n")).warnings
    };
    only(&nat("nftables", "eth77"), 12, "no interface eth77");
    only(&nat("none", "eth0"), 12, "of no use");
    assert!(nat("route", "eth0").is_empty());
}

#[test]
fn a_pushed_network_behind_another_interface_than_the_outgoing_one_is_a_warning() {
    let (bench, interfaces) = (Bench::new(), ["eth0".to_owned(), "eth1".to_owned()]);
    let network_at = |network: &str, interface: &str| LocalNetwork {
        network: network.parse().unwrap(),
        interface: interface.to_owned(),
    };
    let networks = [
        network_at("10.20.7.0/24", "eth1"),
        network_at("192.0.2.0/24", "eth1"),
        network_at("0.0.0.0/0", "eth1"),
    ];
    let machine = Machine {
        interfaces: &interfaces,
        networks: &networks,
        ports: &LocalPorts::default(),
        ipv6: true,
        now_s: wall_s(),
    };
    let nat = |name: &str, routes: &str| {
        let extra =
            format!("[push]\nroutes = {routes}\n[nat]\noutgoing_interface = '{name}'\nmode = 'nftables'\n");
        bench.config(&extra).review(&machine, false).warnings
    };
    only(&nat("eth0", "['10.20.0.0/16']"), 11, "reaches 10.20.7.0/24 by eth1");
    assert!(nat("eth1", "['10.20.0.0/16']").is_empty());
    assert!(nat("eth0", "['10.30.0.0/16']").is_empty());
    assert!(nat("eth0", "['0.0.0.0/0']").is_empty(), "the Internet is behind the default route");
}

#[test]
fn clients_without_routes_are_a_warning() {
    only(&Bench::new().review("[push]\nroutes = []\n").warnings, 9, "clients reach no network; name yours");
}

#[test]
fn without_ipv6_a_gateway_with_an_ipv4_pool_starts() {
    let bench = Bench::new();
    let review = bench.review_at(ROUTES, false, wall_s());
    assert!(review.errors.is_empty());
    only(&review.warnings, 7, "IPv4 only");
    let text = BASE.replace("pool_v4 = '10.86.0.0/16'\n", "") + ROUTES;
    let alone = ServerConfig::parse(&text, "server.toml", bench.dir.path()).unwrap();
    let machine = Machine {
        interfaces: &[],
        networks: &[],
        ports: &LocalPorts::default(),
        ipv6: false,
        now_s: wall_s(),
    };
    only(&alone.review(&machine, false).errors, 6, "switched off");
}

#[test]
fn a_certificate_that_ends_soon_is_a_warning() {
    let bench = Bench::new();
    let first = first_certificate(&bench.dir.path().join("server.pem")).unwrap();
    let (_, parsed) = parse_x509_certificate(&first).unwrap();
    let ends = UNIX_EPOCH + Duration::from_secs(parsed.validity().not_after.timestamp() as u64);
    let at = |before: Duration| {
        let now_s = (ends - before).duration_since(UNIX_EPOCH).unwrap().as_secs();
        bench.review_at(ROUTES, true, now_s).warnings
    };
    const DAY: Duration = Duration::from_secs(86_400);
    only(&at(2 * DAY), 2, "in 2 days");
    only(&at(DAY / 2), 2, "in 12 hours");
    assert!(at(31 * DAY).is_empty());
    // An ordered one is not renewed by hand.
    std::fs::copy(bench.dir.path().join("server.pem"), bench.dir.path().join("portal.pem")).unwrap();
    let ends_s = parsed.validity().not_after.timestamp() as u64;
    let pages = "[portal]\nenabled = true\nacme = true\nurl = 'https://vpn.example.org'\n[acme]\n\
                 directory = 'https://ca.example/d'\nterms_of_service_agreed = true\n";
    for (now_s, state) in [(ends_s - 2 * 86_400, "expires in"), (ends_s + 1, "has expired")] {
        let warnings = bench.review_at(&format!("{ROUTES}{pages}"), true, now_s).warnings;
        let of_pages = warnings.iter().find(|warning| warning.message.contains("portal.pem")).unwrap();
        assert!(of_pages.message.contains(state) && of_pages.message.contains("vpnd doctor"), "{of_pages:?}");
    }
}

#[test]
fn name_servers_outside_the_pushed_routes_are_a_warning() {
    let bench = Bench::new();
    let warnings = |dns: &str| -> Vec<String> {
        let review = bench.review(&format!("{ROUTES}dns = [{dns}]\n"));
        assert!(review.errors.is_empty(), "{:?}", review.errors);
        review.warnings.into_iter().map(|warning| warning.message).collect()
    };
    assert!(warnings("'10.20.0.53'").is_empty());
    let outside = warnings("'10.20.0.53', '9.9.9.9'");
    assert!(matches!(&outside[..], [one] if one.contains("9.9.9.9")), "{outside:?}");
    let students = warnings("'10.20.0.53']\n[[profile]]\nname = 'students'\nroutes = ['10.30.0.0/16'");
    assert!(
        matches!(&students[..], [one] if one.contains("no route of the profile 'students' leads to the name server 10.20.0.53")),
        "{students:?}"
    );

    let v4_only = BASE.replace("pool_v6 = 'fd00:1::/64'\n", "");
    let text = format!("{v4_only}[push]\nroutes = ['10.20.0.0/16', 'fd20::/64']\ndns = ['fd20::53']\n");
    let config = ServerConfig::parse(&text, "server.toml", bench.dir.path()).unwrap();
    let machine = Machine {
        interfaces: &[],
        networks: &[],
        ports: &LocalPorts::default(),
        ipv6: true,
        now_s: wall_s(),
    };
    let review = config.review(&machine, false);
    assert!(
        review.warnings.iter().any(|warning| warning.message.contains("fd20::53")),
        "{:?}",
        review.warnings
    );
}

#[test]
fn ports_of_the_machine_are_no_clients_where_the_address_is_its_own() {
    let bench = Bench::new();
    let text = format!(
        "{BASE}{ROUTES}[nat]\nmode = 'nftables'\naddresses = ['192.0.2.1', '192.0.2.2']\nports = '20000-45000'\nports_per_client = 64\n"
    )
    .replace("10.86.0.0/16", "10.86.0.0/24");
    let review = |own: [u8; 4], reserved: &[(u16, u16)]| {
        let ports = LocalPorts {
            addresses: vec![own.into()],
            range: Some((32_768, 60_999)),
            reserved: reserved.to_vec(),
        };
        let machine = Machine { interfaces: &[], networks: &[], ports: &ports, ipv6: true, now_s: wall_s() };
        let config = ServerConfig::parse(&text, "server.toml", bench.dir.path()).unwrap();
        config.review(&machine, false).errors
    };
    let errors = review([192, 0, 2, 2], &[]);
    assert!(errors[0].message.contains("has 32768") && errors[0].message.contains("192.0.2.2"), "{errors:?}");
    assert_eq!(review([192, 0, 2, 3], &[]), [], "routed here, so no connection of the machine has it");
    assert_eq!(review([192, 0, 2, 2], &[(32_768, 45_000)]), []);
}

#[test]
fn a_certificate_of_an_authority_that_this_machine_does_not_know_is_a_warning() {
    let bench = Bench::new();
    let text = format!("{BASE}{ROUTES}").replace("ca = 'ca.pem'\n", "");
    let config = ServerConfig::parse(&text, "server.toml", bench.dir.path()).unwrap();
    let machine = Machine {
        interfaces: &[],
        networks: &[],
        ports: &LocalPorts::default(),
        ipv6: true,
        now_s: wall_s(),
    };
    only(&config.review(&machine, false).warnings, 2, "name that as 'ca'");
}

#[test]
fn users_of_a_provider_need_the_pages() {
    let bench = Bench::new();
    let provider = "[[source]]\nname = 'uni'\nkind = 'oidc'\nrealm = 'uni.example'\nissuer = 'https://a.example'\n\
                    client_id = 'vpn'\nclient_secret_file = 's'\n";
    let pages =
        "[portal]\nenabled = true\ncertificate = 'server.pem'\nkey = 'k'\nurl = 'https://b.example'\n";
    let warns = |text: &str| {
        let review = bench.review(&format!("{ROUTES}{text}"));
        review.warnings.iter().any(|warning| warning.message.contains("which is not enabled"))
    };
    assert!(warns(provider) && !warns(&format!("{provider}{pages}")) && !warns(""));
}
