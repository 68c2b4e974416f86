//! The portal as the parent holds it: there where it is switched on.
//!
//! Invariants: the parent opens the socket and reads the files, so the portal needs no right but to
//! what it is handed; its key is not the gateway's; whatever becomes of it, sessions go on. Another
//! certificate is handed to the process that runs, whose connections stay. Files that are being
//! renewed, of which one is new already, keep nothing else from being reloaded: the pair in use
//! stays, and they are read again later. Where the certificate is ordered, the process runs without
//! one until it is there, since it answers the authority's challenge.

use std::fs::File;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::acme::Orders;
use super::kept_child::{Failure, KeptChild};
use super::launcher::Launcher;
use super::relays::Relays;
use super::worker::Worker;
use vpnd_config::portal::MAX_LOGO_BYTES;
use vpnd_config::source::{Source, SourceKind};
use vpnd_config::{Acme, LogoFile, ServerConfig, Tls};
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::gateway::acme::Proofs;
use vpnd_ipc::gateway::portal::{
    FromPortal, Logo, MAX_PROVIDERS, PortalCertificate, PortalLaunch, Provider, ToPortal,
};
use vpnd_ipc::gateway::{FromAuth, ToAuth, ToWorker};
use vpnd_ipc::messages::SecretBytes;
use vpnd_ipc::spawn::{ChildError, RunningChild};
use vpnd_pki::leaf::{self, Leaf};
use vpnd_pki::tls::{self, Identity};
use vpnd_proto::control::{List, Text};
use vpnd_sys::log_limit::LogLimit;

/// Connections that may wait in the kernel's queue.
const BACKLOG: i32 = 128;
/// Time after which files that could not be used are read again, and the longest such time after
/// several failures.
const RETRY: Duration = Duration::from_secs(10);
const MAX_RETRY: Duration = Duration::from_secs(3600);
/// Lines of the log about sockets of relays that the process did not get.
static REFUSALS: LogLimit = LogLimit::new(20, Duration::from_secs(5));

impl Failure for FromPortal {
    const LOSS: &'static str = "no web pages";

    fn into_reason(self) -> Result<String, Self> {
        match self {
            Self::Failed(why) => Ok(why),
            message => Err(message),
        }
    }
}

pub(super) struct Portal {
    child: KeptChild<PortalLaunch, FromPortal>,
    config: vpnd_config::Portal,
    tls: Tls,
    /// When to read its certificate and key again, and after which time.
    retry: Option<(Instant, Duration)>,
    /// It stays open while one process follows another, and holds connections meanwhile.
    listener: OwnedFd,
    relays: Relays,
}

impl Portal {
    /// Prepares it at the gateway's start, which matters more than web pages.
    pub(super) fn prepare_first(launcher: &Launcher, config: &ServerConfig) -> Option<Self> {
        Self::prepare(launcher, config, None).unwrap_or_else(|error| {
            let error = vpnd_sys::text::format_chain(&error);
            tracing::error!(%error, "no web pages until that is mended and 'vpnd reload' was run");
            None
        })
    }

    /// Reads its files and opens its socket, where it is switched on. The process is not started.
    pub(super) fn prepare(
        launcher: &Launcher,
        config: &ServerConfig,
        before: Option<&Self>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(portal) = &config.portal else { return Ok(None) };
        let is_in_use = |before: &&Self| {
            (&before.config.certificate, &before.config.key) == (&portal.certificate, &portal.key)
        };
        let (certificate, retry) = match (read(portal, &config.tls), before.filter(is_in_use)) {
            (Ok(certificate), _) => (Some(certificate), None),
            // The order comes next, and the log has why.
            (Err(_), _) if portal.acme => (before.and_then(Self::certificate), None),
            (Err(error), Some(before)) => {
                kept(&error);
                (before.certificate(), Some((Instant::now() + RETRY, RETRY)))
            }
            (Err(error), None) => return Err(error),
        };
        if certificate.is_none() {
            tracing::warn!(
                "web pages have no certificate yet: browsers are refused until the ACME authority has issued it"
            );
        }
        let launch = PortalLaunch {
            common: launcher.common().clone(),
            chain: None,
            key: None,
            name: Text::cut(&portal.name),
            logo: portal.logo.as_ref().map(read_logo).transpose()?,
            providers: providers(&config.sources),
            relays: portal.relays,
            proofs: Proofs::default(),
            hsts_subdomains: portal.hsts_subdomains,
        }
        .with(certificate);
        let listener = match before.filter(|before| before.config.listen == portal.listen) {
            Some(before) => before.listener.try_clone()?,
            None => listen(portal.listen).with_context(|| {
                let own =
                    if before.is_some() { ", or restart the gateway, which has the port itself" } else { "" };
                format!(
                    "can't serve web pages on {}; choose another `listen` in [portal]{own}",
                    portal.listen
                )
            })?,
        };
        let child = KeptChild::new(launcher.program(), ChildRole::Portal, launch);
        let relays = Relays::new(config.server.listen, portal.relays);
        Ok(Some(Self { child, config: portal.clone(), tls: config.tls.clone(), retry, listener, relays }))
    }

