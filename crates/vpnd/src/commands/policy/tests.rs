use super::*;
use vpnd_config::testing::smallest;

/// Lines are those of the file, of which the smallest configuration has five.
const PROFILES: &str = "[push]\nroutes = ['10.20.0.0/16']\n[policy]\n[[policy.rules]]\naction = 'deny'\nto = '10.20.9.0/24'\n\
    [[profile]]\nname = 'staff'\ngroups = 'staff'\nclient_to_client = true\n[[profile.rules]]\naction = 'allow'\nto = '10.20.9.1'\n\
    protocol = 'tcp'\nports = '22'\n[[profile]]\nname = 'guests'\ngroups = 'guests'\n";

fn account(name: &str, group: &str) -> Account {
    Account { name: name.to_owned(), source: LOCAL.to_owned(), groups: vec![group.to_owned()] }
}

fn result(group: &str, receiver: Option<&Account>, to: &str) -> String {
    let config = smallest(PROFILES);
    evaluate(&config, &account("ann", group), receiver, &to.parse().unwrap()).unwrap().to_string()
}

#[test]
fn the_deciding_rule_or_default_is_named() {
    for (group, to, expected) in [
        ("staff", "10.20.9.1:22/tcp", "allow: profile staff: rule 1 of profile 'staff' (server.toml:16)"),
        ("staff", "10.20.9.1:22", "allow: profile staff: rule 1 of profile 'staff' (server.toml:16)"),
        ("staff", "10.20.9.1:23/tcp", "deny: profile staff: rule 1 of [policy] (server.toml:9)"),
        ("guests", "10.20.9.1:22/tcp", "deny: profile guests: rule 1 of [policy] (server.toml:9)"),
        (
            "guests",
            "10.20.1.1:53/udp",
            "allow: profile guests: no rule matches, and 10.20.1.1 is in the networks of profile 'guests'",
        ),
        (
            "guests",
            "10.21.1.1",
            "deny: profile guests: no rule matches, and 10.21.1.1 is not in the networks of profile 'guests'",
        ),
        ("pupils", "10.20.1.1", "deny: profile none: no access profile is for ann: a login is refused"),
    ] {
        assert_eq!(result(group, None, to), expected, "{to}");
    }
    assert!(
        result("staff", None, "10.86.0.77")
            .starts_with("deny: profile staff: 10.86.0.77 is an address for clients")
    );
}

#[test]
fn between_clients_the_profile_that_decides_is_named() {
    let (staff, guest) = (account("bob", "staff"), account("eve", "guests"));
    assert_eq!(
        result("staff", Some(&staff), "user:bob:22/tcp"),
        "allow: profile staff: no rule matches, and profile 'staff' has client_to_client = true"
    );
    assert_eq!(
        result("staff", Some(&guest), "user:eve"),
        "deny: profile staff: no rule matches, and profile 'guests' has client_to_client = false"
    );
}

