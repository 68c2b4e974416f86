//! A system of the user's own, brought up and taken down by two scripts.
//!
//! The scripts run inside the gateway's namespace, so that whatever they start is found there and
//! ended with the lab. They learn of the lab from the environment and answer in a file, line by
//! line; [`HELP`] is the contract.

pub mod answer;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;

use super::daemon::Daemon;
use super::folder::Folder;
use super::{Cipher, ClientAddress, Kind, Profile, System, SystemError, SystemInfo};
use crate::interrupt::Interrupt;
use crate::lab::device::Device;
use crate::lab::namespace::Namespace;
use crate::lab::{Lab, tool};
use crate::observe::ProcessStat;
use crate::terminal;
use answer::ScriptAnswer;

/// Time that the script may take to bring the system up.
const UP_TIMEOUT: Duration = Duration::from_secs(120);
/// Time that the other may take to take it down.
const DOWN_TIMEOUT: Duration = Duration::from_secs(20);
/// Longer answers are none.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// The scripts' environment and answers, with a complete example; `trafficspeed lab --help` shows
/// it.
pub const HELP: &str = concat!(
    "A system of your own (--vpn command --command-up [NAME=]UP [--command-down [NAME=]DOWN]), or several by several names:

UP runs as root in the gateway's network namespace and returns once all clients are connected, within 120 s; DOWN
runs after the measurement. What they print is their log, whose end the report shows if they fail. Programs that
they leave running in the lab's namespaces are ended with the lab. Both find in their environment:
  TRAFFICSPEED_GATEWAY     the gateway's namespace, for `ip -n` and `ip netns exec`
  TRAFFICSPEED_CLIENTS     the clients' namespaces in order, separated by spaces
  TRAFFICSPEED_SERVER_V4, TRAFFICSPEED_SERVER_V6    where every client reaches the gateway
  TRAFFICSPEED_CLIENTS_V4, TRAFFICSPEED_CLIENTS_V6  the clients' outer addresses in order
  TRAFFICSPEED_CIPHER      what --cipher asks for, or auto; fail if you have no such cipher
  TRAFFICSPEED_DIRECTORY   an empty directory for your files, removed with the lab
  TRAFFICSPEED_ANSWER      the file to write the answer into
UP answers with lines of these kinds:
  client NUMBER DEVICE ADDRESS [ADDRESS]   inner IPv4 and IPv6 addresses and tunnel device; one for each client
  process gateway|client PID               each process whose CPU time counts
  version WORDS / cipher WORDS / note WORDS   for the report

A complete example, whose \"tunnel\" is a second device on each client's link:

",
    include_str!("../../assets/example-up.sh"),
);

/// A system of the user's own before it runs.
pub const PROFILE: Profile = Profile {
    label: "command",
    ciphers: &[
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::ChaCha20Poly1305,
        Cipher::None,
        Cipher::AuthOnly,
        Cipher::EncryptOnly,
        Cipher::Aes256CbcHmacSha256,
    ],
    programs: &[],
    has_priority: false,
    adapter: |programs, subject| {
        Box::new(Scripted::new(programs.scripts(subject.own).cloned(), subject.cipher))
    },
};

/// The user's scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scripts {
    /// The system's name in reports.
    pub name: String,
    /// Brings it up.
    pub up: PathBuf,
    /// Takes it down.
    pub down: Option<PathBuf>,
}

impl Scripts {
    /// Puts together which scripts belong to one system, by the names that the user gave them.
    ///
    /// # Errors
    /// In words, which name is given twice, is another system's or has no script that brings it up.
    pub fn pair(ups: &[(String, PathBuf)], downs: &[(String, PathBuf)]) -> Result<Vec<Self>, String> {
        let twice = |all: &[(String, PathBuf)]| {
            let mut names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
            names.sort_unstable();
            names.windows(2).find(|two| two[0] == two[1]).map(|two| two[0].to_owned())
        };
        if let Some(name) = twice(ups).or_else(|| twice(downs)) {
            return Err(format!(
                "two scripts of one kind are called `{name}`; give each NAME=SCRIPT another name"
            ));
        }
        let known = Kind::value_variants().iter().filter(|kind| **kind != Kind::Command);
        let known: Vec<&str> = known.map(|kind| kind.profile().label).collect();
        if let Some((name, _)) = ups.iter().find(|(name, _)| known.contains(&name.as_str())) {
            return Err(format!("`{name}` is the name of another system; give yours another name"));
        }
        if let Some((name, _)) = downs.iter().find(|(name, _)| ups.iter().all(|(up, _)| up != name)) {
            return Err(format!("--command-down names `{name}`, but no --command-up does"));
        }
        let down = |name: &str| downs.iter().find(|(down, _)| down == name).map(|(_, path)| path.clone());
        Ok(ups
            .iter()
            .map(|(name, up)| Self { name: name.clone(), up: up.clone(), down: down(name) })
            .collect())
    }
}

