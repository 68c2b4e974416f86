//! The model: what may be delivered, and what must never happen twice.

use std::collections::{HashMap, HashSet};

use vpnd_proto::wire::Header;

/// Where inner packets come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Place {
    Campus,
    Device(usize),
}

/// A packet that somebody sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    from: Place,
    to: Place,
    /// Whether it may be delivered at all.
    allowed: bool,
    delivered: bool,
}

/// What the model remembers.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    packets: Vec<Sent>,
    /// Which secret seals what a shard of a node sends to an index.
    secrets: HashMap<(Place, usize, u32), [u8; 32]>,
    /// Every (key, nonce) pair used: secret, direction and lane name the key.
    sealed: HashSet<([u8; 32], bool, u8, u64)>,
}

impl Oracle {
    /// A packet is sent. Returns its number.
    pub(crate) fn send(&mut self, from: Place, to: Place, allowed: bool) -> u64 {
        self.packets.push(Sent { from, to, allowed, delivered: false });
        (self.packets.len() - 1) as u64
    }

    /// A packet came out at `at`.
    pub(crate) fn deliver(&mut self, id: u64, at: Place) {
        let sent = self.packets.get_mut(id as usize).expect("a packet that nobody sent was delivered");
        assert!(!sent.delivered, "packet {id} {sent:?} was delivered twice");
        assert!(sent.allowed, "packet {id} {sent:?} was delivered against policy or with a forged source");
        assert_eq!(sent.to, at, "packet {id} {sent:?} was delivered at the wrong place");
        sent.delivered = true;
    }

    pub(crate) fn is_delivered(&self, id: u64) -> bool {
        self.packets[id as usize].delivered
    }

    /// How many of the packets from `first` on were allowed, and how many of those arrived.
    pub(crate) fn tally(&self, first: u64) -> (usize, usize) {
        let allowed = self.packets[first as usize..].iter().filter(|sent| sent.allowed);
        let (mut all, mut arrived) = (0, 0);
        for sent in allowed {
            all += 1;
            arrived += usize::from(sent.delivered);
        }
        (all, arrived)
    }

    /// The number that the next packet gets.
    pub(crate) fn mark(&self) -> u64 {
        self.packets.len() as u64
    }

    /// Packets sent from `from` to `to` since `first` that arrived.
    pub(crate) fn arrived(&self, first: u64, from: Place, to: Place) -> usize {
        let since = self.packets[first as usize..].iter();
        since.filter(|sent| sent.from == from && sent.to == to && sent.delivered).count()
    }

    /// `shard` of `node` seals with this secret what it sends to `index`.
    pub(crate) fn install(&mut self, node: Place, shard: usize, index: u32, secret: [u8; 32]) {
        self.secrets.insert((node, shard, index), secret);
    }

    /// `shard` of `node` sealed a datagram.
    pub(crate) fn seal(&mut self, node: Place, shard: usize, datagram: &[u8]) {
        let header = Header::parse(datagram).expect("what a plane seals has a header");
        let secret = self.secrets.get(&(node, shard, header.index.0)).expect("a secret was installed before");
        let to_client = node == Place::Campus;
        let fresh = self.sealed.insert((*secret, to_client, header.lane, header.counter));
        assert!(fresh, "{node:?} sealed twice with one key and nonce: {header:?}");
    }
}
