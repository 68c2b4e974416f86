//! Refresh tokens of users of OpenID providers, by which these are asked about users between
//! logins.
//!
//! Invariants: a token is in the store, sealed, and on its way to idp, and nowhere else; the one
//! that a provider gives in place of another is kept before anything else becomes of the answer,
//! unless a login or a logout has come in between. A token may be good once: a user is asked about
//! once at a time, and a token that was sent without an answer is perhaps used up, so that its
//! refusal says nothing of the user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Mutex as AsyncMutex;

use super::sources::ExternalSource;
use super::token_seal::TokenSeal;
use crate::notices::lock;
use vpnd_ipc::gateway::idp::RefreshToken;
use vpnd_store::{RefreshToken as Sealed, Store, StoreError, UserId};

pub(super) struct RefreshTokens {
    store: Arc<dyn Store>,
    seal: TokenSeal,
    asking: Asking,
}

impl RefreshTokens {
    pub(super) fn new(store: Arc<dyn Store>, seal: TokenSeal) -> Self {
        Self { store, seal, asking: Asking::default() }
    }

    /// The turn to ask about a user, which holds the token that was sent last without an answer.
    pub(super) fn turn_of(&self, user: UserId) -> Unanswered {
        self.asking.of(user)
    }

    /// The turn is over.
    pub(super) fn leave(&self, user: UserId, turn: Unanswered) {
        self.asking.leave(user, turn);
    }

    /// The token of a user, as it is in the store and as the provider knows it.
    pub(super) async fn token_of(self: &Arc<Self>, user: UserId) -> Option<(Sealed, RefreshToken)> {
        let this = Arc::clone(self);
        let found = tokio::task::spawn_blocking(move || this.store.refresh_token(user)).await.ok()?;
        let found = found.map_err(|error| tracing::error!(%error, "a refresh token can't be read")).ok()?;
        let sealed = found?;
        let token = RefreshToken::new(self.seal.open(user, &sealed)?.as_str()).ok()?;
        Some((sealed, token))
    }

    /// Keeps the one that a provider has given in place of another.
    pub(super) async fn replace(self: &Arc<Self>, user: UserId, before: Sealed, next: RefreshToken) {
        let this = Arc::clone(self);
        let kept = tokio::task::spawn_blocking(move || {
            let next = this.seal.seal(user, next.expose());
            this.store.replace_refresh_token(user, &before, &next)
        });
        if let Ok(Err(error)) = kept.await {
            tracing::error!(%error, "a refresh token can't be kept, so its user has to log in again");
        }
    }

    /// Keeps the token of a user who has just logged in, where it has a use.
    pub(super) fn keep_of_login(&self, source: &ExternalSource, subject: &str, token: &RefreshToken) {
        if source.source.recheck().is_none() {
            return;
        }
        let user = self.store.user_by_subject(&source.source.name, subject);
        let kept = user.and_then(|user| user.map_or(Ok(()), |user| self.put(user.id, token)));
        if let Err(error) = kept {
            tracing::error!(%error, "a refresh token can't be kept");
        }
    }

    fn put(&self, user: UserId, token: &RefreshToken) -> Result<(), StoreError> {
        let sealed = self.seal.seal(user, token.expose());
        self.store.keep_refresh_token(user, Some(&sealed))
    }

    #[cfg(test)]
    pub(super) fn seal(&self) -> &TokenSeal {
        &self.seal
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        lock(&self.asking.0).is_empty()
    }
}

/// The token of a user that was sent last without an answer.
pub(super) type Unanswered = Arc<AsyncMutex<Option<Sealed>>>;

/// The users about whom providers are being asked, or have not answered.
#[derive(Default)]
struct Asking(Mutex<HashMap<UserId, Unanswered>>);

impl Asking {
    fn of(&self, user: UserId) -> Unanswered {
        Arc::clone(lock(&self.0).entry(user).or_default())
    }

    /// Forgets a user about whom no other request waits, and of whom nothing is to be kept.
    fn leave(&self, user: UserId, turn: Unanswered) {
        let mut all = lock(&self.0);
        // The map's own, and this one.
        let is_last = Arc::strong_count(&turn) == 2;
        if is_last && turn.try_lock().is_ok_and(|unanswered| unanswered.is_none()) {
            all.remove(&user);
        }
    }
}
