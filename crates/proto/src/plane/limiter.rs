//! Rate limits in one shard: those of its sessions, and those that sessions share as a group.
//!
//! A packet is charged where it leaves the gateway: to the client that it is for, before it is sealed, and to the client that it is
//! from, once it has passed every other check. A session without limits has no [`Limiter`]; that is all it costs.

use std::sync::Arc;

use super::command::{GroupLimits, Limits};
use crate::rate::{RateGroup, Segments, ShardLimit, Way};
use crate::time::Time;

/// A session's own limits, and its group.
#[derive(Debug)]
pub(super) struct Limiter {
    own: ShardLimit,
    group: Option<RateGroup>,
}

/// The limits of all groups, by number.
pub(super) type Groups = Vec<ShardLimit>;

impl Limiter {
    /// `None` if nothing is limited.
    pub(super) fn new(limits: Option<Limits>) -> Option<Box<Self>> {
        let Limits { limits, buckets } = limits?;
        let limited = limits.group.is_some() || !limits.rates.are_unlimited();
        limited.then(|| Box::new(Self { own: ShardLimit::new(limits.rates, buckets), group: limits.group }))
    }

    /// Gives back what is left of its slices.
    pub(super) fn give_back(&mut self) {
        self.own.give_back();
    }

    /// How many of the first packets of `segments` may pass.
    #[inline]
    pub(super) fn admit(&mut self, now: Time, way: Way, segments: Segments, groups: &mut Groups) -> usize {
        let admitted = self.own.admit(now, way, segments);
        let group = self.group.and_then(|group| groups.get_mut(group.0 as usize));
        let (Some(group), Some(admitted_segments)) = (group, segments.first(admitted)) else {
            return admitted;
        };
        let passed = group.admit(now, way, admitted_segments);
        if passed < admitted {
            self.own.refund(way, segments, admitted, passed);
        }
        passed
    }
}

/// Makes these limits hold for groups. A group that had limits keeps its buckets.
pub(super) fn set_groups(groups: &mut Groups, limits: &Arc<[GroupLimits]>) {
    groups.iter_mut().for_each(ShardLimit::give_back);
    groups.clear();
    groups.extend(limits.iter().map(|group| ShardLimit::new(group.rates, Arc::clone(&group.buckets))));
}
