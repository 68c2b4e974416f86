//! `vpnd token …`: tokens of programs that use the portal's API.
//!
//! INVARIANT: a token is printed once and kept nowhere; the store has a hash.

use std::io::Write;

use super::users::UserError;
use crate::admin_store::{AdminStore, Opening, Stores};
use crate::cli::{StoreArgs, TokenAddArgs, TokenCommand};
use vpnd_config::ServerConfig;
use vpnd_store::audit::AuditEntry;
use vpnd_store::{ApiToken, StoreError};
use vpnd_sys::date::{Expiry, rfc3339};

/// An error of a command; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error(transparent)]
    User(#[from] UserError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("'{0}' can't be a name: write up to 32 letters, digits, '-' and '_'")]
    Name(String),
    #[error("a token needs an end: give --expires today or a later day")]
    Endless,
    #[error("there is a token '{0}'; remove it first, or choose another name")]
    Taken(String),
    #[error("there is no token '{0}': 'vpnd token list' shows all")]
    NoSuchToken(String),
    #[error("can't print the result: {0}")]
    Print(#[from] std::io::Error),
}

/// Runs one command and prints its result to `out`; `now_s` is the time in seconds since 1970.
///
/// # Errors
/// [`TokenError`].
pub fn run(
    command: &TokenCommand,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), TokenError> {
    match command {
        TokenCommand::Add(args) => add(args, stores, now_s, out),
        TokenCommand::List(args) => list(&args.store, args.json, stores, out),
        TokenCommand::Remove(args) => {
            let mut store = open(&args.store, stores)?;
            if !store.remove_api_token(&args.name)? {
                return Err(TokenError::NoSuchToken(args.name.clone()));
            }
            store.audit(entry("token-removed", args.name.clone(), now_s))?;
            Ok(writeln!(out, "token '{}' removed", args.name)?)
        }
    }
}

fn open(args: &StoreArgs, stores: &dyn Stores) -> Result<AdminStore, TokenError> {
    let config = ServerConfig::load(&args.config).map_err(UserError::from)?;
    Ok(stores.open(&config, Opening::Existing)?)
}

fn add(args: &TokenAddArgs, stores: &dyn Stores, now_s: u64, out: &mut dyn Write) -> Result<(), TokenError> {
    if !ApiToken::is_name(&args.name) {
        return Err(TokenError::Name(args.name.clone()));
    }
    let until_s = args.expires.seconds().filter(|until_s| *until_s > now_s).ok_or(TokenError::Endless)?;
    let mut store = open(&args.store, stores)?;
    let (token, text) = ApiToken::new(&args.name, args.role, now_s, until_s);
    if !store.add_api_token(&token)? {
        return Err(TokenError::Taken(args.name.clone()));
    }
    let detail = format!("{}, {}, until {}", args.name, args.role.name(), Expiry::At(until_s));
    store.audit(entry("token-added", detail, now_s))?;
    Ok(writeln!(out, "token, shown only now: {}", *text)?)
}

fn list(args: &StoreArgs, json: bool, stores: &dyn Stores, out: &mut dyn Write) -> Result<(), TokenError> {
    let tokens = open(args, stores)?.api_tokens()?;
    if json {
        let shown = tokens.iter().map(|token| {
            serde_json::json!({
                "name": token.name,
                "role": token.role.name(),
                "created": rfc3339(token.created_s),
                "expires": rfc3339(token.until_s),
            })
        });
        return Ok(writeln!(out, "{}", serde_json::Value::from_iter(shown))?);
    }
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["TOKEN", "ROLE", "EXPIRES"]);
    for token in &tokens {
        let expires = Expiry::At(token.until_s).to_string();
        table.add_row([token.name.clone(), token.role.name().to_owned(), expires]);
    }
    Ok(writeln!(out, "{}", table.trim_fmt())?)
}

fn entry(event: &str, detail: String, now_s: u64) -> AuditEntry {
    let (user, source, by) = Default::default();
    AuditEntry { at_s: now_s, event: event.to_owned(), user, source, detail, by }
}
