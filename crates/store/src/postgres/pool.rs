//! The connections of a process to its database: the first for changes, the others for queries.
//!
//! A separate thread keeps them: it connects, verifies, and connects again, so that no caller that
//! needs a connection waits for the network; without one they get the reason at once. INVARIANT: a
//! connection is used by one caller at a time, and one that changes things is given out only after
//! [`holder`] has admitted it.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use super::access::{Access, Dial};
use super::engine::Session;
use super::format;
use super::history::{Histories, History};
use super::holder::Holder;
use super::link::{self, ServerFacts};
use super::trouble::Trouble;

/// A server that is away is tried this often.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Limit for the first attempt, which has separate limits.
const FIRST_TIMEOUT: Duration = Duration::from_secs(60);

/// State of one connection.
enum State {
    /// It was not tried yet.
    Beginning,
    Up(Session, ServerFacts, Arc<Notify>),
    Away(Trouble),
}

struct Slot {
    state: Mutex<State>,
    changed: Condvar,
}

pub(super) struct Pool {
    slots: Vec<Arc<Slot>>,
    turns: Mutex<Turns>,
    histories: Arc<Histories>,
    /// `None` once it ends.
    runtime: Option<Runtime>,
}

/// Which connections are in use, and those who wait in turn: for the first, and for the others.
struct Turns {
    in_use: Vec<bool>,
    waiting: [VecDeque<Arc<Condvar>>; 2],
}

/// The right to use a connection until it is dropped.
pub(super) struct Turn<'p> {
    pool: &'p Pool,
    number: usize,
}

impl Pool {
    pub(super) fn start(
        access: &Access,
        dial: &Arc<dyn Dial>,
        holder: &Holder,
        size: usize,
        state_dir: &Path,
    ) -> Result<Self, Trouble> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("store")
            .enable_all()
            .build()
            .map_err(|error| Trouble::Failed(error.to_string()))?;
        let histories = Arc::new(Histories::of_state_dir(state_dir, holder.instance.is_some()));
        let slots: Vec<Arc<Slot>> = (0..size).map(|_| Arc::new(Slot::new())).collect();
        for (number, slot) in slots.iter().enumerate() {
            let kept = Kept {
                slot: Arc::clone(slot),
                access: access.clone(),
                dial: Arc::clone(dial),
                holder: (number == 0).then(|| holder.clone()),
                gateway: holder.gateway,
                histories: Arc::clone(&histories),
                runtime: runtime.handle().clone(),
            };
            runtime.spawn(kept.keep());
        }
        let turns = Mutex::new(Turns { in_use: vec![false; size], waiting: Default::default() });
        Ok(Self { slots, turns, histories, runtime: Some(runtime) })
    }

    /// The connection for changes, once it is this caller's turn.
    pub(super) fn changes(&self, until: Instant) -> Result<Turn<'_>, Trouble> {
        self.turn(0..1, until)
    }

    /// A connection for a query: the first that is free, of those that work if there are some.
    pub(super) fn queries(&self, until: Instant) -> Result<Turn<'_>, Trouble> {
        self.turn(self.slots.len().min(2) - 1..self.slots.len(), until)
    }

    fn turn(&self, among: Range<usize>, until: Instant) -> Result<Turn<'_>, Trouble> {
        let (mut turns, own) = (self.turns.lock(), Arc::new(Condvar::new()));
        let queue = among.start;
        turns.waiting[queue].push_back(Arc::clone(&own));
        // A connection may work again since the next one looked.
        turns.wake(queue);
        let mut is_over = false;
        loop {
            let is_next = turns.waiting[queue].front().is_some_and(|next| Arc::ptr_eq(next, &own));
            let free = if is_next { self.free(among.clone(), &turns.in_use) } else { None };
            if free.is_some() || is_over {
                turns.waiting[queue].retain(|waiting| !Arc::ptr_eq(waiting, &own));
                turns.wake(queue);
                let number = free.ok_or(Trouble::Busy)?;
                turns.in_use[number] = true;
                return Ok(Turn { pool: self, number });
            }
            is_over = own.wait_until(&mut turns, until).timed_out();
        }
    }

    fn free(&self, among: Range<usize>, in_use: &[bool]) -> Option<usize> {
        let (up, away): (Vec<usize>, Vec<usize>) = among.partition(|number| self.slots[*number].is_up());
        let usable = if up.is_empty() { away } else { up };
        usable.into_iter().find(|number| !in_use[*number])
    }

    /// Histories of the servers on which changes were made.
    pub(super) fn histories(&self) -> &Histories {
        &self.histories
    }

    /// Why there is no connection for changes, if there is none.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        match &*self.slots[0].state.lock() {
            State::Away(trouble) => Some(trouble.clone()),
            State::Beginning | State::Up(..) => None,
        }
    }

    /// Waits until each connection was tried, and that for changes, while another start of this
    /// gateway counts as running, until `patience` is over; the facts of the server.
    pub(super) fn wait(&self, patience: Instant) -> Result<ServerFacts, Trouble> {
        let facts = self.slots[0].wait_tried(patience)?;
        // Changes tell what is wrong; queries do with as many connections as there are.
        self.slots.iter().skip(1).for_each(|slot| drop(slot.wait_tried(Instant::now())));
        Ok(facts)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.pool.turns.lock();
        turns.in_use[self.number] = false;
        turns.wake(self.number.min(1));
    }
}

