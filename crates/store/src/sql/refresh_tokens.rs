//! Refresh tokens in SQL.

use super::{Database, Optional as _, params};
use crate::{RefreshToken, RefreshTokens, StoreError, UserId};

impl<D: Database> RefreshTokens for D {
    fn keep_refresh_token(&self, id: UserId, token: Option<&RefreshToken>) -> Result<(), StoreError> {
        let keep = "INSERT INTO refresh_tokens (user_id, token) SELECT id, ?2 FROM users WHERE id = ?1
                    ON CONFLICT (user_id) DO UPDATE SET token = excluded.token";
        self.change(|t| {
            match token {
                Some(token) => t.execute(keep, params![id.0, token.expose()])?,
                None => t.execute("DELETE FROM refresh_tokens WHERE user_id = ?", [id.0])?,
            };
            Ok(Ok(()))
        })
    }

    fn replace_refresh_token(
        &self,
        id: UserId,
        before: &RefreshToken,
        next: &RefreshToken,
    ) -> Result<(), StoreError> {
        let replace = "UPDATE refresh_tokens SET token = ?3 WHERE user_id = ?1 AND token = ?2";
        self.change(|t| {
            t.execute(replace, params![id.0, before.expose(), next.expose()])?;
            Ok(Ok(()))
        })
    }

    fn refresh_token(&self, id: UserId) -> Result<Option<RefreshToken>, StoreError> {
        let sql = "SELECT token FROM refresh_tokens WHERE user_id = ?";
        self.read(|c| c.query_row(sql, [id.0], |row| row.get(0).map(RefreshToken::new)).optional())
    }
}
