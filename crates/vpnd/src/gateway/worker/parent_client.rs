//! The opener as its gateway's worker sees it: what it is asked for, and who waits for the answer.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::privsep::channel::{Channel, ChannelError};
use crate::privsep::launch::ToOpener;

/// What became of a request, in words.
type Outcome = Result<String, String>;

/// The channel to the opener, and who waits for what it does.
pub(super) struct Opener {
    channel: Channel,
    turn: tokio::sync::Mutex<()>,
    /// One for each conversation on the control socket at most, of which there are few.
    rereading: Mutex<VecDeque<oneshot::Sender<Outcome>>>,
    upgrading: Mutex<Option<oneshot::Sender<Outcome>>>,
}

impl Opener {
    pub(super) fn new(channel: Channel) -> Self {
        Self {
            channel,
            turn: tokio::sync::Mutex::default(),
            rereading: Mutex::default(),
            upgrading: Mutex::default(),
        }
    }

    /// Has the configuration read again and put into force. What has changed, in words.
    pub(super) async fn reread(&self) -> Outcome {
        let (done, outcome) = oneshot::channel();
        {
            // Answers come in the order of questions.
            let _turn = self.turn.lock().await;
            lock(&self.rereading).push_back(done);
            self.say(&ToOpener::ReadConfiguration).await.map_err(|error| error.to_string())?;
        }
        outcome.await.unwrap_or_else(|_| Err("the daemon is going down".to_owned()))
    }

    /// Who waits longest for the configuration to be read.
    pub(super) fn reread_by(&self) -> Option<oneshot::Sender<Outcome>> {
        lock(&self.rereading).pop_front()
    }

    /// Has the daemon replaced. What goes on, in words.
    pub(super) async fn upgrade(&self) -> Outcome {
        let (done, outcome) = oneshot::channel();
        {
            let _turn = self.turn.lock().await;
            // Who has asked before may have gone meanwhile, but what it asked for goes on.
            let before = lock(&self.upgrading).replace(done);
            if before.is_some() {
                *lock(&self.upgrading) = before;
                return Err("an upgrade is under way already".to_owned());
            }
            self.say(&ToOpener::Upgrade).await.map_err(|error| error.to_string())?;
        }
        outcome.await.unwrap_or_else(|_| Err("the daemon is going down".to_owned()))
    }

    /// Tells who has asked for an upgrade what became of it.
    pub(super) fn upgraded(&self, outcome: Outcome) {
        if let Some(asker) = lock(&self.upgrading).take() {
            // It may have gone meanwhile.
            let _ = asker.send(outcome);
        }
    }

    pub(super) async fn say(&self, message: &ToOpener) -> Result<(), ChannelError> {
        self.channel.send(message, &[]).await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
