//! The order in which systems take their turns, and the pause between two of them.

use std::thread;
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

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

/// Measurements in shuffled order, in the order of reports: each has its place in that.
pub fn as_reported<T, P: Ord + Copy>(all: Vec<T>, places: &[P]) -> Vec<T> {
    let mut placed: Vec<(T, P)> = all.into_iter().zip(places.iter().copied()).collect();
    placed.sort_by_key(|(_, place)| *place);
    placed.into_iter().map(|(one, _)| one).collect()
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
    fn all_have_their_turn_and_none_has_a_place_or_a_neighbour_of_its_own() {
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
    fn reports_have_their_own_order_round_by_round() {
        let places = [(1, 1), (1, 0), (2, 0), (2, 1)];
        assert_eq!(as_reported(vec!["b1", "a1", "a2", "b2"], &places), ["a1", "b1", "a2", "b2"]);
    }
}
