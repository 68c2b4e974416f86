//! Users who are kicked or disabled at all gateways of a fleet, on their way to the store and to
//! the other gateways.
//!
//! A command leaves a kick here and reads what has become of it, for neither depends on the store's
//! server. The auth process has the other gateways carry it out, and the store. So it does with a
//! user who is disabled while the store can't be written: INVARIANT: such a user is disabled at
//! this gateway until the store has that, whichever gateway it was ordered at. A kick is on the
//! disk before it is acknowledged, and stays until the store has it.

use std::collections::BTreeMap;
use std::sync::Arc;

use minicbor::{Decode, Encode};
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension as _, ToSql, params};
use vpnd_sys::clock::Clocks;

use super::file::PutOffFile;
use crate::postgres::CLOCK_TOLERANCE_S;
use crate::sql::{self, Database, events, users};
use crate::{
    Device, ExternalUser, LiveUser, RevocationCause, Revocations as _, Sessions as _, StoreError, Users as _,
    WireGuardDevices as _,
};

/// Kicks that are read at once, as many as there may be orders to all gateways.
const MAX_KICKS: u64 = 256;
/// A user whom another gateway has disabled and no store knows is kept out for this long, seconds:
/// that gateway may know the user's source.
const UNKNOWN_FOR_S: u64 = 86_400;
/// Time after which the store is asked for that user again, seconds: in the first minute, and
/// later.
const UNKNOWN_AGAIN_S: [u64; 2] = [10, 60];
/// Time for the auth process to have other gateways know of a kick, seconds. Then the store has it,
/// whether they do or not.
const TELL_FIRST_S: u64 = 1;

/// A user's sessions are to end at all gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kick {
    /// Its name: random bytes.
    pub id: [u8; 16],
    /// The user's login name.
    pub user: String,
    /// By the clock that people set: the command has none of the daemon's.
    pub at_s: u64,
    /// Whether the user is disabled, too.
    pub is_disable: bool,
    /// The source of users to which the name of one who is disabled belongs: a user of it may not
    /// have been here yet.
    pub source: Option<String>,
}

/// A kick that the auth process has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenKick {
    /// The kick that the command has left.
    pub kick: Kick,
    /// Its time by the clock of sessions, as it was when it was seen: the other clock may be set
    /// meanwhile.
    pub steady_s: u64,
    /// Whether it was ordered at this gateway.
    pub is_own: bool,
    /// The sessions of one who is disabled that have ended at this gateway, once they have.
    pub here: Option<u64>,
    /// The sessions that the store had, once it has the kick.
    pub ended: Option<u64>,
}

/// The state of a kick at the store and the gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct KickProgress {
    /// The sessions that the store had, once it has the kick.
    #[n(0)]
    pub stored: Option<u64>,
    /// The other gateways, and the sessions that have ended there, once they have.
    #[n(1)]
    pub gateways: Vec<(String, Option<u64>)>,
    /// The sessions of one who is disabled that have ended at this gateway, once they have.
    #[n(2)]
    pub here: Option<u64>,
}

/// The kicks of a gateway.
#[derive(Clone, Debug)]
pub struct Kicks {
    file: Arc<PutOffFile>,
    disabled: Arc<Mutex<Disabled>>,
}

/// Those who are disabled though the store does not have it, by the ids of their kicks.
#[derive(Debug, Default)]
struct Disabled {
    /// By the file, once it was read.
    kept: Option<BTreeMap<[u8; 16], String>>,
    /// Those of other gateways that the file has not taken, and when they came.
    unkept: BTreeMap<[u8; 16], (Kick, u64)>,
    /// Those of users whom the store does not know, and when it is asked again.
    unknown: BTreeMap<[u8; 16], u64>,
}

impl Kicks {
    pub(super) fn new(file: Arc<PutOffFile>) -> Self {
        Self { file, disabled: Arc::default() }
    }

    /// Those of this state directory, without its store. Nothing is opened before it is needed.
    #[must_use]
    pub fn of_state_dir(state_dir: &std::path::Path) -> Self {
        Self::new(Arc::new(PutOffFile::beside(&state_dir.join(vpnd_config::STORE_FILE_NAME))))
    }

