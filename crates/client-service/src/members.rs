//! The users who may talk to the service, and how much each may send at a time.
//!
//! INVARIANT: root, and members of the group by the machine's word, get in; a plain user holds a
//! bounded number of connections, and starts clients at a bounded rate, whatever others do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vpnd_proto::time::Time;

use vpnd_sys::account::{self, AccountError};
use vpnd_sys::allowance::Allowance;

/// Connections of one user at the same time.
const MAX_OF_ONE: usize = 8;
/// Connections of all plain users.
const MAX_OF_ALL: usize = 128;
/// Users whose starts are counted. More are only those that have started something lately.
const MAX_COUNTED: usize = 256;
/// Clients that a user may start at once, and after that one for each interval: each may try a
/// password.
const STARTS: u32 = 10;
const START_INTERVAL: Duration = Duration::from_secs(5);
/// Requests of a user at once, and after that one for each interval: each may read all profiles.
const REQUESTS: u32 = 50;
const REQUEST_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAdmitted {
    #[error("this user is not in the group")]
    Stranger,
    #[error("this user has {MAX_OF_ONE} connections already")]
    TooMany,
    #[error("there are {MAX_OF_ALL} connections already")]
    Full,
    #[error("the machine's users can't be looked up: {0}")]
    LookUp(#[from] AccountError),
}

/// The group, and what its members hold now.
pub(crate) struct Members {
    group: Option<u32>,
    held: Arc<Mutex<Held>>,
}

#[derive(Default)]
struct Held {
    connections: HashMap<u32, usize>,
    starts: Counted,
    requests: Counted,
}

/// The rest of each user's allowance.
type Counted = HashMap<u32, Allowance>;

/// The right of one connection, as long as it lasts.
pub(crate) struct Admission {
    uid: u32,
    held: Arc<Mutex<Held>>,
}

impl Members {
    /// Members of the group of this name; if there is none, only root gets in.
    ///
    /// # Errors
    /// If the machine's groups can't be looked up.
    pub(crate) fn of(group: &str) -> Result<Self, AccountError> {
        Ok(Self { group: account::group_of(group)?, held: Arc::default() })
    }

    pub(crate) fn group(&self) -> Option<u32> {
        self.group
    }

    /// Takes a connection's place for a user, whom [`Members::verify`] has to let in.
    ///
    /// # Errors
    /// If the user, or all together, have enough.
    pub(crate) fn admit(&self, uid: u32) -> Result<Admission, NotAdmitted> {
        let mut held = lock(&self.held);
        let plain = held.connections.iter().filter(|(uid, _)| **uid != 0);
        let of_all: usize = plain.map(|(_, count)| count).sum();
        let of_one = held.connections.get(&uid).copied().unwrap_or_default();
        if uid != 0 && of_one >= MAX_OF_ONE {
            return Err(NotAdmitted::TooMany);
        }
        if uid != 0 && of_all >= MAX_OF_ALL {
            return Err(NotAdmitted::Full);
        }
        held.connections.insert(uid, of_one + 1);
        Ok(Admission { uid, held: Arc::clone(&self.held) })
    }

    /// Whether a user is root or in the group, by the machine's word; the name of the directory of
    /// what is kept for this user. The socket's mode says the same; a mistake with that lets no
    /// user in. May take long.
    ///
    /// # Errors
    /// If the user is not.
    pub(crate) fn verify(&self, uid: u32) -> Result<String, NotAdmitted> {
        match self.group {
            _ if uid == 0 => {}
            Some(group) if account::is_member(uid, group)? => {}
            _ => return Err(NotAdmitted::Stranger),
        }
        Ok(place_of(uid, &account::name_of(uid)?.unwrap_or_default()))
    }
}

/// The directory of a user, by number and name: the number may be another person's later, who must
/// not have this one's keys.
fn place_of(uid: u32, name: &str) -> String {
    let mut place = format!("{uid}-");
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'@' => place.push(byte.into()),
            _ => place.push_str(&format!("%{byte:02x}")),
        }
    }
    place
}

impl Admission {
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// Whether the user may start one more client now.
    pub(crate) fn may_start(&self, now: Time) -> bool {
        self.take(&mut lock(&self.held).starts, Allowance::new(STARTS, START_INTERVAL), now)
    }

