//! Places, divided fairly among networks: who gets one, who loses one, whose turn is next.
//!
//! While there is room, every source gets a place, up to a share for each host, site and provider.
//! Without room, a newcomer displaces one of a network that holds more than the newcomer's, from
//! wide to narrow: first providers are compared, then sites of one provider, then hosts of one
//! site. So an attacker with many addresses in one network has one network's share. Turns go round
//! in the same order: providers, then their sites, then hosts.
//!
//! INVARIANT: no more is held than the limit, nor by a network than its share; memory depends on
//! the limit alone. Hosts of one standing never take what is kept for those of another.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BTreeMap;

use super::source::{LEVELS, Network, Source};
use crate::time::Time;

/// How far a host or device is known. A better one is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// Nothing is known of it.
    Stranger,
    /// A client has, or had, a session from this host.
    Known,
    /// It has named what only a device knows that has logged in before.
    Returning,
}

const STANDINGS: [Standing; 3] = [Standing::Stranger, Standing::Known, Standing::Returning];
/// The order of turns if several standings wait: the better ones more often, each always again.
const ROUND: [Standing; 7] = {
    use Standing::{Known, Returning, Stranger};
    [Returning, Known, Returning, Stranger, Returning, Known, Returning]
};
/// One of this many places is reserved for each standing.
const RESERVE: usize = 4;
/// A provider, a site and a host may hold one of this many places.
const SHARES: [usize; LEVELS] = [2, 3, 4];
/// The share of hosts that are not strangers, which many people may share. Only they
/// themselves count, not their neighbours.
const OWN_SHARE: usize = 2;

/// The rule by which one of a host's is displaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Displaced {
    /// The one that has had its place for longest.
    Oldest,
    /// The one that came last: the others have waited longer.
    Newest,
}

/// How places are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Places; at least 1.
    pub limit: usize,
    /// A newcomer whose network holds as much displaces a connection after this time.
    pub displace_after: Duration,
    /// The one of a host's that is displaced.
    pub displaced: Displaced,
}

/// A place that is, or was, taken. Never the same twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitId(u64);

/// The result for a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// It has a place.
    In {
        /// Valid until [`Shares::leave`], or until a newcomer displaces it.
        permit: PermitId,
        /// This place was taken away for it.
        displaced: Option<PermitId>,
    },
    /// There is none: its own network holds as much as any.
    Full,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    networks: [Network; LEVELS],
    standing: Standing,
    since: Time,
}

impl Holder {
    /// The networks by whose loads it is judged, from wide to narrow: a stranger by its neighbours.
    fn judged_by(&self) -> &[Network] {
        match self.standing {
            Standing::Stranger => &self.networks,
            Standing::Known | Standing::Returning => &self.networks[LEVELS - 1..],
        }
    }
}

/// The places of a network.
#[derive(Clone, Copy, Debug)]
struct Load {
    count: usize,
    /// When it had its turn last, or came.
    turn: u64,
}

/// Among whom a place has to become free.
#[derive(Clone, Copy, Debug)]
enum Obstacle {
    Network(Network),
    Standing(Standing),
}

/// Places and who holds them.
#[derive(Debug)]
pub struct Shares {
    division: Division,
    holders: BTreeMap<PermitId, Holder>,
    loads: BTreeMap<(Standing, Network), Load>,
    counts: [usize; STANDINGS.len()],
    next_id: u64,
    turns: u64,
    /// Position in [`ROUND`].
    round: usize,
}

impl Shares {
    /// All places are free.
    #[must_use]
    pub fn new(division: Division) -> Self {
        Self {
            division: Division { limit: division.limit.max(1), ..division },
            holders: BTreeMap::new(),
            loads: BTreeMap::new(),
            counts: [0; STANDINGS.len()],
            next_id: 0,
            turns: 0,
            round: 0,
        }
    }

