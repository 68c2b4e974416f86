//! A queue for each flow, served by deficit round robin. New flows are served before those that
//! have a backlog (RFC 8290), each for a small part of a turn; a new flow with more waits behind
//! new flows with less, so that a call does not wait behind bursts.
//!
//! The fewer flows have a backlog, the longer are their turns, so that a round takes about as long.
//! Long turns are efficient: messages to one receiver in a row find it awake, while each message
//! that wakes up another, on a busy core, costs two thread switches. So that long turns keep no
//! small flow waiting, a flow that became empty may be new again before its turn (in RFC 8290 it
//! may not), until it has had its part of the round.
//!
//! Pure: it knows neither sockets nor packets nor memory, only what each entry costs to serve and
//! how much room it takes. Its owner bounds it: [`FairQueue::drop_longest`] makes room at the
//! expense of the flow that has most.
//!
//! INVARIANTS: the entries of a flow leave in the order in which they came. A flow that always has
//! entries is served, between any two instants, within two turns and two entries of any other flow.
//! A dropped entry is of a flow that takes at least half the room of the one that takes most.

/// The end of a list.
const NONE: u32 = u32::MAX;

/// With fewer flows than these a round is shorter: nothing is gained by turns that are longer
/// still.
const FEW: usize = 8;
/// A new flow is served this fraction (1/8) of a turn before all others.
const EARLY: i64 = 8;

/// Cost of serving an entry, and the room that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// In the unit of the quantum.
    pub(super) cost: u32,
    pub(super) room: u32,
}

/// The queues of all flows. Flows are numbers, best small and dense.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    quantum: i64,
    /// Cost of a round, as far as no turn is shorter than a quantum.
    round: i64,
    /// Total cost that was served so far.
    total: u64,
    flows: Vec<Flow>,
    /// By flow, apart from the rest: the search for the longest reads all of them.
    rooms: Vec<u32>,
    entries: Vec<Entry<T>>,
    /// The first entry that is not in use.
    free: u32,
    len: usize,
    /// Flows that had nothing to serve a moment ago.
    new: List,
    /// Those that had nothing for a round, and now have more than is served so early.
    due: List,
    /// The others, in the order of their turns.
    old: List,
    /// Flows in these lists.
    listed: usize,
    /// The flow that was served last.
    served: u32,
    /// A flow that takes at least half of `peak`.
    longest: u32,
    /// No flow takes more room.
    peak: u32,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    first: u32,
    last: u32,
    /// The flow behind it in its list.
    next: u32,
    /// The cost that may still be served in this round; below zero, its debt.
    deficit: i64,
    /// When it may be served before its turn again, by [`FairQueue::total`].
    anew_at: u64,
    /// Whether it has not had a turn in this round.
    fresh: bool,
    listed: bool,
}

/// A flow's part of a round.
struct Share {
    /// The cost that it is served.
    turn: i64,
    /// The part of that before its turn, if it is new.
    early: i64,
    /// The round's end, by [`FairQueue::total`].
    until: u64,
}

#[derive(Debug)]
struct Entry<T> {
    /// `None` while it is not in use.
    item: Option<T>,
    size: Size,
    next: u32,
}

/// A list of flows, linked by [`Flow::next`].
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

