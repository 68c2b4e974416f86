//! Devices that users see, remove, renew and add themselves, and their sessions.
//!
//! Invariants: a device is one of the visit's user or none. A WireGuard device shows nothing but
//! its key, so to add or renew one takes a login of the last ten minutes, and what an
//! administrator's command refuses is refused here; a user does so seldom, since each writes to the
//! store, has all devices read again for handshakes, and is in the audit file. This process never
//! has a device's private key.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::browsers::Browsers;
use super::client_files::{ClientFiles, Offer};
use super::first;
use super::heard::Heard;
use super::record::Record;
use vpnd_admission::access::{Access, Decided};
use vpnd_admission::authenticator::allowances::Allowances;
use vpnd_admission::ending;
use vpnd_admission::notices::lock;
use vpnd_admission::wireguard::configuration::Configuration;
use vpnd_admission::wireguard::new_device;
use vpnd_config::revocation_cause::RevocationCause;
use vpnd_config::standing::Standing;
use vpnd_ipc::gateway::portal::devices::{
    AddDevice, DeviceChange, MAX_CONFIGURATION, OwnDevice, OwnDevices, OwnWireGuard, RemoveDevice,
    RenewDevice,
};
use vpnd_ipc::gateway::portal::{Browser, Change, EndSession, OwnSession};
use vpnd_proto::control::{List, Text};
use vpnd_proto::session::DeviceId;
use vpnd_store::{Device, NewWireGuardDevice, Store, StoreError, User, WireGuardDevice};
use vpnd_sys::clock::{Clocks, now};
use vpnd_wireguard::PublicKey;
use zeroize::Zeroizing;

/// Devices that a user may add and renew at once, and the time for another one.
const CHANGES: u32 = 20;
const CHANGE_INTERVAL: Duration = Duration::from_secs(60);

pub(super) struct Devices {
    store: Arc<dyn Store>,
    access: Arc<Access>,
    clocks: Clocks,
    record: Arc<Record>,
    browsers: Arc<Browsers>,
    files: ClientFiles,
    /// Those that users make.
    changes: Mutex<Allowances>,
    heard: Mutex<Heard>,
}

impl Devices {
    pub(super) fn new(
        store: Arc<dyn Store>,
        access: Arc<Access>,
        clocks: Clocks,
        record: Arc<Record>,
        browsers: Arc<Browsers>,
    ) -> Self {
        Self {
            heard: Mutex::new(Heard::new(Arc::clone(&store))),
            store,
            access,
            clocks,
            record,
            browsers,
            files: ClientFiles::default(),
            changes: Mutex::new(Allowances::new(CHANGES, CHANGE_INTERVAL)),
        }
    }

    /// Files by which users set up their clients.
    pub(super) fn files(&self) -> &ClientFiles {
        &self.files
    }

