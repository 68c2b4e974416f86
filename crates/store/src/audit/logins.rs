//! The logins of one user, and why the user is disabled, for those who help users.

use super::query::{Cursor, Range, Record};
use super::{AuditError, AuditFile};

/// Logins of a user on record, as parts of an export are added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logins {
    pub last_s: Option<u64>,
    /// The newest first, [`Logins::SHOWN`] at most.
    pub refused: Vec<Record>,
    /// How the user was disabled, unless the user was enabled since.
    pub disabled: Option<Record>,
}

impl Logins {
    /// How far back logins are looked at, seconds.
    pub const LOOK_BACK_S: u64 = 30 * 86_400;
    /// Refused logins that are kept.
    pub const SHOWN: usize = 10;

    /// Range in which a user's logins are looked at.
    #[must_use]
    pub fn range(user: &str, now_s: u64) -> Range {
        let from_s = now_s.saturating_sub(Self::LOOK_BACK_S);
        Range { from_s, to_s: now_s, user: Some(user.to_owned()) }
    }

    pub fn add(&mut self, records: Vec<Record>) {
        for record in records {
            match record.kind.as_str() {
                "login" => self.last_s = self.last_s.max(Some(record.at_s)),
                "login-refused" => self.refused.push(record),
                "user-disabled" => self.disabled = Some(record),
                "user-enabled" | "user-removed" => self.disabled = None,
                _ => {}
            }
        }
        self.refused.sort_by_key(|record| std::cmp::Reverse(record.at_s));
        self.refused.truncate(Self::SHOWN);
    }
}

impl AuditFile {
    /// The user's logins of the last [`Logins::LOOK_BACK_S`] seconds.
    pub fn logins(&self, user: &str, now_s: u64) -> Result<Logins, AuditError> {
        let (range, mut logins) = (Logins::range(user, now_s), Logins::default());
        let mut cursor = Some(Cursor::ENTRIES);
        while let Some(here) = cursor {
            let (records, next) = self.export(&range, here)?;
            logins.add(records);
            cursor = next;
        }
        Ok(logins)
    }
}
