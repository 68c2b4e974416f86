//! This project's VPN, driven as a user would: its own commands, its own configuration file, its
//! status.
//!
//! Nothing of vpnd's internals is used, so it gets no treatment that another system could not get.

mod config;
mod database;
mod files;
mod library;
mod machine_code;
mod status;
mod stock_clients;

use std::ffi::OsString;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::daemon::Daemon;
use super::program::{Program, Programs, Source};
use super::{
    Cipher, ClientAddress, Priority, Profile, Subject, System, SystemError, SystemInfo, check_tun, pause,
};
use crate::interrupt::Interrupt;
use crate::lab::device::Device;
use crate::lab::namespace::Namespace;
use crate::lab::{Lab, run_tool, tool};
use database::Database;
pub use database::POSTGRES_PROFILE;
use files::Files;
use library::library_of;
pub use library::{keep_choice, named_library, use_library};
pub use machine_code::Code;
use machine_code::{WITHOUT_AES, check_mask};
use status::Session;
pub use status::{Counters, Held};
pub use stock_clients::{StockClients, WIREGUARD_GO_PROFILE, WIREGUARD_GO_TAILSCALE_PROFILE};

/// Time that the gateway may take until it answers.
const SERVER_TIMEOUT: Duration = Duration::from_secs(20);
/// Time that all clients together may take to be connected.
const CLIENTS_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a connected client may take to find out what its path carries. A path that carries no
/// more than the least takes all of it.
const PATH_TIMEOUT: Duration = Duration::from_secs(2);
/// The MTU of a tunnel whose path is not known yet.
const FIRST_MTU: u32 = 1_280;
/// The port of the gateway; any will do inside the lab.
pub const PORT: u16 = 4433;
/// The first bytes of all addresses in its tunnel.
const POOL_V4: [u8; 2] = [10, 86];

static VPND: Program = Program {
    name: "vpnd",
    version: &["--version"],
    places: &[],
    source: Source::Workspace { package: "vpnd" },
};

/// vpnd before it runs.
pub const PROFILE: Profile = Profile {
    label: "vpnd",
    ciphers: &[
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::ChaCha20Poly1305,
        Cipher::None,
        Cipher::AuthOnly,
        Cipher::Aes256CbcHmacSha256,
    ],
    programs: &[&VPND],
    has_priority: true,
    adapter: |programs, subject| Box::new(Vpnd::of(programs, subject)),
};

/// vpnd with its own AES-GCM before it runs.
pub const VAES_PROFILE: Profile = Profile {
    label: "vpnd (vaes)",
    ciphers: &[Cipher::Aes128Gcm, Cipher::Aes256Gcm],
    adapter: |programs, subject| Box::new(Vpnd { backend: Some(VAES.into()), ..Vpnd::of(programs, subject) }),
    ..PROFILE
};

/// vpnd in a lab.
#[derive(Debug)]
pub struct Vpnd {
    programs: Programs,
    cipher: Cipher,
    room: Option<Room>,
    files: Option<Files>,
    code: Code,
    /// The MTU of WireGuard devices, if it serves those.
    wireguard: Option<u32>,
    /// The library of its ciphers, as it names it, if not its own choice.
    backend: Option<String>,
    priority: Priority,
    /// The suite that clients offer, if not all.
    suite: Option<String>,
    facts: SystemInfo,
    // Clients end before the gateway: they say goodbye to it.
    clients: Vec<Daemon>,
    gateway: Option<Daemon>,
    /// The server with its users and sessions, if these are not in a file.
    database: Option<Database>,
}

/// A gateway for more sessions than real clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Namespaces of the lab that get a real client; the others are left to the holder of the
    /// sessions.
    pub clients: usize,
    pub sessions: u32,
    /// Sessions of one user.
    pub per_user: u32,
    /// Age at which keys are replaced, in seconds, if not the usual.
    pub rekey_after_s: Option<u32>,
}

/// Time for which an idle thread of the data path looks for the next packet, as vpnd names it.
const BUSY_POLL: &str = "busy_poll_us";
/// The one library whose use of CPU instructions can be restricted from outside, as vpnd names it.
const RESTRICTABLE: &str = "aws-lc";
/// Its own AES-GCM, as it names it.
const VAES: &str = "vaes";
impl Vpnd {
    fn new(programs: Programs, cipher: Cipher) -> Self {
        Self {
            programs,
            cipher,
            room: None,
            files: None,
            code: Code::Native,
            wireguard: None,
            backend: None,
            priority: Priority::Own,
            suite: (cipher != Cipher::Auto).then(|| cipher.name().to_owned()),
            facts: SystemInfo::default(),
            clients: Vec::new(),
            gateway: None,
            database: None,
        }
    }