/// A scripted system in a lab.
#[derive(Debug)]
pub struct Scripted {
    scripts: Option<Scripts>,
    cipher: Cipher,
    environment: Vec<OsString>,
    answer: ScriptAnswer,
    facts: SystemInfo,
    // Needed to run the second script after the first.
    up_in: Option<(Namespace, Folder)>,
}

impl Scripted {
    fn new(scripts: Option<Scripts>, cipher: Cipher) -> Self {
        let (environment, answer, facts) = Default::default();
        Self { scripts, cipher, environment, answer, facts, up_in: None }
    }

    fn scripts(&self) -> Result<&Scripts, SystemError> {
        self.scripts.as_ref().ok_or_else(|| {
            SystemError::Missing(
                "`--vpn command` needs --command-up SCRIPT; `trafficspeed lab --help` tells more".into(),
            )
        })
    }

    /// Starts a script; its environment goes through `env`, whose place the script then takes.
    fn start(&self, name: &str, script: &Path) -> Result<Daemon, SystemError> {
        let (gateway, folder) = self.up_in.as_ref().expect("scripts are run in a lab");
        let io = |source| SystemError::Io { action: format!("finding {}", script.display()), source };
        let script = fs::canonicalize(script).map_err(io)?;
        let env = tool("env", "coreutils")?;
        let arguments = self.environment.iter().cloned().chain([script.into_os_string()]);
        Daemon::start(name, gateway, &env, arguments, &folder.path(&format!("{name}.log")))
    }

    fn read_answer(&self, path: &Path) -> Result<String, SystemError> {
        let read = || {
            let mut text = String::new();
            fs::File::open(path)?.take(MAX_ANSWER_BYTES).read_to_string(&mut text)?;
            Ok(text)
        };
        read().map_err(|source: io::Error| SystemError::Io {
            action: format!("reading the answer of --command-up from {}", path.display()),
            source,
        })
    }
}

impl System for Scripted {
    fn check(&self) -> Result<(), SystemError> {
        let scripts = self.scripts()?;
        for (option, path) in [("up", Some(&scripts.up)), ("down", scripts.down.as_ref())] {
            if let Some(path) = path.filter(|path| !is_executable(path)) {
                let reason = format!("--command-{option} {}: no executable file", path.display());
                return Err(SystemError::Missing(reason));
            }
        }
        Ok(())
    }

