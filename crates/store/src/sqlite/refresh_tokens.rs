//! Refresh tokens in SQL.

use rusqlite::{OptionalExtension as _, params};

use super::super::{RefreshToken, RefreshTokens, StoreError, UserId};
use super::Sqlite;

impl RefreshTokens for Sqlite {
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

    fn refresh_token(&self, id: UserId) -> Result<Option<RefreshToken>, StoreError> {
        self.read(|c| {
            c.prepare_cached("SELECT token FROM refresh_tokens WHERE user_id = ?")?
                .query_row([id.0], |row| row.get(0).map(RefreshToken::new))
                .optional()
        })
    }
}