impl<T> FairQueue<T> {
    /// An empty queue with room for `entries` entries before it allocates. A flow is served for its
    /// part of `round` in each, and at least for `quantum`.
    pub(super) fn new(quantum: u32, round: u32, entries: usize) -> Self {
        Self {
            quantum: quantum.into(),
            round: round.into(),
            total: 0,
            flows: Vec::new(),
            rooms: Vec::new(),
            entries: Vec::with_capacity(entries),
            free: NONE,
            len: 0,
            new: List::EMPTY,
            due: List::EMPTY,
            old: List::EMPTY,
            listed: 0,
            served: NONE,
            longest: 0,
            peak: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts an entry behind the others of its flow.
    pub(super) fn push(&mut self, flow: u32, item: T, size: Size) {
        let number = flow as usize;
        if self.flows.len() <= number {
            self.flows.resize(number + 1, Flow::IDLE);
            self.rooms.resize(number + 1, 0);
        }
        let entry = self.store(Entry { item: Some(item), size, next: NONE });
        let queue = &mut self.flows[number];
        match queue.last {
            NONE => queue.first = entry,
            last => self.entries[last as usize].next = entry,
        }
        queue.last = entry;
        if !queue.listed {
            queue.listed = true;
            self.listed += 1;
            self.list_anew(flow);
        }
        self.rooms[number] += size.room;
        if self.rooms[number] >= self.rooms[self.longest as usize] {
            self.longest = flow;
            self.peak = self.peak.max(self.rooms[number]);
        }
    }

    /// Lists a flow that had nothing to serve: for what it has left in this round, or for a new
    /// one.
    fn list_anew(&mut self, number: u32) {
        let Share { turn: _, early, until } = self.share();
        let flow = &mut self.flows[number as usize];
        if self.total >= flow.anew_at {
            (flow.fresh, flow.deficit, flow.anew_at) = (true, early, until);
        } else {
            flow.deficit = flow.deficit.min(early);
        }
        self.new.push(&mut self.flows, number);
    }

    /// Takes the entry whose turn it is.
    pub(super) fn pop(&mut self) -> Option<T> {
        let Share { turn, early, until } = self.share();
        loop {
            let Self { new, due, old, flows, .. } = self;
            let is_new = new.first != NONE;
            let list = match (is_new, due.first) {
                (true, _) => &mut *new,
                (false, NONE) => &mut *old,
                (false, _) => &mut *due,
            };
            let number = list.first;
            let flow = flows.get_mut(number as usize)?;
            let cost = self.entries.get(flow.first as usize).map(|entry| i64::from(entry.size.cost));
            if flow.deficit <= 0 || is_new && cost.is_some_and(|cost| cost > flow.deficit) {
                let is_due = is_new && std::mem::take(&mut flow.fresh);
                flow.deficit += if is_due { turn - early } else { turn };
                if !is_new {
                    flow.anew_at = until;
                }
                list.pop(flows);
                if is_due { due } else { old }.push(flows, number);
            } else if cost.is_none() {
                flow.listed = false;
                self.listed -= 1;
                list.pop(flows);
            } else {
                self.served = number;
                return self.serve(number);
            }
        }
    }

    /// A flow's part of the round that begins now.
    fn share(&self) -> Share {
        let turn = self.quantum.max(self.round / self.listed.max(FEW) as i64);
        let early = self.quantum.max(turn / EARLY);
        Share { turn, early, until: self.total + self.listed as u64 * turn as u64 }
    }

    /// The flow that was served last, and whether it has nothing left.
    pub(super) fn served(&self) -> (u32, bool) {
        (self.served, self.flows.get(self.served as usize).is_none_or(|flow| flow.first == NONE))
    }

    /// Takes the next entry of the flow that was served last, if its turn goes on and `joins`
    /// agrees.
    pub(super) fn pop_same(&mut self, joins: impl FnOnce(&T) -> bool) -> Option<T> {
        let flow = self.flows.get(self.served as usize).filter(|flow| flow.deficit > 0)?;
        let next = self.entries.get(flow.first as usize)?.item.as_ref()?;
        if joins(next) { self.serve(self.served) } else { None }
    }

    /// Takes the oldest entry of the flow that takes most room, or at least half as much as that
    /// one.
    pub(super) fn drop_longest(&mut self) -> Option<T> {
        let room = self.rooms.get(self.longest as usize).copied()?;
        if room.saturating_mul(2) <= self.peak {
            let (longest, peak) = self.rooms.iter().enumerate().max_by_key(|(_, room)| **room)?;
            (self.longest, self.peak) = (longest as u32, *peak);
        }
        self.take(self.longest).map(|(item, _)| item)
    }

    /// Takes the first entry of a flow, which is charged for it.
    fn serve(&mut self, number: u32) -> Option<T> {
        let (item, cost) = self.take(number)?;
        self.flows[number as usize].deficit -= i64::from(cost);
        self.total += u64::from(cost);
        Some(item)
    }

    /// Takes the first entry of a flow. Returns it and what it costs to serve.
    fn take(&mut self, number: u32) -> Option<(T, u32)> {
        let flow = &mut self.flows[number as usize];
        let at = flow.first;
        let entry = self.entries.get_mut(at as usize)?;
        flow.first = entry.next;
        if flow.first == NONE {
            flow.last = NONE;
        }
        self.rooms[number as usize] -= entry.size.room;
        entry.next = self.free;
        self.free = at;
        self.len -= 1;
        entry.item.take().map(|item| (item, entry.size.cost))
    }

    fn store(&mut self, entry: Entry<T>) -> u32 {
        self.len += 1;
        let at = self.free;
        if let Some(unused) = self.entries.get_mut(at as usize) {
            self.free = unused.next;
            *unused = entry;
            at
        } else {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        }
    }
}

impl Flow {
    const IDLE: Self =
        Self { first: NONE, last: NONE, next: NONE, deficit: 0, anew_at: 0, fresh: true, listed: false };
}

impl List {
    const EMPTY: Self = Self { first: NONE, last: NONE };

    fn push(&mut self, flows: &mut [Flow], number: u32) {
        flows[number as usize].next = NONE;
        match self.last {
            NONE => self.first = number,
            last => flows[last as usize].next = number,
        }
        self.last = number;
    }

    /// Takes the first, which is there.
    fn pop(&mut self, flows: &mut [Flow]) {
        self.first = flows[self.first as usize].next;
        if self.first == NONE {
            self.last = NONE;
        }
    }
}

#[cfg(test)]
mod tests;
