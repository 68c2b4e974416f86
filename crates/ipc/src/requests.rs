//! Requests to another process and the replies to them, for all that send them.
//!
//! One task writes, so that a caller may give up at any time without a half-written frame. INVARIANT: no caller waits for
//! a reply that can't come any more: when the channel ends or [`Requests::close`] is called, all waiting ends with [`Gone`].

use std::collections::BTreeMap;
use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minicbor::Encode;
use tokio::sync::{mpsc, oneshot};

use super::channel::{Channel, ChannelError};

/// Messages that wait to be sent at most; who comes later waits in its own task.
const QUEUE: usize = 256;

/// The other process does not reply: the daemon is stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another process of the daemon is gone")]
pub struct Gone;

/// Requests `M` to another process, which are answered by `R`.
pub struct Requests<M, R> {
    outbox: mpsc::Sender<(u64, M)>,
    waiting: Arc<PendingReplies<M, R>>,
}

struct PendingReplies<M, R>(Mutex<Option<OpenRequests<M, R>>>);

struct OpenRequests<M, R> {
    last: u64,
    /// By number, so the first is the oldest.
    requests: BTreeMap<u64, (Discriminant<M>, oneshot::Sender<R>)>,
}

impl<M: Send + 'static, R: Send + 'static> Requests<M, R> {
    /// Sends over `channel` from now on; `frame` makes a message of a request and its number.
    pub fn start<F>(channel: Channel, frame: impl Fn(u64, M) -> F + Send + 'static) -> Self
    where
        F: Encode<()> + Send + Sync,
    {
        let (outbox, mut inbox) = mpsc::channel(QUEUE);
        let open = OpenRequests { last: 0, requests: BTreeMap::new() };
        let waiting = Arc::new(PendingReplies(Mutex::new(Some(open))));
        let of_task = Arc::clone(&waiting);
        tokio::spawn(async move {
            while let Some((number, message)) = inbox.recv().await {
                let message = frame(number, message);
                if let Err(error) = channel.send(&message, &[]).await {
                    tracing::error!(%error, "another process of the daemon can't be asked");
                    of_task.lock().take();
                    return;
                }
            }
        });
        Self { outbox, waiting }
    }

    /// Sends a request and waits for its reply.
    pub async fn request(&self, request: M) -> Result<R, Gone> {
        let permit = self.outbox.reserve().await.map_err(|_| Gone)?;
        let reply = {
            let mut waiting = self.waiting.lock();
            let open = waiting.as_mut().ok_or(Gone)?;
            open.last += 1;
            let (sender, reply) = oneshot::channel();
            open.requests.insert(open.last, (discriminant(&request), sender));
            permit.send((open.last, request));
            reply
        };
        reply.await.map_err(|_| Gone)
    }

    /// Sends a message that is not answered.
    pub async fn send(&self, message: M) -> Result<(), Gone> {
        self.outbox.send((0, message)).await.map_err(|_| Gone)
    }

    /// Passes on the reply to the request of this number. The requester may have gone meanwhile.
    ///
    /// # Errors
    /// If there was no such request: the other process breaks the rules.
    pub fn reply(&self, number: u64, reply: R) -> Result<(), ChannelError> {
        // No request is open after the end, and replies may still be on their way.
        let Some(open) = &mut *self.waiting.lock() else { return Ok(()) };
        let (_, sender) =
            open.requests.remove(&number).ok_or(ChannelError::Broken("an unexpected answer"))?;
        let _ = sender.send(reply);
        Ok(())
    }

    /// Passes on the reply to the oldest request of the same kind as `like`, where replies have no numbers and come in order.
    /// Gives the reply back if there is none, or nobody waits for it any more.
    pub fn reply_to_oldest(&self, like: &M, reply: R) -> Result<(), R> {
        let mut waiting = self.waiting.lock();
        let Some(open) = &mut *waiting else { return Err(reply) };
        let kind = discriminant(like);
        let Some(number) = open.requests.iter().find(|(_, (of, _))| *of == kind).map(|(number, _)| *number)
        else {
            return Err(reply);
        };
        match open.requests.remove(&number) {
            Some((_, sender)) => sender.send(reply),
            None => Err(reply),
        }
    }

    /// Whether a request of the same kind as `like` is not answered yet, even if its requester has gone.
    pub fn is_under_way(&self, like: &M) -> bool {
        let kind = discriminant(like);
        self.waiting.lock().as_ref().is_some_and(|open| open.requests.values().any(|(of, _)| *of == kind))
    }

    /// There will be no replies any more.
    pub fn close(&self) {
        self.waiting.lock().take();
    }

    /// Whether there will be no replies any more.
    pub fn is_closed(&self) -> bool {
        self.waiting.lock().is_none()
    }
}

impl<M, R> PendingReplies<M, R> {
    fn lock(&self) -> MutexGuard<'_, Option<OpenRequests<M, R>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::channel::pair;

    const TEST_TIMEOUT: Duration = Duration::from_secs(5);

    fn ends() -> (Arc<Requests<u8, u8>>, Channel) {
        let (ours, theirs) = pair().unwrap();
        let requests =
            Requests::start(Channel::new(ours, 1 << 10).unwrap(), |number, request| (number, request));
        (Arc::new(requests), Channel::new(theirs, 1 << 10).unwrap())
    }

    async fn receive(other: &Channel) -> (u64, u8) {
        other.receive().await.unwrap().unwrap().message
    }

    #[tokio::test]
    async fn replies_find_their_requests_in_any_order() {
        let (requests, other) = ends();
        let request_of = |request| {
            let requests = Arc::clone(&requests);
            tokio::spawn(async move { requests.request(request).await })
        };
        let (one, two) = (request_of(1), request_of(2));
        let (first, second) = (receive(&other).await, receive(&other).await);
        requests.reply(second.0, second.1 + 10).unwrap();
        requests.reply(first.0, first.1 + 10).unwrap();
        assert_eq!((one.await.unwrap(), two.await.unwrap()), (Ok(11), Ok(12)));
        assert!(requests.reply(first.0, 0).is_err(), "nobody waits for a second reply");
    }

    #[tokio::test]
    async fn whoever_gives_up_leaves_the_channel_whole() {
        let (requests, other) = ends();
        for request in 0..10 {
            drop(tokio::time::timeout(Duration::ZERO, requests.request(request)).await);
        }
        requests.send(99).await.unwrap();
        let last = async {
            loop {
                if receive(&other).await.1 == 99 {
                    break;
                }
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, last).await.expect("all that was sent arrives");
    }

    #[tokio::test]
    async fn nobody_waits_behind_the_end() {
        let (requests, other) = ends();
        let asker = Arc::clone(&requests);
        let asked = tokio::spawn(async move { asker.request(1).await });
        receive(&other).await;
        requests.close();
        let soon = |work| tokio::time::timeout(TEST_TIMEOUT, work);
        assert_eq!(soon(asked).await.expect("it waits for ever").unwrap(), Err(Gone));
        let late = tokio::time::timeout(TEST_TIMEOUT, requests.request(2)).await;
        assert_eq!(late.expect("it waits for ever"), Err(Gone));
        assert!(requests.is_closed());
    }
}
