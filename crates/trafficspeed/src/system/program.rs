//! The programs that systems are made of: where they are, which version they say they are, how each
//! is installed.
//!
//! A program is looked for where the user said, then where `trafficspeed doctor --install` puts
//! what it builds ([`CACHE`]), then beside trafficspeed, then in PATH and where Debian keeps such
//! programs. Nothing is installed by looking for it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::SystemError;
use super::command::Scripts;
use crate::lab::find_program;

/// Where programs that were built by `trafficspeed doctor --install` are; only root can write
/// there.
pub const CACHE: &str = "/var/cache/trafficspeed";
/// Time that a program may take to say its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
/// More than this of what a program says is not read.
const VERSION_BYTES: u64 = 64 * 1024;

/// A program of a system under test.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// Its file name, by which `--program NAME=PATH` names it too.
    pub name: &'static str,
    /// Arguments that make it say its version; empty if it cannot.
    pub version: &'static [&'static str],
    /// Directories outside PATH where a package puts it.
    pub places: &'static [&'static str],
    /// Where it comes from.
    pub source: Source,
}

/// Where a program comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A package of this workspace, built beside trafficspeed.
    Workspace {
        package: &'static str,
    },
    Debian {
        packages: &'static [&'static str],
    },
    /// A crate with a program.
    Cargo {
        package: &'static str,
        /// The version that was tried.
        version: &'static str,
    },
    /// A Go module with a program at its root.
    Go {
        module: &'static str,
        /// The version that was tried.
        version: &'static str,
    },
}

impl Program {
    /// Its version in its own words; for a Go module, the one built into it; for a packaged program
    /// that cannot say it, that of its package.
    pub fn version_of(&self, path: &Path) -> String {
        if let Source::Go { module, .. } = self.source
            && let Some(version) = fs::read(path).ok().and_then(|bytes| go_module_version(&bytes, module))
        {
            return format!("{module} {version}");
        }
        let said = match self.source {
            Source::Debian { packages } if self.version.is_empty() => package_version(packages[0], path),
            _ if self.version.is_empty() => None,
            _ => first_words(path, self.version),
        };
        said.unwrap_or_else(|| "version unknown".to_owned())
    }
}

/// The programs that the user named, and scripts if there are any, those of one system beside those
/// of the next; for vpnd, how long it polls.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    named: BTreeMap<String, PathBuf>,
    scripts: Vec<Scripts>,
    busy_poll_us: Option<u32>,
    /// Choices that systems have made by themselves, by system; all clones share it.
    choices: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Programs {
    /// Says where the program called `name` is.
    #[must_use]
    pub fn with(mut self, name: &str, path: PathBuf) -> Self {
        self.named.insert(name.to_owned(), path);
        self
    }

    /// Gives the scripts of the user's own systems.
    #[must_use]
    pub fn with_scripts(self, scripts: Vec<Scripts>) -> Self {
        Self { scripts, ..self }
    }

    /// Has vpnd poll for this many microseconds, at the gateway and at its clients, instead of what
    /// it does by itself.
    #[must_use]
    pub fn with_busy_poll(self, busy_poll_us: Option<u32>) -> Self {
        Self { busy_poll_us, ..self }
    }

    /// Time for which vpnd polls, if not as it does by itself.
    pub fn busy_poll_us(&self) -> Option<u32> {
        self.busy_poll_us
    }

    /// The first thing that `system` has chosen in this run, which is `now` if it has not yet: two
    /// measurements of one system must not differ in what it happened to choose.
    pub fn first_choice(&self, system: String, now: String) -> String {
        let mut choices = self.choices.lock().unwrap_or_else(PoisonError::into_inner);
        choices.entry(system).or_insert(now).clone()
    }

    /// The choice of `system` in this run, if it has made one.
    pub fn choice(&self, system: &str) -> Option<String> {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner).get(system).cloned()
    }

    /// The scripts of the user's own system number `own`, from 0.
    pub fn scripts(&self, own: usize) -> Option<&Scripts> {
        self.scripts.get(own)
    }

    /// The scripts of all of the user's own systems, in order.
    pub fn all_scripts(&self) -> &[Scripts] {
        &self.scripts
    }

    /// Where `program` is.
    ///
    /// # Errors
    /// [`SystemError::Missing`], with the command that installs it.
    pub fn find(&self, program: &Program) -> Result<PathBuf, SystemError> {
        let name = program.name;
        if let Some(path) = self.named.get(name) {
            let missing =
                || SystemError::Missing(format!("--program {name}={}: no such program", path.display()));
            return path.is_file().then(|| path.clone()).ok_or_else(missing);
        }
        places(program).find(|path| path.is_file()).or_else(|| find_program(name)).ok_or_else(|| {
            let install = super::install::line(program);
            SystemError::Missing(format!(
                "`{name}` is not installed; `{install}` installs it, or name it with --program {name}=PATH"
            ))
        })
    }
}

