//! Each thing that hardly anybody means is found, on its line, and what is meant is left alone.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::*;
use crate::admin_store::InThisProcess;
use crate::authority::Authority;
use crate::clock::wall_s;
use crate::store::{NewUser, PasswordHash, Store as _, sqlite::Sqlite};

struct Bench {
    dir: tempfile::TempDir,
}

const BASE: &str = "[tls]\ncertificate = 'server.pem'\nkey = 'server-key.pem'\nca = 'ca.pem'\n[tunnel]\npool_v4 = '10.86.0.0/16'\npool_v6 = 'fd00:1::/64'\n";
const ROUTES: &str = "[push]\nroutes = ['10.20.0.0/16']\n";

impl Bench {
    fn new() -> Self {
        let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let authority = Authority::new("vpn.example.org", now).unwrap();
        let server = authority.server(&["vpn.example.org".to_owned()], now).unwrap();
        std::fs::write(dir.path().join("server.pem"), &server.certificate_pem).unwrap();
        std::fs::write(dir.path().join("ca.pem"), authority.certificate_pem()).unwrap();
        crate::secret_file::write(
            &dir.path().join("server-key.pem"),
            server.key_pem.as_bytes(),
            crate::secret_file::SECRET_MODE,
            crate::secret_file::Existing::Refuse,
        )
        .unwrap();
        Self { dir }
    }

    fn config(&self, extra: &str) -> ServerConfig {
        ServerConfig::parse(&format!("{BASE}{extra}"), "server.toml", self.dir.path()).unwrap()
    }

    fn review_at(&self, extra: &str, ipv6: bool, now_s: u64) -> Review {
        let interfaces = ["lo".to_owned(), "eth0".to_owned()];
        let machine =
            Machine { interfaces: &interfaces, networks: &[], ports: &LocalPorts::default(), ipv6, now_s };
        self.config(extra).review(&machine, false)
    }

    fn review(&self, extra: &str) -> Review {
        self.review_at(extra, true, wall_s())
    }

    /// The store with `ann`, who is in `staff`.
    fn store(&self) -> Sqlite {
        let store = Sqlite::open_or_create(&self.dir.path().join("state/vpnd.db")).unwrap();
        let ann = NewUser {
            groups: vec!["staff".to_owned()],
            ..NewUser::new("ann", PasswordHash::new("$argon2id$".to_owned()))
        };
        store.add_user(&ann, wall_s()).unwrap();
        store
    }
}

fn only(problems: &[Problem], line: usize, words: &str) {
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].line, Some(line), "{problems:?}");
    assert!(problems[0].message.contains(words), "{problems:?}");
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let review = Bench::new().review(ROUTES);
    assert!(review.errors.is_empty() && review.warnings.is_empty(), "{review:?}");
}

