//! `vpnd init` is killed at many moments, and meets full disks. Where it has left a configuration
//! everything is there and belongs together; where it has not, the next run completes. No key is
//! readable by others at any moment.
//!
//! `VPND_INIT_KILLS` sets how many kills, `VPND_INIT_KILL_SEED` which.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rcgen::{KeyPair, PublicKeyData as _};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use vpnd_config::ServerConfig;
use vpnd_store::sqlite::Sqlite;

const VPND: &str = env!("CARGO_BIN_EXE_vpnd");
const DEFAULT_KILLS: u64 = 20;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

fn init(dir: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(VPND);
    command.args(["init", "--name", "vpn.example.org", "--dir"]).arg(dir).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn init_completes_after_a_kill_at_any_point() {
    let kills = number("VPND_INIT_KILLS", DEFAULT_KILLS);
    let seed = number("VPND_INIT_KILL_SEED", u64::from(std::process::id()));
    println!("VPND_INIT_KILL_SEED={seed}");
    let root = tempfile::tempdir().unwrap();
    let mut random = StdRng::seed_from_u64(seed);
    let calm = (0..3).map(|run| {
        let begun = Instant::now();
        assert!(init(&root.path().join(format!("calm{run}")), &[]).output().unwrap().status.success());
        begun.elapsed()
    });
    let takes = calm.min().unwrap();
    let (mut finished, mut begun_anew) = (0, 0);
    for kill in 0..kills {
        let dir = root.path().join(format!("kill{kill}"));
        // Half of them replace what an earlier run has made, and one that was killed may be killed
        // again.
        let anew = kill % 2 == 1;
        if anew {
            assert!(init(&dir, &[]).output().unwrap().status.success());
        }
        for _ in 0..1 + kill % 3 {
            // The first one is killed before it can have done anything.
            let after = if kill == 0 { 0.0 } else { random.random_range(0.0..1.0) };
            kill_one(&dir, if anew { &["--force"] } else { &[] }, takes.mul_f64(after));
            check_keys(&dir);
            if dir.join("server.toml").exists() {
                check_whole(&dir, &format!("seed {seed}, kill {kill}"));
            }
        }
        let complete = dir.join("server.toml").exists();
        let output = init(&dir, &[]).output().unwrap();
        if complete {
            finished += 1;
            assert!(
                !output.status.success() && told(&output).contains("exists already"),
                "{}",
                told(&output)
            );
        } else {
            begun_anew += 1;
            assert!(output.status.success(), "seed {seed}, kill {kill}: {}", told(&output));
        }
        check_whole(&dir, &format!("seed {seed}, kill {kill}, after the next run"));
        check_keys(&dir);
        if !complete {
            let left = names(&dir).into_iter().filter(|name| name.starts_with('.')).collect::<Vec<_>>();
            assert!(left.is_empty(), "nothing of the killed run stays: {left:?}");
        }
    }
    println!("{kills} kills: {finished} had come to their end, {begun_anew} were begun anew");
    assert!(begun_anew > 0, "none was killed in time");
}

fn kill_one(dir: &Path, more: &[&str], after: Duration) {
    let mut child = init(dir, more).spawn().unwrap();
    thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Whatever holds a key, under whatever name, is its owner's alone.
fn check_keys(dir: &Path) {
    for name in names(dir) {
        let path = dir.join(&name);
        if path.is_file() && String::from_utf8_lossy(&fs::read(&path).unwrap()).contains("PRIVATE KEY") {
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }
}

/// Keys and certificates belong together, and there is a store.
fn check_whole(dir: &Path, when: &str) {
    let config = ServerConfig::load(&dir.join("server.toml")).unwrap();
    config.check(&[], UnixTime::now().as_secs()).unwrap_or_else(|error| panic!("{when}: {error}"));
    Sqlite::open(&config.server.store_path()).unwrap_or_else(|error| panic!("{when}: {error}"));
    let certificate = |name: &str| CertificateDer::from_pem_file(dir.join(name)).unwrap();
    for (key, name) in [("ca-key.pem", "ca.pem"), ("server-key.pem", "server.pem")] {
        let public = KeyPair::from_pem(&fs::read_to_string(dir.join(key)).unwrap()).unwrap();
        let public = public.subject_public_key_info();
        let certificate = certificate(name);
        let found = certificate.windows(public.len()).any(|window| window == public);
        assert!(found, "{when}: {key} is not the key of {name}");
    }
    let mut roots = RootCertStore::empty();
    roots.add(certificate("ca.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let name = ServerName::try_from("vpn.example.org").unwrap();
    let verified = verifier.verify_server_cert(&certificate("server.pem"), &[], &name, &[], UnixTime::now());
    assert!(verified.is_ok(), "{when}: {verified:?}");
}

#[test]
fn init_stops_at_foreign_files() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("vpnd");
    assert!(init(&dir, &[]).output().unwrap().status.success());
    let ours = fs::read(dir.join("ca-key.pem")).unwrap();
    // A configuration that was removed is no unfinished run, nor is one whose note names
    // other keys.
    fs::remove_file(dir.join("server.toml")).unwrap();
    for note in [None, Some("0123456789abcdef\n")] {
        if let Some(note) = note {
            fs::write(dir.join(".vpnd-init-unfinished"), note).unwrap();
        }
        let output = init(&dir, &[]).output().unwrap();
        assert!(!output.status.success() && told(&output).contains("exists already"), "{}", told(&output));
        assert_eq!(fs::read(dir.join("ca-key.pem")).unwrap(), ours);
    }
}

#[test]
fn a_full_disk_is_reported_and_files_stay() {
    // A separate file system, in a mount namespace that goes away with the script.
    let script = r#"
        set -eu
        run() { "$1" init --name vpn.example.org --dir "$2/disk/vpnd" --force; }
        for kib in 4 12 24 48; do
            mkdir -p "$2/disk"
            mount -t tmpfs -o size=1m tmpfs "$2/disk"
            run "$1" "$2"
            sum=$(cat "$2"/disk/vpnd/*.pem "$2"/disk/vpnd/server.toml | sha256sum)
            head -c 2m /dev/zero >"$2/disk/filler" 2>/dev/null || true
            truncate -s "-${kib}k" "$2/disk/filler"
            if run "$1" "$2" 2>"$2/said"; then
                echo "$kib: enough"
            else
                grep -qiE 'no space|full' "$2/said" || { cat "$2/said"; exit 3; }
                now=$(cat "$2"/disk/vpnd/*.pem "$2"/disk/vpnd/server.toml | sha256sum)
                [ "$sum" = "$now" ] || { echo "$kib: something has changed"; exit 4; }
                echo "$kib: refused"
            fi
            rm "$2/disk/filler"
            run "$1" "$2"
            umount "$2/disk"
        done
    "#;
    let root = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(if rustix::process::geteuid().is_root() { ["-m"].as_slice() } else { &["-mr"] });
    let output = command.args(["sh", "-c", script, "sh", VPND]).arg(root.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", told(&output));
    assert!(said.contains("refused"), "no disk was too small: {said}");
}
