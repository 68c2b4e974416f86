//! The idp process of a gateway: it asks directories, RADIUS servers and OpenID providers for the
//! auth process.
//!
//! Invariants: it answers what auth asks and decides nothing; it has no store, no key of TLS and no
//! file but those by which names are looked up; secrets and authorities are read before it shuts
//! itself in. Whatever a server sends costs at most the one request, with bounded memory; requests
//! under way at one source are bounded. A request takes the time that its source is given at most,
//! whatever the servers do; one that a person may have been asked to approve is never sent to a
//! second server.
#![deny(unsafe_code)]
// A library in form only: its users are the daemon's other crates.
#![allow(missing_docs)]

mod dynamic;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod ldap;
mod oidc;
pub mod radius;
mod reply_memory;
mod resolver_files;
mod servers;
pub mod trial;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::sync::Semaphore;

use dynamic::{Inbox, Listener};
use servers::{ServerError, Servers};
use vpnd_config::ServerConfig;
use vpnd_config::source::{LOGIN_TIMEOUT, Scheme, Source, SourceKind, SourceServer};
use vpnd_ipc::channel::Channel;
use vpnd_ipc::child::{self, ChildRole, Preparation, Started};
use vpnd_ipc::gateway::idp::{
    AccountingRecord, DynamicRequest, FromIdp, Identity, IdpLaunch, IdpRequest, LoginAddress, LoginAnswer,
    LoginCheck, MAX_FRAME, MAX_RECORDS, NextDynamicRequest, ProviderLogout, ReadLogout, RedeemCode, Redeemed,
    RefreshLogin, RefreshedLogin, SourceRefusal, Url, UserRecheck, Verdict,
};
use vpnd_ipc::messages::Prepared;
use vpnd_ipc::request::{self, Answer, Reason, Request};

/// A password is no question for it.
const ASKS_ITSELF: &str = "a provider asks for credentials itself, in a browser";
const HTTPS_PORT: u16 = 443;
const UNKNOWN_SOURCE: &str = "the idp process does not know the source: restart the gateway";

/// A source, ready to be asked.
struct PreparedSource {
    source: Source,
    servers: Servers,
    kind: PreparedKind,
    /// Requests that are under way at the same time. The auth process sends no more, unless those
    /// that it has given up are among them.
    permits: Semaphore,
    accounting: Option<PreparedAccounting>,
}

/// Made before the process shuts itself in.
struct Made {
    sources: Vec<PreparedSource>,
    /// Listeners of the sources that are configured for it, in their order.
    listeners: Vec<Listener>,
}

/// Servers that sessions are accounted for at.
struct PreparedAccounting {
    servers: Servers,
    /// Records on their way at the same time.
    permits: Semaphore,
}

/// A question that any server of a source can answer.
trait Question: Request + Sync {
    fn ask(
        &self,
        source: &PreparedSource,
        server: &SourceServer,
    ) -> impl Future<Output = Result<Self::Reply, ServerError>> + Send;
}

impl Question for LoginCheck {
    async fn ask(&self, source: &PreparedSource, server: &SourceServer) -> Result<Verdict, ServerError> {
        match &source.kind {
            PreparedKind::Ldap(directory) => directory.check(&source.source, server, self).await,
            PreparedKind::Radius(client) => client.check(&source.source, server, self).await,
            PreparedKind::Oidc(_) => Err(ServerError::Answer(ASKS_ITSELF.to_owned())),
        }
    }
}

impl Question for UserRecheck {
    async fn ask(
        &self,
        source: &PreparedSource,
        server: &SourceServer,
    ) -> Result<Result<Identity, SourceRefusal>, ServerError> {
        match &source.kind {
            PreparedKind::Ldap(directory) => directory.recheck(&source.source, server, self).await,
            PreparedKind::Radius(_) => {
                Err(ServerError::Answer("RADIUS has no question without a password".to_owned()))
            }
            PreparedKind::Oidc(_) => Err(ServerError::Answer(ASKS_ITSELF.to_owned())),
        }
    }
}

impl Question for LoginAddress {
    async fn ask(&self, source: &PreparedSource, _: &SourceServer) -> Result<Url, ServerError> {
        source.provider()?.address(self).await
    }
}

impl Question for RedeemCode {
    async fn ask(
        &self,
        source: &PreparedSource,
        _: &SourceServer,
    ) -> Result<Result<Redeemed, SourceRefusal>, ServerError> {
        source.provider()?.redeem(&source.source, self).await
    }
}