    /// Whether the user may have one more request answered now.
    pub(crate) fn may_request(&self, now: Time) -> bool {
        self.take(&mut lock(&self.held).requests, Allowance::new(REQUESTS, REQUEST_INTERVAL), now)
    }

    fn take(&self, counted: &mut Counted, fresh: Allowance, now: Time) -> bool {
        if counted.len() >= MAX_COUNTED {
            counted.retain(|_, allowance| !allowance.is_full(now));
        }
        self.uid == 0 || counted.entry(self.uid).or_insert(fresh).take(now)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        if let Some(count) = held.connections.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                held.connections.remove(&self.uid);
            }
        }
    }
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_sys::account::UnixUser;

    fn members(group: Option<u32>) -> Members {
        Members { group, held: Arc::default() }
    }

    #[test]
    fn users_outside_the_group_are_refused() {
        let nobody = UnixUser::of("nobody").unwrap();
        assert!(members(Some(nobody.gid())).verify(nobody.uid()).is_ok());
        for group in [Some(0), None] {
            let members = members(group);
            assert!(matches!(members.verify(nobody.uid()), Err(NotAdmitted::Stranger)), "{group:?}");
            assert!(matches!(members.verify(3_999_999), Err(NotAdmitted::Stranger)), "nobody's number");
            assert!(members.verify(0).is_ok());
        }
        assert!(Members::of("no-such-group-of-vpnd").unwrap().group().is_none());
    }

    #[test]
    fn stored_files_are_not_given_to_another_user_with_the_same_uid() {
        assert_eq!(place_of(1_000, "ann"), "1000-ann");
        let places =
            [(1_000, "ann"), (1_000, "bob"), (1_001, "ann"), (1_000, ""), (1_000, "ann/.."), (100, "0-ann")];
        let all: std::collections::HashSet<_> = places.map(|(uid, name)| place_of(uid, name)).into();
        assert_eq!(all.len(), places.len());
        assert!(all.iter().all(|place| !place.contains('/') && place.len() > 3), "{all:?}");
        let nobody = UnixUser::of("nobody").unwrap();
        let place = members(Some(nobody.gid())).verify(nobody.uid()).unwrap();
        assert_eq!(place, format!("{}-nobody", nobody.uid()));
    }

    #[test]
    fn a_user_holds_a_bounded_number_of_connections() {
        let members = members(None);
        let mut held: Vec<_> = (0..MAX_OF_ONE).map(|_| members.admit(7).unwrap()).collect();
        assert!(matches!(members.admit(7), Err(NotAdmitted::TooMany)));
        let roots: Vec<_> = (0..2 * MAX_OF_ONE).map(|_| members.admit(0).unwrap()).collect();
        held.pop();
        assert!(members.admit(7).is_ok());
        drop((held, roots));
        assert!(lock(&members.held).connections.is_empty());
        lock(&members.held).connections.insert(8, MAX_OF_ALL);
        assert!(matches!(members.admit(7), Err(NotAdmitted::Full)));
        assert!(members.admit(0).is_ok(), "root in any case");
    }

    #[test]
    fn a_member_requests_at_a_bounded_rate() {
        let held = Arc::<Mutex<Held>>::default();
        let admission = |uid| Admission { uid, held: Arc::clone(&held) };
        let answered = (0..10_000)
            .filter(|millis| admission(7).may_request(Time::ZERO + Duration::from_millis(*millis)));
        assert_eq!(answered.count(), 50 + 99);
        assert!(admission(8).may_request(Time::ZERO + Duration::from_secs(10)), "others as before");
    }

    #[test]
    fn a_member_starts_a_bounded_number_of_clients() {
        let (one, other) = (1_000, 1_001);
        let held = Arc::<Mutex<Held>>::default();
        let admission = |uid| Admission { uid, held: Arc::clone(&held) };
        let started = (0..60_000)
            .filter(|millis| admission(one).may_start(Time::ZERO + Duration::from_millis(*millis)));
        assert_eq!(started.count(), 10 + 11);
        let minute = Time::ZERO + Duration::from_secs(60);
        assert!(admission(other).may_start(minute));
        assert!((0..100).all(|_| admission(0).may_start(minute)), "root as often as it likes");
        for uid in 0..10_000 {
            admission(uid).may_start(minute + Duration::from_secs(u64::from(uid) * 6));
        }
        assert!(lock(&held).starts.len() <= MAX_COUNTED);
    }
}
