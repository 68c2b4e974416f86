//! `vpnd user modify` and `vpnd user devices`.
//!
//! INVARIANT: a guest has an end date: a user with a sponsor keeps one.

use std::io::Write;
use std::net::IpAddr;

use vpnd_proto::session::DeviceId;

use super::{UserError, entry, open, write_secret};
use crate::admin_store::{AdminStore, DeviceSummary, Stores, UserSummary, WireGuardSummary};
use crate::cli::{ReasonArgs, UserChangeArgs, UserDevicesArgs, UserModifyArgs};
use vpnd_config::ServerConfig;
use vpnd_config::access_profile::Who;
use vpnd_config::profile::is_user_name;
use vpnd_store::totp;
use vpnd_store::{AddressChange, LOCAL, StoreError, UserChange};
use vpnd_sys::date::Expiry;

/// Characters of the longest note.
const MAX_NOTE_CHARS: usize = 500;

pub(super) fn modify(
    args: &UserModifyArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), UserError> {
    let (config, mut store) = open(&args.store, stores)?;
    let user = existing(&mut store, &args.name)?;
    if let Some(sponsor) = &args.change.sponsor {
        check_sponsor(&config, &mut store, sponsor)?;
    }
    let mut change = change_of(&args.change, &user)?;
    change.addresses = addresses(&config, &mut store, &args.change, &user, change.groups.as_deref())?;
    store.modify_user(&args.name, &change, now_s)?;
    let mut entry = entry("user-modified", &args.name, now_s);
    entry.detail = args.reason.behind(described(&change));
    store.audit(entry)?;
    writeln!(out, "user '{}' modified", args.name)?;
    if let Some(groups) = &change.groups {
        warn_without_profile(&config, Who { user: &user.name, source: &user.source, groups }, out)?;
    }
    if change.addresses.is_some() {
        writeln!(out, "sessions keep the addresses that they have; 'vpnd kick {}' ends them", args.name)?;
    }
    let secret = change.totp.flatten();
    write_secret(out, &config, secret.as_ref(), &args.name)
}

pub(in crate::commands) fn existing(store: &mut AdminStore, name: &str) -> Result<UserSummary, UserError> {
    let user = store.user(name)?;
    user.ok_or_else(|| StoreError::NoSuchUser { name: name.to_owned() }.into())
}

/// Says what a user without an access profile meets.
pub(super) fn warn_without_profile(
    config: &ServerConfig,
    who: Who<'_>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    if config.profiles.of(who).is_some() { Ok(()) } else { write_without_profile(who.user, out) }
}

/// Writes what a user meets whom no access profile is for.
pub(super) fn write_without_profile(name: &str, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(
        out,
        "no access profile is for '{name}': logins are refused until 'vpnd user modify {name} --add-group GROUP' names a group of one"
    )
}

/// A sponsor is a user here, or one of a source, who need not have been here.
pub(super) fn check_sponsor(
    config: &ServerConfig,
    store: &mut AdminStore,
    name: &str,
) -> Result<(), UserError> {
    if config.source_of(name).is_some() { Ok(()) } else { existing(store, name).map(drop) }
}

fn change_of(args: &UserChangeArgs, user: &UserSummary) -> Result<UserChange, UserError> {
    let groups = groups(args, user)?;
    if groups.is_some() && user.source != LOCAL {
        let (name, source_name) = (user.name.clone(), user.source.clone());
        return Err(StoreError::External { name, source_name }.into());
    }
    let sponsor = match (&args.sponsor, args.no_sponsor) {
        (None, false) => None,
        (sponsor, _) => Some(sponsor.clone()),
    };
    let change = UserChange {
        expires_s: args.expires.map(Expiry::seconds),
        sponsor,
        note: args.note.as_deref().map(note).transpose()?,
        groups,
        totp: if args.no_totp { Some(None) } else { args.totp.then(|| Some(totp::generate())) },
        addresses: None,
    };
    check_guest(
        &user.name,
        change.sponsor.as_ref().unwrap_or(&user.sponsor).as_deref(),
        change.expires_s.unwrap_or(user.expires_s),
    )?;
    Ok(change)
}

/// The fixed addresses afterwards, if some are named.
fn addresses(
    config: &ServerConfig,
    store: &mut AdminStore,
    args: &UserChangeArgs,
    user: &UserSummary,
    groups: Option<&[String]>,
) -> Result<Option<AddressChange>, UserError> {
    if args.address.is_empty() && !args.no_address {
        return Ok(None);
    }
    let who = Who { user: &user.name, source: &user.source, groups: groups.unwrap_or(&user.groups) };
    check_addresses(config, who, &args.address)?;
    let device = match &args.device {
        None => None,
        Some(prefix) => {
            let is_named = |device: &WireGuardSummary| {
                device.user == user.name && DeviceId(device.id.into()).to_string().starts_with(prefix)
            };
            if let Some(device) = store.wireguard_devices()?.iter().find(|device| is_named(device)) {
                return Err(UserError::OfWireGuard { device: DeviceId(device.id.into()).to_string() });
            }
            let devices = store.devices(&user.name)?;
            Some(DeviceId(device(&devices, &user.name, prefix)?.id.into()))
        }
    };
    Ok(Some(AddressChange { device, addresses: args.address.clone() }))
}

