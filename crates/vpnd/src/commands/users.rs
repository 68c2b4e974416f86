//! `vpnd user …`: adding, listing, disabling and removing users, on the store that a running
//! gateway shares.
//!
//! Invariants: a password comes from a prompt, a file or a file descriptor, never from an argument;
//! a made-up password is printed once and kept nowhere; what is reported as done is on the disk. A
//! running gateway learns of every change from the store's revocations. This module must not know
//! how sessions end.

mod encoding;
mod import;
mod modify;
mod ordered;
mod passwords;
pub mod revoke;
pub(super) mod secret_input;
mod show;
mod table;

use std::io::{IsTerminal as _, Write};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};

use crate::admin_store::{AdminStore, Opening, Stores, UserSummary};
use crate::cli::{StoreArgs, UserAddArgs, UserCertificateArgs, UserCommand, UserProfileArgs};
pub(super) use modify::existing;
use secret_input::{InputError, Source};
use vpnd_config::access_profile::Who;
use vpnd_config::desk::DeskRole;
use vpnd_config::profile::{ClientIdentity, NoProfile, Profile, USER_NAME_RULE, gateway_names, is_user_name};
use vpnd_config::source::SourceKind;
use vpnd_config::{AccessProfile, ConfigError, ServerConfig};
use vpnd_pki::authority::{Authority, CertificateError, IssuedCertificate};
use vpnd_store::audit::AuditEntry;
use vpnd_store::password::{Hasher, NoMemory};
use vpnd_store::totp;
use vpnd_store::{CertificateHash, LOCAL, NewUser, PasswordHash, StoreError, TotpSecret};
use vpnd_sys::date::Expiry;
use vpnd_sys::secret_file::WriteError;

#[derive(Debug, thiserror::Error)]
pub enum UserError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("'{name}' can't be a name: write {USER_NAME_RULE}")]
    Name { name: String },
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(
        "client certificates need 'client_ca' and 'client_ca_key' in [tls] of {config}; 'vpnd init' makes both"
    )]
    NoAuthority { config: String },
    /// A file that the configuration names can't be read.
    #[error("can't read {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error(transparent)]
    NotEverywhere(#[from] ordered::NotEverywhere),
    /// There is nothing to put into a profile.
    #[error(transparent)]
    NoProfile(#[from] NoProfile),
    #[error(
        "this gateway accepts no client certificate of {whose}; 'vpnd user list --json' shows the certificates of all users"
    )]
    NoSuchCertificate { whose: String },
    /// The profile could not be written. The user was not added.
    #[error("{0}; the user was not added")]
    Profile(WriteError),
    /// The profile with another certificate could not be written.
    #[error("{0}; run it again with another place")]
    NewProfile(WriteError),
    #[error(
        "logins by the name '{name}' go to the source '{owner}', and never to a user of the gateway; choose another name"
    )]
    OfSource { name: String, owner: String },
    #[error(
        "no [[profile]] with 'machines = true' is for the machine '{name}', so it could not log in; write one, or name its group with \
         --group"
    )]
    NoMachines { name: String },
    #[error("'{name}' would be a guest without an end date; add --expires DATE")]
    EndlessGuest { name: String },
    /// A file with mistakes. Nothing was changed.
    #[error("{file} has mistakes, and nothing was changed:{}", list_of(mistakes, *rest))]
    Rows { file: String, mistakes: Vec<String>, rest: usize },
    #[error(
        "--invite needs 'enabled = true' and 'url' in [portal] of {config}: the link leads to these pages"
    )]
    NoPages { config: String },
    #[error("a note has at most 500 characters, none of them a control character")]
    Note,
    #[error(
        "'{prefix}' is the beginning of {found} devices of '{name}'; 'vpnd user devices {name}' shows their names"
    )]
    NoSuchDevice { name: String, prefix: String, found: usize },
    #[error(
        "{device} is a WireGuard device, whose addresses are in its file; remove it with 'vpnd device remove' and add it again"
    )]
    OfWireGuard { device: String },
    /// The result could not be printed. What was done stays done.
    #[error("can't print the result: {0}")]
    Print(#[from] std::io::Error),
}

