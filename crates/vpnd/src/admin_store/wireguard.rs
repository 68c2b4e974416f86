//! A gateway's WireGuard devices, as far as commands of an administrator need them.

use std::net::IpAddr;

use minicbor::bytes::ByteArray;
use vpnd_ipc::messages::SecretBytes;
use vpnd_store::StoreError;
use zeroize::Zeroizing;

use super::AdminStore;
use super::message::wireguard::{
    AddWireGuardDevice, BackUpWireGuardKey, DeviceToAdd, MAX_DEVICES, RenewWireGuardDevice,
    RestoreWireGuardKey, WireGuardDevicesAfter, WireGuardKey, WireGuardSummary,
};
use super::request::RemoveDevice;

/// Devices that are listed, at most: a store with more is not one that vpnd has written.
const MAX_LISTED: usize = 1 << 20;

/// A device that is to be added.
pub(crate) struct DeviceRequest<'r> {
    pub(crate) user: &'r str,
    pub(crate) public_key: [u8; 32],
    pub(crate) id: [u8; 16],
    pub(crate) name: &'r str,
    pub(crate) preshared: Option<&'r Zeroizing<[u8; 32]>>,
    /// Addresses of each pool, of which it gets the first that is free.
    pub(crate) candidates: Vec<Vec<IpAddr>>,
    /// WireGuard devices that the user may have, with this one.
    pub(crate) most: u64,
}

impl AdminStore {
    /// The gateway's public key for WireGuard clients; its private one is made if there is none.
    pub(crate) fn wireguard_key(&mut self) -> Result<[u8; 32], StoreError> {
        Ok(self.ask(WireGuardKey)?.into())
    }

    /// Adds a device; its addresses, or `None` if none is free.
    pub(crate) fn add_wireguard_device(
        &mut self,
        request: DeviceRequest<'_>,
        now_s: u64,
    ) -> Result<Option<Vec<IpAddr>>, StoreError> {
        let preshared = request.preshared.map(|key| SecretBytes(Zeroizing::new(key.to_vec())));
        let device = DeviceToAdd {
            public_key: request.public_key.into(),
            id: request.id.into(),
            name: request.name.to_owned(),
            preshared,
            candidates: request.candidates,
            most: request.most,
        };
        let name = request.user.to_owned();
        self.ask_about(request.user, AddWireGuardDevice { name, device, now_s })
    }

    /// The devices of all users.
    pub(crate) fn wireguard_devices(&mut self) -> Result<Vec<WireGuardSummary>, StoreError> {
        let mut devices: Vec<WireGuardSummary> = Vec::new();
        loop {
            let after: Option<ByteArray<32>> = devices.last().map(|device| device.public_key);
            let more = self.ask(WireGuardDevicesAfter(after))?;
            let is_last = more.len() < MAX_DEVICES;
            devices.extend(more);
            if is_last {
                return Ok(devices.into_iter().map(WireGuardSummary::plain).collect());
            }
            if devices.len() > MAX_LISTED {
                return Err(self.unexpected_reply());
            }
        }
    }

    /// Sessions of the device are valid for another lifetime; it may come with earlier timestamps
    /// if its clock is reset. `false` if the user has no such device.
    pub(crate) fn renew_wireguard_device(
        &mut self,
        device: &WireGuardSummary,
        resets_clock: bool,
        now_s: u64,
    ) -> Result<bool, StoreError> {
        let name = device.user.clone();
        self.ask_about(&device.user, RenewWireGuardDevice { name, device: device.id, resets_clock, now_s })
    }

    /// Removes a device and ends its sessions.
    pub(crate) fn remove_wireguard_device(
        &mut self,
        device: &WireGuardSummary,
        now_s: u64,
    ) -> Result<(), StoreError> {
        let name = device.user.clone();
        self.ask_about(&device.user, RemoveDevice { name, device: device.id, now_s })
    }

    /// The file with the gateway's key, if there is one.
    pub(crate) fn back_up_wireguard_key(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
        Ok(self.ask(BackUpWireGuardKey)?.map(|bytes| bytes.0))
    }

    /// Puts that file in place.
    pub(crate) fn restore_wireguard_key(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.ask(RestoreWireGuardKey(SecretBytes(Zeroizing::new(bytes.to_vec()))))
    }
}
