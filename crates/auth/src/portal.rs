//! The answers to the portal process: logins of browsers, and what their users see and change.
//!
//! Invariants: the portal is not trusted. Who a browser's user is, and whether that user may still
//! come in, is decided here at each request, from the token and the store ([`browsers`]); a login
//! takes the way of a client's login, with its limits and its record; no user changes what is
//! another's.

mod at_provider;
mod browsers;
mod client_files;
mod connect;
mod credentials;
pub(crate) mod desk;
mod devices;
pub(crate) mod heard;
mod invitations;
mod logout;
mod process;
mod record;
mod refusals;
mod shared;
mod token;
mod turns;
mod visits;
mod waiting_logins;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;
use vpnd_proto::control::{ChallengeKind, List, UserName};
use vpnd_proto::session::DeviceId;

use crate::access::Access;
use crate::authenticator::{Authenticator, Entrance, Login, LoginOutcome};
use crate::notices::Membership;
use at_provider::AtProvider;
use browsers::Browsers;
pub(crate) use client_files::Offer;
use connect::Connects;
#[cfg(any(test, fuzzing))]
pub(crate) use connect::read_code;
use desk::Desk;
use devices::Devices;
pub(crate) use heard::Heard;
use process::Process;
use record::Record;
use token::Found;
use vpnd_ipc::channel::Channel;
use vpnd_ipc::gateway::auth::{Count, PortalHealth, SourceName};
use vpnd_ipc::gateway::portal::devices::{
    AddDevice, DeviceChange, DevicesQuery, OwnDevices, OwnProfile, ProfileQuery, RemoveDevice, RenewDevice,
};
use vpnd_ipc::gateway::portal::refusals::PortalRefusals;
use vpnd_ipc::gateway::portal::visits::EndVisit;
use vpnd_ipc::gateway::portal::{
    Browser, Change, EndSession, LogOut, LoginStep, MAX_FRAME, Overview, OverviewQuery, OwnChange,
    PortalAnswer, PortalApproval, PortalLogin, PortalRequest,
};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_ipc::request::{self, Answer, Reason};
use vpnd_store::audit::recorder::Recorder;
use vpnd_store::password::Password;
use vpnd_store::{LOCAL, Store, StoreError, UserId};
use vpnd_sys::clock::{Clocks, now};
use waiting_logins::{WaitingLogin, WaitingLogins};

/// Looks at logins that wait for an approval, at the same time: each lasts until there is one, or
/// for a second.
static APPROVALS: Semaphore = Semaphore::const_new(MAX_APPROVALS);
const MAX_APPROVALS: usize = 32;

/// Answers the portal.
pub(crate) struct Portal {
    store: Arc<dyn Store>,
    authenticator: Arc<Authenticator>,
    access: Arc<Access>,
    clocks: Clocks,
    record: Arc<Record>,
    process: Process,
    waiting: Mutex<WaitingLogins>,
    browsers: Arc<Browsers>,
    devices: Arc<Devices>,
    /// Whether devices whose session is over reach the login pages of providers.
    providers_in_reach: AtomicBool,
    at_provider: Mutex<AtProvider>,
    desk: Mutex<Option<Arc<Desk>>>,
    /// They outlive the rules: a reload grants no request.
    desk_rates: Mutex<desk::Rates>,
    connects: Mutex<Connects>,
    logouts: Mutex<logout::Seen>,
    fleet: Arc<Membership>,
}

