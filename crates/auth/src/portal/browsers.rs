//! The browsers whose users have logged in.
//!
//! Invariants: who a browser's user is, and whether that user may still come in, is decided here at
//! each request, from the token and the store. A revocation of the user ends the visit, whatever it
//! was for, but for one that the visit itself has caused. A visit without a one-time code ends when
//! the user has codes: an attacker with the password alone could replace them. To log out other
//! browsers takes a login of the last ten minutes, or a stolen one could keep its owner out.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use super::record::Record;
use super::token::{Found, VisitNumber};
use super::visits::Visits;
use vpnd_admission::access::{Access, NotAdmitted};
use vpnd_admission::authenticator::{Authenticated, Visit};
use vpnd_admission::notices::{Membership, Notice, Subscriber, lock};
use vpnd_config::factor::Requirement;
use vpnd_ipc::gateway::portal::visits::EndVisit;
use vpnd_ipc::gateway::portal::{Browser, OwnChange, Token};
use vpnd_proto::session::DeviceId;
use vpnd_store::{Store, StoreError, User, UserId};
use vpnd_sys::clock::{Clocks, now};

pub(super) struct Browsers {
    store: Arc<dyn Store>,
    access: Arc<Access>,
    clocks: Clocks,
    record: Arc<Record>,
    fleet: Arc<Membership>,
    visits: Mutex<Visits>,
}

impl Browsers {
    pub(super) fn new(
        store: Arc<dyn Store>,
        access: Arc<Access>,
        clocks: Clocks,
        record: Arc<Record>,
        fleet: Arc<Membership>,
    ) -> Self {
        Self { store, access, clocks, record, fleet, visits: Mutex::default() }
    }

    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    pub(super) fn fleet(&self) -> &Membership {
        &self.fleet
    }

    pub(super) fn visits(&self) -> MutexGuard<'_, Visits> {
        lock(&self.visits)
    }

    /// The users who are logged in, each once, with the generations of their visits.
    pub(super) fn users(&self) -> HashSet<(UserId, u64)> {
        self.visits().users(now())
    }

    /// A user has logged in; the token for the browser.
    pub(super) fn begin(&self, user: &Authenticated, device: DeviceId, address: IpAddr) -> Token {
        self.record.add("portal-login", &user.name, address, "");
        let visit = Visit::of(user, device, (self.clocks.wall)());
        let token = self.visits().begin(visit, address, now());
        self.fleet.tell_soon();
        token
    }

    /// The user whose browser this is, if there is one who may still come in.
    pub(super) fn visitor(&self, browser: &Browser) -> Result<Option<User>, StoreError> {
        let find = || self.visits().visit(&browser.token, browser.address, now());
        let found = match find() {
            Found::Nothing if self.fleet.catch_up()? => find(),
            found => found,
        };
        let (visit, is_here) = match found {
            Found::Here(visit) => (visit, true),
            Found::Elsewhere(visit) => (visit, false),
            Found::Over(_) | Found::Nothing => return Ok(None),
        };
        let user = self.store.user_by_id(visit.user)?;
        if let (Some(user), false) = (&user, is_here) {
            if self.record.refusals.admits() {
                tracing::info!(user = user.name, address = %browser.address, "a visit of the portal ended: its cookie came from another network");
            }
            self.record.refusals.count("cookie");
            self.record.add("portal-ended", &user.name, browser.address, "another-network");
            return Ok(None);
        }
        self.visits().saw(browser);
        let may_come = |user: &User| {
            user.enabled
                && !user.has_expired((self.clocks.wall)())
                && user.generation == visit.generation
                && (user.totp.is_none() || visit.factors.missing(&[Requirement::OneTimeCode]).is_none())
                && self.access.admit(user, visit.factors).is_ok()
        };
        let user = user.filter(may_come);
        if user.is_none() {
            self.visits().end(&browser.token);
        }
        Ok(user)
    }

    /// The browser's user and visit, if the login was just now, and the user's access profile takes
    /// one of that age: a grant is worth a login.
    pub(super) fn just_logged_in(
        &self,
        browser: &Browser,
    ) -> Result<Option<(User, VisitNumber)>, StoreError> {
        let Some(user) = self.visitor(browser)? else { return Ok(None) };
        let mut visits = self.visits();
        let is_recent = visits.is_recent(&browser.token, now());
        let Found::Here(visit) = visits.visit(&browser.token, browser.address, now()) else {
            return Ok(None);
        };
        let Some(number) = visits.number(&browser.token) else { return Ok(None) };
        drop(visits);
        let (auth_time_s, now_s) = (visit.login.auth_time_s, (self.clocks.wall)());
        let admitted = self.access.admit_login(&user, visit.factors, auth_time_s, now_s);
        // Any other reason is the login's to say.
        let is_new = !matches!(admitted, Err(NotAdmitted::OldLogin));
        Ok((is_recent && is_new).then_some((user, number)))
    }

    /// The user of this browser logs out.
    pub(super) fn log_out(&self, browser: &Browser) -> Result<(), StoreError> {
        let visit = self.visits().end(&browser.token);
        let user = visit.map(|visit| self.store.user_by_id(visit.user)).transpose()?.flatten();
        if let Some(user) = user {
            self.record.add("portal-logout", &user.name, browser.address, "");
        }
        Ok(())
    }

    /// The user of this browser logs out of another one, or of all others.
    pub(super) fn log_out_of_others(&self, end: &EndVisit) -> Result<OwnChange, StoreError> {
        let EndVisit { browser, visit } = end;
        let Some(user) = self.visitor(browser)? else { return Ok(OwnChange::NoVisit) };
        let mut visits = self.visits();
        if !visits.is_recent(&browser.token, now()) {
            return Ok(OwnChange::LogInAgain);
        }
        let ended = match visit {
            Some(number) => usize::from(visits.end_one(user.id, (*number).into())),
            None => visits.end_others(user.id, &browser.token),
        };
        drop(visits);
        if ended > 0 {
            self.record.add("portal-ended", &user.name, browser.address, &format!("by-user {ended}"));
        }
        // A visit that is not there is over as well.
        Ok(OwnChange::Done)
    }

    /// An administrator has ended the user's sessions.
    pub(super) fn kicked(&self, user: UserId) {
        let ended = self.visits().end_of(user);
        if ended > 0 {
            tracing::info!(visits = ended, "visits of the portal ended with a session");
        }
    }

    /// The browser's own request has revoked something of its user, which is no reason to end the
    /// visit. Another revocation at the same moment is, and ends it.
    pub(super) fn has_revoked(&self, browser: &Browser, before: u64) {
        self.visits().set_generation(&browser.token, before + 1);
    }
}

impl Subscriber for Browsers {
    fn learn(&self, notice: &Notice) {
        if let Notice::Visit(hash, shared) = notice {
            let now_s = (self.clocks.steady)();
            self.visits().learn((*hash).into(), shared.as_ref(), now(), now_s);
        }
    }

    fn made(&self) -> Vec<Notice> {
        let made = self.visits().made(now(), (self.clocks.steady)()).into_iter();
        made.map(|(hash, shared)| Notice::Visit(hash.into(), shared)).collect()
    }

    fn has_missed(&self) {
        self.visits().forget();
    }
}
