//! The client: `vpnd connect`, and what only its privileged process does.
//!
//! It asks for the password, opens devices and sockets, and changes the machine's network on the
//! worker's requests, which alone talks to the gateway ([`vpnd_ipc`]). INVARIANT: every change to
//! the machine goes through the undo journal, so that a killed client can be cleaned up after.

mod cleanup;
mod console;
mod device;
mod gateway_addresses;
mod gateway_sockets;
mod kill_switch;
mod layer;
mod limits;
mod login_page;
mod lookups;
mod network;
mod opening;
mod outer_path;
mod pace;
mod permission;
mod plan;
mod prompt;
mod state_display;
mod stop;
mod transport;
mod tunnel_dns;
mod tunnel_network;
mod user_login;
mod worker;

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context as _;
use minicbor::bytes::ByteArray;
use tokio::time::{Instant, sleep_until};
use vpnd_crypto::{Binding, Preference};
use vpnd_proto::control::{AsText, Network, SecretText};

use crate::args::{ConnectArgs, KillSwitchArgs};
use crate::messages::{
    Browse, Configure, Configured, ListenForBrowser, LookUp, Measured, OpenSocket, OpenStream, OverTcp,
    ParentRequest, Prove, Question, Renew, Reopen, SetMtu, Tell, ToWorker, UseTunnelDns, WorkerLaunch,
};
use crate::person::browser;
use crate::person::credentials::CredentialsError;
use crate::user_messages::TunnelState;
use cleanup::clean_up_after_others;
pub use cleanup::{cleanup, kill_switch_state, states};
use console::Console;
use device::Device;
use gateway_addresses::GatewayAddresses;
use gateway_sockets::GatewaySockets;
use kill_switch::{End, KillSwitch, OwnKillSwitch, Wanted, WouldCutOff, unless_stopped};
use layer::OwnLayer;
use lookups::Lookups;
use network::{NetworkSetup, TunnelOptions};
use pace::Pace;
use prompt::Prompts;
use state_display::StateDisplay;
use stop::Stop;
use tunnel_dns::DnsWatch;
use tunnel_network::{NetworkEvent, TunnelNetwork};
use user_login::UserLogin;
use vpnd_config::profile::Profile;
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::messages::{Common, SecretBytes};
use vpnd_ipc::spawn::{ChildError, StartingChild};
use vpnd_journal::JournalDirectory;
use vpnd_sys::account::UnixUser;
use vpnd_sys::logging::{self, NEWS};
use vpnd_sys::netlink::{NetworkChange, NetworkWatch};
use vpnd_sys::process::{self, Capability};
use vpnd_sys::resume_watch::ResumeWatch;
use vpnd_sys::sandbox::SandboxMode;
use vpnd_sys::service_manager;
use vpnd_sys::text::harmless;
use worker::Worker;

/// Changes of the machine's network come in bursts; the core is notified this long after the first.
const NETWORK_CHANGE_DELAY: Duration = Duration::from_millis(100);
/// Delay until routes and addresses that another program has removed are put back: it lists them
/// again and again until none is left, and is done by then.
const RENEWAL_DELAY: Duration = Duration::from_millis(5);

/// The state in `systemctl status` and `vpnd status` while the gateway does not answer.
const CONNECTING: &str = "connecting";

/// Runs `vpnd connect` until the user ends it or the gateway refuses for good.
///
/// # Errors
/// The failure and a remedy, for the terminal.
pub async fn run(mut args: ConnectArgs) -> anyhow::Result<()> {
    let console = Console::open(&mut args).await?;
    let outcome = connect(&mut args, &console).await;
    console.finish(&outcome, needs_user_action).await;
    outcome
}

