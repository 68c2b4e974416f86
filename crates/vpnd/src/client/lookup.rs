//! Looking up the gateway's name: in a process of its own, which ends with its answer.
//!
//! It asks as any program of the machine does, by `/etc/hosts` and name servers, and parses what these answer; so it has no
//! privilege, no secret and no terminal. Its datagrams stay outside the tunnel, by its user ([`super::network`]). Invariants:
//! only names that the profile holds are looked up; a worker that asks without end gets few of these processes at a time.

use std::net::{IpAddr, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::task::JoinSet;
use vpnd_proto::control::AsText;

use crate::privsep::launch::{Common, LookupLaunch, MAX_ADDRESSES, Reply, ToOpener};
use crate::privsep::part::{self, Before, Part};
use crate::privsep::spawn::Running;
use crate::profile::ServerAddress;

/// Three name servers that are silent, each asked once, are waited for.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(17);
/// How long one may take to end after its answer.
const ENDS_WITHIN: Duration = Duration::from_millis(500);
/// Lookups at a time.
const MAX_RUNNING: usize = 4;

/// Runs it; `stream` leads to the opener.
pub(crate) fn run(stream: UnixStream) -> anyhow::Result<()> {
    let nothing = |_: &LookupLaunch| Ok(Before { writable: Vec::new(), made: () });
    let begun = part::begin(Part::Lookup, &stream, |launch: &LookupLaunch| &launch.common, nothing);
    match begun.and_then(|begun| look_up(&begun.launch.alone()?.host)) {
        Ok(found) => part::finish(stream, &ToOpener::Found(found)),
        Err(error) => part::fail(stream, &error),
    }
}

fn look_up(host: &str) -> anyhow::Result<Vec<AsText<IpAddr>>> {
    let found = (host, 0).to_socket_addrs().with_context(|| format!("the name {host} can't be resolved"))?;
    let mut addresses = Vec::new();
    for address in found.map(|address| address.ip()) {
        if !addresses.contains(&address) && addresses.len() < MAX_ADDRESSES {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        bail!("the name {host} has no address");
    }
    Ok(addresses.into_iter().map(AsText).collect())
}

/// The lookups that a client's worker waits for.
pub(super) struct Lookups {
    common: Common,
    servers: Vec<ServerAddress>,
    running: JoinSet<(u64, Reply)>,
}

impl Lookups {
    pub(super) fn new(common: Common, servers: Vec<ServerAddress>) -> Self {
        Self { common, servers, running: JoinSet::new() }
    }

    /// Starts a lookup for the question `number`. Only for the process's first thread, as [`Running::start`] is.
    ///
    /// # Errors
    /// Why there is none, for the worker.
    pub(super) fn start(&mut self, number: u64, server: u32) -> Result<(), String> {
        let server = self.servers.get(server as usize).ok_or("the profile names no such gateway")?;
        if self.running.len() >= MAX_RUNNING {
            return Err("too many names are being looked up".to_owned());
        }
        let running = Running::start(Part::Lookup).map_err(|error| error.to_string())?;
        let launch = LookupLaunch { common: self.common.clone(), host: server.host.clone() };
        self.running.spawn(async move { (number, wait(running, &launch).await) });
        Ok(())
    }

    /// Whether nothing is being looked up.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// The next answer, and to which question. `None` if nothing is being looked up.
    pub(super) async fn next(&mut self) -> Option<(u64, Reply)> {
        // None of them is aborted, and a panic has been printed.
        self.running.join_next().await?.ok()
    }
}

async fn wait(mut lookup: Running, launch: &LookupLaunch) -> Reply {
    let answer = tokio::time::timeout(LOOKUP_TIMEOUT, async {
        lookup.tell(launch, &[]).await?;
        lookup.hear().await
    });
    let reply = match answer.await {
        Ok(Ok(ToOpener::Found(found))) if found.len() <= MAX_ADDRESSES => Reply::Addresses(found),
        Ok(Ok(_)) => Reply::Failed("the lookup has said something else than was expected".to_owned()),
        Ok(Err(error)) => Reply::Failed(error.to_string()),
        Err(_) => {
            Reply::Failed(format!("the name {} can't be resolved: no name server answers", launch.host))
        }
    };
    lookup.dismiss(ENDS_WITHIN).await;
    reply
}
