//! The store behind the requests about WireGuard devices, and the file with the gateway's key.

use std::collections::BTreeMap;
use std::net::IpAddr;

use minicbor::bytes::ByteArray;
use vpnd_admission::wireguard::new_device;
use vpnd_ipc::messages::SecretBytes;
use vpnd_pki::wireguard_key::{self, KeyFileError};
use vpnd_proto::session::DeviceId;
use vpnd_store::{NewWireGuardDevice, PresharedKey, Store, StoreError, User, UserId};

use super::super::fault::Fault;
use super::super::message::wireguard::{
    AddWireGuardDevice, BackUpWireGuardKey, DeviceToAdd, MAX_DEVICES, RenewWireGuardDevice,
    RestoreWireGuardKey, WireGuardDevicesAfter, WireGuardKey, WireGuardSummary,
};
use super::super::request::Replied;
use super::{Serve, Served, unexpected};

impl Serve<WireGuardKey> for Served {
    fn serve(&mut self, _: WireGuardKey) -> Replied<ByteArray<32>> {
        let (store, parts) = self.store()?;
        let devices = store.wireguard_devices()?.len();
        let key = wireguard_key::open_or_create(parts.state_dir(), devices).map_err(key_fault)?;
        Ok(key.public().0.into())
    }
}

impl Serve<AddWireGuardDevice> for Served {
    fn serve(&mut self, request: AddWireGuardDevice) -> Replied<Option<Vec<IpAddr>>> {
        let AddWireGuardDevice { name, device, now_s } = request;
        Ok(add(self.store()?.0, &name, device, now_s)?)
    }
}

impl Serve<WireGuardDevicesAfter> for Served {
    fn serve(&mut self, request: WireGuardDevicesAfter) -> Replied<Vec<WireGuardSummary>> {
        Ok(list(self.store()?.0, request.0)?)
    }
}

impl Serve<RenewWireGuardDevice> for Served {
    fn serve(&mut self, request: RenewWireGuardDevice) -> Replied<bool> {
        let RenewWireGuardDevice { name, device, resets_clock, now_s } = request;
        let (store, id) = (self.store()?.0, DeviceId(device.into()));
        let is_there = store.renew_wireguard_device(&name, id, now_s)?;
        if is_there && resets_clock {
            store.forget_handshakes(&name, id)?;
        }
        Ok(is_there)
    }
}

impl Serve<BackUpWireGuardKey> for Served {
    fn serve(&mut self, _: BackUpWireGuardKey) -> Replied<Option<SecretBytes>> {
        let bytes = wireguard_key::back_up(self.store()?.1.state_dir()).map_err(key_fault)?;
        Ok(bytes.map(SecretBytes))
    }
}

impl Serve<RestoreWireGuardKey> for Served {
    fn serve(&mut self, RestoreWireGuardKey(bytes): RestoreWireGuardKey) -> Replied<()> {
        wireguard_key::restore(self.store()?.1.state_dir(), &bytes.0).map_err(key_fault)
    }
}

fn key_fault(error: KeyFileError) -> Fault {
    unexpected(&error.to_string())
}

fn add(
    store: &dyn Store,
    name: &str,
    device: DeviceToAdd,
    now_s: u64,
) -> Result<Option<Vec<IpAddr>>, StoreError> {
    let preshared = device.preshared.and_then(|key| key.0.as_slice().try_into().ok());
    let new = NewWireGuardDevice {
        public_key: device.public_key.into(),
        id: DeviceId(device.id.into()),
        name: device.name,
        preshared: preshared.map(PresharedKey::new),
        most: device.most,
        addresses: Vec::new(),
    };
    new_device::add(store, name, new, device.candidates, now_s)
}

fn list(store: &dyn Store, after: Option<ByteArray<32>>) -> Result<Vec<WireGuardSummary>, StoreError> {
    let mut users: BTreeMap<UserId, Option<User>> = BTreeMap::new();
    let mut listed = Vec::new();
    let later = |key: &[u8; 32]| after.is_none_or(|after| *key > *after);
    for device in store.wireguard_devices()?.into_iter().filter(|device| later(&device.public_key)) {
        if listed.len() >= MAX_DEVICES {
            break;
        }
        let user = match users.entry(device.user) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(free) => free.insert(store.user_by_id(device.user)?),
        };
        listed.extend(user.as_ref().map(|user| WireGuardSummary::new(&device, user)));
    }
    Ok(listed)
}
