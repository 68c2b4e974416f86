//! A PostgreSQL server for tests: a cluster of its own in a directory that goes away with it. No
//! service of the machine is touched.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs::{self, Permissions};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use zeroize::Zeroizing;

use super::{Access, Dial, Direct, Holder};
use vpnd_config::database::{DatabaseFiles, DatabaseHost, PostgresSettings};

/// The role that owns everything, and its password over TCP.
pub const ROLE: &str = "vpnd";
pub const PASSWORD: &str = "of the database";
/// The name in the server's certificate, besides its address.
pub const SERVER_NAME: &str = "db.uni.example";

/// Limit for what a starved machine may need.
const PATIENCE: Duration = Duration::from_secs(60);

static CLUSTERS: AtomicU32 = AtomicU32::new(0);

/// A server that runs, on a Unix socket and with TLS on TCP.
pub struct Cluster {
    directory: PathBuf,
    address: String,
    pub port: u16,
    /// Runs a program as this cluster's tests do, in a network namespace for example.
    command: Box<dyn Fn(&str) -> Command + Send + Sync>,
    programs: PathBuf,
    server: Option<Child>,
    databases: AtomicU32,
}

impl Cluster {
    /// Starts one that listens on this address. `None` if the machine has no PostgreSQL, which
    /// fails where CI is set.
    pub fn start(
        address: &str,
        command: impl Fn(&str) -> Command + Send + Sync + 'static,
        settings: &str,
    ) -> Option<Self> {
        let Some(programs) = programs() else {
            assert!(std::env::var_os("CI").is_none(), "this test needs postgresql: ./x setup");
            eprintln!("SKIPPED: there is no PostgreSQL; run ./x setup");
            return None;
        };
        let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("vpnd-postgres-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        if let Some((uid, gid)) = account() {
            chown(&directory, Some(uid), Some(gid)).unwrap();
        }
        let mut cluster = Self {
            directory,
            address: address.to_owned(),
            port: 0,
            command: Box::new(command),
            programs,
            server: None,
            databases: AtomicU32::new(0),
        };
        cluster.make(settings);
        for _ in 0..5 {
            // Another test may take a port first.
            cluster.port = free_port();
            if cluster.launch() {
                let sql = format!("ALTER ROLE {ROLE} PASSWORD '{PASSWORD}'");
                cluster.sql("postgres", &sql);
                return Some(cluster);
            }
        }
        let log = fs::read_to_string(cluster.directory.join("log")).unwrap_or_default();
        panic!("PostgreSQL does not start: {log}");
    }

    fn make(&self, settings: &str) {
        let data = self.directory.join("data");
        let made = self
            .as_its_user("initdb")
            .args(["-U", ROLE, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8", "-D"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        self.make_certificate();
        let hba = "local all all trust\nhostssl all all all scram-sha-256\nhostnossl all all all reject\n";
        fs::write(data.join("pg_hba.conf"), hba).unwrap();
        let more = format!(
            "unix_socket_directories = '{}'\nlisten_addresses = '{}'\nssl = on\nssl_cert_file = '../server.pem'\n\
             ssl_key_file = '../server-key.pem'\nfsync = off\nmax_connections = 60\nshared_buffers = 16MB\n{settings}\n",
            self.directory.display(),
            self.address,
        );
        let path = data.join("postgresql.auto.conf");
        fs::write(&path, more).unwrap();
        if let Some((uid, gid)) = account() {
            for path in [path, data.join("pg_hba.conf")] {
                chown(path, Some(uid), Some(gid)).unwrap();
            }
        }
    }

    /// A certificate that is its own authority.
    fn make_certificate(&self) {
        let names = format!("subjectAltName=IP:{},DNS:{SERVER_NAME}", self.address);
        let mut openssl = self.as_its_user("/usr/bin/openssl");
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
        openssl.args(["-days", "30", "-subj", "/CN=db", "-addext", &names]);
        openssl.args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"]);
        openssl.arg(self.directory.join("server-key.pem")).arg("-out").arg(self.ca());
        let made = openssl.output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    /// Starts the server again, on the same port.
    pub fn restart(&mut self) {
        assert!(self.launch(), "PostgreSQL does not start again");
    }

    /// Whether it accepts connections.
    fn launch(&mut self) -> bool {
        let script = "trap 'kill -INT $p' TERM; \"$0\" -D \"$1/data\" -p \"$2\" >>\"$1/log\" 2>&1 & p=$!; wait $p; wait $p";
        let mut server = self.as_its_user("/bin/sh");
        let postgres = self.programs.join("postgres");
        server.args(["-c", script]).arg(postgres).arg(&self.directory).arg(self.port.to_string());
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.server = Some(spawn(server));
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self.server.as_mut().unwrap().try_wait().unwrap().is_some() {
                return false;
            }
            if self.try_sql("postgres", "SELECT 1").is_ok() {
                return true;
            }
            sleep(Duration::from_millis(20));
        }
        false
    }

    /// Has it start as a standby that waits for a primary.
    pub fn make_standby(&self) {
        fs::write(self.directory.join("data/standby.signal"), "").unwrap();
    }

    /// Ends the server as an administrator does, or, if `at_once`, without a word to anybody.
    pub fn stop(&mut self, at_once: bool) {
        let signal = if at_once { Signal::QUIT } else { Signal::INT };
        kill_process(self.pid(), signal).unwrap();
        if let Some(mut server) = self.server.take() {
            server.wait().unwrap();
        }
    }

    fn pid(&self) -> Pid {
        let file = fs::read_to_string(self.directory.join("data/postmaster.pid")).unwrap();
        Pid::from_raw(file.lines().next().unwrap().trim().parse().unwrap()).unwrap()
    }

    /// Runs SQL as the owner of everything; what it says.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        self.try_sql(database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    fn try_sql(&self, database: &str, sql: &str) -> Result<String, String> {
        let output = self
            .as_its_user("psql")
            .args(["-X", "-A", "-t", "-q", "-U", ROLE, "-d", database, "-p", &self.port.to_string(), "-h"])
            .arg(&self.directory)
            .args(["-v", "ON_ERROR_STOP=1", "-c", sql])
            .output()
            .unwrap();
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Makes an empty database; its name.
    pub fn database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join(format!(".s.PGSQL.{}", self.port))
    }

    /// The file with the authority of its certificate.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.directory.join("server.pem")
    }