    fn of(programs: &Programs, subject: Subject) -> Self {
        Self { priority: subject.priority, ..Self::new(programs.clone(), subject.cipher) }
    }

    /// vpnd as this machine code.
    pub fn with_code(programs: &Programs, subject: Subject, code: Code) -> Self {
        let backend = (code == Code::WithoutAes).then(|| RESTRICTABLE.to_owned());
        Self { code, backend, ..Self::of(programs, subject) }
    }

    /// The words that start vpnd with its machine code: the program, and what comes before its own
    /// arguments.
    fn starter(&self, program: &Path) -> Result<(PathBuf, Vec<OsString>), SystemError> {
        match self.code {
            Code::Native => Ok((program.to_owned(), Vec::new())),
            Code::WithoutAes => Ok((tool("env", "coreutils")?, vec![WITHOUT_AES.into(), program.into()])),
        }
    }

    /// A gateway with room for sessions that others open.
    pub fn with_room(programs: Programs, subject: Subject, room: Room) -> Self {
        Self { room: Some(room), ..Self::of(&programs, subject) }
    }

    /// The CA that vouches for the gateway, PEM. Only while it is up.
    pub fn ca_pem(&self) -> Result<String, SystemError> {
        let path = self.files().directory.join("ca.pem");
        let failed = |source| SystemError::Io { action: format!("reading {}", path.display()), source };
        fs::read_to_string(&path).map_err(failed)
    }

    /// Adds a user as an operator does, and returns the password. Only while it is up.
    ///
    /// # Errors
    /// [`SystemError`] with what `vpnd user add` said.
    pub fn add_user(&self, user: &str) -> Result<String, SystemError> {
        let program = self.programs.find(&VPND)?;
        let (path, password) = self.files().make_password(user)?;
        let add = ["user", "add", user, "--config"];
        let mut command = Command::new(program);
        command.args(add).arg(self.files().config()).arg("--password-file").arg(path);
        run_tool(&mut command)?;
        Ok(password)
    }

    /// Ends the gateway, by force or in order, and starts it again. Returns when it began to
    /// answer.
    ///
    /// # Errors
    /// [`SystemError`] if it does not come back.
    pub fn restart(&mut self, lab: &Lab, force: bool, interrupt: &Interrupt) -> Result<Instant, SystemError> {
        if let Some(gateway) = self.gateway.as_mut().filter(|_| force) {
            gateway.kill();
        }
        self.gateway = None;
        let program = self.programs.find(&VPND)?;
        self.launch(&program, lab, interrupt)?;
        Ok(Instant::now())
    }

    /// Has the gateway go on as a new process of its program. Returns when that is done.
    ///
    /// # Errors
    /// [`SystemError`] with why it goes on as it was.
    pub fn upgrade(&self) -> Result<(), SystemError> {
        let mut command = Command::new(self.programs.find(&VPND)?);
        run_tool(command.args(["server", "--upgrade", "--config"]).arg(self.files().config()))?;
        Ok(())
    }

    /// The gateway's account of what it holds; `None` if it does not answer. Only while it is up.
    pub fn held(&self) -> Option<Held> {
        let status = self.files().status(&self.programs.find(&VPND).ok()?)?;
        Some(Held::of(status, &self.files().directory.join("state")))
    }

    /// The file of its users, sessions and devices. Only while it is up.
    pub fn store(&self) -> PathBuf {
        self.files().directory.join("state/vpnd.db")
    }

    fn files(&self) -> &Files {
        self.files.as_ref().expect("a system that is up has its files")
    }

