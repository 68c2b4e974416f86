//! A RADIUS server for tests: FreeRADIUS with a configuration of its own, in a directory that goes away with it. No service of the
//! machine is touched.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "a panic is how a test fails; not each test uses all of it"
)]

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub const SECRET: &str = "testing 123";

/// It knows `ann` with the password `right` and two groups.
pub struct FreeRadius {
    directory: tempfile::TempDir,
    process: Child,
    pub port: u16,
}

impl FreeRadius {
    /// Starts one on this address; it listens a while later. `None` if the machine has no FreeRADIUS, which fails where CI is set.
    pub fn start(address: &str, command: impl Fn(&str) -> Command) -> Option<Self> {
        if !Path::new("/usr/sbin/freeradius").exists() {
            assert!(std::env::var_os("CI").is_none(), "this test needs freeradius: ./x setup");
            eprintln!("SKIPPED: there is no freeradius; run ./x setup");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = directory.path().display();
        let sign = "update reply { Message-Authenticator := 0x00 }";
        let configuration = format!(
            "libdir = /usr/lib/freeradius\nlogdir = {at}\nrun_dir = {at}\npidfile = {at}/pid\n\
             client gateway {{\nipaddr = {address}\nsecret = \"{SECRET}\"\nrequire_message_authenticator = yes\n}}\n\
             modules {{\npap {{\n}}\nfiles {{\nusersfile = {at}/users\n}}\n}}\n\
             server default {{\nlisten {{\ntype = auth\nipaddr = {address}\nport = {port}\n}}\n\
             authorize {{\nfiles\npap\n}}\nauthenticate {{\nAuth-Type PAP {{\npap\n}}\n}}\n\
             post-auth {{\n{sign}\nPost-Auth-Type REJECT {{\n{sign}\n}}\n}}\n}}\n"
        );
        fs::write(directory.path().join("radiusd.conf"), configuration).unwrap();
        let users = "ann Cleartext-Password := \"right\"\n\tFilter-Id = \"staff\",\n\tFilter-Id += \"vpn\"\n";
        fs::write(directory.path().join("users"), users).unwrap();
        let mut command = command("/usr/sbin/freeradius");
        command.args(["-f", "-l", "stdout", "-n", "radiusd", "-D", "/usr/share/freeradius", "-d"]);
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let process = command.arg(directory.path()).stdin(Stdio::null()).stdout(log).spawn().unwrap();
        Some(Self { directory, process, port })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// A file with the secret, for the gateway.
    pub fn secret_file(&self) -> PathBuf {
        let path = self.directory.path().join("secret");
        fs::write(&path, format!("{SECRET}\n")).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path
    }
}

impl Drop for FreeRadius {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
