//! `vpnd init`: what is made works together, and nothing is overwritten by accident.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::*;
use crate::admin_store::InThisProcess;
use vpnd_store::sqlite::Sqlite;
use vpnd_sys::clock::wall_s;

fn args(dir: &Path, names: &[&str]) -> InitArgs {
    InitArgs {
        dir: dir.join("vpnd"),
        name: names.iter().map(|name| (*name).to_owned()).collect(),
        listen: "192.0.2.1:443".parse().unwrap(),
        pool_v4: "10.99.0.0/16".parse().unwrap(),
        pool_v6: None,
        force: false,
    }
}

fn certificate(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).unwrap()
}

fn roots(dir: &Path) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&dir.join("ca.pem"))).unwrap();
    Arc::new(roots)
}

#[test]
fn everything_that_is_made_passes_the_check() {
    let dir = tempfile::tempdir().unwrap();
    let args = args(dir.path(), &["vpn.example.org", "192.0.2.1", "2001:db8::1"]);
    let path = init(&args, &InThisProcess, SystemTime::now()).unwrap();
    let config = ServerConfig::load(&path).unwrap();
    config.check(&[], wall_s()).unwrap();
    assert_eq!((config.server.listen, config.tunnel.pool_v4), (args.listen, Some(args.pool_v4)));
    let ula = config.tunnel.pool_v6.unwrap();
    assert!(ula.prefix_len() == 64 && ula.addr().octets()[0] == 0xfd);
    assert_ne!(ula, random_ula(), "it is random");
    Sqlite::open(&config.server.store_path()).unwrap();
    for name in FILES {
        let mode = fs::metadata(args.dir.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, if name.contains("-key") { 0o600 } else { 0o644 }, "{name}");
    }
}

#[test]
fn the_certificate_is_good_for_its_names_alone() {
    let dir = tempfile::tempdir().unwrap();
    let args = args(dir.path(), &["vpn.example.org", "192.0.2.1", "2001:db8::1"]);
    init(&args, &InThisProcess, SystemTime::now()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(&args.dir), provider).build().unwrap();
    let leaf = certificate(&args.dir.join("server.pem"));
    let verify = |name: &str, at: UnixTime| {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        verifier.verify_server_cert(&leaf, &[], &name, &[], at).is_ok()
    };
    for name in &args.name {
        assert!(verify(name, UnixTime::now()), "{name}");
    }
    assert!(!verify("other.example.org", UnixTime::now()));
    assert!(!verify("192.0.2.2", UnixTime::now()));
    let later = UnixTime::since_unix_epoch(DurationDays(826).into());
    assert!(!verify("vpn.example.org", later), "it expires");
}

/// A number of days from now.
struct DurationDays(u64);

impl From<DurationDays> for std::time::Duration {
    fn from(days: DurationDays) -> Self {
        Self::from_secs(wall_s() + days.0 * 86_400)
    }
}

#[test]
fn a_client_certificate_is_not_a_servers_nor_the_other_way_round() {
    let dir = tempfile::tempdir().unwrap();
    let args = args(dir.path(), &["vpn.example.org"]);
    init(&args, &InThisProcess, SystemTime::now()).unwrap();
    let pem = |name: &str| fs::read_to_string(args.dir.join(name)).unwrap();
    let authority = Authority::from_pem(&pem("ca.pem"), &pem("ca-key.pem")).unwrap();
    let client = authority.client("ann", SystemTime::now()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(&args.dir), provider).build().unwrap();
    let verify = |der: &CertificateDer<'_>| verifier.verify_client_cert(der, &[], UnixTime::now()).is_ok();
    assert!(verify(&CertificateDer::from(client.certificate_der)));
    assert!(!verify(&certificate(&args.dir.join("server.pem"))));
    let stranger = Authority::new("vpn.example.org", SystemTime::now()).unwrap();
    let forged = stranger.client("ann", SystemTime::now()).unwrap();
    assert!(!verify(&CertificateDer::from(forged.certificate_der)), "another authority of the same name");
}

#[test]
fn nothing_is_overwritten_unless_asked_and_users_never() {
    let dir = tempfile::tempdir().unwrap();
    let mut args = args(dir.path(), &["vpn.example.org"]);
    init(&args, &InThisProcess, SystemTime::now()).unwrap();
    let read = |name: &str| fs::read(args.dir.join(name)).unwrap();
    let before = FILES.map(read);
    let error = init(&args, &InThisProcess, SystemTime::now()).unwrap_err();
    assert!(matches!(error, InitError::Exists { .. }), "{error}");
    fs::remove_file(args.dir.join("server.toml")).unwrap();
    assert!(init(&args, &InThisProcess, SystemTime::now()).is_err(), "a key alone is in the way too");
    assert_eq!(FILES[1..].iter().map(|name| read(name)).collect::<Vec<_>>(), before[1..]);
    fs::write(args.dir.join("state/kept"), "x").unwrap();
    args.force = true;
    init(&args, &InThisProcess, SystemTime::now()).unwrap();
    assert_ne!(fs::read(args.dir.join("ca.pem")).unwrap(), before[1]);
    assert!(args.dir.join("state/kept").exists());
}

#[test]
fn wrong_names_and_pools_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["", "vpn.example.org:4433", "a b", "*.example.org\"", "https://vpn"] {
        let error = init(&args(dir.path(), &[name]), &InThisProcess, SystemTime::now()).unwrap_err();
        assert!(matches!(error, InitError::Certificate(CertificateError::Name { .. })), "{name}: {error}");
    }
    let small =
        InitArgs { pool_v4: "10.0.0.0/31".parse().unwrap(), ..args(dir.path(), &["vpn.example.org"]) };
    assert!(init(&small, &InThisProcess, SystemTime::now()).unwrap_err().to_string().contains("too small"));
    assert!(!dir.path().join("vpnd").exists());
}