    /// Returns the number of places that are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.holders.len()
    }

    /// A request for a place.
    pub fn enter(&mut self, now: Time, source: Source, standing: Standing) -> Entered {
        let newcomer = Holder { networks: source.networks(), standing, since: now };
        let displaced = match self.obstacle(&newcomer) {
            None => None,
            Some(obstacle) => match self.displaced_by(&newcomer, obstacle) {
                None => return Entered::Full,
                victim => victim,
            },
        };
        if let Some(victim) = displaced {
            self.leave(victim);
        }
        let permit = PermitId(self.next_id);
        self.next_id += 1;
        self.holders.insert(permit, newcomer);
        self.counts[standing as usize] += 1;
        for network in newcomer.judged_by() {
            self.turns += 1;
            let fresh = Load { count: 0, turn: self.turns };
            self.loads.entry((standing, *network)).or_insert(fresh).count += 1;
        }
        Entered::In { permit, displaced }
    }

    /// A place is free; false if it was already.
    pub fn leave(&mut self, permit: PermitId) -> bool {
        let Some(holder) = self.holders.remove(&permit) else { return false };
        self.counts[holder.standing as usize] -= 1;
        for network in holder.judged_by() {
            let key = (holder.standing, *network);
            if let Some(load) = self.loads.get_mut(&key) {
                load.count -= 1;
                if load.count == 0 {
                    self.loads.remove(&key);
                }
            }
        }
        true
    }

    /// Takes the one whose turn it is; its place is free then. Of one host's, the first to come.
    pub fn next_turn(&mut self) -> Option<PermitId> {
        let standing = self.standing_in_turn()?;
        let waiting = self.holders.iter().filter(|(_, holder)| holder.standing == standing);
        let first = waiting.min_by_key(|(id, holder)| (self.loads_of(holder).map(|load| load.turn), **id));
        let (permit, holder) = first.map(|(id, holder)| (*id, *holder))?;
        self.leave(permit);
        for network in holder.judged_by() {
            self.turns += 1;
            if let Some(load) = self.loads.get_mut(&(standing, *network)) {
                load.turn = self.turns;
            }
        }
        Some(permit)
    }

    fn standing_in_turn(&mut self) -> Option<Standing> {
        let preferred = ROUND[self.round % ROUND.len()];
        let best_first = STANDINGS.into_iter().rev();
        let standing =
            core::iter::once(preferred).chain(best_first).find(|standing| self.count(*standing) > 0)?;
        self.round = (self.round + 1) % ROUND.len();
        Some(standing)
    }

    /// The limits that keep a newcomer from a free place, the nearest first.
    fn obstacle(&self, newcomer: &Holder) -> Option<Obstacle> {
        let limit = self.division.limit;
        let strangers = newcomer.standing == Standing::Stranger;
        let shares = if strangers { &SHARES[..] } else { &[OWN_SHARE] };
        let networks = newcomer.judged_by().iter().zip(shares).rev();
        let mut full = networks.filter(|(network, share)| {
            let held = self.loads.get(&(newcomer.standing, **network)).map_or(0, |load| load.count);
            held >= (limit / *share).max(1)
        });
        if let Some((network, _)) = full.next() {
            return Some(Obstacle::Network(*network));
        }
        if strangers && self.count(Standing::Stranger) >= limit - self.reserve() {
            return Some(Obstacle::Standing(Standing::Stranger));
        }
        (self.taken() >= limit).then(|| Obstacle::Standing(self.standing_to_displace(newcomer.standing)))
    }

    /// The one whose place a newcomer may take: the least known that hold more than their reserve.
    fn standing_to_displace(&self, newcomer: Standing) -> Standing {
        let reserve = self.reserve();
        let above = STANDINGS.into_iter().find(|standing| self.count(*standing) > reserve);
        let owed = self.count(newcomer) < reserve;
        above.filter(|standing| *standing <= newcomer || owed).unwrap_or(newcomer)
    }

    fn displaced_by(&self, newcomer: &Holder, obstacle: Obstacle) -> Option<PermitId> {
        let candidates = self.holders.iter().filter(|(_, holder)| match obstacle {
            Obstacle::Network(network) => {
                holder.standing == newcomer.standing && holder.judged_by().contains(&network)
            }
            Obstacle::Standing(standing) => holder.standing == standing,
        });
        let heaviest = candidates.max_by_key(|(id, holder)| {
            let age = match self.division.displaced {
                Displaced::Oldest => (Reverse(id.0), 0),
                Displaced::Newest => (Reverse(0), id.0),
            };
            (self.loads_of(holder).map(|load| load.count), age)
        });
        let (id, holder) = heaviest?;
        self.may_displace(newcomer, holder).then_some(*id)
    }

    fn may_displace(&self, newcomer: &Holder, holder: &Holder) -> bool {
        if holder.standing != newcomer.standing {
            return true;
        }
        let count =
            |network: &Network| self.loads.get(&(holder.standing, *network)).map_or(0, |load| load.count);
        let mut pairs = holder.judged_by().iter().zip(newcomer.judged_by());
        let apart = pairs.find(|(theirs, ours)| theirs != ours);
        // With one more of ours they would hold as much: else two would take from each other.
        apart.is_some_and(|(theirs, ours)| count(theirs) > count(ours) + 1)
            || newcomer.since.since(holder.since) >= self.division.displace_after
    }

    fn loads_of(&self, holder: &Holder) -> [Load; LEVELS] {
        let mut loads = [Load { count: 0, turn: 0 }; LEVELS];
        for (load, network) in loads.iter_mut().zip(holder.judged_by()) {
            *load = self.loads.get(&(holder.standing, *network)).copied().unwrap_or(*load);
        }
        loads
    }

    fn count(&self, standing: Standing) -> usize {
        self.counts[standing as usize]
    }

    fn reserve(&self) -> usize {
        self.division.limit / RESERVE
    }
}

#[cfg(test)]
mod tests;
