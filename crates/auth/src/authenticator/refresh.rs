//! Asking providers about users between logins, by the refresh tokens that came with these.
//!
//! Invariants: a token is in the store, sealed, and on its way to idp, and nowhere else; the one
//! that a provider gives in place of another is kept before anything else becomes of the answer,
//! unless a login or a logout has come in between. A token may be good once: a user is asked about
//! once at a time, and a token that was sent without an answer is perhaps used up, so that its
//! refusal says nothing of the user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;

use super::Authenticator;
use super::external::ExternalSource;
use super::recheck::Outcome;
use super::rounds::REPLY_MARGIN;
use vpnd_config::source::LOGIN_TIMEOUT;
use vpnd_ipc::gateway::idp::{RefreshLogin, RefreshToken, RefreshedLogin, SourceName};
use vpnd_store::{LiveUser, RefreshToken as Sealed, StoreError, UserId};
use vpnd_sys::clock::now;
use vpnd_sys::log_limit::LogLimit;

static WITHOUT_TOKEN: LogLimit = LogLimit::new(1, Duration::from_secs(3_600));

/// The token of a user that was sent last without an answer.
type Unanswered = Arc<AsyncMutex<Option<Sealed>>>;

/// The users about whom providers are being asked, or have not answered.
#[derive(Default)]
pub(super) struct Asking(Mutex<HashMap<UserId, Unanswered>>);

impl Asking {
    fn of(&self, user: UserId) -> Unanswered {
        Arc::clone(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(user).or_default())
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Forgets a user about whom no other request waits, and of whom nothing is to be kept.
    fn leave(&self, user: UserId, turn: Unanswered) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The map's own, and this one.
        let is_last = Arc::strong_count(&turn) == 2;
        if is_last && turn.try_lock().is_ok_and(|unanswered| unanswered.is_none()) {
            all.remove(&user);
        }
    }
}

impl Authenticator {
    /// Asks the provider about a user.
    pub(super) async fn recheck_at_provider(
        self: &Arc<Self>,
        source: &ExternalSource,
        user: &LiveUser,
    ) -> Outcome {
        let turn = self.external.asking.of(user.id);
        let outcome = self.ask_in_turn(source, user, &mut *turn.lock().await).await;
        self.external.asking.leave(user.id, turn);
        outcome
    }

    async fn ask_in_turn(
        self: &Arc<Self>,
        source: &ExternalSource,
        user: &LiveUser,
        unanswered: &mut Option<Sealed>,
    ) -> Outcome {
        let name = &source.source.name;
        let before = unanswered.take();
        let Some((sealed, token)) = self.refresh_token(user.id).await else {
            if WITHOUT_TOKEN.admits() {
                tracing::warn!(
                    source = name,
                    user = user.name,
                    "there is no refresh token for a user, or none that can be opened, so the provider can't be asked: the \
                     session ends when it was not confirmed for too long"
                );
            }
            return Outcome::NoToken;
        };
        let was_unanswered = before.as_ref() == Some(&sealed);
        let asked = RefreshLogin { source: SourceName::cut(name), token };
        let reply = self.external.idp.request(asked, LOGIN_TIMEOUT + REPLY_MARGIN).await;
        source.replied(reply.is_ok(), now());
        match reply {
            Ok(Ok(RefreshedLogin { identity, refresh })) => {
                if let Some(next) = refresh {
                    self.replace_refresh_token(user.id, sealed, next).await;
                }
                self.shown_again(source, user, identity).await
            }
            Ok(Err(_)) if was_unanswered => {
                *unanswered = Some(sealed);
                Outcome::NoToken
            }
            Ok(Err(_)) => Outcome::Absent,
            Err(why) => {
                *unanswered = Some(sealed);
                self.record.source_failed(name, &why);
                Outcome::NoAnswer
            }
        }
    }

    /// The token of a user, as it is in the store and as the provider knows it.
    async fn refresh_token(self: &Arc<Self>, user: UserId) -> Option<(Sealed, RefreshToken)> {
        let this = Arc::clone(self);
        let found = tokio::task::spawn_blocking(move || this.store.refresh_token(user)).await.ok()?;
        let found = found.map_err(|error| tracing::error!(%error, "a refresh token can't be read")).ok()?;
        let sealed = found?;
        let token = RefreshToken::new(self.external.tokens.open(user, &sealed)?.as_str()).ok()?;
        Some((sealed, token))
    }

    async fn replace_refresh_token(self: &Arc<Self>, user: UserId, before: Sealed, next: RefreshToken) {
        let this = Arc::clone(self);
        let kept = tokio::task::spawn_blocking(move || {
            let next = this.external.tokens.seal(user, next.expose());
            this.store.replace_refresh_token(user, &before, &next)
        });
        if let Ok(Err(error)) = kept.await {
            tracing::error!(%error, "a refresh token can't be kept, so its user has to log in again");
        }
    }

    /// Keeps the token of a user who has just logged in, where it has a use.
    pub(super) fn keep_token_of_login(&self, source: &ExternalSource, subject: &str, token: &RefreshToken) {
        if source.source.recheck().is_none() {
            return;
        }
        let user = self.store.user_by_subject(&source.source.name, subject);
        let kept = user.and_then(|user| user.map_or(Ok(()), |user| self.put_refresh_token(user.id, token)));
        if let Err(error) = kept {
            tracing::error!(%error, "a refresh token can't be kept");
        }
    }

    fn put_refresh_token(&self, user: UserId, token: &RefreshToken) -> Result<(), StoreError> {
        let sealed = self.external.tokens.seal(user, token.expose());
        self.store.keep_refresh_token(user, Some(&sealed))
    }
}
