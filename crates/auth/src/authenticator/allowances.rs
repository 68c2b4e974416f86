//! Limits of a user's logins. Each costs writes to the store, a line of the audit file
//! and, with a new device, an address.
//!
//! Invariants: a user has a number at once and then one for each interval, whatever the number of
//! devices and places; a login beyond that leaves no trace in the store.

use std::time::Duration;

use vpnd_store::UserId;

/// Limits of users, or of what has another key.
pub(crate) type Allowances<K = UserId> = vpnd_sys::allowances::Allowances<K>;

/// Logins of one user at once, unless configured otherwise.
pub(super) const LOGINS: u32 = 30;
/// The time from one to the next, when those are used up.
pub(super) const INTERVAL: Duration = Duration::from_secs(20);
