//! The pages of the help desk and of administrators: what each may see and change.
//!
//! Invariants: who asks is the user of the browser's token, with the role that the user's groups
//! have now, or a program with a token of the API, which has a role; a request names a user, an
//! address and a reason, and no right. It counts from the configured networks alone, a change only
//! within ten minutes of a login, with a reason, on the record, and so often. A portal that was
//! taken over can do this while such a person is logged in: the limits here are what bounds it, and
//! people give no role.

mod accounts;
mod authority;
mod deeds;
mod health;
mod questions;
mod sessions;
mod views;
mod watch;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::{Portal, now};
pub(super) use authority::Rates;
use authority::{Act, admit, is_near, permit};
use views::Sought;
use vpnd_config::ServerConfig;
use vpnd_config::https_url::HttpsUrl;
use vpnd_ipc::gateway::auth::WorkerState;
use vpnd_ipc::gateway::portal::Browser;
use vpnd_ipc::gateway::portal::desk::{
    Caller, ChangeUser, Deed, DeskQuery, DeskRefusal, DeskState, FindUsers, FoundUsers, Made, Replied, Role,
    ShowUser, ShownUser,
};
use vpnd_ipc::request::{Answer, Reason};
use vpnd_store::audit::whois::Recording;
use vpnd_store::audit::{self, AuditEntry, AuditFile, Event};
use vpnd_store::{ApiToken, StoreError, User};
use watch::{Enough, Watch};

/// The rules in force, and what the worker has reported.
pub(crate) struct Desk {
    rules: vpnd_config::desk::Desk,
    recording: Recording,
    /// Where the pages are, if that is known.
    pages: Option<HttpsUrl>,
    /// The audit file.
    audit: PathBuf,
    /// Whether it is written.
    records: bool,
    watch: Watch,
}

/// The person or program that acts at the desk.
struct Actor {
    who: Who,
    role: Role,
    address: IpAddr,
    desk: Arc<Desk>,
}

enum Who {
    Person(Box<User>),
    /// The name of its token.
    Program(String),
}

impl Desk {
    pub(crate) fn of(config: &ServerConfig) -> Option<Self> {
        let portal = config.portal.as_ref()?;
        Some(Self {
            rules: portal.desk.clone(),
            pages: portal.url.clone(),
            recording: Recording::of(config),
            audit: config.server.state_dir.join(audit::FILE_NAME),
            records: config.audit.enabled,
            watch: Watch::default(),
        })
    }
}

impl Actor {
    /// An entry of the audit file about something that was done.
    fn entry(&self, event: &str, user: &str, detail: String, at_s: u64) -> AuditEntry {
        AuditEntry {
            at_s,
            event: event.to_owned(),
            user: user.to_owned(),
            source: self.address.to_string(),
            detail,
            by: self.to_string(),
        }
    }

    /// Records what is about to be done or shown; the file that has it.
    fn record(&self, event: &str, user: &str, detail: String, at_s: u64) -> Replied<AuditFile> {
        let mut file = self.desk.audit_file().ok_or(DeskRefusal::NotRecorded)?;
        let recorded = file.record(&[Event::Entry(self.entry(event, user, detail, at_s))]);
        recorded.map_err(|error| {
            tracing::error!(%error, event, user, by = %self, "it can't be recorded, and so is not done");
            DeskRefusal::NotRecorded
        })?;
        Ok(file)
    }

    /// Whether it adds users.
    fn adds_users(&self) -> bool {
        self.role == Role::Administrator
    }

    fn person(&self) -> Option<&User> {
        match &self.who {
            Who::Person(user) => Some(user),
            Who::Program(_) => None,
        }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.who {
            Who::Person(user) => write!(f, "{} on the web pages", user.name),
            Who::Program(token) => write!(f, "token {token}"),
        }
    }
}

impl Portal {
    /// These rules hold from now on; without any there is no desk.
    pub(crate) fn set_desk(&self, desk: Option<Desk>) {
        *self.desk.lock().unwrap_or_else(PoisonError::into_inner) = desk.map(Arc::new);
    }

    /// Whether the pages are open to this user there.
    pub(super) fn has_desk(&self, user: &User, address: IpAddr) -> bool {
        self.desk().is_some_and(|desk| admit(&desk.rules, user, address, true, Act::Look).is_ok())
    }

    fn desk(&self) -> Option<Arc<Desk>> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn desk_rates(&self) -> MutexGuard<'_, Rates> {
        self.desk_rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller, if they may do this now.
    fn actor(&self, caller: &Caller, act: Act) -> Result<Replied<Actor>, StoreError> {
        let actor = match caller {
            Caller::Browser(browser) => self.person(browser, act)?,
            Caller::Program { token, address } => self.program(token.expose(), *address, act)?,
        };
        match (caller, actor.as_ref().err()) {
            (_, None) | (Caller::Browser(_), Some(DeskRefusal::NoVisit)) => {}
            (Caller::Browser(_), Some(_)) => self.record.refusals.count("desk"),
            (Caller::Program { .. }, Some(_)) => self.record.refusals.count("api"),
        }
        if let Err(refusal) = &actor
            && *refusal != DeskRefusal::NoVisit
            && self.record.refusals.admits()
        {
            tracing::info!(?caller, ?refusal, "refused at the desk");
        }
        Ok(actor)
    }

