//! The publications on experiment 5, as text to compare our own results with; never a result.

use super::Figures;

pub const SOURCE: &str = "A practitioner's measurement of strongSwan, 2020: iperf3 through IPsec on a LAN, server \
with a Celeron N3150, mean of 10 runs, TCP MSS clamped to 1334 bytes for every cipher, 16-byte tags for all. Its \
advice: AES-GCM where the CPU has AES instructions, ChaCha20-Poly1305 where it has not, so offer both";

pub const FIGURES: [Figures; 1] = [Figures {
    caption: "TCP throughput, Mbit/s",
    head: &["client", "none", "AES-256-CBC, SHA-256-128", "AES-256-GCM", "ChaCha20-Poly1305"],
    rows: &[
        &["Windows 10, i7-3930K", "922", "170", "341", "–"],
        &["iPhone XS, receives", "363", "199", "289", "229"],
        &["iPhone XS, sends", "446", "241", "309", "284"],
        &["iPhone 12 Pro, receives", "349", "202", "292", "238"],
        &["iPhone 12 Pro, sends", "564", "227", "377", "330"],
    ],
}];
