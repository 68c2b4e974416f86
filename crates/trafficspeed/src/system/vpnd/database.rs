//! vpnd with its users and sessions in PostgreSQL: a server in the lab, which the gateway reaches
//! by a Unix socket.
//!
//! The server's processes count as the gateway's own, for without them it takes no logins.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{PROFILE, VPND, Vpnd};
use crate::interrupt::Interrupt;
use crate::lab::namespace::PrivateDirectory;
use crate::lab::{Lab, run_tool, tool};
use crate::system::daemon::Daemon;
use crate::system::folder::Folder;
use crate::system::program::{Program, Programs, Source};
use crate::system::{Profile, SystemError};

/// Time that the server may take until it can be used.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Where the server's account has its files; it may not read those of a lab.
const HOME: &str = "/var/lib/postgresql";
/// Where Debian has the programs of its releases' versions.
const PLACES: &[&str] = &[
    "/usr/lib/postgresql/18/bin",
    "/usr/lib/postgresql/17/bin",
    "/usr/lib/postgresql/16/bin",
    "/usr/lib/postgresql/15/bin",
    "/usr/lib/postgresql/14/bin",
    "/usr/lib/postgresql/13/bin",
];
/// Words of `setpriv` by which a program is the server's account, as which alone it runs, stays out
/// of our directory and ends with this program.
const ACCOUNT: &[&str] =
    &["--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=INT", "env", "--chdir=/"];

static POSTGRES: Program = program("postgres");
static INITDB: Program = program("initdb");

const fn program(name: &'static str) -> Program {
    let source = Source::Debian { packages: &["postgresql"] };
    Program { name, version: &["--version"], places: PLACES, source }
}

/// vpnd with a database before it runs.
pub const POSTGRES_PROFILE: Profile = Profile {
    label: "vpnd (PostgreSQL)",
    programs: &[&VPND, &POSTGRES, &INITDB],
    adapter: |programs, subject| {
        Box::new(Vpnd { database: Some(Database::default()), ..Vpnd::of(programs, subject) })
    },
    ..PROFILE
};

/// The server, once it was started.
#[derive(Debug, Default)]
pub(super) struct Database {
    server: Option<Daemon>,
    directory: PathBuf,
}

impl Database {
    /// Says what is missing for it.
    pub(super) fn check(programs: &Programs) -> Result<(), SystemError> {
        programs.find(&POSTGRES)?;
        programs.find(&INITDB)?;
        setpriv().map(drop)
    }

    /// Starts an empty server; returns its version.
    pub(super) fn start(
        &mut self,
        programs: &Programs,
        lab: &Lab,
        interrupt: &Interrupt,
    ) -> Result<String, SystemError> {
        let (program, setpriv) = (programs.find(&POSTGRES)?, setpriv()?);
        let folder = Folder::make(lab, "postgres")?;
        folder.directory().clone_into(&mut self.directory);
        run_tool(Command::new("chown").arg("postgres:").arg(&self.directory))?;
        // The gateway's parent, which dials, has no right to pass over modes.
        fs::set_permissions(&self.directory, Permissions::from_mode(0o755)).map_err(|source| {
            SystemError::Io { action: format!("opening {}", self.directory.display()), source }
        })?;
        let private = [PrivateDirectory { own: self.directory.clone(), seen_as: HOME.into() }];
        let data = format!("{HOME}/data");
        let mut make = lab.gateway().command(setpriv.as_os_str(), &private);
        make.args(ACCOUNT).arg(programs.find(&INITDB)?).args(["-U", "vpnd", "-A", "trust", "--no-sync"]);
        run_tool(make.args(["--locale=C.UTF-8", "-D", &data]))?;
        let socket = format!("unix_socket_directories={HOME}");
        let mut arguments: Vec<&OsStr> = ACCOUNT.iter().map(AsRef::as_ref).collect();
        arguments.push(program.as_os_str());
        arguments.extend(["-D", &data, "-c", "listen_addresses=", "-c", &socket].map(OsStr::new));
        let log = lab.directory().join("postgres.log");
        let server = Daemon::start_with(&private, "postgres", lab.gateway(), &setpriv, arguments, &log)?;
        self.server.insert(server).wait_until(
            "accepts no connection",
            START_TIMEOUT,
            interrupt,
            |server| Ok(server.output().contains("ready to accept connections").then_some(())),
        )?;
        Ok(POSTGRES.version_of(&program))
    }

    /// Where its socket is.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Daemon::pid)
    }

    /// Ends it. The gateway has ended before, for the server waits for its clients.
    pub(super) fn stop(&mut self) {
        self.server = None;
    }
}

fn setpriv() -> Result<PathBuf, SystemError> {
    Ok(tool("setpriv", "util-linux")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::{Cipher, Kind, Subject, System as _};

    #[test]
    fn the_database_is_in_the_configuration_and_its_programs_are_needed() {
        let database = Database { directory: "/run/lab/postgres".into(), ..Database::default() };
        let program = std::env::current_exe().unwrap();
        let programs = Programs::default().with("vpnd", program.clone()).with("postgres", program);
        let programs = programs.with("initdb", "/nonexistent/initdb".into());
        let subject = Subject::new(Kind::VpndPostgres, Cipher::Auto);
        let vpnd = Vpnd { database: Some(database), ..Vpnd::of(&programs, subject) };
        let config = vpnd.config("[store]\n# by init\n", Path::new("/s")).unwrap();
        assert!(config.contains("engine = \"postgres\"\nhosts = [\"/run/lab/postgres\"]\n"), "{config}");
        assert!(config.contains("database = \"postgres\""), "{config}");
        let file = Vpnd::of(&programs, Subject::new(Kind::Vpnd, Cipher::Auto));
        assert!(!file.config("", Path::new("/s")).unwrap().contains("store"), "a file is its own choice");
        let missing = vpnd.check().unwrap_err().to_string();
        assert!(missing.contains("initdb=/nonexistent/initdb"), "{missing}");
    }
}
