//! Users, their groups, certificates and known sources, in SQL.
//!
//! Invariants: whatever takes rights away writes a revocation and drops the user's sessions in the
//! same transaction; whatever changes a user renews its digest there too.

use super::columns::bytes;
use super::{Connection, Optional as _, Result, Row, Transaction, digest, events, fixed_addresses, params};
use crate::{
    CertificateHash, LOCAL, ListedUser, MAX_SOURCES_PER_USER, NewUser, PasswordHash, RevocationCause,
    StoreError, TotpSecret, User, UserId, UserPage,
};

const COLUMNS: &str = "id, name, source, subject, password, enabled, generation, totp_secret, created_s, \
                       expires_s, sponsor, note";

/// Users in memory at a time while they are looked through.
const FIND_BATCH: usize = 200;

pub(crate) type StoreResult<T> = Result<Result<T, StoreError>>;

pub(crate) fn add(t: &Transaction<'_>, user: &NewUser, now_s: u64) -> StoreResult<UserId> {
    if let Some((_, name)) = bearer(t, &user.name)? {
        return Ok(Err(StoreError::UserExists { name }));
    }
    let id = UserId(rand::random());
    let sql = "INSERT INTO users
                   (id, name, source, subject, password, enabled, totp_secret, created_s, expires_s, sponsor, note)
               VALUES (?1, ?2, ?3, ?2, ?4, 1, ?5, ?6, ?7, ?8, ?9)";
    t.statement(sql).execute(params![
        id.0,
        user.name,
        LOCAL,
        user.password.expose(),
        user.totp.as_ref().map(TotpSecret::expose),
        now_s,
        user.expires_s,
        user.sponsor,
        user.note,
    ])?;
    add_groups(t, id, &user.groups)?;
    if let Some(certificate) = &user.certificate {
        t.execute("INSERT INTO certificates (sha256, user_id) VALUES (?, ?)", params![certificate, id.0])?;
    }
    digest::renew(t, id)?;
    Ok(Ok(id))
}

/// The user with this name, however its letters are written. The time of the answer must not
/// disclose that no user has a name: then the next user in the alphabet is read and checked in the
/// same way.
pub(crate) fn by_name(c: &Connection, name: &str) -> Result<Option<User>> {
    let (column, wanted) = (c.dialect().without_case("name"), c.dialect().without_case("?1"));
    let next = format!("SELECT {COLUMNS} FROM users WHERE {column} >= {wanted} ORDER BY {column} LIMIT 1");
    let next = c.statement(&next);
    let found = match next.query_row([name], from_row).optional()? {
        None => next.query_row([""], from_row).optional()?,
        found => found,
    };
    let Some(found) = found else { return Ok(None) };
    let is_it = found.name.eq_ignore_ascii_case(name);
    let completed = complete(c, found);
    // Damage of another user's record is not this one's.
    if is_it { completed.map(Some) } else { Ok(None) }
}

pub(crate) fn by_id(c: &Connection, id: UserId) -> Result<Option<User>> {
    let sql = format!("SELECT {COLUMNS} FROM users WHERE id = ?");
    let user = c.statement(&sql).query_row([id.0], from_row).optional()?;
    user.map(|user| complete(c, user)).transpose()
}

pub(crate) fn all(c: &Connection) -> Result<Vec<User>> {
    let sql = format!("SELECT {COLUMNS} FROM users ORDER BY name");
    let users: Vec<User> = c.statement(&sql).query_all((), from_row)?;
    users.into_iter().map(|user| complete(c, user)).collect()
}

/// Reads all rows, some at a time, and keeps those of the page alone.
pub(crate) fn find(c: &Connection, part: &str, after: Option<&str>, limit: usize) -> Result<UserPage> {
    let sql = "SELECT name, source, enabled, expires_s FROM users WHERE name > ? ORDER BY name LIMIT ?";
    let statement = c.statement(sql);
    let mut page = UserPage::default();
    // No name is empty.
    let mut after = after.unwrap_or_default().to_owned();
    loop {
        let batch: Vec<ListedUser> = statement.query_all(params![after, FIND_BATCH], |row| {
            Ok(ListedUser {
                name: row.get("name")?,
                source: row.get("source")?,
                enabled: row.get("enabled")?,
                expires_s: row.get("expires_s")?,
            })
        })?;
        let Some(last) = batch.last() else { return Ok(page) };
        after.clone_from(&last.name);
        for user in batch.into_iter().filter(|user| user.name.to_lowercase().contains(part)) {
            if page.users.len() < limit {
                page.users.push(user);
            } else {
                page.more += 1;
            }
        }
    }
}

pub(crate) fn set_enabled(t: &Transaction<'_>, name: &str, enabled: bool, now_s: u64) -> StoreResult<()> {
    let Some(id) = id_of(t, name)? else { return no_such_user(name) };
    t.execute("UPDATE users SET enabled = ? WHERE id = ?", params![enabled, id.0])?;
    if !enabled {
        revoke(t, id, name, RevocationCause::Disabled, now_s)?;
    }
    digest::renew(t, id)?;
    Ok(Ok(()))
}

