//! A recorder for tests, which collects events in place of a file.
#![allow(clippy::unwrap_used, clippy::new_without_default, reason = "a panic is how a test fails")]

use std::sync::Mutex;
use std::sync::mpsc::Receiver;

use super::query::{Cursor, Range, Record};
use super::recorder::{Message, Recorder};
use super::{AuditEntry, AuditFile, Event};
use vpnd_config::AuditPolicy as Policy;
use vpnd_config::OuterAddresses;
use vpnd_config::Retention;

pub const POLICY: Policy =
    Policy { enabled: true, outer: OuterAddresses::Full, retention: Retention::DEFAULT, min_free: 0 };

/// Everything in the file.
pub fn all(file: &AuditFile) -> Vec<Record> {
    let range = Range { from_s: 0, to_s: u64::from(u32::MAX), user: None };
    let (mut records, mut cursor) = (Vec::new(), Some(Cursor::default()));
    while let Some(here) = cursor {
        let (more, next) = file.export(&range, here).unwrap();
        records.extend(more);
        cursor = next;
    }
    records
}

pub struct Recorded {
    recorder: Recorder,
    inbox: Mutex<(Receiver<Message>, Vec<Event>)>,
}

impl Default for Recorded {
    fn default() -> Self {
        let (recorder, inbox) = Recorder::channel(POLICY);
        Self { recorder, inbox: Mutex::new((inbox, Vec::new())) }
    }
}

impl Recorded {
    pub fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    /// All events, in order.
    pub fn events(&self) -> Vec<Event> {
        let mut inbox = self.inbox.lock().unwrap();
        let (receiver, events) = &mut *inbox;
        events.extend(receiver.try_iter().filter_map(|message| match message {
            Message::Event(event) => Some(event),
            Message::Finish(..) => None,
        }));
        events.clone()
    }

    /// All entries, the newest first.
    pub fn newest(&self) -> Vec<AuditEntry> {
        let entry = |event| if let Event::Entry(entry) = event { Some(entry) } else { None };
        self.events().into_iter().rev().filter_map(entry).collect()
    }
}

impl AuditFile {
    /// Adds sessions that are over: `of` has the start and the address of each by its number; each
    /// lasts 9 s.
    pub fn fill(&mut self, sessions: u64, of: impl Fn(u64) -> (u64, [u8; 4])) -> rusqlite::Result<()> {
        let t = self.connection.transaction()?;
        let sql = "INSERT INTO sessions (session, user, source, profile, device, outer_address, ipv4, start_s, expires_s, end_s, reason)
                   VALUES (randomblob(16), 'u' || ?1, 'local', '', randomblob(16), '192.0.2.1:4711', ?2, ?3, ?3 + 86400, ?3 + 9, 'bye')";
        for n in 0..sessions {
            let (start_s, address) = of(n);
            t.prepare_cached(sql)?.execute(rusqlite::params![n, address, start_s])?;
        }
        t.commit()
    }
}
