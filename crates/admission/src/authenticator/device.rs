//! The decision about a WireGuard device, which has shown its key by a handshake, in place of a
//! login.
//!
//! Invariants: its user must be enabled and not expired, known to their source as far as that is
//! asked again, and in an access profile that allows WireGuard. One that has to be renewed reaches
//! the pages alone, and so does one whose user has to log in at a provider. Its sessions last no
//! longer than a lifetime of the profile from when it was added or renewed last. Nothing here
//! counts as a guess or as a login: a device needs neither.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::allowances::Limit;
use super::external::blocking;
use super::login_record::LoginRecord;
use super::recheck::{Outcome, Rechecks};
use super::sources::Sources;
use super::{Authenticated, Cause, LoginOutcome};
use crate::access::{Access, NotAdmitted};
use crate::ending;
use vpnd_config::factor::Factors;
use vpnd_ipc::gateway::idp::SourceLimits;
use vpnd_ipc::gateway::refusal::{Refusal, Refused};
use vpnd_store::{FoundDevice, LOCAL, LiveUser, Store, User, WireGuardDevice};

/// Devices for which sources are asked at once, at most. The others try again: were they to wait
/// for a slow source, they would take the place of logins and of all else that the worker asks for.
/// The worker has 24 devices decided at once.
static ASKED: Semaphore = Semaphore::const_new(8);

/// The longest session of a device that reaches nothing but the portal's pages. It begins another
/// one by itself, and is decided about again: clocks and groups may be others by then.
const WALLED_S: u64 = 600;

/// The answer of the source of a device's user.
enum Word {
    /// The user is there.
    Here(User),
    /// It can say more when the user has logged in again.
    LogIn(User),
    Not(User, Cause, Refusal),
}

/// Until when a device may have sessions.
struct Standing {
    /// Time that is left; `None` without an end.
    left_s: Option<u64>,
    /// Whether it has to be renewed first.
    is_walled: bool,
}

/// The decision.
#[derive(Debug)]
pub enum DeviceOutcome {
    /// Let in.
    Granted(Box<Authenticated>, Box<WireGuardDevice>),
    /// Its sessions are over until it is renewed, and it may reach the pages where that is done.
    ToPages(Box<Authenticated>, Box<WireGuardDevice>),
    /// Its sessions are over until it is renewed, and there are no such pages.
    Walled,
    Refused(Refused),
}

impl From<Refusal> for DeviceOutcome {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal.into())
    }
}

pub(super) struct DeviceAdmission {
    pub(super) store: Arc<dyn Store>,
    pub(super) access: Arc<Access>,
    pub(super) sources: Arc<Sources>,
    pub(super) rechecks: Arc<Rechecks>,
    pub(super) record: Arc<LoginRecord>,
    /// Apart from logins.
    pub(super) limit: Arc<Limit>,
}