impl Turns {
    fn wake(&self, queue: usize) {
        if let Some(next) = self.waiting[queue].front() {
            next.notify_one();
        }
    }
}

impl Turn<'_> {
    fn slot(&self) -> &Slot {
        &self.pool.slots[self.number]
    }

    pub(super) fn session(&self) -> Result<Session, Trouble> {
        match &*self.slot().state.lock() {
            State::Beginning => Err(Trouble::Unreachable("it is being connected to".to_owned())),
            State::Up(session, ..) => Ok(session.clone()),
            State::Away(trouble) => Err(trouble.clone()),
        }
    }

    /// The next connection, after this one was lost.
    pub(super) fn next_session(&self, lost: &Session, until: Instant) -> Result<Session, Trouble> {
        let mut state = self.slot().state.lock();
        loop {
            match &*state {
                State::Up(session, ..) if !Arc::ptr_eq(&session.client, &lost.client) => {
                    return Ok(session.clone());
                }
                _ => {}
            }
            if self.slot().changed.wait_until(&mut state, until).timed_out() {
                return Err(Trouble::Unreachable("it did not come back in time".to_owned()));
            }
        }
    }

    /// Gives the connection up; another is made.
    pub(super) fn give_up(&self, session: &Session, why: &Trouble) {
        let mut state = self.slot().state.lock();
        let broken = match &*state {
            State::Up(known, _, broken) if Arc::ptr_eq(&known.client, &session.client) => Arc::clone(broken),
            _ => return,
        };
        *state = State::Away(why.clone());
        broken.notify_one();
    }
}

impl Slot {
    fn new() -> Self {
        Self { state: Mutex::new(State::Beginning), changed: Condvar::new() }
    }

    fn is_up(&self) -> bool {
        matches!(&*self.state.lock(), State::Up(..))
    }

    fn set(&self, state: State) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }

    fn wait_tried(&self, patience: Instant) -> Result<ServerFacts, Trouble> {
        let tried = Instant::now() + FIRST_TIMEOUT;
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::Up(_, facts, _) => return Ok(facts.clone()),
                State::Away(trouble) if !matches!(trouble, Trouble::InUse(_)) => return Err(trouble.clone()),
                State::Away(_) => {
                    if self.changed.wait_until(&mut state, patience).timed_out()
                        && let State::Away(trouble) = &*state
                    {
                        return Err(trouble.clone());
                    }
                }
                State::Beginning => {
                    if self.changed.wait_until(&mut state, tried).timed_out() {
                        return Err(Trouble::Unreachable("there is no answer".to_owned()));
                    }
                }
            }
        }
    }
}

