//! `vpnd device …`: WireGuard devices of users.
//!
//! Invariants: a private key that is made here is printed once and leaves this process in no other
//! way; a device that is refused has changed nothing. A running gateway learns of every change from
//! the store.

use std::io::{IsTerminal as _, Write};

use vpnd_admission::wireguard::configuration::Configuration;
use vpnd_admission::wireguard::new_device::{self, MAX_NAME_BYTES};
use vpnd_crypto::Secret;
use vpnd_wireguard::PublicKey;
use vpnd_wireguard::handshakes::NotAdded;
use vpnd_wireguard::key::{NotAKey, StaticKey};
use zeroize::Zeroizing;

use super::users::{self, UserError};
use crate::admin_store::{AdminStore, DeviceRequest, Opening, Stores, UserSummary, WireGuardSummary};
use crate::cli::{
    DeviceAddArgs, DeviceCommand, DeviceListArgs, DeviceRemoveArgs, DeviceRenewArgs, StoreArgs,
};
use vpnd_config::access_profile::Who;
use vpnd_config::endpoint::{Endpoint, NoEndpoint};
use vpnd_config::pool::Pool;
use vpnd_config::standing::Standing;
use vpnd_config::{AccessProfile, ServerConfig};
use vpnd_store::audit::AuditEntry;
use vpnd_store::{StoreError, totp};
use vpnd_sys::date::rfc3339;

/// An error of a command; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error(transparent)]
    User(#[from] UserError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("WireGuard is off: write enabled = true in [wireguard] of {config}, and restart the gateway")]
    Off { config: String },
    #[error("the user '{name}' is disabled; run 'vpnd user enable {name}' first")]
    Disabled { name: String },
    #[error("the user '{name}' has expired; run 'vpnd user modify {name} --expires DATE' first")]
    Expired { name: String },
    #[error(
        "the profile of '{name}' has no WireGuard devices: it requires a second factor or a recent login (max_login_age_s), or \
         says wireguard = false"
    )]
    NotAllowed { name: String },
    #[error("no access profile is for the user '{name}'; 'vpnd policy test' shows why")]
    NoProfile { name: String },
    #[error("--public-key: {0}")]
    NotAKey(#[from] NotAKey),
    #[error("--public-key: {0}")]
    NotAdded(#[from] NotAdded),
    #[error("the name of a device has at most {MAX_NAME_BYTES} bytes, none of them a control character")]
    Name,
    #[error("'{name}' has a WireGuard device named '{device}' already; choose another name")]
    NameTaken { name: String, device: String },
    #[error(
        "no address is free in the pools of the profile of '{name}'; make them larger, or remove devices"
    )]
    NoAddress { name: String },
    #[error(
        "{found} WireGuard devices of '{name}' are named '{wanted}' or have a key that begins so; 'vpnd device list' shows all"
    )]
    NoSuchDevice { name: String, wanted: String, found: usize },
    #[error(transparent)]
    NoEndpoint(#[from] NoEndpoint),
    /// The result could not be printed. What was done stays done.
    #[error(
        "can't print the result: {0}; what the command did stays done: a device whose configuration is lost is to be removed \
         ('vpnd device remove') and added again"
    )]
    Print(#[from] std::io::Error),
}

/// Runs one command and prints its result to `out`; `now_s` is the time in seconds since 1970.
///
/// # Errors
/// [`DeviceError`].
pub fn run(
    command: &DeviceCommand,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), DeviceError> {
    match command {
        DeviceCommand::Add(args) => add(args, stores, now_s, out),
        DeviceCommand::List(args) => list(args, stores, now_s, out),
        DeviceCommand::Remove(args) => remove(args, stores, now_s, out),
        DeviceCommand::Renew(args) => renew(args, stores, now_s, out),
    }
}

fn open(args: &StoreArgs, stores: &dyn Stores) -> Result<(ServerConfig, AdminStore), DeviceError> {
    let config = ServerConfig::load(&args.config).map_err(UserError::from)?;
    let store = stores.open(&config, Opening::Existing)?;
    Ok((config, store))
}

/// The user's name as its source has it.
fn canonical(config: &ServerConfig, name: &str) -> String {
    config.source_of(name).map_or_else(|| name.to_owned(), |(name, _)| name)
}

/// A key pair that is made here, or the public key of one that is not.
struct Keys {
    private: Option<Zeroizing<[u8; 32]>>,
    public: PublicKey,
}

