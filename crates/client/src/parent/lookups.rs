//! The parent's look-ups of gateways' names, each in a separate short-lived process
//! ([`crate::lookup`]). Invariants: only what the profile names, and what the gateway adds to it,
//! is looked up; a worker that floods the parent gets few of these processes at a time.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::task::{JoinHandle, JoinSet};

use crate::messages::{FromLookup, LookupLaunch, MAX_ADDRESSES, THE_PROXY};
use crate::servers::with_new;
use vpnd_config::profile::ServerAddress;
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::messages::Common;
use vpnd_ipc::spawn::StartingChild;
use vpnd_proto::control::AsText;
use vpnd_sys::dns::{DnsSystem, servers_beyond};

/// Enough for three silent name servers, each queried once.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(17);
/// Limit for a lookup's process to end after its answer.
const END_TIMEOUT: Duration = Duration::from_millis(500);
/// The reason where the time is over.
const NO_SERVER_ANSWERS: &str = "no name server answers";
/// The C library's word for the same (`EAI_AGAIN`), also where one answers that it can't.
const TEMPORARY: &str = "Temporary failure in name resolution";
const DNS_PORT: u16 = 53;
/// Name servers that are asked over marked sockets, as many as the C library asks.
const MAX_SERVERS: usize = 3;
/// Lookups at a time.
const MAX_RUNNING: usize = 4;

/// The addresses of a name, or why there are none.
pub(super) type Found = Result<Vec<AsText<IpAddr>>, String>;

/// The lookups that a client's worker waits for.
pub(super) struct Lookups {
    common: Common,
    servers: Vec<ServerAddress>,
    proxy: Option<ServerAddress>,
    running: JoinSet<(u64, Found)>,
    trial: Option<JoinHandle<()>>,
    /// The mark of the tunnel's own datagrams.
    mark: u32,
}

impl Lookups {
    /// Looks up these addresses of the gateway, and that of the proxy, for a tunnel with this mark.
    pub(super) fn new(
        common: Common,
        servers: Vec<ServerAddress>,
        proxy: Option<ServerAddress>,
        mark: u32,
    ) -> Self {
        Self { common, servers, proxy, running: JoinSet::new(), trial: None, mark }
    }

    /// Has these addresses of the gateway looked up, too. Those from before keep their places.
    pub(super) fn add(&mut self, addresses: &[ServerAddress]) {
        self.servers = with_new(&self.servers, addresses);
    }

    /// Starts a lookup for the question `number`. It asks over sockets with the tunnel's mark if a
    /// kill switch lets these pass, and nothing else (`is_marked`). Only for the process's first
    /// thread, as [`StartingChild::start`] is.
    ///
    /// # Errors
    /// The reason why there is none, for the worker.
    pub(super) fn start(&mut self, number: u64, server: u32, is_marked: bool) -> Result<(), String> {
        let server =
            if server == THE_PROXY { self.proxy.as_ref() } else { self.servers.get(server as usize) };
        let server = server.ok_or("there is no such gateway")?;
        if self.running.len() >= MAX_RUNNING {
            return Err("too many names are being looked up".to_owned());
        }
        let sockets = if is_marked { sockets(self.mark)? } else { Vec::new() };
        let running = StartingChild::start(ChildRole::Lookup).map_err(|error| error.to_string())?;
        let launch = LookupLaunch { common: self.common.clone(), host: server.host.clone() };
        self.running.spawn(async move { (number, wait(running, &launch, &sockets).await) });
        Ok(())
    }

    /// Tries to look up a name of a domain of the tunnel's, as other programs do now, and logs it
    /// if nothing answers; without a domain, the gateway's name. Only for the process's first
    /// thread.
    pub(super) fn try_names(&mut self, domain: String) {
        let gateway = self.servers.iter().find(|server| server.literal().is_none());
        let gateway = gateway.map(|server| server.host.clone());
        let Some(host) = Some(domain).filter(|domain| !domain.is_empty()).or(gateway) else { return };
        let Ok(running) = StartingChild::start(ChildRole::Lookup) else { return };
        let launch = LookupLaunch { common: self.common.clone(), host };
        let trial = tokio::spawn(async move {
            let Err(reason) = wait(running, &launch, &[]).await else { return };
            // "No such name" is an answer, too.
            if reason.contains(NO_SERVER_ANSWERS) || reason.contains(TEMPORARY) {
                tracing::warn!(
                    "the gateway's name servers are set, and names can't be looked up: {reason}; do they run, and do the tunnel's \
                     routes lead to them? --no-dns does without them"
                );
            }
        });
        if let Some(before) = self.trial.replace(trial) {
            before.abort();
        }
    }

