//! The groups of a user: those that the entry names, those that a search finds, and the groups that
//! these are members of.
//!
//! INVARIANT: no more groups are kept than a user may have, each is asked about once, and they are
//! followed [`MAX_LEVELS`] levels up at most, whatever the directory says. A user of more groups is
//! refused, never let in with a part of them.

use std::collections::{BTreeMap, BTreeSet};

use super::connection::Connection;
use super::message::{Entry, SIZE_LIMIT_EXCEEDED, SUCCESS, Scope};
use super::{Directory, group_name, is_entry_name, run};
use crate::servers::ServerError;
use vpnd_config::source::{GroupSearch, Source};
use vpnd_ipc::gateway::idp::{GroupName, SourceRefusal};

/// Levels of groups above those that the user is a member of.
pub(super) const MAX_LEVELS: usize = 10;
/// Groups that one search asks about, which keeps requests short.
const ASKED_AT_ONCE: usize = 50;

/// The groups that were found.
pub(super) struct Groups {
    /// With the level of each: 0 if the user is a member itself.
    names: BTreeMap<GroupName, usize>,
    /// Names of their entries, in small letters.
    entries: BTreeSet<String>,
    /// Names of entries that have not been asked about.
    new: Vec<String>,
    limit: usize,
}

impl Groups {
    const fn new(limit: usize) -> Self {
        Self { names: BTreeMap::new(), entries: BTreeSet::new(), new: Vec::new(), limit }
    }

    pub(super) fn into_names(self) -> Vec<GroupName> {
        self.names.into_keys().collect()
    }

    /// The names, and whether the user is in the group through another one.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, bool)> {
        self.names.iter().map(|(name, level)| (&**name, *level > 0))
    }

    /// Adds groups that `values` name. False as soon as there are too many. A name that is too long
    /// is none.
    fn add<'v>(&mut self, level: usize, values: impl Iterator<Item = &'v [u8]>) -> bool {
        values.filter_map(|value| GroupName::new(group_name(value)?).ok()).all(|name| {
            self.names.entry(name).or_insert(level);
            self.names.len() <= self.limit
        })
    }

    /// Notes entries of groups, to be asked about. False as soon as there are too many.
    fn note<'v>(&mut self, mut entries: impl Iterator<Item = &'v str>) -> bool {
        entries.all(|entry| {
            if self.entries.insert(entry.to_lowercase()) {
                self.new.push(entry.to_owned());
            }
            self.entries.len() <= self.limit
        })
    }
}

impl Directory {
    /// The user's groups.
    pub(super) async fn groups(
        &self,
        connection: &mut Connection,
        source: &Source,
        entry: &Entry,
        user: &str,
    ) -> Result<Result<Groups, SourceRefusal>, ServerError> {
        let attribute = &self.settings.group_attribute;
        let mut groups = Groups::new(source.max_groups);
        let base = self.settings.group_search.as_ref().map(|search| search.base.as_str());
        let counted = || entry.values(attribute).filter(|value| counts(value, base));
        if entry.is_cut(attribute) || !groups.add(0, counted()) {
            return Ok(Err(SourceRefusal::TooManyGroups));
        }
        let Some(search) = &self.settings.group_search else { return Ok(Ok(groups)) };
        let named = counted().filter_map(|value| str::from_utf8(value).ok());
        if search.is_nested && !groups.note(named.filter(|value| value.contains('='))) {
            return Ok(Err(SourceRefusal::TooManyGroups));
        }
        let mut members = vec![entry.dn.clone()];
        for level in 0..=MAX_LEVELS {
            for members in members.chunks(ASKED_AT_ONCE) {
                let filter = search.filter.encode_any(user, members);
                if !add_found(connection, source, search, &filter, level, &mut groups).await? {
                    return Ok(Err(SourceRefusal::TooManyGroups));
                }
            }
            members = std::mem::take(&mut groups.new);
            if members.is_empty() {
                return Ok(Ok(groups));
            }
        }
        Ok(Err(SourceRefusal::TooManyGroups))
    }
}

/// Whether a value of the user's entry is one of our groups: elsewhere in the directory anybody may
/// be allowed to make a group of the same first name.
fn counts(value: &[u8], base: Option<&str>) -> bool {
    let Some(base) = base.filter(|base| !base.trim().is_empty()) else { return true };
    let text = String::from_utf8_lossy(value);
    !is_entry_name(&text) || parts(&text).ends_with(&parts(base))
}

/// The parts of an entry's name (RFC 4514), without case and without spaces around them.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = name.chars();
    while let Some(char) = chars.next() {
        let part = parts.last_mut().expect("there is always one");
        match char {
            ',' | ';' => parts.push(String::new()),
            '\\' => part.extend([Some(char), chars.next()].into_iter().flatten()),
            _ => part.push(char),
        }
    }
    let plain = |part: &String| part.split('=').map(str::trim).collect::<Vec<_>>().join("=").to_lowercase();
    parts.iter().map(plain).collect()
}

/// Adds the groups that a search finds. False if there are too many.
async fn add_found(
    connection: &mut Connection,
    source: &Source,
    search: &GroupSearch,
    filter: &[u8],
    level: usize,
    groups: &mut Groups,
) -> Result<bool, ServerError> {
    let scope = (search.base.as_str(), Scope::Subtree, source.max_groups as u32 + 1);
    let found = run(connection, source, scope, filter, &[&search.name]).await?;
    match found.code {
        SUCCESS => {}
        SIZE_LIMIT_EXCEEDED => return Ok(false),
        code => return Err(ServerError::Answer(format!("the search for groups failed ({code})"))),
    }
    let names = found.entries.iter().flat_map(|entry| entry.values(&search.name));
    let entries = found.entries.iter().map(|entry| entry.dn.as_str()).filter(|_| search.is_nested);
    Ok(groups.add(level, names) && groups.note(entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_outside_the_base_does_not_count() {
        let base = Some("ou=Groups, dc=uni,dc=example");
        for name in
            ["cn=staff,ou=groups,dc=uni,dc=example", "CN=a\\, b , OU = groups,DC=uni, dc=Example", "staff"]
        {
            assert!(counts(name.as_bytes(), base), "{name}");
        }
        let outside = [
            "cn=staff,ou=clubs,dc=uni,dc=example",
            "cn=staff\\,ou=groups,dc=uni,dc=example",
            "cn=staff,xou=groups,dc=uni,dc=example",
            "cn=staff,ou=groups,dc=uni,dc=example,dc=com",
        ];
        for name in outside {
            assert!(!counts(name.as_bytes(), base) && counts(name.as_bytes(), None), "{name}");
        }
    }

    #[test]
    fn no_more_groups_are_kept_or_asked_about_than_a_user_may_have() {
        let names: Vec<String> = (0..100_000).map(|number| format!("group{number}")).collect();
        let mut groups = Groups::new(100);
        let twice = || names[..100].iter().chain(&names[..100]);
        assert!(groups.add(0, twice().map(String::as_bytes)) && groups.note(twice().map(String::as_str)));
        let mut groups = Groups::new(100);
        assert!(!groups.add(0, names.iter().map(String::as_bytes)));
        assert!(!groups.note(names.iter().map(String::as_str)));
        assert_eq!((groups.names.len(), groups.entries.len(), groups.new.len()), (101, 101, 101));
    }
}
