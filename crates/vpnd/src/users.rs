//! `vpnd user …`: adding, listing, disabling and removing users, on the store that a running gateway shares.
//!
//! Invariants: a password comes from a prompt, a file or a file descriptor, never from an argument; a made-up password
//! is printed once and kept nowhere; what is reported as done is on the disk. A running gateway learns of every change
//! from the store's revocations. This module must not know how sessions end.

mod secret_input;

use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use sha2::{Digest as _, Sha256};
use x509_parser::extensions::GeneralName;

use crate::auth::password::{Hasher, NoMemory};
use crate::auth::totp;
use crate::cli::{StoreArgs, UserAddArgs, UserArgs, UserCommand, UserPasswdArgs};
use crate::config::{ConfigError, ServerConfig};
use crate::init::authority::{Authority, CertificateError, Identity};
use crate::profile::{ClientIdentity, Profile, Routes, ServerAddress, Trust, USER_NAME_RULE, is_user_name};
use crate::secret_file::WriteError;
use crate::store::sqlite::Sqlite;
use crate::store::{AuditEntry, NewUser, Store, StoreError, User};
use secret_input::{InputError, Source};

/// Why a command did nothing.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// The configuration can't be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A name breaks the rule.
    #[error("'{name}' can't be a name: write {USER_NAME_RULE}")]
    Name {
        /// The name.
        name: String,
    },
    /// A password can't be hashed now.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// There is no usable password.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A certificate could not be made.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Client certificates are not set up.
    #[error(
        "client certificates need 'client_ca' and 'client_ca_key' in [tls] of {config}; 'vpnd init' makes both"
    )]
    NoAuthority {
        /// The configuration.
        config: String,
    },
    /// A file that the configuration names can't be read.
    #[error("can't read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
    /// The gateway's certificate has no name for a profile.
    #[error(
        "{path} names no server, so a client would not know where to connect; make it with 'vpnd init --name …'"
    )]
    NoServerName {
        /// The certificate.
        path: String,
    },
    /// The profile could not be written. The user was not added.
    #[error("{0}; the user was not added")]
    Profile(WriteError),
    /// The result could not be printed. What was done stays done.
    #[error("can't print the result: {0}")]
    Print(#[from] std::io::Error),
}

/// Runs one command and prints its result to `out`; `now_s` is the time in seconds since 1970.
pub fn run(command: &UserCommand, now_s: u64, out: &mut dyn Write) -> Result<(), UserError> {
    match command {
        UserCommand::Add(args) => add(args, now_s, out),
        UserCommand::List { json, store } => list(store, *json, out),
        UserCommand::Disable(args) => {
            change(args, "disabled", now_s, out, |store, name| store.set_enabled(name, false, now_s))
        }
        UserCommand::Enable(args) => {
            change(args, "enabled", now_s, out, |store, name| store.set_enabled(name, true, now_s))
        }
        UserCommand::Remove(args) => {
            change(args, "removed", now_s, out, |store, name| store.remove_user(name, now_s))
        }
        UserCommand::Passwd(args) => passwd(args, now_s, out),
    }
}

/// The parts of a user that are made before anything is stored.
struct Prepared {
    user: NewUser,
    identity: Option<Identity>,
    profile: Option<Profile>,
}