    fn insecure(&self) -> &'static [&'static str] {
        if self.cipher.is_lab_only() { &["--insecure-lab"] } else { &[] }
    }

    /// Starts the gateway alone; returns its program.
    fn start_gateway(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<PathBuf, SystemError> {
        let program = self.programs.find(&VPND)?;
        self.facts.version = VPND.version_of(&program);
        if let Some(microseconds) = self.programs.busy_poll_us() {
            self.facts.version = format!("{}, {BUSY_POLL} = {microseconds}", self.facts.version);
        }
        self.files = Some(Files::make(lab.directory().join("vpnd"))?);
        self.pin_library();
        let name = Lab::SERVICE_V4.to_string();
        let listen = format!("[::]:{PORT}");
        run_tool(
            Command::new(&program)
                .args(["init", "--dir"])
                .arg(&self.files().directory)
                .args(["--name", &name, "--listen", &listen])
                .args(["--pool-v4", &format!("{}.{}.0.0/16", POOL_V4[0], POOL_V4[1])])
                .args(["--pool-v6", "fd86::/64"]),
        )?;
        if let Some(database) = &mut self.database {
            let version = database.start(&self.programs, lab, interrupt)?;
            self.facts.notes.push(format!("users and sessions are in {version} on the same machine"));
        }
        self.edit_config()?;
        if self.database.is_some() {
            // The first user brings the tables along.
            self.add_user("first")?;
        }
        self.launch(&program, lab, interrupt)?;
        Ok(program)
    }

    /// Starts the daemon and waits until it answers.
    fn launch(&mut self, program: &Path, lab: &Lab, interrupt: &Interrupt) -> Result<(), SystemError> {
        let files = self.files();
        let config = files.config();
        let arguments = ["server".as_ref(), "--config".as_ref(), config.as_os_str()];
        let insecure = self.insecure().iter().map(AsRef::as_ref);
        let log = files.directory.join("server.log");
        let (starter, first) = self.starter(program)?;
        let arguments = first.iter().map(OsString::as_os_str).chain(arguments).chain(insecure);
        let mut gateway = Daemon::start("vpnd server", lab.gateway(), &starter, arguments, &log)?;
        let failure = "does not answer `vpnd status`";
        let status = gateway.wait_until(failure, SERVER_TIMEOUT, interrupt, |_| Ok(files.status(program)))?;
        self.gateway = Some(gateway);
        self.choose_suite(status);
        Ok(())
    }

    /// Where nothing else is said, clients offer the suite that is the gateway's fastest at the
    /// first start of a run. By themselves, two clients whose suites are about as fast would not
    /// choose the same one.
    fn choose_suite(&mut self, status: status::Status) {
        if let (None, Some(fastest)) = (&self.suite, status.fastest_suite()) {
            self.suite = Some(self.programs.first_choice(self.chooser(), fastest));
        }
        if let (None, Some(suite)) = (&self.backend, &self.suite)
            && let Some(library) = status.library_of(suite)
        {
            self.backend = Some(self.programs.first_choice(library_of(suite), library));
        }
    }

    fn start_client(
        &mut self,
        program: &Path,
        number: usize,
        namespace: &Namespace,
    ) -> Result<(), SystemError> {
        let user = user(number);
        let files = self.files();
        let file = |kind: &str| files.directory.join(format!("{user}.{kind}"));
        let (profile, state, log) = (file("profile"), file("state"), file("log"));
        let (password, _) = files.make_password(&user)?;
        run_tool(
            Command::new(program)
                .args(["user", "add", &user, "--config"])
                .arg(files.config())
                .arg("--password-file")
                .arg(&password)
                .arg("--profile-out")
                .arg(&profile),
        )?;
        self.edit_profile(&profile)?;
        let journal = file("journal");
        let arguments: [&std::ffi::OsStr; 9] = [
            "connect".as_ref(),
            profile.as_os_str(),
            "--credentials".as_ref(),
            password.as_os_str(),
            "--no-dns".as_ref(),
            "--state-dir".as_ref(),
            state.as_os_str(),
            "--journal-dir".as_ref(),
            journal.as_os_str(),
        ];
        // A client offers the suites of the laboratory only with the switch.
        let suite = self.suite.as_deref().map_or(vec![], |suite| vec!["--suite", suite]);
        let backend = self.backend.as_deref().map_or(vec![], |backend| vec!["--backend", backend]);
        let choices = self.insecure().iter().copied().chain(suite).chain(backend).map(AsRef::as_ref);
        let name = format!("vpnd connect (client {number})");
        let (starter, first) = self.starter(program)?;
        let arguments = first.iter().map(OsString::as_os_str).chain(arguments).chain(choices);
        self.clients.push(Daemon::start(&name, namespace, &starter, arguments, &log)?);
        Ok(())
    }

    /// Waits until every client has a session with a suite, its address on a device, and that
    /// device the MTU of its path.
    fn wait_for_clients(
        &mut self,
        program: &Path,
        namespaces: &[Namespace],
        interrupt: &Interrupt,
    ) -> Result<Vec<ClientAddress>, SystemError> {
        let deadline = Instant::now() + CLIENTS_TIMEOUT;
        let mut addresses: Vec<Option<ClientAddress>> = vec![None; namespaces.len()];
        let mut connected_at = None;
        loop {
            let status = self.files().status(program).unwrap_or_default();
            let mut all_know_their_path = true;
            for (number, namespace) in namespaces.iter().enumerate() {
                self.clients[number].must_run()?;
                let is_clients =
                    |session: &&Session| session.user == user(number + 1) && session.suite.is_some();
                if let Some(session) = status.sessions.iter().find(is_clients)
                    && let Some(device) = device_of(namespace, session)?
                {
                    all_know_their_path &= device.mtu != FIRST_MTU;
                    self.note(session, device.mtu);
                    let (v4, v6) = (session.inner_v4, session.inner_v6);
                    addresses[number] = Some(ClientAddress { v4, v6, device: device.name });
                }
            }
            if let Some(addresses) = addresses.iter().cloned().collect::<Option<Vec<_>>>() {
                let connected_at = *connected_at.get_or_insert_with(Instant::now);
                if all_know_their_path || connected_at.elapsed() > PATH_TIMEOUT {
                    return Ok(addresses);
                }
            }
            if let Some(gateway) = &mut self.gateway {
                gateway.must_run()?;
            }
            if Instant::now() > deadline {
                let late = addresses.iter().position(Option::is_none).expect("one is missing");
                return Err(self.clients[late].failed("has no session with an address and a cipher suite"));
            }
            pause(interrupt)?;
        }
    }

    fn note(&mut self, session: &Session, mtu: u32) {
        let suite = session.suite.as_deref().unwrap_or("unknown");
        let cipher = match &session.backend {
            Some(backend) => format!("{suite} ({backend})"),
            None => suite.to_owned(),
        };
        if !self.facts.cipher.split(", ").any(|known| known == cipher) {
            let comma = if self.facts.cipher.is_empty() { "" } else { ", " };
            self.facts.cipher = format!("{}{comma}{cipher}", self.facts.cipher);
        }
        self.facts.mtu = Some(mtu);
    }
}