    fn person(&self, browser: &Browser, act: Act) -> Result<Replied<Actor>, StoreError> {
        let Some(user) = self.browsers.visitor(browser)? else { return Ok(Err(DeskRefusal::NoVisit)) };
        let Some(desk) = self.desk() else { return Ok(Err(DeskRefusal::NoRole)) };
        let is_fresh = self.browsers.visits().is_fresh(&browser.token, now(), (self.clocks.wall)());
        let role = match admit(&desk.rules, &user, browser.address, is_fresh, act) {
            Ok(role) => role,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if !self.desk_rates().take(user.id, act, now()) {
            return Ok(Err(DeskRefusal::TooOften));
        }
        Ok(Ok(Actor { who: Who::Person(Box::new(user)), role, address: browser.address, desk }))
    }

    fn program(&self, text: &str, address: IpAddr, act: Act) -> Result<Replied<Actor>, StoreError> {
        let Some(desk) = self.desk() else { return Ok(Err(DeskRefusal::NoVisit)) };
        let Some((name, secret)) = ApiToken::parts(text) else { return Ok(Err(DeskRefusal::NoVisit)) };
        // Before the store is read: others could keep it busy.
        if !is_near(&desk.rules, address) {
            return Ok(Err(DeskRefusal::Elsewhere));
        }
        let token = self.store.api_tokens()?.into_iter().find(|token| token.name == name);
        let token = token.filter(|token| token.is_good(secret, (self.clocks.wall)()));
        let Some(ApiToken { name, role, hash, .. }) = token else {
            if self.record.refusals.admits() {
                tracing::info!(%address, "a token of the API was refused");
            }
            return Ok(Err(DeskRefusal::NoVisit));
        };
        if let Err(refusal) = permit(&desk.rules, role, address, true, act) {
            return Ok(Err(refusal));
        }
        if !self.desk_rates().take_of_program(hash, now()) {
            return Ok(Err(DeskRefusal::TooOften));
        }
        Ok(Ok(Actor { who: Who::Program(name), role, address, desk }))
    }

    /// Takes what the worker has reported; whether it is to report.
    pub(crate) fn observed(&self, state: Option<WorkerState>) -> bool {
        let Some(desk) = self.desk() else { return false };
        if let Some(state) = state {
            desk.watch.take(state, now());
        }
        desk.watch.wanted(now())
    }
}

impl Answer<DeskQuery> for Portal {
    async fn answer(self: &Arc<Self>, DeskQuery(caller): DeskQuery) -> Result<Replied<DeskState>, Reason> {
        let actor = match self.from_store(move |portal| portal.actor(&caller, Act::Look)).await? {
            Ok(actor) => actor,
            Err(refusal) => return Ok(Err(refusal)),
        };
        actor.desk.watch.want(now());
        actor.desk.watch.wait(now, Enough::One).await;
        self.from_store(move |portal| portal.desk_state(&actor).map(Ok)).await
    }
}

impl Answer<FindUsers> for Portal {
    async fn answer(self: &Arc<Self>, find: FindUsers) -> Result<Replied<FoundUsers>, Reason> {
        let sought = Sought::of(&find.text);
        self.from_store(move |portal| match portal.actor(&find.caller, sought.act())? {
            Ok(actor) => portal.find_users(&actor, &sought, &find),
            Err(refusal) => Ok(Err(refusal)),
        })
        .await
    }
}

impl Answer<ShowUser> for Portal {
    async fn answer(self: &Arc<Self>, show: ShowUser) -> Result<Replied<ShownUser>, Reason> {
        let ShowUser { caller, user } = show;
        let actor = match self.from_store(move |portal| portal.actor(&caller, Act::Look)).await? {
            Ok(actor) => actor,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let name = user.to_string();
        if self.from_store(move |portal| portal.has_session(&name)).await? {
            actor.desk.watch.want(now());
            actor.desk.watch.wait(now, Enough::One).await;
        }
        self.from_store(move |portal| portal.show_user(&actor, &user)).await
    }
}

impl Answer<ChangeUser> for Portal {
    async fn answer(self: &Arc<Self>, change: ChangeUser) -> Result<Replied<Option<Made>>, Reason> {
        let caller = change.caller.clone();
        let actor = match self.from_store(move |portal| portal.actor(&caller, Act::Change)).await? {
            Ok(actor) => actor,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let password = match change.deed {
            Deed::Add(_) if actor.adds_users() => self.authenticator.unknown_password(actor.address).await,
            _ => None,
        };
        self.from_store(move |portal| portal.change_user(&actor, &change, password)).await
    }
}

#[cfg(test)]
pub(in crate::portal) mod tests;
