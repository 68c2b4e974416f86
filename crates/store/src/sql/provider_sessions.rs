//! Sessions at providers in SQL.

use super::columns::bytes;
use super::{Database, params, users};
use crate::provider_sessions::MAX_PROVIDER_SESSIONS;
use crate::{ProviderSessions, StoreError, User, UserId};

impl<D: Database> ProviderSessions for D {
    fn keep_provider_session(&self, id: UserId, session: &[u8; 32], now_s: u64) -> Result<(), StoreError> {
        let keep = "INSERT INTO provider_sessions (user_id, session, at_s) SELECT id, ?2, ?3 FROM users WHERE id = ?1
                    ON CONFLICT (user_id, session) DO UPDATE SET at_s = excluded.at_s";
        let leave = "DELETE FROM provider_sessions WHERE user_id = ?1 AND session NOT IN
                         (SELECT session FROM provider_sessions WHERE user_id = ?1
                          ORDER BY at_s DESC, session LIMIT ?2)";
        self.change(|t| {
            t.execute(keep, params![id.0, session, now_s])?;
            t.execute(leave, params![id.0, MAX_PROVIDER_SESSIONS as u64])?;
            Ok(Ok(()))
        })
    }

    fn users_of_provider_session(&self, source: &str, session: &[u8; 32]) -> Result<Vec<User>, StoreError> {
        let sql = "SELECT p.user_id FROM provider_sessions p JOIN users u ON u.id = p.user_id
                   WHERE p.session = ? AND u.source = ?";
        self.read(|c| {
            let ids: Vec<UserId> = c
                .statement(sql)
                .query_all(params![session, source], |row| bytes(row, "user_id").map(UserId))?;
            let users = ids.into_iter().map(|id| users::by_id(c, id));
            users.filter_map(Result::transpose).collect()
        })
    }

    fn forget_provider_sessions(&self, id: UserId) -> Result<(), StoreError> {
        self.change(|t| {
            t.execute("DELETE FROM provider_sessions WHERE user_id = ?", [id.0])?;
            Ok(Ok(()))
        })
    }
}