/// The keeper of one connection.
struct Kept {
    slot: Arc<Slot>,
    access: Access,
    dial: Arc<dyn Dial>,
    /// Admits the connection for changes.
    holder: Option<Holder>,
    gateway: [u8; 16],
    histories: Arc<Histories>,
    runtime: tokio::runtime::Handle,
}

impl Kept {
    async fn keep(self) {
        let mut logged = None;
        loop {
            let wanted = self.wanted().await;
            let lost = match link::connect(&self.access, &self.dial, wanted).await {
                Ok(mut link) => match self.admit(&mut link).await {
                    Ok(()) => {
                        if logged.take().is_some() && self.holder.is_some() {
                            tracing::info!(database = self.access.name(), "the user database is there again");
                        }
                        self.use_up(link).await
                    }
                    Err(trouble) => trouble,
                },
                Err(trouble) => trouble,
            };
            if self.holder.is_some() && logged.as_ref() != Some(&lost) {
                tracing::warn!("the user database {} {lost}", self.access.name());
                logged = Some(lost.clone());
            }
            self.slot.set(State::Away(lost));
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// For a query, the history that changes are made on, once that is known.
    async fn wanted(&self) -> Option<History> {
        if self.holder.is_some() {
            return None;
        }
        // The sender lives as long as this.
        self.histories.present().wait_for(Option::is_some).await.ok().and_then(|present| *present)
    }

    /// Verifies the schema, and for changes the server and whose the database is.
    async fn admit(&self, link: &mut link::Link) -> Result<(), Trouble> {
        let history = link.facts.history;
        let admitted = async {
            if self.holder.is_some() {
                self.histories.check(history)?;
            }
            format::check(&link.client).await?;
            match &self.holder {
                Some(holder) => {
                    let last = self.histories.last();
                    let has_lost = holder.admit(&link.client, last).await?;
                    // A command that only looks leaves the tables as they are.
                    if holder.instance.is_some() || holder.fleet.is_none() {
                        format::bring_up(&link.client, format::STEPS).await?;
                    }
                    self.histories.go_on_with(history, has_lost, Instant::now());
                    if let Some(last) = last.filter(|_| has_lost) {
                        tracing::error!(
                            "the user database {} {}",
                            self.access.name(),
                            Trouble::Lost(last.number)
                        );
                    }
                    Ok(())
                }
                None => Ok(()),
            }
        };
        tokio::select! {
            admitted = tokio::time::timeout(Duration::from_secs(10), admitted) => match admitted {
                Ok(admitted) => admitted.map_err(super::trouble::Fault::into_trouble),
                Err(_) => Err(Trouble::Unreachable("it does not answer".to_owned())),
            },
            ended = &mut link.driver => Err(Trouble::Unreachable(reason(ended))),
        }
    }

    /// Lets callers use the connection until it has ended.
    async fn use_up(&self, link: link::Link) -> Trouble {
        let link::Link { client, driver, facts } = link;
        let session = Session::new(client, self.runtime.clone(), self.gateway);
        let (history, mut present) = (facts.history, self.histories.present());
        let has_moved = present.wait_for(move |present| *present != Some(history));
        // A signal of this connection alone: the loss of an earlier one must not end it.
        let broken = Arc::new(Notify::new());
        self.slot.set(State::Up(session, facts, Arc::clone(&broken)));
        tokio::select! {
            ended = driver => Trouble::Unreachable(reason(ended)),
            _ = has_moved => Trouble::Unreachable("another server has taken over".to_owned()),
            () = broken.notified() => Trouble::Unreachable("the connection was lost".to_owned()),
        }
    }
}

fn reason(ended: Result<(), tokio_postgres::Error>) -> String {
    match ended {
        Ok(()) => "the connection has ended".to_owned(),
        Err(error) => match super::trouble::Fault::from(error) {
            super::trouble::Fault::Lost(why) => why,
            other => other.to_string(),
        },
    }
}