impl Question for RefreshLogin {
    async fn ask(
        &self,
        source: &PreparedSource,
        _: &SourceServer,
    ) -> Result<Result<RefreshedLogin, SourceRefusal>, ServerError> {
        source.provider()?.refresh(&source.source, self).await
    }
}

impl Question for ReadLogout {
    async fn ask(
        &self,
        source: &PreparedSource,
        _: &SourceServer,
    ) -> Result<Option<ProviderLogout>, ServerError> {
        source.provider()?.logout(&source.source, self).await
    }
}

enum PreparedKind {
    Ldap(Box<ldap::Directory>),
    Radius(Box<radius::Client>),
    Oidc(Box<oidc::Provider>),
}

/// Runs it; `stream` leads to the parent.
pub fn run(stream: UnixStream) -> anyhow::Result<()> {
    let prepare = |launch: &IdpLaunch| {
        let config = launch.configuration.parse()?;
        let sources = prepare(&config)?;
        let tcp_ports = tcp_ports(&config.sources);
        let listeners = config.sources.iter().filter_map(|source| Listener::prepare(source).transpose());
        let listeners = listeners.collect::<anyhow::Result<_>>()?;
        Ok(Preparation { writable: Vec::new(), tcp_ports, made: Made { sources, listeners } })
    };
    let started = child::start(ChildRole::Idp, &stream, |launch: &IdpLaunch| &launch.common, prepare);
    match started.and_then(|started| child::work(&stream, async |parent| serve(started, parent).await)) {
        Ok(()) => Ok(()),
        Err(error) => child::finish(stream, &FromIdp::Failed(vpnd_sys::text::format_chain(&error))),
    }
}

fn prepare(config: &ServerConfig) -> anyhow::Result<Vec<PreparedSource>> {
    let prepared = config.sources.iter().map(|source| {
        let kind = match &source.kind {
            SourceKind::Ldap(ldap) => ldap::Directory::prepare(ldap).map(Box::new).map(PreparedKind::Ldap),
            SourceKind::Radius(radius) => {
                radius::Client::prepare(radius).map(Box::new).map(PreparedKind::Radius)
            }
            SourceKind::Oidc(oidc) => oidc::Provider::prepare(oidc).map(Box::new).map(PreparedKind::Oidc),
        };
        let kind = kind.with_context(|| format!("the source '{}' can't be used", source.name))?;
        let permits = Semaphore::new(2 * (source.max_logins + source.max_waiting()));
        let accounting = source.accounting().map(|accounting| PreparedAccounting {
            servers: Servers::new(&accounting.servers),
            permits: Semaphore::new(2 * MAX_RECORDS),
        });
        let servers = Servers::new(&source.servers);
        Ok(PreparedSource { servers, source: source.clone(), kind, permits, accounting })
    });
    prepared.collect()
}

/// Where servers are reached by TCP.
fn tcp_ports(sources: &[Source]) -> Vec<u16> {
    let servers = sources.iter().flat_map(|source| {
        let accounting = source.accounting().map_or(&[][..], |accounting| &accounting.servers);
        source.servers.iter().chain(accounting)
    });
    let ports = servers.filter(|server| server.scheme != Scheme::Radius).map(|server| server.port);
    // Addresses in a provider's own description are often at other hosts than the issuer.
    let has_provider = sources.iter().any(|source| matches!(source.kind, SourceKind::Oidc(_)));
    ports.chain(has_provider.then_some(HTTPS_PORT)).collect()
}

async fn serve(started: Started<IdpLaunch, Made>, parent: Channel) -> anyhow::Result<()> {
    let mut descriptors = started.launch.descriptors.into_iter();
    let auth =
        descriptors.next().context("the idp process was started without its channel to the auth process")?;
    let auth = Channel::new(auth.into(), MAX_FRAME)?;
    let Made { sources, listeners } = started.made;
    let inbox = Arc::new(Inbox::new());
    if descriptors.len() < listeners.len() {
        tracing::error!("requests of RADIUS servers are not received before the gateway is restarted");
    }
    for (listener, socket) in listeners.into_iter().zip(descriptors) {
        tokio::spawn(Arc::new(listener).listen(socket, Arc::clone(&inbox)));
    }
    parent.send(&Prepared::Prepared(started.protections), &[]).await?;
    // The auth process bounds how many requests are under way.
    let permits = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
    let answered = request::serve::<IdpRequest, _>(auth, Arc::new(Idp { sources, inbox }), permits);
    tokio::select! {
        // Nothing is sent on it after the first message: it ends.
        ended = parent.receive::<()>() => ended.map(drop).context("the daemon's parent is lost"),
        ended = answered => ended.context("the auth process is lost"),
        path = resolver_files::replaced() => bail!("{path} was replaced, and a new process can read it"),
    }
}

