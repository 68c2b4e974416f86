//! The kill switch of a network namespace, written down: what closes it, for how long, and the
//! client that keeps it.
//!
//! INVARIANT: the record is durable before the switch is in force, and is gone before the switch
//! is, if it can be removed. So whatever ends a process, a switch that is in force is named by a
//! record, and one that a person has ended does not come back; where the record can't be removed,
//! not before the machine restarts.
//!
//! INVARIANT: record and switch change together only under the namespace's turn, or by the client
//! that holds it. A record belongs to one network namespace; after a restart of the machine only a
//! persistent one of the machine's own namespace counts, and only there.

use std::fmt;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{JournalDirectory, JournalError, Owner, os_error, record};
use vpnd_sys::lock::LockedFile;
use vpnd_sys::namespace;
use vpnd_sys::nft::KillSwitchRules;
use vpnd_sys::own_file;
use vpnd_sys::secret_file::{self, Existing, SECRET_MODE, WriteError};

/// Begins the name of each record.
const PREFIX: &str = "killswitch-";
/// Ends the name of the record of the machine's own network namespace.
const MACHINE: &str = "machine";
/// Ends the name of a record's copy, which counts where the record is damaged or lost.
const COPY: &str = "-copy";
/// The longest record that is read, bytes.
const MAX_LEN: u64 = 64 << 10;

/// Time for another process to be done with record and switch.
const TURN_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });
const TURN_INTERVAL: Duration = Duration::from_millis(10);

/// A kill switch as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillSwitchRecord {
    /// The process that has switched it on, and its network namespace.
    pub owner: Owner,
    /// The user for whom that is; root for all clients but those of the client service.
    #[serde(default)]
    pub user: u32,
    /// Whether that is the machine's own namespace.
    pub is_machines: bool,
    /// Whether it outlives its client and a restart of the machine.
    pub is_persistent: bool,
    /// When it was switched on, in seconds since 1970.
    pub since_s: u64,
    /// Whether the networks that the machine is directly connected to pass, whichever these are.
    pub passes_local: bool,
    /// The name of the gateway that requires it; `None` if this machine does.
    #[serde(default)]
    pub required_by: Option<String>,
    /// The rules, without local networks, which are others after a restart.
    pub rules: KillSwitchRules,
}

/// Result of looking for the record of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    Nothing,
    Record(KillSwitchRecord),
    /// There is one that can't be read, or that another user has written; why, for people.
    Unreadable(String),
}

/// The place where the kill switch of this thread's network namespace is written down.
#[derive(Debug)]
pub struct KillSwitchPlace {
    directory: JournalDirectory,
    this: Owner,
    is_machines: Option<bool>,
}

/// The right to change record and switch.
pub struct KillSwitchTurn {
    _file: LockedFile,
}

/// The right of the one client that keeps the switch.
#[derive(Debug)]
pub struct KillSwitchHold {
    place: KillSwitchPlace,
    _file: LockedFile,
}

impl KillSwitchPlace {
    /// # Errors
    /// If this process's network namespace can't be examined.
    pub fn of_this_namespace(directory: &JournalDirectory) -> Result<Self, JournalError> {
        let failed = |source| os_error(directory.path(), "opened", source);
        let this = Owner::this_process().map_err(failed)?;
        let is_machines = namespace::is_the_machines();
        Ok(Self { directory: directory.try_clone().map_err(failed)?, this, is_machines })
    }

    /// Whether a persistent switch of this namespace comes back after a restart of the machine.
    pub fn is_machines(&self) -> bool {
        self.is_machines == Some(true)
    }

    /// Reads the record that counts here.
    ///
    /// # Errors
    /// If the directory can't be read.
    pub fn find(&self) -> Result<Found, JournalError> {
        let mut found = Found::Nothing;
        for name in self.names()? {
            match self.read(&name) {
                Ok(record) if self.counts(&record) => return Ok(Found::Record(record)),
                Ok(_) => {}
                // Another namespace's that is damaged is none of ours.
                Err(reason) if self.is_own(&name) => found = Found::Unreadable(reason),
                Err(_) => {}
            }
        }
        Ok(found)
    }