    fn bring_up(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<Vec<ClientAddress>, SystemError> {
        let scripts = self.scripts()?.clone();
        let folder = Folder::make(lab, "command")?;
        let (files, path) = (folder.sub("files")?, folder.path("answer"));
        self.environment = environment(lab, self.cipher, files.directory(), &path);
        self.up_in = Some((lab.gateway().clone(), folder));
        let mut script = self.start("command-up", &scripts.up)?;
        script.wait_for_success(UP_TIMEOUT, interrupt)?;
        let text = self.read_answer(&path)?;
        let wrong = |reason: String| script.failed(&format!("answered wrongly: {reason}"));
        self.answer =
            ScriptAnswer::parse(&text, lab.clients().len()).map_err(|error| wrong(error.to_string()))?;
        let all = self.answer.gateway.iter().chain(&self.answer.clients);
        if let Some(gone) = all.copied().find(|pid| ProcessStat::read(*pid).is_none()) {
            return Err(wrong(format!("process {gone} is not there")));
        }
        let said = |words: &Option<String>| words.clone().unwrap_or_else(|| "not said".into());
        self.facts.version = said(&self.answer.version);
        self.facts.cipher = said(&self.answer.cipher);
        self.facts.notes.clone_from(&self.answer.notes);
        for (number, (namespace, address)) in lab.clients().iter().zip(&self.answer.addresses).enumerate() {
            let devices = Device::all(namespace)?;
            let device = devices.iter().find(|device| device.name == address.device);
            let device = device
                .ok_or_else(|| wrong(format!("client {} has no device {}", number + 1, address.device)))?;
            self.facts.mtu = Some(device.mtu);
        }
        Ok(self.answer.addresses.clone())
    }

    fn processes(&self) -> (Vec<u32>, Vec<u32>) {
        (self.answer.gateway.clone(), self.answer.clients.clone())
    }

    fn facts(&mut self) -> &mut SystemInfo {
        &mut self.facts
    }

    fn down(&mut self) {
        let Some(script) = self.scripts.as_ref().and_then(|scripts| scripts.down.clone()) else { return };
        if self.up_in.is_none() {
            return;
        }
        let ended = self.start("command-down", &script).and_then(|mut daemon| {
            // A system that was interrupted is still taken down.
            daemon.wait_for_success(DOWN_TIMEOUT, &Interrupt::default())
        });
        if let Err(error) = ended {
            terminal::say(format_args!(
                "trafficspeed: {error}; what it left in the lab's namespaces is ended with them"
            ));
        }
    }
}

/// The scripts' environment, each entry as `NAME=value`.
fn environment(lab: &Lab, cipher: Cipher, files: &Path, answer: &Path) -> Vec<OsString> {
    let numbers = || 1..=lab.clients().len() as u32;
    let list = |words: Vec<String>| words.join(" ");
    let texts = [
        ("GATEWAY", lab.gateway().name().to_owned()),
        ("CLIENTS", list(lab.clients().iter().map(|client| client.name().to_owned()).collect())),
        ("SERVER_V4", Lab::SERVICE_V4.to_string()),
        ("SERVER_V6", Lab::SERVICE_V6.to_string()),
        ("CLIENTS_V4", list(numbers().map(|n| Lab::client_v4(n).to_string()).collect())),
        ("CLIENTS_V6", list(numbers().map(|n| Lab::client_v6(n).to_string()).collect())),
        ("CIPHER", cipher.name().to_owned()),
    ];
    let texts = texts.into_iter().map(|(name, value)| OsString::from(format!("TRAFFICSPEED_{name}={value}")));
    let paths = [("DIRECTORY", files), ("ANSWER", answer)].map(|(name, path)| {
        let mut word = OsString::from(format!("TRAFFICSPEED_{name}="));
        word.push(path);
        word
    });
    texts.chain(paths).collect()
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_belong_together_by_name_and_names_are_told_apart() {
        let named = |all: &[&str]| -> Vec<(String, PathBuf)> {
            all.iter().map(|name| ((*name).to_owned(), PathBuf::from(format!("/{name}")))).collect()
        };
        let pair = |ups: &[&str], downs: &[&str]| Scripts::pair(&named(ups), &named(downs));
        let clients = pair(&["a", "b"], &["b"]).unwrap();
        assert_eq!((clients[0].down.is_none(), clients[1].down.clone()), (true, Some("/b".into())));
        for (ups, downs, expected) in [
            (&["a", "a"][..], &[][..], "two scripts of one kind are called `a`"),
            (&["a"], &["a", "a"], "two scripts of one kind are called `a`"),
            (&["vpnd"], &[], "`vpnd` is the name of another system"),
            (&["a"], &["b"], "--command-down names `b`"),
        ] {
            let error = pair(ups, downs).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn without_a_script_or_with_one_that_cannot_run_it_is_missing() {
        let check = |scripts| Scripted::new(scripts, Cipher::Auto).check().unwrap_err().to_string();
        assert!(check(None).contains("--command-up SCRIPT"));
        let name = "mine".to_owned();
        let plain = tempfile::NamedTempFile::new().unwrap();
        let said = check(Some(Scripts { name: name.clone(), up: plain.path().into(), down: None }));
        assert_eq!(said, format!("--command-up {}: no executable file", plain.path().display()));
        let (up, down) = (PathBuf::from("/bin/sh"), Some(PathBuf::from("/nonexistent")));
        assert_eq!(
            check(Some(Scripts { name, up, down })),
            "--command-down /nonexistent: no executable file"
        );
    }
}
