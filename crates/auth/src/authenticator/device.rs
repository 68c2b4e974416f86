//! The decision about a WireGuard device, which has shown its key by a handshake, in place of a
//! login.
//!
//! Invariants: its user must be enabled and not expired, known to their source as far as that is
//! asked again, and in an access profile that allows WireGuard. Its sessions last no longer than a
//! lifetime of the profile from when it was added or renewed last. Nothing here counts as a guess
//! or as a login: a device needs neither.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use tokio::sync::Semaphore;

use super::external::blocking;
use super::recheck::Outcome;
use super::{Authenticated, Authenticator, Cause, LoginOutcome};
use crate::access::NotAdmitted;
use vpnd_config::factor::Factors;
use vpnd_ipc::gateway::idp::SourceLimits;
use vpnd_ipc::gateway::refusal::{Refusal, Refused};
use vpnd_store::{Device, LOCAL, LiveUser, StoreError, User, WireGuardDevice};
use vpnd_sys::clock::now;

/// Devices for which sources are asked at once, at most. The others try again: were they to wait for
/// a slow source, they would take the place of logins and of all else that the worker asks for.
static ASKED: Semaphore = Semaphore::const_new(32);

/// The longest session of a device that reaches nothing but the portal's pages. It begins another one
/// by itself.
const WALLED_S: u64 = 3_600;

/// A device as the store has it.
struct Found {
    device: WireGuardDevice,
    user: User,
    /// Whether its session before is not over: the gateway was restarted or upgraded.
    has_session: bool,
}

/// The decision.
#[derive(Debug)]
pub(crate) enum DeviceOutcome {
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

impl Authenticator {
    /// Decides about the device with this key; `has_pages` is whether there is a portal. One whose
    /// session is not over goes on: its user is asked about again like others with sessions.
    pub(crate) async fn admit_device(
        self: &Arc<Self>,
        key: [u8; 32],
        outer: IpAddr,
        has_pages: bool,
        now_s: u64,
    ) -> DeviceOutcome {
        let this = Arc::clone(self);
        let found = match blocking(move || this.device(&key)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                tracing::error!(%error, "a WireGuard device could not be checked");
                return Refusal::Busy.into();
            }
            Err(LoginOutcome::Refused(refused)) => return DeviceOutcome::Refused(refused),
            Err(_) => return Refusal::Internal.into(),
        };
        let Some(Found { device, user, has_session }) = found else { return Refusal::Credentials.into() };
        if let Some(cause) = fault(&user, now_s) {
            return self.refuse_device(&user, &device, outer, cause, Refusal::Credentials, now_s);
        }
        let user = match self.confirmed(user, has_session).await {
            Ok(user) => user,
            Err((user, cause, refusal)) => {
                return self.refuse_device(&user, &device, outer, cause, refusal, now_s);
            }
        };
        let Some(profile) = self.credentials.profile(&user).filter(|profile| profile.wireguard.allowed)
        else {
            let why = NotAdmitted::NoProfile;
            return self.refuse_device(&user, &device, outer, why.into(), why.into(), now_s);
        };
        let left_s = match profile.session_lifetime {
            None => None,
            Some(lifetime) => Some(device.renewed_s.saturating_add(lifetime.as_secs()).saturating_sub(now_s)),
        };
        let is_walled = device.walled_s.is_some() || left_s == Some(0);
        if is_walled && !has_pages {
            return DeviceOutcome::Walled;
        }
        let mut admissions = self.admissions.lock().unwrap_or_else(PoisonError::into_inner);
        // One that goes on is no further login: its sessions may be many after a restart.
        if !has_session && let Err(wait_s) = admissions.take(user.id, now()) {
            return DeviceOutcome::Refused(Refusal::Throttled.retry_after_s(Some(wait_s)));
        }
        drop(admissions);
        self.record.device(&user.name, outer, is_walled, now_s);
        let left_s = if is_walled { Some(WALLED_S) } else { left_s };
        let session_s = left_s.map(|left_s| u32::try_from(left_s).unwrap_or(u32::MAX));
        let limits = SourceLimits { session_s, ..SourceLimits::default() };
        let user = Box::new(Authenticated { limits, ..Authenticated::here(user, Factors::KEY) });
        let device = Box::new(device);
        if is_walled { DeviceOutcome::ToPages(user, device) } else { DeviceOutcome::Granted(user, device) }
    }

    fn device(&self, key: &[u8; 32]) -> Result<Option<Found>, StoreError> {
        let Some(device) = self.store.wireguard_device(key)? else { return Ok(None) };
        let Some(user) = self.store.user_by_id(device.user)? else { return Ok(None) };
        let is_it = |other: &Device| other.id == device.id && other.session_since_s.is_some();
        let has_session = self.store.devices(device.user)?.iter().any(is_it);
        Ok(Some(Found { device, user, has_session }))
    }

    /// The user as their source shows them now, if it is one that is asked again.
    async fn confirmed(
        self: &Arc<Self>,
        user: User,
        has_session: bool,
    ) -> Result<User, (User, Cause, Refusal)> {
        if user.source == LOCAL {
            return Ok(user);
        }
        let source = self.external.sources.iter().find(|source| source.source.name == user.source);
        let Some(source) = source.map(Arc::clone) else {
            return Err((user, Cause::NoRecord, Refusal::Credentials));
        };
        if has_session || source.source.recheck().is_none() {
            return Ok(user);
        }
        let Ok(_permit) = ASKED.try_acquire() else {
            return Err((user, Cause::SourceUnavailable, Refusal::SourceUnavailable));
        };
        match self.recheck_user(&source, &LiveUser::of(&user)).await {
            Outcome::Confirmed => {}
            Outcome::Over => return Err((user, Cause::Disabled, Refusal::Credentials)),
            Outcome::Absent | Outcome::Groupless(_) | Outcome::NoAnswer => {
                return Err((user, Cause::SourceUnavailable, Refusal::SourceUnavailable));
            }
        }
        let (this, id) = (Arc::clone(self), user.id);
        match blocking(move || this.store.user_by_id(id)).await {
            // In other groups, perhaps.
            Ok(Ok(Some(fresh))) if fresh.enabled => Ok(fresh),
            _ => Err((user, Cause::StoreFailed, Refusal::Busy)),
        }
    }

    fn refuse_device(
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
