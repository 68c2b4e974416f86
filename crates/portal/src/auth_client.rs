//! The portal's requests to the auth process.
//!
//! INVARIANT: logins, which wait for passwords to be checked, never take all that may be under way;
//! those of each source have separate turns, so that a silent one keeps no other's users waiting; a
//! browser that hangs up makes no room before its login is decided. Logouts that a provider sends
//! have separate places and wait for one, since providers don't repeat them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use vpnd_ipc::channel::{Channel, ChannelError};
use vpnd_ipc::gateway::auth::SourceName;
use vpnd_ipc::gateway::portal::PortalRequest;
use vpnd_ipc::gateway::portal::turns::{LOGOUTS_AT_ONCE, STORE, TurnQuery};
use vpnd_ipc::messages::SecretBytes;
use vpnd_ipc::request::{Numbered, Request};
use vpnd_ipc::requests::{Gone, NoReply, Requests};

use crate::login_turns::{LoginTurn, LoginTurns};

/// Logouts of a provider that wait for being checked, and for how long: less than a request of a
/// browser may take.
const MAX_WAITING_LOGOUTS: usize = 256;
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(15);

/// The way to the auth process.
pub(crate) struct AuthClient {
    requests: Arc<Requests<PortalRequest>>,
    /// Turns of all that has a password, a code or a provider's answer checked.
    logins: LoginTurns,
    /// By provider.
    logouts: Mutex<HashMap<String, Arc<LogoutTurns>>>,
}

struct LogoutTurns {
    at_once: Arc<Semaphore>,
    waiting: Semaphore,
}

impl Default for LogoutTurns {
    fn default() -> Self {
        let at_once = Arc::new(Semaphore::new(LOGOUTS_AT_ONCE));
        Self { at_once, waiting: Semaphore::new(MAX_WAITING_LOGOUTS) }
    }
}

/// A logout that is being checked.
pub(crate) struct LogoutTurn(#[expect(dead_code, reason = "it is held")] OwnedSemaphorePermit);

impl AuthClient {
    /// With it what receives replies, until the auth process is gone.
    pub(crate) fn start(channel: Channel) -> (Self, impl Future<Output = Result<(), ChannelError>>) {
        let frame = |number, content| Numbered { number, content };
        let requests = Arc::new(Requests::start(channel.clone(), frame));
        let waiting = Arc::clone(&requests);
        let replies = async move {
            while let Some(received) = channel.receive::<Numbered<SecretBytes>>().await? {
                let Numbered { number, content } = received.alone()?;
                waiting.reply(number, &content, Vec::new())?;
            }
            Ok(())
        };
        (Self { requests, logins: LoginTurns::default(), logouts: Mutex::default() }, replies)
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// If the auth process is gone, or could not do it; the reason is in the log.
    pub(crate) async fn request<R>(&self, request: R) -> Result<R::Reply, NoReply>
    where
        R: Request<Message = PortalRequest>,
    {
        logged(self.requests.request(request).await)
    }

    /// Sends a request of a login or a logout, which keeps its turn until the reply has come.
    ///
    /// # Errors
    /// If the auth process is gone, or could not do it; the reason is in the log.
    pub(crate) async fn request_in_turn<R>(
        &self,
        request: R,
        turn: impl Send + 'static,
    ) -> Result<R::Reply, NoReply>
    where
        R: Request<Message = PortalRequest>,
    {
        let requests = Arc::clone(&self.requests);
        let replied = tokio::spawn(async move {
            let replied = requests.request(request).await;
            drop(turn);
            replied
        });
        logged(replied.await.unwrap_or_else(|_| Err(Gone.into())))
    }

    /// Waits for the turn of a login from this address; `None` if too many others wait.
    ///
    /// # Errors
    /// If the auth process does not say by which source it is decided.
    pub(crate) async fn login_turn(
        &self,
        login: TurnQuery,
        address: IpAddr,
    ) -> Result<Option<LoginTurn>, NoReply> {
        Ok(self.logins.take(self.request(login).await?, address).await)
    }

    /// The turn of what the store alone decides.
    pub(crate) async fn store_turn(&self, address: IpAddr) -> Option<LoginTurn> {
        self.logins.take(STORE, address).await
    }

    /// Waits until a logout of this provider, which is one of ours, may be checked; `None` if that
    /// takes too long.
    pub(crate) async fn logout_turn(&self, provider: &SourceName) -> Option<LogoutTurn> {
        let turns = {
            let mut logouts = self.logouts.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(logouts.entry(provider.to_string()).or_default())
        };
        let _waiting = turns.waiting.try_acquire().ok()?;
        let turn = Arc::clone(&turns.at_once).acquire_owned();
        tokio::time::timeout(LOGOUT_TIMEOUT, turn).await.ok()?.ok().map(LogoutTurn)
    }
}

fn logged<T>(replied: Result<T, NoReply>) -> Result<T, NoReply> {
    if let Err(error) = &replied {
        tracing::error!(%error, "a page has no answer of the auth process");
    }
    replied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn logouts_wait_for_those_of_their_provider_alone() {
        let (ours, _theirs) = vpnd_ipc::channel::pair().unwrap();
        let (auth, _replies) = AuthClient::start(Channel::new(ours, 1 << 10).unwrap());
        let [silent, other] = ["silent", "other"].map(SourceName::cut);
        let mut held = Vec::new();
        for _ in 0..LOGOUTS_AT_ONCE {
            held.push(auth.logout_turn(&silent).await.expect("there is room"));
        }
        assert!(auth.logout_turn(&silent).await.is_none(), "it took too long");
        let start = tokio::time::Instant::now();
        assert!(auth.logout_turn(&other).await.is_some());
        assert_eq!(start.elapsed(), Duration::ZERO);
        let last = auth.logout_turn(&silent);
        let over = async {
            tokio::task::yield_now().await;
            held.pop();
        };
        assert!(tokio::join!(last, over).0.is_some());
    }
}
