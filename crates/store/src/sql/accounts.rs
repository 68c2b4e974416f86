//! Users of other sources, and the end of a user's time, in SQL.
//!
//! Invariants: a name belongs to one subject at a time, since sessions, policy and revocations go
//! by it; a subject that gets another name loses its sessions, which a revocation by name would not
//! find any more; a user who may not log in keeps the name, which another subject would have
//! otherwise, and be let in by it; a user whose time is over is revoked once for each such end, by
//! whichever process looks first.

use vpnd_config::user_name;
use vpnd_proto::session::DeviceId;

use super::columns::bytes;
use super::users::{self, StoreResult};
use super::{
    Connection, Optional as _, Result, Row, Transaction, digest, events, fixed_addresses, known_devices,
    params, sessions, wireguard,
};
use crate::{
    ExternalUser, LOCAL, LiveUser, MAX_FIELD_BYTES, MAX_GROUPS, NewUser, RevocationCause, StoreError,
    TotpSecret, User, UserChange, UserId, UserImport,
};

pub(crate) fn update_external(t: &Transaction<'_>, user: &ExternalUser, now_s: u64) -> StoreResult<User> {
    if by_subject(t, &user.source, &user.subject)?.is_none() {
        return Ok(Err(StoreError::NoSuchUser { name: user.name.clone() }));
    }
    refresh_external(t, user, now_s)
}

pub(crate) fn refresh_external(t: &Transaction<'_>, user: &ExternalUser, now_s: u64) -> StoreResult<User> {
    if let Err(detail) = check(user) {
        return Ok(Err(StoreError::Unusable { name: user.name.clone(), detail }));
    }
    let mut known = by_subject(t, &user.source, &user.subject)?;
    // A user whom an administrator has named before the first login.
    let expected = ExternalUser::expected(&user.source, &user.name).subject;
    if known.is_none()
        && let Some((id, name)) = by_subject(t, &user.source, &expected)?
    {
        t.execute("UPDATE users SET subject = ? WHERE id = ?", params![user.subject, id.0])?;
        known = Some((id, name));
    }
    if let Some((owner, name)) = users::bearer(t, &user.name)?
        && known.as_ref().is_none_or(|(id, _)| *id != owner)
    {
        let sql = "SELECT source, subject FROM users WHERE id = ?";
        let owner = t.query_row(sql, [owner.0], |row| {
            Ok(format!("'{}' of the source '{}'", row.get::<_, String>(1)?, row.get::<_, String>(0)?))
        })?;
        return Ok(Err(StoreError::NameTaken { name, owner }));
    }
    let id = match known {
        None => {
            if let Some(other) = other_spelling(t, user)? {
                let detail = format!("it is another spelling of '{other}', who has a record already");
                return Ok(Err(StoreError::Unusable { name: user.name.clone(), detail }));
            }
            let id = insert(t, user, now_s)?;
            users::add_groups(t, id, &user.groups)?;
            id
        }
        Some((id, name)) => {
            let name = if name != user.name && may_log_in(t, id, now_s)? {
                t.execute("UPDATE users SET name = ? WHERE id = ?", params![user.name, id.0])?;
                users::revoke(t, id, &name, RevocationCause::Renamed, now_s)?;
                &user.name
            } else {
                &name
            };
            users::set_groups(t, id, name, &user.groups, now_s)?;
            id
        }
    };
    digest::renew(t, id)?;
    let stored = users::by_id(t, id)?;
    Ok(stored.ok_or_else(|| StoreError::NoSuchUser { name: user.name.clone() }))
}

/// A user whose name is another spelling of this one's. It matters where the source knows its
/// users by no more than the name that was typed: a server that ignores accents vouches for each
/// spelling, and nothing that was done to the first user would concern the others.
fn other_spelling(c: &Connection, user: &ExternalUser) -> Result<Option<String>> {
    if user.subject != user.name {
        return Ok(None);
    }
    // All spellings but one have letters beyond ASCII.
    let folded = user_name::folded(&user.name);
    let sql = "SELECT name FROM users WHERE source = ? AND (name = ? OR octet_length(name) > length(name))";
    let others: Vec<String> =
        c.statement(sql).query_all(params![user.source, folded], |row| row.get("name"))?;
    Ok(others.into_iter().find(|other| user_name::folded(other) == folded))
}