fn list_of(mistakes: &[String], rest: usize) -> String {
    let mut list: String = mistakes.iter().map(|mistake| format!("\n  {mistake}")).collect();
    if rest > 0 {
        list += &format!("\n  and {rest} more");
    }
    list
}

/// Runs one command and prints its result to `out`; `now_s` is the time in seconds since 1970.
pub fn run(
    command: &UserCommand,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), UserError> {
    let (args, done) = match command {
        UserCommand::Add(args) => return add(args, stores, now_s, out),
        UserCommand::List { json, store } => return list(store, stores, *json, now_s, out),
        UserCommand::Show(args) => return show::show(args, stores, now_s, out),
        UserCommand::Modify(args) => return modify::modify(args, stores, now_s, out),
        UserCommand::Import(args) => return import::import(args, stores, now_s, out),
        UserCommand::Export(args) => return import::export(args, stores, now_s, out),
        UserCommand::Devices(args) => return modify::devices(args, stores, now_s, out),
        UserCommand::Passwd(args) => return passwords::passwd(args, stores, now_s, out),
        UserCommand::Certificate(args) => return certificate(args, stores, now_s, out),
        UserCommand::Profile(args) => return write_profile(args, stores, out),
        UserCommand::Disable(args) => (args, "disabled"),
        UserCommand::Enable(args) => (args, "enabled"),
        UserCommand::Remove(args) => (args, "removed"),
    };
    let config = ServerConfig::load(&args.store.config)?;
    let (name, source) = config.source_of(&args.name).unzip();
    let source = source.map(|source| source.name.as_str());
    let name = name.as_ref().unwrap_or(&args.name);
    let detail = args.reason.behind(String::new());
    let entry = AuditEntry { detail, ..entry(&format!("user-{done}"), name, now_s) };
    let can_be_ordered = config.fleet.is_some() && matches!(command, UserCommand::Disable(_));
    let opening = if can_be_ordered { Opening::Promptly } else { Opening::Existing };
    let changed = stores.open(&config, opening).and_then(|mut store| {
        match command {
            UserCommand::Remove(_) => store.remove_user(name, now_s)?,
            _ => store.set_enabled(name, source, matches!(command, UserCommand::Enable(_)), now_s)?,
        }
        Ok(store)
    });
    match changed {
        Err(why) if can_be_ordered && why.is_for_now() => {
            return ordered::disable(&config, stores, (name.as_str(), source), why, entry, out);
        }
        changed => changed?.audit(entry)?,
    }
    Ok(writeln!(out, "user '{name}' {done}")?)
}

/// The configuration and its store, which must exist.
fn open(args: &StoreArgs, stores: &dyn Stores) -> Result<(ServerConfig, AdminStore), UserError> {
    let config = ServerConfig::load(&args.config)?;
    let store = stores.open(&config, Opening::Existing)?;
    Ok((config, store))
}

/// The parts of a user that are made before anything is stored.
struct Prepared {
    user: NewUser,
    identity: Option<IssuedCertificate>,
    profile: Option<Profile>,
}

