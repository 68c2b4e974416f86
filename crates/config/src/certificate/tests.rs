//! Renewal: when, by whom, for which key, and never to the worse.

use std::fs;
use std::time::Duration;

use super::*;
use vpnd_pki::authority::new_key;

const DAY: Duration = Duration::from_secs(86_400);
const NAMES: [&str; 3] = ["vpn.example.org", "192.0.2.1", "2001:db8::1"];

struct Bench {
    dir: tempfile::TempDir,
    tls: Tls,
    start: SystemTime,
}

impl Bench {
    /// A gateway with a certificate of 30 days, made now.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let start = SystemTime::now();
        let path = |name: &str| dir.path().join(name);
        let tls = Tls {
            certificate: path("server.pem"),
            key: path("server-key.pem"),
            ca: Some(path("ca.pem")),
            ca_key: Some(path("ca-key.pem")),
            certificate_days: 30,
            client_ca: None,
            client_crl: None,
            client_ca_key: None,
            require_client_certificate: false,
        };
        let authority = Authority::new("vpn.example.org", start).unwrap();
        let server = authority.server(&NAMES.map(str::to_owned), start).unwrap();
        fs::write(path("ca.pem"), authority.certificate_pem()).unwrap();
        fs::write(path("ca-key.pem"), authority.key_pem()).unwrap();
        fs::write(&tls.certificate, &server.certificate_pem).unwrap();
        fs::write(&tls.key, server.key_pem.as_bytes()).unwrap();
        Self { dir, tls, start }
    }

    fn public_key(&self) -> Vec<u8> {
        let key = vpnd_pki::tls::signing_key(&fs::read(&self.tls.key).unwrap()).unwrap();
        key.public_key().unwrap().to_vec()
    }

    fn at(&self, days: u32) -> Current {
        current(&self.tls, &self.public_key(), self.start + DAY * days).unwrap()
    }

    fn file(&self) -> Vec<u8> {
        fs::read(&self.tls.certificate).unwrap()
    }

    fn is_good(&self, chain_pem: &[u8], days: u32) -> bool {
        let ca = fs::read(self.dir.path().join("ca.pem")).unwrap();
        let at_s = (self.start + DAY * days).duration_since(UNIX_EPOCH).unwrap().as_secs();
        NAMES.iter().all(|name| vouches(&ca, &chain(chain_pem), name, at_s))
    }
}

#[test]
fn a_certificate_is_renewed_when_a_third_of_its_life_is_left_and_not_before() {
    let bench = Bench::new();
    let first = bench.file();
    assert!(matches!(bench.at(19).renewal, Renewal::NotDue));
    assert_eq!(bench.file(), first);
    let renewed = bench.at(21);
    assert!(matches!(renewed.renewal, Renewal::Done), "{:?}", renewed.renewal);
    assert!(renewed.chain == bench.file() && renewed.chain != first);
    assert_eq!(renewed.leaf.public_key, bench.public_key(), "the key stays");
    assert!(bench.is_good(&renewed.chain, 50) && !bench.is_good(&first, 50));
    assert!(matches!(bench.at(22).renewal, Renewal::NotDue));
    let expired = bench.at(400);
    assert!(matches!(expired.renewal, Renewal::Done) && bench.is_good(&expired.chain, 401));
}

#[test]
fn a_certificate_that_a_clock_ahead_has_made_is_replaced_once_the_clock_is_right() {
    let bench = Bench::new();
    let ahead = bench.at(400);
    assert!(matches!(ahead.renewal, Renewal::Done) && !bench.is_good(&ahead.chain, 1));
    let right = bench.at(1);
    assert!(matches!(right.renewal, Renewal::Done) && bench.is_good(&right.chain, 1), "{:?}", right.renewal);
    assert!(matches!(bench.at(1).renewal, Renewal::NotDue));
}

#[test]
fn a_certificate_of_another_key_is_replaced() {
    let bench = Bench::new();
    let (_, pem) = new_key().unwrap();
    fs::write(&bench.tls.key, pem.as_bytes()).unwrap();
    let renewed = bench.at(0);
    assert!(matches!(renewed.renewal, Renewal::Done));
    assert_eq!(renewed.leaf.public_key, bench.public_key());
}

#[test]
fn without_the_authoritys_key_the_old_certificate_stays_and_it_is_said_what_to_do() {
    let bench = Bench::new();
    let first = bench.file();
    let key = bench.dir.path().join("ca-key.pem");
    let other = Authority::new("vpn.example.org", bench.start).unwrap();
    fs::write(&key, other.key_pem()).unwrap();
    let wrong = bench.at(25);
    assert!(
        matches!(wrong.renewal, Renewal::Failed(RenewalError::Unusable { .. })) && wrong.chain == first,
        "a certificate that clients would refuse: {:?}",
        wrong.renewal
    );
    fs::remove_file(&key).unwrap();
    let gone = bench.at(25);
    assert!(gone.chain == first && bench.file() == first);
    let Renewal::Failed(error) = gone.renewal else { panic!("renewed without a key") };
    assert!(error.to_string().contains("run: vpnd renew --certificate"), "{error}");
    assert!(renewable(&bench.tls, bench.start).is_err());
}

#[test]
fn a_certificate_of_another_authority_is_left_alone() {
    let bench = Bench::new();
    let other = Authority::new("vpn.example.org", bench.start).unwrap();
    fs::write(bench.dir.path().join("ca.pem"), other.certificate_pem()).unwrap();
    fs::write(bench.dir.path().join("ca-key.pem"), other.key_pem()).unwrap();
    let first = bench.file();
    assert!(matches!(bench.at(25).renewal, Renewal::Failed(RenewalError::Foreign { .. })));
    assert_eq!(bench.file(), first);
}

#[test]
fn a_disk_that_takes_nothing_does_not_keep_a_gateway_from_its_new_certificate() {
    let mut bench = Bench::new();
    // Its place is a directory that holds something, which no file can replace.
    let blocked = bench.dir.path().join("blocked");
    let first = bench.file();
    fs::create_dir(&blocked).unwrap();
    std::os::unix::fs::symlink(bench.dir.path().join("server.pem"), blocked.join("server.pem")).unwrap();
    bench.tls.certificate = blocked.join("server.pem");
    let _ = first;
    let renewed = bench.at(25);
    assert!(
        matches!(renewed.renewal, Renewal::Done | Renewal::Unsaved(_)) && bench.is_good(&renewed.chain, 26)
    );
}

#[test]
fn certificates_do_not_outlive_their_authority() {
    let bench = Bench::new();
    let almost = bench.at(3640);
    let ca = fs::read(bench.dir.path().join("ca.pem")).unwrap();
    let ca = Leaf::parse(&chain(&ca)[0]).unwrap();
    assert_eq!(almost.leaf.not_after_s, ca.not_after_s);
    assert!(matches!(bench.at(3651).renewal, Renewal::Failed(RenewalError::Unusable { .. })));
}

#[test]
fn a_renewed_chain_keeps_its_intermediate_certificates() {
    let bench = Bench::new();
    let ca = fs::read(bench.dir.path().join("ca.pem")).unwrap();
    let whole = [bench.file(), ca.clone()].concat();
    fs::write(&bench.tls.certificate, &whole).unwrap();
    let renewed = chain(&bench.at(25).chain);
    assert_eq!((renewed.len(), &renewed[1]), (2, &chain(&ca)[0]));
}