/// The process, which asks the servers of its sources.
struct Idp {
    sources: Vec<PreparedSource>,
    inbox: Arc<Inbox>,
}

impl Answer<LoginCheck> for Idp {
    async fn answer(self: &Arc<Self>, login: LoginCheck) -> Result<Verdict, Reason> {
        check(&self.sources, &login).await
    }
}

impl Answer<LoginAnswer> for Idp {
    async fn answer(self: &Arc<Self>, answer: LoginAnswer) -> Result<Verdict, Reason> {
        answer_challenge(&self.sources, &answer).await
    }
}

impl Answer<UserRecheck> for Idp {
    async fn answer(self: &Arc<Self>, user: UserRecheck) -> Result<Result<Identity, SourceRefusal>, Reason> {
        recheck(&self.sources, &user).await
    }
}

impl Answer<AccountingRecord> for Idp {
    async fn answer(self: &Arc<Self>, record: AccountingRecord) -> Result<(), Reason> {
        account(&self.sources, &record).await
    }
}

impl Answer<LoginAddress> for Idp {
    async fn answer(self: &Arc<Self>, login: LoginAddress) -> Result<Url, Reason> {
        asked(&self.sources, &login.source, async |source| source.ask(&login).await).await
    }
}

impl Answer<RedeemCode> for Idp {
    async fn answer(self: &Arc<Self>, redeem: RedeemCode) -> Result<Result<Redeemed, SourceRefusal>, Reason> {
        asked(&self.sources, &redeem.source, async |source| source.ask(&redeem).await).await
    }
}

impl Answer<RefreshLogin> for Idp {
    async fn answer(
        self: &Arc<Self>,
        refresh: RefreshLogin,
    ) -> Result<Result<RefreshedLogin, SourceRefusal>, Reason> {
        asked(&self.sources, &refresh.source, async |source| source.ask(&refresh).await).await
    }
}

impl Answer<ReadLogout> for Idp {
    async fn answer(self: &Arc<Self>, read: ReadLogout) -> Result<Option<ProviderLogout>, Reason> {
        asked(&self.sources, &read.source, async |source| source.ask(&read).await).await
    }
}

impl Answer<NextDynamicRequest> for Idp {
    async fn answer(
        self: &Arc<Self>,
        NextDynamicRequest(result): NextDynamicRequest,
    ) -> Result<DynamicRequest, Reason> {
        self.inbox.next(result).await
    }
}

async fn check(sources: &[PreparedSource], login: &LoginCheck) -> Result<Verdict, Reason> {
    asked(sources, &login.source, async |source| source.ask(login).await).await
}

async fn recheck(
    sources: &[PreparedSource],
    user: &UserRecheck,
) -> Result<Result<Identity, SourceRefusal>, Reason> {
    asked(sources, &user.source, async |source| source.ask(user).await).await
}

async fn answer_challenge(sources: &[PreparedSource], answer: &LoginAnswer) -> Result<Verdict, Reason> {
    asked(sources, &answer.source, async |source| source.answer(answer).await).await
}

/// Delivers a record outside the limits for logins: an accounting server that is down must not
/// block logins.
async fn account(sources: &[PreparedSource], record: &AccountingRecord) -> Result<(), Reason> {
    let since = Instant::now();
    let Some(source) = named(sources, &record.source) else { return unavailable(UNKNOWN_SOURCE) };
    let (PreparedKind::Radius(client), Some(accounting)) = (&source.kind, &source.accounting) else {
        return unavailable("its sessions are not accounted for");
    };
    let Ok(_permit) = accounting.permits.try_acquire() else {
        return unavailable("too many records are on their way to this source");
    };
    let delivered = source.deliver(client, accounting, record, since);
    let delivered = tokio::time::timeout(source.source.reply_timeout(), delivered).await;
    delivered.unwrap_or_else(|_| unavailable("no server has answered in time"))
}

fn unavailable<T>(reason: &str) -> Result<T, Reason> {
    Err(Reason::cut(reason))
}

