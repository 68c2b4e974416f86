//! The order in which systems take their turns, and the pause between two of them.

use std::thread;
use std::time::Duration;

use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;
use rand::{RngExt as _, SeedableRng};

/// The machine is left idle for so long before each turn: what the one before left to be done, such
/// as the removal of its namespaces, is then not in the next one's figures.
pub const PAUSE: Duration = Duration::from_millis(500);

/// `all` in the order of round `round`: shuffled, and in the same way whenever this is asked for, so
/// that a measurement that is resumed goes on in it. A place in the order or a neighbour, such as a
/// warm machine or what the system before left behind, is then no system's own. In the first round
/// all but the controls stay as they are, which is the order of reports.
pub fn order<T>(all: impl IntoIterator<Item = T>, round: u32, is_control: impl Fn(&T) -> bool) -> Vec<T> {
    let mut random = ChaCha8Rng::seed_from_u64(round.into());
    let (mut controls, mut all): (Vec<T>, Vec<T>) =
        all.into_iter().partition(|one| round == 1 && is_control(one));
    if round > 1 {
        all.shuffle(&mut random);
    }
    controls.shuffle(&mut random);
    for control in controls {
        all.insert(random.random_range(0..=all.len()), control);
    }
    all
}

/// Leaves the machine idle before a turn.
pub fn pause() {
    thread::sleep(PAUSE);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const ALL: [char; 4] = ['a', 'b', 'c', 'C'];

    fn shuffled(round: u32) -> Vec<char> {
        order(ALL, round, |one| one.is_uppercase())
    }

    #[test]
    fn all_have_their_turn_and_none_has_a_place_or_a_neighbour_of_its_own() {
        let (mut places, mut neighbours) = (BTreeSet::new(), BTreeSet::new());
        for round in 2..=100 {
            let turns = shuffled(round);
            assert_eq!(turns.iter().collect::<BTreeSet<_>>().len(), 4);
            assert_eq!(turns, shuffled(round), "the same whenever it is asked for");
            places.extend(turns.iter().copied().enumerate());
            neighbours.extend(turns.windows(2).map(|pair| (pair[0], pair[1])));
        }
        assert_eq!((places.len(), neighbours.len()), (4 * 4, 4 * 3));
    }

    #[test]
    fn the_first_round_has_the_order_of_reports_with_the_controls_anywhere_in_it() {
        let others: Vec<char> = shuffled(1).into_iter().filter(|one| !one.is_uppercase()).collect();
        assert_eq!(others, ['a', 'b', 'c']);
        let places = (4..20).map(|count| {
            let all: Vec<u32> = (0..count).collect();
            order(all, 1, |one| *one == count - 1).iter().position(|one| *one == count - 1)
        });
        let is_last: Vec<bool> = places.zip(4..).map(|(place, count)| place == Some(count - 1)).collect();
        assert!(is_last.iter().any(|last| !last), "{is_last:?}");
    }
}
