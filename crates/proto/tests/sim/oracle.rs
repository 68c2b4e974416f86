//! The model: what may be delivered, and what must never happen twice.

use std::collections::{HashMap, VecDeque};

use vpnd_proto::wire::Header;

/// Where inner packets come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Place {
    Campus,
    Device(usize),
}

/// A packet that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    from: Place,
    to: Place,
    /// Whether it may be delivered at all.
    allowed: bool,
    /// Whether it is only the policy of this moment that forbids it.
    by_policy: bool,
    delivered: bool,
}

/// The memory of the model.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    packets: VecDeque<Sent>,
    /// The number of packets that were forgotten, which are the first.
    forgotten: u64,
    /// Which secret seals what a shard of a node sends to an index.
    secrets: HashMap<(Place, usize, u32), [u8; 32]>,
    /// The last counter that each key sealed with; secret, direction and lane name the key. A
    /// counter that is above the one before was never used, so this tells all pairs of key and
    /// nonce apart and needs no room for each.
    sealed: HashMap<([u8; 32], bool, u8), u64>,
    /// Datagrams sealed.
    pairs: u64,
}

impl Oracle {
    /// A packet is sent. Returns its number.
    pub(crate) fn send(&mut self, from: Place, to: Place, allowed: bool) -> u64 {
        self.packets.push_back(Sent { from, to, allowed, by_policy: false, delivered: false });
        self.mark() - 1
    }

    /// The packet sent last is forbidden by nothing but the policy of this moment.
    pub(crate) fn forbidden_by_policy(&mut self) {
        self.packets.back_mut().expect("a packet was sent").by_policy = true;
    }

    /// Policy allows now what it forbade: packets that are still on their way may pass, or not.
    pub(crate) fn policy_opens(&mut self) {
        self.packets.iter_mut().filter(|sent| sent.by_policy).for_each(|sent| sent.allowed = true);
    }

    /// The gateway has ended what `from` had: nothing of it reaches the campus any more, not even
    /// what is on its way.
    pub(crate) fn ends_at_the_gateway(&mut self, from: Place) {
        let pending = self.packets.iter_mut().filter(|sent| sent.from == from && sent.to == Place::Campus);
        for sent in pending.filter(|sent| !sent.delivered) {
            (sent.allowed, sent.by_policy) = (false, false);
        }
    }

    /// Forgets the packets before `mark`; one of them that is delivered from now on is an error.
    pub(crate) fn forget_before(&mut self, mark: u64) {
        let count = mark.saturating_sub(self.forgotten) as usize;
        self.packets.drain(..count.min(self.packets.len()));
        self.forgotten = self.forgotten.max(mark);
    }

    /// Pairs of key and nonce used so far, and how many keys those had.
    pub(crate) fn pairs(&self) -> (u64, usize) {
        (self.pairs, self.sealed.len())
    }

    /// A packet came out at `at`.
    pub(crate) fn deliver(&mut self, id: u64, at: Place) {
        let at_all = id.checked_sub(self.forgotten).and_then(|place| self.packets.get_mut(place as usize));
        let sent = at_all.expect("a packet that nobody sent, or long ago, was delivered");
        assert!(!sent.delivered, "packet {id} {sent:?} was delivered twice");
        assert!(sent.allowed, "packet {id} {sent:?} was delivered against policy or with a forged source");
        assert_eq!(sent.to, at, "packet {id} {sent:?} was delivered at the wrong place");
        sent.delivered = true;
    }

    pub(crate) fn is_delivered(&self, id: u64) -> bool {
        self.packets[(id - self.forgotten) as usize].delivered
    }

    /// Returns how many of the packets from `first` on were allowed, and how many of those arrived.
    pub(crate) fn tally(&self, first: u64) -> (usize, usize) {
        let allowed = self.since(first).filter(|sent| sent.allowed);
        let (mut all, mut arrived) = (0, 0);
        for sent in allowed {
            all += 1;
            arrived += usize::from(sent.delivered);
        }
        (all, arrived)
    }

    /// The number that the next packet gets.
    pub(crate) fn mark(&self) -> u64 {
        self.forgotten + self.packets.len() as u64
    }

    /// Packets sent from `from` to `to` since `first` that arrived.
    pub(crate) fn arrived(&self, first: u64, from: Place, to: Place) -> usize {
        self.since(first).filter(|sent| sent.from == from && sent.to == to && sent.delivered).count()
    }

    fn since(&self, first: u64) -> impl Iterator<Item = &Sent> {
        self.packets.iter().skip((first - self.forgotten) as usize)
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
        let last = self.sealed.insert((*secret, to_client, header.lane), header.counter);
        let fresh = last.is_none_or(|last| last < header.counter);
        assert!(fresh, "{node:?} sealed twice with one key and nonce: {header:?}, after {last:?}");
        self.pairs += 1;
    }
}
