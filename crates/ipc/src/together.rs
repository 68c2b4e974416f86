//! Questions that are answered together: those that come while others are answered wait, and are
//! the next.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Mutex as Turn, oneshot};

use crate::request::Reason;

type Waiting<Q, A> = VecDeque<(Q, oneshot::Sender<Result<A, Reason>>)>;

/// Questions of one kind.
pub struct Together<Q, A> {
    waiting: Mutex<Waiting<Q, A>>,
    turn: Arc<Turn<()>>,
    most: usize,
}

impl<Q: Send + 'static, A: Send + 'static> Together<Q, A> {
    /// `most` questions are answered at once.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { waiting: Mutex::default(), turn: Arc::default(), most }
    }

    /// Has the question answered, with others that wait. `answer` runs on a thread that may wait,
    /// and gives one answer for each question, in their order.
    ///
    /// # Errors
    /// The answer's; also if there is none.
    pub async fn ask(
        &self,
        question: Q,
        answer: impl Fn(Vec<Q>) -> Vec<Result<A, Reason>> + Clone + Send + 'static,
    ) -> Result<A, Reason> {
        let (sender, mut receiver) = oneshot::channel();
        self.lock().push_back((question, sender));
        loop {
            let turn = Arc::clone(&self.turn).lock_owned().await;
            match receiver.try_recv() {
                Ok(answered) => return answered,
                Err(TryRecvError::Closed) => return Err(Reason::cut("the question was not answered")),
                // It waits: this asker alone has the turn.
                Err(TryRecvError::Empty) => {}
            }
            let (questions, senders): (Vec<Q>, Vec<_>) = {
                let mut waiting = self.lock();
                let count = self.most.min(waiting.len());
                waiting.drain(..count).unzip()
            };
            let answer = answer.clone();
            // It goes on if this asker goes: others wait for their answers.
            let answered = tokio::task::spawn_blocking(move || {
                for (sender, answer) in senders.into_iter().zip(answer(questions)) {
                    // An asker that is gone needs none.
                    let _ = sender.send(answer);
                }
                drop(turn);
            });
            // One that panics leaves no answers.
            let _ = answered.await;
            if let Ok(answered) = receiver.try_recv() {
                return answered;
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting<Q, A>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn concurrent_questions_are_answered_in_one_turn() {
        let together = Arc::new(Together::new(3));
        let (turns, (open, gate)) = (Arc::new(AtomicUsize::new(0)), std::sync::mpsc::channel());
        let gate = Arc::new(Mutex::new(Some(gate)));
        let ask = |number: u32| {
            let (together, turns, gate) = (Arc::clone(&together), Arc::clone(&turns), Arc::clone(&gate));
            async move {
                let double = move |questions: Vec<u32>| {
                    turns.fetch_add(1, Ordering::Relaxed);
                    // The first one waits until all others have come.
                    let gate = gate.lock().unwrap().take();
                    gate.into_iter().for_each(|gate| gate.recv().unwrap());
                    questions.into_iter().map(|number| Ok(2 * number)).collect()
                };
                together.ask(number, double).await
            }
        };
        let mut asked: Vec<_> = vec![tokio::spawn(ask(1))];
        while gate.lock().unwrap().is_some() {
            tokio::task::yield_now().await;
        }
        asked.extend((2..=7).map(|number| tokio::spawn(ask(number))));
        while together.lock().len() < 6 {
            tokio::task::yield_now().await;
        }
        // One whose asker goes is no other's loss.
        asked.remove(1).abort();
        open.send(()).unwrap();
        let mut answers = Vec::new();
        for asked in asked {
            answers.push(asked.await.unwrap().unwrap());
        }
        assert_eq!(answers, [2, 6, 8, 10, 12, 14]);
        assert_eq!(turns.load(Ordering::Relaxed), 3, "one, then three at a time");
        let none = together.ask(8, |_| Vec::new()).await;
        assert!(none.is_err());
    }
}