impl DeviceAdmission {
    /// Decides about the device with this key; `has_pages` is whether there is a portal. One whose
    /// session is not over goes on: its user is asked about again like others with sessions. The
    /// times are those of people and of sessions.
    pub(super) async fn admit(
        self: &Arc<Self>,
        key: [u8; 32],
        outer: IpAddr,
        has_pages: bool,
        (now_s, steady_s): (u64, u64),
    ) -> DeviceOutcome {
        let this = Arc::clone(self);
        let found = match blocking(move || this.store.find_wireguard_device(&key, steady_s)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                tracing::error!(%error, "a WireGuard device could not be checked");
                return Refusal::Busy.into();
            }
            Err(LoginOutcome::Refused(refused)) => return DeviceOutcome::Refused(refused),
            Err(_) => return Refusal::Internal.into(),
        };
        // After a restart its session before may not be over.
        let Some(FoundDevice { device, user, has_session }) = found else {
            return Refusal::Credentials.into();
        };
        if let Some(cause) = fault(&user, now_s) {
            return self.refuse(&user, &device, outer, cause, Refusal::Credentials, now_s);
        }
        // The source is not asked about a device that reaches the pages alone: it may want a login
        // first.
        let is_walled_here = self.standing(&user, &device, now_s).is_some_and(|standing| standing.is_walled);
        let word = if is_walled_here { Word::Here(user) } else { self.confirmed(user, has_session).await };
        let (user, has_to_log_in) = match word {
            Word::Here(user) => (user, false),
            Word::LogIn(user) if has_pages => (user, true),
            Word::LogIn(user) => {
                let (cause, refusal) = (Cause::SourceUnavailable, Refusal::SourceUnavailable);
                return self.refuse(&user, &device, outer, cause, refusal, now_s);
            }
            Word::Not(user, cause, refusal) => {
                return self.refuse(&user, &device, outer, cause, refusal, now_s);
            }
        };
        let Some(Standing { left_s, is_walled }) = self.standing(&user, &device, now_s) else {
            let cause = NotAdmitted::NoProfile;
            return self.refuse(&user, &device, outer, cause.into(), cause.into(), now_s);
        };
        if has_to_log_in
            && let Err(error) = ending::wall(self.store.as_ref(), user.id, Some(device.id), now_s)
        {
            tracing::error!(%error, "a WireGuard device could not be checked");
            return Refusal::Busy.into();
        }
        let is_walled = is_walled || has_to_log_in;
        if is_walled && !has_pages {
            return DeviceOutcome::Walled;
        }
        // One that goes on is no further login: its sessions may be many after a restart.
        if !has_session && let Err(wait_s) = self.limit.take(user.id) {
            return DeviceOutcome::Refused(Refusal::Throttled.retry_after_s(Some(wait_s)));
        }
        self.record.device(&user.name, outer, is_walled, now_s);
        let left_s = if is_walled { Some(WALLED_S) } else { left_s };
        let session_s = left_s.map(|left_s| u32::try_from(left_s).unwrap_or(u32::MAX));
        let limits = SourceLimits { session_s, ..SourceLimits::default() };
        let user = Box::new(Authenticated { limits, ..Authenticated::here(user, Factors::KEY) });
        let device = Box::new(device);
        if is_walled { DeviceOutcome::ToPages(user, device) } else { DeviceOutcome::Granted(user, device) }
    }

    /// Returns how long the sessions of a device of this user may last; `None` if no access profile
    /// allows any.
    fn standing(&self, user: &User, device: &WireGuardDevice, now_s: u64) -> Option<Standing> {
        let profile = self.access.of(user).filter(|profile| profile.wireguard.allowed)?;
        let left_s = profile
            .session_lifetime
            .map(|lifetime| device.renewed_s.saturating_add(lifetime.as_secs()).saturating_sub(now_s));
        Some(Standing { left_s, is_walled: device.walled_s.is_some() || left_s == Some(0) })
    }

    /// The user as their source shows them now, if it is one that is asked again.
    async fn confirmed(self: &Arc<Self>, user: User, has_session: bool) -> Word {
        if user.source == LOCAL {
            return Word::Here(user);
        }
        let Some(source) = self.sources.named(&user.source) else {
            return Word::Not(user, Cause::NoRecord, Refusal::Credentials);
        };
        if has_session || source.source.recheck().is_none() {
            return Word::Here(user);
        }
        let Ok(_permit) = ASKED.try_acquire() else {
            return Word::Not(user, Cause::SourceUnavailable, Refusal::SourceUnavailable);
        };
        match self.rechecks.recheck_user(source, &LiveUser::of(&user)).await {
            Outcome::Confirmed => {}
            Outcome::Over => return Word::Not(user, Cause::Disabled, Refusal::Credentials),
            Outcome::NoToken => return Word::LogIn(user),
            // A provider has the last word at the login.
            Outcome::Absent if source.is_provider() => return Word::LogIn(user),
            Outcome::Absent | Outcome::Groupless(_) | Outcome::NoAnswer => {
                return Word::Not(user, Cause::SourceUnavailable, Refusal::SourceUnavailable);
            }
        }
        let (this, id) = (Arc::clone(self), user.id);
        match blocking(move || this.store.user_by_id(id)).await {
            // In other groups, perhaps.
            Ok(Ok(Some(fresh))) if fresh.enabled => Word::Here(fresh),
            _ => Word::Not(user, Cause::StoreFailed, Refusal::Busy),
        }
    }

    fn refuse(
        &self,
        user: &User,
        device: &WireGuardDevice,
        outer: IpAddr,
        cause: Cause,
        refusal: Refusal,
        now_s: u64,
    ) -> DeviceOutcome {
        self.record.device_refused(&user.name, &device.name, outer, cause, now_s);
        refusal.into()
    }
}

fn fault(user: &User, now_s: u64) -> Option<Cause> {
    match user {
        user if !user.enabled => Some(Cause::Disabled),
        user if user.has_expired(now_s) => Some(Cause::Expired),
        _ => None,
    }
}
