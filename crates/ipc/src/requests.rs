//! Requests to another process and the replies to them, for all that send them.
//!
//! One task writes, so that a caller may give up at any time without a half-written frame.
//! INVARIANT: no caller waits for a reply that can't come any more: when the channel ends or
//! [`Requests::close`] is called, all waiting ends with [`Gone`].

use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minicbor::{Decoder, Encode};
use tokio::sync::{mpsc, oneshot};

use super::channel::{Channel, ChannelError};
use super::messages::SecretBytes;
use super::request::{Reason, Request};

/// Messages that wait to be sent at most; who comes later waits in its own task.
const QUEUE: usize = 256;

/// The other process does not reply: the daemon is stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another process of the daemon is gone")]
pub struct Gone;

/// Why a request has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoReply {
    #[error(transparent)]
    Gone(#[from] Gone),
    /// The other process could not do it.
    #[error("{0}")]
    Failed(Reason),
}

/// Requests to another process, which are `M` on the socket.
pub struct Requests<M> {
    outbox: mpsc::Sender<(u64, M)>,
    waiting: Arc<PendingReplies>,
}

struct PendingReplies(Mutex<Option<OpenRequests>>);

struct OpenRequests {
    last: u64,
    /// By number, so the first is the oldest.
    requests: BTreeMap<u64, Box<dyn Waiting>>,
}

/// A caller that waits for a reply.
trait Waiting: Any + Send {
    /// Gives the caller the reply in `bytes`, if it is one to the caller's request.
    fn receive(self: Box<Self>, bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<(), ChannelError>;
}

struct Caller<R: Request>(oneshot::Sender<ReplyWithDescriptors<R>>);

type ReplyWithDescriptors<R> = (Result<<R as Request>::Reply, Reason>, Vec<OwnedFd>);

impl<R: Request> Waiting for Caller<R> {
    fn receive(self: Box<Self>, bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<(), ChannelError> {
        let mut decoder = Decoder::new(bytes);
        let reply = decoder.decode()?;
        if decoder.position() != bytes.len() {
            return Err(ChannelError::Broken("bytes after an answer"));
        }
        // The caller may have gone meanwhile.
        let _ = self.0.send((reply, descriptors));
        Ok(())
    }
}

fn is_from<R: Request>(caller: &dyn Waiting) -> bool {
    (caller as &dyn Any).is::<Caller<R>>()
}

impl<M: Send + 'static> Requests<M> {
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
    ///
    /// # Errors
    /// If the other process is gone, or could not do it.
    pub async fn request<R: Request<Message = M>>(&self, request: R) -> Result<R::Reply, NoReply> {
        self.request_with_descriptors(request).await.map(|(reply, _)| reply)
    }

    /// Sends a request and waits for its reply, and the descriptors that come with it.
    ///
    /// # Errors
    /// If the other process is gone, or could not do it.
    pub async fn request_with_descriptors<R>(&self, request: R) -> Result<(R::Reply, Vec<OwnedFd>), NoReply>
    where
        R: Request<Message = M>,
    {
        let (reply, descriptors) = self.send_request(request).await?.await.map_err(|_| Gone)?;
        Ok((reply.map_err(NoReply::Failed)?, descriptors))
    }

    /// Sends a request, once there is room, for a caller that waits for its reply in another way
    /// than for its turn.
    ///
    /// # Errors
    /// If the other process is gone.
    pub async fn begin<R>(
        &self,
        request: R,
    ) -> Result<impl Future<Output = Result<R::Reply, NoReply>> + Send + use<M, R>, Gone>
    where
        R: Request<Message = M>,
    {
        let reply = self.send_request(request).await?;
        Ok(async { reply.await.map_err(|_| Gone)?.0.map_err(NoReply::Failed) })
    }

    async fn send_request<R: Request<Message = M>>(
        &self,
        request: R,
    ) -> Result<oneshot::Receiver<ReplyWithDescriptors<R>>, Gone> {
        let permit = self.outbox.reserve().await.map_err(|_| Gone)?;
        let mut waiting = self.waiting.lock();
        let open = waiting.as_mut().ok_or(Gone)?;
        open.last += 1;
        let (sender, reply) = oneshot::channel();
        open.requests.insert(open.last, Box::new(Caller::<R>(sender)));
        permit.send((open.last, request.into()));
        Ok(reply)
    }

    /// Sends a message that is not answered.
    pub async fn send(&self, message: M) -> Result<(), Gone> {
        self.outbox.send((0, message)).await.map_err(|_| Gone)
    }

    /// Passes on the reply to the request of this number. The requester may have gone meanwhile.
    ///
    /// # Errors
    /// If there was no such request, or this is no reply to it: the other process breaks the rules.
    pub fn reply(
        &self,
        number: u64,
        reply: &SecretBytes,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), ChannelError> {
        // No request is open after the end, and replies may still be on their way.
        let Some(open) = &mut *self.waiting.lock() else { return Ok(()) };
        let caller = open.requests.remove(&number).ok_or(ChannelError::Broken("an unexpected answer"))?;
        caller.receive(&reply.0, descriptors)
    }

    /// Passes on the reply to the oldest request `R`, where replies have no numbers and come in
    /// order. Gives the reply back if there is none, or the caller no longer waits.
    pub fn reply_to_oldest<R: Request<Message = M>>(&self, reply: R::Reply) -> Result<(), R::Reply> {
        let mut waiting = self.waiting.lock();
        let Some(open) = &mut *waiting else { return Err(reply) };
        let oldest = open.requests.iter().find(|(_, caller)| is_from::<R>(caller.as_ref()));
        let caller = oldest.map(|(&number, _)| number).and_then(|number| open.requests.remove(&number));
        let caller = caller.and_then(|caller| (caller as Box<dyn Any>).downcast::<Caller<R>>().ok());
        let Some(caller) = caller else { return Err(reply) };
        match caller.0.send((Ok(reply), Vec::new())) {
            Err((Ok(reply), _)) => Err(reply),
            _ => Ok(()),
        }
    }

