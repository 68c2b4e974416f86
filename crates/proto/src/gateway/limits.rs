//! Rate limits of sessions and groups, as the shards have them.
//!
//! INVARIANT: the buckets of a session last as long as it does, those of a user as long as the user
//! has sessions, those of a group's number as long as the process. So changing a limit fills none.

use std::sync::Arc;

use super::Gateway;
use crate::plane::{Command, GroupLimits};
use crate::rate::{Buckets, Rates, SessionLimits};
use crate::session::SessionId;
use crate::time::Time;

impl Gateway {
    /// These rate limits hold from now on: for each group by its number, and for each session as
    /// `limits_of` has it.
    pub fn set_limits(
        &mut self,
        now: Time,
        groups: &[Rates],
        limits_of: impl Fn(SessionId) -> SessionLimits,
    ) {
        self.set_groups(now, groups);
        for slot in self.table.slots() {
            let Some(session) = self.table.get_mut(slot) else { continue };
            let limits = limits_of(session.record.id);
            if core::mem::replace(&mut session.record.limits, limits) == limits || !session.open {
                continue;
            }
            let limits = session.limits();
            self.command_all(|_| Command::Limit { slot, limits: limits.clone() });
        }
    }

    /// A group that is there no more has no limit.
    fn set_groups(&mut self, now: Time, groups: &[Rates]) {
        let shards = self.config.shards;
        let count = groups.len().max(self.groups.len());
        self.groups.resize_with(count, || GroupLimits {
            rates: Rates::default(),
            buckets: Arc::new(Buckets::new(now, shards)),
        });
        for (number, group) in self.groups.iter_mut().enumerate() {
            group.rates = groups.get(number).copied().unwrap_or_default();
        }
        let groups: Arc<[GroupLimits]> = self.groups.clone().into();
        self.command_all(|_| Command::Groups(Arc::clone(&groups)));
    }
}