async fn connect(args: &mut ConnectArgs, console: &Console) -> anyhow::Result<()> {
    let (text, mut profile) = Profile::load_text(&args.profile)?;
    process::require(Capability::NetAdmin)?;
    process::forbid_core_dumps().context("core dumps can't be switched off, and they could hold keys")?;
    let addresses = GatewayAddresses::read(&args.state_dir, &profile);
    profile.servers = addresses.servers();
    if args.sandbox == SandboxMode::Off {
        tracing::warn!(
            "THE SANDBOX IS OFF: neither system calls nor files are filtered for the network worker"
        );
    }
    let journals = clean_up_after_others(args).await?;
    let login = UserLogin::ask(args, &profile, console).await?;
    let mut stop = Stop::on_signals(console.clone().ended())?;
    match unless_stopped(async { Ok(console.turn().await) }, &mut stop).await {
        Ok(Some(interface)) => args.tun = interface,
        Ok(None) => {}
        Err(outcome) => return outcome.map(drop),
    }
    let identity = UnixUser::choose(args.user.as_deref())?;
    match login.browser {
        true => tracing::info!(target: NEWS, "connecting to {}", profile.server_name),
        false => {
            tracing::info!(target: NEWS, "connecting to {} as {}", profile.server_name, harmless(&login.user));
        }
    }
    let wanted = Wanted::new(args, &profile);
    let own = OwnKillSwitch::new(wanted.clone(), journals.try_clone()?, &profile.server_name, console);
    let kill_switch = KillSwitch::close(&wanted, login.browser, &journals, console).await?;
    let profile = (&profile, text, addresses);
    let console_and_stop = (console, stop.clone());
    let start = RunningClient::start(args, profile, login, identity, &journals, own, console_and_stop);
    match unless_stopped(start, &mut stop).await {
        Ok(client) => client.serve(kill_switch).await,
        Err(outcome) => {
            if let Some(kill_switch) = kill_switch {
                kill_switch.end(End::of(&outcome, true), console).await;
            }
            outcome.map(drop)
        }
    }
}

/// `vpnd kill-switch`: keeps a kill switch in force while no client does.
///
/// # Errors
/// If the place where it is written down can't be opened.
pub async fn keep_kill_switch(args: &KillSwitchArgs) -> anyhow::Result<()> {
    kill_switch::keep(args).await
}

/// Whether `error`, of [`run`], is that the gateway was out of reach beyond the user's limit.
#[must_use]
pub fn gave_up(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<ChildError>(), Some(ChildError::Unreached(_)))
}

/// Whether a person must do something about `error`, of [`run`], before another attempt.
#[must_use]
pub fn needs_user_action(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<ChildError>(), Some(ChildError::Refused(_)))
        || error.is::<CredentialsError>()
        || error.is::<WouldCutOff>()
}

/// A running client, as its privileged parent holds it.
struct RunningClient {
    worker: Worker,
    network: TunnelNetwork,
    sockets: GatewaySockets,
    device: Device,
    stop: Stop,
    kill_switch: OwnKillSwitch,
    prompts: Prompts,
    /// The gateway's settings that were refused last, which the worker requests again.
    refused: Option<Network>,
    /// Given up last, with the tunnel's layer: by then nothing of this tunnel is left.
    display: StateDisplay,
}

