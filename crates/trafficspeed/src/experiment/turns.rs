//! The order in which systems take their turns.

/// `all` in the order of round `round`, counted from 1: each second round goes from the last to the first. What a place in the order
/// brings, such as a warm machine or what the system before left behind, is then no system's own, and the distance between a
/// system and its control has no direction.
pub fn order<T>(all: impl IntoIterator<Item = T>, round: u32) -> Vec<T> {
    let mut all: Vec<T> = all.into_iter().collect();
    if round.is_multiple_of(2) {
        all.reverse();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_round_goes_from_the_last_to_the_first() {
        let rounds: Vec<Vec<char>> = (1..=3).map(|round| order(['a', 'b', 'c'], round)).collect();
        assert_eq!(rounds, [['a', 'b', 'c'], ['c', 'b', 'a'], ['a', 'b', 'c']]);
    }
}
