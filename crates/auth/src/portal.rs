//! The answers to the portal process: logins of browsers, and what their users see and change.
//!
//! Invariants: the portal is not trusted. Who a browser's user is, and whether that user may still
//! come in, is decided here at each request, from the token and the store ([`browsers`]); no user
//! changes what is another's. What is good once is good once over all gateways of a fleet; logins
//! that wait for a second step, and what a page offers for the next, are one gateway's.

mod at_provider;
mod browsers;
mod client_files;
mod connect;
mod credentials;
pub(crate) mod desk;
mod devices;
pub(crate) mod heard;
mod logout;
mod process;
mod record;
mod refusals;
mod sign_in;
mod token;
mod visits;
mod waiting_logins;

use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard, Weak};

use tokio::sync::Semaphore;
use vpnd_proto::control::{Grant, List, UserName};

use browsers::Browsers;
pub(crate) use client_files::Offer;
use connect::ClientLogins;
#[cfg(any(test, fuzzing))]
pub(crate) use connect::read_code;
use credentials::{Credentials, invitation_hash};
use desk::{Desk, DeskAnswers};
use devices::Devices;
pub(crate) use heard::Heard;
use logout::Logouts;
use process::Process;
use record::Record;
use sign_in::SignIn;
use vpnd_admission::access::Access;
use vpnd_admission::authenticator::{Authenticator, Login, LoginOutcome};
use vpnd_admission::notices::{Membership, Notices};
use vpnd_ipc::channel::Channel;
use vpnd_ipc::gateway::auth::{
    BrowserLogin, BrowserLoginReply, Count, PortalHealth, SourceName, WorkerState,
};
use vpnd_ipc::gateway::portal::connect::{AnswerToClient, ConnectQuery, TypedCode};
use vpnd_ipc::gateway::portal::desk::sessions::{ListSessions, ListedSessions};
use vpnd_ipc::gateway::portal::desk::{
    AskWhois, ChangeUser, DeskQuery, DeskState, ExportAudit, ExportedPart, FindUsers, FoundUsers, Made,
    Replied, ShowUser, ShownUser, Whois,
};
use vpnd_ipc::gateway::portal::devices::{
    AddDevice, DevicesQuery, OwnDevices, OwnProfile, ProfileQuery, RemoveDevice, RenewDevice,
};
use vpnd_ipc::gateway::portal::invitations::{AcceptInvitation, InvitationStep, OpenInvitation};
use vpnd_ipc::gateway::portal::refusals::PortalRefusals;
use vpnd_ipc::gateway::portal::turns::{SourceNumber, TurnQuery};
use vpnd_ipc::gateway::portal::visits::EndVisit;
use vpnd_ipc::gateway::portal::{
    Browser, ChangePassword, EndSession, FinishAtProvider, LogOut, LoggedOutAtProvider, LoginStep, MAX_FRAME,
    OfferCodes, Overview, OverviewQuery, OwnChange, PortalAnswer, PortalApproval, PortalLogin, PortalRequest,
    ProviderStart, RemoveCodes, StartAtProvider, TakeCodes,
};
use vpnd_ipc::request::{self, Answer, Reason, Request};
use vpnd_store::audit::recorder::Recorder;
use vpnd_store::{LOCAL, Store, StoreError, UserId};
use vpnd_sys::clock::{Clocks, now};