/// Refuses addresses that the user never gets.
pub(super) fn check_addresses(
    config: &ServerConfig,
    who: Who<'_>,
    addresses: &[IpAddr],
) -> Result<(), UserError> {
    for (at, address) in addresses.iter().enumerate() {
        let twice = addresses[..at].contains(address).then(|| "it is named twice".to_owned());
        if let Some(holder) = twice.or_else(|| config.unleasable(who, *address)) {
            let (address, name) = (*address, who.user.to_owned());
            return Err(StoreError::AddressTaken { address, name, holder }.into());
        }
    }
    Ok(())
}

/// Refuses a guest without an end date.
pub(super) fn check_guest(
    name: &str,
    sponsor: Option<&str>,
    expires_s: Option<u64>,
) -> Result<(), UserError> {
    match (sponsor, expires_s) {
        (Some(_), None) => Err(UserError::EndlessGuest { name: name.to_owned() }),
        _ => Ok(()),
    }
}

/// Checks a note.
pub(super) fn note(text: &str) -> Result<String, UserError> {
    let is_valid = text.chars().count() <= MAX_NOTE_CHARS && !text.chars().any(char::is_control);
    if is_valid { Ok(text.to_owned()) } else { Err(UserError::Note) }
}

/// The groups afterwards, if any are named.
fn groups(args: &UserChangeArgs, user: &UserSummary) -> Result<Option<Vec<String>>, UserError> {
    let named = [&args.group, &args.add_group, &args.remove_group].map(|list| !list.is_empty());
    if let Some(name) = args.group.iter().chain(&args.add_group).find(|name| !is_user_name(name)) {
        return Err(UserError::Name { name: name.clone() });
    }
    Ok(match named {
        [false, false, false] => None,
        [true, ..] => Some(args.group.clone()),
        _ => {
            let kept = user.groups.iter().filter(|group| !args.remove_group.contains(group));
            let added = args.add_group.iter().filter(|group| !user.groups.contains(group));
            Some(kept.chain(added).cloned().collect())
        }
    })
}

/// The names of what is changed and its new values, but for secrets and notes.
fn described(change: &UserChange) -> String {
    let UserChange { expires_s, sponsor, note, groups, totp, addresses } = change;
    let parts = [
        groups.as_ref().map(|groups| format!("groups: {}", groups.join(" "))),
        expires_s.map(|expires_s| format!("expires: {}", Expiry::from(expires_s))),
        sponsor.as_ref().map(|sponsor| format!("sponsor: {}", sponsor.as_deref().unwrap_or("none"))),
        note.as_ref().map(|_| "note".to_owned()),
        totp.as_ref().map(|totp| format!("totp: {}", if totp.is_some() { "new" } else { "none" })),
        addresses.as_ref().map(|change| match &change.addresses[..] {
            [] => "addresses: any".to_owned(),
            fixed => {
                format!("addresses: {}", fixed.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            }
        }),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

pub(super) fn devices(
    args: &UserDevicesArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), UserError> {
    let (_, mut store) = open(&args.store, stores)?;
    let user = existing(&mut store, &args.name)?;
    let devices = store.devices(&args.name)?;
    let Some(prefix) = &args.remove else { return list(&devices, &user, args.json, out) };
    let device = device(&devices, &args.name, prefix)?;
    store.remove_device(&args.name, device, now_s)?;
    let mut entry = entry("device-removed", &args.name, now_s);
    entry.detail = ReasonArgs { reason: args.reason.clone() }.behind(device.name());
    store.audit(entry)?;
    Ok(writeln!(out, "device {} of '{}' removed; its sessions end now", device.name(), args.name)?)
}

/// The only device whose name begins so.
fn device<'d>(
    devices: &'d [DeviceSummary],
    name: &str,
    prefix: &str,
) -> Result<&'d DeviceSummary, UserError> {
    let named: Vec<&DeviceSummary> =
        devices.iter().filter(|device| device.name().starts_with(prefix)).collect();
    let [device] = named[..] else {
        let (name, prefix, found) = (name.to_owned(), prefix.to_owned(), named.len());
        return Err(UserError::NoSuchDevice { name, prefix, found });
    };
    Ok(device)
}

/// A device as scripts read it.
pub(super) fn shown(device: &DeviceSummary, user: &UserSummary) -> serde_json::Value {
    serde_json::json!({
        "device": device.name(),
        "addresses": device.addresses,
        "session_since_s": device.session_since_s,
        "fixed_addresses": fixed(device, user),
    })
}

fn fixed(device: &DeviceSummary, user: &UserSummary) -> Vec<String> {
    let own = user.fixed_addresses.iter().filter(|fixed| fixed.device == Some(device.id));
    own.map(|fixed| fixed.address.to_string()).collect()
}

fn list(
    devices: &[DeviceSummary],
    user: &UserSummary,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), UserError> {
    if json {
        let devices = devices.iter().map(|device| shown(device, user));
        return Ok(writeln!(out, "{}", serde_json::Value::from_iter(devices))?);
    }
    let addresses =
        |device: &DeviceSummary| device.addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["DEVICE", "SESSION SINCE", "ADDRESSES", "FIXED"]);
    for device in devices {
        let since = device.session_since_s.map_or_else(|| "-".to_owned(), |s| Expiry::At(s).to_string());
        let fixed = Some(fixed(device, user).join(" ")).filter(|fixed| !fixed.is_empty());
        let fixed = fixed.unwrap_or_else(|| "-".to_owned());
        table.add_row([device.name(), since, addresses(device).join(" "), fixed]);
    }
    Ok(writeln!(out, "{}", table.trim_fmt())?)
}
