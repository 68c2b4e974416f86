//! The gateway: `vpnd server`, and what only its privileged process does.
//!
//! Start-up goes from what can fail without a trace to what changes the machine: configuration,
//! store, certificate, ciphers, then sockets, the TUN device, addresses and firewall, these through
//! the undo journal. Nothing of the machine is changed before everything that can be checked has
//! been. [`vpnd_ipc`] describes the processes: this one, the parent, touches nothing that a client
//! sends.

mod acme;
mod certificate;
mod database;
mod firewall;
mod hosts;
mod idp;
mod kept_child;
mod kept_children;
mod launcher;
pub(crate) mod listeners;
mod machine;
mod own_addresses;
mod portal;
mod relays;
mod releases;
mod reload;
mod upgrade;
mod worker;

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::args::ServerArgs;
use acme::Orders;
use certificate::{CurrentCertificate, TlsMaterial};
use idp::Idp;
use kept_children::KeptChildren;
use launcher::Launcher;
use listeners::SocketFile;
use machine::Machine;
use own_addresses::OwnAddresses;
use portal::Portal;
use vpnd_config::certificate::order::Owner;
use vpnd_config::in_force::Settings;
use vpnd_config::local_ports::LocalPorts;
use vpnd_config::{Invalid, ServerConfig, check, review};
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::gateway::{Begin, Configuration, FromAuth, FromWorker, ToAuth, ToWorker};
use vpnd_ipc::messages::{Common, Devices};
use vpnd_ipc::spawn::{ChildError, RunningChild, StartingChild};
use vpnd_sys::account::UnixUser;
use vpnd_sys::clock::wall_s;
use vpnd_sys::logging;
use vpnd_sys::process::{self, Capability};
use vpnd_sys::sandbox::SandboxMode;
use vpnd_sys::service_manager;
use vpnd_sys::sysctl;
use worker::Worker;

/// Time for the worker to close its clients' connections, and for the auth process to finish a
/// write.
const CHILD_END_TIMEOUT: Duration = Duration::from_secs(6);

/// Runs `vpnd server` until it is stopped.
///
/// # Errors
/// The failure and a remedy, for the administrator.
pub async fn run(args: ServerArgs) -> anyhow::Result<()> {
    let (configuration, config) = Configuration::read(&args.config)?;
    let log_format = args.log_format.unwrap_or(config.log.format);
    logging::init(&config.log.level, log_format)?;
    process::require(Capability::NetAdmin)?;
    review(&config, &configuration, args.insecure_lab)?;
    process::forbid_core_dumps().context("core dumps can't be switched off, and they could hold keys")?;
    process::keep_memory_small();
    let sandbox = args.sandbox.unwrap_or(config.process.sandbox);
    if sandbox == SandboxMode::Off {
        tracing::warn!("THE SANDBOX IS OFF: neither system calls nor files are filtered for any process");
    }
    let identity = UnixUser::choose(config.process.user.as_deref())?;
    let common = Common::new(&config.log.level, log_format, sandbox, identity);
    let (gateway, _socket_file) = Gateway::start(args, config, configuration, common).await?;
    gateway.serve().await
}

/// Refuses what can't work on this machine, and warns of what may not be meant. The error is no
/// [`vpnd_config::ConfigError`], with which nothing starts before a person has edited the file: an
/// interface, a clock or a certificate may come later, and the service manager tries again.
fn review(config: &ServerConfig, configuration: &Configuration, insecure_lab: bool) -> Result<(), Invalid> {
    let machine = review::Machine {
        interfaces: &check::interfaces(),
        networks: &check::local_networks(),
        ports: &LocalPorts::read(),
        ipv6: sysctl::has_ipv6(&config.tunnel.name),
        now_s: wall_s(),
    };
    if configuration.is_without_ipv6() {
        tracing::warn!("IPv6 is switched off on this machine: the gateway uses IPv4 only");
    }
    for warning in config.review(&machine, insecure_lab).into_result(&config.file)? {
        tracing::warn!(line = warning.line, "{}: {}", config.file, warning.message);
    }
    Ok(())
}

/// `vpnd server --teardown`: takes back what a gateway that has ended left on this machine for its
/// next start, or every gateway of a directory of journals.
///
/// # Errors
/// If the gateway runs, or not all could be taken back.
pub async fn tear_down(args: ServerArgs) -> anyhow::Result<()> {
    process::require(Capability::NetAdmin)?;
    if let Some(journals) = &args.journal_dir {
        return machine::tear_down_all(journals).await;
    }
    let config = ServerConfig::load(&args.config)?;
    machine::tear_down(&config).await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It may come back: a service manager restarts it.
    Stopped,
    /// Ctrl-C at a terminal: end, and undo all changes.
    Interrupted,
}