/// Answers the portal.
pub(crate) struct Portal {
    process: Arc<Process>,
    browsers: Arc<Browsers>,
    sign_in: SignIn,
    logouts: Logouts,
    credentials: Credentials,
    devices: Arc<Devices>,
    client_logins: Arc<ClientLogins>,
    desk: Arc<DeskAnswers>,
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
        let store = || Arc::clone(&store);
        let auth = || Arc::clone(&authenticator);
        let access = || Arc::clone(&access);
        let record = || Arc::clone(&record);
        let fleet = || Arc::clone(&fleet);
        let browsers = Arc::new(Browsers::new(store(), access(), clocks, record(), fleet()));
        let browsers = || Arc::clone(&browsers);
        let devices = Arc::new(Devices::new(store(), access(), clocks, record(), browsers()));
        let process = Arc::new(Process::new(clocks, browsers()));
        let desk = DeskAnswers::new(
            (&store(), &access(), clocks),
            &authenticator,
            &record(),
            &fleet(),
            &browsers(),
            &devices,
            &process,
        );
        Self {
            process,
            browsers: browsers(),
            sign_in: SignIn::new(auth(), access(), clocks, record(), browsers()),
            logouts: Logouts::new(store(), auth(), clocks, record(), browsers()),
            credentials: Credentials::new(store(), auth(), access(), clocks, record(), browsers()),
            devices,
            client_logins: Arc::new(ClientLogins::new(auth(), clocks, record(), fleet(), browsers())),
            desk: Arc::new(desk),
        }
    }

    /// Logs the number of lines left out since the last call.
    pub(crate) fn report(&self) {
        self.browsers.record().refusals.report();
    }

    /// Shares visits and logins with the other gateways from now on.
    pub(crate) fn share(&self, notices: &Arc<Notices>) {
        self.browsers.fleet().join(notices);
        let browsers: Weak<Browsers> = Arc::downgrade(&self.browsers);
        notices.subscribe(browsers);
        let client_logins: Weak<ClientLogins> = Arc::downgrade(&self.client_logins);
        notices.subscribe(client_logins);
    }

    /// The users who are logged in, each once, with the generations of their visits.
    pub(crate) fn visitors(&self) -> Vec<(UserId, u64)> {
        self.browsers.users().into_iter().collect()
    }

    /// Whether it is switched on.
    pub(crate) fn switch(&self, is_on: bool) {
        self.process.switch(is_on);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.process.is_on()
    }

    /// Whether devices whose session is over reach the login pages of providers.
    pub(crate) fn reach_providers(&self, do_reach: bool) {
        self.sign_in.reach_providers(do_reach);
    }

    /// Its certificate expires then, seconds since 1970; 0 where it has none.
    pub(crate) fn set_certificate(&self, expires_s: u64) {
        self.process.set_certificate(expires_s);
    }

    /// These rules of the desk hold from now on; without any there is no desk.
    pub(crate) fn set_desk(&self, desk: Option<Desk>) {
        self.desk.set_desk(desk);
    }

    /// Users get this profile of vpnd's own client from now on, or none.
    pub(crate) fn hand_out(&self, text: Option<&str>) {
        self.devices.files().hand_out(text);
    }

    /// Users may add WireGuard devices from now on, with this in their files, or none.
    pub(crate) fn offer(&self, offer: Option<Offer>) {
        self.devices.files().offer(offer);
    }

    /// Browsers reach the pages at this address from now on.
    pub(crate) fn serve_at(&self, address: &str) {
        self.client_logins.serve_at(address);
    }

    /// Whether clients get short codes that ask for them.
    pub(crate) fn give_codes(&self, gives_codes: bool) {
        self.client_logins.give_codes(gives_codes);
    }

    /// How it does, if it is switched on.
    pub(crate) fn health(&self) -> Option<PortalHealth> {
        self.process.health()
    }

    /// Counts of what was refused at it since this process began.
    pub(crate) fn refusals(&self) -> Vec<Count> {
        self.browsers.record().refusals.counts()
    }

    /// Takes what the worker has reported for the desk; whether it is to report.
    pub(crate) fn observed(&self, state: Option<WorkerState>) -> bool {
        self.desk.observed(state)
    }

    /// From where the clients of sessions are heard.
    pub(crate) fn heard(&self) -> MutexGuard<'_, Heard> {
        self.devices.heard()
    }

    /// An administrator has ended the user's sessions.
    pub(crate) fn kicked(&self, user: UserId) {
        self.browsers.kicked(user);
    }

    /// Begins the login of a client.
    pub(crate) fn begin_in_browser(&self, login: BrowserLogin) -> BrowserLoginReply {
        self.client_logins.begin(login, self.is_on())
    }

    /// Logs in the client that shows this grant.
    pub(crate) fn finish_in_browser(&self, grant: &Grant, login: Login) -> LoginOutcome {
        self.client_logins.finish(grant, login)
    }

    /// Answers a portal over this channel until that is gone. Visits are there for the next one.
    pub(crate) fn connect(self: &Arc<Self>, channel: OwnedFd) -> std::io::Result<()> {
        let channel = Channel::new(channel.into(), MAX_FRAME)?;
        let (this, permits) = (Arc::clone(self), Arc::new(Semaphore::new(self.sign_in.max_requests())));
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
            codes: self.credentials.codes_of(&user),
            desk: self.desk.is_open_to(&user, browser.address),
            visits,
            password: user.source == LOCAL,
        }))
    }
}

