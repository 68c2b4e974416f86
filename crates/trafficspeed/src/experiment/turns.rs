//! The order in which systems take their turns, and the pause between two of them.

use std::thread;
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use crate::interrupt::Interrupt;

/// The machine is left idle for this long before each turn: what the one before left to do, such
/// as the removal of its namespaces, is then not in the next one's figures.
pub const PAUSE: Duration = Duration::from_millis(500);

/// `all` in the order of round `round`: shuffled, and in the same way whenever this is asked for,
/// so that a measurement that is resumed goes on in it. A place in the order or a neighbour, such
/// as a warm machine or what the system before left behind, is then no system's own: equal systems
/// are told apart no more often where the noise of one measurement goes on in the next.
pub fn order<T>(all: impl IntoIterator<Item = T>, round: u32) -> Vec<T> {
    let mut all: Vec<T> = all.into_iter().collect();
    all.shuffle(&mut ChaCha8Rng::seed_from_u64(round.into()));
    all
}

/// Gives each of `all` its turn in each of `rounds` rounds, in that round's order, until the user
/// interrupts. Returns the results in the order of reports: round by round, each as `all` has them.
pub fn in_turns<T, R>(
    all: &[T],
    rounds: u32,
    interrupt: &Interrupt,
    mut turn: impl FnMut(&T, u32) -> R,
) -> Vec<R> {
    let mut results = Vec::new();
    for round in 1..=rounds {
        for (place, one) in order(all.iter().enumerate(), round) {
            if !interrupt.is_set() {
                results.push(((round, place), turn(one, round)));
            }
        }
    }
    results.sort_by_key(|(place, _)| *place);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Leaves the machine idle before a turn.
pub fn pause() {
    thread::sleep(PAUSE);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn turns_are_shuffled_evenly() {
        let (mut places, mut neighbours) = (BTreeSet::new(), BTreeSet::new());
        for round in 1..=100 {
            let turns = order(['a', 'b', 'c', 'd'], round);
            assert_eq!(turns.iter().collect::<BTreeSet<_>>().len(), 4);
            assert_eq!(turns, order(['a', 'b', 'c', 'd'], round), "the same whenever it is asked for");
            places.extend(turns.iter().copied().enumerate());
            neighbours.extend(turns.windows(2).map(|pair| (pair[0], pair[1])));
        }
        assert_eq!((places.len(), neighbours.len()), (4 * 4, 4 * 3));
        let orders: BTreeSet<Vec<u32>> = (1..=5).map(|round| order(0..20, round)).collect();
        assert_eq!(orders.len(), 5, "the first round is shuffled, too");
        assert!(!orders.contains(&(0..20).collect::<Vec<_>>()));
    }

    #[test]
    fn results_are_in_the_order_of_reports_round_by_round() {
        let interrupt = Interrupt::default();
        let mut turns = Vec::new();
        let found = in_turns(&['a', 'b', 'c', 'd'], 2, &interrupt, |one, round| {
            turns.push((round, *one));
            (round, *one)
        });
        assert_eq!(found, [(1, 'a'), (1, 'b'), (1, 'c'), (1, 'd'), (2, 'a'), (2, 'b'), (2, 'c'), (2, 'd')]);
        assert_ne!(turns, found, "turns are shuffled");
    }
}
