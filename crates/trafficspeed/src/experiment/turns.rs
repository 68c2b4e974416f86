//! The order in which systems take their turns, the pause between two of them, and other attempts
//! at what other load has disturbed.

use std::thread;
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use super::outcome::Taken;
use crate::interrupt::Interrupt;

/// The machine is left idle for this long before each turn: what the one before left to do, such
/// as the removal of its namespaces, is then not in the next one's figures.
pub const PAUSE: Duration = Duration::from_millis(500);
/// Attempts at a measurement until one is quiet, at most.
const ATTEMPTS: u32 = 3;

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

/// Measures until an attempt is quiet, at most [`ATTEMPTS`] times: the quietest stands. `taken`
/// returns what others took of the machine meanwhile; `None` of an attempt that failed, which
/// stands.
pub fn until_quiet<R>(
    interrupt: &Interrupt,
    taken: impl Fn(&R) -> Option<Taken>,
    mut attempt: impl FnMut() -> R,
) -> R {
    let noise = |taken: Taken| (taken.is_disturbed(), taken.sum());
    let mut standing = attempt();
    for _ in 1..ATTEMPTS {
        let disturbed = taken(&standing).filter(|taken| taken.is_disturbed());
        let Some(least) = disturbed.filter(|_| !interrupt.is_set()) else { break };
        pause();
        let later = attempt();
        match taken(&later) {
            // The user has ended it.
            None if interrupt.is_set() => break,
            None => return later,
            Some(taken) if noise(taken) < noise(least) => standing = later,
            Some(_) => {}
        }
    }
    standing
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

    #[test]
    fn what_was_disturbed_is_measured_again_and_the_quietest_attempt_stands_or_one_that_failed() {
        let quiet = (0.0, 9.0);
        for (attempts, standing) in [
            (vec![Some((5.0, 10.0))], 1),
            (vec![Some((30.0, 0.0)), Some(quiet)], 2),
            (vec![Some((5.1, 0.0)), Some(quiet)], 2),
            (vec![Some((30.0, 0.0)), Some((10.0, 0.0)), Some((20.0, 0.0))], 2),
            (vec![Some((30.0, 0.0)), None], 2),
            (vec![None], 1),
        ] {
            let taken = |number: &usize| {
                let (steal, others) = attempts[*number - 1]?;
                Some(Taken { steal: Some(steal), others: Some(others) })
            };
            let mut made = 0;
            let found = until_quiet(&Interrupt::default(), taken, || {
                made += 1;
                made
            });
            assert_eq!((found, made), (standing, attempts.len()), "{attempts:?}");
        }
    }
}