fn named<'s>(sources: &'s [PreparedSource], name: &str) -> Option<&'s PreparedSource> {
    sources.iter().find(|source| source.source.name == name)
}

/// The reply of the source with this name, within its limits.
async fn asked<T>(
    sources: &[PreparedSource],
    name: &str,
    ask: impl AsyncFnOnce(&PreparedSource) -> Result<T, Reason>,
) -> Result<T, Reason> {
    let Some(source) = named(sources, name) else { return unavailable(UNKNOWN_SOURCE) };
    let Ok(_permit) = source.permits.try_acquire() else {
        return unavailable("too many requests are under way at this source");
    };
    let reply = tokio::time::timeout(source.source.reply_timeout(), ask(source)).await;
    reply.unwrap_or_else(|_| unavailable("no server has answered in time"))
}

impl PreparedSource {
    fn provider(&self) -> Result<&oidc::Provider, ServerError> {
        match &self.kind {
            PreparedKind::Oidc(provider) => Ok(provider),
            _ => Err(ServerError::Answer("its users log in with a password".to_owned())),
        }
    }

    /// Limit for the reply of one server.
    fn timeout(&self) -> Duration {
        match self.kind {
            // A login takes several requests.
            PreparedKind::Oidc(_) => LOGIN_TIMEOUT,
            _ => self.source.push().unwrap_or(self.source.timeout),
        }
    }

    /// Asks one server after the other until one answers. A person who was asked to approve a login
    /// is not asked by a second one.
    async fn ask<Q: Question>(&self, question: &Q) -> Result<Q::Reply, Reason> {
        let mut failures = Vec::new();
        for server in self.servers.in_order() {
            let asked = question.ask(self, server.address());
            let asked = tokio::time::timeout(self.timeout(), asked).await.unwrap_or(Err(ServerError::Slow));
            let may_go_on =
                self.source.push().is_none() || asked.as_ref().is_err_and(ServerError::is_before_request);
            match server.noted(asked) {
                Ok(reply) => return Ok(reply),
                Err(reason) => failures.push(reason),
            }
            if !may_go_on {
                break;
            }
        }
        unavailable(&failures.join("; "))
    }

    /// Sends a record to one server after the other until one has it.
    async fn deliver(
        &self,
        client: &radius::Client,
        accounting: &PreparedAccounting,
        record: &AccountingRecord,
        since: Instant,
    ) -> Result<(), Reason> {
        let mut failures = Vec::new();
        for server in accounting.servers.in_order() {
            let sent =
                tokio::time::timeout(self.source.timeout, client.account(server.address(), record, since));
            match server.noted(sent.await.unwrap_or(Err(ServerError::Slow))) {
                Ok(()) => return Ok(()),
                Err(reason) => failures.push(reason),
            }
        }
        unavailable(&failures.join("; "))
    }

    /// Asks the server that has challenged: no other knows the login.
    async fn answer(&self, answer: &LoginAnswer) -> Result<Verdict, Reason> {
        let (PreparedKind::Radius(client), Some(server)) =
            (&self.kind, self.servers.named(&answer.round.server))
        else {
            return unavailable("no server of the source has sent such a challenge");
        };
        let asked = client.answer(&self.source, server.address(), answer);
        let asked = tokio::time::timeout(self.timeout(), asked).await;
        let noted = server.noted(asked.unwrap_or(Err(ServerError::Slow)));
        noted.map_err(|reason| Reason::cut(&reason))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn ports_are_those_of_servers_over_tcp() {
        let source =
            |name: &str, rest: &str| format!("[[source]]\nname = \"{name}\"\nmatch = \"{name}-*\"\n{rest}");
        let ldap = "kind = \"ldap\"\nservers = [\"ldaps://a\", \"ldap://a:3\"]\nuser_dn = \"uid={user}\"\n";
        let udp = "kind = \"radius\"\nservers = \"radius://a\"\nsecret_file = \"s\"\naccounting_servers = \"radius://a\"\n";
        let tls = "kind = \"radius\"\nservers = \"radsec://a\"\naccounting_servers = \"radsec://a:4\"\n";
        let text = format!(
            "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n{}{}{}",
            source("ldap", ldap),
            source("udp", udp),
            source("tls", tls)
        );
        let config = ServerConfig::parse(&text, "server.toml", Path::new("/")).unwrap();
        assert_eq!(tcp_ports(&config.sources), [636, 3, 2083, 4]);
    }
}
