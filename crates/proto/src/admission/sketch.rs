//! Rates of arbitrarily many sources in a table of fixed size, which needs no eviction.
//!
//! Each source has one cell in each of two rows, shared with the sources that hash to the same
//! place. A cell holds the time until which its share is used up (the generic cell rate algorithm:
//! a token bucket in one number), and a source counts as far ahead as the less used of its cells.
//! So a source is never allowed more than its rate, and is allowed less only if both its cells are
//! shared with busy ones: what a flood of many sources does to others is spread so thin that its
//! rate refills it.

use crate::time::Time;

/// Cells of a row.
const CELLS: usize = 1 << 14;

/// A rate with a burst.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Events a second in the long run; 0 counts as 1.
    pub per_s: u64,
    /// Events at once.
    pub burst: u64,
}

/// The rate of one source, whose use is one number: the nanosecond until which its share is used.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Nanoseconds that one costs, and that a source may be ahead.
    cost: u64,
    ahead: u64,
}

impl Share {
    /// At this rate.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        let cost = (1_000_000_000 / rate.per_s.max(1)).max(1);
        Self { cost, ahead: cost.saturating_mul(rate.burst.saturating_sub(1)) }
    }

    /// Whether there is one more now.
    #[must_use]
    pub fn allows(&self, used_until: u64, now: Time) -> bool {
        used_until <= now.as_nanos().saturating_add(self.ahead)
    }

    /// Until when the share is used up after one more.
    #[must_use]
    pub fn charged(&self, used_until: u64, now: Time) -> u64 {
        used_until.max(now.as_nanos()).saturating_add(self.cost)
    }
}

/// Where a source stands in the rows.
#[derive(Clone, Copy, Debug)]
pub struct Cells([usize; 2]);

impl Cells {
    /// From a keyed hash of the source.
    #[must_use]
    pub fn from_hash(hash: u64) -> Self {
        Self([hash as u32 as usize % CELLS, (hash >> 32) as usize % CELLS])
    }
}

/// Keeps the rates of sources.
#[derive(Debug)]
pub struct Sketch {
    rows: [Box<[u64]>; 2],
    share: Share,
}

impl Sketch {
    /// No source has used anything.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        let row = || vec![0; CELLS].into_boxed_slice();
        Self { rows: [row(), row()], share: Share::new(rate) }
    }

    /// Whether the source may have one more now.
    #[must_use]
    pub fn allows(&self, cells: Cells, now: Time) -> bool {
        self.share.allows(self.used_until(cells), now)
    }

    /// The source takes one.
    pub fn charge(&mut self, Cells(cells): Cells, now: Time) {
        let until = self.share.charged(self.used_until(Cells(cells)), now);
        for (row, cell) in self.rows.iter_mut().zip(cells) {
            row[cell] = row[cell].max(until);
        }
    }

    fn used_until(&self, Cells(cells): Cells) -> u64 {
        let [first, second] = &self.rows;
        first[cells[0]].min(second[cells[1]])
    }
}
