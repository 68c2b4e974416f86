//! `vpnd user disable` in a fleet while the user database can't be written: an order to all
//! gateways.

use std::io::Write;

use super::UserError;
use crate::admin_store::{Opening, Stores};
use crate::commands::orders::{self, Carried};
use vpnd_config::ServerConfig;
use vpnd_store::audit::AuditEntry;
use vpnd_store::{Kick, StoreError};

/// Some gateways have not confirmed an order.
#[derive(Debug, thiserror::Error)]
#[error(
    "'{name}' is disabled {at}, but these have not confirmed that: {missing}. They follow once this gateway or the \
     database reaches them. The change is written as soon as the database can be: {why}"
)]
pub struct NotEverywhere {
    name: String,
    /// The gateways.
    at: String,
    missing: String,
    why: String,
}

/// Has all gateways disable a user, since the database can't be written now, and reports which of
/// them have.
pub(super) fn disable(
    config: &ServerConfig,
    stores: &dyn Stores,
    (name, source): (&str, Option<&str>),
    why: StoreError,
    entry: AuditEntry,
    out: &mut dyn Write,
) -> Result<(), UserError> {
    let (id, user, source) = (rand::random(), name.to_owned(), source.map(str::to_owned));
    // By its time the gateways know one that was written after all, though that was not
    // acknowledged.
    let kick = Kick { id, user, at_s: entry.at_s, is_disable: true, source };
    let carried = orders::give(config, stores, &kick, || record(config, stores, entry))?;
    report(&carried, name, why, out)
}

/// Records it as soon as it stands: the wait for gateways may be broken off.
fn record(config: &ServerConfig, stores: &dyn Stores, entry: AuditEntry) {
    if config.audit.enabled
        && let Err(error) = stores.open(config, Opening::Audit).and_then(|mut store| store.audit(entry))
    {
        eprintln!("vpnd: it is done, but not recorded in the audit file: {error}");
    }
}

fn report(carried: &Carried, name: &str, why: StoreError, out: &mut dyn Write) -> Result<(), UserError> {
    let at = match &*carried.confirmed() {
        "" => "at no gateway yet".to_owned(),
        names => format!("at gateways {names}"),
    };
    let name = vpnd_sys::text::plain(name);
    if carried.is_stored() {
        return Ok(writeln!(out, "user '{name}' disabled")?);
    }
    if !carried.is_confirmed() {
        return Err(NotEverywhere { name, at, missing: carried.unconfirmed(), why: why.to_string() }.into());
    }
    let sessions = match carried.ended() {
        1 => "1 session".to_owned(),
        sessions => format!("{sessions} sessions"),
    };
    if carried.ended() == 0 {
        writeln!(out, "whether there is a user '{name}' could not be looked up; capitals count")?;
    }
    writeln!(out, "user '{name}' disabled {at}: {sessions} ended")?;
    Ok(writeln!(out, "it is written as soon as the database can be: {why}")?)
}
