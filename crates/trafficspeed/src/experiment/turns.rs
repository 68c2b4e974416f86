//! The order in which systems take their turns.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

/// `all` in the order of round `round`: in the first as they are, which reports keep, in each other
/// one shuffled, and in the same way whenever this is asked for, so that a measurement that is
/// resumed goes on in it. A place in the order or a neighbour, such as a warm machine or what the
/// system before left behind, is then no system's own, nor is the distance between a system and its
/// control.
pub fn order<T>(all: impl IntoIterator<Item = T>, round: u32) -> Vec<T> {
    let mut all: Vec<T> = all.into_iter().collect();
    if round > 1 {
        all.shuffle(&mut ChaCha8Rng::seed_from_u64(round.into()));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_have_their_turn_and_none_has_a_place_or_a_neighbour_of_its_own() {
        let rounds: Vec<Vec<char>> = (1..=100).map(|round| order(['a', 'b', 'c', 'd'], round)).collect();
        let (mut places, mut neighbours) = (BTreeSet::new(), BTreeSet::new());
        for (round, number) in rounds.iter().zip(1..) {
            assert_eq!(round.iter().collect::<BTreeSet<_>>().len(), 4);
            assert_eq!(*round, order(['a', 'b', 'c', 'd'], number), "the same whenever it is asked for");
            assert!(number > 1 || round.iter().eq(&['a', 'b', 'c', 'd']), "{round:?}");
            places.extend(round.iter().copied().enumerate());
            neighbours.extend(round.windows(2).map(|pair| (pair[0], pair[1])));
        }
        assert_eq!((places.len(), neighbours.len()), (4 * 4, 4 * 3));
    }
}