fn add(args: &UserAddArgs, stores: &dyn Stores, now_s: u64, out: &mut dyn Write) -> Result<(), UserError> {
    for name in std::iter::once(&args.name).chain(&args.group) {
        if !is_user_name(name) {
            return Err(UserError::Name { name: name.clone() });
        }
    }
    let config = ServerConfig::load(&args.store.config)?;
    if let Some(path) = args.profile_out.as_ref().filter(|path| path.exists()) {
        return Err(UserError::Profile(WriteError::Exists { path: path.clone() }));
    }
    if let Some((_, source)) = config.source_of(&args.name) {
        return Err(UserError::OfSource { name: args.name.clone(), owner: source.name.clone() });
    }
    let who = Who { user: &args.name, source: LOCAL, groups: &args.group };
    if args.machine && !config.profiles.of(who).is_some_and(|profile| profile.machines) {
        return Err(UserError::NoMachines { name: args.name.clone() });
    }
    let pages = args.password.invite.then(|| passwords::pages(&config)).transpose()?;
    let mut store = stores.open(&config, Opening::Create)?;
    if store.user(&args.name)?.is_some() {
        return Err(StoreError::UserExists { name: args.name.clone() }.into());
    }
    if let Some(sponsor) = &args.sponsor {
        modify::check_sponsor(&config, &mut store, sponsor)?;
    }
    let expires_s = args.expires.and_then(Expiry::seconds);
    modify::check_guest(&args.name, args.sponsor.as_deref(), expires_s)?;
    let secret = match args.machine {
        true => None,
        false => Some(secret_input::choose(Source::from(&args.password), &args.name)?),
    };
    let hash = secret.as_ref().map(|secret| Hasher::default().hash(&secret.password)).transpose()?;
    let prepared = prepare(args, &config, hash.unwrap_or_else(PasswordHash::none), now_s)?;
    commit(args, &mut store, &prepared, now_s)?;

    writeln!(out, "user '{}' added", args.name)?;
    modify::warn_without_profile(&config, who, out)?;
    if let Some(secret) = secret.filter(|secret| secret.is_generated) {
        writeln!(out, "password, shown only now: {}", secret.password.expose())?;
    }
    if let Some(pages) = pages {
        passwords::invite(entry("user-invited", &args.name, now_s), pages, &mut store, out)?;
    }
    write_secret(out, &config, prepared.user.totp.as_ref(), &args.name)?;
    match &args.profile_out {
        Some(path) => writeln!(out, "profile: {0}\nconnect with: vpnd connect {0}", path.display())?,
        None if prepared.identity.is_some() => write_identity(out, prepared.identity.as_ref())?,
        None => writeln!(out, "a profile for the client comes with --profile-out FILE")?,
    }
    Ok(())
}

fn prepare(
    args: &UserAddArgs,
    config: &ServerConfig,
    password: PasswordHash,
    now_s: u64,
) -> Result<Prepared, UserError> {
    let is_certified = args.client_cert || args.machine;
    let identity =
        is_certified.then(|| client_identity(&args.name, &args.store, config, now_s)).transpose()?;
    let user = NewUser {
        totp: args.totp.then(totp::generate),
        groups: args.group.clone(),
        certificate: identity.as_ref().map(|identity| Sha256::digest(&identity.certificate_der).into()),
        expires_s: args.expires.and_then(Expiry::seconds),
        sponsor: args.sponsor.clone(),
        note: args.note.as_deref().map(modify::note).transpose()?.unwrap_or_default(),
        ..NewUser::new(&args.name, password)
    };
    let made = args.profile_out.as_ref();
    let made = made.map(|_| profile(Some(&args.name), args.totp, config, identity.as_ref())).transpose()?;
    let profile = made.map(|profile| Profile { machine: args.machine, ..profile });
    Ok(Prepared { user, identity, profile })
}

/// Stores the user and writes the profile: both or none.
fn commit(
    args: &UserAddArgs,
    store: &mut AdminStore,
    prepared: &Prepared,
    now_s: u64,
) -> Result<(), UserError> {
    store.add_user(&prepared.user, now_s)?;
    if let (Some(path), Some(profile)) = (&args.profile_out, &prepared.profile)
        && let Err(error) = profile.save(path)
    {
        store.remove_user(&args.name, now_s)?;
        return Err(UserError::Profile(error));
    }
    Ok(store.audit(entry("user-added", &args.name, now_s))?)
}