    /// From where the clients of sessions are heard.
    pub(super) fn heard(&self) -> MutexGuard<'_, Heard> {
        lock(&self.heard)
    }

    /// The user's profile, if it lets WireGuard devices in.
    pub(super) fn for_wireguard(&self, user: &User) -> Option<Decided> {
        self.access.of(user).filter(|profile| profile.wireguard.allowed)
    }

    /// The user of this browser, who has logged in just now, and may have WireGuard devices.
    fn owner_of_devices(&self, browser: &Browser) -> Result<Result<User, DeviceChange>, StoreError> {
        let Some(user) = self.browsers.visitor(browser)? else { return Ok(Err(DeviceChange::NoVisit)) };
        if self.for_wireguard(&user).is_none() {
            return Ok(Err(DeviceChange::NotAllowed));
        }
        if !self.browsers.visits().is_recent(&browser.token, now()) {
            return Ok(Err(DeviceChange::LogInAgain));
        }
        let is_too_often = lock(&self.changes).take(user.id, now()).is_err();
        Ok(if is_too_often { Err(DeviceChange::TooOften) } else { Ok(user) })
    }

    /// The WireGuard devices of a user, by id.
    fn wireguard_devices(&self, user: &User) -> Result<BTreeMap<[u8; 16], WireGuardDevice>, StoreError> {
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
            devices.push(Device { id: DeviceId(id), addresses, session_since_s: None, session: None });
        }
        let profile = self.access.of(user);
        let allowed = profile.as_ref().filter(|profile| profile.wireguard.allowed);
        let lifetime_s = allowed.map(|profile| profile.session_lifetime.map(|time| time.as_secs()));
        let (wall_s, steady_s) = ((self.clocks.wall)(), (self.clocks.steady)());
        let state = |device: &WireGuardDevice| {
            let standing = Standing {
                user_may_connect: device.may_connect && !user.has_expired(wall_s),
                renewed_s: device.renewed_s,
                walled_s: device.walled_s,
            };
            Text::cut(&standing.state(profile.as_deref(), wall_s))
        };
        let known = self.store.known_devices(user.id)?;
        let heard = self.heard();
        let own = |device: Device| {
            let wireguard = wireguard.get(&device.id.0);
            let known = known.iter().find(|known| known.device == device.id);
            let age_s = |at_s: u64| wall_s.saturating_sub(at_s);
            let has_session = device.session_since_s.is_some();
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
                    public_key: Text::cut(&PublicKey(device.public_key).to_string()),
                    renewed_s: device.renewed_s,
                    walled_s: device.walled_s,
                    outer: device.outer.map(|outer| outer.remote),
                    state: state(device),
                    in_two_places: heard.is_in_two_places(user.id, device.id),
                }),
                added_age_s: known.map(|known| age_s(known.added_s)),
                unseen_s: has_session.then_some(0).or_else(|| known?.seen_s.map(age_s)),
                network: known.and_then(|known| known.network.as_deref()).map(Text::cut),
            }
        };
        Ok(OwnDevices {
            devices: first(devices.into_iter().map(own)),
            wireguard: lifetime_s.is_some() && self.files.offered().is_some(),
            profile: self.files.has_profile(),
        })
    }

    /// Whether this is the inner address of a device that has to be renewed.
    pub(super) fn is_walled(&self, address: IpAddr) -> Result<bool, StoreError> {
        let Some(lease) = self.store.lease_on(address.to_canonical())? else { return Ok(false) };
        let Some(user) = self.store.user_by_id(lease.owner.user)? else { return Ok(false) };
        let has_ended = |device: &OwnDevice| {
            let ended = device.wireguard.as_ref().is_some_and(|wireguard| wireguard.left_s == Some(0));
            *device.device == lease.owner.device.0 && ended
        };
        Ok(self.devices_of(&user)?.devices.iter().any(has_ended))
    }

    /// The sessions of a user, as they are shown.
    pub(super) fn sessions_of<const MAX: usize>(
        &self,
        user: &User,
    ) -> Result<List<OwnSession, MAX>, StoreError> {
        let devices = self.store.devices(user.id)?;
        // Not while the store is read: no session begins without this lock.
        let (now_s, heard) = ((self.clocks.steady)(), self.heard());
        let own = |device: Device| {
            let since_s = device.session_since_s?;
            Some(OwnSession {
                device: device.id.0.into(),
                age_s: now_s.saturating_sub(since_s),
                addresses: first(device.addresses),
                from: heard.from(user.id, device.id),
            })
        };
        Ok(first(devices.into_iter().filter_map(own)))
    }

    /// A user ends the session of a device.
    pub(super) fn end_session(&self, request: &EndSession) -> Result<Change, StoreError> {
        let EndSession { browser, device } = request;
        let Some(user) = self.browsers.visitor(browser)? else { return Ok(Change::NoVisit) };
        let device = DeviceId((*device).into());
        if !self.end_session_of(&user, device, RevocationCause::Portal)? {
            return Ok(Change::NotThere);
        }
        self.record.add("session-ended", &user.name, browser.address, &format!("device {device}"));
        self.browsers.has_revoked(browser, user.generation);
        Ok(Change::Done)
    }

    /// Ends the session of this device of a user: `false` if it has none.
    pub(super) fn end_session_of(
        &self,
        user: &User,
        device: DeviceId,
        cause: RevocationCause,
    ) -> Result<bool, StoreError> {
        let has_session = |own: &Device| own.id == device && own.session_since_s.is_some();
        if !self.store.devices(user.id)?.iter().any(has_session) {
            return Ok(false);
        }
        ending::end(self.store.as_ref(), user, Some(device), cause, (self.clocks.wall)())?;
        Ok(true)
    }

    pub(super) fn remove_device(&self, request: &RemoveDevice) -> Result<Change, StoreError> {
        let RemoveDevice { browser, device } = request;
        let Some(user) = self.browsers.visitor(browser)? else { return Ok(Change::NoVisit) };
        let device = DeviceId((*device).into());
        if !self.store.remove_device(&user.name, device, (self.clocks.wall)())? {
            return Ok(Change::NotThere);
        }
        self.record.add("device-removed", &user.name, browser.address, &format!("device {device}"));
        self.browsers.has_revoked(browser, user.generation);
        Ok(Change::Done)
    }

    pub(super) fn renew_device(&self, request: &RenewDevice) -> Result<DeviceChange, StoreError> {
        let RenewDevice { browser, device } = request;
        let user = match self.owner_of_devices(browser)? {
            Ok(user) => user,
            Err(not) => return Ok(not),
        };
        let device = DeviceId((*device).into());
        if !self.store.renew_wireguard_device(&user.name, device, (self.clocks.wall)())? {
            return Ok(DeviceChange::NotThere);
        }
        self.record.add("device-renewed", &user.name, browser.address, &format!("device {device}"));
        Ok(DeviceChange::Renewed)
    }

    pub(super) fn add_device(&self, request: &AddDevice) -> Result<DeviceChange, StoreError> {
        let AddDevice { browser, public_key, name } = request;
        let user = match self.owner_of_devices(browser)? {
            Ok(user) => user,
            Err(not) => return Ok(not),
        };
        let Some(new) = self.new_device_of(&user) else { return Ok(DeviceChange::NotAllowed) };
        let key = PublicKey((*public_key).into());
        let checked = new.check(self, key, name)?;
        let added = match checked {
            Ok(()) => new.add(self, key, name)?,
            Err(not) => Err(not),
        };
        Ok(match added {
            Ok(configuration) => {
                let detail = format!("WireGuard device {name} ({})", key.short());
                self.record.add("device-added", &user.name, browser.address, &detail);
                DeviceChange::Added(configuration)
            }
            Err(NotAdded::Full) => DeviceChange::Full,
            Err(NotAdded::TooMany) => DeviceChange::TooMany,
            Err(NotAdded::TooManyRoutes) => DeviceChange::TooManyRoutes,
            Err(NotAdded::Unusable | NotAdded::Taken) => DeviceChange::Unusable,
        })
    }

    /// A place for another WireGuard device of this user; `None` if the user may have none, or none
    /// is served.
    pub(super) fn new_device_of<'u>(&self, user: &'u User) -> Option<NewDevice<'u>> {
        Some(NewDevice { user, profile: self.for_wireguard(user)?, offer: self.files.offered()? })
    }
}