/// A gateway that is up, as its privileged parent holds it.
struct Gateway {
    /// The configuration with which devices and sockets were opened.
    config: ServerConfig,
    /// The settings of its file.
    settings: Settings,
    launcher: Launcher,
    auth: RunningChild<FromAuth>,
    worker: Worker,
    kept: KeptChildren,
    certificate_in_use: CurrentCertificate,
    /// Orders of certificates.
    orders: Orders,
    machine: Machine,
}

impl Gateway {
    /// The file is to be kept until everything has ended.
    async fn start(
        args: ServerArgs,
        config: ServerConfig,
        configuration: Configuration,
        common: Common,
    ) -> anyhow::Result<(Self, SocketFile)> {
        let settings = configuration.settings();
        let installed = std::env::current_exe().context("this program can't be found")?;
        let launcher = Launcher::new(args, common, installed);
        let TlsMaterial { certificate, key } = TlsMaterial::load(&config)?;
        let (auth, to_auth, protections) = launcher.start_auth(&configuration, key, true).await?;
        let idp = Idp::start(&launcher, &configuration, &config, &auth, None).await?;
        let portal = Portal::prepare_first(&launcher, &config);
        let certificate_in_use = CurrentCertificate::new(certificate.clone(), &config.tls);
        let (admin, socket_file) = listeners::control_socket(&config.admin.socket)?;
        let metrics = config.admin.metrics.map(listeners::metrics).transpose()?;
        let mut machine = Machine::new(&config).await?;
        let listeners: Vec<OwnedFd> = [admin].into_iter().chain(metrics).collect();
        let launch = launcher.worker_launch(&config, configuration, certificate, protections)?;
        let own_addresses = OwnAddresses::new(&config)?;
        let worker = launcher.start_worker(&launch, to_auth, &listeners).await?;
        drop(launch);
        match open_devices(&config, &mut machine, worker).await {
            Ok(worker) => {
                let gateway = Self {
                    orders: Orders::new(&config),
                    worker: Worker::new(worker, listeners, own_addresses, &config),
                    config,
                    settings,
                    launcher,
                    auth: auth.at_work(),
                    kept: KeptChildren { idp, portal },
                    certificate_in_use,
                    machine,
                };
                Ok((gateway, socket_file))
            }
            Err(error) => {
                machine.abandon().await;
                Err(error)
            }
        }
    }

