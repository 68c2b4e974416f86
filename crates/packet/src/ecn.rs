//! Congestion marks between the inner and the outer header (RFC 6040, normal mode; RFC 3168).

/// The codepoint in an IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable: congestion shows as loss.
    #[default]
    NotEct = 0,
    /// ECN-capable, ECT(1).
    Ect1 = 1,
    /// ECN-capable, ECT(0).
    Ect0 = 2,
    /// Congestion was experienced.
    Ce = 3,
}

/// The bits of a traffic class that hold the codepoint.
pub const MASK: u8 = 0b11;

impl Ecn {
    /// The codepoint in a traffic class, whose upper six bits are the DSCP.
    #[inline]
    #[must_use]
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & MASK {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// The inner codepoint of a packet that came in a datagram with the codepoint `outer` (RFC 6040
    /// §4.2, figure 4); `None` if the packet is to be dropped, because its sender can't be shown
    /// the congestion in another way.
    #[inline]
    #[must_use]
    pub const fn decapsulated(self, outer: Self) -> Option<Self> {
        match (self, outer) {
            (Self::NotEct, Self::Ce) => None,
            (Self::Ect0 | Self::Ect1, Self::Ce) => Some(Self::Ce),
            (Self::Ect0, Self::Ect1) => Some(Self::Ect1),
            (inner, _) => Some(inner),
        }
    }

    /// The codepoint of a packet that meets congestion here; `None` if it can't show that, since it
    /// is not ECN-capable: then its loss has to (RFC 3168 §5).
    #[inline]
    #[must_use]
    pub const fn congested(self) -> Option<Self> {
        match self {
            Self::NotEct => None,
            Self::Ect0 | Self::Ect1 | Self::Ce => Some(Self::Ce),
        }
    }

    /// This inner codepoint in a datagram with the codepoint `outer`, if no sender and no router
    /// makes that combination by a standard.
    #[inline]
    #[must_use]
    pub const fn unused_in(self, outer: Self) -> Option<Unused> {
        Some(match (self, outer) {
            (Self::NotEct, Self::Ect0) => Unused::NotEctInEct0,
            (Self::NotEct, Self::Ect1) => Unused::NotEctInEct1,
            (Self::NotEct, Self::Ce) => Unused::NotEctInCe,
            (Self::Ect1, Self::Ect0) => Unused::Ect1InEct0,
            (Self::Ce, Self::Ect1) => Unused::CeInEct1,
            _ => return None,
        })
    }
}

/// A combination of an inner and an outer codepoint that is currently unused (RFC 6040 §4.2, marked
/// in figure 4): a router on the way sets codepoints in another way than the standards provide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unused {
    /// Not-ECT in ECT(0).
    NotEctInEct0,
    /// Not-ECT in ECT(1).
    NotEctInEct1,
    /// Not-ECT in CE; the packet is dropped.
    NotEctInCe,
    /// ECT(1) in ECT(0).
    Ect1InEct0,
    /// CE in ECT(1).
    CeInEct1,
}

impl Unused {
    /// Every one, in the order of their counters.
    pub const ALL: [Self; 5] =
        [Self::NotEctInEct0, Self::NotEctInEct1, Self::NotEctInCe, Self::Ect1InEct0, Self::CeInEct1];

    /// The name that status and metrics show.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotEctInEct0 => "not_ect_in_ect0",
            Self::NotEctInEct1 => "not_ect_in_ect1",
            Self::NotEctInCe => "not_ect_in_ce",
            Self::Ect1InEct0 => "ect1_in_ect0",
            Self::CeInEct1 => "ce_in_ect1",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Ecn; 4] = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];

    #[test]
    fn the_table_of_rfc_6040() {
        use Ecn::{Ce, Ect0, Ect1, NotEct};
        // Figure 4: a row for each inner codepoint, a column for each outer one.
        let outer = [NotEct, Ect0, Ect1, Ce];
        let table = [
            (NotEct, [Some(NotEct), Some(NotEct), Some(NotEct), None]),
            (Ect0, [Some(Ect0), Some(Ect0), Some(Ect1), Some(Ce)]),
            (Ect1, [Some(Ect1), Some(Ect1), Some(Ect1), Some(Ce)]),
            (Ce, [Some(Ce), Some(Ce), Some(Ce), Some(Ce)]),
        ];
        for (inner, row) in table {
            for (outer, expected) in outer.into_iter().zip(row) {
                assert_eq!(inner.decapsulated(outer), expected, "{inner:?} in {outer:?}");
            }
        }
    }

    #[test]
    fn the_marked_cells_of_figure_4_are_unused() {
        use Ecn::{Ce, Ect0, Ect1, NotEct};
        let marked = [(NotEct, Ect0), (NotEct, Ect1), (NotEct, Ce), (Ect1, Ect0), (Ce, Ect1)];
        for (inner, outer) in ALL.into_iter().flat_map(|inner| ALL.map(|outer| (inner, outer))) {
            let expected = marked.iter().position(|cell| *cell == (inner, outer));
            let found = inner.unused_in(outer);
            assert_eq!(found.map(|unused| unused as usize), expected, "{inner:?} in {outer:?}");
            assert_eq!(found, expected.map(|place| Unused::ALL[place]));
        }
    }

    #[test]
    fn congestion_here_marks_what_is_ecn_capable() {
        assert_eq!(ALL.map(Ecn::congested), [None, Some(Ecn::Ce), Some(Ecn::Ce), Some(Ecn::Ce)]);
    }

    #[test]
    fn codepoints_are_the_two_lower_bits() {
        for class in 0..=255 {
            assert_eq!(Ecn::of(class), ALL[usize::from(class % 4)]);
            assert_eq!(Ecn::of(class) as u8, class % 4);
        }
    }
}
