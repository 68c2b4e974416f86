//! The findings of the authors of the crypto board, in 2001.

use super::Figures;

pub const SOURCE: &str =
    "Kasai, Watanabe, Nakano (Hitachi), 2001: a crypto board that takes whole IP packets";

pub const FIGURES: Figures = Figures {
    caption: "Software IPsec on PCs of 500 MHz, packets of 1280 bytes, Mbit/s",
    head: &["link", "3DES and SHA-1", "3DES", "DES and SHA-1", "DES", "null and null", "no IPsec"],
    rows: &[
        &["10BASE-T", "9.3", "9.5", "9.5", "9.5", "9.5", "9.8"],
        &["100BASE-TX", "9.9", "12.6", "–", "29.3", "93.1", "95.9"],
    ],
};

/// Their conclusions, one sentence each.
pub const FINDINGS: [&str; 3] = [
    "The cipher was the bottleneck, neither policy nor the handling of packets.",
    "Their model, in ns for n blocks of 64 bits: Tt = n(4Tb + Tadu + Tasu/8) + 26Tb, where Tb is the transfer of a block, \
     Tadu its 3DES, Tasu the SHA-1 of 512 bits; valid while Tadu > 4Tb and Tasu > 16Tb.",
    "100 Mbit/s needs 4Tb + Tadu + Tasu/8 < 640 ns: with Tb = 30 ns, Tadu < 332.8 ns; the PCI bus allows 254 Mbit/s.",
];