    async fn serve(mut self) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        service_manager::ready("clients can log in");
        let next_look = |certificate: &CurrentCertificate| Instant::now() + certificate.next_look();
        let mut look_at = next_look(&self.certificate_in_use);
        let outcome = loop {
            // It may be another certificate by now. Never later: what wakes this loop again and
            // again must not put a look off.
            look_at = look_at.min(next_look(&self.certificate_in_use));
            tokio::select! {
                () = tokio::time::sleep_until(look_at) => {
                    if !self.certificate_in_use.is_settled(&self.config.tls)
                        && let Err(error) = self.take_over_certificate().await
                    {
                        break Err(error);
                    }
                    look_at = next_look(&self.certificate_in_use);
                }
                _ = terminate.recv() => break Ok(End::Stopped),
                _ = interrupt.recv() => break Ok(End::Interrupted),
                _ = hangup.recv() => {
                    if let Err(error) = self.reconfigure().await {
                        break Err(error);
                    }
                }
                event = self.worker.next() => {
                    if let Err(error) = self.handle_worker(event).await {
                        break Err(error);
                    }
                }
                () = self.machine.disturbed() => {
                    if let Err(error) = self.put_back().await {
                        break Err(error);
                    }
                }
                event = self.orders.event() => {
                    if let Err(error) = self.handle_order(event).await {
                        break Err(error);
                    }
                }
                event = self.kept.next() => {
                    let handled = self.kept.handle(event, &mut self.orders, &self.auth, &self.worker).await;
                    if let Err(error) = handled {
                        break Err(error);
                    }
                }
                message = self.auth.receive() => break Err(match message {
                    Ok(FromAuth::Failed(why)) => ChildError::Failed(why),
                    // Only after a key or a configuration was sent.
                    Ok(FromAuth::KeyTaken | FromAuth::ConfigurationTaken) => ChildError::Unexpected(ChildRole::Auth),
                    Err(error) => error,
                }),
            }
        };
        if let Err(error) = &outcome {
            tracing::error!(%error, "the gateway can't go on");
        }
        service_manager::stopping();
        self.stop(outcome.as_ref().ok().copied()).await;
        outcome?;
        Ok(())
    }

    async fn handle_worker(&mut self, event: worker::Event) -> Result<(), ChildError> {
        match event {
            worker::Event::Message(message) => self.handle_message(message?).await,
            worker::Event::Addresses => self.worker.note_addresses().await,
            worker::Event::Forgotten => self.worker.send(&ToWorker::Forgotten, &[]).await,
        }
    }

    async fn handle_message(&mut self, message: FromWorker) -> Result<(), ChildError> {
        match message {
            FromWorker::ReadConfiguration => self.reconfigure_for_worker().await,
            FromWorker::Upgrade => self.upgrade_for_worker().await,
            FromWorker::Released(addresses) => self.worker.release(addresses),
            FromWorker::Hosts(changes) => self.worker.set_hosts(&changes, &self.machine).await,
            FromWorker::ReportFirewall => {
                self.worker.ask_for_firewall();
                self.worker.report(self.machine.firewall()).await
            }
            FromWorker::RelayKnown(here) => {
                if let Some(portal) = &mut self.kept.portal {
                    portal.relay_known(here).await;
                }
                Ok(())
            }
            FromWorker::Failed(why) => Err(ChildError::Failed(why)),
            // Only within an upgrade.
            FromWorker::HandedOver | FromWorker::HandoverFailed(_) => {
                Err(ChildError::Unexpected(ChildRole::Worker))
            }
        }
    }

    async fn handle_order(&mut self, event: acme::Event) -> Result<(), ChildError> {
        let common = self.launcher.common();
        match self.orders.handle(event, &self.config, common, self.kept.portal.as_mut()).await {
            Some(Owner::Gateway) => self.take_over_certificate().await,
            Some(Owner::Portal) => match &mut self.kept.portal {
                Some(portal) => portal.take_over_certificate(&self.auth).await,
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Puts back what another program has changed of the machine.
    async fn put_back(&mut self) -> Result<(), ChildError> {
        self.machine.put_back().await;
        self.worker.report(self.machine.firewall()).await
    }

    /// An upgrade starts processes, so a worker gets few of them.
    async fn upgrade_for_worker(&mut self) -> Result<(), ChildError> {
        if self.worker.may_upgrade() {
            return self.upgrade().await;
        }
        let reason = "there were too many upgrades within a short time; try again in 10 s".to_owned();
        self.worker.send(&ToWorker::NotUpgraded(reason), &[]).await
    }

    /// Has the worker notify the clients. What was changed on the machine stays for the next start,
    /// unless this is for good.
    async fn stop(self, end: Option<End>) {
        let reason = match end {
            Some(End::Stopped) => "SIGTERM",
            Some(End::Interrupted) => "SIGINT",
            None => "failure",
        };
        // A worker that is gone has no clients to notify.
        let _ = self.worker.send(&ToWorker::Stop(Some(reason.to_owned())), &[]).await;
        // The listeners stay open until everything has ended.
        self.worker.process.end(CHILD_END_TIMEOUT).await;
        // If it is gone, nothing is to be sent for it.
        let _ = self.auth.send(&ToAuth::Stop, &[]).await;
        self.auth.dismiss(CHILD_END_TIMEOUT).await;
        if let Some(idp) = self.kept.idp {
            idp.dismiss(CHILD_END_TIMEOUT).await;
        }
        if let Some(portal) = self.kept.portal {
            portal.dismiss(CHILD_END_TIMEOUT).await;
        }
        self.orders.dismiss(CHILD_END_TIMEOUT).await;
        match end {
            Some(End::Stopped) | None => self.machine.leave(),
            Some(End::Interrupted) => self.machine.undo().await,
        }
    }
}

/// Opens sockets and device, changes the machine, and lets the worker begin.
async fn open_devices(
    config: &ServerConfig,
    machine: &mut Machine,
    worker: StartingChild,
) -> anyhow::Result<RunningChild<FromWorker>> {
    let (group, shards) = listeners::bind_port(config)?;
    let tun = listeners::open_tun(config, shards)?;
    machine.configure(config, &tun).await?;
    let devices = Devices {
        shards: u32::try_from(shards).context("too many shards")?,
        tun: tun.offloads(),
        steering_refused: group.steering_refused.as_ref().map(ToString::to_string),
    };
    let mut descriptors: Vec<OwnedFd> = tun.into_queues().into_iter().map(OwnedFd::from).collect();
    descriptors.extend(group.into_descriptors());
    worker.send(&Begin::Devices(devices), &descriptors).await?;
    // The device goes away with the worker.
    drop(descriptors);
    let worker = worker.ready().await?;
    tracing::info!(listen = %config.server.listen, interface = %config.tunnel.name, "the gateway is up");
    Ok(worker)
}
