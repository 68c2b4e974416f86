//! A program that runs in a namespace, with its own `/etc` and `/run`, and what it has printed.
//!
//! Invariants: the machine's `/etc` and `/run` can't be changed by the program; it is ended with
//! its value; its output is shown when the test fails. This module must not know which program it
//! is.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::lab::{Lab, eventually};
use crate::namespace::Namespace;
use crate::resolved;

/// Contents of `/etc/resolv.conf` in each box before anything runs there.
pub(crate) const RESOLV_CONF: &str = "nameserver 192.0.2.53\nsearch example.org\n";

/// The directory that programs of a namespace see as `/etc`; made when first asked for.
pub(crate) fn etc(lab: &Lab, namespace: &Namespace) -> PathBuf {
    let etc = lab.path(format!("etc-{}", namespace.name()));
    if !etc.exists() {
        fs::create_dir(&etc).expect("the laboratory's directory is writable");
        // A small system has neither /etc/protocols nor /etc/services.
        for name in ["passwd", "group", "nsswitch.conf", "hosts", "ld.so.cache"] {
            let from = Path::new("/etc").join(name);
            if from.exists() {
                fs::copy(&from, etc.join(name)).expect("it is readable by root");
            }
        }
        fs::write(etc.join("resolv.conf"), RESOLV_CONF).expect("it is writable");
    }
    etc
}

/// `program` in a namespace, with that namespace's `/etc` and an empty `/run`, or the one that its
/// programs share, so that neither resolv.conf nor a service of the machine (systemd-resolved
/// listens below `/run`) can be reached.
pub(crate) fn command(lab: &Lab, namespace: &Namespace, program: impl AsRef<OsStr>) -> Command {
    // `ip netns exec` gives its child its own mount namespace.
    let prepare = "if [ -d \"$1/run\" ]; then mount --bind \"$1/run\" /run && mount --bind \"$1/bin\" /usr/local/sbin; \
                   else mount -t tmpfs tmpfs /run; fi && mount --bind \"$0\" /etc && shift && exec \"$@\"";
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name(), "sh", "-c", prepare]);
    command.arg(etc(lab, namespace)).arg(shared(lab, namespace)).arg(program).stdin(Stdio::null());
    if let Ok(libraries) = fs::read_to_string(shared(lab, namespace).join("libraries")) {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    // Colours and the tester's settings have no place in what is compared.
    command.env_remove("RUST_LOG").env("NO_COLOR", "1");
    command
}

/// Directory shared by programs of a namespace.
fn shared(lab: &Lab, namespace: &Namespace) -> PathBuf {
    lab.path(format!("shared-{}", namespace.name()))
}

/// The `/run` shared by programs of a namespace.
pub(crate) fn run_of(lab: &Lab, namespace: &Namespace) -> PathBuf {
    shared(lab, namespace).join("run")
}

/// Gives the programs that start in a namespace from now on one `/run`, and the programs of another
/// tree of the system.
pub(crate) fn share_run(lab: &Lab, namespace: &Namespace, root: &Path) -> PathBuf {
    let shared = shared(lab, namespace);
    fs::create_dir(&shared).expect("nobody shares anything there yet");
    std::os::unix::fs::symlink(root.join("usr/bin"), shared.join("bin")).expect("the directory is ours");
    if let Some(libraries) = resolved::library_path(root) {
        fs::write(shared.join("libraries"), libraries.as_encoded_bytes()).expect("the directory is ours");
    }
    let run = run_of(lab, namespace);
    fs::create_dir(&run).expect("the directory is ours");
    run
}

/// Runs a program that ends by itself.
pub(crate) fn run(mut command: Command) -> Output {
    command.stdin(Stdio::null()).output().expect("the program can be started")
}

/// Both streams of an ended program, as text.
pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A program in the background.
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it, its output going to a file of the laboratory.
    pub(crate) fn start(lab: &Lab, name: &str, command: Command) -> Self {
        Self::start_with(lab, name, command, Stdio::null())
    }

    /// Starts it at its own terminal, at which a test types.
    pub(crate) fn start_at_terminal(lab: &Lab, name: &str, command: Command) -> (Self, ChildStdin) {
        let mut process = Self::start_with(lab, name, command, Stdio::piped());
        let keyboard = process.child.stdin.take().expect("it is a pipe");
        (process, keyboard)
    }

    fn start_with(lab: &Lab, name: &str, mut command: Command, input: Stdio) -> Self {
        let log = (0..).map(|n| lab.path(format!("{name}.{n}.log"))).find(|path| !path.exists());
        let log = log.expect("numbers don't run out");
        let file = File::create(&log).expect("the laboratory's directory is writable");
        let stderr = file.try_clone().expect("a descriptor is free");
        let child = command.stdin(input).stdout(file).stderr(stderr).spawn();
        Self { name: name.to_owned(), child: child.expect("the program can be started"), log }
    }

    /// Its output until now.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The processes that it has started.
    pub(crate) fn children(&self) -> Vec<u32> {
        let pid = self.id();
        let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("it runs");
        list.split_whitespace().map(|pid| pid.parse().expect("a number")).collect()
    }

    /// Sends a signal to it and to the processes that it has started and that have not ended.
    pub(crate) fn signal_all(&self, signal: Signal) {
        for pid in self.children().into_iter().chain([self.id()]) {
            let pid = Pid::from_raw(pid.cast_signed()).expect("no process has number 0");
            match kill_process(pid, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it is our child and was not waited for");
    }

    /// Its status, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, limit: Duration) -> ExitStatus {
        let condition = format!("{} ends", self.name);
        eventually(&condition, limit, || self.ended())
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(&mut self) {
        if self.ended().is_some() {
            return;
        }
        let children = self.children();
        self.signal(Signal::KILL);
        self.wait(Duration::from_secs(5));
        // They end a moment after their parent, and have its sockets until then.
        let has_ended = |pid: &u32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count) == 0;
        eventually("its processes have ended", Duration::from_secs(5), || {
            children.iter().all(has_ended).then_some(())
        });
    }

    /// Fails with its output if it has ended.
    pub(crate) fn assert_running(&mut self) {
        if let Some(status) = self.ended() {
            panic!("{} has ended ({status}):\n{}", self.name, self.output());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("---- output of {} ----\n{}", self.name, self.output());
        }
    }
}
