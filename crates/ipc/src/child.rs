//! A child's side: how a process that the privileged parent has started begins and ends.

use std::fmt;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use minicbor::{Decode, Encode};
use rustix::net::AddressFamily;
use rustix::net::sockopt;

use super::channel::{Channel, Received};
use super::messages::{Common, MAX_FRAME};
use vpnd_sys::clock;
use vpnd_sys::process;
use vpnd_sys::sandbox::{self, Confinement, Protections};
use vpnd_sys::seccomp::SystemCalls;

/// Files that the C library reads to look up names. Network managers keep some of them elsewhere,
/// behind links.
pub const RESOLVER_FILES: [&str; 5] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/host.conf"];

/// The processes that a parent starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ChildRole {
    Auth,
    Worker,
    Client,
    /// A process that looks up one name for a client.
    Lookup,
    /// A process that opens the store for a command of an administrator.
    Store,
    /// A process that asks directories and RADIUS servers for a gateway.
    Idp,
    /// A process that orders a certificate for a gateway.
    Acme,
    /// A process that serves a gateway's web pages.
    Portal,
}

impl ChildRole {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Worker => "worker",
            Self::Client => "client",
            Self::Lookup => "lookup",
            Self::Store => "store",
            Self::Idp => "idp",
            Self::Acme => "acme",
            Self::Portal => "portal",
        }
    }

    fn system_calls(self) -> SystemCalls {
        match self {
            Self::Auth | Self::Store => SystemCalls::Files,
            Self::Worker => SystemCalls::Descriptors,
            Self::Portal => SystemCalls::NoSockets,
            // Only there programs wait for what is written to the device.
            Self::Client => SystemCalls::ManyWrites,
            Self::Lookup => SystemCalls::Resolver,
            Self::Idp | Self::Acme => SystemCalls::Connections,
        }
    }

    /// Files that it reads besides those it was given: names are looked up as by any other program,
    /// or, by a process that lives on, as far as the C library does that without further modules. A
    /// file behind a link is permitted where it is.
    fn readable(self) -> Vec<PathBuf> {
        let directories: &[&str] = match self {
            Self::Auth | Self::Worker | Self::Client | Self::Store | Self::Portal => return Vec::new(),
            Self::Lookup => &["/etc", "/usr", "/lib", "/lib64", "/run/systemd/resolve", "/run/nscd"],
            Self::Idp | Self::Acme => &[],
        };
        let directories = directories.iter().map(PathBuf::from).filter(|path| path.exists());
        let files = RESOLVER_FILES.iter().filter_map(|path| fs::canonicalize(path).ok());
        directories.chain(files.filter(|path| path.is_file())).collect()
    }
}

impl fmt::Display for ChildRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Takes this process out of the reach of other processes: the first thing that each
/// child does. Returns the channel to the parent, which is on standard input; nothing is there
/// afterwards.
///
/// # Errors
/// Only what can't be reported to the parent: this process was not started by vpnd.
pub fn enter() -> anyhow::Result<UnixStream> {
    let stream = parent()?;
    // It was started by a link in /proc, which would be its name in lists of processes.
    rustix::thread::set_name(c"vpnd").context("can't take a name")?;
    process::ignore_signals().context("can't leave signals to the daemon's first process")?;
    // A process of a terminal's session could type into it whatever the next command of a
    // privileged shell is to be.
    process::leave_session().context("can't leave the terminal")?;
    process::forbid_core_dumps().context("core dumps can't be switched off, and they could hold keys")?;
    process::keep_memory_small();
    Ok(stream)
}

fn parent() -> anyhow::Result<UnixStream> {
    let stdin = rustix::stdio::stdin();
    if !sockopt::socket_domain(stdin).is_ok_and(|family| family == AddressFamily::UNIX) {
        bail!("this command is for vpnd itself: 'vpnd server' and 'vpnd connect' start it");
    }
    let channel: OwnedFd = rustix::io::fcntl_dupfd_cloexec(stdin, 3)?;
    let nothing = fs::File::open("/dev/null").context("/dev/null can't be opened")?;
    rustix::stdio::dup2_stdin(nothing)?;
    Ok(channel.into())
}

/// A child's privileged preparation: the last that it does before it shuts itself in.
pub struct Preparation<P> {
    /// Directories in which it may do anything afterwards.
    pub writable: Vec<PathBuf>,
    /// TCP ports to which it may connect afterwards, besides that of name servers if it looks up
    /// names.
    pub tcp_ports: Vec<u16>,
    /// Made with the privileges that it is about to give up.
    pub made: P,
}

/// A child that has its first message and has shut itself in.
pub struct Started<T, P = ()> {
    /// The first message, with its descriptors.
    pub launch: Received<T>,
    pub made: P,
    /// In force from now on.
    pub protections: Protections,
}

/// Receives the first message, begins to log and gives up all that is not needed. Blocks, and
/// leaves no thread behind.
pub fn start<T: for<'b> Decode<'b, ()>, P>(
    role: ChildRole,
    stream: &UnixStream,
    common: impl Fn(&T) -> &Common,
    prepare: impl FnOnce(&T) -> anyhow::Result<Preparation<P>>,
) -> anyhow::Result<Started<T, P>> {
    let stream = stream.try_clone()?;
    let first = alone(async {
        let channel = Channel::new(stream, MAX_FRAME)?;
        channel.receive::<T>().await?.ok_or_else(|| anyhow!("the daemon has ended before it began"))
    });
    let launch = first?;
    let common = common(&launch.message);
    clock::adopt(common.clock)?;
    common.log()?;
    // Otherwise the log would allocate its first memory behind the filter.
    tracing::debug!(%role, clock = ?clock::origin(), "started");
    let Preparation { writable, tcp_ports, made } = prepare(&launch.message)?;
    let protections = sandbox::enter(&Confinement {
        mode: common.sandbox,
        identity: common.identity.clone(),
        system_calls: role.system_calls(),
        readable: role.readable(),
        writable,
        tcp_ports,
    })?;
    Ok(Started { launch, made, protections })
}

/// Runs the child's own work with a thread or two.
pub fn work(
    stream: &UnixStream,
    task: impl AsyncFnOnce(Channel) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        // A worker's first thread runs before others until it has started its shards.
        .on_thread_start(process::prefer_no_longer)
        .build()?;
    let outcome = runtime.block_on(async {
        let channel = Channel::new(stream.try_clone()?, MAX_FRAME)?;
        task(channel).await
    });
    // Threads that wait for the disk or for nothing must not hold up the end.
    runtime.shutdown_background();
    outcome
}

/// Sends the parent this child's last message: why it gives up, or its result. It is the parent
/// that informs people.
pub fn finish(stream: UnixStream, last: &impl Encode<()>) -> anyhow::Result<()> {
    alone(async {
        let channel = Channel::new(stream, MAX_FRAME)?;
        channel.send(last, &[]).await?;
        Ok(())
    })
}

/// Waits for `task` on this thread alone.
fn alone<T>(task: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(task)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn only_roles_that_look_up_names_read_system_files() {
        for role in ChildRole::value_variants() {
            let looks_up = matches!(role, ChildRole::Lookup | ChildRole::Idp | ChildRole::Acme);
            assert_eq!(role.system_calls().may_ask_name_servers(), looks_up, "{role}");
            assert_eq!(role.readable().is_empty(), !looks_up, "{role}");
        }
        assert!(ChildRole::Idp.readable().iter().all(|path| path.is_file()), "files, no directories");
    }
}
