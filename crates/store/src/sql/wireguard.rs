//! WireGuard devices in SQL.

use std::collections::HashMap;

use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::DeviceId;

use super::columns::{bytes, optional_bytes};
use super::users::{self, StoreResult};
use super::{
    Connection, Database, Optional as _, Result, Row, Transaction, digest, fixed_addresses, known_devices,
    params,
};
use crate::put_off::{Pace, Wall};
use crate::{
    AddressChange, DeviceChanges, FoundDevice, HandshakeShown, NewWireGuardDevice, OwnedDevice, PresharedKey,
    StoreError, UserId, WireGuardDevice, WireGuardDevices,
};

const COLUMNS: &str =
    "d.public_key, d.user_id, d.device, d.name, d.preshared, d.renewed_s, d.walled_s, d.latest,
                       d.latest_own, d.\"outer\", (u.enabled = 1 AND u.lapsed = 0) AS may_connect
                       FROM wireguard_devices d JOIN users u ON u.id = d.user_id";

impl<D: Database> WireGuardDevices for D {
    fn add_wireguard_device(
        &self,
        name: &str,
        device: &NewWireGuardDevice,
        now_s: u64,
    ) -> Result<(), StoreError> {
        self.change(|t| add(t, name, device, now_s))
    }

    fn wireguard_devices(&self) -> Result<Vec<WireGuardDevice>, StoreError> {
        self.read(all)
    }

    fn wireguard_devices_of(&self, user: UserId) -> Result<Vec<WireGuardDevice>, StoreError> {
        let walls = self.put_off().walls()?;
        let mut devices = self.read(|c| of_user(c, user))?;
        for device in &mut devices {
            device.walled_s = device.walled_s.or_else(|| walls.kept(device));
        }
        Ok(devices)
    }

    fn find_wireguard_device(
        &self,
        public_key: &[u8; 32],
        now_s: u64,
    ) -> Result<Option<FoundDevice>, StoreError> {
        let (walls, shown) = (self.put_off().walls()?, self.put_off().shown()?);
        let mut found = self.read(|c| by_key(c, public_key, now_s))?;
        if let Some(found) = &mut found {
            shown.add_to(&mut found.device);
            found.device.walled_s = found.device.walled_s.or_else(|| walls.of(found));
            found.user.enabled &= !self.put_off().kicks().holds(&found.user.name)?;
        }
        Ok(found)
    }

    fn renew_wireguard_device(&self, name: &str, id: DeviceId, now_s: u64) -> Result<bool, StoreError> {
        self.change(|t| renew(t, name, id, now_s))
    }

    fn wall_wireguard_device(&self, id: DeviceId, now_s: u64) -> Result<(), StoreError> {
        self.wall_device((id, now_s))
    }

    fn forget_handshakes(&self, name: &str, id: DeviceId) -> Result<bool, StoreError> {
        self.change(|t| forget_handshakes(t, name, id))
    }

    fn keep_handshakes(&self, shown: &[HandshakeShown]) -> Result<Vec<bool>, StoreError> {
        self.keep_shown_handshakes(shown)
    }

    fn keep_outer(&self, heard: &[(DeviceId, Option<Endpoint>)]) -> Result<(), StoreError> {
        self.change(|t| keep_outer(t, heard).map(Ok))
    }

    fn wireguard_changes(&self, since: Option<u64>) -> Result<DeviceChanges, StoreError> {
        let is_left = self.put_off().is_left();
        let found = self.read(|c| changes(c, since))?;
        if !is_left || found.devices.is_empty() {
            return Ok(found);
        }
        // The store once more: what was put off may have got there before it was read.
        let shown = self.put_off().shown()?;
        let mut found = self.read(|c| changes(c, since))?;
        found.devices.iter_mut().for_each(|owned| shown.add_to(&mut owned.device));
        Ok(found)
    }
}

fn add(t: &Transaction<'_>, name: &str, device: &NewWireGuardDevice, now_s: u64) -> StoreResult<()> {
    let Some(id) = users::id_of(t, name)? else { return users::no_such_user(name) };
    let sql =
        "SELECT u.name FROM wireguard_devices d JOIN users u ON u.id = d.user_id WHERE d.public_key = ?";
    let holder: Option<String> = t.query_row(sql, [device.public_key], |row| row.get(0)).optional()?;
    if let Some(holder) = holder {
        return Ok(Err(StoreError::KeyTaken { holder }));
    }
    let sql = "SELECT count(*) FROM wireguard_devices WHERE user_id = ?";
    if t.query_row(sql, [id.0], |row| row.get::<_, u64>(0))? >= device.most {
        return Ok(Err(StoreError::TooManyDevices { name: name.to_owned(), most: device.most }));
    }
    let preshared = device.preshared.as_ref().map(PresharedKey::expose);
    t.execute(
        "INSERT INTO wireguard_devices (public_key, user_id, device, name, preshared, renewed_s)
         VALUES (?, ?, ?, ?, ?, ?)",
        params![device.public_key, id.0, device.id.0, device.name, preshared, now_s],
    )?;
    let change = AddressChange { device: Some(device.id), addresses: device.addresses.clone() };
    if let Err(error) = fixed_addresses::set(t, id, name, &change, now_s)? {
        return Ok(Err(error));
    }
    known_devices::add(t, id, device.id, now_s)?;
    digest::renew(t, id)?;
    Ok(Ok(()))
}