/// A place for another WireGuard device of a user.
pub(super) struct NewDevice<'u> {
    user: &'u User,
    profile: Decided,
    offer: Arc<Offer>,
}

/// Why a WireGuard device can't be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAdded {
    /// No device can have this key or this name.
    Unusable,
    /// Another has the key, or another of the user the name.
    Taken,
    /// No address is free.
    Full,
    /// The user has as many as the access profile allows.
    TooMany,
    /// No message has room for its configuration.
    TooManyRoutes,
}

impl NewDevice<'_> {
    /// Whether a device can have this key and this name, and its configuration fits into a message.
    pub(super) fn check(
        &self,
        devices: &Devices,
        key: PublicKey,
        name: &str,
    ) -> Result<Result<(), NotAdded>, StoreError> {
        let is_taken = |device: &WireGuardDevice| !name.is_empty() && device.name == name;
        if !new_device::is_name(name) || new_device::check_key(key, self.offer.wireguard.public()).is_err() {
            return Ok(Err(NotAdded::Unusable));
        }
        let is_taken = devices.store.find_wireguard_device(&key.0, (devices.clocks.steady)())?.is_some()
            || devices.wireguard_devices(self.user)?.values().any(is_taken);
        if is_taken {
            return Ok(Err(NotAdded::Taken));
        }
        // Cut, it would lack networks, which the device then reaches around the tunnel.
        let longest = [IpAddr::from([255_u8; 4]), IpAddr::from([u16::MAX; 8])];
        let fits = self.configuration(key, &longest).len() <= MAX_CONFIGURATION;
        Ok(if fits { Ok(()) } else { Err(NotAdded::TooManyRoutes) })
    }

    fn configuration(&self, key: PublicKey, addresses: &[IpAddr]) -> Zeroizing<String> {
        let Self { profile, offer, .. } = self;
        let configuration = Configuration {
            private: None,
            public: key,
            preshared: None,
            gateway: offer.wireguard.public(),
            addresses,
            endpoint: &offer.endpoint,
            profile,
            tunnel: &offer.tunnel,
        };
        configuration.text()
    }

    /// Adds a device that was checked; its configuration, but for the private key.
    pub(super) fn add(
        &self,
        devices: &Devices,
        key: PublicKey,
        name: &str,
    ) -> Result<Result<Text<MAX_CONFIGURATION>, NotAdded>, StoreError> {
        let Self { user, profile, .. } = self;
        let new = NewWireGuardDevice {
            public_key: key.0,
            id: new_device::id(key),
            name: name.to_owned(),
            preshared: None,
            most: profile.wireguard.max_devices,
            addresses: Vec::new(),
        };
        let candidates = profile.pools().iter().map(new_device::candidates).collect();
        let (store, now_s) = (devices.store.as_ref(), (devices.clocks.wall)());
        let addresses = match new_device::add(store, &user.name, new, candidates, now_s) {
            Ok(Some(addresses)) => addresses,
            Ok(None) => return Ok(Err(NotAdded::Full)),
            Err(StoreError::TooManyDevices { .. }) => return Ok(Err(NotAdded::TooMany)),
            Err(StoreError::KeyTaken { .. }) => return Ok(Err(NotAdded::Taken)),
            Err(error) => return Err(error),
        };
        Ok(Ok(Text::cut(&self.configuration(key, &addresses))))
    }
}
