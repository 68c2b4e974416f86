//! The API's tokens in SQL.

use super::columns::{bytes, unexpected};
use super::{Connection, Database, Result, Row, params};
use crate::{ApiToken, ApiTokens, StoreError};
use vpnd_config::desk::DeskRole;

impl<D: Database> ApiTokens for D {
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

fn all(c: &Connection) -> Result<Vec<ApiToken>> {
    let sql = "SELECT name, role, created_s, until_s, hash FROM api_tokens ORDER BY name";
    c.statement(sql).query_all((), from_row)
}

fn from_row(row: &Row<'_>) -> Result<ApiToken> {
    let role: String = row.get("role")?;
    Ok(ApiToken {
        name: row.get("name")?,
        role: role.parse::<DeskRole>().map_err(|_| unexpected("role"))?,
        created_s: row.get("created_s")?,
        until_s: row.get("until_s")?,
        hash: bytes(row, "hash")?,
    })
}