fn all(c: &Connection) -> Result<Vec<WireGuardDevice>> {
    let sql = format!("SELECT {COLUMNS} ORDER BY d.public_key");
    c.statement(&sql).query_all((), from_row)
}

fn of_user(c: &Connection, user: UserId) -> Result<Vec<WireGuardDevice>> {
    let sql = format!("SELECT {COLUMNS} WHERE d.user_id = ? ORDER BY d.public_key");
    c.statement(&sql).query_all([user.0], from_row)
}

fn by_key(c: &Connection, public_key: &[u8; 32], now_s: u64) -> Result<Option<FoundDevice>> {
    let sql = format!("SELECT {COLUMNS} WHERE d.public_key = ?");
    let device: Option<WireGuardDevice> = c.statement(&sql).query_row([public_key], from_row).optional()?;
    let Some(device) = device else { return Ok(None) };
    // Verifies the device with its user.
    let Some(user) = users::by_id(c, device.user)? else { return Ok(None) };
    let sql = "SELECT 1 FROM sessions WHERE user_id = ? AND device = ? AND expires_s > ?";
    let has_session = c.statement(sql).exists(params![user.id.0, device.id.0, now_s])?;
    Ok(Some(FoundDevice { device, user, has_session }))
}

fn renew(t: &Transaction<'_>, name: &str, device: DeviceId, now_s: u64) -> StoreResult<bool> {
    change(
        t,
        name,
        device,
        "UPDATE wireguard_devices SET renewed_s = ?3, walled_s = NULL WHERE user_id = ?1 AND device = ?2",
        Some(now_s),
    )
}

fn forget_handshakes(t: &Transaction<'_>, name: &str, device: DeviceId) -> StoreResult<bool> {
    let sql = "UPDATE wireguard_devices SET latest = NULL WHERE user_id = ?1 AND device = ?2";
    change(t, name, device, sql, None)
}

fn change(
    t: &Transaction<'_>,
    name: &str,
    device: DeviceId,
    sql: &str,
    value: Option<u64>,
) -> StoreResult<bool> {
    let Some(id) = users::id_of(t, name)? else { return users::no_such_user(name) };
    let changed = match value {
        Some(value) => t.execute(sql, params![id.0, device.0, value])?,
        None => t.execute(sql, params![id.0, device.0])?,
    };
    digest::renew(t, id)?;
    Ok(Ok(changed == 1))
}

/// Walls devices; one that was put off has no effect on a device that was renewed since.
pub(crate) fn wall(t: &Transaction<'_>, pace: Pace, walls: &[Wall]) -> Result<()> {
    let since = if pace == Pace::Later { "AND renewed_s <= ?2" } else { "" };
    let sql = format!(
        "UPDATE wireguard_devices SET walled_s = ?2 WHERE device = ?1 AND walled_s IS NULL {since} RETURNING user_id"
    );
    let update = t.statement(&sql);
    walls.iter().try_for_each(|(device, at_s)| {
        let user = update.query_row(params![device.0, at_s], |row| bytes(row, "user_id").map(UserId));
        user.optional()?.map_or(Ok(()), |user| digest::renew(t, user))
    })
}

/// Which of these are later than what the store had, or of devices that are gone.
pub(crate) fn keep_handshakes(t: &Transaction<'_>, shown: &[HandshakeShown]) -> Result<Vec<bool>> {
    let update = |column: &str| {
        format!(
            "UPDATE wireguard_devices SET {column} = ?2 WHERE public_key = ?1 AND ({column} IS NULL OR {column} < ?2)"
        )
    };
    let (latest, latest_own) = (update("latest"), update("latest_own"));
    let (theirs, own) = (t.statement(&latest), t.statement(&latest_own));
    let device = t.statement("SELECT 1 FROM wireguard_devices WHERE public_key = ?");
    let keep = |HandshakeShown { public_key, time, is_own }: &HandshakeShown| {
        let statement = if *is_own { &own } else { &theirs };
        let is_kept = statement.execute(params![public_key, time])? == 1;
        Ok(is_kept || !device.exists([public_key])?)
    };
    shown.iter().map(keep).collect()
}