pub(crate) fn set_password(
    t: &Transaction<'_>,
    name: &str,
    password: &PasswordHash,
    now_s: u64,
) -> StoreResult<()> {
    let Some(id) = id_of(t, name)? else { return no_such_user(name) };
    if let Err(error) = local(t, id, name)? {
        return Ok(Err(error));
    }
    t.execute("UPDATE users SET password = ? WHERE id = ?", params![password.expose(), id.0])?;
    revoke(t, id, name, RevocationCause::Password, now_s)?;
    digest::renew(t, id)?;
    Ok(Ok(()))
}

pub(crate) fn change_own_password(
    t: &Transaction<'_>,
    user: &User,
    password: &PasswordHash,
    now_s: u64,
) -> StoreResult<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM users WHERE id = ? AND generation = ?)";
    if !t.query_row(sql, params![user.id.0, user.generation], |row| row.get::<_, bool>(0))? {
        return Ok(Ok(false));
    }
    Ok(set_password(t, &user.name, password, now_s)?.map(|()| true))
}

pub(crate) fn have_one_time_codes(c: &Connection) -> Result<bool> {
    c.query_row("SELECT EXISTS (SELECT 1 FROM users WHERE totp_secret IS NOT NULL)", (), |row| row.get(0))
}

pub(crate) fn rehash(t: &Transaction<'_>, id: UserId, old: &PasswordHash, new: &PasswordHash) -> Result<()> {
    let sql = "UPDATE users SET password = ? WHERE id = ? AND password = ?";
    t.execute(sql, params![new.expose(), id.0, old.expose()])?;
    digest::renew(t, id)
}

pub(crate) fn remove(t: &Transaction<'_>, name: &str, now_s: u64) -> StoreResult<()> {
    let Some(id) = id_of(t, name)? else { return no_such_user(name) };
    revoke(t, id, name, RevocationCause::Removed, now_s)?;
    t.execute("DELETE FROM users WHERE id = ?", [id.0])?;
    Ok(Ok(()))
}

pub(crate) fn add_certificate(
    t: &Transaction<'_>,
    name: &str,
    certificate: &CertificateHash,
) -> StoreResult<()> {
    let Some(id) = id_of(t, name)? else { return no_such_user(name) };
    t.execute("INSERT INTO certificates (sha256, user_id) VALUES (?, ?)", params![certificate, id.0])?;
    digest::renew(t, id)?;
    Ok(Ok(()))
}

pub(crate) fn revoke_certificates(
    t: &Transaction<'_>,
    name: &str,
    certificates: &[CertificateHash],
    now_s: u64,
) -> StoreResult<()> {
    let Some(id) = id_of(t, name)? else { return no_such_user(name) };
    for certificate in certificates {
        // Only one of this user's: the others are worth nothing to them.
        let sql = "INSERT INTO revoked_certificates (sha256, user_id, at_s)
                   SELECT sha256, user_id, ?3 FROM certificates WHERE sha256 = ?1 AND user_id = ?2 ON CONFLICT DO NOTHING";
        t.execute(sql, params![certificate, id.0, now_s])?;
    }
    revoke(t, id, name, RevocationCause::Certificate, now_s)?;
    digest::renew(t, id)?;
    Ok(Ok(()))
}

pub(crate) fn use_totp_step(t: &Transaction<'_>, id: UserId, step: u64) -> Result<bool> {
    let sql = "UPDATE users SET totp_step = ?1 WHERE id = ?2 AND totp_step < ?1";
    let used = t.execute(sql, params![step, id.0])? == 1;
    if used {
        digest::renew(t, id)?;
    }
    Ok(used)
}

pub(crate) fn knows_source(c: &Connection, id: UserId, source: &str, since_s: u64) -> Result<bool> {
    let sql = "SELECT 1 FROM sources WHERE user_id = ? AND source = ? AND seen_s >= ?";
    c.statement(sql).exists(params![id.0, source, since_s])
}

pub(crate) fn newest_sources(c: &Connection, limit: usize) -> Result<Vec<(String, u64)>> {
    let sql =
        "SELECT source, max(seen_s) AS newest FROM sources GROUP BY source ORDER BY newest DESC LIMIT ?";
    c.statement(sql).query_all([limit], |row| Ok((row.get(0)?, row.get(1)?)))
}

pub(crate) fn remember_source(t: &Transaction<'_>, id: UserId, source: &str, now_s: u64) -> Result<()> {
    t.execute(
        "INSERT INTO sources (user_id, source, seen_s) SELECT id, ?2, ?3 FROM users WHERE id = ?1
         ON CONFLICT (user_id, source) DO UPDATE SET seen_s = excluded.seen_s",
        params![id.0, source, now_s],
    )?;
    t.execute(
        "DELETE FROM sources WHERE user_id = ?1 AND source NOT IN
         (SELECT source FROM sources WHERE user_id = ?1 ORDER BY seen_s DESC LIMIT ?2)",
        params![id.0, MAX_SOURCES_PER_USER],
    )?;
    Ok(())
}

