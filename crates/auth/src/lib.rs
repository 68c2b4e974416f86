//! The auth process of a gateway, from its first message to its end.
#![deny(unsafe_code)]
// A library in form only: its users are the daemon's other crates.
#![allow(missing_docs)]

#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod portal;
mod service;
mod store;

use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};

use crate::portal::desk::Desk;
use crate::service::{Courier, Service};
use crate::store::OpenStore;
use vpnd_admission::access::Access;
use vpnd_admission::accounting::Accounting;
use vpnd_admission::authenticator::sources::Sources;
use vpnd_admission::authenticator::token_seal::TokenSeal;
use vpnd_admission::authenticator::{Authenticator, QUEUE_TIMEOUT, Settings, Surroundings};
use vpnd_admission::idp_client::IdpClient;
use vpnd_admission::whois::Answers;
use vpnd_admission::wireguard::WireGuard;
use vpnd_config::source::{Source, SourceKind};
use vpnd_config::{OuterAddresses, ServerConfig, Timeouts};
use vpnd_ipc::channel::Channel;
use vpnd_ipc::child::{self, ChildRole, Preparation, Started};
use vpnd_ipc::gateway as messages;
use vpnd_ipc::gateway::{AuthLaunch, FromAuth, ToAuth};
use vpnd_ipc::messages::Prepared;
use vpnd_ipc::signing::{self, SigningError};
use vpnd_pki::{tls, wireguard_key};
use vpnd_store::Store;
use vpnd_store::audit::recorder::{LiveSessions, Recorder, RunEnd};
use vpnd_store::audit::whois::Recording;
use vpnd_store::audit::{self, SessionStart};
use vpnd_store::password::Hasher;
use vpnd_sys::clock::{Clocks, steady_s};
use vpnd_sys::log_limit::REPORT_INTERVAL;
use vpnd_sys::process;

/// The file, in the store's directory, with what accounting needs after a restart.
const ACCOUNTING_FILE: &str = "accounting.sqlite";

/// Time for the parent to notice that the worker is gone.
const DISMISSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs it; `stream` leads to the parent.
pub fn run(stream: UnixStream) -> anyhow::Result<()> {
    let state_dir = |launch: &AuthLaunch| {
        Ok(Preparation {
            writable: vec![launch.configuration.parse()?.server.state_dir],
            tcp_ports: Vec::new(),
            made: (),
        })
    };
    let started = child::start(ChildRole::Auth, &stream, |launch: &AuthLaunch| &launch.common, state_dir);
    match started.and_then(|started| child::work(&stream, async |parent| serve(started, parent).await)) {
        Ok(()) => Ok(()),
        Err(error) => child::finish(stream, &FromAuth::Failed(vpnd_sys::text::format_chain(&error))),
    }
}

async fn serve(started: Started<AuthLaunch>, parent: Channel) -> anyhow::Result<()> {
    let config = started.launch.message.configuration.parse()?;
    let mut descriptors = started.launch.descriptors;
    let dialling = (descriptors.len() == 3).then(|| descriptors.pop()).flatten();
    let Ok([worker, signatures]) = <[_; 2]>::try_from(descriptors) else {
        bail!("the auth process was started without its channels to the worker");
    };
    let keys = signing::Keys::default();
    let first_key = started.launch.message.key;
    keys.add(tls::signing_key(&first_key.0)?)?;
    drop(first_key);
    let worker = Channel::new(worker.into(), messages::auth::MAX_FRAME)?;
    let opened = OpenStore::open(&config, started.launch.message.database.as_ref(), dialling).await?;
    let settings = settings(&config)?;
    let store = opened.store();
    let audit_path = config.server.state_dir.join(audit::FILE_NAME);
    let live = live_sessions(Arc::clone(&store));
    let audit = Recorder::start(audit_path, config.audit, config.nat.blocks.clone(), live)
        .context("there is no thread to record events")?;
    let idp = Arc::new(IdpClient::default());
    let accounting = accounting(&config, &idp, store.as_ref(), started.launch.message.is_start);
    let access = Arc::new(Access::new(config.profiles.clone(), &config.tunnel));
    let surroundings = surroundings(&config, &access, &idp, &accounting, &audit)?;
    let for_auth = Arc::clone(&store);
    let make = move || Authenticator::within(for_auth, Hasher::default(), settings, surroundings);
    let authenticator =
        tokio::task::spawn_blocking(make).await.context("the authenticator can't be made")??;
    // A source that is slow takes no permits that others need.
    let external: usize = config.sources.iter().map(Source::max_under_way).sum();
    let permits = settings.workers + settings.queue + external;
    let service =
        Service::new(Arc::clone(&store), authenticator, Arc::clone(&access), permits, Clocks::default());
    let service = service.with_audit(audit.clone()).of_fleet(config.fleet.is_some());
    answer_questions(&service, &config);
    carry_orders(&service, &config)?;
    switch_portal(&service, &config);
    service.portal().hand_out(started.launch.message.client_profile.as_deref());
    let service = Arc::new(service.with_wireguard(wireguard(&config, &store, &access)?));
    service.offer_devices(started.launch.message.endpoint, &config.tunnel);
    let signing =
        signing::serve(signatures, keys.clone()).context("there is no thread to sign handshakes")?;
    let is_start = started.launch.message.is_start;
    let beginning = Arc::clone(&service);
    tokio::task::spawn_blocking(move || beginning.begin(is_start)).await??;
    parent.send(&Prepared::Prepared(started.protections), &[]).await?;
    begin_tasks(opened, &service, &accounting, &config.timeouts, is_start);
    let farewell = OnceLock::new();
    let ended = tokio::select! {
        // This process waits for the end of its channel.
        ended = follow_parent(&parent, config, &keys, &idp, &service, &audit, &farewell) => ended,
        ended = Arc::clone(&service).run(worker) => match ended {
            Ok(()) => without_worker(&parent, &farewell).await,
            Err(error) => Err(error).context("the worker has sent what no worker sends"),
        },
        ended = signing => match ended {
            Ok(SigningError::Closed) => without_worker(&parent, &farewell).await,
            Ok(error) => Err(error).context("the worker has sent what no worker sends"),
            Err(_) => Err(anyhow!("the thread that signs handshakes has ended")),
        },
    };
    // The channels of a parent that was killed end before this process does.
    let end = if farewell.get().is_some() { RunEnd::InOrder } else { RunEnd::CutOff };
    tokio::task::spawn_blocking(move || audit.finish(end)).await.context("the audit file was not closed")?;
    if farewell.get() == Some(&Farewell::GatewayStops) {
        accounting.stop().await;
    }
    ended
}