fn may_log_in(t: &Transaction<'_>, id: UserId, now_s: u64) -> Result<bool> {
    Ok(users::by_id(t, id)?.is_some_and(|user| user.enabled && !user.has_expired(now_s)))
}

/// The users of this source who have sessions.
pub(crate) fn with_sessions(c: &Connection, source: &str) -> Result<Vec<LiveUser>> {
    let sql =
        "SELECT id, name, subject, EXISTS (SELECT 1 FROM memberships m WHERE m.user_id = u.id) AS has_groups
               FROM users u
               WHERE source = ? AND EXISTS (SELECT 1 FROM sessions s WHERE s.user_id = u.id)";
    let live = |row: &Row<'_>| {
        Ok(LiveUser {
            id: UserId(bytes(row, "id")?),
            name: row.get("name")?,
            subject: row.get("subject")?,
            has_groups: row.get("has_groups")?,
        })
    };
    c.statement(sql).query_all([source], live)
}

pub(crate) fn modify(t: &Transaction<'_>, name: &str, change: &UserChange, now_s: u64) -> StoreResult<()> {
    let Some(id) = users::id_of(t, name)? else { return users::no_such_user(name) };
    if let Some(groups) = &change.groups {
        if let Err(error) = users::local(t, id, name)? {
            return Ok(Err(error));
        }
        users::set_groups(t, id, name, groups, now_s)?;
    }
    if let Some(totp) = &change.totp {
        let secret = totp.as_ref().map(TotpSecret::expose);
        t.execute("UPDATE users SET totp_secret = ?, totp_step = 0 WHERE id = ?", params![secret, id.0])?;
    }
    if let Some(expires_s) = change.expires_s {
        t.execute("UPDATE users SET expires_s = ?, lapsed = 0 WHERE id = ?", params![expires_s, id.0])?;
    }
    if let Some(sponsor) = &change.sponsor {
        t.execute("UPDATE users SET sponsor = ? WHERE id = ?", params![sponsor, id.0])?;
    }
    if let Some(note) = &change.note {
        t.execute("UPDATE users SET note = ? WHERE id = ?", params![note, id.0])?;
    }
    if let Some(addresses) = &change.addresses
        && let Err(error) = fixed_addresses::set(t, id, name, addresses, now_s)?
    {
        return Ok(Err(error));
    }
    digest::renew(t, id)?;
    Ok(Ok(()))
}

pub(crate) fn import(t: &Transaction<'_>, all: &[UserImport], now_s: u64) -> StoreResult<()> {
    for user in all {
        let done = if user.exists { update(t, user, now_s)? } else { add(t, user, now_s)? };
        if done.is_err() {
            return Ok(done);
        }
    }
    Ok(Ok(()))
}

fn add(t: &Transaction<'_>, user: &UserImport, now_s: u64) -> StoreResult<()> {
    let Some(password) = user.password.clone() else {
        let detail = "a new user needs a password".to_owned();
        return Ok(Err(StoreError::Unusable { name: user.name.clone(), detail }));
    };
    let UserChange { expires_s, sponsor, note, groups, totp, addresses } = user.change.clone();
    let new = NewUser {
        totp: totp.flatten(),
        groups: groups.unwrap_or_default(),
        expires_s: expires_s.flatten(),
        sponsor: sponsor.flatten(),
        note: note.unwrap_or_default(),
        ..NewUser::new(&user.name, password)
    };
    let added = users::add(t, &new, now_s)?.map(drop);
    if added.is_ok() && addresses.is_some() {
        let change = UserChange { addresses, ..UserChange::default() };
        if let Err(error) = modify(t, &user.name, &change, now_s)? {
            return Ok(Err(error));
        }
    }
    if added.is_ok() && user.enabled == Some(false) {
        return users::set_enabled(t, &user.name, false, now_s);
    }
    Ok(added)
}

fn update(t: &Transaction<'_>, user: &UserImport, now_s: u64) -> StoreResult<()> {
    let changed = modify(t, &user.name, &user.change, now_s)?;
    if changed.is_err() {
        return Ok(changed);
    }
    let now = users::by_name(t, &user.name)?;
    if let Some(password) = user.password.as_ref().filter(|new| {
        // An unchanged hash is no new password, so it ends no session.
        now.as_ref().is_none_or(|now| now.password.as_ref() != Some(new))
    }) {
        let set = users::set_password(t, &user.name, password, now_s)?;
        if set.is_err() {
            return Ok(set);
        }
    }
    match user.enabled {
        Some(enabled) if now.is_none_or(|now| now.enabled != enabled) => {
            users::set_enabled(t, &user.name, enabled, now_s)
        }
        _ => Ok(Ok(())),
    }
}

