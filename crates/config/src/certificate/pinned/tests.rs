//! The own authority's certificate beside another one: when it is there, how it is renewed, and
//! what is said where it can't be.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::*;
use vpnd_pki::authority::Authority;

const DAY: Duration = Duration::from_secs(86_400);
const OLD_NAMES: [&str; 2] = ["192.0.2.1", "vpn.old.example"];
const NEW_NAME: &str = "vpn.uni.example";

struct Bench {
    dir: tempfile::TempDir,
    config: ServerConfig,
    start: SystemTime,
    /// The certificate of another authority, for the gateway's key.
    foreign: String,
}

impl Bench {
    /// A gateway with a certificate of its authority, and `[acme]`.
    fn new() -> Self {
        let (dir, start) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let [own, other] = ["own", "other"].map(|name| Authority::new(name, start).unwrap());
        let server = own.server(&OLD_NAMES.map(str::to_owned), start).unwrap();
        for (name, text) in [
            ("ca.pem", own.certificate_pem()),
            ("ca-key.pem", own.key_pem()),
            ("server.pem", &server.certificate_pem),
            ("server-key.pem", &server.key_pem),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let text = "[tls]\ncertificate = \"server.pem\"\nkey = \"server-key.pem\"\nca = \"ca.pem\"\nca_key = \"ca-key.pem\"\n\
                    [tunnel]\npool_v4 = \"10.86.0.0/16\"\n[acme]\ndirectory = \"https://ca.example/d\"\n\
                    names = [\"vpn.uni.example\"]\nterms_of_service_agreed = true\n";
        let config = ServerConfig::parse(text, "server.toml", dir.path()).unwrap();
        let public_key = public_key(&config.tls.key);
        let foreign = other.server_for(&[NEW_NAME.to_owned()], &public_key, 90, start).unwrap();
        Self { dir, config, start, foreign }
    }

    fn order(&self) {
        keep(&self.config.tls, self.foreign.as_bytes()).unwrap();
        fs::write(&self.config.tls.certificate, &self.foreign).unwrap();
    }

    fn at(&self, days: u32) -> Result<Option<Current>, RenewalError> {
        current(&self.config, &public_key(&self.config.tls.key), self.start + DAY * days)
    }

    fn fault(&self, days: u32) -> String {
        let at = (self.start + DAY * days).duration_since(UNIX_EPOCH).unwrap();
        fault(&self.config, at.as_secs()).unwrap_or_default()
    }
}

fn public_key(key: &Path) -> Vec<u8> {
    let key = vpnd_pki::tls::signing_key(&fs::read(key).unwrap()).unwrap();
    key.public_key().unwrap().to_vec()
}

#[test]
fn the_own_certificate_is_kept_for_its_names_and_renewed_beside_the_other() {
    let bench = Bench::new();
    assert!(bench.at(0).unwrap().is_none(), "it is presented to everybody");
    let own = fs::read(&bench.config.tls.certificate).unwrap();
    bench.order();
    let kept = bench.at(0).unwrap().unwrap();
    assert_eq!((&kept.chain, bench.fault(0)), (&own, String::new()));
    let renewed = bench.at(25).unwrap().unwrap();
    assert!(renewed.chain != own && bench.config.tls.is_own(&renewed.chain));
    assert_eq!(renewed.leaf.names, kept.leaf.names);
    assert_eq!(fs::read(bench.config.tls.pinned_certificate()).unwrap(), renewed.chain);
    assert_eq!(fs::read_to_string(&bench.config.tls.certificate).unwrap(), bench.foreign);
    // Where none was kept, there is one for the new names.
    fs::remove_file(bench.config.tls.pinned_certificate()).unwrap();
    assert_eq!(bench.at(0).unwrap().unwrap().leaf.names, [NEW_NAME]);
}

#[test]
fn what_is_replaced_is_kept() {
    let bench = Bench::new();
    let tls = &bench.config.tls;
    let own = fs::read(&tls.certificate).unwrap();
    keep(tls, &own).unwrap();
    assert!(!tls.pinned_certificate().exists(), "both are of the own authority");
    bench.order();
    assert_eq!(fs::read(tls.pinned_certificate()).unwrap(), own);
    assert!(!tls.replaced_certificate().exists());
    keep(tls, &own).unwrap();
    assert_eq!(fs::read_to_string(tls.replaced_certificate()).unwrap(), bench.foreign);
}

#[test]
fn clients_that_would_lose_access_are_reported_in_advance() {
    let bench = Bench::new();
    let path = |name: &str| bench.dir.path().join(name);
    assert_eq!(bench.fault(25), "", "the gateway has one that everybody takes");
    bench.order();
    fs::rename(path("ca-key.pem"), path("elsewhere")).unwrap();
    assert_eq!(bench.fault(0), "", "it is good for weeks");
    let soon = bench.fault(25);
    assert!(soon.contains("will be cut off on") && soon.contains("server.local.pem --ca"), "{soon}");
    assert!(bench.fault(31).contains("are cut off"), "{}", bench.fault(31));
    fs::rename(path("elsewhere"), path("ca-key.pem")).unwrap();
    assert_eq!(bench.fault(31), "");
    let after_the_authority = bench.fault(3_651);
    assert!(after_the_authority.contains("are cut off: "), "{after_the_authority}");
    assert!(after_the_authority.contains("has") && after_the_authority.contains("expired"));
    let mut without = bench.config.clone();
    without.tls.ca = None;
    let fault = fault(&without, 0).unwrap();
    assert!(fault.contains("[tls] names none"), "{fault}");
}