/// Does `work` on a thread that may wait for the disk.
async fn from_store<P: Send + Sync + 'static, T: Send + 'static>(
    part: &Arc<P>,
    work: impl FnOnce(&P) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Reason> {
    let part = Arc::clone(part);
    let done = tokio::task::spawn_blocking(move || work(&part)).await;
    let done = done.map_err(|error| Reason::cut(&error.to_string()))?;
    done.map_err(|error| Reason::cut(&error.to_string()))
}

/// The first ones, as many as the list takes.
fn first<T, const MAX: usize>(all: impl IntoIterator<Item = T>) -> List<T, MAX> {
    List::new(all.into_iter().take(MAX).collect()).unwrap_or_default()
}

/// Has a part answer requests on a thread that may wait for the disk.
macro_rules! answered_from_store {
    ($($request:ty: $part:ident.$answer:ident;)+) => {$(
        impl Answer<$request> for Portal {
            async fn answer(
                self: &Arc<Self>,
                request: $request,
            ) -> Result<<$request as Request>::Reply, Reason> {
                from_store(self, move |portal| portal.$part.$answer(&request)).await
            }
        }
    )+};
}

answered_from_store! {
    EndVisit: browsers.log_out_of_others;
    EndSession: devices.end_session;
    RemoveDevice: devices.remove_device;
    RenewDevice: devices.renew_device;
    AddDevice: devices.add_device;
    OfferCodes: credentials.offer_codes;
    TakeCodes: credentials.take_codes;
    RemoveCodes: credentials.remove_codes;
    OpenInvitation: credentials.open_invitation;
    ConnectQuery: client_logins.question;
    AnswerToClient: client_logins.answer;
    TypedCode: client_logins.typed;
}

impl Answer<TurnQuery> for Portal {
    async fn answer(self: &Arc<Self>, login: TurnQuery) -> Result<SourceNumber, Reason> {
        Ok(self.sign_in.source_of(&login))
    }
}

impl Answer<PortalLogin> for Portal {
    async fn answer(self: &Arc<Self>, login: PortalLogin) -> Result<LoginStep, Reason> {
        Ok(self.sign_in.log_in(login).await)
    }
}

impl Answer<PortalAnswer> for Portal {
    async fn answer(self: &Arc<Self>, typed: PortalAnswer) -> Result<LoginStep, Reason> {
        Ok(self.sign_in.answer(typed).await)
    }
}

impl Answer<PortalApproval> for Portal {
    async fn answer(
        self: &Arc<Self>,
        PortalApproval(browser): PortalApproval,
    ) -> Result<Option<LoginStep>, Reason> {
        Ok(self.sign_in.approved(browser).await)
    }
}

impl Answer<StartAtProvider> for Portal {
    async fn answer(self: &Arc<Self>, start: StartAtProvider) -> Result<ProviderStart, Reason> {
        let address = start.address;
        if self.sign_in.may_be_out_of_reach(&start)
            && from_store(self, move |portal| portal.devices.is_walled(address)).await?
        {
            return Ok(ProviderStart::Walled);
        }
        Ok(self.sign_in.start_at_provider(start).await)
    }
}

impl Answer<FinishAtProvider> for Portal {
    async fn answer(self: &Arc<Self>, finish: FinishAtProvider) -> Result<LoginStep, Reason> {
        Ok(self.sign_in.finish_at_provider(finish).await)
    }
}

impl Answer<LogOut> for Portal {
    async fn answer(self: &Arc<Self>, LogOut(browser): LogOut) -> Result<(), Reason> {
        from_store(self, move |portal| {
            portal.sign_in.abandon(&browser);
            portal.browsers.log_out(&browser)
        })
        .await
    }
}

impl Answer<LoggedOutAtProvider> for Portal {
    async fn answer(self: &Arc<Self>, said: LoggedOutAtProvider) -> Result<bool, Reason> {
        let source = said.source.clone();
        let Some(logout) = self.logouts.read(said).await? else { return Ok(false) };
        let (name, id) = (source.to_string(), logout.id.into());
        let done = from_store(self, move |portal| portal.logouts.follow(&name, &logout)).await;
        if done.is_err() {
            self.logouts.forget(&source, id);
        }
        done.map(|()| true)
    }
}

impl Answer<OverviewQuery> for Portal {
    async fn answer(
        self: &Arc<Self>,
        OverviewQuery(browser): OverviewQuery,
    ) -> Result<Option<Overview>, Reason> {
        from_store(self, move |portal| portal.overview(&browser)).await
    }
}

impl Answer<DevicesQuery> for Portal {
    async fn answer(
        self: &Arc<Self>,
        DevicesQuery(browser): DevicesQuery,
    ) -> Result<Option<OwnDevices>, Reason> {
        from_store(self, move |portal| {
            let user = portal.browsers.visitor(&browser)?;
            user.map(|user| portal.devices.devices_of(&user)).transpose()
        })
        .await
    }
}

impl Answer<ProfileQuery> for Portal {
    async fn answer(self: &Arc<Self>, ProfileQuery(browser): ProfileQuery) -> Result<OwnProfile, Reason> {
        from_store(self, move |portal| {
            let Some(user) = portal.browsers.visitor(&browser)? else { return Ok(OwnProfile::NoVisit) };
            let is_at_provider = portal.sign_in.is_provider(&user.source);
            Ok(portal.devices.files().profile_of(&user, is_at_provider))
        })
        .await
    }
}

impl Answer<ChangePassword> for Portal {
    async fn answer(self: &Arc<Self>, change: ChangePassword) -> Result<OwnChange, Reason> {
        let browser = change.browser.clone();
        match from_store(self, move |portal| portal.credentials.owner_of_password(&browser)).await? {
            Ok(user) => Ok(self.credentials.change_password(change, user).await),
            Err(not) => Ok(not),
        }
    }
}

impl Answer<AcceptInvitation> for Portal {
    async fn answer(self: &Arc<Self>, accept: AcceptInvitation) -> Result<InvitationStep, Reason> {
        let Some(invitation) = invitation_hash(&accept.invitation) else { return Ok(InvitationStep::Over) };
        let invited = from_store(self, move |portal| portal.credentials.invited(&invitation)).await?;
        let Some(user) = invited else { return Ok(InvitationStep::Over) };
        Ok(self.credentials.accept_invitation(accept, invitation, user).await)
    }
}

impl Answer<DeskQuery> for Portal {
    async fn answer(self: &Arc<Self>, DeskQuery(caller): DeskQuery) -> Result<Replied<DeskState>, Reason> {
        self.desk.state(caller).await
    }
}

impl Answer<FindUsers> for Portal {
    async fn answer(self: &Arc<Self>, find: FindUsers) -> Result<Replied<FoundUsers>, Reason> {
        self.desk.find_users(find).await
    }
}

impl Answer<ShowUser> for Portal {
    async fn answer(self: &Arc<Self>, show: ShowUser) -> Result<Replied<ShownUser>, Reason> {
        self.desk.show_user(show).await
    }
}

impl Answer<ListSessions> for Portal {
    async fn answer(self: &Arc<Self>, list: ListSessions) -> Result<Replied<ListedSessions>, Reason> {
        self.desk.list_sessions(list).await
    }
}

impl Answer<ChangeUser> for Portal {
    async fn answer(self: &Arc<Self>, change: ChangeUser) -> Result<Replied<Option<Made>>, Reason> {
        self.desk.change_user(change).await
    }
}

impl Answer<AskWhois> for Portal {
    async fn answer(self: &Arc<Self>, ask: AskWhois) -> Result<Replied<Whois>, Reason> {
        self.desk.whois(ask).await
    }
}

impl Answer<ExportAudit> for Portal {
    async fn answer(self: &Arc<Self>, ask: ExportAudit) -> Result<Replied<ExportedPart>, Reason> {
        self.desk.export(ask).await
    }
}

impl Answer<PortalRefusals> for Portal {
    async fn answer(self: &Arc<Self>, refused: PortalRefusals) -> Result<(), Reason> {
        for (name, count) in refused.named() {
            self.browsers.record().refusals.count_all(name, count);
        }
        Ok(())
    }
}
