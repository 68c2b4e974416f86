//! A `[[source]]` that is a directory.
//!
//! INVARIANT: a filter that searches for users has a place for the name.

use std::path::{Path, PathBuf};

use super::recheck::{self, Recheck};
use super::{SecretPlace, Word, secret};
use crate::document::{Log as Problems, Section};
use crate::ldap_filter::{Filter, NameTemplate};

const FILTER: &str = "a filter such as \"(&(objectClass=person)(uid={user}))\"";

/// How a directory is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ldap {
    /// PEM file with the CA of the servers' certificates; `None` takes the system's.
    pub ca: Option<PathBuf>,
    pub bind: Bind,
    /// Where users are searched for.
    pub base: String,
    pub filter: Filter,
    /// The attribute that never changes and is never given to another user.
    pub subject: String,
    /// The attribute of a user's entry that names the groups.
    pub group_attribute: String,
    pub group_search: Option<GroupSearch>,
    /// `None` if users are asked about at their logins alone.
    pub recheck: Option<Recheck>,
}

/// The rights of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// An account of the gateway.
    Service { dn: String, password: SecretPlace },
    /// The user's own: the name of the entry follows from the user's.
    User(NameTemplate),
}

/// A search for the groups of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSearch {
    pub base: String,
    pub filter: Filter,
    /// The attribute with a group's name.
    pub name: String,
    /// Whether the groups that contain a group that was found count, too.
    pub is_nested: bool,
}

/// Reads the keys of a directory.
pub(super) fn read(s: &mut Section<'_>, p: &mut Problems, base: &Path) -> Option<Ldap> {
    let ca = crate::read::path(s, p, "ca", base);
    let user_dn =
        s.parsed::<NameTemplate>(p, "user_dn", "an entry's name such as \"uid={user},ou=people,dc=example\"");
    let dn = s.text(p, "bind_dn");
    let password = secret(s, p, "bind_password_file", base);
    let bind = match (user_dn, dn, password) {
        (Some(template), None, None) => Some(Bind::User(template)),
        (None, Some(dn), Some(password)) if !dn.is_empty() => Some(Bind::Service { dn, password }),
        _ => {
            let hint = "write bind_dn and bind_password_file, the account that searches for users; or user_dn alone, \
                        such as \"uid={user},ou=people,dc=example\", if each user may read the own entry";
            s.missing(p, "bind_dn", hint);
            None
        }
    };
    let search_base = s.text(p, "base");
    let is_direct = matches!(bind, Some(Bind::User(_)));
    if search_base.is_none() && !is_direct {
        s.missing(p, "base", "write base = \"ou=people,dc=uni,dc=example\", where users are searched for");
    }
    let filter = s.parsed::<Filter>(p, "filter", FILTER);
    if !is_direct && filter.as_ref().is_some_and(|filter| !filter.has_user()) {
        s.problem(p, "filter", "'filter' needs the placeholder {user}, or it finds another user".to_owned());
    }
    let filter = filter.or_else(|| if is_direct { "(objectClass=*)" } else { "(uid={user})" }.parse().ok());
    let subject = s.parsed::<Word>(p, "subject", "an attribute such as \"entryUUID\"");
    let group_attribute = s.parsed::<Word>(p, "group_attribute", "an attribute such as \"memberOf\"");
    let recheck = recheck::read(s, p, is_direct);
    let group_search = group_search(s, p);
    Some(Ldap {
        ca,
        bind: bind?,
        base: search_base.unwrap_or_default(),
        filter: filter?,
        subject: subject.map_or_else(|| "entryUUID".to_owned(), |word| word.0),
        group_attribute: group_attribute.map_or_else(|| "memberOf".to_owned(), |word| word.0),
        group_search,
        recheck,
    })
}

fn group_search(s: &mut Section<'_>, p: &mut Problems) -> Option<GroupSearch> {
    let base = s.text(p, "group_base");
    let filter = s.parsed::<Filter>(p, "group_filter", "a filter such as \"(member={dn})\"");
    let name = s.parsed::<Word>(p, "group_name", "an attribute such as \"cn\"");
    let filter = filter.or_else(|| "(member={dn})".parse().ok());
    let is_nested = s.flag(p, "nested_groups", false);
    if is_nested && filter.as_ref().is_some_and(|filter| !filter.has_dn()) {
        let reason =
            "'group_filter' needs the place {dn}, or it finds no group that contains another".to_owned();
        s.problem(p, "nested_groups", reason);
    }
    if base.is_none() && (is_nested || s.has("group_filter") || s.has("group_name")) {
        s.missing(
            p,
            "group_base",
            "write group_base = \"ou=groups,dc=uni,dc=example\", where groups are searched for",
        );
    }
    Some(GroupSearch {
        base: base?,
        filter: filter?,
        name: name.map_or_else(|| "cn".to_owned(), |word| word.0),
        is_nested,
    })
}