impl RunningClient {
    /// Opens everything that the client needs; nothing of the machine's network is changed yet.
    async fn start(
        args: &ConnectArgs,
        (profile, text, addresses): (&Profile, zeroize::Zeroizing<String>, GatewayAddresses),
        UserLogin { user, password, browser }: UserLogin,
        identity: Option<UnixUser>,
        journals: &JournalDirectory,
        kill_switch: OwnKillSwitch,
        (console, stop): (&Console, Stop),
    ) -> anyhow::Result<Self> {
        let layer = OwnLayer::take(journals)?;
        let device = Device::take(&args.state_dir, &user, &profile.server_name)?;
        let lanes = args.lanes.map_or(profile.lanes, usize::from);
        let (log_filter, log_format) = logging::for_person(args.log_format, args.verbose);
        let launch = WorkerLaunch {
            common: Common::new(log_filter, log_format, args.sandbox, identity),
            profile: SecretBytes(zeroize::Zeroizing::new(text.as_bytes().to_vec())),
            file: args.profile.display().to_string(),
            password: SecretText::new(password.as_str())?,
            device: device.key().public().into(),
            lanes: u32::try_from(lanes).context("too many lanes")?,
            suite: args.suite.map(|suite| suite.to_string()),
            backend: (args.backend != Preference::Auto).then(|| args.backend.to_string()),
            insecure_lab: args.insecure_lab,
            give_up_s: args.give_up,
            copy_dscp: args.copy_dscp || profile.copy_dscp,
            user,
            servers: profile.servers.iter().map(ToString::to_string).collect(),
            weights: addresses.weights().to_vec(),
            browser,
            machine: browser::machine(),
            short_code: !args.has_screen,
        };
        let lookups = Lookups::new(
            launch.common.clone(),
            profile.servers.clone(),
            profile.proxy.as_ref().map(|proxy| proxy.server.clone()),
            layer.layer().mark(),
        );
        let lookup_user = launch.common.identity.as_ref().map(UnixUser::uid);
        let mut worker = StartingChild::start(ChildRole::Client)?;
        let sent = worker.send(&launch, &[]).await;
        drop(launch);
        // If the worker has ended, this error has the reason, and `sent` a closed pipe alone.
        let protections = worker.prepared().await?;
        sent?;
        tracing::debug!(?protections, "the network worker has given up its privileges");
        let tun = opening::open_tun(args, profile, lanes).await?;
        let (interface, interface_index) = (tun.name().to_owned(), tun.index());
        let options = TunnelOptions {
            routes: profile.routes.clone(),
            set_routes: !args.no_routes,
            dns: profile.dns && !args.no_dns,
            local_network: profile.local_network,
            lookups: lookup_user,
        };
        let (worker, sockets) = opening::begin(worker, tun, profile, lanes, layer.layer()).await?;
        let setup =
            NetworkSetup::new(journals, &interface, interface_index, layer.layer(), options, stop.clone())?;
        Ok(Self {
            worker: Worker::new(worker),
            network: TunnelNetwork::new(setup, lookups, addresses, stop.clone()),
            sockets: GatewaySockets::new(profile, sockets, layer.layer().mark(), interface_index),
            device,
            stop,
            kill_switch,
            prompts: Prompts::new(console.clone()),
            refused: None,
            display: StateDisplay::new(profile, interface, console.clone(), layer),
        })
    }

    /// Carries out the worker's requests until one of the two ends; then everything is undone.
    async fn serve(mut self, kill_switch: Option<KillSwitch>) -> anyhow::Result<()> {
        self.kill_switch.hold(kill_switch);
        let outcome = self.work().await;
        service_manager::stopping();
        self.worker.stop(outcome.as_ref().map_or("failure", |reason| reason)).await;
        let is_undone = self.network.undo().await;
        // Last: nothing of the tunnel is left by now.
        self.kill_switch.end(End::of(&outcome, is_undone)).await;
        outcome.map(drop)
    }