impl Keys {
    fn of(args: &DeviceAddArgs) -> Result<Self, NotAKey> {
        if let Some(key) = &args.public_key {
            return Ok(Self { private: None, public: key.parse()? });
        }
        let mut private = Zeroizing::new(rand::random::<[u8; 32]>());
        // A key of the form that 'wg genkey' writes (RFC 7748 section 5).
        private[0] &= 248;
        private[31] = private[31] & 127 | 64;
        let public = StaticKey::new(Secret::new(*private)).public();
        Ok(Self { private: Some(private), public })
    }
}

fn add(
    args: &DeviceAddArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), DeviceError> {
    let keys = Keys::of(args)?;
    if !new_device::is_name(&args.name) {
        return Err(DeviceError::Name);
    }
    let (config, mut store) = open(&args.store, stores)?;
    if config.wireguard.is_none() {
        return Err(DeviceError::Off { config: args.store.config.display().to_string() });
    }
    let name = canonical(&config, &args.user);
    let user = users::existing(&mut store, &name)?;
    let (profile, pools) = permitted(&config, &user, now_s)?;
    let gateway = PublicKey(store.wireguard_key()?);
    new_device::check_key(keys.public, gateway)?;
    let is_named = |device: &WireGuardSummary| device.user == user.name && device.name == args.name;
    if !args.name.is_empty() && store.wireguard_devices()?.iter().any(is_named) {
        return Err(DeviceError::NameTaken { name, device: args.name.clone() });
    }
    let endpoint = Endpoint::of(&config)?;
    let preshared = args.preshared_key.then(|| Zeroizing::new(rand::random::<[u8; 32]>()));
    let request = DeviceRequest {
        user: &user.name,
        public_key: keys.public.0,
        id: new_device::id(keys.public).0,
        name: &args.name,
        preshared: preshared.as_ref(),
        candidates: pools.iter().map(new_device::candidates).collect(),
        most: profile.wireguard.max_devices,
    };
    let Some(addresses) = store.add_wireguard_device(request, now_s)? else {
        return Err(DeviceError::NoAddress { name });
    };
    audit(
        &mut store,
        "device-added",
        &user.name,
        &args.reason.behind(described(&args.name, keys.public)),
        now_s,
    )?;
    let configuration = Configuration {
        private: keys.private.as_ref(),
        public: keys.public,
        preshared: preshared.as_ref(),
        gateway,
        addresses: &addresses,
        endpoint: &endpoint,
        profile,
        tunnel: &config.tunnel,
    };
    print(&configuration.text(), keys.private.is_some(), out)
}

/// The user's profile and its pools, if the user may have a WireGuard device now.
fn permitted<'c>(
    config: &'c ServerConfig,
    user: &UserSummary,
    now_s: u64,
) -> Result<(&'c AccessProfile, Vec<Pool>), DeviceError> {
    let name = || user.name.clone();
    if !user.enabled {
        return Err(DeviceError::Disabled { name: name() });
    }
    if user.expires_s.is_some_and(|expires_s| expires_s <= now_s) {
        return Err(DeviceError::Expired { name: name() });
    }
    let who = Who { user: &user.name, source: &user.source, groups: &user.groups };
    let Some(position) = config.profiles.position(who) else {
        return Err(DeviceError::NoProfile { name: name() });
    };
    let profile = config.profiles.at(position);
    if !profile.wireguard.allowed {
        return Err(DeviceError::NotAllowed { name: name() });
    }
    let pools = config.profiles.pools(&config.tunnel)[position].iter().cloned().collect();
    Ok((profile, pools))
}

fn print(text: &Zeroizing<String>, is_secret: bool, out: &mut dyn Write) -> Result<(), DeviceError> {
    out.write_all(text.as_bytes())?;
    // A file or pipe has no use for it, nor a phone for a file without its key.
    if is_secret && std::io::stdout().is_terminal() {
        match totp::qr_code(text).map(Zeroizing::new) {
            Some(code) => write!(out, "\n{}", *code)?,
            None => eprintln!("vpnd: the configuration is too long for a QR code: it has too many routes"),
        }
    }
    Ok(())
}