fn add(args: &UserAddArgs, now_s: u64, out: &mut dyn Write) -> Result<(), UserError> {
    for name in std::iter::once(&args.name).chain(&args.group) {
        if !is_user_name(name) {
            return Err(UserError::Name { name: name.clone() });
        }
    }
    let config = ServerConfig::load(&args.store.config)?;
    if let Some(path) = args.profile_out.as_ref().filter(|path| path.exists()) {
        return Err(UserError::Profile(WriteError::Exists { path: path.clone() }));
    }
    let store = Sqlite::open_or_create(&config.server.store_path())?;
    if store.user(&args.name)?.is_some() {
        return Err(StoreError::UserExists { name: args.name.clone() }.into());
    }
    let secret = secret_input::choose(Source::from(&args.password), &args.name)?;
    let prepared = prepare(args, &config, &secret.password, now_s)?;
    commit(args, &store, &prepared, now_s)?;

    writeln!(out, "user '{}' added", args.name)?;
    if secret.is_generated {
        writeln!(out, "password, shown only now: {}", secret.password.expose())?;
    }
    if let Some(address) = prepared.user.totp.as_ref().and_then(|secret| totp::address(secret, &args.name)) {
        writeln!(out, "for an authenticator app, shown only now: {address}")?;
    }
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
    password: &crate::auth::password::Password,
    now_s: u64,
) -> Result<Prepared, UserError> {
    let identity = if args.client_cert { Some(client_identity(args, config, now_s)?) } else { None };
    let user = NewUser {
        name: args.name.clone(),
        password: Hasher::default().hash(password)?,
        totp: args.totp.then(totp::generate),
        groups: args.group.clone(),
        certificate: identity.as_ref().map(|identity| Sha256::digest(&identity.certificate_der).into()),
    };
    let wanted = args.profile_out.is_some();
    let profile = if wanted { Some(profile(args, config, identity.as_ref(), now_s)?) } else { None };
    Ok(Prepared { user, identity, profile })
}

/// Stores the user and writes the profile: both or none.
fn commit(args: &UserAddArgs, store: &Sqlite, prepared: &Prepared, now_s: u64) -> Result<(), UserError> {
    store.add_user(&prepared.user, now_s)?;
    if let (Some(path), Some(profile)) = (&args.profile_out, &prepared.profile)
        && let Err(error) = profile.save(path)
    {
        store.remove_user(&args.name, now_s)?;
        return Err(UserError::Profile(error));
    }
    Ok(store.audit(&entry("user-added", &args.name, now_s))?)
}

fn list(args: &StoreArgs, json: bool, out: &mut dyn Write) -> Result<(), UserError> {
    let config = ServerConfig::load(&args.config)?;
    let users = Sqlite::open(&config.server.store_path())?.users()?;
    if json {
        let users: Vec<_> = users.iter().map(describe).collect();
        return Ok(writeln!(out, "{}", serde_json::Value::from(users))?);
    }
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["USER", "STATE", "SECOND FACTOR", "GROUPS"]);
    for user in &users {
        let state = if user.enabled { "enabled" } else { "disabled" };
        table.add_row([
            user.name.clone(),
            state.to_owned(),
            second_factor(user).to_owned(),
            user.groups.join(" "),
        ]);
    }
    Ok(writeln!(out, "{}", table.trim_fmt())?)
}

fn describe(user: &User) -> serde_json::Value {
    serde_json::json!({
        "name": user.name,
        "enabled": user.enabled,
        "totp": user.totp.is_some(),
        "certificates": user.certificates.len(),
        "groups": user.groups,
        "created_s": user.created_s,
    })
}

fn second_factor(user: &User) -> &'static str {
    match (user.totp.is_some(), user.certificates.is_empty()) {
        (false, true) => "-",
        (true, true) => "code",
        (false, false) => "certificate",
        (true, false) => "code, certificate",
    }
}

fn change(
    args: &UserArgs,
    done: &str,
    now_s: u64,
    out: &mut dyn Write,
    change: impl FnOnce(&Sqlite, &str) -> Result<(), StoreError>,
) -> Result<(), UserError> {
    let config = ServerConfig::load(&args.store.config)?;
    let store = Sqlite::open(&config.server.store_path())?;
    change(&store, &args.name)?;
    store.audit(&entry(&format!("user-{done}"), &args.name, now_s))?;
    Ok(writeln!(out, "user '{}' {done}", args.name)?)
}

fn passwd(args: &UserPasswdArgs, now_s: u64, out: &mut dyn Write) -> Result<(), UserError> {
    let config = ServerConfig::load(&args.store.config)?;
    let store = Sqlite::open(&config.server.store_path())?;
    if store.user(&args.name)?.is_none() {
        return Err(StoreError::NoSuchUser { name: args.name.clone() }.into());
    }
    let secret = secret_input::choose(Source::from(&args.password), &args.name)?;
    store.set_password(&args.name, &Hasher::default().hash(&secret.password)?, now_s)?;
    store.audit(&entry("user-password", &args.name, now_s))?;
    writeln!(out, "user '{}' has a new password; sessions under the old one end", args.name)?;
    if secret.is_generated {
        writeln!(out, "password, shown only now: {}", secret.password.expose())?;
    }
    Ok(())
}

