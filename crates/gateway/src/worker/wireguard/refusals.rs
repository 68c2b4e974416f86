//! Devices that have shown their key and got no session: each is left alone for a moment, and
//! administrators see it for a while.
//!
//! INVARIANT: one entry for each device at most, and none for a key that is no device's.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use vpnd_ipc::admin::status::RefusedDevice;
use vpnd_proto::time::Time;
use vpnd_wireguard::PublicKey;

/// The auth process is not asked again for this time about a device that got no session, however
/// often it shakes hands. Stock clients try again after 5 s.
const LEFT_ALONE: Duration = Duration::from_secs(4);
/// Administrators see a device that has not tried again for this time.
const SHOWN: Duration = Duration::from_secs(15 * 60);
/// Devices that administrators see, the latest of all.
const MOST_SHOWN: usize = 100;

/// The devices that got no session at their last attempt.
#[derive(Default)]
pub(super) struct Refusals(HashMap<PublicKey, Refusal>);

struct Refusal {
    last: Time,
    times: u64,
    why: String,
    is_walled: bool,
}

impl Refusals {
    /// The device got no session; `is_walled` if a renewal changes that.
    pub(super) fn note(&mut self, now: Time, device: PublicKey, why: &str, is_walled: bool) {
        let times = self.0.get(&device).map_or(0, |before| before.times) + 1;
        self.0.insert(device, Refusal { last: now, times, why: why.to_owned(), is_walled });
    }

    /// Whether the auth process has refused the device a moment ago.
    pub(super) fn is_recent(&self, now: Time, device: &PublicKey) -> bool {
        self.0.get(device).is_some_and(|refusal| now.since(refusal.last) < LEFT_ALONE)
    }

    /// The device has a session, or has changed, or is none any more.
    pub(super) fn forget(&mut self, device: &PublicKey) {
        self.0.remove(device);
    }

    /// The devices as administrators see them, the latest first.
    pub(super) fn shown(&self, now: Time) -> Vec<RefusedDevice> {
        let mut recent: Vec<_> =
            self.0.iter().filter(|(_, refusal)| now.since(refusal.last) < SHOWN).collect();
        recent.sort_unstable_by_key(|(device, refusal)| (Reverse(refusal.last), **device));
        recent.truncate(MOST_SHOWN);
        let shown = |(device, refusal): (&PublicKey, &Refusal)| RefusedDevice {
            key: device.short(),
            why: refusal.why.clone(),
            walled: refusal.is_walled,
            times: refusal.times,
            last_s: now.since(refusal.last).as_secs(),
        };
        recent.into_iter().map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_left_alone_for_a_moment_and_seen_for_a_while() {
        let (at, key) = (|seconds| Time::ZERO + Duration::from_secs(seconds), |byte| PublicKey([byte; 32]));
        let mut refusals = Refusals::default();
        refusals.note(at(100), key(1), "no", false);
        refusals.note(at(105), key(1), "later", true);
        refusals.note(at(101), key(2), "no", false);
        assert!(refusals.is_recent(at(108), &key(1)) && !refusals.is_recent(at(109), &key(1)));
        assert!(!refusals.is_recent(at(101), &key(3)), "it was never refused");
        let shown = refusals.shown(at(110));
        let seen: Vec<_> =
            shown.iter().map(|device| (device.key.as_str(), device.times, device.last_s)).collect();
        assert_eq!(seen, [(key(1).short().as_str(), 2, 5), (key(2).short().as_str(), 1, 9)]);
        assert_eq!((shown[0].why.as_str(), shown[0].walled, shown[1].walled), ("later", true, false));
        assert_eq!(refusals.shown(at(101) + SHOWN).len(), 1, "the other has given up");
        refusals.forget(&key(1));
        assert!(!refusals.is_recent(at(106), &key(1)) && refusals.shown(at(110)).len() == 1);
    }

    #[test]
    fn the_latest_of_many_are_seen() {
        let mut refusals = Refusals::default();
        for byte in 0..=200 {
            let at = Time::ZERO + Duration::from_secs(byte.into());
            refusals.note(at, PublicKey([byte; 32]), "no", false);
        }
        let shown = refusals.shown(Time::ZERO + Duration::from_secs(200));
        assert_eq!((shown.len(), shown[0].last_s, shown[99].last_s), (MOST_SHOWN, 0, 99));
    }
}