    /// The names of all records, and then those of their copies.
    fn names(&self) -> Result<Vec<String>, JournalError> {
        let mut names = self.directory.names().map_err(|source| self.failed("listed", source))?;
        names.retain(|name| name.starts_with(PREFIX));
        names.sort_by_key(|name| name.ends_with(COPY));
        Ok(names)
    }

    fn is_own(&self, name: &str) -> bool {
        name.strip_suffix(COPY).unwrap_or(name) == self.own_name()
    }

    /// Waits for the right to change record and switch. Held for moments only.
    ///
    /// # Errors
    /// If the lock can't be made, or another process keeps it: a stopped process keeps it until it
    /// goes on.
    pub fn turn(&self) -> Result<KillSwitchTurn, JournalError> {
        let name = format!("switching-{}", self.this.namespace.1);
        let end = Instant::now() + TURN_TIMEOUT;
        loop {
            let taken = self.directory.take(&name).map_err(|source| self.failed("locked", source))?;
            match taken {
                Some(file) => return Ok(KillSwitchTurn { _file: file }),
                None if Instant::now() < end => std::thread::sleep(TURN_INTERVAL),
                None => return Err(self.failed("locked", io::ErrorKind::TimedOut.into())),
            }
        }
    }

    /// Takes the right of the one client that keeps the switch; `None` if another one has it.
    ///
    /// # Errors
    /// If the lock can't be made.
    pub fn hold(self) -> Result<Option<KillSwitchHold>, JournalError> {
        let taken = self.directory.take(&self.hold_name());
        let Some(file) = taken.map_err(|source| self.failed("locked", source))? else { return Ok(None) };
        // For people alone.
        let _ =
            file.set_len(0).and_then(|()| file.write_all_at(std::process::id().to_string().as_bytes(), 0));
        Ok(Some(KillSwitchHold { place: self, _file: file }))
    }

    /// Takes the right of the one process that keeps the switch while no client does; `None` if
    /// another one has it.
    ///
    /// # Errors
    /// If the lock can't be made.
    pub fn keep(&self) -> Result<Option<LockedFile>, JournalError> {
        self.directory.take(&self.keeper_name()).map_err(|source| self.failed("locked", source))
    }

    /// Whether a process keeps the switch while no client does.
    ///
    /// # Errors
    /// If that can't be found out.
    pub fn has_keeper(&self) -> Result<bool, JournalError> {
        let held = self.directory.read_held(&self.keeper_name());
        held.map(|text| text.is_some()).map_err(|source| self.failed("read", source))
    }

    /// The client that keeps the switch, if one does.
    ///
    /// # Errors
    /// If that can't be found out.
    pub fn holder(&self) -> io::Result<Option<String>> {
        self.directory.read_held(&self.hold_name())
    }

    /// Removes what stands where the client that keeps the switch is found, and is no file of vpnd.
    ///
    /// # Errors
    /// If it can't be removed.
    pub fn remove_holder(&self) -> io::Result<()> {
        self.directory.remove(&self.hold_name())
    }

    /// Writes the record down, and its copy if there is room for it.
    ///
    /// # Errors
    /// [`WriteError`]; the one before stays.
    pub fn write(&self, record: &KillSwitchRecord) -> Result<(), WriteError> {
        let json = serde_json::to_string(record).expect("records have string keys only and always serialise");
        let line = format!("{} {json}\n", record::checksum(json.as_bytes()));
        let write = |name: &str| {
            let path = self.directory.path_of(name);
            secret_file::write(&path, line.as_bytes(), SECRET_MODE, Existing::Replace)
        };
        write(&self.own_name())?;
        let copy = self.own_name() + COPY;
        if write(&copy).is_err() {
            // One of an earlier record must not be taken for this one's.
            let _ = self.directory.remove(&copy);
        }
        Ok(())
    }

