//! IPv6 packets of up to 1,280 bytes over a path that carries less: two halves (PROTOCOL §9.3).
//!
//! The second half follows the first with the next counter of the same lane. Index, lane and
//! counter together are never used twice, so halves of different packets can't be joined, however
//! late they come.
//!
//! INVARIANT: only authentic halves are kept, at most [`KEPT`] of a session, each of at most
//! [`LONGEST`] bytes. A joined packet passes the same checks as one that came whole.

use std::collections::VecDeque;

use super::forwarding::{Forwarding, NextHop};
use super::receive::Arrival;
use super::reports::Reports;
use super::session::Session;
use super::{DropReason, Opened, Plane};
use crate::pmtu::oversize::IPV6_MIN_MTU;
use crate::time::Time;
use crate::wire::{Header, Index};
use vpnd_packet::ecn::Ecn;

/// First byte of a half; the second says which.
pub(super) const HALF: u8 = 0x13;
const FIRST: u8 = 0;
const SECOND: u8 = 1;
/// Bytes before the packet's own.
const HALF_HEADER: usize = 2;
/// The longest packet that is joined, in bytes.
pub(super) const MAX_JOINED: usize = IPV6_MIN_MTU as usize;
/// The most bytes of a packet in one half.
const LONGEST: usize = MAX_JOINED / 2;
/// Halves of a session that wait for the other one. So far may datagrams overtake each other.
const KEPT: usize = 16;

/// Writes a half of `packet` as a plaintext. Its length, if packet and `out` permit it.
pub(super) fn write(packet: &[u8], second: bool, out: &mut [u8]) -> Option<usize> {
    if packet.len() > MAX_JOINED {
        return None;
    }
    let (first_half, second_half) = packet.split_at(packet.len().div_ceil(2));
    let (kind, half) = if second { (SECOND, second_half) } else { (FIRST, first_half) };
    let out = out.get_mut(..HALF_HEADER + half.len())?;
    out[..HALF_HEADER].copy_from_slice(&[HALF, kind]);
    out[HALF_HEADER..].copy_from_slice(half);
    Some(out.len())
}

/// Which half of which packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Id {
    index: Index,
    lane: u8,
    /// Counter of the first half.
    counter: u64,
    second: bool,
}

/// A half as it came.
pub(super) struct Half<'a> {
    id: Id,
    bytes: &'a [u8],
}

impl<'a> Half<'a> {
    /// Reads the half in a datagram; `None` if it is malformed.
    pub(super) fn parse(header: Header, plaintext: &'a [u8]) -> Option<Self> {
        let (second, bytes) = match plaintext {
            [HALF, FIRST, bytes @ ..] => (false, bytes),
            [HALF, SECOND, bytes @ ..] => (true, bytes),
            _ => return None,
        };
        let counter = header.counter.checked_sub(second.into())?;
        let id = Id { index: header.index, lane: header.lane, counter, second };
        (1..=LONGEST).contains(&bytes.len()).then_some(Self { id, bytes })
    }
}

/// Halves of one session that wait for the other one, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Halves {
    kept: VecDeque<Kept>,
}

#[derive(Debug)]
struct Kept {
    id: Id,
    len: usize,
    bytes: [u8; LONGEST],
}

/// The result of taking a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It waits for the other one.
    Waits,
    /// It waits, and the oldest that waited made room.
    Replaced,
    /// Both were there, and the packet has this many bytes.
    Joined(usize),
}

impl Halves {
    /// Takes a half. If the other one is there, the packet is written to `out`.
    fn take(&mut self, half: &Half<'_>, out: &mut [u8; MAX_JOINED]) -> Outcome {
        let other = Id { second: !half.id.second, ..half.id };
        let Some(at) = self.kept.iter().position(|kept| kept.id == other) else { return self.keep(half) };
        let other = self.kept.remove(at).expect("it was just found");
        let other = &other.bytes[..other.len];
        let (first, second) = if half.id.second { (other, half.bytes) } else { (half.bytes, other) };
        let len = first.len() + second.len();
        out[..first.len()].copy_from_slice(first);
        out[first.len()..len].copy_from_slice(second);
        Outcome::Joined(len)
    }

    fn keep(&mut self, half: &Half<'_>) -> Outcome {
        let full = self.kept.len() == KEPT;
        if full {
            self.kept.pop_front();
        }
        let mut bytes = [0; LONGEST];
        bytes[..half.bytes.len()].copy_from_slice(half.bytes);
        self.kept.push_back(Kept { id: half.id, len: half.bytes.len(), bytes });
        if full { Outcome::Replaced } else { Outcome::Waits }
    }

    /// Forgets what came at these indexes, which receive no more. Returns how many halves waited.
    pub(super) fn forget(&mut self, indexes: &[Index]) -> usize {
        let before = self.kept.len();
        self.kept.retain(|kept| !indexes.contains(&kept.id.index));
        before - self.kept.len()
    }

    /// Returns the number of halves that wait.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }
}