fn list(
    args: &DeviceListArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), DeviceError> {
    let (config, mut store) = open(&args.store, stores)?;
    let mut devices = store.wireguard_devices()?;
    let wanted = args.user.as_ref().map(|user| canonical(&config, user));
    devices.retain(|device| wanted.as_ref().is_none_or(|user| device.user == *user));
    devices.sort_by(|a, b| (&a.user, &a.name).cmp(&(&b.user, &b.name)));
    let users = store.users()?;
    let state = |device: &WireGuardSummary| {
        let user = users.iter().find(|user| user.name == device.user);
        state(device, &config, user, now_s)
    };
    if args.json {
        let shown = devices.iter().map(|device| {
            serde_json::json!({
                "user": device.user,
                "name": device.name,
                "device": hex(&device.id[..]),
                "public_key": PublicKey(device.public_key.into()).to_string(),
                "addresses": device.addresses,
                "renewed_s": device.renewed_s,
                "walled_s": device.walled_s,
                "outer": device.outer,
                "state": state(device),
            })
        });
        return Ok(writeln!(out, "{}", serde_json::Value::from_iter(shown))?);
    }
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["USER", "DEVICE", "KEY", "ADDRESSES", "RENEWED", "STATE"]);
    for device in &devices {
        let addresses: Vec<_> = device.addresses.iter().map(ToString::to_string).collect();
        table.add_row([
            device.user.clone(),
            if device.name.is_empty() { "-".to_owned() } else { device.name.clone() },
            PublicKey(device.public_key.into()).short(),
            addresses.join(" "),
            rfc3339(device.renewed_s),
            state(device),
        ]);
    }
    Ok(writeln!(out, "{}", table.trim_fmt())?)
}

/// Whether the device would be let in, for people.
fn state(device: &WireGuardSummary, config: &ServerConfig, user: Option<&UserSummary>, now_s: u64) -> String {
    let profile = user.and_then(|user| {
        config.profiles.of(Who { user: &user.name, source: &user.source, groups: &user.groups })
    });
    let is_expired = user.and_then(|user| user.expires_s).is_some_and(|expires_s| expires_s <= now_s);
    let standing = Standing {
        user_may_connect: device.may_connect && !is_expired,
        renewed_s: device.renewed_s,
        walled_s: device.walled_s,
    };
    standing.state(profile, now_s)
}

fn remove(
    args: &DeviceRemoveArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), DeviceError> {
    let (config, mut store) = open(&args.store, stores)?;
    let device = find(&mut store, &canonical(&config, &args.user), &args.device)?;
    store.remove_wireguard_device(&device, now_s)?;
    audit(&mut store, "device-removed", &device.user, &args.reason.behind(device.described()), now_s)?;
    Ok(writeln!(
        out,
        "WireGuard device {} of '{}' removed; its session ends now",
        device.described(),
        device.user
    )?)
}

fn renew(
    args: &DeviceRenewArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), DeviceError> {
    let (config, mut store) = open(&args.store, stores)?;
    let device = find(&mut store, &canonical(&config, &args.user), &args.device)?;
    let user = users::existing(&mut store, &device.user)?;
    permitted(&config, &user, now_s)?;
    if !store.renew_wireguard_device(&device, args.reset_clock, now_s)? {
        let (name, wanted) = (args.user.clone(), args.device.clone());
        return Err(DeviceError::NoSuchDevice { name, wanted, found: 0 });
    }
    let detail = device.described() + if args.reset_clock { ", clock reset" } else { "" };
    audit(&mut store, "device-renewed", &device.user, &args.reason.behind(detail), now_s)?;
    Ok(writeln!(
        out,
        "WireGuard device {} of '{}' renewed; its configuration stays as it is",
        device.described(),
        device.user
    )?)
}

/// The only WireGuard device of the user with this name, or with a key that begins so.
fn find(store: &mut AdminStore, user: &str, wanted: &str) -> Result<WireGuardSummary, DeviceError> {
    let devices = store.wireguard_devices()?;
    let of_user: Vec<_> = devices.into_iter().filter(|device| device.user == user).collect();
    let is_wanted = |device: &&WireGuardSummary| {
        device.name == wanted
            || (!wanted.is_empty() && PublicKey(device.public_key.into()).to_string().starts_with(wanted))
    };
    let mut found: Vec<_> = of_user.iter().filter(is_wanted).collect();
    if found.iter().any(|device| device.name == wanted) {
        found.retain(|device| device.name == wanted);
    }
    match found[..] {
        [device] => Ok(device.clone()),
        _ => Err(DeviceError::NoSuchDevice {
            name: user.to_owned(),
            wanted: wanted.to_owned(),
            found: found.len(),
        }),
    }
}

impl WireGuardSummary {
    /// The name, if it has one, and the beginning of its key.
    fn described(&self) -> String {
        described(&self.name, PublicKey(self.public_key.into()))
    }
}

fn described(name: &str, key: PublicKey) -> String {
    if name.is_empty() { key.short() } else { format!("{name} ({})", key.short()) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn audit(
    store: &mut AdminStore,
    event: &str,
    user: &str,
    detail: &str,
    now_s: u64,
) -> Result<(), StoreError> {
    store.audit(AuditEntry {
        at_s: now_s,
        event: event.to_owned(),
        user: user.to_owned(),
        source: String::new(),
        detail: format!("WireGuard device {detail}"),
        by: String::new(),
    })
}

#[cfg(test)]
mod tests;
