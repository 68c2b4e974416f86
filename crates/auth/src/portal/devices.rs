//! Devices that users see, remove, renew and add themselves.
//!
//! Invariants: a device is one of the visit's user or none. A WireGuard device shows nothing but its
//! key, so to add or renew one takes a login of the last ten minutes, and what an administrator's
//! command refuses is refused here; a user does so seldom, since each writes to the store, has all
//! devices read again for handshakes, and is in the audit file. This process never has a device's
//! private key.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Portal, first, now};
use crate::access::Decided;
use crate::authenticator::allowances::Allowances;
use crate::wireguard::WireGuard;
use crate::wireguard::configuration::{Configuration, Endpoint};
use crate::wireguard::new_device;
use vpnd_config::Tunnel;
use vpnd_ipc::gateway::portal::devices::{
    AddDevice, DeviceChange, DevicesQuery, OwnDevice, OwnDevices, OwnWireGuard, RemoveDevice, RenewDevice,
};
use vpnd_ipc::gateway::portal::{Browser, Change};
use vpnd_ipc::request::{Answer, Reason};
use vpnd_proto::control::Text;
use vpnd_proto::session::DeviceId;
use vpnd_store::{Device, NewWireGuardDevice, StoreError, User, WireGuardDevice};
use vpnd_wireguard::PublicKey;

/// Devices that a user may add and renew at once, and the time for another one.
const CHANGES: u32 = 20;
const CHANGE_INTERVAL: Duration = Duration::from_secs(60);

/// Limits what users change of their devices.
pub(super) fn allowances() -> Allowances {
    Allowances::new(CHANGES, CHANGE_INTERVAL)
}

/// What it takes to make a WireGuard client's configuration.
pub(crate) struct Offer {
    pub(crate) wireguard: Arc<WireGuard>,
    pub(crate) endpoint: Endpoint,
    pub(crate) tunnel: Tunnel,
}

