//! Pages about the devices of a user.

use askama::Template;

use super::Frame;
use crate::browser::hex;
use vpnd_ipc::gateway::portal::Provider;
use vpnd_ipc::gateway::portal::devices::{OwnDevice, OwnDevices};
use vpnd_ipc::gateway::portal::visits::System;

#[derive(Template)]
#[template(path = "devices.html")]
pub(crate) struct DevicesPage<'p> {
    frame: Frame<'p>,
    form: String,
    notice: Option<&'p str>,
    devices: Vec<ShownDevice>,
}

/// A device, in words.
pub(super) struct ShownDevice {
    pub(super) device: String,
    pub(super) kind: &'static str,
    /// The name of a WireGuard device.
    pub(super) name: Option<String>,
    pub(super) key: Option<String>,
    pub(super) addresses: String,
    pub(super) from: String,
    pub(super) state: String,
    pub(super) added: Option<String>,
    pub(super) renewed: Option<String>,
    pub(super) seen: Option<String>,
    pub(super) has_session: bool,
    pub(super) is_walled: bool,
}

/// The reader of a page about devices.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    Owner,
    /// The help desk, which renews none by pages: a portal that was taken over could, too.
    Desk,
}

#[derive(Template)]
#[template(path = "add_device.html")]
pub(crate) struct AddDevicePage<'p> {
    pub(crate) frame: Frame<'p>,
    pub(crate) form: String,
    /// The fields as they were typed before.
    pub(crate) name: &'p str,
    pub(crate) problem: Option<&'p str>,
    /// Whether the user may add WireGuard devices.
    pub(crate) wireguard: bool,
    /// Whether there is a profile for vpnd's own client.
    pub(crate) profile: bool,
    /// The browser's.
    pub(crate) system: System,
}

impl AddDevicePage<'_> {
    /// Whether vpnd's own client comes first.
    fn is_linux(&self) -> bool {
        self.system == System::Linux
    }

    /// The steps with WireGuard on this system, if it is known.
    fn steps(&self) -> Option<&'static str> {
        let apps = &self.frame.texts.devices.apps;
        apps.iter().find(|(system, ..)| *system == self.system).map(|(.., steps)| *steps)
    }

    /// Names of all other systems, and the steps there.
    fn other_steps(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let others = self.frame.texts.devices.apps.iter().filter(|(system, ..)| *system != self.system);
        others.map(|(_, name, steps)| (*name, *steps))
    }
}

/// The way to a login page that a device whose session is over may not reach.
#[derive(Template)]
#[template(path = "walled.html")]
pub(crate) struct WalledPage<'p> {
    pub(crate) frame: Frame<'p>,
    pub(crate) provider: &'p Provider,
    /// Query with which the login goes on from here.
    pub(crate) query: String,
}

#[derive(Template)]
#[template(path = "added_device.html")]
pub(crate) struct AddedDevicePage<'p> {
    pub(crate) frame: Frame<'p>,
    /// Without the private key.
    pub(crate) configuration: &'p str,
}

impl<'p> DevicesPage<'p> {
    pub(crate) fn new(frame: Frame<'p>, form: String, devices: &OwnDevices, notice: Option<&'p str>) -> Self {
        let shown =
            devices.devices.iter().map(|device| ShownDevice::new(&frame, device, Reader::Owner)).collect();
        Self { frame, form, notice, devices: shown }
    }
}

impl ShownDevice {
    pub(super) fn new(frame: &Frame<'_>, device: &OwnDevice, reader: Reader) -> Self {
        let (texts, own) = (frame.texts, &frame.texts.devices);
        let wireguard = device.wireguard.as_ref();
        let is_walled = wireguard.is_some_and(|wireguard| wireguard.left_s == Some(0));
        let name = |name: &str| if name.is_empty() { own.without_name.to_owned() } else { name.to_owned() };
        let state = match (device.session_age_s, wireguard) {
            // With the session in which it reaches this page, perhaps.
            _ if is_walled && reader == Reader::Desk => texts.desk.has_to_be_renewed.to_owned(),
            _ if is_walled => own.has_to_be_renewed.to_owned(),
            (Some(_), Some(wireguard)) if wireguard.in_two_places => own.in_two_places.to_owned(),
            (Some(age_s), _) => format!("{} ({})", own.connected, (texts.ago)(age_s)),
            (None, Some(wireguard)) => format!("{}. {}", own.not_connected, (own.left)(wireguard.left_s)),
            (None, None) => own.not_connected.to_owned(),
        };
        Self {
            device: hex(&*device.device),
            kind: if wireguard.is_some() { own.wireguard } else { own.client },
            name: wireguard.map(|wireguard| name(&wireguard.name)),
            key: wireguard.map(|wireguard| wireguard.key.to_string()),
            addresses: device.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            from: match (device.from, &device.network) {
                (Some(from), _) => from.to_string(),
                (None, Some(network)) => network.to_string(),
                (None, None) => texts.not_known.to_owned(),
            },
            state,
            added: device.added_age_s.map(texts.earlier),
            seen: match device.unseen_s {
                Some(0) if !is_walled => None,
                Some(unseen_s) => Some((texts.earlier)(unseen_s)),
                None => Some(own.never.to_owned()),
            },
            renewed: wireguard
                .filter(|wireguard| Some(wireguard.renewed_age_s) != device.added_age_s)
                .map(|wireguard| (texts.earlier)(wireguard.renewed_age_s)),
            has_session: device.session_age_s.is_some() && !is_walled,
            is_walled,
        }
    }
}
