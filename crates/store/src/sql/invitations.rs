//! Invitations in SQL.

use super::columns::bytes;
use super::users::{self, StoreResult};
use super::{Connection, Database, Optional as _, Result, Transaction, digest, params};
use crate::{Accepted, InvitationHash, Invitations, LOCAL, StoreError, User, UserId};

impl<D: Database> Invitations for D {
    fn invite(&self, name: &str, invitation: &InvitationHash, until_s: u64) -> Result<(), StoreError> {
        self.change(|t| invite(t, name, invitation, until_s))
    }

    fn invited(&self, invitation: &InvitationHash, now_s: u64) -> Result<Option<User>, StoreError> {
        self.read(|c| invited(c, invitation, now_s))
    }

    fn accept_invitation(&self, accepted: &Accepted, now_s: u64) -> Result<bool, StoreError> {
        self.revoke(|t| accept(t, accepted, now_s))
    }
}

fn invite(t: &Transaction<'_>, name: &str, invitation: &InvitationHash, until_s: u64) -> StoreResult<()> {
    let Some(id) = users::id_of(t, name)? else { return users::no_such_user(name) };
    let sql = "INSERT INTO invitations (user_id, token, until_s, generation)
               SELECT id, ?2, ?3, generation FROM users WHERE id = ?1
               ON CONFLICT (user_id) DO UPDATE SET
                   token = excluded.token, until_s = excluded.until_s, generation = excluded.generation";
    t.execute(sql, params![id.0, invitation, until_s])?;
    digest::renew(t, id)?;
    Ok(Ok(()))
}

/// Removes all there are.
pub(crate) fn forget(t: &Transaction<'_>) -> Result<()> {
    let statement = t.statement("SELECT user_id FROM invitations");
    let invited: Vec<UserId> = statement.query_all((), |row| bytes(row, "user_id").map(UserId))?;
    t.execute("DELETE FROM invitations", ())?;
    invited.into_iter().try_for_each(|id| digest::renew(t, id))
}

fn invited(c: &Connection, invitation: &InvitationHash, now_s: u64) -> Result<Option<User>> {
    let sql = "SELECT i.user_id FROM invitations i JOIN users u ON u.id = i.user_id
               WHERE i.token = ?1 AND i.until_s > ?2 AND i.generation = u.generation AND u.enabled = 1
                   AND (u.expires_s IS NULL OR u.expires_s > ?2)";
    let id = c
        .statement(sql)
        .query_row(params![invitation, now_s], |row| bytes(row, "user_id").map(UserId))
        .optional()?;
    id.map_or(Ok(None), |id| users::by_id(c, id))
}

fn accept(t: &Transaction<'_>, accepted: &Accepted, now_s: u64) -> StoreResult<bool> {
    let Some(user) = invited(t, &accepted.invitation, now_s)? else { return Ok(Ok(false)) };
    if accepted.password.is_some() != (user.source == LOCAL) {
        return Ok(Ok(false));
    }
    t.execute("DELETE FROM invitations WHERE user_id = ?", [user.id.0])?;
    let sql = "UPDATE users SET totp_secret = ?, totp_step = ? WHERE id = ?";
    t.execute(sql, params![accepted.totp.expose(), accepted.step, user.id.0])?;
    match &accepted.password {
        // This renews the digest.
        Some(password) => Ok(users::set_password(t, &user.name, password, now_s)?.map(|()| true)),
        None => digest::renew(t, user.id).map(|()| Ok(true)),
    }
}