fn keep_outer(t: &Transaction<'_>, heard: &[(DeviceId, Option<Endpoint>)]) -> Result<()> {
    let update = t.statement("UPDATE wireguard_devices SET \"outer\" = ?2 WHERE device = ?1");
    heard
        .iter()
        .try_for_each(|(device, outer)| update.execute(params![device.0, outer.map(outer_text)]).map(drop))
}

/// The device's address, and behind a space the gateway's own, if it is known.
fn outer_text(Endpoint { remote, local }: Endpoint) -> String {
    local.map_or_else(|| remote.to_string(), |local| format!("{remote} {local}"))
}

fn parse_outer(text: &str) -> Option<Endpoint> {
    let (remote, local) = text.split_once(' ').unwrap_or((text, ""));
    Some(Endpoint { remote: remote.parse().ok()?, local: local.parse().ok() })
}

/// Forgets it, if it is a WireGuard device, and whether it was; the caller renews the user's
/// digest.
pub(crate) fn remove(t: &Transaction<'_>, user: UserId, device: DeviceId) -> Result<bool> {
    let sql = "DELETE FROM wireguard_devices WHERE user_id = ? AND device = ?";
    t.execute(sql, params![user.0, device.0]).map(|removed| removed == 1)
}

fn changes(c: &Connection, since: Option<u64>) -> Result<DeviceChanges> {
    let sql =
        "SELECT coalesce(min(number), 0) AS first, coalesce(max(number), 0) AS last FROM wireguard_changes";
    let (first, last): (u64, u64) =
        c.statement(sql).query_row((), |row| Ok((row.get("first")?, row.get("last")?)))?;
    let since = since.filter(|since| (first..=last + 1).contains(&(since + 1)));
    if since == Some(last) {
        return Ok(DeviceChanges { last, are_all: false, devices: Vec::new(), removed: Vec::new() });
    }
    // Those of one moment: other changes may follow.
    let numbers = since.map_or_else(Vec::new, |since| params![since, last]);
    let changed = "FROM wireguard_changes c WHERE c.number > ? AND c.number <= ?";
    let which =
        since.map_or_else(String::new, |_| format!("WHERE d.public_key IN (SELECT c.public_key {changed})"));
    let sql = format!("SELECT u.name AS user_name, u.source, {COLUMNS} {which} ORDER BY d.public_key");
    let mut devices: Vec<OwnedDevice> = c.statement(&sql).query_all(numbers.clone(), |row| {
        let (user_name, source) = (row.get("user_name")?, row.get("source")?);
        Ok(OwnedDevice { device: from_row(row)?, user_name, source, groups: Vec::new() })
    })?;
    let sql = format!(
        "SELECT user_id, name FROM memberships WHERE user_id IN (SELECT d.user_id FROM wireguard_devices d {which}) ORDER BY name"
    );
    let memberships: Vec<(UserId, String)> = c
        .statement(&sql)
        .query_all(numbers.clone(), |row| Ok((UserId(bytes(row, "user_id")?), row.get("name")?)))?;
    let mut groups: HashMap<UserId, Vec<String>> = HashMap::new();
    for (user, group) in memberships {
        groups.entry(user).or_default().push(group);
    }
    for owned in &mut devices {
        owned.groups = groups.get(&owned.device.user).cloned().unwrap_or_default();
    }
    let removed = match since {
        Some(_) => {
            let sql = format!(
                "SELECT DISTINCT c.public_key {changed} AND NOT EXISTS
                     (SELECT 1 FROM wireguard_devices d WHERE d.public_key = c.public_key)"
            );
            c.statement(&sql).query_all(numbers, |row| bytes(row, "public_key"))?
        }
        None => Vec::new(),
    };
    Ok(DeviceChanges { last, are_all: since.is_none(), devices, removed })
}

fn from_row(row: &Row<'_>) -> Result<WireGuardDevice> {
    let outer: Option<String> = row.get("outer")?;
    Ok(WireGuardDevice {
        public_key: bytes(row, "public_key")?,
        user: UserId(bytes(row, "user_id")?),
        id: DeviceId(bytes(row, "device")?),
        name: row.get("name")?,
        preshared: optional_bytes(row, "preshared")?.map(PresharedKey::new),
        renewed_s: row.get("renewed_s")?,
        walled_s: row.get("walled_s")?,
        latest: optional_bytes(row, "latest")?,
        latest_own: optional_bytes(row, "latest_own")?,
        outer: outer.as_deref().and_then(parse_outer),
        may_connect: row.get("may_connect")?,
    })
}
