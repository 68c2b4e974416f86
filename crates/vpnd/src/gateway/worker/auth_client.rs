//! The network worker's end: questions to the auth process, many at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, mpsc, oneshot};

use crate::gateway::messages::auth::{Answer, Numbered, Request};
use crate::privsep::channel::{Channel, ChannelError};

/// Questions that wait to be sent at most; who comes later waits in its own task.
const QUEUE: usize = 256;

/// The auth process does not answer: the daemon is going down.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the auth process is gone")]
pub(crate) struct AuthGone;

/// Who waits for an answer. The auth process takes no more questions than it has places for, then the channel is full and
/// [`ask_all`] stops; so no more wait than have places there and room on the way.
type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Answer>>>>;

/// The auth process's address.
#[derive(Clone, Debug)]
pub(crate) struct AuthClient(mpsc::Sender<(Request, oneshot::Sender<Answer>)>);

impl AuthClient {
    /// Talks over `channel` from now on. `gone` is notified when the other end is no more.
    pub(crate) fn start(channel: Channel, gone: Arc<Notify>) -> Self {
        let (questions, inbox) = mpsc::channel(QUEUE);
        let waiting = Waiting::default();
        let askers = questions.downgrade();
        tokio::spawn(ask_all(channel.clone(), inbox, Arc::clone(&waiting)));
        tokio::spawn(async move {
            match hear_all(&channel, &waiting).await {
                // Without anybody who asks it, it ends in order.
                Ok(()) if askers.strong_count() == 0 => tracing::debug!("the auth process has ended"),
                Ok(()) => tracing::error!("the auth process has ended"),
                Err(error) => tracing::error!(%error, "the auth process is lost"),
            }
            // Whoever still waits learns that nothing will come.
            waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
            gone.notify_one();
        });
        Self(questions)
    }

    /// Asks one question and waits for the answer.
    pub(crate) async fn ask(&self, request: Request) -> Result<Answer, AuthGone> {
        let (reply, answer) = oneshot::channel();
        self.0.send((request, reply)).await.map_err(|_| AuthGone)?;
        answer.await.map_err(|_| AuthGone)
    }
}

async fn ask_all(
    channel: Channel,
    mut inbox: mpsc::Receiver<(Request, oneshot::Sender<Answer>)>,
    waiting: Waiting,
) {
    let mut number = 0;
    while let Some((content, reply)) = inbox.recv().await {
        number += 1;
        waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(number, reply);
        if let Err(error) = channel.send(&Numbered { number, content }, &[]).await {
            // Leaving closes the queue, so that everybody hears of it.
            tracing::error!(%error, "the auth process can't be asked");
            return;
        }
    }
}

async fn hear_all(channel: &Channel, waiting: &Waiting) -> Result<(), ChannelError> {
    while let Some(received) = channel.receive::<Numbered<Answer>>().await? {
        let Numbered { number, content } = received.alone()?;
        let asker = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        let asker = asker.ok_or(ChannelError::Broken("an answer that nobody waits for"))?;
        // Who has asked may have gone meanwhile.
        let _ = asker.send(content);
    }
    Ok(())
}