#[test]
fn a_worker_that_would_be_root_is_an_error_as_is_one_that_nobody_is() {
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
    let by = |network: &str, interface: &str| LocalNetwork {
        network: network.parse().unwrap(),
        interface: interface.to_owned(),
    };
    let networks = [by("10.20.7.0/24", "eth1"), by("192.0.2.0/24", "eth1"), by("0.0.0.0/0", "eth1")];
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
fn clients_that_are_sent_nowhere_are_a_warning() {
    only(&Bench::new().review("[push]\nroutes = []\n").warnings, 9, "no routes");
}

#[test]
fn without_ipv6_the_gateway_goes_on_if_it_can() {
    let bench = Bench::new();
    let review = bench.review_at(ROUTES, false, wall_s());
    assert!(review.errors.is_empty());
    only(&review.warnings, 7, "IPv4 alone");
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
}

#[test]
fn the_names_in_rules_are_held_against_the_store() {
    let bench = Bench::new();
    let store = bench.store();
    let users: Vec<_> = store.users().unwrap().iter().map(UserSummary::from).collect();
    let review = |from: &str| {
        let extra = format!("{ROUTES}[[policy.rules]]\naction = 'allow'\nfrom = ['{from}']\n");
        bench.config(&extra).review_users(Ok(&users)).warnings
    };
    for good in ["group:staff", "user:ann", "any", "10.0.0.0/8"] {
        assert!(review(good).is_empty(), "{good}");
    }
    let staf = review("group:staf");
    assert!(staf.len() == 1 && staf[0].message.contains("did you mean 'staff'?"), "{staf:?}");
    let bob = review("user:bob");
    assert!(bob.len() == 1 && bob[0].message.contains("no user 'bob'"), "{bob:?}");
    assert_eq!(bench.config(ROUTES).review_users(Ok(&[])).warnings.len(), 1, "nobody can log in");
    let source = "[[source]]\nname = 'a'\nkind = 'ldap'\nrealm = 'a.example'\nservers = 'ldaps://a'\nbase = 'b'\n\
                  user_dn = 'uid={user}'\n";
    let with_source = bench.config(&format!("{ROUTES}{source}")).review_users(Ok(&[]));
    assert!(with_source.warnings.is_empty(), "users of a directory need no record: {with_source:?}");
}

#[test]
fn a_store_that_is_missing_damaged_or_unreadable_is_an_error_in_its_own_words() {
    let bench = Bench::new();
    let config = bench.config(ROUTES);
    let path = config.server.store_path();
    let found = || {
        let users = InThisProcess.open(&config, Opening::Inspect).and_then(|mut store| store.users());
        config.review_users(users.as_deref())
    };
    let missing = found().errors;
    assert!(missing[0].message.contains("no user store"), "{missing:?}");
    drop(bench.store());
    assert!(found().errors.is_empty());
    let good = std::fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[20..100].fill(0xA5);
    std::fs::write(&path, &bad).unwrap();
    let damaged = found().errors;
    assert!(damaged[0].message.contains("damaged"), "{damaged:?}");
    assert_eq!(std::fs::read(&path).unwrap(), bad, "looking changes nothing");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("vpnd.db", &path).unwrap();
    let link = found().errors;
    assert!(link[0].message.contains("is a symbolic link"), "not missing: {link:?}");
    let state = bench.dir.path().join("state");
    std::fs::rename(&state, state.with_extension("gone")).unwrap();
    std::fs::write(&state, "").unwrap();
    let unreadable = found().errors;
    assert!(unreadable[0].message.contains("can't be opened"), "not missing: {unreadable:?}");
}

#[test]
fn name_servers_that_clients_reach_in_a_way_that_few_mean() {
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
fn a_session_that_may_have_more_than_its_group_is_a_warning() {
    let bench = Bench::new();
    let review = |rates: &str| {
        let text = format!("{ROUTES}[[limits.groups]]\nname = 'staff'\n{rates}\n");
        let review = bench.review(&text);
        assert!(review.errors.is_empty(), "{:?}", review.errors);
        review.warnings
    };
    assert!(review("rate_down = '10mbit'\nsession_rate_down = '10mbit'").is_empty());
    assert!(review("session_rate_down = '10mbit'").is_empty(), "there is no limit for all");
    let more = review("rate_up = '10mbit'\nsession_rate_up = '1.5gbit'");
    assert!(
        more.len() == 1 && more[0].message.contains("may have 1.5gbit up, more than the 10mbit"),
        "{more:?}"
    );
    let more = review("user_rate_up = '10mbit'\nsession_rate_up = '20mbit'");
    assert!(
        more.len() == 1 && more[0].message.contains("each session of the group 'staff' may have 20mbit up"),
        "{more:?}"
    );
    let more = review("rate_up = '10mbit'\nuser_rate_up = '20mbit'");
    assert!(more.len() == 1 && more[0].message.contains("each user of the group 'staff'"), "{more:?}");
    let store = bench.store();
    let users: Vec<_> = store.users().unwrap().iter().map(UserSummary::from).collect();
    let of = |name: &str| {
        let text = format!("{ROUTES}[[limits.groups]]\nname = '{name}'\n");
        bench.config(&text).review_users(Ok(&users)).warnings
    };
    assert!(of("staff").is_empty());
    let staf = of("staf");
    assert!(staf.len() == 1 && staf[0].message.contains("did you mean 'staff'?"), "{staf:?}");
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