    /// Ends a trial of names, whose process has the user of a lookup: what that sends is about to
    /// leave outside the tunnel.
    pub(super) async fn end_trial(&mut self) {
        if let Some(trial) = self.trial.take() {
            trial.abort();
            // Its process is killed when the task is dropped.
            let _ = trial.await;
        }
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

async fn wait(lookup: StartingChild, launch: &LookupLaunch, sockets: &[OwnedFd]) -> Found {
    let mut lookup = lookup.at_work();
    let answer = tokio::time::timeout(LOOKUP_TIMEOUT, async {
        lookup.send(launch, sockets).await?;
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

/// Marked sockets to each of the name servers that the machine asks: for datagrams, and for a
/// connection where an answer is too long for one.
///
/// # Errors
/// If there is none that can be asked.
fn sockets(mark: u32) -> Result<Vec<OwnedFd>, String> {
    let servers = servers_beyond(&DnsSystem::default());
    let addresses = servers.iter().filter_map(|(address, scope)| place(*address, scope.as_deref()));
    let sockets: Vec<OwnedFd> = addresses
        .filter_map(|address| {
            let opened = sockets_to(address, mark);
            opened.inspect_err(|error| tracing::debug!(%error, %address, "a name server can't be asked")).ok()
        })
        .take(MAX_SERVERS)
        .flatten()
        .collect();
    match sockets.is_empty() {
        false => Ok(sockets),
        true if servers.is_empty() => Err(
            "no name server beyond this machine is known (resolv.conf), and the kill switch holds back what a resolver of this \
             machine asks: write the gateway's address into the profile, too"
                .to_owned(),
        ),
        true => Err(format!("the name can't be resolved: {NO_SERVER_ANSWERS}, for there is no way to one")),
    }
}

/// Where a name server is; a link-local one only with its interface.
fn place(address: IpAddr, scope: Option<&str>) -> Option<SocketAddr> {
    match (address, scope) {
        (IpAddr::V6(address), Some(scope)) => {
            let index = scope.parse().ok().or_else(|| interface_index(scope).ok())?;
            Some(SocketAddrV6::new(address, DNS_PORT, 0, index).into())
        }
        (address, _) => Some(SocketAddr::new(address, DNS_PORT)),
    }
}

fn interface_index(name: &str) -> io::Result<u32> {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, None)?;
    Ok(rustix::net::netdevice::name_to_index(&socket, name)?)
}

fn sockets_to(server: SocketAddr, mark: u32) -> io::Result<[OwnedFd; 2]> {
    let socket = |kind, protocol| {
        let socket = Socket::new(Domain::for_address(server), kind, Some(protocol))?;
        socket.set_mark(mark)?;
        io::Result::Ok(socket)
    };
    let udp = socket(Type::DGRAM, Protocol::UDP)?;
    udp.connect(&server.into())?;
    Ok([udp.into(), socket(Type::STREAM, Protocol::TCP)?.into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_name_server_keeps_its_interface() {
        let address: IpAddr = "fe80::1".parse().unwrap();
        let Some(SocketAddr::V6(named)) = place(address, Some("lo")) else { panic!("it has an interface") };
        assert_eq!((named.scope_id(), named.port()), (1, 53));
        let Some(SocketAddr::V6(numbered)) = place(address, Some("7")) else { panic!("it has one") };
        assert_eq!(numbered.scope_id(), 7);
        assert_eq!(place(address, Some("no-such-name")), None);
        assert_eq!(place("192.0.2.1".parse().unwrap(), None), Some("192.0.2.1:53".parse().unwrap()));
    }
}
