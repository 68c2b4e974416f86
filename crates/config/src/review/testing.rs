//! A configuration with real certificates in a separate directory.
#![allow(clippy::unwrap_used, clippy::new_without_default, reason = "a panic is how a test fails")]

use std::time::SystemTime;

use super::{Machine, Review};
use crate::ServerConfig;
use crate::local_ports::LocalPorts;
use vpnd_pki::authority::Authority;
use vpnd_sys::clock::wall_s;

pub const BASE: &str = "[tls]\ncertificate = 'server.pem'\nkey = 'server-key.pem'\nca = 'ca.pem'\n[tunnel]\npool_v4 = '10.86.0.0/16'\npool_v6 = 'fd00:1::/64'\n";
pub const ROUTES: &str = "[push]\nroutes = ['10.20.0.0/16']\n";

pub struct Bench {
    pub dir: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let authority = Authority::new("vpn.example.org", now).unwrap();
        let server = authority.server(&["vpn.example.org".to_owned()], now).unwrap();
        std::fs::write(dir.path().join("server.pem"), &server.certificate_pem).unwrap();
        std::fs::write(dir.path().join("ca.pem"), authority.certificate_pem()).unwrap();
        vpnd_sys::secret_file::write(
            &dir.path().join("server-key.pem"),
            server.key_pem.as_bytes(),
            vpnd_sys::secret_file::SECRET_MODE,
            vpnd_sys::secret_file::Existing::Refuse,
        )
        .unwrap();
        Self { dir }
    }

    pub fn config(&self, extra: &str) -> ServerConfig {
        ServerConfig::parse(&format!("{BASE}{extra}"), "server.toml", self.dir.path()).unwrap()
    }

    pub fn review_at(&self, extra: &str, ipv6: bool, now_s: u64) -> Review {
        let interfaces = ["lo".to_owned(), "eth0".to_owned()];
        let machine =
            Machine { interfaces: &interfaces, networks: &[], ports: &LocalPorts::default(), ipv6, now_s };
        self.config(extra).review(&machine, false)
    }

    pub fn review(&self, extra: &str) -> Review {
        self.review_at(extra, true, wall_s())
    }
}