pub(crate) fn remove_device(
    t: &Transaction<'_>,
    name: &str,
    device: DeviceId,
    now_s: u64,
) -> StoreResult<bool> {
    let Some(id) = users::id_of(t, name)? else { return users::no_such_user(name) };
    let is_known =
        wireguard::remove(t, id, device)? || sessions::devices(t, id)?.iter().any(|known| known.id == device);
    if !is_known {
        return Ok(Ok(false));
    }
    fixed_addresses::remove_device(t, id, device)?;
    known_devices::remove(t, id, device)?;
    end_device(t, id, name, device, RevocationCause::Device, now_s)?;
    Ok(Ok(true))
}

/// Forgets a device: its sessions end.
pub(crate) fn end_device(
    t: &Transaction<'_>,
    id: UserId,
    name: &str,
    device: DeviceId,
    cause: RevocationCause,
    now_s: u64,
) -> Result<()> {
    t.execute("UPDATE users SET generation = generation + 1 WHERE id = ?", [id.0])?;
    sessions::remove_device(t, id, device)?;
    events::add_revocation(t, id, name, cause, Some(device), now_s)?;
    digest::renew(t, id)
}

/// Users whose time has ended, or goes on again, since that was looked at last: a clock can be set
/// back.
pub(crate) const DUE: &str = "SELECT id, name, 1 AS over FROM users WHERE lapsed = 0 AND expires_s <= ?1
     UNION ALL SELECT id, name, 0 AS over FROM users WHERE lapsed = 1 AND expires_s > ?1";

/// See [`DUE`]; whether each one's time has ended.
pub(crate) fn due(c: &Connection, now_s: u64) -> Result<Vec<(UserId, String, bool)>> {
    c.statement(DUE)
        .query_all([now_s], |row| Ok((UserId(bytes(row, "id")?), row.get("name")?, row.get("over")?)))
}

pub(crate) fn end_expired(t: &Transaction<'_>, now_s: u64) -> Result<usize> {
    let mut ended = 0;
    for (id, name, over) in due(t, now_s)? {
        t.execute("UPDATE users SET lapsed = ? WHERE id = ?", params![over, id.0])?;
        if over {
            users::revoke(t, id, &name, RevocationCause::Expired, now_s)?;
            ended += 1;
        }
        digest::renew(t, id)?;
    }
    Ok(ended)
}

fn insert(t: &Transaction<'_>, user: &ExternalUser, now_s: u64) -> Result<UserId> {
    let id = UserId(rand::random());
    let sql = "INSERT INTO users (id, name, source, subject, password, enabled, created_s)
               VALUES (?, ?, ?, ?, '', 1, ?)";
    t.execute(sql, params![id.0, user.name, user.source, user.subject, now_s])?;
    Ok(id)
}

pub(crate) fn by_subject(c: &Connection, source: &str, subject: &str) -> Result<Option<(UserId, String)>> {
    c.statement("SELECT id, name FROM users WHERE source = ? AND subject = ?")
        .query_row([source, subject], |row| Ok((UserId(bytes(row, "id")?), row.get("name")?)))
        .optional()
}

/// A source may be wrong or hostile, so what it says of a user has bounds.
fn check(user: &ExternalUser) -> Result<(), String> {
    if user.source == LOCAL || !is_field(&user.source) {
        return Err(format!("{:?} is not the name of another source", user.source));
    }
    if !is_field(&user.subject) {
        return Err(format!(
            "its source has a subject that is empty, too long, or has control characters: {:?}",
            user.subject
        ));
    }
    if user_name::canonical(&user.name).as_ref() != Some(&user.name) {
        return Err("the name is not in its canonical form".to_owned());
    }
    if user.groups.len() > MAX_GROUPS {
        return Err(format!(
            "it is in {} groups, and {MAX_GROUPS} are the most; pass on fewer",
            user.groups.len()
        ));
    }
    match user.groups.iter().find(|group| !is_field(group)) {
        Some(group) => {
            Err(format!("the name of a group is empty, too long, or has control characters: {group:?}"))
        }
        None => Ok(()),
    }
}

fn is_field(text: &str) -> bool {
    (1..=MAX_FIELD_BYTES).contains(&text.len()) && !text.chars().any(char::is_control)
}