    /// Removes the record, whatever it says; returns whether there was one. Without a turn where
    /// there is none to be had: a person who ends the switch comes before all else.
    ///
    /// # Errors
    /// If it can't be removed.
    pub fn forget(&self, _turn: Option<&KillSwitchTurn>) -> Result<bool, JournalError> {
        let found = self.find()?;
        // Copies first: without its record one would count.
        for name in self.names()?.iter().rev() {
            let is_ours = match self.read(name) {
                Ok(record) => self.counts(&record),
                Err(_) => self.is_own(name),
            };
            if is_ours {
                self.directory.remove(name).map_err(|source| self.failed("removed", source))?;
            }
        }
        if found != Found::Nothing {
            self.directory.sync().map_err(|source| self.failed("written", source))?;
        }
        Ok(found != Found::Nothing)
    }

    /// A record for this namespace that begins now.
    pub fn record(
        &self,
        user: u32,
        is_persistent: bool,
        passes_local: bool,
        rules: KillSwitchRules,
    ) -> KillSwitchRecord {
        KillSwitchRecord {
            owner: self.this.clone(),
            user,
            is_machines: self.is_machines(),
            is_persistent,
            since_s: vpnd_sys::clock::wall_s(),
            passes_local,
            required_by: None,
            rules: KillSwitchRules { local: Vec::new(), ..rules },
        }
    }

    /// The record as this process goes on with it after a restart of the machine.
    pub fn taken_over(&self, record: KillSwitchRecord) -> KillSwitchRecord {
        KillSwitchRecord { owner: self.this.clone(), ..record }
    }

    /// Whether a record is about this namespace, and still counts.
    fn counts(&self, record: &KillSwitchRecord) -> bool {
        if record.owner.shares_network(&self.this) {
            return true;
        }
        // Where a process can't find out whether it is in the machine's own namespace it is taken
        // for that, so that those who may end the switch can.
        record.owner.boot != self.this.boot
            && record.is_machines
            && record.is_persistent
            && self.is_machines != Some(false)
    }

    fn read(&self, name: &str) -> Result<KillSwitchRecord, String> {
        let bytes =
            own_file::read(&self.directory.path_of(name), MAX_LEN).map_err(|error| error.to_string())?;
        let damaged = || "it is damaged".to_owned();
        let line = std::str::from_utf8(&bytes).map_err(|_| damaged())?;
        let (sum, json) = line.trim_end().split_once(' ').ok_or_else(damaged)?;
        if sum != record::checksum(json.as_bytes()) {
            return Err(damaged());
        }
        let record: KillSwitchRecord = serde_json::from_str(json).map_err(|_| damaged())?;
        record.rules.check().map_err(|error| error.to_string())?;
        Ok(record)
    }

    fn own_name(&self) -> String {
        match self.is_machines() {
            true => format!("{PREFIX}{MACHINE}"),
            false => format!("{PREFIX}{}", self.this.namespace.1),
        }
    }

    fn hold_name(&self) -> String {
        format!("switch-held-{}", self.this.namespace.1)
    }

    fn keeper_name(&self) -> String {
        format!("switch-kept-{}", self.this.namespace.1)
    }

    fn failed(&self, step: &'static str, source: io::Error) -> JournalError {
        os_error(&self.path(), step, source)
    }

    fn path(&self) -> PathBuf {
        self.directory.path_of(&self.own_name())
    }
}

impl KillSwitchRecord {
    /// Whether a user may end or change it: root, and the one who has switched it on.
    pub fn is_of(&self, user: u32) -> bool {
        user == 0 || user == self.user
    }
}

impl KillSwitchHold {
    pub fn place(&self) -> &KillSwitchPlace {
        &self.place
    }
}

impl Drop for KillSwitchHold {
    fn drop(&mut self) {
        // While it is locked: a process that opens it afterwards makes another.
        let _ = self.place.remove_holder();
    }
}

