//! The answers to requests of the desk's pages and of programs.

use std::net::IpAddr;
use std::sync::Arc;

use super::Desk;
use super::actor::Actor;
use super::authority::Act;
use super::callers::Callers;
use super::deeds::Deeds;
use super::health::Health;
use super::questions::Questions;
use super::sessions::Sessions;
use super::views::{Sought, Views};
use super::watch::Enough;
use crate::portal::browsers::Browsers;
use crate::portal::devices::Devices;
use crate::portal::from_store;
use crate::portal::process::Process;
use crate::portal::record::Record;
use vpnd_admission::access::Access;
use vpnd_admission::authenticator::Authenticator;
use vpnd_admission::notices::Membership;
use vpnd_ipc::gateway::auth::WorkerState;
use vpnd_ipc::gateway::portal::desk::sessions::{ListSessions, ListedSessions};
use vpnd_ipc::gateway::portal::desk::{
    AskWhois, Caller, ChangeUser, Deed, DeskState, ExportAudit, ExportedPart, FindUsers, FoundUsers, Made,
    Replied, ShowUser, ShownUser, Whois,
};
use vpnd_ipc::request::Reason;
use vpnd_store::{Store, User};
use vpnd_sys::clock::{Clocks, now};

pub(in crate::portal) struct DeskAnswers {
    pub(super) callers: Callers,
    health: Health,
    views: Views,
    sessions: Sessions,
    deeds: Deeds,
    questions: Questions,
}

impl DeskAnswers {
    pub(in crate::portal) fn new(
        (store, access, clocks): (&Arc<dyn Store>, &Arc<Access>, Clocks),
        authenticator: &Arc<Authenticator>,
        record: &Arc<Record>,
        fleet: &Arc<Membership>,
        browsers: &Arc<Browsers>,
        devices: &Arc<Devices>,
        process: &Arc<Process>,
    ) -> Self {
        let callers = Callers::new(Arc::clone(store), clocks, Arc::clone(record), Arc::clone(browsers));
        let health = Health {
            store: Arc::clone(store),
            authenticator: Arc::clone(authenticator),
            access: Arc::clone(access),
            clocks,
            record: Arc::clone(record),
            fleet: Arc::clone(fleet),
            process: Arc::clone(process),
        };
        let views = Views {
            store: Arc::clone(store),
            authenticator: Arc::clone(authenticator),
            access: Arc::clone(access),
            clocks,
            devices: Arc::clone(devices),
        };
        let sessions = Sessions {
            store: Arc::clone(store),
            access: Arc::clone(access),
            clocks,
            devices: Arc::clone(devices),
        };
        let deeds = Deeds {
            store: Arc::clone(store),
            authenticator: Arc::clone(authenticator),
            access: Arc::clone(access),
            clocks,
            record: Arc::clone(record),
            fleet: Arc::clone(fleet),
            browsers: Arc::clone(browsers),
            devices: Arc::clone(devices),
        };
        let questions = Questions { store: Arc::clone(store), clocks, fleet: Arc::clone(fleet) };
        Self { callers, health, views, sessions, deeds, questions }
    }

    /// These rules hold from now on; without any there is no desk.
    pub(in crate::portal) fn set_desk(&self, desk: Option<Desk>) {
        self.callers.set_desk(desk);
    }

    /// Whether the pages are open to this user there.
    pub(in crate::portal) fn is_open_to(&self, user: &User, address: IpAddr) -> bool {
        self.callers.are_let_in(user, address)
    }

    /// Takes what the worker has reported; whether it is to report.
    pub(in crate::portal) fn observed(&self, state: Option<WorkerState>) -> bool {
        self.callers.observed(state)
    }

    async fn actor(self: &Arc<Self>, caller: Caller, act: Act) -> Result<Replied<Actor>, Reason> {
        from_store(self, move |desk| desk.callers.actor(&caller, act)).await
    }

    pub(in crate::portal) async fn state(
        self: &Arc<Self>,
        caller: Caller,
    ) -> Result<Replied<DeskState>, Reason> {
        let actor = match self.actor(caller, Act::Look).await? {
            Ok(actor) => actor,
            Err(refusal) => return Ok(Err(refusal)),
        };
        await_reports(&actor, Enough::One).await;
        from_store(self, move |desk| desk.health.state(&actor).map(Ok)).await
    }

    pub(in crate::portal) async fn find_users(
        self: &Arc<Self>,
        find: FindUsers,
    ) -> Result<Replied<FoundUsers>, Reason> {
        let sought = Sought::of(&find.text);
        from_store(self, move |desk| match desk.callers.actor(&find.caller, sought.act())? {
            Ok(actor) => desk.views.find_users(&actor, &sought, &find),
            Err(refusal) => Ok(Err(refusal)),
        })
        .await
    }

    pub(in crate::portal) async fn show_user(
        self: &Arc<Self>,
        show: ShowUser,
    ) -> Result<Replied<ShownUser>, Reason> {
        let ShowUser { caller, user } = show;
        let actor = match self.actor(caller, Act::Look).await? {
            Ok(actor) => actor,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let name = user.to_string();
        if from_store(self, move |desk| desk.views.has_session(&name)).await? {
            await_reports(&actor, Enough::One).await;
        }
        from_store(self, move |desk| desk.views.show_user(&actor, &user)).await
    }

    pub(in crate::portal) async fn list_sessions(
        self: &Arc<Self>,
        list: ListSessions,
    ) -> Result<Replied<ListedSessions>, Reason> {
        let actor = match self.actor(list.caller.clone(), Act::Look).await? {
            Ok(actor) => actor,
            Err(refusal) => return Ok(Err(refusal)),
        };
        await_reports(&actor, Enough::Two).await;
        from_store(self, move |desk| desk.sessions.list(&actor.desk, &list).map(Ok)).await
    }

    pub(in crate::portal) async fn change_user(
        self: &Arc<Self>,
        change: ChangeUser,
    ) -> Result<Replied<Option<Made>>, Reason> {
        let actor = match self.actor(change.caller.clone(), Act::Change).await? {
            Ok(actor) => actor,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let password = match change.deed {
            Deed::Add(_) if actor.adds_users() => self.deeds.unknown_password(&actor).await,
            _ => None,
        };
        from_store(self, move |desk| desk.deeds.change_user(&actor, &change, password)).await
    }

    pub(in crate::portal) async fn whois(self: &Arc<Self>, ask: AskWhois) -> Result<Replied<Whois>, Reason> {
        from_store(self, move |desk| match desk.callers.actor(&ask.caller, Act::Ask)? {
            Ok(actor) => Ok(desk.questions.whois(&actor, &ask)),
            Err(refusal) => Ok(Err(refusal)),
        })
        .await
    }

    pub(in crate::portal) async fn export(
        self: &Arc<Self>,
        ask: ExportAudit,
    ) -> Result<Replied<ExportedPart>, Reason> {
        from_store(self, move |desk| match desk.callers.actor(&ask.caller, Act::Ask)? {
            Ok(actor) => Ok(desk.questions.export(&actor, &ask)),
            Err(refusal) => Ok(Err(refusal)),
        })
        .await
    }
}

/// Has the worker report, and waits a moment for that.
async fn await_reports(actor: &Actor, enough: Enough) {
    actor.desk.watch.want(now());
    actor.desk.watch.wait(now, enough).await;
}
