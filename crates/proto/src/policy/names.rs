//! Names of users, groups and access profiles as numbers, so that no packet is compared by text.

use std::collections::HashMap;

/// A user's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UserId(u32);

/// A group's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupId(u32);

/// An access profile's number. It is the same name's for as long as the process lives, and never
/// another's: so a principal that was made under earlier settings can't come under the rules of a
/// profile that it was never in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileId(u32);

impl ProfileId {
    /// The one profile of a gateway whose configuration has none.
    pub const IMPLIED: Self = Self(0);
    /// For sessions of devices that reach nothing but the pages on which they are renewed. They are
    /// none of the sessions that their user may have.
    pub const WALLED: Self = Self(1);
    /// No policy has rules for it, so nothing passes.
    pub const NONE: Self = Self(u32::MAX);

    #[inline]
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Numbers for names, which rules and the principals that they are compared with have in common. It
/// grows with the users and groups that log in, until the rules are compiled again and all
/// principals are made with them ([`Names::renewed`]).
#[derive(Debug, Default)]
pub struct Names {
    users: HashMap<String, u32>,
    groups: HashMap<String, u32>,
    profiles: HashMap<String, u32>,
}

impl Names {
    /// No names yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// For rules and principals that replace all. Access profiles keep their numbers.
    #[must_use]
    pub fn renewed(&self) -> Self {
        Self { profiles: self.profiles.clone(), ..Self::default() }
    }

    /// The principal of a session of `user`, a member of `groups`, in the implied access profile.
    pub fn principal<'a>(&mut self, user: &str, groups: impl IntoIterator<Item = &'a str>) -> Principal {
        let groups = groups.into_iter().map(|group| self.group(group)).collect();
        Principal { user: Some(self.user(user)), groups, profile: ProfileId::IMPLIED }
    }

    /// The number of the access profile with this name.
    pub fn profile(&mut self, name: &str) -> ProfileId {
        ProfileId(number(&mut self.profiles, name) + 2)
    }

    pub(super) fn user(&mut self, name: &str) -> UserId {
        UserId(number(&mut self.users, name))
    }

    /// A group's number: in directories, names of groups have no case.
    pub(super) fn group(&mut self, name: &str) -> GroupId {
        GroupId(number(&mut self.groups, &name.to_lowercase()))
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

/// A session's user, groups and access profile, as policy compares them. The default is a client of
/// no user and no group in the implied profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Principal {
    user: Option<UserId>,
    groups: Box<[GroupId]>,
    profile: ProfileId,
}

impl Principal {
    /// Returns the same user and groups in another access profile.
    #[must_use]
    pub fn in_profile(self, profile: ProfileId) -> Self {
        Self { profile, ..self }
    }

    /// Its access profile.
    #[inline]
    #[must_use]
    pub fn profile(&self) -> ProfileId {
        self.profile
    }

    #[inline]
    pub(super) fn is_user(&self, user: UserId) -> bool {
        self.user == Some(user)
    }

    #[inline]
    pub(super) fn is_member(&self, group: GroupId) -> bool {
        self.groups.contains(&group)
    }
}
