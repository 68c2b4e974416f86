//! The machine's side of a configuration: each problem is found, and its line is named.

use std::path::PathBuf;
use std::time::SystemTime;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use super::*;
use crate::certificate::Files;
use vpnd_pki::authority::Authority;
use vpnd_sys::clock::wall_s;

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    /// A directory with a good certificate, key and authority.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let authority = Authority::new("vpn.example.org", now).unwrap();
        let server = authority.server(&["vpn.example.org".to_owned()], now).unwrap();
        let bench = Self { dir };
        bench.write("ca.pem", authority.certificate_pem(), 0o644);
        bench.write("ca-key.pem", authority.key_pem(), 0o600);
        bench.write("server.pem", &server.certificate_pem, 0o644);
        bench.write("server-key.pem", &server.key_pem, 0o600);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// With these lines in [tls] and after it.
    fn check_tls(&self, tls: &str, extra: &str, now_s: u64) -> String {
        let text = format!(
            "[tls]\ncertificate = 'server.pem'\nkey = 'server-key.pem'\n{tls}\n[tunnel]\npool_v4 = '10.86.0.0/16'\n{extra}"
        );
        let config = ServerConfig::parse(&text, "server.toml", self.dir.path()).unwrap();
        config.check(&[], now_s).err().map(|invalid| invalid.to_string()).unwrap_or_default()
    }

    fn check(&self, extra: &str, local: &[LocalNetwork], now_s: u64) -> String {
        let text = format!(
            "[tls]\ncertificate = 'server.pem'\nkey = 'server-key.pem'\nclient_ca = 'ca.pem'\n\
             client_ca_key = 'ca-key.pem'\n[tunnel]\npool_v4 = '10.86.0.0/16'\npool_v6 = 'fd00:1::/64'\n{extra}"
        );
        let config = ServerConfig::parse(&text, "server.toml", self.dir.path()).unwrap();
        config.check(local, now_s).err().map(|invalid| invalid.to_string()).unwrap_or_default()
    }

    fn problems(&self) -> String {
        self.check("", &[], wall_s())
    }
}

#[test]
fn good_files_have_no_problem() {
    assert_eq!(Bench::new().problems(), "");
}

#[test]
fn missing_and_broken_files_are_all_named() {
    let bench = Bench::new();
    fs::remove_file(bench.path("server.pem")).unwrap();
    bench.write("server-key.pem", "nothing", 0o600);
    bench.write("ca.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", 0o644);
    let problems = bench.problems();
    let lines: Vec<_> = problems.lines().collect();
    assert!(
        lines[0].starts_with("server.toml:2: can't read") && lines[0].contains("server.pem"),
        "{problems}"
    );
    assert!(lines[1].starts_with("server.toml:3:") && lines[1].contains("no private key"), "{problems}");
    assert!(lines[2].starts_with("server.toml:4:") && lines[2].contains("can't be read"), "{problems}");
    assert_eq!(lines.len(), 3, "{problems}");
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let bench = Bench::new();
    for mode in [0o640, 0o604, 0o660] {
        fs::set_permissions(bench.path("server-key.pem"), fs::Permissions::from_mode(mode)).unwrap();
        let problems = bench.problems();
        assert!(problems.contains(&format!("(mode {mode:o}); run: chmod 600")), "{problems}");
    }
}

#[test]
fn an_ordered_certificate_of_pages_may_come_later_and_its_key_is_not_the_gateways() {
    let bench = Bench::new();
    let pages = "[portal]\nenabled = true\nacme = true\nurl = 'https://a.example'\n[acme]\n\
                 directory = 'https://a.example/d'\nterms_of_service_agreed = true\n";
    let problems = || bench.check(pages, &[], wall_s());
    assert_eq!(problems(), "");
    let (_, key) = vpnd_pki::authority::new_key().unwrap();
    bench.write("portal-key.pem", &key, 0o600);
    bench.write("portal.pem", "cut off while it was written", 0o644);
    assert_eq!(problems(), "", "another is ordered");
    bench.write("portal-key.pem", &fs::read_to_string(bench.path("server-key.pem")).unwrap(), 0o644);
    assert!(problems().contains("others can use") && problems().contains("is 'key' of [tls] as well"));
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let bench = Bench::new();
    fs::copy(bench.path("ca-key.pem"), bench.path("server-key.pem")).unwrap();
    let problems = bench.problems();
    assert!(problems.starts_with("server.toml:3: the key does not belong to the certificate"), "{problems}");
}