    /// The way to a database by the socket.
    #[must_use]
    pub fn settings(&self, database: &str) -> PostgresSettings {
        PostgresSettings {
            hosts: vec![DatabaseHost::Socket(self.socket())],
            server_name: None,
            database: database.to_owned(),
            user: ROLE.to_owned(),
            password: None,
            identity: None,
            ca: None,
        }
    }

    /// The way to a database over TCP, and what it needs.
    #[must_use]
    pub fn settings_with_tls(&self, database: &str) -> (PostgresSettings, DatabaseFiles) {
        let address = format!("{}:{}", self.address, self.port).parse().unwrap();
        let settings =
            PostgresSettings { hosts: vec![DatabaseHost::Address(address)], ..self.settings(database) };
        let files = DatabaseFiles {
            password: Some(Zeroizing::new(PASSWORD.to_owned())),
            ca: Some(fs::read(self.ca()).unwrap()),
            ..DatabaseFiles::default()
        };
        (settings, files)
    }

    #[must_use]
    pub fn access(&self, database: &str) -> (Access, Direct) {
        let settings = self.settings(database);
        (Access::new(&settings, &DatabaseFiles::default()).unwrap(), Direct(settings.hosts))
    }

    fn as_its_user(&self, program: &str) -> Command {
        let path = self.programs.join(program);
        let path = path.to_str().unwrap();
        let mut command = if account().is_some() {
            let mut command = (self.command)("/usr/bin/setpriv");
            command.args([
                "--reuid=postgres",
                "--regid=postgres",
                "--clear-groups",
                "--pdeathsig=TERM",
                path,
            ]);
            command
        } else {
            (self.command)(path)
        };
        command.current_dir("/");
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.server.is_some() && !thread::panicking() {
            self.stop(true);
        } else if let Some(server) = &mut self.server {
            let _ = server.kill();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The gateway of this number, as it has started.
#[must_use]
pub fn gateway(number: u8, start: u8) -> Holder {
    Holder { gateway: [number; 16], instance: Some([start; 16]), name: format!("gw{number}") }
}

/// Starts a program that ends with this process, rather than with the thread that needs it.
fn spawn(mut command: Command) -> Child {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        sender.send(command.spawn()).unwrap();
        loop {
            thread::park();
        }
    });
    receiver.recv().unwrap().unwrap()
}

/// The newest PostgreSQL's programs, as Debian has them.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let versions = versions.filter_map(|entry| entry.ok().map(|entry| entry.path().join("bin")));
    versions.filter(|programs| programs.join("initdb").exists()).max_by_key(|programs| version(programs))
}

fn version(programs: &Path) -> u32 {
    let name = programs.parent().and_then(Path::file_name);
    name.and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0)
}

/// The account of Debian's package, for a server refuses to run as root.
fn account() -> Option<(u32, u32)> {
    if !geteuid().is_root() {
        return None;
    }
    let accounts = fs::read_to_string("/etc/passwd").ok()?;
    let line = accounts.lines().find(|line| line.starts_with("postgres:"))?;
    let mut fields = line.split(':').skip(2).map(str::parse);
    Some((fields.next()?.ok()?, fields.next()?.ok()?))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap().port()
}

/// Dials a Unix socket by a proxy that ends a connection at a COMMIT: the server does the work or
/// never learns of it, and its client is not told which.
pub struct LosesCommits {
    pub socket: PathBuf,
    /// Commits that are lost from now on.
    pub left: Arc<AtomicU32>,
    /// Whether the server is to learn of them.
    pub passes: bool,
}

impl Dial for LosesCommits {
    fn dial(&self, _host: usize) -> io::Result<OwnedFd> {
        let (ours, theirs) = UnixStream::pair()?;
        let server = UnixStream::connect(&self.socket)?;
        let (mut from_server, mut to_client) = (server.try_clone()?, ours.try_clone()?);
        thread::spawn(move || {
            let _ = io::copy(&mut from_server, &mut to_client);
            let _ = to_client.shutdown(Shutdown::Both);
        });
        let (left, passes) = (Arc::clone(&self.left), self.passes);
        thread::spawn(move || {
            let _ = pass_on(&ours, &server, &left, passes);
            let _ = server.shutdown(Shutdown::Both);
        });
        Ok(theirs.into())
    }
}

fn pass_on(
    mut client: &UnixStream,
    mut server: &UnixStream,
    left: &AtomicU32,
    passes: bool,
) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = client.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        let is_commit = bytes[..count].windows(7).any(|part| part == b"COMMIT\0");
        let less = |left: u32| left.checked_sub(1);
        if is_commit && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            client.shutdown(Shutdown::Both)?;
            return if passes { server.write_all(&bytes[..count]) } else { Ok(()) };
        }
        server.write_all(&bytes[..count])?;
    }
}
