//! The queue of logins that wait for a turn. Networks share it fairly
//! ([`vpnd_proto::admission::shares`]), so that how long one waits depends on how many networks
//! wait, not on how many logins.
//!
//! INVARIANT: no more turns are given than there are; one that its login does not use any more goes
//! to the next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use vpnd_proto::admission::Source;
use vpnd_proto::admission::shares::{Displaced, Division, Entered, PermitId, Shares, Standing};

use vpnd_sys::clock::now;

/// Gives turns to logins.
pub struct Turns(Mutex<Queue>);

struct Queue {
    /// Free turns. While there is one, no login waits.
    free: usize,
    shares: Shares,
    waiting: HashMap<PermitId, oneshot::Sender<Turn>>,
}

/// The right to go on with one login; the next in the queue has it when this is dropped.
pub struct Turn(Arc<Turns>);

/// A login in the queue; it leaves the queue when this is dropped.
struct QueuedLogin<'t> {
    turns: &'t Turns,
    permit: PermitId,
    turn: oneshot::Receiver<Turn>,
}

impl Turns {
    /// `turns` at once, and at most `queue` logins that wait for one.
    pub fn new(turns: usize, queue: usize) -> Arc<Self> {
        let division = Division { limit: queue, displace_after: Duration::MAX, displaced: Displaced::Newest };
        Arc::new(Self(Mutex::new(Queue {
            free: turns,
            shares: Shares::new(division),
            waiting: HashMap::new(),
        })))
    }

    /// A turn, if no login waits.
    pub fn at_once(self: &Arc<Self>) -> Option<Turn> {
        let mut queue = self.lock();
        queue.free = queue.free.checked_sub(1)?;
        Some(Turn(Arc::clone(self)))
    }

    /// Waits for a turn; `None` if it does not come within `longest`, or the place in the queue is
    /// needed for others.
    pub async fn wait(
        self: &Arc<Self>,
        source: Source,
        standing: Standing,
        longest: Duration,
    ) -> Option<Turn> {
        if let Some(turn) = self.at_once() {
            return Some(turn);
        }
        let mut waiting = self.enter(source, standing)?;
        tokio::time::timeout(longest, &mut waiting.turn).await.ok()?.ok()
    }

    fn enter(&self, source: Source, standing: Standing) -> Option<QueuedLogin<'_>> {
        let mut queue = self.lock();
        let Entered::In { permit, displaced } = queue.shares.enter(now(), source, standing) else {
            return None;
        };
        if let Some(displaced) = displaced {
            queue.waiting.remove(&displaced);
        }
        let (sender, turn) = oneshot::channel();
        queue.waiting.insert(permit, sender);
        Some(QueuedLogin { turns: self, permit, turn })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing that is done with it panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut queue = self.0.lock();
            let next = queue.shares.next_turn().and_then(|permit| queue.waiting.remove(&permit));
            queue.free += usize::from(next.is_none());
            next
        };
        // A login that has left meanwhile gives its turn back, and so passes it on.
        drop(next.map(|login| login.send(Self(Arc::clone(&self.0)))));
    }
}

impl Drop for QueuedLogin<'_> {
    fn drop(&mut self) {
        let mut queue = self.turns.lock();
        queue.shares.leave(self.permit);
        queue.waiting.remove(&self.permit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn source(number: u32) -> Source {
        Source::from(std::net::IpAddr::from(std::net::Ipv4Addr::from_bits(number)))
    }

    /// Waits in the background; the names of those who had their turn are listed in order.
    fn wait(turns: &Arc<Turns>, order: &Arc<Mutex<Vec<&'static str>>>, from: u32, name: &'static str) {
        let (turns, order) = (Arc::clone(turns), Arc::clone(order));
        tokio::spawn(async move {
            let turn = turns.wait(source(from), Standing::Stranger, LONG).await;
            if turn.is_some() {
                order.lock().unwrap().push(name);
                tokio::task::yield_now().await;
            }
        });
    }

    async fn until_waiting(turns: &Turns, count: usize) {
        while turns.lock().shares.taken() < count {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn an_honest_login_passes_a_crowd_of_another_network() {
        let (turns, order) = (Turns::new(1, 64), Arc::new(Mutex::new(Vec::new())));
        let busy = turns.at_once().unwrap();
        for host in 0..16 {
            wait(&turns, &order, 0x0A00_0000 + host, "crowd");
        }
        until_waiting(&turns, 16).await;
        wait(&turns, &order, 0x1400_0001, "honest");
        until_waiting(&turns, 17).await;
        drop(busy);
        while order.lock().unwrap().len() < 17 {
            tokio::task::yield_now().await;
        }
        assert_eq!(order.lock().unwrap().iter().position(|name| *name == "honest"), Some(1));
    }

    #[tokio::test]
    async fn a_full_queue_has_room_for_a_network_that_holds_less() {
        let turns = Turns::new(1, 8);
        let busy = turns.at_once().unwrap();
        let mut crowd: Vec<_> = (0..32).filter_map(|_| turns.enter(source(1), Standing::Stranger)).collect();
        assert_eq!(crowd.len(), 2, "a host has a quarter");
        crowd.extend((1..32).filter_map(|host| turns.enter(source(host << 8), Standing::Stranger)));
        let honest = turns.enter(source(0x1400_0001), Standing::Stranger).unwrap();
        assert!(turns.lock().waiting.contains_key(&honest.permit));
        drop(crowd);
        let queue = turns.lock();
        assert_eq!((queue.shares.taken(), queue.waiting.len()), (1, 1));
        drop(queue);
        drop((honest, busy));
        assert_eq!(turns.lock().free, 1);
    }

    #[tokio::test]
    async fn an_unclaimed_turn_passes_to_the_next() {
        let turns = Turns::new(1, 8);
        let busy = turns.at_once().unwrap();
        let gone = turns.enter(source(1), Standing::Stranger).unwrap();
        let next = turns.enter(source(2), Standing::Stranger).unwrap();
        drop(busy);
        assert_eq!(turns.lock().free, 0, "the first has it");
        drop(gone);
        let mut next = next;
        assert!((&mut next.turn).await.is_ok());
        assert_eq!(turns.lock().free, 1);
    }
}