    /// Leaves a kick for the auth process, which a user who is disabled by it need not wait for if
    /// this is that process.
    pub fn leave(&self, kick: &Kick) -> Result<(), StoreError> {
        self.add(kick, None)
    }

    /// Keeps that another gateway has disabled a user, at this time of the clock of sessions. It
    /// holds while this process runs even if that can't be kept.
    pub fn take(&self, kick: &Kick, steady_s: u64) -> Result<(), StoreError> {
        self.disabled.lock().unkept.insert(kick.id, (kick.clone(), steady_s));
        self.add(kick, Some(steady_s))
    }

    /// `steady_s` is there for those of another gateway.
    fn add(&self, kick: &Kick, steady_s: Option<u64>) -> Result<(), StoreError> {
        let Kick { id, user, at_s, is_disable, source } = kick;
        let mut disabled = self.disabled.lock();
        let is_new = self.file.with(|kicks| {
            // An order that comes again after a restart is known.
            let sql = "INSERT INTO kicks (id, user, at_s, steady, is_own, is_disable, source)
                       VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";
            let is_own = steady_s.is_none();
            let added = kicks.execute(sql, params![id, user, at_s, steady_s, is_own, is_disable, source])?;
            Ok(added == 1)
        })?;
        disabled.unkept.remove(id);
        if let (true, true, Some(kept)) = (is_new, *is_disable, &mut disabled.kept) {
            kept.insert(*id, user.clone());
        }
        Ok(())
    }

    /// Whether the user of this name is disabled though the store does not have it.
    pub fn holds(&self, name: &str) -> Result<bool, StoreError> {
        let mut disabled = self.disabled.lock();
        if disabled.kept.is_none() {
            // [`Self::see`] finds the kicks that commands leave later.
            let kept = self.file.exists().then(|| self.file.with(|kicks| disabled_in(kicks)));
            disabled.kept = Some(kept.transpose()?.unwrap_or_default());
        }
        let kept = disabled.kept.iter().flat_map(BTreeMap::values);
        let mut names = kept.chain(disabled.unkept.values().map(|(kick, _)| &kick.user));
        Ok(names.any(|held| held == name))
    }

    /// Gives the kicks that were left since the last call their time by the clock of sessions, and
    /// has them hold if they disable users. Others are not found below.
    pub fn see(&self, clocks: Clocks) -> Result<(), StoreError> {
        let unkept = self.disabled.lock().unkept.clone();
        unkept.values().try_for_each(|(kick, steady_s)| self.add(kick, Some(*steady_s)))?;
        if !self.file.exists() {
            return Ok(());
        }
        let mut disabled = self.disabled.lock();
        disabled.kept = Some(self.file.with(|kicks| {
            let is_new = "SELECT 1 FROM kicks WHERE steady IS NULL LIMIT 1";
            if kicks.prepare_cached(is_new)?.exists(())? {
                let (wall_s, steady_s) = ((clocks.wall)(), (clocks.steady)());
                let sql = "UPDATE kicks SET steady = max(0, ?2 - max(0, ?1 - at_s)) WHERE steady IS NULL";
                kicks.execute(sql, params![wall_s, steady_s])?;
            }
            disabled_in(kicks)
        })?);
        Ok(())
    }

