//! Devices that are known, in SQL.

use vpnd_proto::session::DeviceId;

use super::columns::bytes;
use super::{Connection, Database, Result, Transaction, params};
use crate::{KnownDevice, KnownDevices, Sighting, StoreError, UserId};

impl<D: Database> KnownDevices for D {
    fn keep_sightings(&self, sightings: &[Sighting]) -> Result<(), StoreError> {
        self.change(|t| sightings.iter().try_for_each(|sighting| keep(t, sighting)).map(Ok))
    }

    fn known_devices(&self, user: UserId) -> Result<Vec<KnownDevice>, StoreError> {
        self.read(|c| of_user(c, user))
    }
}

fn keep(t: &Transaction<'_>, sighting: &Sighting) -> Result<()> {
    let Sighting { user, device, at_s, network } = sighting;
    t.statement(
        "INSERT INTO known_devices (user_id, device, added_s, seen_s, network)
         SELECT id, ?2, ?3, ?3, ?4 FROM users WHERE id = ?1
         ON CONFLICT (user_id, device) DO UPDATE SET
             seen_s = excluded.seen_s, network = coalesce(excluded.network, known_devices.network)",
    )
    .execute(params![user.0, device.0, at_s, network])?;
    // A client invents the id of its device: without this each login could add a row.
    t.statement(
        "DELETE FROM known_devices WHERE user_id = ?1 AND device NOT IN
             (SELECT device FROM leases WHERE user_id = ?1
              UNION SELECT device FROM wireguard_devices WHERE user_id = ?1)",
    )
    .execute([user.0])
    .map(drop)
}

/// A device is added that was not there yet.
pub(crate) fn add(t: &Transaction<'_>, user: UserId, device: DeviceId, now_s: u64) -> Result<()> {
    let sql = "INSERT INTO known_devices (user_id, device, added_s) VALUES (?1, ?2, ?3)
               ON CONFLICT (user_id, device) DO NOTHING";
    t.execute(sql, params![user.0, device.0, now_s]).map(drop)
}

pub(crate) fn remove(t: &Transaction<'_>, user: UserId, device: DeviceId) -> Result<()> {
    let sql = "DELETE FROM known_devices WHERE user_id = ? AND device = ?";
    t.execute(sql, params![user.0, device.0]).map(drop)
}

fn of_user(c: &Connection, user: UserId) -> Result<Vec<KnownDevice>> {
    let sql = "SELECT device, added_s, seen_s, network FROM known_devices WHERE user_id = ? ORDER BY device";
    c.statement(sql).query_all([user.0], |row| {
        Ok(KnownDevice {
            device: DeviceId(bytes(row, "device")?),
            added_s: row.get("added_s")?,
            seen_s: row.get("seen_s")?,
            network: row.get("network")?,
        })
    })
}
