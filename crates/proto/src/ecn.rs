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

    /// The inner codepoint of a packet that came in a datagram with the codepoint `outer` (RFC 6040 §4.2, figure 4); `None` if the
    /// packet is to be dropped, because its sender can't be shown the congestion in another way.
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
    fn codepoints_are_the_two_lower_bits() {
        for class in 0..=255 {
            assert_eq!(Ecn::of(class), ALL[usize::from(class % 4)]);
            assert_eq!(Ecn::of(class) as u8, class % 4);
        }
    }
}
