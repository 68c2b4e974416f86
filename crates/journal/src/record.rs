//! The lines of a journal: a checksum, a space, and one record in JSON.
//!
//! A last line that is cut short or fails its checksum was being written when the process died; its
//! change was not made yet, so it does not count. Any other bad line is damage, which is counted
//! and stepped over.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Owner;
use vpnd_sys::change::Change;

/// Characters of the checksum: 8 bytes of SHA-256 in hexadecimal. It guards against damage, not
/// forgery: against that stands the directory ([`super::JournalDirectory`]).
const CHECKSUM_LEN: usize = 16;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// The first line: whose journal it is.
    Start(Owner),
    /// A change that is about to be made; in place of one with the same number, if there is one.
    Change {
        /// Its number in this journal.
        id: u64,
        change: Change,
    },
    /// A change that is undone, or was never made.
    Done {
        /// Its number in this journal.
        id: u64,
    },
}

#[derive(Debug, Default)]
pub struct Contents {
    /// The owner, if the first line names one.
    pub owner: Option<Owner>,
    /// Changes that may be in force, in the order they were made.
    pub changes: Vec<Change>,
    /// Lines that can't be read, but for a torn last one.
    pub damaged_lines: usize,
}

impl Record {
    /// The line with its checksum and end.
    pub(crate) fn to_line(&self) -> String {
        let json = serde_json::to_string(self).expect("records have string keys only and always serialise");
        format!("{} {json}\n", checksum(json.as_bytes()))
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let (sum, rest) = line.split_at_checked(CHECKSUM_LEN)?;
        let json = rest.strip_prefix(b" ")?;
        if sum != checksum(json).as_bytes() {
            return None;
        }
        serde_json::from_slice(json).ok()
    }
}

/// Reads a journal as far as it can be read.
pub fn parse(bytes: &[u8]) -> Contents {
    let mut contents = Contents::default();
    let mut active: Vec<(u64, Change)> = Vec::new();
    let mut lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).peekable();
    let mut is_first = true;
    while let Some(line) = lines.next() {
        match Record::parse(line) {
            Some(Record::Start(owner)) if is_first => contents.owner = Some(owner),
            Some(Record::Start(_)) => contents.damaged_lines += 1,
            Some(Record::Change { id, change }) => match active.iter_mut().find(|(other, _)| *other == id) {
                Some((_, replaced)) => *replaced = change,
                None => active.push((id, change)),
            },
            Some(Record::Done { id }) => active.retain(|(other, _)| *other != id),
            None if lines.peek().is_none() => {}
            None => contents.damaged_lines += 1,
        }
        is_first = false;
    }
    contents.changes = active.into_iter().map(|(_, change)| change).collect();
    contents
}

pub fn checksum(json: &[u8]) -> String {
    let digest = Sha256::digest(json);
    digest.iter().take(CHECKSUM_LEN / 2).fold(String::new(), |mut hex, byte| {
        // Writing to a string can't fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn link(n: usize) -> Change {
        Change::LinkUp { interface: format!("vp{n}") }
    }

    fn journal(changes: usize) -> String {
        let start = Record::Start(Owner::this_process().unwrap()).to_line();
        let lines = (0..changes).map(|n| Record::Change { id: n as u64, change: link(n) }.to_line());
        start + &lines.collect::<String>()
    }

    #[test]
    fn a_journal_reads_as_written() {
        let text = journal(3) + &Record::Done { id: 1 }.to_line();
        let contents = parse(text.as_bytes());
        assert_eq!(contents.owner, Some(Owner::this_process().unwrap()));
        assert_eq!(contents.changes, [link(0), link(2)]);
        assert_eq!(contents.damaged_lines, 0);
    }

    #[test]
    fn changes_of_earlier_versions_are_read() {
        for change in [
            r#"{"address":{"interface":"vp0","address":"10.8.0.2/32"}}"#,
            r#"{"dns":{"resolved":{"interface":"vp0","servers":["10.8.0.1"],"search":[],"all_names":true}}}"#,
        ] {
            let json = format!(r#"{{"change":{{"id":0,"change":{change}}}}}"#);
            let line = format!("{} {json}", checksum(json.as_bytes()));
            assert!(Record::parse(line.as_bytes()).is_some(), "{json}");
        }
    }

    #[test]
    fn a_torn_last_line_does_not_count() {
        let text = journal(3);
        let last = text.trim_end().rfind('\n').unwrap() + 1;
        for len in last..text.len() - 1 {
            let contents = parse(&text.as_bytes()[..len]);
            assert_eq!(contents.changes, [link(0), link(1)], "cut at {len}");
            assert_eq!(contents.damaged_lines, 0);
        }
        assert_eq!(parse(&text.as_bytes()[..text.len() - 1]).changes.len(), 3, "only its end is missing");
    }

    #[test]
    fn a_damaged_line_costs_itself_only() {
        let text = journal(4);
        let mut bytes = text.into_bytes();
        let second = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        bytes[second + CHECKSUM_LEN + 5] ^= 1;
        let contents = parse(&bytes);
        assert_eq!(contents.changes, [link(1), link(2), link(3)]);
        assert_eq!(contents.damaged_lines, 1);
    }

    proptest! {
        #[test]
        fn nothing_makes_the_reader_fail(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            parse(&bytes);
        }

        #[test]
        fn no_single_flipped_bit_adds_or_changes_a_record(position: prop::sample::Index, bit in 0..8u8) {
            let text = journal(3);
            let mut bytes = text.into_bytes();
            let position = position.index(bytes.len());
            bytes[position] ^= 1u8 << bit;
            let original: Vec<_> = (0..3).map(link).collect();
            prop_assert!(parse(&bytes).changes.iter().all(|change| original.contains(change)));
        }
    }
}
