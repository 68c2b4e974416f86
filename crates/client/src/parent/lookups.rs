//! The parent's look-ups of gateways' names, each in a short-lived process of its own
//! ([`crate::lookup`]). Invariants: only what the profile names, and what the gateway adds to it,
//! is looked up; a worker that floods the parent gets few of these processes at a time.

use std::net::IpAddr;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::messages::{FromLookup, LookupLaunch, MAX_ADDRESSES, THE_PROXY};
use crate::servers::with_new;
use vpnd_config::profile::ServerAddress;
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::messages::Common;
use vpnd_ipc::spawn::StartingChild;
use vpnd_proto::control::AsText;

/// Enough for three silent name servers, each queried once.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(17);
/// Limit for a lookup's process to end after its answer.
const END_TIMEOUT: Duration = Duration::from_millis(500);
/// The reason where the time is over.
const NO_SERVER_ANSWERS: &str = "no name server answers";
/// The C library's word for the same (`EAI_AGAIN`), also where one answers that it can't.
const TEMPORARY: &str = "Temporary failure in name resolution";
/// Lookups at a time.
const MAX_RUNNING: usize = 4;

/// The addresses of a name, or why there are none.
type Found = Result<Vec<AsText<IpAddr>>, String>;

/// The lookups that a client's worker waits for.
pub(super) struct Lookups {
    common: Common,
    servers: Vec<ServerAddress>,
    proxy: Option<ServerAddress>,
    running: JoinSet<(u64, Found)>,
}

impl Lookups {
    pub(super) fn new(common: Common, servers: Vec<ServerAddress>, proxy: Option<ServerAddress>) -> Self {
        Self { common, servers, proxy, running: JoinSet::new() }
    }

    /// Has these addresses of the gateway looked up, too. Those from before keep their places.
    pub(super) fn add(&mut self, addresses: &[ServerAddress]) {
        self.servers = with_new(&self.servers, addresses);
    }

    /// Starts a lookup for the question `number`. Only for the process's first thread, as
    /// [`StartingChild::start`] is.
    ///
    /// # Errors
    /// The reason why there is none, for the worker.
    pub(super) fn start(&mut self, number: u64, server: u32) -> Result<(), String> {
        let server =
            if server == THE_PROXY { self.proxy.as_ref() } else { self.servers.get(server as usize) };
        let server = server.ok_or("there is no such gateway")?;
        if self.running.len() >= MAX_RUNNING {
            return Err("too many names are being looked up".to_owned());
        }
        let running = StartingChild::start(ChildRole::Lookup).map_err(|error| error.to_string())?;
        let launch = LookupLaunch { common: self.common.clone(), host: server.host.clone() };
        self.running.spawn(async move { (number, wait(running, &launch).await) });
        Ok(())
    }

    /// Tries to look up a name of a domain of the tunnel's, as other programs do now, and logs it
    /// if nothing answers; without a domain, the gateway's name. Only for the process's first
    /// thread.
    pub(super) fn try_names(&self, domain: String) {
        let gateway = self.servers.iter().find(|server| server.literal().is_none());
        let gateway = gateway.map(|server| server.host.clone());
        let Some(host) = Some(domain).filter(|domain| !domain.is_empty()).or(gateway) else { return };
        let Ok(running) = StartingChild::start(ChildRole::Lookup) else { return };
        let launch = LookupLaunch { common: self.common.clone(), host };
        tokio::spawn(async move {
            let Err(reason) = wait(running, &launch).await else { return };
            // That there is no such name is an answer, too.
            if reason.contains(NO_SERVER_ANSWERS) || reason.contains(TEMPORARY) {
                tracing::warn!(
                    "the gateway's name servers are set, and names can't be looked up: {reason}; do they run, and do the tunnel's \
                     routes lead to them? --no-dns does without them"
                );
            }
        });
    }

    /// Whether nothing is being looked up.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// The next answer, and to which question. `None` if nothing is being looked up.
    pub(super) async fn next(&mut self) -> Option<(u64, Found)> {
        // None of them is aborted, and a panic has been printed.
        self.running.join_next().await?.ok()
    }
}

async fn wait(lookup: StartingChild, launch: &LookupLaunch) -> Found {
    let mut lookup = lookup.at_work();
    let answer = tokio::time::timeout(LOOKUP_TIMEOUT, async {
        lookup.send(launch, &[]).await?;
        lookup.receive().await
    });
    let reply = match answer.await {
        Ok(Ok(FromLookup::Found(found))) if found.len() <= MAX_ADDRESSES => Ok(found),
        Ok(Ok(FromLookup::Found(_))) => Err("the lookup found more addresses than it may".to_owned()),
        Ok(Ok(FromLookup::Failed(reason))) => Err(reason),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("the name {} can't be resolved: {NO_SERVER_ANSWERS}", launch.host)),
    };
    lookup.dismiss(END_TIMEOUT).await;
    reply
}
