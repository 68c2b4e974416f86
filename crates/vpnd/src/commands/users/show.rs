//! `vpnd user show`: what store, audit file and running gateway have about one user, on one page.
//!
//! Invariants: what the audit file has is read only after the look was recorded.
//! Where gateway or audit file give nothing, the page reports that and has the rest.

use std::io::Write;

use serde_json::{Value, json};

use super::revoke::Fingerprint;
use super::{UserError, describe, entry, modify, open, profile_of, role, second_factor, state};
use crate::admin_store::{DeviceSummary, Opening, Stores, UserSummary};
use crate::cli::UserShowArgs;
use vpnd_config::ServerConfig;
use vpnd_ipc::admin::Session;
use vpnd_ipc::admin::client::Client;
use vpnd_store::StoreError;
use vpnd_store::audit::logins::Logins;
use vpnd_store::audit::query::{Cursor, Record};
use vpnd_sys::date::{Expiry, rfc3339};

/// Everything about a user.
struct Page {
    user: UserSummary,
    state: &'static str,
    /// The fields of the list, as JSON.
    described: Value,
    profile: Option<String>,
    role: Option<&'static str>,
    devices: Vec<DeviceSummary>,
    /// Those of the running gateway, or why there is none to ask.
    sessions: Result<Vec<Session>, String>,
    /// Or why there are none on record.
    logins: Result<Logins, String>,
}

pub(super) fn show(
    args: &UserShowArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), UserError> {
    let (config, mut store) = open(&args.store, stores)?;
    let name = config.source_of(&args.name).map_or_else(|| args.name.clone(), |(name, _)| name);
    let user = modify::existing(&mut store, &name)?;
    let devices = store.devices(&user.name)?;
    drop(store);
    let page = Page {
        described: describe(&config, &user),
        profile: profile_of(&config, &user).map(str::to_owned),
        role: role(&config, &user),
        state: state(&user, now_s),
        sessions: sessions(&config, &user.name),
        logins: logins(&config, stores, &user.name, now_s).map_err(|error| error.to_string()),
        user,
        devices,
    };
    if args.json {
        return Ok(writeln!(out, "{}", page.json())?);
    }
    Ok(out.write_all(page.text().as_bytes())?)
}

fn sessions(config: &ServerConfig, user: &str) -> Result<Vec<Session>, String> {
    let status = Client::connect(&config.admin.socket).and_then(|mut client| client.status());
    let sessions = status.map_err(|error| error.to_string())?.sessions;
    Ok(sessions.into_iter().filter(|session| session.user == user).collect())
}

#[derive(Debug, thiserror::Error)]
enum NotRecorded {
    #[error("nothing is recorded here: 'enabled' in [audit] is false")]
    Disabled,
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn logins(config: &ServerConfig, stores: &dyn Stores, user: &str, now_s: u64) -> Result<Logins, NotRecorded> {
    if !config.audit.enabled {
        return Err(NotRecorded::Disabled);
    }
    let mut store = stores.open(config, Opening::Audit)?;
    store.audit(entry("user-shown", user, now_s))?;
    let range = Logins::range(user, now_s);
    let (mut logins, mut cursor) = (Logins::default(), Some(Cursor::ENTRIES));
    while let Some(here) = cursor {
        let (records, next) = store.export(&range, here)?;
        logins.add(records);
        cursor = next;
    }
    Ok(logins)
}

impl Page {
    fn json(&self) -> Value {
        let mut page = self.described.clone();
        page["state"] = self.state.into();
        page["devices"] = self.devices.iter().map(|device| modify::shown(device, &self.user)).collect();
        page["sessions"] = json!(self.sessions.as_ref().ok());
        let logins = self.logins.as_ref().ok();
        page["disabled"] =
            json!(logins.and_then(|logins| logins.disabled.as_ref()).map(
                |record| json!({ "time": rfc3339(record.at_s), "by": record.by, "reason": record.detail }),
            ));
        page["last_login_s"] = json!(logins.and_then(|logins| logins.last_s));
        page["refused"] = json!(logins.map(|logins| {
            let refusal = |record: &Record| {
                json!({ "time": rfc3339(record.at_s), "outer": record.outer, "reason": record.detail })
            };
            logins.refused.iter().map(refusal).collect::<Vec<_>>()
        }));
        page
    }