impl Portal {
    /// Users may add WireGuard devices from now on.
    pub(crate) fn offer(&self, offer: Offer) {
        *self.offered.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(offer));
    }

    fn changes(&self) -> MutexGuard<'_, Allowances> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn offered(&self) -> Option<Arc<Offer>> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The user's profile, if it lets WireGuard devices in.
    fn for_wireguard(&self, user: &User) -> Option<Decided> {
        self.access.of(user).filter(|profile| profile.wireguard.allowed)
    }

    /// The user of this browser, who has logged in just now, and may have WireGuard devices.
    fn owner_of_devices(
        &self,
        browser: &Browser,
    ) -> Result<Result<(User, Decided), DeviceChange>, StoreError> {
        let Some(user) = self.visitor(browser)? else { return Ok(Err(DeviceChange::NoVisit)) };
        let profile = self.for_wireguard(&user);
        Ok(match profile {
            None => Err(DeviceChange::NotAllowed),
            Some(_) if !self.visits().is_recent(&browser.token, now()) => Err(DeviceChange::LogInAgain),
            Some(_) if self.changes().take(user.id, now()).is_err() => Err(DeviceChange::TooOften),
            Some(profile) => Ok((user, profile)),
        })
    }

    /// The WireGuard devices of a user, by id.
    pub(super) fn wireguard_devices(
        &self,
        user: &User,
    ) -> Result<BTreeMap<[u8; 16], WireGuardDevice>, StoreError> {
        let own = self.store.wireguard_devices_of(user.id)?.into_iter();
        Ok(own.map(|device| (device.id.0, device)).collect())
    }

    /// The devices of a user, as they are shown.
    pub(super) fn devices_of(&self, user: &User) -> Result<OwnDevices, StoreError> {
        let mut devices = self.store.devices(user.id)?;
        let wireguard = self.wireguard_devices(user)?;
        for id in wireguard
            .keys()
            .filter(|id| devices.iter().all(|device| device.id.0 != **id))
            .copied()
            .collect::<Vec<_>>()
        {
            let own = user.fixed_addresses.iter().filter(|fixed| fixed.device == Some(DeviceId(id)));
            let addresses = own.map(|fixed| fixed.address).collect();
            devices.push(Device { id: DeviceId(id), addresses, session_since_s: None });
        }
        let lifetime_s =
            self.for_wireguard(user).map(|profile| profile.session_lifetime.map(|time| time.as_secs()));
        let (wall_s, steady_s) = ((self.clocks.wall)(), (self.clocks.steady)());
        let heard = self.heard();
        let own = |device: Device| {
            let wireguard = wireguard.get(&device.id.0);
            let ends = |device: &WireGuardDevice| match (device.walled_s, lifetime_s) {
                (Some(_), _) | (None, None) => Some(0),
                (None, Some(lifetime_s)) => {
                    lifetime_s.map(|time_s| device.renewed_s.saturating_add(time_s).saturating_sub(wall_s))
                }
            };
            OwnDevice {
                device: device.id.0.into(),
                addresses: first(device.addresses),
                session_age_s: device.session_since_s.map(|since_s| steady_s.saturating_sub(since_s)),
                from: heard
                    .from(user.id, device.id)
                    .or_else(|| Some(wireguard?.outer?.remote.ip().to_canonical())),
                wireguard: wireguard.map(|device| OwnWireGuard {
                    name: Text::cut(&device.name),
                    key: Text::cut(&PublicKey(device.public_key).short()),
                    renewed_age_s: wall_s.saturating_sub(device.renewed_s),
                    left_s: ends(device),
                }),
            }
        };
        Ok(OwnDevices {
            devices: first(devices.into_iter().map(own)),
            wireguard: lifetime_s.is_some() && self.offered().is_some(),
            profile: self.client_profile().is_some(),
        })
    }

    fn remove_device(&self, request: &RemoveDevice) -> Result<Change, StoreError> {
        let RemoveDevice { browser, device } = request;
        let Some(user) = self.visitor(browser)? else { return Ok(Change::NoVisit) };
        let device = DeviceId((*device).into());
        if !self.store.remove_device(&user.name, device, (self.clocks.wall)())? {
            return Ok(Change::NotThere);
        }
        self.record("device-removed", &user.name, browser.address, &format!("device {device}"));
        // Another revocation at the same moment is not this visit's, and ends it.
        self.visits().set_generation(&browser.token, user.generation + 1);
        Ok(Change::Done)
    }

    fn renew_device(&self, request: &RenewDevice) -> Result<DeviceChange, StoreError> {
        let RenewDevice { browser, device } = request;
        let user = match self.owner_of_devices(browser)? {
            Ok((user, _)) => user,
            Err(not) => return Ok(not),
        };
        let device = DeviceId((*device).into());
        if !self.store.renew_wireguard_device(&user.name, device, (self.clocks.wall)())? {
            return Ok(DeviceChange::NotThere);
        }
        self.record("device-renewed", &user.name, browser.address, &format!("device {device}"));
        Ok(DeviceChange::Renewed)
    }

    fn add_device(&self, request: &AddDevice) -> Result<DeviceChange, StoreError> {
        let AddDevice { browser, public_key, name } = request;
        let (user, profile) = match self.owner_of_devices(browser)? {
            Ok(found) => found,
            Err(not) => return Ok(not),
        };
        let Some(offer) = self.offered() else { return Ok(DeviceChange::NotAllowed) };
        let (key, gateway) = (PublicKey((*public_key).into()), offer.wireguard.public());
        let is_taken = |device: &WireGuardDevice| !name.is_empty() && device.name == **name;
        if !new_device::is_name(name)
            || new_device::check_key(key, gateway).is_err()
            || self.wireguard_devices(&user)?.values().any(is_taken)
        {
            return Ok(DeviceChange::Unusable);
        }
        let new = NewWireGuardDevice {
            public_key: key.0,
            id: new_device::id(key),
            name: name.to_string(),
            preshared: None,
            addresses: Vec::new(),
        };
        let candidates = profile.pools().iter().map(new_device::candidates).collect();
        let added = new_device::add(self.store.as_ref(), &user.name, new, candidates, (self.clocks.wall)());
        let addresses = match added {
            Ok(Some(addresses)) => addresses,
            Ok(None) | Err(StoreError::TooManyDevices { .. }) => return Ok(DeviceChange::Full),
            Err(StoreError::KeyTaken { .. }) => return Ok(DeviceChange::Unusable),
            Err(error) => return Err(error),
        };
        let detail = format!("WireGuard device {name} ({})", key.short());
        self.record("device-added", &user.name, browser.address, &detail);
        let configuration = Configuration {
            private: None,
            public: key,
            preshared: None,
            gateway,
            addresses: &addresses,
            endpoint: &offer.endpoint,
            profile: &profile,
            tunnel: &offer.tunnel,
        };
        Ok(DeviceChange::Added(Text::cut(&configuration.text())))
    }
}

impl Answer<DevicesQuery> for Portal {
    async fn answer(
        self: &Arc<Self>,
        DevicesQuery(browser): DevicesQuery,
    ) -> Result<Option<OwnDevices>, Reason> {
        self.from_store(move |portal| {
            let user = portal.visitor(&browser)?;
            user.map(|user| portal.devices_of(&user)).transpose()
        })
        .await
    }
}

impl Answer<RemoveDevice> for Portal {
    async fn answer(self: &Arc<Self>, request: RemoveDevice) -> Result<Change, Reason> {
        self.from_store(move |portal| portal.remove_device(&request)).await
    }
}

impl Answer<RenewDevice> for Portal {
    async fn answer(self: &Arc<Self>, request: RenewDevice) -> Result<DeviceChange, Reason> {
        self.from_store(move |portal| portal.renew_device(&request)).await
    }
}

impl Answer<AddDevice> for Portal {
    async fn answer(self: &Arc<Self>, request: AddDevice) -> Result<DeviceChange, Reason> {
        self.from_store(move |portal| portal.add_device(&request)).await
    }
}
