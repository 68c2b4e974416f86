//! Devices that are known, in SQL.

use vpnd_proto::session::DeviceId;

use super::columns::bytes;
use super::{Connection, Database, Parameter as _, Result, Transaction, params, rows};
use crate::{KnownDevice, KnownDevices, Sighting, StoreError, UserId};

impl<D: Database> KnownDevices for D {
    fn keep_sightings(&self, sightings: &[Sighting]) -> Result<(), StoreError> {
        if sightings.is_empty() {
            return Ok(());
        }
        self.change(|t| keep(t, sightings).map(Ok))
    }

    fn known_devices(&self, user: UserId) -> Result<Vec<KnownDevice>, StoreError> {
        self.read(|c| of_user(c, user))
    }
}

fn keep(t: &Transaction<'_>, sightings: &[Sighting]) -> Result<()> {
    let (marks, values) = rows(sightings.iter().map(|Sighting { user, device, at_s, network }| {
        [user.0.value(), device.0.value(), at_s.value(), network.value()]
    }));
    let sql = format!(
        "WITH seen(user_id, device, at_s, network) AS (VALUES {marks})
         INSERT INTO known_devices (user_id, device, added_s, seen_s, network)
         SELECT s.user_id, s.device, min(s.at_s), max(s.at_s), max(s.network)
         FROM seen s JOIN users u ON u.id = s.user_id GROUP BY s.user_id, s.device
         ON CONFLICT (user_id, device) DO UPDATE SET
             seen_s = excluded.seen_s, network = coalesce(excluded.network, known_devices.network)"
    );
    t.execute(&sql, values)?;
    // A client invents the id of its device: without this each login could add a row.
    let (marks, users) = rows(sightings.iter().map(|sighting| [sighting.user.0.value()]));
    let sql = format!(
        "DELETE FROM known_devices WHERE user_id IN (VALUES {marks})
         AND NOT EXISTS (SELECT 1 FROM leases l
             WHERE l.user_id = known_devices.user_id AND l.device = known_devices.device)
         AND NOT EXISTS (SELECT 1 FROM wireguard_devices w
             WHERE w.user_id = known_devices.user_id AND w.device = known_devices.device)"
    );
    t.execute(&sql, users).map(drop)
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