impl Portal {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        authenticator: Arc<Authenticator>,
        access: Arc<Access>,
        clocks: Clocks,
        audit: Option<Recorder>,
    ) -> Self {
        let (record, fleet) = (Arc::new(Record::new(audit, clocks)), Arc::new(Membership::default()));
        let browsers = Browsers::new(
            Arc::clone(&store),
            Arc::clone(&access),
            clocks,
            Arc::clone(&record),
            Arc::clone(&fleet),
        );
        let browsers = Arc::new(browsers);
        let devices = Devices::new(
            Arc::clone(&store),
            Arc::clone(&access),
            clocks,
            Arc::clone(&record),
            Arc::clone(&browsers),
        );
        Self {
            authenticator,
            access,
            clocks,
            record,
            process: Process::default(),
            waiting: Mutex::default(),
            browsers,
            devices: Arc::new(devices),
            providers_in_reach: AtomicBool::new(false),
            at_provider: Mutex::default(),
            desk: Mutex::default(),
            desk_rates: Mutex::default(),
            connects: Mutex::default(),
            logouts: Mutex::default(),
            store,
            fleet,
        }
    }

    /// Logs the number of lines left out since the last call.
    pub(crate) fn report(&self) {
        self.record.refusals.report();
    }

    /// The users who are logged in, each once, with the generations of their visits.
    pub(crate) fn visitors(&self) -> Vec<(UserId, u64)> {
        self.browsers.users().into_iter().collect()
    }

    /// Whether it is switched on.
    pub(crate) fn switch(&self, is_on: bool) {
        self.process.switch(is_on);
    }

    /// Whether devices whose session is over reach the login pages of providers.
    pub(crate) fn reach_providers(&self, do_reach: bool) {
        self.providers_in_reach.store(do_reach, Ordering::Relaxed);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.process.is_on()
    }

    /// Its certificate expires then, seconds since 1970; 0 where it has none.
    pub(crate) fn set_certificate(&self, expires_s: u64) {
        self.process.set_certificate(expires_s);
    }

    /// How it does, if it is switched on.
    pub(crate) fn health(&self) -> Option<PortalHealth> {
        self.process.health(self.browsers.visits().count(now()), (self.clocks.wall)())
    }

    /// Counts of what was refused at it since this process began.
    pub(crate) fn refusals(&self) -> Vec<Count> {
        self.record.refusals.counts()
    }

    /// Answers a portal over this channel until that is gone. Visits are there for the next one.
    pub(crate) fn connect(self: &Arc<Self>, channel: OwnedFd) -> std::io::Result<()> {
        let channel = Channel::new(channel.into(), MAX_FRAME)?;
        let (this, permits) = (Arc::clone(self), Arc::new(Semaphore::new(self.max_requests())));
        this.process.has_come();
        tokio::spawn(async move {
            let served =
                request::serve::<PortalRequest, _>(channel.clone(), Arc::clone(&this), permits).await;
            this.process.has_gone();
            match served {
                Ok(()) => tracing::debug!("the portal has ended"),
                Err(error) => tracing::error!(%error, "the portal is lost"),
            }
            // Whatever it sends from now on does not count.
            let _ = channel.close();
        });
        Ok(())
    }

    /// From where the clients of sessions are heard.
    pub(crate) fn heard(&self) -> MutexGuard<'_, Heard> {
        self.devices.heard()
    }

    /// Users get this profile of vpnd's own client from now on, or none.
    pub(crate) fn hand_out(&self, text: Option<&str>) {
        self.devices.files().hand_out(text);
    }

    /// Users may add WireGuard devices from now on, with this in their files, or none.
    pub(crate) fn offer(&self, offer: Option<Offer>) {
        self.devices.files().offer(offer);
    }

    /// An administrator has ended the user's sessions.
    pub(crate) fn kicked(&self, user: UserId) {
        self.browsers.kicked(user);
    }

    fn decided(&self, outcome: LoginOutcome, device: DeviceId, address: IpAddr) -> LoginStep {
        let demand = |number, kind, text| {
            let token = self.waiting().add(WaitingLogin { number, device }, address, now());
            token.map_or_else(
                || {
                    self.authenticator.abandon(number, (self.clocks.wall)());
                    LoginStep::Refused(Refusal::WaitingFull.into())
                },
                |token| LoginStep::Demand { token, kind, text },
            )
        };
        match outcome {
            LoginOutcome::Granted(user) => LoginStep::LoggedIn(self.browsers.begin(&user, device, address)),
            LoginOutcome::CodeRequired(number) => demand(number, ChallengeKind::Code, None),
            LoginOutcome::Challenge(number, demanded) | LoginOutcome::Approval(number, demanded) => {
                demand(number, demanded.kind, Some(demanded.text))
            }
            LoginOutcome::Refused(refused) => {
                self.record.refusals.count(refused.refusal.portal_counter());
                LoginStep::Refused(refused)
            }
        }
    }

    fn overview(&self, browser: &Browser) -> Result<Option<Overview>, StoreError> {
        let Some(user) = self.browsers.visitor(browser)? else { return Ok(None) };
        let sessions = self.devices.sessions_of(&user)?;
        // One lock at a time: a value of this kind keeps its guard to the end of its statement.
        let left_s = self.browsers.visits().time_left(&browser.token, now()).as_secs();
        let visits = first(self.browsers.visits().of_user(user.id, &browser.token, now()));
        Ok(Some(Overview {
            user: UserName::cut(&user.name),
            source: SourceName::cut(&user.source),
            left_s,
            sessions,
            codes: self.authenticator.sets_up_codes(&user).then_some(user.totp.is_some()),
            desk: self.has_desk(&user, browser.address),
            visits,
            password: user.source == LOCAL,
        }))
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingLogins> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn from_store<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Reason> {
        let this = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&this)).await;
        let done = done.map_err(|error| Reason::cut(&error.to_string()))?;
        done.map_err(|error| Reason::cut(&error.to_string()))
    }
}

impl Answer<PortalLogin> for Portal {
    async fn answer(self: &Arc<Self>, login: PortalLogin) -> Result<LoginStep, Reason> {
        // A browser is no device that is known again.
        let (device, address) = (DeviceId(rand::random()), login.address);
        let credentials = Login {
            user: login.user.to_string(),
            password: Password::new(login.password.expose().to_owned()),
            code: None,
            certificate: None,
            source: address,
            entrance: Entrance::Portal,
            device,
        };
        let outcome = self.authenticator.log_in(credentials, (self.clocks.wall)()).await;
        Ok(self.decided(outcome, device, address))
    }
}

