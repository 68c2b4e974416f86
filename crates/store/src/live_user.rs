//! A user of another source who has sessions.

use super::{User, UserId};

/// The data with which the source is asked about such a user again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveUser {
    pub id: UserId,
    pub name: String,
    pub subject: String,
    /// Whether the user was in any group when the source showed the user last.
    pub has_groups: bool,
}

impl LiveUser {
    /// Returns these data of a user.
    #[must_use]
    pub fn of(user: &User) -> Self {
        Self {
            id: user.id,
            name: user.name.clone(),
            subject: user.subject.clone(),
            has_groups: !user.groups.is_empty(),
        }
    }
}
