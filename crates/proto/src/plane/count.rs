//! The counters of a plane: of drops, one for each reason, and the only place where a drop is
//! counted; and of unused combinations of congestion marks.
//!
//! INVARIANT: [`Counters::count`] alone makes a [`Dropped`]. A function whose error is a
//! [`Dropped`] has counted the packet; one whose error is a [`DropReason`] has not. So no packet is
//! counted twice on its way through functions that pass an error on.

use vpnd_packet::ecn::Unused;

/// Declares the reasons once: the enum, the list of all, and their names.
macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// The reason of a drop.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum DropReason { $($(#[doc = $doc])+ $variant,)+ }

        impl DropReason {
            /// Every reason, in the order of their counters.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name that status and metrics show.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

impl DropReason {
    /// Whether its counter is of packets and datagrams, and not of what happened to something else.
    #[must_use]
    pub const fn is_of_a_packet(self) -> bool {
        !matches!(self, Self::BadEpoch | Self::AddressTaken | Self::EventQueue)
    }
}

drop_reasons! {
    /// Not a data datagram of this protocol.
    BadHeader = "bad_header",
    /// A receive index that no epoch has.
    UnknownIndex = "unknown_index",
    /// A lane that may not send to this index.
    WrongLane = "wrong_lane",
    /// A counter that was accepted before, or is too old to tell.
    Replayed = "replayed",
    /// Not sealed by the peer.
    NotAuthentic = "not_authentic",
    /// An in-band message of an unknown kind.
    UnknownInband = "unknown_inband",
    /// At a gateway: the reply to a probe, of which it sends none.
    UnaskedReply = "unasked_reply",
    /// Neither an in-band message nor a well-formed IP packet of a kind that is carried.
    BadPacket = "bad_packet",
    /// A source address that is not the session's; at a client, one for one link only.
    ForeignSource = "foreign_source",
    /// At a client: an inner destination that is not its own.
    NotForUs = "not_for_us",
    /// Policy forbids it.
    Policy = "policy",
    /// No session has the inner destination.
    NoRoute = "no_route",
    /// The session has gone.
    NoSession = "no_session",
    /// No live epoch, and no place to wait for one.
    NoEpoch = "no_epoch",
    /// The lane's key may not be used any more.
    KeySpent = "key_spent",
    /// Longer than a datagram or the path can carry.
    TooLong = "too_long",
    /// Too large for the path; its sender got a message with the size that fits, if it may.
    TooBig = "too_big",
    /// A half of a packet whose other half did not come in time.
    HalfAlone = "half_alone",
    /// The time to live or hop limit of a packet of one client for another was used up; its sender
    /// got a message, as often as its session may.
    HopLimit = "hop_limit",
    /// More than the rate limit of the session, or of its group, lets pass; or a probe beyond those
    /// that are answered.
    RateLimit = "rate_limit",
    /// The datagram met congestion, and the packet inside is not ECN-capable (RFC 6040).
    Congestion = "congestion",
    /// No packet, but keys that could not be made from what the control plane sent.
    BadEpoch = "bad_epoch",
    /// No packet, but a session not opened, because another one has one of its inner addresses.
    AddressTaken = "address_taken",
    /// Offload fields of the TUN device that don't fit the packet.
    BadOffload = "bad_offload",
    /// The TUN device did not take the packet.
    TunWrite = "tun_write",
    /// The socket did not take the datagram.
    Send = "send",
    /// The shard was behind, and the session had most of what waited, or what it had waited for so
    /// long that its senders had to be told by a loss.
    Overload = "overload",
    /// Meant for another shard whose queue was full.
    ShardQueue = "shard_queue",
    /// No packet, but an event that found no room in its queue; a later datagram reports it again.
    EventQueue = "event_queue",
}

/// A packet was dropped for this reason, and that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped(DropReason);

impl Dropped {
    /// The reason under which it was counted.
    #[must_use]
    pub const fn reason(self) -> DropReason {
        self.0
    }
}

/// A count for each reason. A super-packet of the TUN device counts as one until it is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    drops: [u64; DropReason::ALL.len()],
    unused_marks: [u64; Unused::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self { drops: [0; DropReason::ALL.len()], unused_marks: [0; Unused::ALL.len()] }
    }
}

impl Counters {
    /// Counts one packet as dropped.
    #[inline]
    pub fn drop(&mut self, reason: DropReason) -> Dropped {
        self.count(reason, 1)
    }

    /// Counts `packets` packets as dropped.
    #[inline]
    pub fn count(&mut self, reason: DropReason, packets: usize) -> Dropped {
        self.drops[reason as usize] += packets as u64;
        Dropped(reason)
    }

    /// Returns the number of packets that were dropped for a reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Returns the number of packets that were dropped in all. Events without room are no packets.
    #[must_use]
    pub fn total(&self) -> u64 {
        let packets = DropReason::ALL.iter().filter(|reason| reason.is_of_a_packet());
        packets.map(|reason| self.dropped(*reason)).sum()
    }

    /// Counts a packet whose mark and its datagram's are an unused combination. It is no drop.
    #[inline]
    pub fn count_unused(&mut self, combination: Unused) {
        self.unused_marks[combination as usize] += 1;
    }

    /// Returns the number of packets in datagrams whose congestion mark is unused with theirs.
    #[must_use]
    pub fn unused_marks(&self, combination: Unused) -> u64 {
        self.unused_marks[combination as usize]
    }

    /// Adds another shard's counts.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.unused_marks.iter_mut().zip(other.unused_marks) {
            *mine += theirs;
        }
        for (mine, theirs) in self.drops.iter_mut().zip(other.drops) {
            *mine += theirs;
        }
    }
}
