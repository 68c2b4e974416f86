//! Users who have logged out at their provider (OpenID Connect Back-Channel Logout 1.0).
//!
//! Invariants: who has logged out comes from idp alone, out of a token that it has verified, and
//! each token counts once, though one that the store could not follow counts again; it ends the
//! sessions and visits of its user alone, those of WireGuard devices included, which need the
//! user's login to come back. A user who logs out there again and again does not fill the audit
//! file.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::browsers::Browsers;
use super::record::Record;
use vpnd_admission::authenticator::Authenticator;
use vpnd_admission::authenticator::allowances::Allowances;
use vpnd_admission::ending;
use vpnd_admission::notices::lock;
use vpnd_config::revocation_cause::RevocationCause;
use vpnd_ipc::gateway::idp::{LoggedOut, ProviderLogout, ReadLogout};
use vpnd_ipc::gateway::portal::LoggedOutAtProvider;
use vpnd_ipc::request::Reason;
use vpnd_proto::time::Time;
use vpnd_store::{Store, StoreError, User};
use vpnd_sys::clock::{Clocks, now};

/// Time that a token is remembered: longer than it is valid.
const REMEMBERED: Duration = Duration::from_secs(15 * 60);
/// Tokens of one provider that are remembered.
const LIMIT: usize = 16_384;
/// Logouts of a user that are recorded at once, and the time for each after that.
const RECORDED: u32 = 30;
const RECORD_INTERVAL: Duration = Duration::from_secs(20);

/// The tokens that have counted, of each provider: none takes the room of another.
#[derive(Default)]
struct Seen(HashMap<String, HashMap<[u8; 32], Time>>);

impl Seen {
    /// Whether this one is new, and there is room to remember it.
    fn is_new(&mut self, source: &str, id: [u8; 32], now: Time) -> bool {
        let seen = self.0.entry(source.to_owned()).or_default();
        if seen.len() >= LIMIT {
            seen.retain(|_, at| now.since(*at) < REMEMBERED);
        }
        seen.len() < LIMIT && seen.insert(id, now).is_none()
    }

    /// Lets this one count again: the provider repeats it.
    fn forget(&mut self, source: &str, id: [u8; 32]) {
        if let Some(seen) = self.0.get_mut(source) {
            seen.remove(&id);
        }
    }
}

pub(super) struct Logouts {
    store: Arc<dyn Store>,
    authenticator: Arc<Authenticator>,
    clocks: Clocks,
    record: Arc<Record>,
    browsers: Arc<Browsers>,
    seen: Mutex<Seen>,
    /// The limit of those that are recorded.
    recorded: Mutex<Allowances>,
}

impl Logouts {
    pub(super) fn new(
        store: Arc<dyn Store>,
        authenticator: Arc<Authenticator>,
        clocks: Clocks,
        record: Arc<Record>,
        browsers: Arc<Browsers>,
    ) -> Self {
        let (seen, recorded) = (Mutex::default(), Mutex::new(Allowances::new(RECORDED, RECORD_INTERVAL)));
        Self { store, authenticator, clocks, record, browsers, seen, recorded }
    }

    /// Reads a logout token; `None` if it proves nothing, or has counted before.
    pub(super) async fn read(&self, said: LoggedOutAtProvider) -> Result<Option<ProviderLogout>, Reason> {
        let LoggedOutAtProvider { source, token, address } = said;
        let read = ReadLogout { source: source.clone(), token };
        let Some(logout) = self.authenticator.read_logout(read).await? else {
            self.record.refusals.count("logout_token");
            if self.record.refusals.admits() {
                tracing::info!(source = &*source, %address, "a logout request has no valid token");
            }
            return Ok(None);
        };
        if !lock(&self.seen).is_new(&source, logout.id.into(), now()) {
            self.record.refusals.count("logout_token");
            if self.record.refusals.admits() {
                tracing::info!(source = &*source, %address, "a logout token was sent a second time");
            }
            return Ok(None);
        }
        Ok(Some(logout))
    }

    /// Lets a logout count again that was not followed.
    pub(super) fn forget(&self, source: &str, logout: [u8; 32]) {
        lock(&self.seen).forget(source, logout);
    }

    /// Ends the sessions and visits of who has logged out.
    pub(super) fn follow(&self, source: &str, logout: &ProviderLogout) -> Result<(), StoreError> {
        let users = match &logout.who {
            LoggedOut::Subject(subject) => self.store.user_by_subject(source, subject)?.into_iter().collect(),
            LoggedOut::Session(session) => {
                self.store.users_of_provider_session(source, &(*session).into())?
            }
        };
        if users.is_empty() {
            tracing::debug!(source, "a user has logged out at a provider who was never here");
        }
        users.iter().try_for_each(|user| self.log_out(source, user))
    }

    fn log_out(&self, source: &str, user: &User) -> Result<(), StoreError> {
        let now_s = (self.clocks.wall)();
        ending::end(self.store.as_ref(), user, None, RevocationCause::Disconnected, now_s)?;
        self.store.keep_refresh_token(user.id, None)?;
        self.store.forget_provider_sessions(user.id)?;
        self.browsers.visits().end_of(user.id);
        tracing::info!(user = user.name, source, "a user has logged out at the provider: sessions end");
        if lock(&self.recorded).take(user.id, now()).is_ok() {
            self.record.add_by("logged-out", &user.name, &format!("provider {source}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
