//! A part's side: how a process that the opener has started begins.

use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use minicbor::Decode;
use rustix::net::AddressFamily;
use rustix::net::sockopt;

use super::channel::{Channel, Received};
use super::launch::{Common, MAX_FRAME, ToOpener};
use crate::client::{Refusal, Unreached};
use crate::sys::process;
use crate::sys::sandbox::{self, Confinement, Protections};
use crate::sys::seccomp::SystemCalls;

/// The processes that an opener starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// A gateway's auth process.
    Auth,
    /// A gateway's network worker.
    Worker,
    /// A client's network worker.
    Client,
    /// A process that looks up one name for a client.
    Lookup,
    /// A process that opens the store for a command of an administrator.
    Store,
}

impl Part {
    /// Its word on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Worker => "worker",
            Self::Client => "client",
            Self::Lookup => "lookup",
            Self::Store => "store",
        }
    }

    fn system_calls(self) -> SystemCalls {
        match self {
            Self::Auth | Self::Store => SystemCalls::Files,
            Self::Worker | Self::Client => SystemCalls::Descriptors,
            Self::Lookup => SystemCalls::Resolver,
        }
    }

    /// What it reads besides what it was given: names are looked up as by any other program.
    fn readable(self) -> Vec<PathBuf> {
        let places: &[&str] = match self {
            Self::Auth | Self::Worker | Self::Client | Self::Store => &[],
            Self::Lookup => &["/etc", "/usr", "/lib", "/lib64", "/run/systemd/resolve", "/run/nscd"],
        };
        places.iter().map(PathBuf::from).filter(|place| place.exists()).collect()
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Runs as `part` until the opener is gone or says so. Everything that goes wrong is told to the opener.
///
/// # Errors
/// Only what can't be told to the opener: this process was started by somebody else.
pub fn run(part: Part) -> anyhow::Result<()> {
    let stream = opener()?;
    process::ignore_signals().context("can't leave signals to the daemon's first process")?;
    // A process of a terminal's session could type into it whatever the next command of a privileged shell is to be.
    process::leave_session().context("can't leave the terminal")?;
    process::forbid_core_dumps().context("core dumps can't be switched off, and they could hold keys")?;
    process::keep_memory_small();
    match part {
        Part::Auth => crate::gateway::auth::run(stream),
        Part::Worker => crate::gateway::worker::run(stream),
        Part::Client => crate::client::worker::run(stream),
        Part::Lookup => crate::client::lookup::run(stream),
        Part::Store => super::store::run(stream),
    }
}

/// The channel to the opener, which is on standard input; nothing is there afterwards.
fn opener() -> anyhow::Result<UnixStream> {
    let stdin = rustix::stdio::stdin();
    if !sockopt::socket_domain(stdin).is_ok_and(|family| family == AddressFamily::UNIX) {
        bail!("this command is for vpnd itself: 'vpnd server' and 'vpnd connect' start it");
    }
    let channel: OwnedFd = rustix::io::fcntl_dupfd_cloexec(stdin, 3)?;
    let nothing = std::fs::File::open("/dev/null").context("/dev/null can't be opened")?;
    rustix::stdio::dup2_stdin(nothing)?;
    Ok(channel.into())
}

/// What a part makes of its first message before it shuts itself in.
pub(crate) struct Before<P> {
    /// Directories in which it may do anything afterwards.
    pub(crate) writable: Vec<PathBuf>,
    /// What it has read or done with the privileges that it is about to give up.
    pub(crate) made: P,
}

/// A part that has its orders and has shut itself in.
pub(crate) struct Begun<T, P = ()> {
    /// The first message, with its descriptors.
    pub(crate) launch: Received<T>,
    pub(crate) made: P,
    /// What holds now.
    pub(crate) protections: Protections,
}

/// Hears the first message, begins to log and gives up all that is not needed. Blocks, and leaves no thread behind.
pub(crate) fn begin<T: for<'b> Decode<'b, ()>, P>(
    part: Part,
    stream: &UnixStream,
    common: impl Fn(&T) -> &Common,
    before: impl FnOnce(&T) -> anyhow::Result<Before<P>>,
) -> anyhow::Result<Begun<T, P>> {
    let stream = stream.try_clone()?;
    let first = alone(async {
        let channel = Channel::new(stream, MAX_FRAME)?;
        channel.receive::<T>().await?.ok_or_else(|| anyhow!("the daemon has ended before it began"))
    });
    let launch = first?;
    let common = common(&launch.message);
    common.log()?;
    // Otherwise a page of the log's own memory would be the first to be asked for behind the filter.
    tracing::debug!(%part, "started");
    let Before { writable, made } = before(&launch.message)?;
    let protections = sandbox::enter(&Confinement {
        mode: common.sandbox,
        identity: common.identity.clone(),
        system_calls: part.system_calls(),
        readable: part.readable(),
        writable,
    })?;
    Ok(Begun { launch, made, protections })
}

/// Runs the part's own work with a thread or two, and tells the opener if it fails.
pub(crate) fn work(
    stream: UnixStream,
    task: impl AsyncFnOnce(Channel) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        // A worker's first thread runs before others until it has started its shards.
        .on_thread_start(|| drop(process::prefer_current_thread(0)))
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(stream, &error.into()),
    };
    let outcome = runtime.block_on(async {
        let channel = Channel::new(stream.try_clone()?, MAX_FRAME)?;
        task(channel).await
    });
    // Threads that wait for the disk or for nothing must not hold up the end.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => Ok(()),
        Err(error) => fail(stream, &error),
    }
}

/// Tells the opener why this part gives up. It is the opener that tells people.
pub(crate) fn fail(stream: UnixStream, error: &anyhow::Error) -> anyhow::Result<()> {
    let text = crate::told(error);
    let last = if error.is::<Refusal>() {
        ToOpener::Refused(text)
    } else if error.is::<Unreached>() {
        ToOpener::Unreached(text)
    } else {
        ToOpener::Failed(text)
    };
    finish(stream, &last)
}

/// Tells the opener the last of what this part has to tell.
pub(crate) fn finish(stream: UnixStream, last: &ToOpener) -> anyhow::Result<()> {
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
    fn only_a_lookup_makes_connections_and_reads_files_of_the_machine() {
        for part in Part::value_variants() {
            let looks_up = *part == Part::Lookup;
            assert_eq!(part.system_calls().may_ask_name_servers(), looks_up, "{part}");
            assert_eq!(part.readable().is_empty(), !looks_up, "{part}");
        }
    }
}