/// Voids everything the user was granted so far, or sessions of one device, or, when groups change,
/// only logins under way: the sessions that they make would have the groups of before.
pub(crate) fn revoke(
    t: &Transaction<'_>,
    id: UserId,
    name: &str,
    cause: RevocationCause,
    now_s: u64,
) -> Result<()> {
    t.execute("UPDATE users SET generation = generation + 1 WHERE id = ?", [id.0])?;
    if cause != RevocationCause::Groups {
        t.execute("DELETE FROM sessions WHERE user_id = ?", [id.0])?;
    }
    events::add_revocation(t, id, name, cause, None, now_s)
}

/// Refuses a user of another source, whose password and groups are that one's.
pub(crate) fn local(t: &Transaction<'_>, id: UserId, name: &str) -> StoreResult<()> {
    let source: String = t.query_row("SELECT source FROM users WHERE id = ?", [id.0], |row| row.get(0))?;
    let refusal = || StoreError::External { name: name.to_owned(), source_name: source.clone() };
    Ok(if source == LOCAL { Ok(()) } else { Err(refusal()) })
}

/// Puts the user into these groups and no others; if that changes anything, it is an event.
pub(crate) fn set_groups(
    t: &Transaction<'_>,
    id: UserId,
    name: &str,
    groups: &[String],
    now_s: u64,
) -> Result<()> {
    let mut wanted = groups.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    if wanted == groups_of(t, id)? {
        return Ok(());
    }
    t.statement("DELETE FROM memberships WHERE user_id = ?").execute([id.0])?;
    add_groups(t, id, &wanted)?;
    revoke(t, id, name, RevocationCause::Groups, now_s)
}

pub(crate) fn groups_of(c: &Connection, id: UserId) -> Result<Vec<String>> {
    let groups = c.statement("SELECT name FROM memberships WHERE user_id = ? ORDER BY name");
    groups.query_all([id.0], |row| row.get(0))
}

pub(crate) fn add_groups(t: &Transaction<'_>, id: UserId, groups: &[String]) -> Result<()> {
    let insert = t.statement("INSERT INTO memberships (user_id, name) VALUES (?, ?) ON CONFLICT DO NOTHING");
    groups.iter().try_for_each(|group| insert.execute(params![id.0, group]).map(drop))
}

/// The user with this name or one that differs in case alone, and that name: people would take one
/// for the other.
pub(crate) fn bearer(c: &Connection, name: &str) -> Result<Option<(UserId, String)>> {
    let (column, wanted) = (c.dialect().without_case("name"), c.dialect().without_case("?"));
    c.statement(&format!("SELECT id, name FROM users WHERE {column} = {wanted} LIMIT 1"))
        .query_row([name], |row| Ok((UserId(bytes(row, "id")?), row.get("name")?)))
        .optional()
}

pub(crate) fn id_of(c: &Connection, name: &str) -> Result<Option<UserId>> {
    c.query_row("SELECT id FROM users WHERE name = ?", [name], |row| bytes(row, "id").map(UserId)).optional()
}

pub(crate) fn no_such_user<T>(name: &str) -> StoreResult<T> {
    Ok(Err(StoreError::NoSuchUser { name: name.to_owned() }))
}

fn from_row(row: &Row<'_>) -> Result<User> {
    Ok(User {
        id: UserId(bytes(row, "id")?),
        name: row.get("name")?,
        source: row.get("source")?,
        subject: row.get("subject")?,
        password: Some(row.get::<_, String>("password")?)
            .filter(|hash| !hash.is_empty())
            .map(PasswordHash::new),
        enabled: row.get("enabled")?,
        generation: row.get("generation")?,
        totp: row.get::<_, Option<Vec<u8>>>("totp_secret")?.map(TotpSecret::new),
        groups: Vec::new(),
        certificates: Vec::new(),
        revoked_certificates: Vec::new(),
        created_s: row.get("created_s")?,
        expires_s: row.get("expires_s")?,
        sponsor: row.get("sponsor")?,
        note: row.get("note")?,
        fixed_addresses: Vec::new(),
    })
}

fn complete(c: &Connection, mut user: User) -> Result<User> {
    digest::verify(c, user.id)?;
    user.groups = groups_of(c, user.id)?;
    user.fixed_addresses = fixed_addresses::of_user(c, user.id)?;
    let hashes = c.statement("SELECT sha256 FROM certificates WHERE user_id = ? ORDER BY sha256");
    user.certificates = hashes.query_all([user.id.0], |row| bytes(row, "sha256"))?;
    let sql = "SELECT sha256 FROM revoked_certificates WHERE user_id = ? ORDER BY sha256";
    let revoked = c.statement(sql);
    user.revoked_certificates = revoked.query_all([user.id.0], |row| bytes(row, "sha256"))?;
    Ok(user)
}
