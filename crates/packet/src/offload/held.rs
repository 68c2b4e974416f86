//! Rebuilt packets that are held until several are written together.
//!
//! INVARIANTS: packets leave in the order in which they came. No allocation as long as no more are
//! held than there is room for.

use super::Needs;
use super::rebuilder::{MAX_HEAD, Piece, Rebuilt};

/// Packets of a [`Rebuilder`](super::Rebuilder) without the buffers that they are made of: each is
/// known by its buffer's number.
///
/// The bytes of the packets' buffers must stay as they are until these are written.
#[derive(Debug, Default)]
pub struct Held {
    packets: Vec<Packet>,
    heads: Vec<u8>,
    pieces: Vec<Piece>,
}

/// The parts of a [`Rebuilt`]; head and pieces are those up to these ends.
#[derive(Debug)]
struct Packet {
    buffer: usize,
    head_end: usize,
    pieces_end: usize,
    replaced: usize,
    needs: Needs,
    vnet_header: bool,
}

impl Held {
    /// With room for `writes` writes of `packets` inner packets in all.
    pub fn with_capacity(writes: usize, packets: usize) -> Self {
        Self {
            packets: Vec::with_capacity(writes),
            heads: Vec::with_capacity(writes * MAX_HEAD),
            pieces: Vec::with_capacity(packets),
        }
    }

    /// Number of writes that are held.
    pub const fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there is nothing to write.
    pub const fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Number of inner packets in all of them.
    pub const fn packets(&self) -> usize {
        self.pieces.len()
    }

    /// Holds one more, whose buffer has this number.
    pub fn push(&mut self, buffer: usize, rebuilt: &Rebuilt<'_>) {
        self.heads.extend_from_slice(rebuilt.head);
        self.pieces.extend_from_slice(rebuilt.pieces);
        self.packets.push(Packet {
            buffer,
            head_end: self.heads.len(),
            pieces_end: self.pieces.len(),
            replaced: rebuilt.replaced,
            needs: rebuilt.needs,
            vnet_header: rebuilt.vnet_header,
        });
    }

    /// All that are held, in order. `buffers` are those that the numbers mean.
    ///
    /// # Panics
    /// If there is no buffer of a number, or a shorter one than there was.
    pub fn iter<'a>(&'a self, buffers: &'a [impl AsRef<[u8]>]) -> impl Iterator<Item = Rebuilt<'a>> {
        let (mut head_start, mut pieces_start) = (0, 0);
        self.packets.iter().map(move |packet| {
            let head = &self.heads[head_start..packet.head_end];
            let pieces = &self.pieces[pieces_start..packet.pieces_end];
            (head_start, pieces_start) = (packet.head_end, packet.pieces_end);
            Rebuilt {
                head,
                buffer: buffers[packet.buffer].as_ref(),
                pieces,
                replaced: packet.replaced,
                needs: packet.needs,
                vnet_header: packet.vnet_header,
            }
        })
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.heads.clear();
        self.pieces.clear();
    }
}
