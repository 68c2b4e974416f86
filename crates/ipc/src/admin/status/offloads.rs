//! Offloads of the gateway's TUN device and of its UDP sockets, as far as all shards have them.

use serde::{Deserialize, Serialize};
use vpnd_shard::TunWrites;
use vpnd_sys::tun::TunOffloads;
use vpnd_sys::udp::UdpOffloads;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offloads {
    pub tun: Tun,
    pub udp: Udp,
}

/// Offloads of the TUN device. What was given up concerns what is written, of at least one shard;
/// reading goes on as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tun {
    pub checksum: bool,
    /// TCP super-packets over IPv4.
    pub tso4: bool,
    /// TCP super-packets over IPv6.
    pub tso6: bool,
    /// TCP super-packets with the CWR flag.
    pub tso_ecn: bool,
    pub uso: bool,
    /// Packets that the kernel refused as they were, and took as ordinary ones.
    pub refused: u64,
    /// Partial checksums were given up because the kernel refused them.
    pub checksum_gave_up: bool,
    /// TCP super-packets were given up because the kernel refused them.
    pub tso_gave_up: bool,
    /// UDP super-packets were given up because the kernel refused them.
    pub uso_gave_up: bool,
}

/// Offloads and buffers of the UDP sockets; where shards differ, the worst of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Udp {
    /// Datagrams that one send may hold; 1 without segmentation offload.
    pub gso_segments: usize,
    /// Segmentation offload was refused for a peer within the last minute; that one is sent single
    /// datagrams.
    pub gso_gave_up: bool,
    pub gro: bool,
    pub recv_buffer: usize,
    pub send_buffer: usize,
    /// The kernel can't forbid fragmentation.
    pub may_fragment: bool,
}

impl Udp {
    /// Offloads that all shards have.
    pub fn of_shards(shards: &[UdpOffloads]) -> Self {
        Self {
            gso_segments: shards.iter().map(|shard| shard.gso_segments).min().unwrap_or(1),
            gso_gave_up: shards.iter().any(|shard| shard.gso_gave_up),
            gro: !shards.is_empty() && shards.iter().all(|shard| shard.gro),
            recv_buffer: shards.iter().map(|shard| shard.recv_buffer).min().unwrap_or(0),
            send_buffer: shards.iter().map(|shard| shard.send_buffer).min().unwrap_or(0),
            may_fragment: shards.iter().any(|shard| shard.may_fragment),
        }
    }
}

impl Tun {
    /// Offloads negotiated when the device was created, less those that a shard has switched off
    /// since.
    pub fn of_shards(offloads: TunOffloads, shards: &[TunWrites]) -> Self {
        let TunOffloads { checksum, tso4, tso6, tso_ecn, uso } = offloads;
        Self {
            checksum,
            tso4,
            tso6,
            tso_ecn,
            uso,
            refused: shards.iter().map(|shard| shard.refused).sum(),
            checksum_gave_up: shards.iter().any(|shard| shard.gave_up_checksum),
            tso_gave_up: shards.iter().any(|shard| shard.gave_up_tso),
            uso_gave_up: shards.iter().any(|shard| shard.gave_up_uso),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_shows_the_weakest_offload_of_all_shards() {
        let strong = UdpOffloads {
            gso_segments: 64,
            gso_gave_up: false,
            gro: true,
            recv_buffer: 4_096,
            send_buffer: 4_096,
            may_fragment: false,
        };
        let weak = UdpOffloads { gso_segments: 1, recv_buffer: 1_024, ..strong };
        let refused = UdpOffloads { gso_gave_up: true, ..strong };
        let all = Udp::of_shards(&[strong, weak]);
        assert_eq!((all.gso_segments, all.gro, all.recv_buffer), (1, true, 1_024));
        assert!(!all.gso_gave_up && Udp::of_shards(&[strong, refused]).gso_gave_up);
        assert!(!Udp::of_shards(&[]).gro);

        let strong = TunWrites { refused: 2, ..TunWrites::default() };
        let weak = TunWrites { refused: 3, gave_up_uso: true, ..strong };
        let all = Tun::of_shards(TunOffloads::ALL, &[strong, weak]);
        assert_eq!((all.refused, all.uso, all.uso_gave_up), (5, true, true));
        assert!(!all.tso_gave_up && !all.checksum_gave_up);
    }
}