/// Answers questions of the fleet's other gateways about what is recorded here.
fn answer_questions(service: &Service, config: &ServerConfig) {
    if let Some(fleet) = config.fleet.as_ref().filter(|_| config.audit.enabled) {
        let audit = config.server.state_dir.join(audit::FILE_NAME);
        service.answer_questions(Answers::new(fleet.name.clone(), Recording::of(config), audit));
    }
}

/// Carries orders between the gateways of the fleet.
fn carry_orders(service: &Service, config: &ServerConfig) -> anyhow::Result<()> {
    let Some(fleet) = &config.fleet else { return Ok(()) };
    let (state_dir, port) = (&config.server.state_dir, config.server.listen.port());
    let courier = Courier::open(state_dir, service.kicks(), &fleet.name, port, Clocks::default());
    service.carry_orders(courier.context("the gateway's key for its fleet can't be used")?);
    Ok(())
}

/// Has the portal go by a configuration.
fn switch_portal(service: &Service, config: &ServerConfig) {
    let portal = config.portal.as_ref();
    service.portal().switch(portal.is_some());
    service.portal().reach_providers(portal.is_some_and(|portal| !portal.provider_networks.is_empty()));
    service.portal().heard().keep_networks(config.audit.outer != OuterAddresses::None);
    service.portal().set_desk(Desk::of(config));
    service.portal().give_codes(config.portal.as_ref().is_some_and(|portal| portal.short_codes));
    if let Some(url) = config.pages() {
        service.portal().serve_at(url.as_str());
    }
}

/// The WireGuard devices, if they are served.
fn wireguard(
    config: &ServerConfig,
    store: &Arc<dyn Store>,
    access: &Arc<Access>,
) -> anyhow::Result<Option<Arc<WireGuard>>> {
    if config.wireguard.is_none() {
        return Ok(None);
    }
    let devices = store.wireguard_devices()?.len();
    let key = wireguard_key::open_or_create(&config.server.state_dir, devices)?;
    if config.fleet.is_some() && !store.agree_on_wireguard_key(&key.public().0)? {
        let path = config.server.state_dir.join(wireguard_key::FILE_NAME);
        let error = wireguard_key::KeyFileError::OfNoOther { path };
        return Err(error.into());
    }
    Ok(Some(WireGuard::start(Arc::clone(store), Arc::clone(access), key)?))
}

/// What there is for logins besides the store.
fn surroundings(
    config: &ServerConfig,
    access: &Arc<Access>,
    idp: &Arc<IdpClient>,
    accounting: &Arc<Accounting>,
    audit: &Recorder,
) -> anyhow::Result<Surroundings> {
    Ok(Surroundings {
        access: Arc::clone(access),
        sources: Sources::new(&config.sources, Arc::clone(idp), Arc::clone(accounting)),
        tokens: token_seal(config)?,
        audit: Some(audit.clone()),
        logins_per_user: config.limits.logins_per_user,
    })
}

/// Makes the seal of refresh tokens of OpenID providers; a file for its key only if tokens are
/// kept.
fn token_seal(config: &ServerConfig) -> anyhow::Result<TokenSeal> {
    let keeps_tokens =
        |source: &Source| matches!(source.kind, SourceKind::Oidc(_)) && source.recheck().is_some();
    if !config.sources.iter().any(keeps_tokens) {
        return Ok(TokenSeal::default());
    }
    TokenSeal::open_or_create(&config.server.state_dir).context("the key of refresh tokens can't be used")
}