fn entry(event: &str, user: &str, now_s: u64) -> AuditEntry {
    AuditEntry {
        at_s: now_s,
        event: event.to_owned(),
        user: user.to_owned(),
        source: String::new(),
        detail: String::new(),
    }
}

fn write_identity(out: &mut dyn Write, identity: Option<&Identity>) -> std::io::Result<()> {
    let Some(identity) = identity else { return Ok(()) };
    writeln!(out, "client certificate and key, shown only now:")?;
    write!(out, "{}{}", identity.certificate_pem, *identity.key_pem)
}

fn client_identity(args: &UserAddArgs, config: &ServerConfig, now_s: u64) -> Result<Identity, UserError> {
    let (Some(certificate), Some(key)) = (&config.tls.client_ca, &config.tls.client_ca_key) else {
        return Err(UserError::NoAuthority { config: args.store.config.display().to_string() });
    };
    let key_pem = zeroize::Zeroizing::new(read(key)?);
    let authority = Authority::from_pem(&read(certificate)?, &key_pem)?;
    Ok(authority.client(&args.name, UNIX_EPOCH + Duration::from_secs(now_s))?)
}

/// What a client needs: the names come from the gateway's certificate, the port from its first address.
fn profile(
    args: &UserAddArgs,
    config: &ServerConfig,
    identity: Option<&Identity>,
    now_s: u64,
) -> Result<Profile, UserError> {
    let path = &config.tls.certificate;
    let chain = read(path)?;
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<_, _>>().unwrap_or_default();
    let names = chain.first().map(|leaf| names(leaf)).unwrap_or_default();
    let Some(first) = names.first() else {
        return Err(UserError::NoServerName { path: path.display().to_string() });
    };
    let port = config.server.listen.port();
    Ok(Profile {
        servers: names.iter().map(|host| ServerAddress { host: host.clone(), port }).collect(),
        server_name: first.clone(),
        trust: trust(config, &chain, first, now_s),
        user: args.name.clone(),
        totp: args.totp,
        identity: identity.map(|identity| ClientIdentity {
            certificate_pem: identity.certificate_pem.clone(),
            key_pem: identity.key_pem.clone(),
        }),
        suites: Vec::new(),
        routes: Routes::Pushed,
        dns: true,
        lanes: crate::profile::DEFAULT_LANES,
        offload: crate::config::Offload::default(),
    })
}

/// DNS names without a wildcard, and addresses.
fn names(leaf: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(leaf) else { return Vec::new() };
    let Ok(Some(extension)) = parsed.subject_alternative_name() else { return Vec::new() };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) if !name.contains('*') => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => address(bytes).map(|address| address.to_string()),
        _ => None,
    };
    extension.value.general_names.iter().filter_map(name).collect()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Pins the gateway's own authority if it vouches for the certificate; else the certificate is of a public one.
fn trust(config: &ServerConfig, chain: &[CertificateDer<'static>], name: &str, now_s: u64) -> Trust {
    let pinned = config.tls.client_ca.as_deref().and_then(|path| {
        let ca_pem = read(path).ok()?;
        vouches(&ca_pem, chain, name, now_s).then_some(ca_pem)
    });
    pinned.map_or(Trust::System, |ca_pem| Trust::Pinned { ca_pem })
}

fn vouches(ca_pem: &str, chain: &[CertificateDer<'static>], name: &str, now_s: u64) -> bool {
    use rustls::client::danger::ServerCertVerifier as _;
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(ca_pem.as_bytes()).filter_map(Result::ok));
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(roots.into(), provider.into());
    let (Ok(verifier), Ok(name), Some((leaf, rest))) =
        (verifier.build(), ServerName::try_from(name), chain.split_first())
    else {
        return false;
    };
    let at = UnixTime::since_unix_epoch(Duration::from_secs(now_s));
    verifier.verify_server_cert(leaf, rest, &name, &[], at).is_ok()
}

fn read(path: &Path) -> Result<String, UserError> {
    std::fs::read_to_string(path)
        .map_err(|source| UserError::Read { path: path.display().to_string(), source })
}

#[cfg(test)]
mod tests;