/// Makes another client certificate for a user.
fn certificate(
    args: &UserCertificateArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), UserError> {
    let (config, mut store) = open(&args.store, stores)?;
    let no_such_user = || StoreError::NoSuchUser { name: args.name.clone() };
    let user = store.user(&args.name)?.ok_or_else(no_such_user)?;
    let identity = client_identity(&args.name, &args.store, &config, now_s)?;
    let profile = profile(Some(&args.name), user.totp, &config, Some(&identity))?;
    let profile = Profile { machine: user.is_machine, ..profile };
    store.add_certificate(&args.name, &Sha256::digest(&identity.certificate_der).into())?;
    store.audit(entry("certificate-added", &args.name, now_s))?;
    match &args.profile_out {
        // The certificate is then worth nothing, since it was not given to a user.
        Some(path) => {
            profile.save(path).map_err(UserError::NewProfile)?;
            writeln!(out, "profile with another certificate: {}", path.display())?;
        }
        None => write_identity(out, Some(&identity))?,
    }
    Ok(())
}

/// Writes a profile without a client certificate. Users of directories have no record before their
/// first login, so none is looked for.
fn write_profile(args: &UserProfileArgs, stores: &dyn Stores, out: &mut dyn Write) -> Result<(), UserError> {
    let config = ServerConfig::load(&args.store.config)?;
    // The name as the gateway spells it. One of a source need not have been here.
    let mut browser = args.browser;
    let name = match args.name.as_deref().map(|name| (name, config.source_of(name))) {
        Some((_, Some((name, source)))) => {
            browser |= matches!(source.kind, SourceKind::Oidc(_));
            Some(name)
        }
        Some((name, None)) => {
            Some(modify::existing(&mut stores.open(&config, Opening::Existing)?, name)?.name)
        }
        None => None,
    };
    let profile = Profile { browser, ..profile(name.as_deref(), args.totp, &config, None)? };
    match &args.profile_out {
        Some(path) => {
            profile.save(path).map_err(UserError::NewProfile)?;
            Ok(writeln!(out, "profile: {0}\nconnect with: vpnd connect {0}", path.display())?)
        }
        None => Ok(write!(out, "{}", *profile.to_toml())?),
    }
}

fn list(
    args: &StoreArgs,
    stores: &dyn Stores,
    json: bool,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), UserError> {
    let (config, mut store) = open(args, stores)?;
    let users = store.users()?;
    if json {
        let users: Vec<_> = users.iter().map(|user| describe(&config, user)).collect();
        return Ok(writeln!(out, "{}", serde_json::Value::from(users))?);
    }
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    let mut header = vec!["USER", "SOURCE", "STATE", "EXPIRES", "SECOND FACTOR", "PROFILE", "GROUPS"];
    let any_fixed = users.iter().any(|user| !user.fixed_addresses.is_empty());
    header.extend(any_fixed.then_some("ADDRESSES"));
    table.set_header(header);
    for user in &users {
        let expires = user.expires_s.map_or_else(|| "-".to_owned(), |s| Expiry::At(s).to_string());
        let mut row = vec![
            user.name.clone(),
            user.source.clone(),
            state(user, now_s).to_owned(),
            expires,
            second_factor(user).to_owned(),
            profile_of(&config, user).unwrap_or("none").to_owned(),
            user.groups.join(", "),
        ];
        if any_fixed {
            let fixed: Vec<_> = user.fixed_addresses.iter().map(|fixed| fixed.address.to_string()).collect();
            row.push(if fixed.is_empty() { "-".to_owned() } else { fixed.join(" ") });
        }
        table.add_row(row);
    }
    Ok(writeln!(out, "{}", table.trim_fmt())?)
}

/// The title of the access profile that is for the user.
fn profile_of<'c>(config: &'c ServerConfig, user: &UserSummary) -> Option<&'c str> {
    let who = Who { user: &user.name, source: &user.source, groups: &user.groups };
    config.profiles.of(who).map(AccessProfile::title)
}

/// The user's role on the web pages.
fn role(config: &ServerConfig, user: &UserSummary) -> Option<&'static str> {
    let role = config.portal.as_ref()?.desk.role(&user.source, &user.groups);
    role.map(DeskRole::name)
}

