//! A PostgreSQL server for tests: a separate cluster in a directory that is removed with it. No
//! service of the machine is touched.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod losing;
pub mod simulated;

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use zeroize::Zeroizing;

use super::{Access, Direct, Holder};
pub use losing::LosesCommits;
use vpnd_config::database::{DatabaseFiles, DatabaseHost, PostgresSettings};

/// The role that owns everything, and its password over TCP.
pub const ROLE: &str = "vpnd";
pub const PASSWORD: &str = "of the database";
/// The name in the server's certificate, besides its address.
pub const SERVER_NAME: &str = "db.uni.example";

/// Limit for what a starved machine may need.
const TIMEOUT: Duration = Duration::from_secs(60);

static CLUSTERS: AtomicU32 = AtomicU32::new(0);

/// A server that runs, on a Unix socket and with TLS on TCP.
pub struct Cluster {
    directory: PathBuf,
    address: String,
    pub port: u16,
    /// Runs a program as this cluster's tests do, in a network namespace for example.
    command: Arc<dyn Fn(&str) -> Command + Send + Sync>,
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
        let mut cluster = Self {
            directory: new_directory(),
            address: address.to_owned(),
            port: 0,
            command: Arc::new(command),
            programs,
            server: None,
            databases: AtomicU32::new(0),
        };
        cluster.make(settings);
        cluster.launch_on_some_port();
        let sql = format!("ALTER ROLE {ROLE} PASSWORD '{PASSWORD}'");
        cluster.sql("postgres", &sql);
        Some(cluster)
    }

    /// Starts a standby that follows this server; no commit waits for it.
    #[must_use]
    pub fn standby(&self) -> Self {
        let mut standby = Self {
            directory: new_directory(),
            address: self.address.clone(),
            port: 0,
            command: Arc::clone(&self.command),
            programs: self.programs.clone(),
            server: None,
            databases: AtomicU32::new(0),
        };
        let data = standby.directory.join("data");
        let mut copying = self.as_its_user("pg_basebackup");
        copying.args(["-R", "-c", "fast", "-X", "stream", "--no-sync", "-U", ROLE, "-p"]);
        copying.arg(self.port.to_string()).arg("-h").arg(&self.directory).arg("-D").arg(&data);
        let copied = copying.output().unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        for name in ["server.pem", "server-key.pem"] {
            let copy = standby.directory.join(name);
            fs::copy(self.directory.join(name), &copy).unwrap();
            give(&copy);
        }
        let path = data.join("postgresql.auto.conf");
        let mut settings = fs::OpenOptions::new().append(true).open(path).unwrap();
        writeln!(settings, "unix_socket_directories = '{}'", standby.directory.display()).unwrap();
        standby.launch_on_some_port();
        standby
    }

    /// Starts a standby that follows this server, for whose disk each commit waits.
    #[must_use]
    pub fn synchronous_standby(&self) -> Self {
        let standby = self.standby();
        self.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql("postgres", "SELECT pg_reload_conf()");
        self.wait_for("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'");
        standby
    }

    /// Has a standby get nothing more, after it has all that `primary` has.
    pub fn cut_off(&self, primary: &Self) {
        let last = primary.sql("postgres", "SELECT pg_current_wal_insert_lsn()");
        self.wait_for(&format!("SELECT pg_last_wal_replay_lsn() >= '{last}'"));
        self.sql("postgres", "ALTER SYSTEM SET primary_conninfo = ''");
        self.sql("postgres", "SELECT pg_reload_conf()");
        self.wait_for("SELECT count(*) = 0 FROM pg_stat_wal_receiver");
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        assert_eq!(self.sql("postgres", "SELECT pg_promote()"), "t");
    }

    /// Ends processes of the server without a word, by their condition in `pg_stat_activity`, and
    /// waits until it has recovered.
    pub fn kill_backends(&self, condition: &str) {
        let sql = format!("SELECT pid FROM pg_stat_activity WHERE {condition}");
        let found = self.sql("postgres", &sql);
        assert!(!found.is_empty(), "there is one where {condition}");
        for pid in found.lines() {
            kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
        }
        // Connections are refused until it has recovered, some of them after a moment.
        let until = Instant::now() + TIMEOUT;
        while self.try_sql("postgres", &sql) != Ok(String::new()) {
            assert!(Instant::now() < until, "it recovers");
            sleep(Duration::from_millis(20));
        }
    }

    /// Stops all processes of the server, which keep their connections, or has them go on.
    pub fn pause(&self, is_paused: bool) {
        let signal = if is_paused { Signal::STOP } else { Signal::CONT };
        let Some(postmaster) = self.server.as_ref().map(|_| self.pid()) else { return };
        // Its children first, for it would miss them; and last when all go on.
        let children =
            fs::read_to_string(format!("/proc/{0}/task/{0}/children", postmaster.as_raw_nonzero()));
        let children = children.unwrap();
        let children = children.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap());
        for pid in children.chain([postmaster]) {
            // A child may have ended meanwhile.
            let _ = kill_process(pid, signal);
        }
    }

    /// Refuses logins to a database, or admits them again.
    pub fn refuse(&self, database: &str, is_refused: bool) {
        let path = self.directory.join("data/pg_hba.conf");
        let line = format!("local {database} all reject\n");
        let rest = fs::read_to_string(&path).unwrap().replace(&line, "");
        fs::write(&path, if is_refused { line + &rest } else { rest }).unwrap();
        self.sql("postgres", "SELECT pg_reload_conf()");
        let sql =
            format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'");
        // Until the server has read the file it may admit some.
        sleep(Duration::from_millis(200));
        self.sql("postgres", &sql);
    }

    fn wait_for(&self, sql: &str) {
        let until = Instant::now() + TIMEOUT;
        while self.sql("postgres", sql) != "t" {
            assert!(Instant::now() < until, "{sql}");
            sleep(Duration::from_millis(20));
        }
    }

    fn launch_on_some_port(&mut self) {
        for _ in 0..5 {
            // Another test may take a port first.
            self.port = free_port();
            if self.launch() {
                return;
            }
        }
        let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
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
        let hba = "local all,replication all trust\nhostssl all all all scram-sha-256\nhostnossl all all all reject\n";
        fs::write(data.join("pg_hba.conf"), hba).unwrap();
        let more = format!(
            "unix_socket_directories = '{}'\nlisten_addresses = '{}'\nssl = on\nssl_cert_file = '../server.pem'\n\
             ssl_key_file = '../server-key.pem'\nfsync = off\nmax_connections = 60\nshared_buffers = 16MB\n{settings}\n",
            self.directory.display(),
            self.address,
        );
        let path = data.join("postgresql.auto.conf");
        fs::write(&path, more).unwrap();
        give(&path);
        give(&data.join("pg_hba.conf"));
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
        let until = Instant::now() + TIMEOUT;
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

    /// Copies all that the server has, while it is stopped; it goes on afterwards.
    pub fn back_up(&mut self) {
        self.stop(false);
        self.copy("data", "backup");
        self.restart();
    }

    /// Has the server go on with the copy, without a word to anybody.
    pub fn restore(&mut self) {
        self.stop(true);
        self.copy("backup", "data");
        self.restart();
    }

    fn copy(&self, from: &str, to: &str) {
        let to = self.directory.join(to);
        let _ = fs::remove_dir_all(&to);
        let copied = Command::new("cp").arg("-a").arg(self.directory.join(from)).arg(&to).status().unwrap();
        assert!(copied.success());
    }

    fn pid(&self) -> Pid {
        let file = fs::read_to_string(self.directory.join("data/postmaster.pid")).unwrap();
        Pid::from_raw(file.lines().next().unwrap().trim().parse().unwrap()).unwrap()
    }

    /// Runs SQL as the owner of everything; what it says.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        self.try_sql(database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Runs SQL that may be refused.
    ///
    /// # Errors
    /// The server's words.
    pub fn try_sql(&self, database: &str, sql: &str) -> Result<String, String> {
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
        self.pause(false);
        if self.server.is_some() && !thread::panicking() {
            self.stop(true);
        } else if let Some(server) = &mut self.server {
            let _ = server.kill();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The gateway of this number, as it has started on a separate system.
#[must_use]
pub fn gateway(number: u8, start: u8) -> Holder {
    let mut instance = [start; 16];
    instance[8..].fill(number);
    Holder { gateway: [number; 16], instance: Some(instance), fleet: None, name: format!("gw{number}") }
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

/// Makes a file the server's.
fn give(path: &Path) {
    if let Some((uid, gid)) = account() {
        chown(path, Some(uid), Some(gid)).unwrap();
    }
}

fn new_directory() -> PathBuf {
    let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
    let name = format!("vpnd-postgres-{}-{number}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    give(&directory);
    directory
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap().port()
}