#[test]
fn a_host_that_opens_a_connection_to_a_client() {
    let texts = |mode: &str, campus_to_client: bool| {
        let policy = format!("[policy]\ncampus_to_client = {campus_to_client}\n");
        (format!("[nat]\nmode = '{mode}'\n"), PROFILES.replace("[policy]\n", &policy))
    };
    let ask = |mode: &str, campus_to_client: bool, group: &str, host: &str| {
        let (nat, profiles) = texts(mode, campus_to_client);
        let config = smallest(&format!("{nat}{profiles}"));
        let user = account("ann", group);
        evaluate_from(&config, host.parse().unwrap(), &user, Service::Tcp(22)).unwrap().to_string()
    };
    assert_eq!(
        ask("route", true, "guests", "10.20.1.1"),
        "allow: profile guests: no rule matches, and 10.20.1.1 is in the networks of profile 'guests'"
    );
    assert_eq!(
        ask("route", false, "guests", "10.20.1.1"),
        "deny: profile guests: hosts only answer clients: campus_to_client is false in [policy]"
    );
    assert_eq!(
        ask("nftables", true, "guests", "10.20.1.1"),
        "deny: profile guests: hosts only answer clients: mode = \"nftables\" in [nat] hides these"
    );
    assert_eq!(
        ask("route", true, "guests", "10.21.1.1"),
        "deny: profile guests: no rule matches, and 10.21.1.1 is not in the networks of profile 'guests'"
    );
    assert!(ask("route", true, "pupils", "10.20.1.1").contains("no access profile is for ann"));
    let client = evaluate_from(
        &smallest(PROFILES),
        "10.86.0.77".parse().unwrap(),
        &account("ann", "staff"),
        Service::Ping,
    );
    assert!(matches!(client, Err(PolicyTestError::FromClient(_))), "{client:?}");
    // A rule about the way in, by its line.
    let rule =
        "[[profile.rules]]\naction = 'deny'\nfrom = '10.20.7.0/24'\nto = 'clients'\nprotocol = 'tcp'\n";
    let config = smallest(&format!("{}{}{rule}", texts("route", true).0, texts("route", true).1));
    let denied =
        evaluate_from(&config, "10.20.7.1".parse().unwrap(), &account("ann", "guests"), Service::Tcp(22));
    let denied = denied.unwrap().to_string();
    assert!(denied.starts_with("deny: profile guests: rule 1 of profile 'guests' (server.toml:"), "{denied}");
}

#[test]
fn ports() {
    let port = |text: &str| text.parse::<Service>();
    assert_eq!((port("22"), port("53/udp")), (Ok(Service::Tcp(22)), Ok(Service::Udp(53))));
    for wrong in ["", "22/icmp", "x/tcp", "70000", "22/"] {
        assert!(port(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_question_is_about_one_way() {
    use clap::Parser as _;
    let parses = |words: &str| {
        let words = format!("vpnd policy test --user ann {words}");
        crate::cli::Cli::try_parse_from(words.split(' ')).is_ok()
    };
    assert!(
        parses("--to 10.0.0.1:22") && parses("--from 10.0.0.1") && parses("--from 10.0.0.1 --to-port 22/tcp")
    );
    for wrong in [
        "--json",
        "--to 10.0.0.1 --from 10.0.0.2",
        "--to 10.0.0.1 --to-port 22",
        "--to-port 22",
        "--from bob",
    ] {
        assert!(!parses(wrong), "{wrong}");
    }
}

#[test]
fn targets() {
    let target = |text: &str| text.parse::<Target>();
    let v6: IpAddr = "2001:db8::1".parse().unwrap();
    assert_eq!(target("[2001:db8::1]:53/udp").unwrap().service, Service::Udp(53));
    assert_eq!(target("2001:db8::1/icmp").unwrap().receiver, Receiver::Address(v6));
    assert_eq!(
        target("user:bob@uni.example:22").unwrap().receiver,
        Receiver::User("bob@uni.example".to_owned())
    );
    for wrong in
        ["", "host:22", "10.0.0.1/tcp", "10.0.0.1:22/icmp", "10.0.0.1:22/sctp", "user:", "10.0.0.1:99999/tcp"]
    {
        assert!(target(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn packets_are_good_ones_of_both_versions() {
    let v4 = (IpAddr::from([10, 0, 0, 2]), IpAddr::from([10, 0, 0, 3]));
    let v6 = ("fd00::2".parse().unwrap(), "fd00::3".parse().unwrap());
    for (source, destination) in [v4, v6] {
        for service in [Service::Ping, Service::Tcp(22), Service::Udp(53)] {
            let bytes = packet(source, destination, service);
            let parsed = Packet::parse(&bytes).unwrap_or_else(|error| panic!("{service:?}: {error}"));
            assert_eq!((parsed.src(), parsed.dst()), (source, destination));
            let port = match service {
                Service::Ping => None,
                Service::Tcp(port) | Service::Udp(port) => Some(port),
            };
            assert_eq!(parsed.ports().map(|(_, port)| port), port);
        }
    }
}
