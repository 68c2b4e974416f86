//! Changes of users at the desk.
//!
//! INVARIANT: each is on the disk, with its reason and with who asks, before it is done.

use std::sync::Arc;

use super::accounts;
use super::actor::Actor;
use super::authority::{is_for_people, may_change};
use crate::portal::browsers::Browsers;
use crate::portal::devices::{Devices, NotAdded};
use crate::portal::record::Record;
use vpnd_admission::access::Access;
use vpnd_admission::authenticator::Authenticator;
use vpnd_admission::ending;
use vpnd_admission::notices::Membership;
use vpnd_admission::wireguard::new_device;
use vpnd_config::factor::Requirement;
use vpnd_config::revocation_cause::RevocationCause;
use vpnd_ipc::gateway::portal::desk::{ChangeUser, Deed, DeskRefusal, Made, Replied, Role};
use vpnd_proto::session::DeviceId;
use vpnd_store::audit::whois::is_reason;
use vpnd_store::{
    CertificateHash, ExternalUser, Kick, LOCAL, PasswordHash, Store, StoreError, User, UserChange,
};
use vpnd_sys::clock::Clocks;
use vpnd_sys::date::Expiry;
use vpnd_wireguard::PublicKey;

/// The longest time for which a guest is let in from here, seconds.
const LONGEST_STAY_S: u64 = 366 * 86_400;

/// A deed that may be done, until it is on the record.
pub(super) struct Planned<'a> {
    event: &'static str,
    /// Its description, for the record.
    detail: String,
    act: Box<dyn FnOnce() -> Result<Replied<Option<Made>>, StoreError> + 'a>,
}

impl<'a> Planned<'a> {
    pub(super) fn new(
        event: &'static str,
        detail: String,
        act: impl FnOnce() -> Result<Replied<Option<Made>>, StoreError> + 'a,
    ) -> Self {
        Self { event, detail, act: Box::new(act) }
    }

    pub(super) fn modify(
        store: &'a dyn Store,
        user: &'a User,
        detail: String,
        change: UserChange,
        now_s: u64,
    ) -> Self {
        Self::new("user-modified", detail, move || {
            store.modify_user(&user.name, &change, now_s).map(|_| Ok(None))
        })
    }
}

pub(super) struct Deeds {
    pub(super) store: Arc<dyn Store>,
    pub(super) authenticator: Arc<Authenticator>,
    pub(super) access: Arc<Access>,
    pub(super) clocks: Clocks,
    pub(super) record: Arc<Record>,
    pub(super) fleet: Arc<Membership>,
    pub(super) browsers: Arc<Browsers>,
    pub(super) devices: Arc<Devices>,
}

impl Deeds {
    /// The hash of a password that is not kept, for a user whom this one adds.
    pub(super) async fn unknown_password(&self, actor: &Actor) -> Option<PasswordHash> {
        self.authenticator.unknown_password(actor.address).await
    }

    /// Records a change and makes it; `password` is that of a user who is added.
    pub(super) fn change_user(
        &self,
        actor: &Actor,
        change: &ChangeUser,
        password: Option<PasswordHash>,
    ) -> Result<Replied<Option<Made>>, StoreError> {
        let ChangeUser { user, deed, reason, .. } = change;
        if !is_reason(reason) {
            return Ok(Err(DeskRefusal::NoReason));
        }
        let (rules, person) = (&actor.desk.rules, actor.person());
        // Names are taken in the forms that `vpnd user` takes.
        let (name, source) = self.authenticator.name_at(user);
        let user = self.store.user(&name)?;
        let planned = match (&user, deed) {
            (user, deed) if person.is_some() && !is_for_people(rules, deed, user.as_ref()) => {
                Err(DeskRefusal::NoRole)
            }
            (user, Deed::Add(account)) => {
                accounts::add(self, actor, user.as_ref(), (&name, account, password))?
            }
            (None, Deed::Disable) if source.is_some() => {
                Ok(self.keep_out(&name, source.as_deref().unwrap_or_default()))
            }
            (None, _) => Err(DeskRefusal::NotThere),
            (Some(user), Deed::AddDevice { public_key, name }) => {
                match may_change(rules, person, actor.role, user) {
                    Ok(()) => self.plan_device(actor, user, PublicKey((*public_key).into()), name)?,
                    Err(refusal) => Err(refusal),
                }
            }
            (Some(user), deed) => {
                may_change(rules, person, actor.role, user).and_then(|()| self.plan(actor, user, deed))
            }
        };
        let done = match planned {
            Err(refusal) => Err(refusal),
            Ok(Planned { event, detail, act }) => {
                let detail =
                    if detail.is_empty() { reason.to_string() } else { format!("{detail}: {}", &**reason) };
                tracing::info!(event, user = name, by = %actor, address = %actor.address, detail, "asked for at the desk");
                match actor.record(event, &name, detail, (self.clocks.wall)()) {
                    Ok(_) => act()?,
                    Err(refusal) => Err(refusal),
                }
            }
        };
        if let Err(refusal) = &done
            && self.record.refusals.admits()
        {
            tracing::info!(user = name, by = %actor, ?refusal, "refused at the desk");
        }
        Ok(done)
    }