    fn text(&self) -> String {
        let Self { user, .. } = self;
        let or_none = |text: &str| if text.is_empty() { "-".to_owned() } else { vpnd_sys::text::plain(text) };
        let expires = user.expires_s.map_or_else(|| "never".to_owned(), |s| Expiry::At(s).to_string());
        let mut lines = vec![
            format!("user:      {}", user.name),
            format!("source:    {}", user.source),
            format!("state:     {}", self.state_as_text()),
            format!("expires:   {expires}"),
            format!("factor:    {}", second_factor(user)),
            format!(
                "profile:   {}",
                self.profile.as_deref().unwrap_or("none: logins of this user are refused")
            ),
            format!("groups:    {}", or_none(&user.groups.join(", "))),
            format!("role:      {}", self.role.unwrap_or("-")),
            format!("sponsor:   {}", or_none(user.sponsor.as_deref().unwrap_or_default())),
            format!("note:      {}", or_none(&user.note)),
            format!("added:     {}", rfc3339(user.created_s)),
        ];
        lines.extend(user.certificates.iter().map(|hash| {
            let is_revoked = user.revoked_certificates.contains(hash);
            let revoked = if is_revoked { ", revoked" } else { "" };
            format!("certificate: {}{revoked}", Fingerprint(*hash))
        }));
        lines.extend(self.logins_as_text());
        lines.push(String::new());
        lines.extend(self.sessions_as_text());
        lines.push(String::new());
        lines.push(format!("devices: {}", self.devices.len()));
        lines.extend(self.devices.iter().map(|device| {
            let addresses: Vec<_> = device.addresses.iter().map(ToString::to_string).collect();
            let session = if device.session_since_s.is_some() { ", with a session" } else { "" };
            format!("  {}  {}{session}", device.name(), addresses.join(" "))
        }));
        lines.join("\n") + "\n"
    }

    /// The state, and how it came to be if the user is disabled and that is on record.
    fn state_as_text(&self) -> String {
        let disabled = self.logins.as_ref().ok().and_then(|logins| logins.disabled.as_ref());
        let Some(record) = disabled.filter(|_| !self.user.enabled) else { return self.state.to_owned() };
        let given = |text: &Option<String>| text.as_deref().map(vpnd_sys::text::plain).unwrap_or_default();
        let mut state = format!("{} at {} by {}", self.state, rfc3339(record.at_s), given(&record.by));
        let reason = given(&record.detail);
        if !reason.is_empty() {
            state += &format!(": {reason}");
        }
        state
    }

    fn logins_as_text(&self) -> Vec<String> {
        let logins = match &self.logins {
            Ok(logins) => logins,
            Err(reason) => return vec![format!("logins:    {reason}")],
        };
        let last = logins.last_s.map_or_else(|| "none in 30 days".to_owned(), rfc3339);
        let mut lines = vec![format!("login:     {last}"), String::new()];
        lines.push(format!(
            "refused logins in 30 days, the last {}: {}",
            Logins::SHOWN,
            logins.refused.len()
        ));
        lines.extend(logins.refused.iter().map(|record| {
            let given =
                |text: &Option<String>| text.as_deref().map_or_else(|| "-".to_owned(), vpnd_sys::text::plain);
            format!("  {}  {}  {}", rfc3339(record.at_s), given(&record.outer), given(&record.detail))
        }));
        lines
    }

    fn sessions_as_text(&self) -> Vec<String> {
        let sessions = match &self.sessions {
            Ok(sessions) => sessions,
            Err(reason) => return vec![format!("sessions: not known: {reason}")],
        };
        let mut lines = vec![format!("sessions: {}", sessions.len())];
        lines.extend(sessions.iter().map(|session| {
            let inner = session.inner_v4.map(|v4| v4.to_string()).into_iter();
            let inner: Vec<_> = inner.chain(session.inner_v6.map(|v6| v6.to_string())).collect();
            let outer: Vec<_> = session.outer.iter().map(ToString::to_string).collect();
            let outer = if outer.is_empty() { "not connected".to_owned() } else { outer.join(" ") };
            let (id, for_s) = (&session.id, session.connected_s);
            format!("  {id}  {}  from {outer}, for {for_s} s", inner.join(" "))
        }));
        lines
    }
}
