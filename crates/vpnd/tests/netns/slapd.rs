//! A directory for tests: slapd with its own configuration, certificate and entries, in a
//! directory that goes away with it. No service of the machine is touched.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "a panic is how a test fails; not each test uses all of it"
)]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

pub const ADMIN: &str = "cn=admin,dc=uni,dc=example";
pub const PASSWORD: &str = "of the admin";
/// Attributes that other directories have, for this one.
const SCHEMA: &str = "attributetype ( 1.3.6.1.4.1.32473.1 NAME 'nsAccountLock' EQUALITY caseIgnoreMatch \
                      SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 SINGLE-VALUE )\n";
const ENTRIES: &str = "dn: dc=uni,dc=example\nobjectClass: domain\ndc: uni\n\n\
    dn: ou=people,dc=uni,dc=example\nobjectClass: organizationalUnit\nou: people\n\n\
    dn: ou=groups,dc=uni,dc=example\nobjectClass: organizationalUnit\nou: groups\n";

pub struct Slapd {
    directory: tempfile::TempDir,
    process: Child,
    pub plain: u16,
    pub tls: u16,
}

impl Slapd {
    /// Starts one on this address, with the unit `people` and these entries (LDIF) besides. `None`
    /// if the machine has no slapd, which fails where CI is set.
    pub fn start(address: &str, command: impl Fn(&str) -> Command, entries: &str) -> Option<Self> {
        if !Path::new("/usr/sbin/slapd").exists() {
            assert!(std::env::var_os("CI").is_none(), "this test needs slapd: ./x setup");
            eprintln!("SKIPPED: there is no slapd; run ./x setup");
            return None;
        }
        // Another test may take a port first.
        for _ in 0..5 {
            let mut slapd = Self::launch(address, &command);
            if slapd.is_up() {
                slapd.fill(&command, address, entries);
                return Some(slapd);
            }
        }
        panic!("slapd does not start");
    }

