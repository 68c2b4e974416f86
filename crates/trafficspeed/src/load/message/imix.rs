//! Simple IMIX: of twelve packets seven are short, four of middle length, and one is long.
//!
//! Their IPv4 packets have 64, 576 and 1,400 bytes: the long one of the Internet's mix, 1,500, fits
//! no tunnel through links that carry just that.

/// Payloads of UDP in one turn.
const TURN: [u32; 12] = [36, 548, 36, 36, 548, 36, 1_372, 36, 548, 36, 36, 548];
/// The mean of a turn.
pub const MEAN: u32 = 318;
pub(super) const LARGEST: u32 = 1_372;

/// Bytes of message `number`.
pub(super) fn length_of(number: u64) -> u32 {
    TURN[(number % TURN.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_has_its_mean_and_no_packet_is_longer_than_the_longest() {
        assert_eq!(TURN.iter().sum::<u32>(), MEAN * TURN.len() as u32);
        assert_eq!(TURN.iter().max(), Some(&LARGEST));
        let count = |bytes| TURN.iter().filter(|length| **length + 28 == bytes).count();
        assert_eq!([64, 576, 1_400].map(count), [7, 4, 1]);
        assert_eq!((length_of(6), length_of(18), length_of(19)), (1_372, 1_372, 36));
    }
}