    /// Its next message; `None` when it should be there, for the first time or again. Safe to
    /// cancel.
    pub(super) async fn next(&mut self) -> Option<FromPortal> {
        let Some((at, _)) = self.retry else { return self.child.next().await };
        tokio::select! {
            message = self.child.next() => message,
            () = tokio::time::sleep_until(at) => None,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.child.is_running()
    }

    /// Sends it a message, if it is there.
    async fn send(&mut self, message: &ToPortal, descriptors: &[OwnedFd]) {
        self.child.send(message, descriptors).await;
    }

    /// Starts it; the auth process's end of the channel to it. Nothing where it goes on.
    pub(super) async fn restart(&mut self) -> Option<OwnedFd> {
        if let Some((at, delay)) = self.retry
            && at <= Instant::now()
        {
            self.retry = self.read_again().await.err().map(|error| {
                kept(&error);
                let delay = (delay * 2).min(MAX_RETRY);
                (Instant::now() + delay, delay)
            });
            if self.is_running() {
                return None;
            }
        }
        // A portal that was taken over can shut the socket down for all who hold it.
        if let Err(error) = SockRef::from(&self.listener).listen(BACKLOG) {
            tracing::error!(%error, "no web pages: {} takes no connections", self.config.listen);
        }
        self.child.restart(std::iter::once(&self.listener)).await
    }

    /// Lets it go.
    pub(super) async fn dismiss(self, timeout: Duration) {
        self.child.dismiss(timeout).await;
    }

    /// Reads certificate and key again, and has the process present them.
    async fn read_again(&mut self) -> anyhow::Result<()> {
        let certificate = read(&self.config, &self.tls)?;
        self.present(certificate).await;
        Ok(())
    }

    /// Has the process present this certificate, unless it does.
    async fn present(&mut self, certificate: PortalCertificate) {
        let launch = &mut self.child.launch;
        let has_key = launch.key.as_ref().is_some_and(|key| key.0 == certificate.key.0);
        if has_key && launch.chain.as_ref() == Some(&certificate.chain) {
            return;
        }
        *launch = launch.clone().with(Some(certificate.clone()));
        self.send(&ToPortal::Certificate(certificate), &[]).await;
    }

    /// Has the process answer challenges by these proofs, and by none that came before, also when
    /// it is started again.
    pub(super) async fn answer_by(&mut self, proofs: Proofs) {
        self.child.launch.proofs = proofs.clone();
        self.send(&ToPortal::Proofs(proofs), &[]).await;
    }

    fn certificate(&self) -> Option<PortalCertificate> {
        self.child.launch.certificate()
    }

    /// When its certificate expires, seconds since 1970; 0 where it has none.
    fn expires_s(&self) -> u64 {
        let chain = self.child.launch.chain.as_ref().map(|pem| leaf::chain(pem));
        let leaf = chain.and_then(|chain| Leaf::parse(chain.first()?));
        leaf.map_or(0, |leaf| leaf.not_after_s)
    }

    /// Whether challenges of this authority arrive at its port.
    pub(super) fn answers_challenges(&self, acme: &Acme) -> bool {
        self.config.answers_challenges(acme)
    }

    /// Does what the process needs for its relays, and for the order under way.
    ///
    /// # Errors
    /// If the worker is lost.
    pub(super) async fn handle(
        &mut self,
        message: FromPortal,
        orders: &mut Orders,
        worker: &Worker,
    ) -> Result<(), ChildError> {
        match message {
            FromPortal::Relay { number, client } => match self.relays.begin(number) {
                Ok(here) => worker.send(&ToWorker::Relay { here, client }, &[]).await,
                Err(error) => {
                    if REFUSALS.admits() {
                        tracing::warn!(%error, "no socket for a client's TCP connection");
                    }
                    self.send(&ToPortal::NoRelay(number), &[]).await;
                    Ok(())
                }
            },
            FromPortal::RelayOver { number, dropped } => match self.relays.end(number) {
                Some(here) => worker.send(&ToWorker::RelayOver { here, dropped }, &[]).await,
                None => Ok(()),
            },
            FromPortal::Answering => {
                orders.answering().await;
                Ok(())
            }
            // The reason of its end, which is handled with its end.
            FromPortal::Failed(_) => Ok(()),
        }
    }

    /// The worker knows the relay at this address.
    pub(super) async fn relay_known(&mut self, here: SocketAddr) {
        if let Some((number, socket)) = self.relays.known(here) {
            self.send(&ToPortal::Relay(number), &[socket]).await;
        }
    }

    /// The process that had the relays is gone, or will be.
    ///
    /// # Errors
    /// If the worker is lost.
    pub(super) async fn end_relays(&mut self, worker: &Worker) -> Result<(), ChildError> {
        for here in self.relays.end_all() {
            worker.send(&ToWorker::RelayOver { here, dropped: 0 }, &[]).await?;
        }
        Ok(())
    }

    /// Presents the certificate that was ordered.
    ///
    /// # Errors
    /// If the auth process is lost.
    pub(super) async fn take_over_certificate(
        &mut self,
        auth: &RunningChild<FromAuth>,
    ) -> Result<(), ChildError> {
        if let Err(error) = self.read_again().await {
            kept(&error);
        }
        self.report_certificate(auth).await
    }

    /// Has the auth process know how long the certificate is good, for administrators.
    ///
    /// # Errors
    /// If the auth process is lost.
    pub(super) async fn report_certificate(&self, auth: &RunningChild<FromAuth>) -> Result<(), ChildError> {
        auth.send(&ToAuth::PortalCertificate(self.expires_s()), &[]).await
    }

    /// With these proofs for the order under way.
    pub(super) fn with_proofs(mut self, proofs: Proofs) -> Self {
        self.child.launch.proofs = proofs;
        self
    }

    /// Goes on as this one, which [is one process](Self::is_as) with it.
    pub(super) async fn go_on_as(&mut self, next: &Self) {
        (self.config, self.tls, self.retry) = (next.config.clone(), next.tls.clone(), next.retry);
        if let Some(certificate) = next.certificate() {
            self.present(certificate).await;
        }
        self.answer_by(next.child.launch.proofs.clone()).await;
    }

    /// Whether both are one process, which takes another certificate and other proofs while it
    /// runs.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        let launch = |portal: &Self| {
            let proofs = Proofs::default();
            minicbor::to_vec(PortalLaunch { proofs, ..portal.child.launch.clone().with(None) }).ok()
        };
        self.config.listen == other.config.listen && launch(self) == launch(other)
    }
}