fn places(program: &Program) -> impl Iterator<Item = PathBuf> {
    let beside = match program.source {
        Source::Workspace { .. } => std::env::current_exe().ok(),
        _ => None,
    };
    let beside = beside.and_then(|own| Some(own.parent()?.to_owned()));
    let built = Path::new(CACHE).join("bin");
    let packaged = program.places.iter().map(PathBuf::from);
    beside.into_iter().chain([built]).chain(packaged).map(|directory| directory.join(program.name))
}

/// The first line that a program says; `None` if it says nothing in time.
fn first_words(path: &Path, arguments: &[&str]) -> Option<String> {
    let mut file = tempfile::tempfile().ok()?;
    let mut child = Command::new(path)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(file.try_clone().ok()?)
        .stderr(file.try_clone().ok()?)
        .spawn()
        .ok()?;
    let deadline = Instant::now() + VERSION_TIMEOUT;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > deadline {
            // Failure means that it has just ended.
            let _ = child.kill();
            let _ = child.wait();
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    file.rewind().ok()?;
    let mut bytes = Vec::new();
    file.take(VERSION_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// The version of the Debian package `package`, if `path` is where packages put programs.
fn package_version(package: &str, path: &Path) -> Option<String> {
    let asked = ["-W", "-f", "${Package} ${Version}", package];
    let packaged = ["/usr/bin", "/usr/sbin", "/usr/lib"].iter().any(|place| path.starts_with(place));
    find_program("dpkg-query").filter(|_| packaged).and_then(|query| first_words(&query, &asked))
}

/// The version of `module` that the Go linker wrote into a program, as its main module or as one it
/// depends on.
fn go_module_version(program: &[u8], module: &str) -> Option<String> {
    ["mod", "dep"].into_iter().find_map(|kind| {
        let line = format!("\n{kind}\t{module}\t");
        let at = program.windows(line.len()).position(|window| window == line.as_bytes())?;
        let rest = &program[at + line.len()..];
        let end = rest.iter().take(200).position(|byte| matches!(byte, b'\t' | b'\n'))?;
        String::from_utf8(rest[..end].to_owned()).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHELL: Program = Program {
        name: "sh",
        version: &["-c", "echo; echo 'shell 1.0' >&2; exit 3"],
        places: &[],
        source: Source::Debian { packages: &["dash"] },
    };

    #[test]
    fn a_program_named_by_the_user_has_precedence_and_must_exist() {
        let named = Programs::default().with("sh", "/etc/hostname".into());
        assert_eq!(named.find(&SHELL).unwrap(), Path::new("/etc/hostname"));
        let wrong = Programs::default().with("sh", "/nonexistent/sh".into());
        assert_eq!(
            wrong.find(&SHELL).unwrap_err().to_string(),
            "--program sh=/nonexistent/sh: no such program"
        );
        assert!(Programs::default().find(&SHELL).unwrap().ends_with("sh"));
    }

    #[test]
    fn a_missing_program_is_listed_with_its_install_command() {
        let program = Program { name: "no-such-program-here", ..SHELL };
        let said = Programs::default().find(&program).unwrap_err().to_string();
        assert!(
            said.contains("apt-get install") && said.contains("--program no-such-program-here="),
            "{said}"
        );
    }

    #[test]
    fn a_version_is_the_first_line_whatever_the_exit_code() {
        assert_eq!(SHELL.version_of(Path::new("/bin/sh")), "shell 1.0");
        let silent = Program { version: &["-c", "true"], ..SHELL };
        assert_eq!(silent.version_of(Path::new("/bin/sh")), "version unknown");
        assert_eq!(Program { version: &[], ..SHELL }.version_of(Path::new("/bin/sh")), "version unknown");
    }

    #[test]
    fn the_version_in_a_go_program_is_read() {
        let program =
            b"\x00path\texample.org/x\nmod\texample.org/x\tv1.2.3\th1:abc=\ndep\texample.org/y\tv4.5.6\n\x00";
        assert_eq!(go_module_version(program, "example.org/x").as_deref(), Some("v1.2.3"));
        assert_eq!(go_module_version(program, "example.org/y").as_deref(), Some("v4.5.6"));
        assert_eq!(go_module_version(program, "example.org/z"), None);
        assert_eq!(go_module_version(b"\nmod\texample.org/x\tv1", "example.org/x"), None, "cut off");
    }
}
