//! Rate limits in one shard: those of its sessions, and those that a user's or group's share.
//!
//! A packet is charged where it leaves the gateway: to the client that it is for, before it is
//! sealed, and to the client that it is from, once it has passed every other check. A session
//! without limits has no [`Limiter`]; that is all it costs.

use std::sync::Arc;

use super::command::{GroupLimits, Limits, UserBuckets};
use crate::rate::{RateGroup, Rates, Segments, ShardLimit, Way};
use crate::time::Time;

/// A session's own limits, and which ones it shares.
#[derive(Debug)]
pub(super) struct Limiter {
    own: ShardLimit,
    /// Its user's number, if the user is limited.
    user: Option<u32>,
    group: Option<RateGroup>,
}

/// The limits that sessions share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Limits of users, by number; `None` if no user with the number has been limited. What a user
    /// leaves behind goes to the next with the number.
    users: Vec<Option<ShardLimit>>,
    /// Limits of groups, by number.
    groups: Vec<ShardLimit>,
}

impl Limiter {
    /// `None` if nothing is limited.
    pub(super) fn new(limits: Option<Limits>, shared: &mut Shared) -> Option<Box<Self>> {
        let Limits { limits, buckets, user } = limits?;
        let number = (!limits.user.are_unlimited()).then(|| shared.set_user(limits.user, user));
        let limited = number.is_some() || limits.group.is_some() || !limits.rates.are_unlimited();
        let own = ShardLimit::new(limits.rates, buckets);
        limited.then(|| Box::new(Self { own, user: number, group: limits.group }))
    }

    /// Gives back what is left of its slices.
    pub(super) fn give_back(&mut self) {
        self.own.give_back();
    }

    /// Returns how many of the first packets of `segments` may pass.
    #[inline]
    pub(super) fn admit(&mut self, now: Time, way: Way, segments: Segments, shared: &mut Shared) -> usize {
        let Shared { users, groups } = shared;
        let user = self.user.and_then(|user| users.get_mut(user as usize)?.as_mut());
        let group = self.group.and_then(|group| groups.get_mut(group.0 as usize));
        admit_by([Some(&mut self.own), user, group], now, way, segments)
    }
}

/// Returns how many of the first packets of `segments` pass each of these limits. None is charged
/// for what another refuses.
#[inline]
fn admit_by(limits: [Option<&mut ShardLimit>; 3], now: Time, way: Way, segments: Segments) -> usize {
    let mut asked: [Option<(&mut ShardLimit, usize)>; 3] = [const { None }; 3];
    let mut passed = segments.count;
    for (place, limit) in asked.iter_mut().zip(limits) {
        let (Some(limit), Some(segments)) = (limit, segments.first(passed)) else { continue };
        passed = limit.admit(now, way, segments);
        *place = Some((limit, passed));
    }
    for (limit, admitted) in asked.into_iter().flatten() {
        if passed < admitted {
            limit.refund(way, segments, admitted, passed);
        }
    }
    passed
}

impl Shared {
    /// Makes these limits hold for a user, whose buckets stay. Returns the user's number.
    fn set_user(&mut self, rates: Rates, user: UserBuckets) -> u32 {
        let at = user.number as usize;
        if self.users.len() <= at {
            self.users.resize_with(at + 1, || None);
        }
        if let Some(before) = self.users[at].replace(ShardLimit::new(rates, user.buckets)).as_mut() {
            before.give_back();
        }
        user.number
    }

    /// Makes these limits hold for groups. A group that had limits keeps its buckets.
    pub(super) fn set_groups(&mut self, limits: &[GroupLimits]) {
        self.groups.iter_mut().for_each(ShardLimit::give_back);
        self.groups.clear();
        let limit = |group: &GroupLimits| ShardLimit::new(group.rates, Arc::clone(&group.buckets));
        self.groups.extend(limits.iter().map(limit));
    }
}