impl System for Vpnd {
    fn check(&self) -> Result<(), SystemError> {
        self.programs.find(&VPND)?;
        if self.database.is_some() {
            Database::check(&self.programs)?;
        }
        if self.code == Code::WithoutAes && std::env::consts::ARCH != "x86_64" {
            let reason = "AES instructions can be masked on x86-64 only; measure the native code here";
            return Err(SystemError::Missing(reason.into()));
        }
        check_tun()
    }

    fn bring_up(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<Vec<ClientAddress>, SystemError> {
        let program = self.start_gateway(lab, interrupt)?;
        let real = self.room.map_or(lab.clients().len(), |room| room.clients);
        let namespaces = &lab.clients()[..real];
        for (namespace, number) in namespaces.iter().zip(1..) {
            if interrupt.is_set() {
                return Err(SystemError::Interrupted);
            }
            self.start_client(&program, number, namespace)?;
        }
        let addresses = self.wait_for_clients(&program, namespaces, interrupt)?;
        if self.code == Code::WithoutAes {
            check_mask(std::iter::once(lab.gateway()).chain(namespaces))?;
        }
        Ok(addresses)
    }

    fn processes(&self) -> (Vec<u32>, Vec<u32>) {
        let database = self.database.as_ref().and_then(Database::pid);
        let gateway = self.gateway.iter().map(Daemon::pid).chain(database).collect();
        (gateway, self.clients.iter().map(Daemon::pid).collect())
    }

    fn facts(&mut self) -> &mut SystemInfo {
        &mut self.facts
    }

    fn down(&mut self) {
        for client in &mut self.clients {
            client.ask_to_end();
        }
        self.clients.clear();
        self.gateway = None;
        if let Some(database) = &mut self.database {
            database.stop();
        }
    }
}

fn user(number: usize) -> String {
    format!("client{number}")
}

/// The client's device once it has the session's addresses.
fn device_of(namespace: &Namespace, session: &Session) -> Result<Option<Device>, SystemError> {
    let wanted: Vec<IpAddr> =
        [session.inner_v4.map(IpAddr::V4), session.inner_v6.map(IpAddr::V6)].into_iter().flatten().collect();
    let has_all =
        |device: &Device| !wanted.is_empty() && wanted.iter().all(|own| device.addresses.contains(own));
    Ok(Device::all(namespace)?.into_iter().find(has_all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        let vpnd = Vpnd::new(Programs::default().with("vpnd", "/nonexistent/vpnd".into()), Cipher::Auto);
        assert!(vpnd.check().unwrap_err().to_string().contains("/nonexistent/vpnd"));
    }
}
