//! Asking providers about users between logins, by the refresh tokens that came with these.
//!
//! Invariants: a token is in the store and on its way to idp, and nowhere else; the one that a
//! provider gives in place of another is kept before anything else becomes of the answer.

use std::sync::Arc;

use super::Authenticator;
use super::external::ExternalSource;
use super::recheck::Outcome;
use super::rounds::REPLY_MARGIN;
use vpnd_config::source::LOGIN_TIMEOUT;
use vpnd_ipc::gateway::idp::{RefreshLogin, RefreshToken, RefreshedLogin, SourceName};
use vpnd_store::{LiveUser, StoreError, UserId};
use vpnd_sys::clock::now;

impl Authenticator {
    /// Asks the provider about a user.
    pub(super) async fn recheck_at_provider(
        self: &Arc<Self>,
        source: &ExternalSource,
        user: &LiveUser,
    ) -> Outcome {
        let name = &source.source.name;
        let Some(token) = self.refresh_token(user.id).await else {
            tracing::debug!(
                source = name,
                user = user.name,
                "the provider gave no refresh token for the user"
            );
            return Outcome::NoAnswer;
        };
        let asked = RefreshLogin { source: SourceName::cut(name), token };
        let reply = self.external.idp.request(asked, LOGIN_TIMEOUT + REPLY_MARGIN).await;
        source.replied(reply.is_ok(), now());
        match reply {
            Ok(Ok(RefreshedLogin { identity, refresh })) => {
                if let Some(next) = refresh {
                    self.keep_refresh_token(user.id, next).await;
                }
                self.shown_again(source, user, identity).await
            }
            Ok(Err(_)) => Outcome::Absent,
            Err(why) => {
                self.record.source_failed(name, &why);
                Outcome::NoAnswer
            }
        }
    }

    async fn refresh_token(self: &Arc<Self>, user: UserId) -> Option<RefreshToken> {
        let this = Arc::clone(self);
        let found = tokio::task::spawn_blocking(move || this.store.refresh_token(user)).await.ok()?;
        let found = found.map_err(|error| tracing::error!(%error, "a refresh token can't be read")).ok()?;
        RefreshToken::new(found?.expose()).ok()
    }

    async fn keep_refresh_token(self: &Arc<Self>, user: UserId, token: RefreshToken) {
        let this = Arc::clone(self);
        let kept = tokio::task::spawn_blocking(move || this.put_refresh_token(user, &token)).await;
        if let Ok(Err(error)) = kept {
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
        let token = vpnd_store::RefreshToken::new(token.expose().to_owned());
        self.store.keep_refresh_token(user, Some(&token))
    }
}
