//! Datagrams that are not for this shard: for another one, for QUIC or other gateways, or of a
//! WireGuard client's handshake.
//!
//! INVARIANT: this never waits. A datagram whose queue is full is lost.

use tokio::sync::mpsc;
use vpnd_proto::plane::{DataHeader, DropReason, Origin};
use vpnd_proto::wire::{Header, PacketClass};
use vpnd_proto::wireguard::TransportHeader;

use super::Misdirected;
use super::handshake_queue::HandshakeQueue;
use super::quic_forwarder::QuicForwarder;

/// The places where a shard passes datagrams on.
#[derive(Default)]
pub(super) struct HandOff {
    /// Number of the shard.
    pub(super) number: usize,
    /// The queues of all shards of a gateway, if there are several.
    pub(super) neighbours: Vec<mpsc::Sender<Misdirected>>,
    pub(super) quic: Option<QuicForwarder>,
    pub(super) wireguard: Option<HandshakeQueue>,
}

impl HandOff {
    /// The header of a datagram that is for this shard. Passes on another one, which has none then.
    #[inline]
    pub(super) fn sort(&self, datagram: &[u8], origin: Origin) -> Result<Option<DataHeader>, DropReason> {
        if let Some(quic) = &self.quic
            && matches!(PacketClass::of(datagram), PacketClass::Quic | PacketClass::Fleet)
        {
            let passed = quic.forward(datagram, origin.from);
            return if passed { Ok(None) } else { Err(DropReason::ShardQueue) };
        }
        let header = match Header::parse(datagram) {
            Ok(header) => DataHeader::Lane(header),
            Err(_) => match self.wireguard_header(datagram, origin)? {
                Some(header) => header.into(),
                None => return Ok(None),
            },
        };
        match self.other_owner(header) {
            None => Ok(Some(header)),
            Some(owner) => {
                let misdirected = Misdirected { header, datagram: datagram.into(), origin };
                let passed = self.neighbours[owner].try_send(misdirected);
                passed.map(|()| None).map_err(|_| DropReason::ShardQueue)
            }
        }
    }

    /// The header of WireGuard's data, where its clients are served. A message of a handshake is
    /// passed to the control plane instead.
    fn wireguard_header(
        &self,
        datagram: &[u8],
        origin: Origin,
    ) -> Result<Option<TransportHeader>, DropReason> {
        let queue = self.wireguard.as_ref().ok_or(DropReason::BadHeader)?;
        if PacketClass::of(datagram) != PacketClass::WireGuardHandshake {
            return TransportHeader::parse(datagram).map(Some).map_err(|_| DropReason::BadHeader);
        }
        if queue.push(datagram, origin.from) { Ok(None) } else { Err(DropReason::ShardQueue) }
    }

    /// The header of a datagram that [`HandOff::sort`] would not pass on.
    pub(super) fn peek(&self, datagram: &[u8]) -> Result<Option<DataHeader>, DropReason> {
        let header = match PacketClass::of(datagram) {
            PacketClass::Quic | PacketClass::Fleet if self.quic.is_some() => return Ok(None),
            PacketClass::WireGuardHandshake if self.wireguard.is_some() => return Ok(None),
            PacketClass::WireGuardData if self.wireguard.is_some() => {
                TransportHeader::parse(datagram).map(DataHeader::from)
            }
            _ => Header::parse(datagram).map(DataHeader::from),
        };
        let header = header.map_err(|_| DropReason::BadHeader)?;
        Ok(self.other_owner(header).is_none().then_some(header))
    }

    /// The other shard that owns the index.
    #[inline]
    fn other_owner(&self, header: DataHeader) -> Option<usize> {
        let shards = self.neighbours.len();
        let owner = (shards > 1).then(|| header.index().shard(shards));
        owner.filter(|owner| *owner != self.number)
    }
}