impl Answer<PortalAnswer> for Portal {
    async fn answer(self: &Arc<Self>, typed: PortalAnswer) -> Result<LoginStep, Reason> {
        let Browser { token, address, .. } = typed.browser;
        let found = self.waiting().find(&token, address, now());
        self.waiting().remove(&token);
        // It came too late, or from another network.
        let Found::Here(WaitingLogin { number, device }) = found else {
            return Ok(LoginStep::Refused(Refusal::Busy.into()));
        };
        let outcome = self.authenticator.answer(number, &typed.answer, device, (self.clocks.wall)()).await;
        Ok(self.decided(outcome, device, address))
    }
}

impl Answer<PortalApproval> for Portal {
    async fn answer(
        self: &Arc<Self>,
        PortalApproval(browser): PortalApproval,
    ) -> Result<Option<LoginStep>, Reason> {
        let Browser { token, address, .. } = browser;
        let found = self.waiting().find(&token, address, now());
        let Found::Here(WaitingLogin { number, device }) = found else {
            return Ok(Some(LoginStep::Refused(Refusal::Busy.into())));
        };
        // The browser looks again.
        let Ok(_permit) = APPROVALS.try_acquire() else { return Ok(None) };
        let outcome = self.authenticator.approved(number, device, (self.clocks.wall)()).await;
        Ok(outcome.map(|outcome| {
            self.waiting().remove(&token);
            self.decided(outcome, device, address)
        }))
    }
}

impl Answer<OverviewQuery> for Portal {
    async fn answer(
        self: &Arc<Self>,
        OverviewQuery(browser): OverviewQuery,
    ) -> Result<Option<Overview>, Reason> {
        self.from_store(move |portal| portal.overview(&browser)).await
    }
}

impl Answer<EndSession> for Portal {
    async fn answer(self: &Arc<Self>, request: EndSession) -> Result<Change, Reason> {
        self.from_store(move |portal| portal.devices.end_session(&request)).await
    }
}

impl Answer<PortalRefusals> for Portal {
    async fn answer(self: &Arc<Self>, refused: PortalRefusals) -> Result<(), Reason> {
        for (name, count) in refused.named() {
            self.record.refusals.count_all(name, count);
        }
        Ok(())
    }
}

impl Answer<LogOut> for Portal {
    async fn answer(self: &Arc<Self>, LogOut(browser): LogOut) -> Result<(), Reason> {
        self.from_store(move |portal| {
            let login = portal.waiting().remove(&browser.token);
            if let Some(WaitingLogin { number, .. }) = login {
                portal.authenticator.abandon(number, (portal.clocks.wall)());
            }
            portal.browsers.log_out(&browser)
        })
        .await
    }
}

impl Answer<EndVisit> for Portal {
    async fn answer(self: &Arc<Self>, end: EndVisit) -> Result<OwnChange, Reason> {
        self.from_store(move |portal| portal.browsers.log_out_of_others(&end)).await
    }
}

impl Answer<DevicesQuery> for Portal {
    async fn answer(
        self: &Arc<Self>,
        DevicesQuery(browser): DevicesQuery,
    ) -> Result<Option<OwnDevices>, Reason> {
        self.from_store(move |portal| {
            let user = portal.browsers.visitor(&browser)?;
            user.map(|user| portal.devices.devices_of(&user)).transpose()
        })
        .await
    }
}

impl Answer<RemoveDevice> for Portal {
    async fn answer(self: &Arc<Self>, request: RemoveDevice) -> Result<Change, Reason> {
        self.from_store(move |portal| portal.devices.remove_device(&request)).await
    }
}

impl Answer<RenewDevice> for Portal {
    async fn answer(self: &Arc<Self>, request: RenewDevice) -> Result<DeviceChange, Reason> {
        self.from_store(move |portal| portal.devices.renew_device(&request)).await
    }
}

impl Answer<AddDevice> for Portal {
    async fn answer(self: &Arc<Self>, request: AddDevice) -> Result<DeviceChange, Reason> {
        self.from_store(move |portal| portal.devices.add_device(&request)).await
    }
}

impl Answer<ProfileQuery> for Portal {
    async fn answer(self: &Arc<Self>, ProfileQuery(browser): ProfileQuery) -> Result<OwnProfile, Reason> {
        self.from_store(move |portal| {
            let Some(user) = portal.browsers.visitor(&browser)? else { return Ok(OwnProfile::NoVisit) };
            let is_at_provider = portal.authenticator.is_provider(&user.source);
            Ok(portal.devices.files().profile_of(&user, is_at_provider))
        })
        .await
    }
}

/// The first ones, as many as the list takes.
fn first<T, const MAX: usize>(all: impl IntoIterator<Item = T>) -> List<T, MAX> {
    List::new(all.into_iter().take(MAX).collect()).unwrap_or_default()
}
