//! Names of users and groups as small numbers, so that no packet is compared by text.

use std::collections::HashMap;

/// A user's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UserId(u32);

/// A group's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupId(u32);

/// Numbers for names. One lives as long as the process, so that numbers in a session's principal stay good when the
/// rules are compiled anew. It grows with the users and groups that exist.
#[derive(Debug, Default)]
pub struct Names {
    users: HashMap<String, u32>,
    groups: HashMap<String, u32>,
}

impl Names {
    /// No names yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The principal of a session of `user`, a member of `groups`.
    pub fn principal<'a>(&mut self, user: &str, groups: impl IntoIterator<Item = &'a str>) -> Principal {
        let groups = groups.into_iter().map(|group| self.group(group)).collect();
        Principal { user: Some(self.user(user)), groups }
    }

    pub(super) fn user(&mut self, name: &str) -> UserId {
        UserId(number(&mut self.users, name))
    }

    pub(super) fn group(&mut self, name: &str) -> GroupId {
        GroupId(number(&mut self.groups, name))
    }
}

fn number(names: &mut HashMap<String, u32>, name: &str) -> u32 {
    if let Some(number) = names.get(name) {
        return *number;
    }
    let number = u32::try_from(names.len()).expect("four billion names do not fit in memory");
    names.insert(name.to_owned(), number);
    number
}

/// A session's user and groups, as policy compares them. The default is a client of no user and no group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Principal {
    user: Option<UserId>,
    groups: Box<[GroupId]>,
}

impl Principal {
    #[inline]
    pub(super) fn is_user(&self, user: UserId) -> bool {
        self.user == Some(user)
    }

    #[inline]
    pub(super) fn is_member(&self, group: GroupId) -> bool {
        self.groups.contains(&group)
    }
}