impl fmt::Display for KillSwitchRecord {
    /// For people: since when, and what passes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_persistent { "persistent kill switch" } else { "kill switch" };
        let since = vpnd_sys::date::rfc3339(self.since_s);
        write!(f, "{kind} on since {since}: only {} carries packets of this machine", self.rules.tunnel)?;
        if let Some(gateway) = &self.required_by {
            write!(f, ", as {gateway} requires")?;
        }
        if self.passes_local {
            f.write_str(", and local networks pass")?;
        }
        if !self.rules.inbound.is_empty() {
            let ports: Vec<String> = self.rules.inbound.iter().map(ToString::to_string).collect();
            write!(f, ", and connections to its TCP ports {}", ports.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn directory() -> (tempfile::TempDir, JournalDirectory) {
        let place = tempfile::tempdir().unwrap();
        let directory = JournalDirectory::create(place.path()).unwrap();
        (place, directory)
    }

    fn rules() -> KillSwitchRules {
        KillSwitchRules { tunnel: "vpn0".to_owned(), inbound: vec![22], local: Vec::new() }
    }

    fn place(directory: &JournalDirectory) -> KillSwitchPlace {
        KillSwitchPlace::of_this_namespace(directory).unwrap()
    }

    #[test]
    fn a_kill_switch_record_is_valid_on_this_machine_only() {
        let (_files, directory) = directory();
        let own_place = place(&directory);
        assert_eq!(own_place.find().unwrap(), Found::Nothing);
        let record = own_place.record(0, false, true, rules());
        own_place.write(&record).unwrap();
        assert_eq!(own_place.find().unwrap(), Found::Record(record.clone()));
        let elsewhere = Owner { namespace: (4, 12_345), cookie: Some(7), ..record.owner.clone() };
        let other_place = KillSwitchPlace { this: elsewhere, is_machines: Some(false), ..place(&directory) };
        assert_eq!(other_place.find().unwrap(), Found::Nothing, "another namespace's");
        let again = Owner { cookie: Some(7), ..record.owner.clone() };
        let again = KillSwitchPlace { this: again, is_machines: Some(false), ..place(&directory) };
        assert_eq!(again.find().unwrap(), Found::Nothing, "one that has got the number of one that is gone");
    }

    #[test]
    fn after_a_reboot_only_a_persistent_kill_switch_is_valid() {
        for (is_machines, is_persistent) in [(false, false), (false, true), (true, false), (true, true)] {
            for now in [Some(true), None, Some(false)] {
                let (_files, directory) = directory();
                let before = place(&directory);
                let owner = Owner { boot: "before".to_owned(), ..before.this.clone() };
                let record = KillSwitchRecord {
                    owner,
                    is_machines,
                    ..before.record(0, is_persistent, false, rules())
                };
                let before = KillSwitchPlace { is_machines: Some(is_machines), ..before };
                before.write(&record).unwrap();
                let after = KillSwitchPlace { is_machines: now, ..place(&directory) };
                let counts = is_machines && is_persistent && now != Some(false);
                let found = after.find().unwrap();
                assert_eq!(
                    found == Found::Record(record),
                    counts,
                    "{is_machines} {is_persistent} {now:?}: {found:?}"
                );
            }
        }
    }

    #[test]
    fn a_damaged_or_foreign_record_is_reported_and_ignored() {
        let (files, directory) = directory();
        let own_place = place(&directory);
        own_place.write(&own_place.record(0, true, false, rules())).unwrap();
        let path = own_place.path();
        let text = fs::read_to_string(&path).unwrap();
        let copy = directory.path_of(&(own_place.own_name() + COPY));
        for wrong in ["", "no record", &text.replace("vpn0", "vpn1"), &text[..text.len() / 2]] {
            [&path, &copy].into_iter().for_each(|path| fs::write(path, wrong).unwrap());
            assert!(matches!(own_place.find().unwrap(), Found::Unreadable(_)), "{wrong:?}");
        }
        fs::remove_file(copy).unwrap();
        let elsewhere = files.path().join("elsewhere");
        fs::write(&elsewhere, &text).unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(matches!(own_place.find().unwrap(), Found::Unreadable(_)), "a link");
    }

    #[test]
    fn the_copy_is_used_only_if_the_record_is_damaged_or_lost() {
        let (_files, directory) = directory();
        let own_place = place(&directory);
        let record =
            |port| own_place.record(0, true, false, KillSwitchRules { inbound: vec![port], ..rules() });
        own_place.write(&record(22)).unwrap();
        let old = fs::read(directory.path_of(&(own_place.own_name() + COPY))).unwrap();
        own_place.write(&record(443)).unwrap();
        let is_found =
            |port| matches!(own_place.find().unwrap(), Found::Record(found) if found.rules.inbound == [port]);
        fs::write(own_place.path(), "nonsense").unwrap();
        assert!(is_found(443), "damaged");
        fs::remove_file(own_place.path()).unwrap();
        assert!(is_found(443), "lost");
        assert!(own_place.forget(None).unwrap());
        assert_eq!(own_place.find().unwrap(), Found::Nothing, "nothing is left of what is forgotten");
        // A machine that stops between the two writes has the copy of the record before.
        own_place.write(&record(443)).unwrap();
        fs::write(directory.path_of(&(own_place.own_name() + COPY)), old).unwrap();
        assert!(is_found(443), "the record itself counts");
    }

    #[test]
    fn only_one_client_holds_the_kill_switch() {
        let (_files, directory) = directory();
        assert_eq!(place(&directory).holder().unwrap(), None);
        let held = place(&directory).hold().unwrap().expect("it is free");
        assert!(place(&directory).hold().unwrap().is_none());
        assert_eq!(place(&directory).holder().unwrap(), Some(std::process::id().to_string()));
        drop(held);
        assert_eq!(place(&directory).holder().unwrap(), None);
        assert!(place(&directory).hold().unwrap().is_some());
    }

    #[test]
    fn the_holder_of_the_kill_switch_is_known_by_its_lock() {
        let (_files, directory) = directory();
        let path = directory.path_of(&place(&directory).hold_name());
        let held = place(&directory).hold().unwrap();
        fs::write(&path, [0xFF, 0xFE]).unwrap();
        assert!(place(&directory).holder().unwrap().is_some());
        drop(held);
        fs::write(&path, [0xFF, 0xFE]).unwrap();
        assert_eq!(place(&directory).holder().unwrap(), None);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(place(&directory).holder().unwrap(), None, "nobody holds it, and it can't be read");
    }

    #[test]
    fn a_hung_holder_of_the_lock_is_not_waited_for() {
        let (_files, directory) = directory();
        let turn = place(&directory).turn().unwrap();
        let began = Instant::now();
        assert!(place(&directory).turn().is_err());
        assert!(began.elapsed() >= TURN_TIMEOUT);
        drop(turn);
        assert!(place(&directory).turn().is_ok());
    }

    #[test]
    fn only_root_and_its_user_may_change_a_kill_switch() {
        let (_files, directory) = directory();
        let record = KillSwitchRecord { user: 7, ..place(&directory).record(0, true, false, rules()) };
        assert!(record.is_of(0) && record.is_of(7) && !record.is_of(8));
        let roots = KillSwitchRecord { user: 0, ..record };
        assert!(roots.is_of(0) && !roots.is_of(7));
    }

    #[test]
    fn one_keeper_waits_for_the_end_of_clients() {
        let (_files, directory) = directory();
        let own_place = place(&directory);
        assert!(!own_place.has_keeper().unwrap());
        let kept = own_place.keep().unwrap().expect("it is free");
        assert!(own_place.has_keeper().unwrap() && own_place.keep().unwrap().is_none());
        assert_eq!(own_place.holder().unwrap(), None, "it is no client");
        drop(kept);
        assert!(!own_place.has_keeper().unwrap());
    }

    #[test]
    fn forgetting_removes_any_record() {
        let (_files, directory) = directory();
        let own_place = place(&directory);
        assert!(!own_place.forget(None).unwrap(), "there was none");
        for damage in [false, true] {
            own_place.write(&own_place.record(0, true, false, rules())).unwrap();
            if damage {
                fs::write(own_place.path(), "nonsense").unwrap();
            }
            assert!(own_place.forget(Some(&own_place.turn().unwrap())).unwrap());
            assert_eq!(own_place.find().unwrap(), Found::Nothing);
        }
    }
}
