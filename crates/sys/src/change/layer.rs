//! The layers of a machine's tunnels, and the marks that distinguish their own datagrams.
//!
//! The mark of a tunnel's own datagrams has a bit for its own layer and for each above it; the rule
//! that leads packets into a tunnel passes over those that have the bit of its layer. So a tunnel's
//! datagrams go through older tunnels, and never through itself or a newer one, without any tunnel
//! knowing of another.

use super::{EARLIER_PRIORITY_BASE, PRIORITY_BASE, RULES};

/// Upper half of all marks of vpnd ("vp").
const MARKS: u32 = 0x7670_0000;
/// The bits that are compared: other programs' marks are none of ours, whatever their lower half
/// is.
const MARKS_MASK: u32 = 0xFFFF_0000;

/// The number of a tunnel among those of its machine, the oldest 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Layer(u8);

impl Layer {
    pub const COUNT: u8 = 16;

    /// The lowest: datagrams with its mark go through no tunnel.
    pub const OLDEST: Self = Self(0);

    /// The rule by which look-ups of the gateway's name stay outside the tunnel, first of a
    /// layer's.
    pub const LOOKUP_RULE: u32 = 0;
    /// The rule that refuses look-ups which find no way outside.
    pub const REFUSAL_RULE: u32 = 1;
    /// The rule that leads packets into the tunnel.
    pub const TUNNEL_RULE: u32 = 2;
    /// The rule that keeps packets which the one before has not led into a full tunnel from
    /// leaving.
    pub const CLOSING_RULE: u32 = 3;

    /// All of them, the lowest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    /// Its number, from 0.
    pub fn number(self) -> u8 {
        self.0
    }

    /// The layer whose rule has this priority, and which of its rules that is. Those of earlier
    /// versions are known, too, so that they are undone.
    pub(super) fn of_priority(priority: u32) -> Option<(Self, u32)> {
        let base = if priority < EARLIER_PRIORITY_BASE { PRIORITY_BASE } else { EARLIER_PRIORITY_BASE };
        let place = priority.checked_sub(base)?;
        let layer = Self::all().rev().nth((place / RULES) as usize)?;
        Some((layer, place % RULES))
    }

    /// The priority of a rule of a tunnel here. Packets that several tunnels could carry are for
    /// the newest.
    pub fn priority(self, rule: u32) -> u32 {
        PRIORITY_BASE + RULES * u32::from(Self::COUNT - 1 - self.0) + rule
    }

    /// The mark of the datagrams of a tunnel here.
    pub fn mark(self) -> u32 {
        MARKS | (u32::from(u16::MAX) << self.0 & u32::from(u16::MAX))
    }

    /// Mark and mask of the datagrams that don't go through a tunnel here: its own, and those of
    /// older tunnels.
    pub fn passed_over(self) -> (u32, u32) {
        let bit = 1 << self.0;
        (MARKS | bit, MARKS_MASK | bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the rule of a tunnel at `layer` leads packets with this mark into it.
    fn leads_in(layer: Layer, mark: u32) -> bool {
        let (value, mask) = layer.passed_over();
        mark & mask != value
    }

    #[test]
    fn a_tunnels_datagrams_go_through_older_tunnels_only() {
        for tunnel in Layer::all() {
            for sender in Layer::all() {
                assert_eq!(leads_in(tunnel, sender.mark()), tunnel < sender, "{sender:?} through {tunnel:?}");
            }
            // Those of other programs, among them ones that use single bits.
            for mark in (0..32).map(|bit| 1u32 << bit).chain([0, 0xFFFF, 0xCA6C, 0x0008_0000, 0x7671_FFFF]) {
                assert!(leads_in(tunnel, mark), "{mark:#x} past {tunnel:?}");
            }
        }
    }

    #[test]
    fn newer_tunnels_are_asked_first() {
        let rules: Vec<_> =
            Layer::all().rev().flat_map(|layer| (0..RULES).map(move |rule| (layer, rule))).collect();
        for (place, (layer, rule)) in (0..).zip(&rules) {
            assert_eq!(layer.priority(*rule), PRIORITY_BASE + place);
            for base in [PRIORITY_BASE, EARLIER_PRIORITY_BASE] {
                assert_eq!(Layer::of_priority(base + place), Some((*layer, *rule)));
            }
        }
        let behind = EARLIER_PRIORITY_BASE + RULES * u32::from(Layer::COUNT);
        for none in [0, PRIORITY_BASE - 1, behind, u32::MAX] {
            assert_eq!(Layer::of_priority(none), None);
        }
    }

    #[test]
    fn a_single_tunnels_rules_come_before_tailscales() {
        assert!(Layer::OLDEST.priority(RULES - 1) < 5_210);
    }

    #[test]
    fn each_layer_has_a_mark_of_its_own() {
        let mut marks: Vec<_> = Layer::all().map(Layer::mark).collect();
        assert_eq!((marks[0], marks[15]), (0x7670_FFFF, 0x7670_8000));
        marks.dedup();
        assert_eq!(marks.len(), usize::from(Layer::COUNT));
    }
}
