//! A user of another source who has sessions.

use super::UserId;

/// What it takes to ask the source about such a user again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveUser {
    pub id: UserId,
    pub name: String,
    pub subject: String,
}
