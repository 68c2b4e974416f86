//! The epochs of the client's session: confirmed by the first authentic datagram, replaced when
//! used and old, expired when idle (PROTOCOL §5.1, §11).

use crate::time::Time;
use crate::wire::Index;

/// The keys of one handshake, as far as the control plane knows them.
#[derive(Clone, Debug)]
pub(super) struct Epoch {
    pub(super) number: u32,
    /// Our receive indexes.
    pub(super) indexes: Vec<Index>,
    pub(super) began: Time,
    /// The number of packets that the session had carried before.
    pub(super) packets_before: u64,
}

/// The epochs that are alive.
#[derive(Clone, Debug, Default)]
pub(super) struct Epochs {
    pub(super) current: Option<Epoch>,
    pub(super) pending: Option<Epoch>,
    pub(super) retiring: Option<Epoch>,
    /// The last one ended unused, and none has failed since: the next packet makes another.
    pub(super) is_at_rest: bool,
}

impl Epochs {
    pub(super) fn all(&self) -> impl Iterator<Item = &Epoch> {
        self.current.iter().chain(&self.pending).chain(&self.retiring)
    }

    /// Whether something can be sealed, as far as known here.
    pub(super) fn is_alive(&self) -> bool {
        self.current.is_some() || self.pending.is_some()
    }

    /// Whether packets pass, or the next one makes an epoch that lets it pass.
    pub(super) fn is_up(&self) -> bool {
        self.current.is_some() || self.is_at_rest
    }

    pub(super) fn newest(&self) -> Option<&Epoch> {
        self.pending.as_ref().or(self.current.as_ref())
    }

    pub(super) fn is_newest(&self, number: u32) -> bool {
        self.newest().is_some_and(|epoch| epoch.number == number)
    }

    pub(super) fn uses(&self, index: Index) -> bool {
        self.all().any(|epoch| epoch.indexes.contains(&index))
    }

    pub(super) fn take(&mut self, number: u32) -> Option<Epoch> {
        [&mut self.current, &mut self.pending, &mut self.retiring]
            .into_iter()
            .find(|place| place.as_ref().is_some_and(|epoch| epoch.number == number))
            .and_then(Option::take)
    }
}
