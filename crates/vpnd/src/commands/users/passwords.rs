//! `vpnd user passwd`, and `--invite`: a link in place of a password.

use std::io::Write;

use super::secret_input::{self, Source};
use super::{UserError, entry, open};
use crate::admin_store::{AdminStore, Stores};
use crate::cli::UserPasswdArgs;
use vpnd_config::ServerConfig;
use vpnd_config::https_url::HttpsUrl;
use vpnd_store::audit::AuditEntry;
use vpnd_store::password::Hasher;
use vpnd_store::{INVITATION_LIFETIME_S, InvitationToken, StoreError};

pub(super) fn passwd(
    args: &UserPasswdArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), UserError> {
    let (config, mut store) = open(&args.store, stores)?;
    if store.user(&args.name)?.is_none() {
        return Err(StoreError::NoSuchUser { name: args.name.clone() }.into());
    }
    if args.password.invite {
        let mut invited = entry("user-invited", &args.name, now_s);
        invited.detail = args.reason.behind(String::new());
        return invite(invited, pages(&config)?, &mut store, out);
    }
    let secret = secret_input::choose(Source::from(&args.password), &args.name)?;
    store.set_password(&args.name, &Hasher::default().hash(&secret.password)?, now_s)?;
    let mut entry = entry("user-password", &args.name, now_s);
    entry.detail = args.reason.behind(String::new());
    store.audit(entry)?;
    writeln!(out, "user '{}' has a new password; sessions under the old one end", args.name)?;
    if secret.is_generated {
        writeln!(out, "password, shown only now: {}", secret.password.expose())?;
    }
    Ok(())
}

/// Where the link of an invitation leads.
pub(super) fn pages(config: &ServerConfig) -> Result<&HttpsUrl, UserError> {
    config.pages().ok_or_else(|| UserError::NoPages { config: config.file.clone() })
}

/// Makes the invitation of a user as it is recorded, and prints its link.
pub(super) fn invite(
    invited: AuditEntry,
    pages: &HttpsUrl,
    store: &mut AdminStore,
    out: &mut dyn Write,
) -> Result<(), UserError> {
    let token = InvitationToken::new();
    store.invite(&invited.user, &token.hash(), invited.at_s + INVITATION_LIFETIME_S)?;
    store.audit(invited)?;
    let link = token.link(pages.as_str());
    Ok(writeln!(out, "invitation, shown only now, good once and for 7 days: {}", *link)?)
}