fn describe(config: &ServerConfig, user: &UserSummary) -> serde_json::Value {
    let certificate = |hash: &CertificateHash| {
        let fingerprint = revoke::Fingerprint(*hash).to_string();
        serde_json::json!({ "fingerprint": fingerprint, "revoked": user.revoked_certificates.contains(hash) })
    };
    serde_json::json!({
        "name": user.name,
        "enabled": user.enabled,
        "totp": user.totp,
        "certificates": user.certificates.iter().map(certificate).collect::<Vec<_>>(),
        "machine": user.is_machine,
        "groups": user.groups,
        "source": user.source,
        "profile": profile_of(config, user),
        "role": role(config, user),
        "expires_s": user.expires_s,
        "sponsor": user.sponsor,
        "note": user.note,
        "addresses": user.fixed_addresses.iter().map(|fixed| fixed.address.to_string()).collect::<Vec<_>>(),
        "created_s": user.created_s,
    })
}

fn state(user: &UserSummary, now_s: u64) -> &'static str {
    match user.enabled {
        false => "disabled",
        true if user.expires_s.is_some_and(|expires_s| expires_s <= now_s) => "expired",
        true => "enabled",
    }
}

fn second_factor(user: &UserSummary) -> &'static str {
    match (user.totp, user.certificates.is_empty()) {
        _ if user.is_machine => "certificate alone",
        (false, true) => "-",
        (true, true) => "code",
        (false, false) => "certificate",
        (true, false) => "code, certificate",
    }
}

fn entry(event: &str, user: &str, now_s: u64) -> AuditEntry {
    AuditEntry {
        at_s: now_s,
        event: event.to_owned(),
        user: user.to_owned(),
        source: String::new(),
        detail: String::new(),
        by: String::new(),
    }
}

/// Prints what an authenticator app needs, if there is a secret.
fn write_secret(
    out: &mut dyn Write,
    config: &ServerConfig,
    secret: Option<&TotpSecret>,
    user: &str,
) -> Result<(), UserError> {
    // An issuer has no colon: it ends there.
    let names = gateway_names(config).map(|(names, _)| names).unwrap_or_default();
    let gateway = names.into_iter().find(|name| !name.contains(':')).unwrap_or_else(|| "vpnd".to_owned());
    match secret.and_then(|secret| totp::address(secret, user, &gateway)) {
        Some(address) => {
            writeln!(out, "for an authenticator app, shown only now: {address}")?;
            // A file or pipe has no use for it.
            if let Some(code) = totp::qr_code(&address).filter(|_| std::io::stdout().is_terminal()) {
                write!(out, "{code}")?;
            }
            Ok(())
        }
        None => Ok(()),
    }
}

fn write_identity(out: &mut dyn Write, identity: Option<&IssuedCertificate>) -> std::io::Result<()> {
    let Some(identity) = identity else { return Ok(()) };
    writeln!(out, "client certificate and key, shown only now:")?;
    write!(out, "{}{}", identity.certificate_pem, *identity.key_pem)
}

fn client_identity(
    name: &str,
    store: &StoreArgs,
    config: &ServerConfig,
    now_s: u64,
) -> Result<IssuedCertificate, UserError> {
    let (Some(certificate), Some(key)) = (&config.tls.client_ca, &config.tls.client_ca_key) else {
        return Err(UserError::NoAuthority { config: store.config.display().to_string() });
    };
    let key_pem = zeroize::Zeroizing::new(read(key)?);
    let authority = Authority::from_pem(&read(certificate)?, &key_pem)?;
    Ok(authority.client(name, UNIX_EPOCH + Duration::from_secs(now_s))?)
}

/// The client's profile.
fn profile(
    user: Option<&str>,
    totp: bool,
    config: &ServerConfig,
    identity: Option<&IssuedCertificate>,
) -> Result<Profile, UserError> {
    let identity = identity.map(|identity| ClientIdentity {
        certificate_pem: identity.certificate_pem.clone(),
        key_pem: identity.key_pem.clone(),
    });
    Ok(Profile { user: user.map(str::to_owned), totp, identity, ..Profile::of_gateway(config)? })
}

fn read(path: &Path) -> Result<String, UserError> {
    std::fs::read_to_string(path)
        .map_err(|source| UserError::Read { path: path.display().to_string(), source })
}

#[cfg(test)]
mod tests;
