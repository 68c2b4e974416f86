//! The API's tokens in SQL.

use rusqlite::{Connection, Row, params};

use super::super::{ApiToken, ApiTokens, StoreError};
use super::Sqlite;
use super::columns::{bytes, unexpected};
use vpnd_config::desk::DeskRole;

impl ApiTokens for Sqlite {
    fn add_api_token(&self, token: &ApiToken) -> Result<bool, StoreError> {
        let sql = "INSERT INTO api_tokens (name, role, created_s, until_s, hash) VALUES (?, ?, ?, ?, ?)
                   ON CONFLICT DO NOTHING";
        let ApiToken { name, role, created_s, until_s, hash } = token;
        self.change(|t| {
            t.execute(sql, params![name, role.name(), created_s, until_s, hash]).map(|added| Ok(added == 1))
        })
    }

    fn api_tokens(&self) -> Result<Vec<ApiToken>, StoreError> {
        self.read(all)
    }

    fn remove_api_token(&self, name: &str) -> Result<bool, StoreError> {
        let sql = "DELETE FROM api_tokens WHERE name = ?";
        self.revoke(|t| t.execute(sql, [name]).map(|removed| Ok(removed == 1)))
    }
}

fn all(c: &Connection) -> rusqlite::Result<Vec<ApiToken>> {
    let sql = "SELECT name, role, created_s, until_s, hash FROM api_tokens ORDER BY name";
    c.prepare_cached(sql)?.query_map((), from_row)?.collect()
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<ApiToken> {
    let role: String = row.get("role")?;
    Ok(ApiToken {
        name: row.get("name")?,
        role: role.parse::<DeskRole>().map_err(|_| unexpected("role"))?,
        created_s: row.get("created_s")?,
        until_s: row.get("until_s")?,
        hash: bytes(row, "hash")?,
    })
}
