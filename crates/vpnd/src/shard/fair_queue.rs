//! A queue for each flow, served by deficit round robin; a flow that comes anew goes before those that have a backlog (RFC 8290), as
//! far as its entries fit into a quantum: otherwise a call would wait behind the long bursts of all that come anew, too.
//!
//! Pure: it knows neither sockets nor packets nor memory, only what each entry costs to serve and how much room it takes. Its owner
//! bounds it: [`FairQueue::drop_longest`] makes room at the expense of the flow that has most.
//!
//! INVARIANTS: the entries of a flow leave in the order in which they came. A flow that always has entries is served, between any
//! two instants, within one quantum and two entries of any other such flow. What is dropped is of a flow that takes at least half
//! the room of the one that takes most.

/// The end of a list.
const NONE: u32 = u32::MAX;

/// What an entry costs to serve, and how much room it takes.
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
    flows: Vec<Flow>,
    /// By flow, apart from the rest: the search for the longest reads all of them.
    rooms: Vec<u32>,
    entries: Vec<Entry<T>>,
    /// The first entry that is not in use.
    free: u32,
    len: usize,
    /// Flows that had nothing to serve for a round at least.
    new: List,
    /// The others, in the order of their turns.
    old: List,
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
    /// How much it may still be served in this round; below zero, its debt.
    deficit: i64,
    listed: bool,
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
    /// An empty one with room for so many entries before it allocates. A flow is served for `quantum` in each round.
    pub(super) fn new(quantum: u32, entries: usize) -> Self {
        Self {
            quantum: quantum.into(),
            flows: Vec::new(),
            rooms: Vec::new(),
            entries: Vec::with_capacity(entries),
            free: NONE,
            len: 0,
            new: List::EMPTY,
            old: List::EMPTY,
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
            (queue.listed, queue.deficit) = (true, self.quantum);
            self.new.push(&mut self.flows, flow);
        }
        self.rooms[number] += size.room;
        if self.rooms[number] >= self.rooms[self.longest as usize] {
            self.longest = flow;
            self.peak = self.peak.max(self.rooms[number]);
        }
    }

    /// Takes the entry whose turn it is.
    pub(super) fn pop(&mut self) -> Option<T> {
        loop {
            let is_new = self.new.first != NONE;
            let list = if is_new { &mut self.new } else { &mut self.old };
            let number = list.first;
            let flow = self.flows.get_mut(number as usize)?;
            if flow.deficit <= 0 {
                flow.deficit += self.quantum;
                list.pop(&mut self.flows);
                self.old.push(&mut self.flows, number);
            } else if flow.first == NONE {
                list.pop(&mut self.flows);
                // One that comes and goes quickly would otherwise always be new, and the others never had their turn.
                if is_new && self.old.first != NONE {
                    self.old.push(&mut self.flows, number);
                } else {
                    self.flows[number as usize].listed = false;
                }
            } else if is_new && i64::from(self.entries[flow.first as usize].size.cost) > flow.deficit {
                list.pop(&mut self.flows);
                self.old.push(&mut self.flows, number);
            } else {
                self.served = number;
                return self.take(number);
            }
        }
    }

    /// The flow that was served last, and whether it has nothing left.
    pub(super) fn served(&self) -> (u32, bool) {
        (self.served, self.flows.get(self.served as usize).is_none_or(|flow| flow.first == NONE))
    }

    /// Takes the next entry of the flow that was served last, if its turn goes on and `joins` agrees.
    pub(super) fn pop_same(&mut self, joins: impl FnOnce(&T) -> bool) -> Option<T> {
        let flow = self.flows.get(self.served as usize).filter(|flow| flow.deficit > 0)?;
        let next = self.entries.get(flow.first as usize)?.item.as_ref()?;
        if joins(next) { self.take(self.served) } else { None }
    }

    /// Takes the oldest entry of the flow that takes most room, or at least half as much as that one.
    pub(super) fn drop_longest(&mut self) -> Option<T> {
        let room = self.rooms.get(self.longest as usize).copied()?;
        if room.saturating_mul(2) <= self.peak {
            let (longest, peak) = self.rooms.iter().enumerate().max_by_key(|(_, room)| **room)?;
            (self.longest, self.peak) = (longest as u32, *peak);
        }
        let deficit = self.flows[self.longest as usize].deficit;
        let dropped = self.take(self.longest);
        // It was not served.
        self.flows[self.longest as usize].deficit = deficit;
        dropped
    }

    /// Takes the first entry of a flow.
    fn take(&mut self, number: u32) -> Option<T> {
        let flow = &mut self.flows[number as usize];
        let at = flow.first;
        let entry = self.entries.get_mut(at as usize)?;
        flow.first = entry.next;
        if flow.first == NONE {
            flow.last = NONE;
        }
        flow.deficit -= i64::from(entry.size.cost);
        self.rooms[number as usize] -= entry.size.room;
        entry.next = self.free;
        self.free = at;
        self.len -= 1;
        entry.item.take()
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
    const IDLE: Self = Self { first: NONE, last: NONE, next: NONE, deficit: 0, listed: false };
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