    /// Whether a request `R` is not answered yet, even if its requester has gone.
    pub fn is_under_way<R: Request<Message = M>>(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting
            .as_ref()
            .is_some_and(|open| open.requests.values().any(|caller| is_from::<R>(caller.as_ref())))
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

impl PendingReplies {
    fn lock(&self) -> MutexGuard<'_, Option<OpenRequests>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use minicbor::{Decode, Encode};

    use super::*;
    use crate::channel::pair;
    use crate::request::{Numbered, encoded};

    const TEST_TIMEOUT: Duration = Duration::from_secs(5);

    #[derive(Debug, Encode, Decode)]
    struct Double(#[n(0)] u8);

    #[derive(Debug, Encode, Decode)]
    struct Name(#[n(0)] u8);

    crate::requests! {
        /// Requests of these tests.
        TestRequest {
            Double = 0, Double => u8;
            Name = 1, Name => String;
        }
    }

    fn ends() -> (Arc<Requests<TestRequest>>, Channel) {
        let (ours, theirs) = pair().unwrap();
        let frame = |number, content| Numbered { number, content };
        let requests = Requests::start(Channel::new(ours, 1 << 10).unwrap(), frame);
        (Arc::new(requests), Channel::new(theirs, 1 << 10).unwrap())
    }

    /// The number of the next request, and the one in it.
    async fn receive(other: &Channel) -> (u64, u8) {
        let Numbered { number, content } = other.receive().await.unwrap().unwrap().message;
        let (TestRequest::Double(Double(of)) | TestRequest::Name(Name(of))) = content;
        (number, of)
    }

    #[tokio::test]
    async fn replies_find_their_requests_in_any_order() {
        let (requests, other) = ends();
        let request_of = |of| {
            let requests = Arc::clone(&requests);
            tokio::spawn(async move { requests.request(Double(of)).await })
        };
        let (one, two) = (request_of(1), request_of(2));
        let (first, second) = (receive(&other).await, receive(&other).await);
        requests.reply(second.0, &encoded(&Ok(second.1 * 2)), Vec::new()).unwrap();
        requests.reply(first.0, &encoded(&Ok(first.1 * 2)), Vec::new()).unwrap();
        assert_eq!((one.await.unwrap(), two.await.unwrap()), (Ok(2), Ok(4)));
        assert!(
            requests.reply(first.0, &encoded(&Ok(0_u8)), Vec::new()).is_err(),
            "nobody waits for a second reply"
        );
    }

    #[tokio::test]
    async fn bytes_that_are_no_reply_to_the_request_break_the_channel() {
        let more = SecretBytes([&encoded(&Ok("a".to_owned())).0[..], &[0]].concat().into());
        for reply in [encoded(&Ok(1_u8)), encoded(&Ok(())), SecretBytes(Vec::new().into()), more] {
            let (requests, other) = ends();
            let asker = Arc::clone(&requests);
            let asked = tokio::spawn(async move { asker.request(Name(1)).await });
            let (number, _) = receive(&other).await;
            assert!(requests.reply(number, &reply, Vec::new()).is_err(), "{:?}", reply.0);
            assert_eq!(asked.await.unwrap(), Err(NoReply::Gone(Gone)), "nothing of it reaches the caller");
        }
    }

    #[tokio::test]
    async fn a_reply_without_a_number_is_for_the_oldest_of_its_kind() {
        let (requests, other) = ends();
        let (name, double) = (Arc::clone(&requests), Arc::clone(&requests));
        let name = tokio::spawn(async move { name.request(Name(1)).await });
        receive(&other).await;
        assert!(requests.is_under_way::<Name>() && !requests.is_under_way::<Double>());
        assert_eq!(requests.reply_to_oldest::<Double>(2), Err(2), "nobody waits for it");
        let double = tokio::spawn(async move { double.request(Double(1)).await });
        receive(&other).await;
        requests.reply_to_oldest::<Double>(2).unwrap();
        requests.reply_to_oldest::<Name>("one".to_owned()).unwrap();
        assert_eq!((double.await.unwrap(), name.await.unwrap()), (Ok(2), Ok("one".to_owned())));
    }

    #[tokio::test]
    async fn a_request_that_times_out_leaves_the_channel_usable() {
        let (requests, other) = ends();
        for number in 0..10 {
            drop(tokio::time::timeout(Duration::ZERO, requests.request(Double(number))).await);
        }
        requests.send(Double(99).into()).await.unwrap();
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
    async fn requests_fail_once_the_channel_has_ended() {
        let (requests, other) = ends();
        let asker = Arc::clone(&requests);
        let asked = tokio::spawn(async move { asker.request(Double(1)).await });
        receive(&other).await;
        requests.close();
        let soon = |work| tokio::time::timeout(TEST_TIMEOUT, work);
        assert_eq!(soon(asked).await.expect("it waits for ever").unwrap(), Err(NoReply::Gone(Gone)));
        let late = tokio::time::timeout(TEST_TIMEOUT, requests.request(Double(2))).await;
        assert_eq!(late.expect("it waits for ever"), Err(NoReply::Gone(Gone)));
        assert!(requests.is_closed());
    }
}