    fn launch(address: &str, command: &impl Fn(&str) -> Command) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("db")).unwrap();
        make_certificates(directory.path(), address);
        fs::write(at("slapd.conf"), configuration(directory.path())).unwrap();
        let [plain, tls] = free_ports();
        let urls = format!("ldap://{address}:{plain} ldaps://{address}:{tls}");
        let mut slapd = command("/usr/sbin/slapd");
        slapd.args(["-d", "0", "-h", &urls, "-f"]).arg(at("slapd.conf"));
        let quiet = slapd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = quiet.spawn().unwrap();
        Self { directory, process, plain, tls }
    }

    /// Waits until it has written its number, shortly before it answers.
    fn is_up(&mut self) -> bool {
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            if self.directory.path().join("pid").exists() {
                return true;
            }
            sleep(Duration::from_millis(20));
        }
        false
    }

    fn fill(&self, command: &impl Fn(&str) -> Command, address: &str, entries: &str) {
        let path = self.directory.path().join("entries.ldif");
        fs::write(&path, format!("{ENTRIES}\n{entries}")).unwrap();
        let mut add = command("/usr/bin/ldapadd");
        add.args([
            "-x",
            "-H",
            &format!("ldap://{address}:{}", self.plain),
            "-D",
            ADMIN,
            "-w",
            PASSWORD,
            "-f",
        ]);
        add.arg(&path);
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let output = add.output().unwrap();
            if output.status.success() {
                return;
            }
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert!(complaint.contains("Can't contact") && Instant::now() < until, "{complaint}");
            sleep(Duration::from_millis(20));
        }
    }

    /// Changes entries, by LDIF with `changetype`.
    pub fn modify(&self, command: &impl Fn(&str) -> Command, address: &str, changes: &str) {
        let path = self.directory.path().join("changes.ldif");
        fs::write(&path, changes).unwrap();
        let mut modify = command("/usr/bin/ldapmodify");
        modify.args([
            "-x",
            "-H",
            &format!("ldap://{address}:{}", self.plain),
            "-D",
            ADMIN,
            "-w",
            PASSWORD,
            "-f",
        ]);
        let output = modify.arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The number of searches until now, this one not counted.
    pub fn searches(&self, command: &impl Fn(&str) -> Command, address: &str) -> u64 {
        let mut search = command("/usr/bin/ldapsearch");
        search.args(["-x", "-LLL", "-H", &format!("ldap://{address}:{}", self.plain)]);
        search.args(["-D", ADMIN, "-w", PASSWORD, "-b", "cn=Search,cn=Operations,cn=Monitor", "-s", "base"]);
        let output = search.arg("monitorOpCompleted").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("monitorOpCompleted: "));
        count.and_then(|count| count.parse().ok()).expect("slapd counts them")
    }

    pub fn ca(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// A file with the admin's password, which the gateway may use for its own account.
    pub fn password_file(&self) -> PathBuf {
        let path = self.directory.path().join("password");
        fs::write(&path, format!("{PASSWORD}\n")).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Slapd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn configuration(directory: &Path) -> String {
    let at = |name: &str| directory.join(name).display().to_string();
    let schemas: String = ["core", "cosine", "inetorgperson"]
        .map(|name| format!("include /etc/ldap/schema/{name}.schema\n"))
        .concat();
    // A bind without a password succeeds here, as it does at many a directory.
    format!(
        "{schemas}{SCHEMA}modulepath /usr/lib/ldap\nmoduleload back_mdb\nmoduleload back_monitor\nmoduleload memberof\nallow bind_anon_dn\n\
         pidfile {}\nTLSCACertificateFile {}\nTLSCertificateFile {}\nTLSCertificateKeyFile {}\nsizelimit 500\n\
         database monitor\n\
         database mdb\nsuffix \"dc=uni,dc=example\"\nrootdn \"{ADMIN}\"\nrootpw \"{PASSWORD}\"\ndirectory {}\n\
         index objectClass,uid,member eq\ndbnosync\noverlay memberof\n",
        at("pid"),
        at("ca.pem"),
        at("server.pem"),
        at("server-key.pem"),
        at("db"),
    )
}

/// A name that its certificate is for besides its address.
pub const NAME: &str = "directory.example";

/// A CA, and a certificate of it for this address and [`NAME`].
pub fn make_certificates(directory: &Path, address: &str) {
    let ca_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let issuer = Issuer::from_params(&params, &ca_key);
    let certificate = CertificateParams::new(vec![address.to_owned(), NAME.to_owned()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    for (name, text) in
        [("ca.pem", ca.pem()), ("server.pem", certificate.pem()), ("server-key.pem", key.serialize_pem())]
    {
        fs::write(directory.join(name), text).unwrap();
    }
}

/// Two ports that are free for TCP now.
fn free_ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// A person of the unit `people`.
pub fn person(name: &str, password: &str) -> String {
    format!(
        "dn: uid={name},ou=people,dc=uni,dc=example\nobjectClass: inetOrgPerson\nuid: {name}\ncn: {name}\nsn: {name}\n\
         userPassword: {password}\n\n"
    )
}

/// A group of persons.
pub fn group(name: &str, members: &[&str]) -> String {
    let members = members.iter().map(|member| format!("member: uid={member},ou=people,dc=uni,dc=example\n"));
    format!(
        "dn: cn={name},ou=groups,dc=uni,dc=example\nobjectClass: groupOfNames\ncn: {name}\n{}\n",
        members.collect::<String>()
    )
}

/// A change that adds a group whose member is another group.
pub fn nested_group(name: &str, member: &str) -> String {
    format!(
        "dn: cn={name},ou=groups,dc=uni,dc=example\nchangetype: add\nobjectClass: groupOfNames\ncn: {name}\n\
         member: cn={member},ou=groups,dc=uni,dc=example\n\n"
    )
}
