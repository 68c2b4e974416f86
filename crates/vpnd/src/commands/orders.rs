//! Orders of an administrator to all gateways of a fleet, which need no database.
//!
//! A command leaves one in the state directory of the running gateway, which gives it to the
//! others, and reads there what has become of it.

use std::time::{Duration, Instant};

use crate::admin_store::{Opening, Stores};
use vpnd_config::ServerConfig;
use vpnd_store::{Kick, KickProgress, StoreError};

/// Limits for the confirmations of the gateways, and for the store's word on a kick after them.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(3);
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
const CONFIRMATION_INTERVAL: Duration = Duration::from_millis(50);

/// The state of an order, as far as it is known after a while.
pub(super) struct Carried {
    progress: KickProgress,
    /// The name of this gateway, if it has a part in the order.
    own: Option<String>,
}

/// Has the running gateway kick a user at the other gateways of the fleet, or disable them at all,
/// and waits for the confirmations. It stands once `on_left` is called.
pub(super) fn give(
    config: &ServerConfig,
    stores: &dyn Stores,
    kick: &Kick,
    on_left: impl FnOnce(),
) -> Result<Carried, StoreError> {
    let mut store = stores.open(config, Opening::Kicks)?;
    store.leave_kick(kick)?;
    on_left();
    let left = Instant::now();
    let own = config.fleet.as_ref().filter(|_| kick.is_disable).map(|fleet| fleet.name.clone());
    loop {
        std::thread::sleep(CONFIRMATION_INTERVAL);
        let progress = store.kick_progress(kick.id)?.unwrap_or_default();
        let carried = Carried { progress, own: own.clone() };
        let limit = match (carried.is_confirmed(), carried.is_stored()) {
            (true, true) => Duration::ZERO,
            // A gateway that has not confirmed it reads it there.
            (_, true) | (true, _) if kick.is_disable => Duration::ZERO,
            // The store has those sessions, too, whose clients are away.
            (true, false) => STORE_TIMEOUT,
            (false, _) => CONFIRMATION_TIMEOUT,
        };
        if left.elapsed() >= limit {
            return Ok(carried);
        }
    }
}

impl Carried {
    /// Whether the store has it.
    pub(super) fn is_stored(&self) -> bool {
        self.progress.stored.is_some()
    }

    /// Whether each gateway has carried it out. There is one or the store has it, or else the
    /// gateway may not have looked at it.
    pub(super) fn is_confirmed(&self) -> bool {
        let KickProgress { stored, gateways, .. } = &self.progress;
        let has_looked = stored.is_some() || self.own.is_some() || !gateways.is_empty();
        has_looked && self.gateways().all(|(_, ended)| ended.is_some())
    }

    /// The sessions that have ended, as far as that is known: by the gateways, or by the store,
    /// which also has those of clients that are away.
    pub(super) fn ended(&self) -> usize {
        let confirmed: u64 = self.gateways().filter_map(|(_, ended)| ended).sum();
        usize::try_from(confirmed.max(self.progress.stored.unwrap_or_default())).unwrap_or(usize::MAX)
    }

    /// The names of the gateways that have carried it out; empty if none has.
    pub(super) fn confirmed(&self) -> String {
        self.names(|ended| ended.is_some())
    }

    /// The names of those that have not confirmed it.
    pub(super) fn unconfirmed(&self) -> String {
        let names = self.names(|ended| ended.is_none());
        if names.is_empty() { "the other gateways of the fleet".to_owned() } else { names }
    }

    fn names(&self, which: impl Fn(Option<u64>) -> bool) -> String {
        let names: Vec<&str> =
            self.gateways().filter(|(_, ended)| which(*ended)).map(|(name, _)| name).collect();
        vpnd_sys::text::plain(&names.join(", "))
    }

    fn gateways(&self) -> impl Iterator<Item = (&str, Option<u64>)> {
        let own = self.own.iter().map(|name| (name.as_str(), self.progress.here));
        own.chain(self.progress.gateways.iter().map(|(name, ended)| (name.as_str(), *ended)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(own: Option<Option<u64>>, stored: Option<u64>, ended: &[Option<u64>]) -> Carried {
        let gateways = (2..).zip(ended).map(|(number, ended)| (format!("gw{number}"), *ended)).collect();
        let progress = KickProgress { stored, gateways, here: own.flatten() };
        Carried { progress, own: own.map(|_| "gw1".to_owned()) }
    }

    #[test]
    fn an_order_is_confirmed_by_each_gateway() {
        for (own, stored, ended, is_good, sessions) in [
            (None, None, &[Some(1), Some(2)][..], true, 3),
            (None, Some(1), &[Some(1), Some(2)], true, 3),
            (None, Some(5), &[Some(0)], true, 5),
            (None, Some(1), &[], true, 1),
            (None, None, &[], false, 0),
            (None, Some(0), &[Some(1), None], false, 1),
            (None, None, &[None], false, 0),
            (Some(None), None, &[Some(1)], false, 1),
            (Some(Some(4)), None, &[Some(1)], true, 5),
            (Some(Some(4)), None, &[], true, 4),
            (Some(None), None, &[], false, 0),
        ] {
            let carried = carried(own, stored, ended);
            assert_eq!(carried.is_confirmed(), is_good, "{:?}", carried.progress);
            assert_eq!(carried.ended(), sessions, "{:?}", carried.progress);
        }
        let some = carried(Some(Some(0)), None, &[None, Some(1), None]);
        assert_eq!((some.confirmed(), some.unconfirmed()), ("gw1, gw3".to_owned(), "gw2, gw4".to_owned()));
        let older = carried(None, None, &[]);
        assert!(older.unconfirmed().contains("other gateways"), "the gateway is an older one");
        assert_eq!(older.confirmed(), "");
    }
}
