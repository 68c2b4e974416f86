//! The portal's requests to the auth process.
//!
//! INVARIANT: logins, which wait for passwords to be checked, never take all that may be under way,
//! and one address never takes all of theirs; a browser that hangs up makes no room before its
//! login is decided. Logouts that providers send have separate places and wait for one, since providers
//! don't repeat them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use vpnd_ipc::channel::{Channel, ChannelError};
use vpnd_ipc::gateway::portal::PortalRequest;
use vpnd_ipc::messages::SecretBytes;
use vpnd_ipc::request::{Numbered, Request};
use vpnd_ipc::requests::{Gone, NoReply, Requests};
use vpnd_proto::admission::Source;

/// Logins under way: fewer than the auth process answers requests at the same time.
const MAX_LOGINS: usize = 48;
/// The same from one address.
const MAX_LOGINS_OF_SOURCE: usize = 6;

/// Logouts of providers that are checked at the same time, those that wait for it, and for how long:
/// less than a request of a browser may take.
const MAX_LOGOUTS: usize = 8;
const MAX_WAITING_LOGOUTS: usize = 256;
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(15);

/// The way to the auth process.
pub(crate) struct AuthClient {
    requests: Arc<Requests<PortalRequest>>,
    logins: Arc<Mutex<HashMap<Source, usize>>>,
    logouts: Arc<Semaphore>,
    waiting_logouts: Arc<Semaphore>,
}

/// A logout that is being checked.
pub(crate) struct LogoutTurn(#[expect(dead_code, reason = "it is held")] OwnedSemaphorePermit);

/// A login that is under way, while it is.
pub(crate) struct LoginTurn {
    logins: Arc<Mutex<HashMap<Source, usize>>>,
    source: Source,
}

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
        let client = Self {
            requests,
            logins: Arc::default(),
            logouts: Arc::new(Semaphore::new(MAX_LOGOUTS)),
            waiting_logouts: Arc::new(Semaphore::new(MAX_WAITING_LOGOUTS)),
        };
        (client, replies)
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

    /// Waits until a logout may be checked; `None` if that takes too long.
    pub(crate) async fn logout_turn(&self) -> Option<LogoutTurn> {
        let _waiting = self.waiting_logouts.try_acquire().ok()?;
        let turn = Arc::clone(&self.logouts).acquire_owned();
        tokio::time::timeout(LOGOUT_TIMEOUT, turn).await.ok()?.ok().map(LogoutTurn)
    }

    /// Lets a login from this address begin, if not too many are under way.
    pub(crate) fn login_turn(&self, address: IpAddr) -> Option<LoginTurn> {
        let source = Source::from(address);
        let mut logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
        let of_source = logins.get(&source).copied().unwrap_or_default();
        if of_source >= MAX_LOGINS_OF_SOURCE || logins.values().sum::<usize>() >= MAX_LOGINS {
            return None;
        }
        logins.insert(source, of_source + 1);
        Some(LoginTurn { logins: Arc::clone(&self.logins), source })
    }
}

fn logged<T>(replied: Result<T, NoReply>) -> Result<T, NoReply> {
    if let Err(error) = &replied {
        tracing::error!(%error, "a page has no answer of the auth process");
    }
    replied
}

impl Drop for LoginTurn {
    fn drop(&mut self) {
        let mut logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
        match logins.get_mut(&self.source) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(logins.remove(&self.source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_address_never_takes_all_logins() {
        let (ours, _theirs) = vpnd_ipc::channel::pair().unwrap();
        let (auth, _replies) = AuthClient::start(Channel::new(ours, 1 << 10).unwrap());
        let address = |n: usize| IpAddr::from([192, 0, 2, n as u8]);
        let mut turns: Vec<_> =
            (0..MAX_LOGINS_OF_SOURCE).map(|_| auth.login_turn(address(1)).unwrap()).collect();
        assert!(auth.login_turn(address(1)).is_none());
        turns.pop();
        turns.push(auth.login_turn(address(1)).expect("one is over"));
        turns.extend((2..200).map_while(|n| auth.login_turn(address(n))));
        assert_eq!(turns.len(), MAX_LOGINS);
        // Logouts have separate places, for which they wait.
        let mut logouts = Vec::new();
        for _ in 0..MAX_LOGOUTS {
            logouts.push(auth.logout_turn().await.expect("there is room"));
        }
        let last = auth.logout_turn();
        let over = async {
            tokio::task::yield_now().await;
            logouts.pop();
        };
        assert!(tokio::join!(last, over).0.is_some());
        drop(turns);
        assert!(auth.logins.lock().unwrap().is_empty());
    }
}