/// Starts the tasks that run besides requests.
fn begin_tasks(
    store: OpenStore,
    service: &Arc<Service>,
    accounting: &Arc<Accounting>,
    timeouts: &Timeouts,
    is_start: bool,
) {
    tokio::spawn(store.look_after(timeouts.forget_device));
    tokio::spawn(Arc::clone(service).follow_sources());
    tokio::spawn(Arc::clone(service).follow_notices());
    tokio::spawn(Arc::clone(service).end_leftover(timeouts.idle_timeout, is_start));
    tokio::spawn(report_log(Arc::clone(service)));
    tokio::spawn(Arc::clone(accounting).deliver());
}

/// Reads the sessions that there are, for the audit file.
fn live_sessions(sessions: Arc<dyn Store>) -> LiveSessions {
    Box::new(move || {
        let live = sessions.live_sessions(steady_s()).map_err(|error| error.to_string())?;
        Ok(live.into_iter().map(SessionStart::from).collect())
    })
}

/// Accounting with what the process before this one has left of it.
fn accounting(
    config: &ServerConfig,
    idp: &Arc<IdpClient>,
    sessions: &dyn Store,
    is_start: bool,
) -> Arc<Accounting> {
    let file = config.server.state_dir.join(ACCOUNTING_FILE);
    let accounting = Accounting::new(&config.sources, Arc::clone(idp)).with_file(&file);
    if is_start {
        accounting.start(|session| sessions.session(session, steady_s()).is_ok_and(|found| found.is_some()));
    }
    Arc::new(accounting)
}

/// Signs with each key, uses each idp process and goes by each configuration that the privileged
/// parent sends, until that has ended.
async fn follow_parent(
    parent: &Channel,
    mut config: ServerConfig,
    keys: &signing::Keys,
    idp: &IdpClient,
    service: &Arc<Service>,
    audit: &Recorder,
    farewell: &OnceLock<Farewell>,
) -> anyhow::Result<()> {
    while let Some(received) = parent.receive::<ToAuth>().await? {
        match received.into_parts()? {
            (ToAuth::Key(key), None) => {
                keys.add(tls::signing_key(&key.0)?)?;
                parent.send(&FromAuth::KeyTaken, &[]).await?;
            }
            (ToAuth::Idp, Some(channel)) => idp.connect(channel)?,
            (ToAuth::Portal, Some(channel)) => service.portal().connect(channel)?,
            (ToAuth::PortalCertificate(expires_s), None) => service.portal().set_certificate(expires_s),
            (ToAuth::ClientProfile(text), None) => service.portal().hand_out(text.as_deref()),
            (ToAuth::Endpoint(endpoint), None) => service.offer_devices(endpoint, &config.tunnel),
            (ToAuth::Stop, None) => _ = farewell.set(Farewell::GatewayStops),
            (ToAuth::Replaced, None) => _ = farewell.set(Farewell::Replaced),
            (ToAuth::Configuration(configuration), None) => {
                config = configuration.parse()?.reloaded(&config);
                audit.set_policy(config.audit);
                switch_portal(service, &config);
                let (service, profiles) = (Arc::clone(service), config.profiles.clone());
                tokio::task::spawn_blocking(move || service.profiles_changed(profiles)).await?;
                parent.send(&FromAuth::ConfigurationTaken, &[]).await?;
            }
            _ => bail!("the parent has sent another number of descriptors than belong to a message"),
        }
    }
    Ok(())
}

/// The parent's last message before it ends the channel. A parent that was killed sends none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Farewell {
    GatewayStops,
    /// Another auth process goes on.
    Replaced,
}

/// The parent waits for the worker's end before it lets this process go.
async fn without_worker(parent: &Channel, farewell: &OnceLock<Farewell>) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + DISMISSAL_TIMEOUT;
    loop {
        match tokio::time::timeout_at(deadline, parent.receive::<ToAuth>()).await {
            Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some(received))) if matches!(received.message, ToAuth::Stop) => {
                _ = farewell.set(Farewell::GatewayStops);
            }
            Ok(Ok(Some(received))) if matches!(received.message, ToAuth::Replaced) => {
                _ = farewell.set(Farewell::Replaced);
            }
            _ => bail!("the auth process has lost the worker"),
        }
    }
}

fn settings(config: &ServerConfig) -> anyhow::Result<Settings> {
    Ok(Settings {
        workers: match config.limits.password_workers {
            0 => process::available_cores()?.len().div_ceil(2),
            workers => workers,
        },
        queue: config.limits.password_queue,
        longest_wait: QUEUE_TIMEOUT,
        require_certificate: config.tls.require_client_certificate,
    })
}

/// Logs how many lines were left out.
async fn report_log(service: Arc<Service>) {
    loop {
        tokio::time::sleep(REPORT_INTERVAL).await;
        service.report_log();
    }
}
