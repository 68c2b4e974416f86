//! The callers of the desk, and what they may do now.
//!
//! INVARIANT: who asks is the user of the browser's token, with the role that the user's groups
//! have now, or a program with a token of the API, which has a role.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use super::Desk;
use super::actor::{Actor, Who};
use super::authority::{Act, Rates, admit, is_near, permit};
use crate::portal::browsers::Browsers;
use crate::portal::record::Record;
use vpnd_admission::notices::lock;
use vpnd_ipc::gateway::auth::WorkerState;
use vpnd_ipc::gateway::portal::Browser;
use vpnd_ipc::gateway::portal::desk::{Caller, DeskRefusal, Replied};
use vpnd_store::{ApiToken, Store, StoreError, User};
use vpnd_sys::clock::{Clocks, now};

pub(super) struct Callers {
    store: Arc<dyn Store>,
    clocks: Clocks,
    record: Arc<Record>,
    browsers: Arc<Browsers>,
    desk: Mutex<Option<Arc<Desk>>>,
    /// They outlive the rules: a reload grants no request.
    rates: Mutex<Rates>,
}

impl Callers {
    pub(super) fn new(
        store: Arc<dyn Store>,
        clocks: Clocks,
        record: Arc<Record>,
        browsers: Arc<Browsers>,
    ) -> Self {
        Self { store, clocks, record, browsers, desk: Mutex::default(), rates: Mutex::default() }
    }

    /// These rules hold from now on; without any there is no desk.
    pub(super) fn set_desk(&self, desk: Option<Desk>) {
        *lock(&self.desk) = desk.map(Arc::new);
    }

    pub(super) fn desk(&self) -> Option<Arc<Desk>> {
        lock(&self.desk).clone()
    }

    /// Whether the pages are open to this user there.
    pub(super) fn are_let_in(&self, user: &User, address: IpAddr) -> bool {
        self.desk().is_some_and(|desk| admit(&desk.rules, user, address, true, Act::Look).is_ok())
    }

    /// The caller, if they may do this now.
    pub(super) fn actor(&self, caller: &Caller, act: Act) -> Result<Replied<Actor>, StoreError> {
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
        if !lock(&self.rates).take(user.id, act, now()) {
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
        if !lock(&self.rates).take_of_program(hash, now()) {
            return Ok(Err(DeskRefusal::TooOften));
        }
        Ok(Ok(Actor { who: Who::Program(name), role, address, desk }))
    }

    /// Takes what the worker has reported; whether it is to report.
    pub(super) fn observed(&self, state: Option<WorkerState>) -> bool {
        let Some(desk) = self.desk() else { return false };
        if let Some(state) = state {
            desk.watch.take(state, now());
        }
        desk.watch.wanted(now())
    }
}