/// Logs why the certificate in use stays.
fn kept(error: &anyhow::Error) {
    let error = vpnd_sys::text::format_chain(error);
    tracing::warn!(
        error,
        "web pages keep the certificate that they have; its files are read again in a while, or by 'vpnd reload'"
    );
}

/// Reads certificate and key.
fn read(portal: &vpnd_config::Portal, tls: &Tls) -> anyhow::Result<PortalCertificate> {
    let chain = vpnd_config::certificate::read(&portal.certificate)?;
    let key = read_key(&portal.key)?;
    Identity::from_pem(&chain, &key.0).and_then(Identity::certified).with_context(|| {
        format!("{} is not the key of {}", portal.key.display(), portal.certificate.display())
    })?;
    for_portal_alone(&portal.key, &key.0, tls)?;
    Ok(PortalCertificate { chain: chain.into(), key })
}

/// Refuses a key of the gateway or its authorities.
///
/// # Errors
/// If it is one, or can't be used.
pub(super) fn for_portal_alone(path: &Path, key: &[u8], tls: &Tls) -> anyhow::Result<()> {
    match vpnd_config::portal::other_use(&tls::private_key(key)?, tls) {
        Some(other) => bail!("{} is '{other}' of [tls] as well: make another for the portal", path.display()),
        None => Ok(()),
    }
}

/// The sources whose users log in elsewhere.
fn providers(sources: &[Source]) -> List<Provider, MAX_PROVIDERS> {
    let provider = |source: &Source| match &source.kind {
        SourceKind::Oidc(oidc) => {
            let label = Text::cut(oidc.label.as_deref().unwrap_or(&source.name));
            Some(Provider { source: Text::cut(&source.name), label })
        }
        _ => None,
    };
    let providers = sources.iter().filter_map(provider).take(MAX_PROVIDERS);
    List::new(providers.collect()).unwrap_or_default()
}

fn read_key(path: &Path) -> anyhow::Result<SecretBytes> {
    let key = std::fs::read(path).map(Zeroizing::new);
    key.map(SecretBytes).with_context(|| format!("can't read {}", path.display()))
}

fn read_logo(logo: &LogoFile) -> anyhow::Result<Logo> {
    let path = logo.path.display();
    let mut bytes = Vec::new();
    let file = File::open(&logo.path).with_context(|| format!("can't read the logo {path}"))?;
    file.take(MAX_LOGO_BYTES + 1).read_to_end(&mut bytes).with_context(|| format!("can't read {path}"))?;
    if bytes.len() as u64 > MAX_LOGO_BYTES {
        bail!("the logo {path} is larger than {} KiB", MAX_LOGO_BYTES >> 10);
    }
    Ok(Logo { media_type: Text::cut(logo.media_type), bytes: bytes.into() })
}

/// Opens a port for pages or challenges. `[::]` takes IPv4 too, whatever the system's default is,
/// and IPv4 alone where IPv6 is switched off.
pub(super) fn listen(address: SocketAddr) -> std::io::Result<OwnedFd> {
    listen_at(address).or_else(|error| {
        let is_any = address.is_ipv6() && address.ip().is_unspecified();
        let is_without = error.raw_os_error() == Some(libc::EAFNOSUPPORT)
            || error.kind() == std::io::ErrorKind::AddrNotAvailable;
        if is_any && is_without {
            return listen_at((Ipv4Addr::UNSPECIFIED, address.port()).into());
        }
        Err(error)
    })
}

fn listen_at(address: SocketAddr) -> std::io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(TcpListener::from(socket).into())
}