/// A root, an intermediate authority that it has signed, and certificates of that one.
struct Chain {
    root: String,
    intermediate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Chain {
    fn new() -> Self {
        let authority = |name: &str| {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            (params, KeyPair::generate().unwrap())
        };
        let ((root, root_key), (intermediate, key)) = (authority("root"), authority("intermediate"));
        let root_pem = root.self_signed(&root_key).unwrap().pem();
        let signed = intermediate.signed_by(&key, &Issuer::new(root, root_key)).unwrap();
        Self { root: root_pem, intermediate: signed.pem(), issuer: Issuer::new(intermediate, key) }
    }

    /// A certificate for these names and this use, and its key.
    fn certificate(&self, names: &[&str], usage: ExtendedKeyUsagePurpose) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// Security: what is refused here, clients would refuse.
#[test]
fn a_certificate_that_no_client_takes_is_refused() {
    let (bench, chain) = (Bench::new(), Chain::new());
    bench.write("root.pem", &chain.root, 0o644);
    let server = ExtendedKeyUsagePurpose::ServerAuth;
    let with = |ca: &str, (certificate, key): (String, String), rest: &str| {
        bench.write("server.pem", &(certificate + rest), 0o644);
        bench.write("server-key.pem", &key, 0o600);
        bench.check_tls(ca, "", wall_s())
    };
    let good = || chain.certificate(&["vpn.example.org", "192.0.2.1", "*.example.net"], server.clone());
    assert_eq!(with("ca = 'root.pem'", good(), &chain.intermediate), "");
    let without = with("ca = 'root.pem'", good(), "");
    assert!(
        without.starts_with("server.toml:2: clients refuse") && without.contains("intermediate"),
        "{without}"
    );
    let nameless = with("ca = 'root.pem'", chain.certificate(&[], server.clone()), &chain.intermediate);
    assert!(nameless.contains("subjectAltName"), "{nameless}");
    let client = chain.certificate(&["vpn.example.org"], ExtendedKeyUsagePurpose::ClientAuth);
    let client = with("ca = 'root.pem'", client, &chain.intermediate);
    assert!(client.contains("extendedKeyUsage lacks serverAuth"), "{client}");
    // Without an authority of the gateway's, it may be one that the campus has put on its machines.
    assert_eq!(with("", good(), &chain.intermediate), "");
}

#[test]
fn the_authority_that_clients_pin_is_looked_at_too() {
    let bench = Bench::new();
    let missing = bench.check_tls("ca = 'gone.pem'", "", wall_s());
    assert!(missing.contains("can't read") && missing.contains("gone.pem"), "{missing}");
    let other = bench.check_tls("ca = 'ca.pem'\nca_key = 'server-key.pem'", "", wall_s());
    assert!(other.contains("server.toml:5: the key does not belong"), "{other}");
}

#[test]
fn an_encrypted_key_is_named_as_such() {
    let bench = Bench::new();
    for text in [
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nMIIB\n-----END RSA PRIVATE KEY-----\n",
    ] {
        bench.write("server-key.pem", text, 0o600);
        let problems = bench.problems();
        assert!(problems.contains("is encrypted") && problems.contains("openssl pkey -in"), "{problems}");
    }
}

#[test]
fn the_files_of_sources_are_read() {
    let bench = Bench::new();
    let source = |rest: &str| {
        let ldap = "[[source]]\nname = 'staff'\nkind = 'ldap'\nrealm = 'uni.example'\nservers = 'ldaps://127.0.0.1'\nbase = 'dc=uni'\n";
        bench.check(&format!("{ldap}{rest}"), &[], wall_s())
    };
    bench.write("secret", "of the gateway\n", 0o600);
    bench.write("open", "of the gateway\n", 0o644);
    bench.write("empty", "", 0o600);
    let bind = |file: &str| format!("bind_dn = 'cn=vpn'\nbind_password_file = '{file}'\n");
    assert_eq!(source(&format!("ca = 'ca.pem'\n{}", bind("secret"))), "");
    // The credential is there in the unit alone.
    assert_eq!(source(&bind("credential:ldap")), "");
    for (rest, reason) in [
        (bind("gone"), "gone"),
        (bind("open"), "chmod 600"),
        (bind("empty"), "no secret"),
        (format!("ca = 'gone.pem'\n{}", bind("secret")), "gone.pem"),
        (format!("ca = 'secret'\n{}", bind("secret")), "the CA holds no certificate"),
    ] {
        let problems = source(&rest);
        assert!(
            problems.contains("the source 'staff' can't be asked") && problems.contains(reason),
            "{rest}: {problems}"
        );
    }
}

#[test]
fn a_certificate_has_its_time() {
    let bench = Bench::new();
    assert_eq!(bench.check("", &[], wall_s() + 31 * 86_400), "", "the gateway renews it when it begins");
    fs::remove_file(bench.path("ca-key.pem")).unwrap();
    let later = bench.check("", &[], wall_s() + 31 * 86_400);
    assert!(later.contains("server.pem expired at") && later.contains("run: vpnd renew"), "{later}");
    let earlier = bench.check("", &[], wall_s() - 86_400);
    assert!(earlier.contains("is this machine's clock right?"), "{earlier}");
}

#[test]
fn a_certificate_of_a_clock_that_was_ahead_is_renewed_when_the_gateway_begins() {
    let bench = Bench::new();
    let path = bench.path("server.pem");
    let ahead = Files {
        certificate: &path,
        ca: &bench.path("ca.pem"),
        ca_key: &bench.path("ca-key.pem"),
        foreign: false,
    };
    let ahead = ahead.renew(None, 30, SystemTime::now() + Duration::from_secs(400 * 86_400)).unwrap();
    fs::write(&path, ahead).unwrap();
    assert_eq!(bench.check("", &[], wall_s()), "", "it can renew it");
    fs::remove_file(bench.path("ca-key.pem")).unwrap();
    let without = bench.check("", &[], wall_s());
    assert!(without.contains("server.pem is valid from"), "{without}");
}

#[test]
fn an_authority_key_kept_elsewhere_is_no_problem() {
    let bench = Bench::new();
    fs::remove_file(bench.path("ca-key.pem")).unwrap();
    assert_eq!(bench.problems(), "");
}

#[test]
fn pools_must_not_overlap_what_is_there() {
    let bench = Bench::new();
    let near = |network: &str, interface: &str| LocalNetwork {
        network: network.parse().unwrap(),
        interface: interface.to_owned(),
    };
    for (network, interface, bad) in [
        ("10.86.7.0/24", "eth0", true),
        ("10.0.0.0/8", "eth0", true),
        ("fd00:1::/48", "eth0", true),
        ("10.87.0.0/16", "eth0", false),
        ("0.0.0.0/0", "eth0", false),
        ("10.86.0.0/16", "vpnd0", false),
    ] {
        let problems = bench.check("", &[near(network, interface)], wall_s());
        assert_eq!(problems.contains("choose another pool"), bad, "{network} {interface}: {problems}");
    }
    for (route, bad) in
        [("10.0.0.0/8", true), ("10.86.1.0/24", true), ("10.86.0.0/16", false), ("0.0.0.0/0", false)]
    {
        let problems = bench.check(&format!("[push]\nroutes = '{route}'\n"), &[], wall_s());
        assert_eq!(problems.starts_with("server.toml:10: the pushed route"), bad, "{route}: {problems}");
    }
}

#[test]
fn paths_are_checked() {
    let bench = Bench::new();
    let long = format!("[admin]\nsocket = '/{}'\n", "x".repeat(107));
    assert!(bench.check(&long, &[], wall_s()).contains("server.toml:10: the path of the control socket"));
    let file = "[server]\nstate_dir = 'ca.pem'\n";
    assert!(bench.check(file, &[], wall_s()).contains("is not a directory"));
}

#[test]
fn the_kernels_tables_are_read() {
    let v4 = parse_route_v4("eth0\t0000140A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0").unwrap();
    assert_eq!((v4.network.to_string().as_str(), v4.interface.as_str()), ("10.20.0.0/16", "eth0"));
    let line = "fd000001000000000000000000000000 40 00000000000000000000000000000000 00 \
                00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth0";
    let v6 = parse_route_v6(line).unwrap();
    assert_eq!((v6.network.to_string().as_str(), v6.interface.as_str()), ("fd00:1::/64", "eth0"));
    assert_eq!(parse_route_v6(&line.replace("eth0", "lo")), None);
    assert_eq!(parse_route_v4("Iface\tDestination\tGateway"), None);
    assert_eq!(parse_route_v6(""), None);
}