    /// Returns the reason of an end in order.
    async fn work(&mut self) -> anyhow::Result<&'static str> {
        let mut watch = NetworkWatch::open()?;
        let mut recheck_at: Option<Instant> = None;
        let mut pace = Pace::new();
        let mut resume = ResumeWatch::open().ok();
        let mut dns_watch = DnsWatch::open(self.network.interface_index());
        service_manager::ready(CONNECTING);
        self.display.note(TunnelState::Connecting);
        loop {
            tokio::select! {
                name = self.stop.asked_for() => return Ok(name),
                request = self.worker.requested() => {
                    let (number, request) = request?;
                    let is_retry = self.is_retry(&request);
                    self.handle_request(number, request).await?;
                    // Settings that are refused once more change nothing.
                    if !is_retry || self.refused.is_none() {
                        pace.sign();
                    }
                }
                event = self.network.event() => match event {
                    NetworkEvent::LookedUp(number, reply) => {
                        self.network.end_lookups().await;
                        self.worker.send(&ToWorker::reply::<LookUp>(number, reply)).await?;
                    }
                    NetworkEvent::GuardDisturbed => {
                        pace.sign();
                        pace.within(RENEWAL_DELAY);
                    }
                },
                (number, typed) = self.prompts.typed() => {
                    self.worker.send(&ToWorker::reply::<Question>(number, Ok(typed))).await?;
                }
                Some(change) = watch.next() => {
                    pace.sign();
                    if self.network.is_foreign(change) {
                        recheck_at.get_or_insert(Instant::now() + NETWORK_CHANGE_DELAY);
                    } else {
                        let is_rule = change == NetworkChange::RuleRemoved;
                        let delay = if is_rule { Duration::ZERO } else { RENEWAL_DELAY };
                        pace.within(delay);
                    }
                }
                () = resumed(&mut resume) => {
                    pace.sign();
                    self.worker.send(&ToWorker::NetworkChanged).await?;
                }
                () = self.display.console().report_requested() => self.worker.send(&ToWorker::Measure).await?,
                () = dns_watch.due() => self.network.check_dns(&mut dns_watch).await,
                () = pace.due() => {
                    self.network.end_lookups().await;
                    if !self.follow().await || self.network.is_looking_up() {
                        pace.sign();
                    }
                }
                () = sleep_until(recheck_at.unwrap_or_else(Instant::now)), if recheck_at.is_some() => {
                    recheck_at = None;
                    self.follow().await;
                    if self.sockets.have_other_path(self.network.netlink()).await {
                        tracing::info!("the machine's network changed");
                        self.display.look_for_login_page();
                        self.worker.send(&ToWorker::NetworkChanged).await?;
                    }
                }
            }
        }
    }

    /// Brings kill switch and network up to date; see [`TunnelNetwork::follow`].
    async fn follow(&mut self) -> bool {
        self.kill_switch.follow(self.network.interface_index()).await;
        self.network.follow().await
    }

    /// Starts a lookup, which passes the kill switch if one is on.
    async fn start_lookup(&mut self, number: u64, server: u32) -> Result<(), String> {
        self.network.start_lookup(number, server, self.kill_switch.is_on()).await
    }

    /// Does one thing for the worker and replies to it.
    async fn handle_request(&mut self, number: u64, request: ParentRequest) -> Result<(), ChildError> {
        if !self.worker.allows(number, &request).await? {
            return Ok(());
        }
        let mut descriptors = Vec::new();
        let reply = match request {
            ParentRequest::Socket(OpenSocket(AsText(gateway))) => {
                let opened = self.sockets.open(self.network.netlink(), gateway).await;
                ToWorker::reply::<OpenSocket>(number, opened.map(|socket| descriptors.push(socket)))
            }
            ParentRequest::Stream(OpenStream(AsText(gateway))) => {
                let opened = self.sockets.open_stream(self.network.netlink(), gateway).await;
                ToWorker::reply::<OpenStream>(number, opened.map(|opened| descriptors.extend(opened)))
            }
            ParentRequest::OverTcp(OverTcp(is_tcp)) => {
                self.display.note_transport(is_tcp);
                ToWorker::reply::<OverTcp>(number, Ok(()))
            }
            ParentRequest::Reopen(Reopen(lanes)) => {
                ToWorker::reply::<Reopen>(number, self.sockets.reopen_lanes(lanes))
            }
            ParentRequest::Addresses(LookUp(server)) => {
                let Err(why) = self.start_lookup(number, server).await else { return Ok(()) };
                ToWorker::reply::<LookUp>(number, Err(why))
            }
            ParentRequest::UseTunnelDns(UseTunnelDns(tunnel)) => {
                ToWorker::reply::<UseTunnelDns>(number, self.use_tunnel_dns(tunnel).await)
            }
            ParentRequest::Configure(Configure(network)) => {
                let outcome = self.configure(&network).await?;
                if self.stop.is_asked_for() {
                    // The worker is about to be stopped, and needs no reply.
                    return Ok(());
                }
                self.display.note_settings(outcome.as_ref().err().map(String::as_str));
                self.connected(&outcome);
                ToWorker::reply::<Configure>(number, self.configured(&network, outcome))
            }
            ParentRequest::Mtu(SetMtu(mtu)) => {
                ToWorker::reply::<SetMtu>(number, self.network.set_mtu(mtu).await)
            }
            ParentRequest::Ask(question) => match self.prompts.ask(number, question) {
                Some(displaced) => ToWorker::reply::<Question>(displaced, Ok(None)),
                None => return Ok(()),
            },
            ParentRequest::Prove(Prove(binding)) => ToWorker::reply::<Prove>(number, Ok(self.prove(binding))),
            ParentRequest::Listen(ListenForBrowser) => {
                let opened = browser::listener().map(|(listener, port)| {
                    descriptors.push(OwnedFd::from(listener));
                    port
                });
                ToWorker::reply::<ListenForBrowser>(number, opened.map_err(|error| error.to_string()))
            }
            ParentRequest::Browse(page) => {
                ToWorker::reply::<Browse>(number, self.display.console().browse(&page))
            }
            ParentRequest::Tell(Tell(text)) => {
                self.display.console().tell(&text);
                ToWorker::reply::<Tell>(number, Ok(()))
            }
            ParentRequest::Measured(measured) => {
                self.display.report(measured, || self.network.in_force());
                ToWorker::reply::<Measured>(number, Ok(()))
            }
            ParentRequest::Renew(Renew(renewal)) => {
                ToWorker::reply::<Renew>(number, self.network.renew(&renewal))
            }
        };
        self.worker.send_with(&reply, &descriptors).await
    }

    /// Whether it requests settings that were refused just now.
    fn is_retry(&self, request: &ParentRequest) -> bool {
        let ParentRequest::Configure(Configure(network)) = request else { return false };
        self.refused.as_ref() == Some(network)
    }

    /// Puts the gateway's settings in force, and before them the kill switch that it requires. The
    /// reply is the reason if that can't be.
    ///
    /// # Errors
    /// [`ChildError::Refused`] if this machine can't have the kill switch, [`ChildError::Failed`]
    /// if it can't have the settings; unless the end of the client would open a tunnel for
    /// everything.
    async fn configure(&mut self, network: &Network) -> Result<Result<(), String>, ChildError> {
        let outcome = match self.kill_switch.meet_requirement(network.kill_switch).await {
            Err(ChildError::Refused(reason)) if self.network.is_full() => Err(reason),
            met => {
                met?;
                self.network.apply(network).await?
            }
        };
        self.refused = outcome.is_err().then(|| network.clone());
        Ok(outcome)
    }

    /// The reply to settings with this outcome.
    fn configured(&self, network: &Network, outcome: Result<(), String>) -> Result<Configured, String> {
        match outcome {
            Err(reason) if self.kill_switch.awaits_person(network.kill_switch) => {
                Ok(Configured::Undecided(reason))
            }
            outcome => outcome.map(|()| Configured::InForce),
        }
    }

    /// Has the machine use the tunnel's DNS servers, as while the tunnel leads somewhere, or its
    /// own.
    async fn use_tunnel_dns(&mut self, tunnel: bool) -> Result<(), String> {
        if !tunnel {
            self.display.note(TunnelState::Connecting);
        }
        let outcome = self.network.use_tunnel_dns(tunnel).await;
        if tunnel {
            self.connected(&outcome);
        }
        outcome
    }

    /// After the last request of a connection's set-up: if it succeeded, the client is connected.
    fn connected(&mut self, outcome: &Result<(), String>) {
        if outcome.is_ok() {
            self.display.note(TunnelState::Connected);
        }
    }

    /// The key stays here, so an attacker in the worker can use it only while the client runs, and
    /// only to prove a connection.
    fn prove(&self, binding: ByteArray<32>) -> ByteArray<64> {
        self.device.key().sign(&Binding::new(binding.into())).into()
    }
}

/// Waits until the machine wakes from suspend; never returns if the kernel does not report that.
async fn resumed(watch: &mut Option<ResumeWatch>) {
    if let Some(watch) = watch
        && watch.resumed().await.is_ok()
    {
        return;
    }
    *watch = None;
    std::future::pending().await
}