    /// Disables a user of a source before the first login.
    fn keep_out<'a>(&'a self, name: &'a str, source: &'a str) -> Planned<'a> {
        Planned::new("user-disabled", format!("of '{source}', before the first login"), move || {
            self.disable(name, Some(source)).map(|()| Ok(None))
        })
    }

    /// Disables a user; in a fleet by an order to all gateways while the store can't be written,
    /// which it reaches later.
    fn disable(&self, name: &str, source: Option<&str>) -> Result<(), StoreError> {
        let now_s = (self.clocks.wall)();
        let expected = source.map(|source| ExternalUser::expected(source, name));
        let user = expected.map(|expected| self.store.refresh_external(&expected, now_s)).transpose();
        match user.and_then(|_| self.store.set_enabled(name, false, now_s)) {
            Err(error) if error.is_for_now() && self.fleet.is_in_fleet() => {
                tracing::warn!(user = name, %error, "ordered of all gateways, and written once the user store can be");
                let (id, user, source) = (rand::random(), name.to_owned(), source.map(str::to_owned));
                self.store.kicks().leave(&Kick { id, user, at_s: now_s, is_disable: true, source })
            }
            done => done,
        }
    }

    fn needs_code(&self, user: &User) -> bool {
        let Some(profile) = self.access.of(user) else { return false };
        let is_required = |requirement| profile.require.contains(&requirement);
        // A user of the store has no other second factor.
        is_required(Requirement::OneTimeCode) || user.source == LOCAL && is_required(Requirement::Several)
    }

    /// Finds what a deed takes, and whether it fits the user.
    fn plan<'a>(&'a self, actor: &'a Actor, user: &'a User, deed: &Deed) -> Replied<Planned<'a>> {
        let (name, now_s) = (user.name.as_str(), (self.clocks.wall)());
        Ok(match deed {
            Deed::Kick(device) => {
                let device = device.as_ref().map(|device| DeviceId((*device).into()));
                let detail = device.map_or_else(String::new, |device| format!("device {device}"));
                Planned::new("kicked", detail, move || Ok(found(self.kick(user, device)?)))
            }
            Deed::Disable => Planned::new("user-disabled", String::new(), move || {
                self.disable(name, None).map(|()| Ok(None))
            }),
            Deed::Enable => Planned::new("user-enabled", String::new(), move || {
                self.store.set_enabled(name, true, now_s).map(|()| Ok(None))
            }),
            // Without a code such a user can't log in, not even to set another app up.
            Deed::ResetCodes if self.needs_code(user) => return Err(DeskRefusal::Unusable),
            Deed::ResetCodes if user.totp.is_some() => {
                let change = UserChange { totp: Some(None), ..UserChange::default() };
                Planned::modify(self.store.as_ref(), user, "totp: none".to_owned(), change, now_s)
            }
            Deed::Extend(until) => {
                if !extends(actor.role, user) {
                    return Err(DeskRefusal::NoGuest);
                }
                let until_s = later_end(user, until, now_s).ok_or(DeskRefusal::Unusable)?;
                let change = UserChange { expires_s: Some(Some(until_s)), ..UserChange::default() };
                Planned::modify(
                    self.store.as_ref(),
                    user,
                    format!("expires: {}", Expiry::At(until_s)),
                    change,
                    now_s,
                )
            }
            Deed::Invite if self.authenticator.sets_up_codes(user) && actor.desk.pages.is_some() => {
                Planned::new("user-invited", String::new(), move || {
                    accounts::invite(self, &actor.desk, name).map(Ok)
                })
            }
            Deed::RevokeCertificates(one) => return self.plan_revocation(user, one.as_deref(), now_s),
            Deed::RemoveDevice(device) => {
                let device = DeviceId((*device).into());
                Planned::new("device-removed", format!("device {device}"), move || {
                    Ok(found(self.store.remove_device(name, device, now_s)?))
                })
            }
            Deed::RenewDevice { device, reset_clock } => {
                // `vpnd device renew` refuses the same.
                if !user.enabled || user.has_expired(now_s) || self.devices.for_wireguard(user).is_none() {
                    return Err(DeskRefusal::Unusable);
                }
                let (device, reset_clock) = (DeviceId((*device).into()), *reset_clock);
                let clock = if reset_clock { ", clock reset" } else { "" };
                Planned::new("device-renewed", format!("device {device}{clock}"), move || {
                    let is_there = self.store.renew_wireguard_device(name, device, now_s)?;
                    if is_there && reset_clock {
                        self.store.forget_handshakes(name, device)?;
                    }
                    Ok(found(is_there))
                })
            }
            Deed::Remove | Deed::SetGroups(_) | Deed::Modify(_) | Deed::Add(_) => {
                return accounts::change(self, actor, user, deed);
            }
            Deed::ResetCodes | Deed::Invite | Deed::AddDevice { .. } => return Err(DeskRefusal::Unusable),
        })
    }

    /// Finds the certificates that are good yet: all, or the one with this hash. The user goes on
    /// having to show one.
    fn plan_revocation<'a>(
        &'a self,
        user: &'a User,
        one: Option<&[u8; 32]>,
        now_s: u64,
    ) -> Replied<Planned<'a>> {
        let good = user.certificates.iter().filter(|known| !user.revoked_certificates.contains(known));
        let revoked: Vec<CertificateHash> =
            good.filter(|known| one.is_none_or(|one| one == *known)).copied().collect();
        if revoked.is_empty() {
            return Err(DeskRefusal::NotThere);
        }
        let hex = |hash: &CertificateHash| hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let detail = revoked.iter().map(hex).collect::<Vec<String>>().join(" ");
        Ok(Planned::new("certificate-revoked", detail, move || {
            self.store.revoke_certificates(&user.name, &revoked, now_s).map(|()| Ok(None))
        }))
    }

    /// `vpnd device add` refuses the same.
    fn plan_device<'a>(
        &'a self,
        actor: &Actor,
        user: &'a User,
        key: PublicKey,
        name: &'a str,
    ) -> Result<Replied<Planned<'a>>, StoreError> {
        if actor.role < Role::Administrator {
            return Ok(Err(DeskRefusal::NoRole));
        }
        if !user.enabled || user.has_expired((self.clocks.wall)()) {
            return Ok(Err(DeskRefusal::Unusable));
        }
        let Some(new) = self.devices.new_device_of(user) else { return Ok(Err(DeskRefusal::NoWireGuard)) };
        if let Err(not) = new.check(&self.devices, key, name)? {
            return Ok(Err(not.into()));
        }
        let detail = format!("WireGuard device {name} ({})", key.short());
        Ok(Ok(Planned::new("device-added", detail, move || {
            let device = new_device::id(key).0.into();
            let added = new.add(&self.devices, key, name)?;
            Ok(added.map(|configuration| Some(Made::Device { device, configuration })).map_err(Into::into))
        })))
    }

    /// Ends the session of a device, or all, and the visits of the user: `false` if the device has
    /// none.
    fn kick(&self, user: &User, device: Option<DeviceId>) -> Result<bool, StoreError> {
        if let Some(device) = device {
            if !self.devices.end_session_of(user, device, RevocationCause::Kicked)? {
                return Ok(false);
            }
        } else {
            let now_s = (self.clocks.wall)();
            ending::end(self.store.as_ref(), user, None, RevocationCause::Kicked, now_s)?;
        }
        self.browsers.kicked(user.id);
        Ok(true)
    }
}

impl From<NotAdded> for DeskRefusal {
    fn from(not: NotAdded) -> Self {
        match not {
            NotAdded::Unusable => Self::Unusable,
            NotAdded::Taken => Self::Taken,
            NotAdded::Full => Self::Full,
            NotAdded::TooMany => Self::TooManyDevices,
            NotAdded::TooManyRoutes => Self::TooManyRoutes,
        }
    }
}

/// Whether there was what something was to be done to.
fn found(is_there: bool) -> Replied<Option<Made>> {
    if is_there { Ok(None) } else { Err(DeskRefusal::NotThere) }
}

/// Whether this role puts off that user's end. Those without a sponsor, such as students, are the
/// administrators' business.
pub(super) fn extends(role: Role, user: &User) -> bool {
    user.sponsor.is_some() || role == Role::Administrator
}

/// The time at which an account ends from now on, if that is later than now and not too far.
fn later_end(user: &User, until: &str, now_s: u64) -> Option<u64> {
    user.expires_s?;
    let until_s = until.trim().parse::<Expiry>().ok()?.seconds()?;
    (now_s < until_s && until_s <= now_s + LONGEST_STAY_S).then_some(until_s)
}