    /// The kicks of this gateway that some other one has not confirmed, or that are not carried out
    /// here, the newest first, some hundreds at most: a gateway that is off for long keeps none of
    /// these from the others.
    pub fn unconfirmed(&self) -> Result<Vec<SeenKick>, StoreError> {
        let which = "is_own = 1 AND (is_disable = 1 AND here IS NULL OR
                     (SELECT count(*) = 0 OR count(*) > count(ended) FROM confirmations WHERE kick = id))
                     ORDER BY at_s DESC, id LIMIT ?1";
        self.find(which, params![MAX_KICKS])
    }

    /// The kicks that the store has, but for those of the last `for_s` seconds; the oldest first,
    /// some hundreds at most.
    pub fn stored(&self, for_s: u64, clocks: Clocks) -> Result<Vec<SeenKick>, StoreError> {
        let which = "kicks.ended IS NOT NULL AND abs(?1 - steady) > ?2 ORDER BY at_s, id LIMIT ?3";
        self.find(which, params![(clocks.steady)(), for_s, MAX_KICKS])
    }

    fn find(&self, which: &str, params: &[&dyn ToSql]) -> Result<Vec<SeenKick>, StoreError> {
        if !self.file.exists() {
            return Ok(Vec::new());
        }
        self.file.with(|kicks| {
            let sql = format!(
                "SELECT id, user, at_s, is_disable, source, steady, is_own, here, kicks.ended FROM kicks
                 WHERE steady IS NOT NULL AND {which}"
            );
            let mut statement = kicks.prepare_cached(&sql)?;
            let rows = statement.query_map(params, |row| {
                let (id, user, at_s) = (row.get(0)?, row.get(1)?, row.get(2)?);
                let kick = Kick { id, user, at_s, is_disable: row.get(3)?, source: row.get(4)? };
                let (steady_s, is_own) = (row.get(5)?, row.get(6)?);
                Ok(SeenKick { kick, steady_s, is_own, here: row.get(7)?, ended: row.get(8)? })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// The state of a kick; `None` if there is no such kick, or no longer.
    pub fn progress(&self, id: &[u8; 16]) -> Result<Option<KickProgress>, StoreError> {
        self.file.with(|kicks| {
            let sql = "SELECT ended, here FROM kicks WHERE id = ?";
            let known = kicks.query_row(sql, [id], |row| Ok((row.get(0)?, row.get(1)?)));
            let Some((stored, here)) = known.optional()? else { return Ok(None) };
            let sql = "SELECT gateway, ended FROM confirmations WHERE kick = ? ORDER BY gateway";
            let mut statement = kicks.prepare_cached(sql)?;
            let rows = statement.query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(Some(KickProgress { stored, gateways: rows.collect::<Result<_, _>>()?, here }))
        })
    }

    /// Keeps what other gateways have done about a kick.
    pub fn confirm(&self, id: &[u8; 16], gateways: &[(String, Option<u64>)]) -> Result<(), StoreError> {
        self.file.with(|kicks| {
            let transaction = kicks.transaction()?;
            for (gateway, ended) in gateways {
                let sql = "INSERT INTO confirmations (kick, gateway, ended) SELECT id, ?2, ?3 FROM kicks WHERE id = ?1
                           ON CONFLICT DO UPDATE SET ended = coalesce(excluded.ended, ended)";
                transaction.execute(sql, params![id, gateway, ended])?;
            }
            Ok(transaction.commit()?)
        })
    }

    /// Keeps that this gateway has ended the sessions of a user whom it has disabled.
    pub fn carried_out(&self, id: &[u8; 16], sessions: u64) -> Result<(), StoreError> {
        let sql = "UPDATE kicks SET here = ?2 WHERE id = ?1 AND is_own = 1 AND here IS NULL";
        self.file.with(|kicks| Ok(kicks.execute(sql, params![id, sessions]).map(drop)?))
    }

    /// Makes those of the kicks that the store does not have of which other gateways know, or which
    /// are older than the time for that, and those of other gateways if it `writes_others`; how
    /// many they were. The store has one who is disabled also if it was told by another gateway.
    pub(crate) fn write(
        &self,
        store: &impl Database,
        is_sent: &dyn Fn(&[u8; 16]) -> bool,
        writes_others: bool,
        clocks: Clocks,
    ) -> Result<usize, StoreError> {
        let (mut count, mut after, mut not_kept) = (0, Vec::new(), None);
        loop {
            let batch =
                self.find("kicks.ended IS NULL AND id > ?1 ORDER BY id LIMIT ?2", params![after, MAX_KICKS])?;
            let Some(last) = batch.last() else { return not_kept.map_or(Ok(count), Err) };
            after = last.kick.id.to_vec();
            let steady_s = (clocks.steady)();
            for seen in &batch {
                if self.disabled.lock().unknown.get(&seen.kick.id).is_some_and(|at_s| steady_s < *at_s) {
                    continue;
                }
                let is_due = match seen.is_own {
                    true => is_sent(&seen.kick.id) || seen.steady_s.abs_diff(steady_s) > TELL_FIRST_S,
                    false => writes_others,
                };
                match make(store, seen, is_due, clocks) {
                    Ok(None) if is_due => {
                        let is_old = seen.steady_s.abs_diff(steady_s) >= UNKNOWN_AGAIN_S[1];
                        let again_s = steady_s + UNKNOWN_AGAIN_S[usize::from(is_old)];
                        self.disabled.lock().unknown.insert(seen.kick.id, again_s);
                    }
                    Ok(None) => {}
                    Ok(Some(ended)) => {
                        self.is_stored(&seen.kick.id, ended)?;
                        count += 1;
                    }
                    Err(error) if error.is_for_now() => return Err(error),
                    // The others are made.
                    Err(error) => not_kept = Some(error),
                }
            }
        }
    }

    fn is_stored(&self, id: &[u8; 16], ended: u64) -> Result<(), StoreError> {
        let mut disabled = self.disabled.lock();
        self.file.with(|kicks| {
            Ok(kicks.execute("UPDATE kicks SET ended = ? WHERE id = ?", params![ended, id])?)
        })?;
        disabled.kept.iter_mut().for_each(|kept| drop(kept.remove(id)));
        disabled.unknown.remove(id);
        Ok(())
    }

    /// Forgets a kick that the store has.
    pub fn forget(&self, id: &[u8; 16]) -> Result<(), StoreError> {
        self.file.with(|kicks| {
            let transaction = kicks.transaction()?;
            if transaction.execute("DELETE FROM kicks WHERE id = ? AND ended IS NOT NULL", [id])? == 1 {
                transaction.execute("DELETE FROM confirmations WHERE kick = ?", [id])?;
            }
            Ok(transaction.commit()?)
        })
    }
}

fn disabled_in(kicks: &Connection) -> sql::Result<BTreeMap<[u8; 16], String>> {
    let sql = "SELECT id, user FROM kicks WHERE is_disable = 1 AND ended IS NULL";
    let mut statement = kicks.prepare_cached(sql)?;
    let rows = statement.query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Has the store make a kick that is due; how many sessions it ends there, or `None` if it is not
/// due and the store does not have it.
fn make(
    store: &impl Database,
    seen: &SeenKick,
    is_due: bool,
    clocks: Clocks,
) -> Result<Option<u64>, StoreError> {
    let kick = &seen.kick;
    if kick.is_disable {
        // Clocks of gateways differ.
        let since_s = kick.at_s.saturating_sub(if seen.is_own { 0 } else { 2 * CLOCK_TOLERANCE_S });
        let is_made = store.read(|c| {
            let user = users::by_name(c, &kick.user)?;
            events::is_disabled_since(c, user.as_ref().map_or(&kick.user, |user| &user.name), since_s)
        })?;
        return match (is_made, is_due) {
            (true, _) => Ok(Some(0)),
            (false, true) => disable(store, seen, clocks),
            (false, false) => Ok(None),
        };
    }
    if is_due { end_sessions(store, seen, clocks).map(Some) } else { Ok(None) }
}

/// Disables the user; how many sessions there were, or `None` if another gateway may know the user.
fn disable(store: &impl Database, seen: &SeenKick, clocks: Clocks) -> Result<Option<u64>, StoreError> {
    let kick = &seen.kick;
    // The gateway of the order goes by this time, whose clock may be ahead.
    let now_s = (clocks.wall)().max(kick.at_s);
    let user = match (store.user(&kick.user)?, &kick.source) {
        (None, Some(source)) => {
            store.refresh_external(&ExternalUser::expected(source, &kick.user), now_s).map(Some)?
        }
        (found, _) => found,
    };
    // Names are those of the store, as for a command that disables a user there.
    let Some(user) = user.filter(|user| user.name == kick.user) else {
        if !seen.is_own && seen.steady_s.abs_diff((clocks.steady)()) < UNKNOWN_FOR_S {
            return Ok(None);
        }
        tracing::error!(user = vpnd_sys::text::plain(&kick.user), "there is no such user to be disabled");
        return Ok(Some(0));
    };
    let devices = store.devices(user.id)?;
    store.set_enabled(&user.name, false, now_s)?;
    Ok(Some(devices.iter().filter(|device| device.session.is_some()).count() as u64))
}

/// Ends the sessions that a user had at the time of the kick, and has the WireGuard devices of that
/// time stay out until they are renewed; how many sessions there were.
fn end_sessions(store: &impl Database, seen: &SeenKick, clocks: Clocks) -> Result<u64, StoreError> {
    let SeenKick { kick, steady_s, .. } = seen;
    let Some(user) = store.user(&kick.user)? else { return Ok(0) };
    let until_s = steady_s.saturating_add(2 * CLOCK_TOLERANCE_S);
    let (user, now_s) = (LiveUser::of(&user), (clocks.wall)());
    // Wherever their sessions were.
    for device in store.wireguard_devices_of(user.id)? {
        if device.renewed_s <= kick.at_s {
            store.wall_wireguard_device(device.id, now_s)?;
        }
    }
    let devices = store.devices(user.id)?.into_iter().filter(|device| device.session.is_some());
    let is_meant = |device: &Device| device.session_since_s.is_none_or(|since_s| since_s <= until_s);
    let (meant, later): (Vec<Device>, Vec<_>) = devices.partition(is_meant);
    if later.is_empty() {
        store.end_sessions(&user, RevocationCause::Kicked, now_s)?;
    } else {
        // The user has logged in again, where there was a database.
        for device in &meant {
            store.end_device(&user, device.id, RevocationCause::Kicked, now_s)?;
        }
    }
    Ok(meant.len() as u64)
}

#[cfg(test)]
mod tests {
    use vpnd_proto::session::{DeviceId, SessionId};

    use super::*;
    use crate::conformance::session_of;
    use crate::sqlite::Sqlite;
    use crate::{Fleet as _, NewUser, NewWireGuardDevice, PasswordHash, SessionRecord};

    fn kick(id: u8, at_s: u64) -> Kick {
        Kick { id: [id; 16], user: "ann".to_owned(), at_s, ..Kick::default() }
    }

    fn disable(id: u8, at_s: u64) -> Kick {
        Kick { is_disable: true, ..kick(id, at_s) }
    }

    fn write(kicks: &Kicks, store: &Sqlite, clocks: Clocks) -> usize {
        kicks.see(clocks).unwrap();
        kicks.write(store, &|_| true, false, clocks).unwrap()
    }

    fn unconfirmed(kicks: &Kicks) -> Vec<Kick> {
        kicks.see(CLOCKS).unwrap();
        kicks.unconfirmed().unwrap().into_iter().map(|seen| seen.kick).collect()
    }

    const CLOCKS: Clocks = Clocks { wall: || 5_000, steady: || 4_000 };

    #[test]
    fn a_kick_waits_for_the_store_over_a_restart_and_is_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap();
        store.add_user(&NewUser::new("ann", PasswordHash::new("x".to_owned())), 1_000).unwrap();
        let kicks = Kicks::of_state_dir(directory.path());
        assert!(unconfirmed(&kicks).is_empty() && !kicks.file.exists());
        kicks.leave(&kick(1, 10)).unwrap();
        kicks.leave(&kick(2, 9)).unwrap();
        drop(kicks);
        let kicks = Kicks::of_state_dir(directory.path());
        assert_eq!(unconfirmed(&kicks), [kick(1, 10), kick(2, 9)], "the newest first");
        kicks.forget(&[1; 16]).unwrap();
        assert_eq!(unconfirmed(&kicks).len(), 2, "the store does not have it");
        let before = store.last_revocation().unwrap();
        assert_eq!(write(&kicks, &store, CLOCKS), 2);
        assert_eq!(store.last_revocation().unwrap(), before + 2);
        assert_eq!(write(&kicks, &store, CLOCKS), 0);
        assert!(kicks.unconfirmed().unwrap().iter().all(|kick| kick.ended == Some(0)));
        kicks.forget(&[1; 16]).unwrap();
        assert_eq!((unconfirmed(&kicks).len(), kicks.progress(&[1; 16]).unwrap()), (1, None));
    }

    #[test]
    fn confirmations_are_of_kicks_that_there_are() {
        let directory = tempfile::tempdir().unwrap();
        let kicks = Kicks::of_state_dir(directory.path());
        kicks.leave(&kick(1, 10)).unwrap();
        let gateways = |ended| vec![("gw2".to_owned(), ended), ("gw3".to_owned(), None)];
        for ended in [None, Some(2)] {
            kicks.confirm(&[1; 16], &gateways(ended)).unwrap();
            let known = KickProgress { gateways: gateways(ended), ..KickProgress::default() };
            assert_eq!(kicks.progress(&[1; 16]).unwrap(), Some(known));
        }
        kicks.confirm(&[2; 16], &gateways(None)).unwrap();
        assert_eq!(kicks.progress(&[2; 16]).unwrap(), None);
    }

    #[test]
    fn a_late_kick_ends_no_later_session() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap();
        let user = store.add_user(&NewUser::new("ann", PasswordHash::new("x".to_owned())), 1_000).unwrap();
        let begin = |id: u8, started_s| {
            let record = SessionRecord { started_s, expires_s: 9_000, ..session_of(user, id) };
            assert!(store.add_session(&record, 0).unwrap());
        };
        begin(1, 2_000);
        begin(2, 3_900);
        let kicks = Kicks::of_state_dir(directory.path());
        kicks.leave(&kick(1, 4_500)).unwrap();
        assert_eq!(write(&kicks, &store, CLOCKS), 1);
        let exists = |id| store.session(SessionId([id; 16]), 4_000).unwrap().is_some();
        assert!(!exists(1) && exists(2), "it was given at 3,500 of the sessions' clock");
        kicks.leave(&kick(2, 4_890)).unwrap();
        assert_eq!(write(&kicks, &store, CLOCKS), 1);
        assert!(!exists(2), "clocks may differ by as much");
    }

    fn with_ann(directory: &tempfile::TempDir) -> Sqlite {
        let store = Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap();
        store.add_user(&NewUser::new("ann", PasswordHash::new("x".to_owned())), 1_000).unwrap();
        let (id, addresses) = (DeviceId([7; 16]), vec![[10, 86, 0, 7].into()]);
        let phone = NewWireGuardDevice {
            public_key: [7; 32],
            id,
            name: String::new(),
            preshared: None,
            most: 64,
            addresses,
        };
        store.add_wireguard_device("ann", &phone, 1_000).unwrap();
        store
    }

    fn is_enabled(store: &Sqlite) -> bool {
        let user = store.user("ann").unwrap().unwrap();
        let listed = store.find_users("ann", None, 1).unwrap().users.remove(0);
        let others = [store.user_by_id(user.id).unwrap().unwrap(), store.users().unwrap().remove(0)];
        let device = store.find_wireguard_device(&[7; 32], 1_000).unwrap().unwrap();
        let found = others.iter().map(|other| other.enabled).chain([listed.enabled, device.user.enabled]);
        assert_eq!(found.collect::<Vec<_>>(), [user.enabled; 4]);
        user.enabled
    }

    fn write_all(store: &Sqlite, writes_others: bool) -> usize {
        write_later(store, writes_others, CLOCKS.steady)
    }

    fn write_later(store: &Sqlite, writes_others: bool, steady: fn() -> u64) -> usize {
        store.kicks().see(CLOCKS).unwrap();
        store.write_kicks(&|_| true, writes_others, Clocks { steady, ..CLOCKS }).unwrap()
    }

    #[test]
    fn a_user_is_disabled_here_at_once_and_over_a_restart_until_the_store_has_it() {
        for is_own in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let store = with_ann(&directory);
            let before = store.last_revocation().unwrap();
            assert!(is_enabled(&store));
            if is_own {
                // A command does so.
                Kicks::of_state_dir(directory.path()).leave(&disable(1, 4_990)).unwrap();
                store.kicks().see(CLOCKS).unwrap();
            } else {
                store.kicks().take(&disable(1, 4_990), 4_000).unwrap();
            }
            assert!(!is_enabled(&store));
            drop(store);
            let store = Sqlite::open(&directory.path().join("vpnd.db")).unwrap();
            assert!(!is_enabled(&store));
            if !is_own {
                assert!(store.kicks().unconfirmed().unwrap().is_empty(), "it is not this gateway's order");
                assert_eq!(write_all(&store, false), 0, "its gateway writes it");
            }
            assert_eq!(write_all(&store, true), 1);
            assert!(!is_enabled(&store) && store.last_revocation().unwrap() == before + 1);
            store.set_enabled("ann", true, 5_001).unwrap();
            assert!(is_enabled(&store), "the store's word counts");
            store.kicks().take(&disable(1, 4_990), 4_000).unwrap();
            assert!(is_enabled(&store) && write_all(&store, true) == 0, "it is known");
        }
    }

    #[test]
    fn the_later_of_disabling_and_enabling_wins_or_disabling() {
        let directory = tempfile::tempdir().unwrap();
        let store = with_ann(&directory);
        // An earlier one is another one.
        store.set_enabled("ann", false, 4_900).unwrap();
        store.set_enabled("ann", true, 4_901).unwrap();
        store.kicks().take(&disable(1, 4_990), 4_000).unwrap();
        store.kicks().leave(&disable(2, 4_990)).unwrap();
        store.set_enabled("ann", true, 4_995).unwrap();
        assert_eq!([write_all(&store, false), write_all(&store, false)], [1, 1]);
        assert!(!is_enabled(&store), "the store did not have it");
        store.set_enabled("ann", true, 5_001).unwrap();
        // Another gateway has written these before the user was enabled.
        store.kicks().take(&disable(3, 4_990), 4_000).unwrap();
        store.kicks().leave(&disable(4, 4_990)).unwrap();
        assert!(!is_enabled(&store));
        assert_eq!(write_all(&store, false), 2);
        assert!(is_enabled(&store));
    }

    #[test]
    fn a_source_user_without_a_record_is_disabled() {
        let directory = tempfile::tempdir().unwrap();
        let store = with_ann(&directory);
        let bob = |source: Option<&str>, id| Kick {
            user: "bob".to_owned(),
            source: source.map(str::to_owned),
            ..disable(id, 5_000)
        };
        store.kicks().leave(&bob(None, 1)).unwrap();
        assert_eq!(write_all(&store, true), 1);
        assert!(store.user("bob").unwrap().is_none());
        store.kicks().take(&bob(None, 3), 4_000).unwrap();
        assert_eq!(write_all(&store, true), 0, "the gateway of the order may know the user's source");
        store.kicks().leave(&bob(Some("campus"), 2)).unwrap();
        let external = ExternalUser { subject: "b".to_owned(), ..ExternalUser::expected("campus", "bob") };
        assert!(!store.refresh_external(&external, 5_000).unwrap().enabled, "a first login meanwhile");
        store.remove_user("bob", 5_000).unwrap();
        assert_eq!(write_all(&store, true), 1);
        assert_eq!(write_later(&store, true, || 4_010), 1, "the store has it");
        assert!(!store.user("bob").unwrap().unwrap().enabled);
    }

    #[test]
    fn queries_for_a_user_that_no_store_knows_back_off() {
        let directory = tempfile::tempdir().unwrap();
        let store = with_ann(&directory);
        store.kicks().take(&Kick { user: "bob".to_owned(), ..disable(1, 4_990) }, 4_000).unwrap();
        assert_eq!(write_all(&store, true), 0);
        store.add_user(&NewUser::new("bob", PasswordHash::new("x".to_owned())), 1_000).unwrap();
        let is_held = || !store.user("bob").unwrap().unwrap().enabled;
        assert!(is_held() && write_later(&store, true, || 4_009) == 0 && is_held());
        store.remove_user("bob", 5_000).unwrap();
        assert_eq!(write_later(&store, true, || 4_060), 0);
        store.add_user(&NewUser::new("bob", PasswordHash::new("x".to_owned())), 1_000).unwrap();
        assert!(is_held() && write_later(&store, true, || 4_119) == 0 && is_held());
        assert_eq!(write_later(&store, true, || 4_120), 1);
        assert!(is_held());
    }

    #[test]
    fn a_user_disabled_by_another_gateway_stays_out_without_a_disk() {
        let directory = tempfile::tempdir().unwrap();
        let store = with_ann(&directory);
        let file = directory.path().join("vpnd.db.put-off");
        std::fs::create_dir(&file).unwrap();
        assert!(store.kicks().take(&disable(1, 4_990), 4_000).is_err());
        let is_held = || store.kicks().disabled.lock().unkept.len() == 1;
        assert!(is_held() && store.kicks().see(CLOCKS).is_err() && is_held());
        std::fs::remove_dir(&file).unwrap();
        store.kicks().see(CLOCKS).unwrap();
        assert!(!is_held() && !is_enabled(&store));
        let store = Sqlite::open(&directory.path().join("vpnd.db")).unwrap();
        assert!(!is_enabled(&store), "it is kept now");
    }

    #[test]
    fn kicks_are_written_and_the_newest_sent_however_many_wait_for_a_gateway() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap();
        let kicks = Kicks::of_state_dir(directory.path());
        let numbered = |number: u64| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_be_bytes());
            Kick { id, ..kick(0, 1_000 + number) }
        };
        // One transaction for all: a test waits for the disk once.
        kicks
            .file
            .with(|database| {
                let transaction = database.transaction()?;
                for Kick { id, user, at_s, .. } in (0..=2 * MAX_KICKS).map(numbered) {
                    let sql = "INSERT INTO kicks (id, user, at_s, is_own, is_disable) VALUES (?, ?, ?, 1, 0)";
                    transaction.execute(sql, params![id, user, at_s])?;
                    let sql = "INSERT INTO confirmations (kick, gateway, ended) VALUES (?, 'off', NULL)";
                    transaction.execute(sql, [id])?;
                }
                Ok(transaction.commit()?)
            })
            .unwrap();
        let to_send = unconfirmed(&kicks);
        assert_eq!((to_send.len(), &to_send[0]), (MAX_KICKS as usize, &numbered(2 * MAX_KICKS)));
        kicks.confirm(&to_send[0].id, &[("off".to_owned(), Some(1))]).unwrap();
        kicks.confirm(&to_send[0].id, &[("off".to_owned(), None)]).unwrap();
        assert_eq!(unconfirmed(&kicks)[0], numbered(2 * MAX_KICKS - 1), "it has all confirmations");
        assert_eq!(write(&kicks, &store, CLOCKS), 2 * MAX_KICKS as usize + 1);
        assert_eq!(kicks.stored(0, CLOCKS).unwrap()[0].kick, numbered(0));
    }

    #[test]
    fn a_kick_is_written_although_no_gateway_knows_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap();
        let kicks = Kicks::of_state_dir(directory.path());
        kicks.leave(&kick(1, 5_000)).unwrap();
        kicks.see(CLOCKS).unwrap();
        let written = |steady| kicks.write(&store, &|_| false, true, Clocks { steady, ..CLOCKS }).unwrap();
        assert_eq!(written(|| 4_000 + TELL_FIRST_S), 0, "others may learn of it yet");
        assert_eq!(written(|| 4_001 + TELL_FIRST_S), 1);
    }

    #[test]
    fn a_step_of_the_systems_clock_changes_no_kick_that_waits() {
        let directory = tempfile::tempdir().unwrap();
        let kicks = Kicks::of_state_dir(directory.path());
        for (id, wall) in (1..).zip([|| 5_000, || 9_000, || 1_000_u64]) {
            kicks.leave(&kick(id, 4_990)).unwrap();
            kicks.see(Clocks { wall, ..CLOCKS }).unwrap();
            let found = kicks.unconfirmed().unwrap();
            assert_eq!((found[0].kick.id, found[0].steady_s), ([1; 16], 3_990));
        }
    }
}
