//! The end of a user's sessions on someone's request.
//!
//! INVARIANT: WireGuard devices have to be renewed before their sessions end, since their clients
//! come back by themselves.

use vpnd_config::revocation_cause::RevocationCause;
use vpnd_proto::session::DeviceId;
use vpnd_store::{LiveUser, Store, StoreError, User, UserId};

/// Ends the sessions of a user, or those of this device alone.
pub fn end(
    store: &dyn Store,
    user: &User,
    device: Option<DeviceId>,
    cause: RevocationCause,
    now_s: u64,
) -> Result<(), StoreError> {
    wall(store, user.id, device, now_s)?;
    let live = LiveUser::of(user);
    match device {
        Some(device) => store.end_device(&live, device, cause, now_s),
        None => store.end_sessions(&live, cause, now_s),
    }
}

/// Has the WireGuard devices of a user, or this one alone, be renewed before their next sessions.
pub fn wall(store: &dyn Store, user: UserId, one: Option<DeviceId>, now_s: u64) -> Result<(), StoreError> {
    let own = store.wireguard_devices_of(user)?.into_iter();
    for device in own.filter(|device| one.is_none_or(|one| one == device.id)) {
        store.wall_wireguard_device(device.id, now_s)?;
    }
    Ok(())
}