impl Session {
    /// Takes an authentic half of a packet, and decides where the packet goes if it is complete.
    #[cold]
    pub(super) fn accept_half(
        &mut self,
        now: Time,
        half: &Half<'_>,
        features: u32,
        joined: &mut [u8; MAX_JOINED],
        forwarding: &Forwarding,
        reports: &mut Reports,
    ) -> Result<Opened, DropReason> {
        let len = match self.halves.take(half, joined) {
            Outcome::Waits => return Ok(Opened::Consumed),
            // The packet of another datagram is lost; this one's half is kept.
            Outcome::Replaced => {
                reports.drop(DropReason::HalfAlone);
                return Ok(Opened::Consumed);
            }
            Outcome::Joined(len) => len,
        };
        self.activity.rx_halved += 1;
        // Halves travel without congestion marks.
        let arrival = Arrival { features, mark: Ecn::NotEct, congested: false };
        let accepted = self.accept(now, &mut joined[..len], 0, arrival, forwarding, reports)?;
        let packet = accepted.packet;
        Ok(match accepted.next_hop {
            Some(NextHop::Tun) => Opened::Joined { to: None, packet },
            Some(NextHop::Client(to)) => Opened::Joined { to: Some(to), packet },
            // There is no message to its sender, for its bytes are not in the datagram.
            Some(NextHop::Redirect | NextHop::Refuse) | None => Opened::Consumed,
        })
    }
}

impl Plane {
    /// The buffer with the packet of [`Opened::Joined`], until the next datagram is opened.
    #[must_use]
    pub fn joined(&self) -> &[u8] {
        &*self.joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + seed) as u8).collect()
    }

    fn header(counter: u64) -> Header {
        Header { lane: 2, confirm: false, index: Index(77), counter }
    }

    fn written(packet: &[u8], second: bool) -> Vec<u8> {
        let mut out = [0xFF; 2_000];
        let len = write(packet, second, &mut out).expect("there is room");
        out[..len].to_vec()
    }

    /// Takes a half that came with this header; the packet that it completes.
    fn take(halves: &mut Halves, header: Header, plaintext: &[u8]) -> Result<Vec<u8>, Outcome> {
        let mut out = [0; MAX_JOINED];
        let half = Half::parse(header, plaintext).expect("a good half");
        match halves.take(&half, &mut out) {
            Outcome::Joined(len) => Ok(out[..len].to_vec()),
            outcome => Err(outcome),
        }
    }

    #[test]
    fn halves_make_the_packet_in_either_order() {
        for len in [2, 41, 1_201, 1_279, 1_280] {
            let mut halves = Halves::default();
            let packet = packet(len, 1);
            let parts = [(header(8), written(&packet, false)), (header(9), written(&packet, true))];
            for order in [[0, 1], [1, 0]] {
                let [one, other] = order.map(|which| &parts[which]);
                assert_eq!(take(&mut halves, one.0, &one.1), Err(Outcome::Waits));
                assert_eq!(take(&mut halves, other.0, &other.1), Ok(packet.clone()));
            }
            assert!(halves.kept.is_empty());
        }
    }

    #[test]
    fn halves_of_different_packets_are_never_joined() {
        let mut halves = Halves::default();
        let (one, other) = (packet(1_280, 1), packet(1_280, 2));
        assert_eq!(take(&mut halves, header(8), &written(&one, false)), Err(Outcome::Waits));
        let elsewhere = [
            header(11),
            header(8),
            Header { lane: 3, ..header(9) },
            Header { index: Index(78), ..header(9) },
        ];
        for header in elsewhere {
            assert_eq!(take(&mut halves, header, &written(&other, true)), Err(Outcome::Waits), "{header:?}");
        }
        // Nor two of the same kind.
        assert_eq!(take(&mut halves, header(9), &written(&other, false)), Err(Outcome::Waits));
        assert_eq!(take(&mut halves, header(9), &written(&one, true)), Ok(one));
    }

    #[test]
    fn the_oldest_half_makes_room() {
        let mut halves = Halves::default();
        let packet = packet(1_000, 1);
        for number in 0..=KEPT as u64 {
            let expected = if number < KEPT as u64 { Outcome::Waits } else { Outcome::Replaced };
            assert_eq!(take(&mut halves, header(number * 2), &written(&packet, false)), Err(expected));
        }
        assert_eq!(take(&mut halves, header(1), &written(&packet, true)), Err(Outcome::Replaced));
        assert_eq!(take(&mut halves, header(2 * KEPT as u64 + 1), &written(&packet, true)), Ok(packet));
    }

    #[test]
    fn halves_of_an_index_that_receives_no_more_are_forgotten() {
        let mut halves = Halves::default();
        let packet = packet(1_000, 1);
        assert_eq!(take(&mut halves, header(1), &written(&packet, false)), Err(Outcome::Waits));
        assert_eq!(halves.forget(&[Index(78)]), 0);
        assert_eq!(halves.forget(&[Index(77)]), 1);
        assert_eq!(take(&mut halves, header(2), &written(&packet, true)), Err(Outcome::Waits));
    }

    #[test]
    fn malformed_halves_are_refused() {
        let long = [&[HALF, FIRST][..], &[0; LONGEST + 1]].concat();
        for bytes in [&[][..], &[HALF], &[HALF, FIRST], &[HALF, SECOND], &[HALF, 2, 0], &[0x12, 0, 0], &long]
        {
            assert!(Half::parse(header(5), bytes).is_none(), "{bytes:?}");
        }
        assert!(Half::parse(header(0), &[HALF, SECOND, 1]).is_none(), "no first half can have come before");
        assert_eq!(write(&[0; MAX_JOINED + 1], false, &mut [0; 2_000]), None);
        assert_eq!(write(&[0; 100], false, &mut [0; 51]), None);
    }
}
