//! One network device of a namespace: what it has carried, and what the kernel would send through
//! it.
//!
//! Readings are plain values; the difference of two is what was carried between them. Nothing here
//! knows which device belongs to a VPN.

use std::collections::HashMap;
use std::fs;
use std::net::IpAddr;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::link::is_end;
use super::namespace::Namespace;
use super::{LabError, run_tool};

/// A device's counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes; a super-packet counts its headers once.
    pub bytes: u64,
    /// Packets; a super-packet counts once.
    pub packets: u64,
    /// Packets that were damaged or failed.
    pub errors: u64,
    /// Packets that were thrown away, for example because a queue was full.
    pub dropped: u64,
}

/// A device's counters since it was made, or between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// From the network, or out of the tunnel, to this host.
    pub received: Traffic,
    /// From this host into the network or the tunnel.
    pub sent: Traffic,
}

impl Traffic {
    /// Bytes of a packet on average, a super-packet being one; `None` of no packets.
    pub fn bytes_each(self) -> Option<f64> {
        (self.packets > 0).then(|| self.bytes as f64 / self.packets as f64)
    }

    fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            packets: self.packets + other.packets,
            errors: self.errors + other.errors,
            dropped: self.dropped + other.dropped,
        }
    }

    /// The difference from an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(earlier.bytes),
            packets: self.packets.saturating_sub(earlier.packets),
            errors: self.errors.saturating_sub(earlier.errors),
            dropped: self.dropped.saturating_sub(earlier.dropped),
        }
    }
}

impl Counters {
    /// The difference from an earlier reading of the same device.
    pub fn since(self, earlier: Self) -> Self {
        Self { received: self.received.since(earlier.received), sent: self.sent.since(earlier.sent) }
    }

    /// Reads all devices of `namespace`, by name.
    pub fn read(namespace: &Namespace) -> Result<HashMap<String, Self>, LabError> {
        let action = format!("reading the devices of namespace {}", namespace.name());
        // The thread's own view: /proc/net would be that of the program's first thread, which is
        // outside.
        let text = namespace.within(|| {
            fs::read_to_string("/proc/thread-self/net/dev")
                .map_err(|source| LabError::System { action, source })
        })?;
        Ok(text.lines().filter_map(Self::parse).collect())
    }

    /// Bytes that all of the lab's own links have brought to `namespace`.
    pub fn received_over_links(namespace: &Namespace) -> Result<Traffic, LabError> {
        let devices = Self::read(namespace)?;
        let links = devices.iter().filter(|(name, _)| is_end(name)).map(|(_, counters)| counters.received);
        Ok(links.fold(Traffic::default(), Traffic::and))
    }

    /// Reads one line of /proc/net/dev; `None` for the two lines of its head.
    fn parse(line: &str) -> Option<(String, Self)> {
        let (name, rest) = line.split_once(':')?;
        let numbers: Vec<u64> = rest.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let traffic = |at: usize| {
            let [bytes, packets, errors, dropped] = *numbers.get(at..at + 4)? else { return None };
            Some(Traffic { bytes, packets, errors, dropped })
        };
        Some((name.trim().to_owned(), Self { received: traffic(0)?, sent: traffic(8)? }))
    }
}

/// A device as it is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: u32,
    pub addresses: Vec<IpAddr>,
}

impl Device {
    /// All devices of `namespace`.
    pub fn all(namespace: &Namespace) -> Result<Vec<Self>, LabError> {
        let text = run_tool(Command::new("ip").args(["-n", namespace.name(), "-json", "addr", "show"]))?;
        let shown: Vec<Shown> = serde_json::from_str(&text).map_err(|error| LabError::Tool {
            command: "ip -json addr show".into(),
            reason: error.to_string(),
        })?;
        Ok(shown.into_iter().map(Shown::into_device).collect())
    }
}

/// A device as `ip -json addr show` shows it.
#[derive(Debug, Deserialize)]
struct Shown {
    ifname: String,
    mtu: u32,
    #[serde(default)]
    addr_info: Vec<ShownAddress>,
}

#[derive(Debug, Deserialize)]
struct ShownAddress {
    #[serde(default)]
    local: String,
}

impl Shown {
    fn into_device(self) -> Device {
        let addresses = self.addr_info.iter().filter_map(|address| address.local.parse().ok()).collect();
        Device { name: self.ifname, mtu: self.mtu, addresses }
    }
}

/// A TUN or TAP device and how many packets wait at most for the program behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    pub name: String,
    /// Length of its transmit queue, in (super-)packets.
    pub queue: u32,
}

/// A device as `ip -json -details link show` shows it.
#[derive(Debug, Deserialize)]
struct ShownLink {
    ifname: String,
    #[serde(default)]
    txqlen: u32,
    #[serde(default)]
    linkinfo: ShownKind,
}

#[derive(Debug, Default, Deserialize)]
struct ShownKind {
    #[serde(default)]
    info_kind: String,
}

impl ShownLink {
    fn all(namespace: &Namespace) -> Result<Vec<Self>, LabError> {
        let mut command = Command::new("ip");
        command.args(["-n", namespace.name(), "-json", "-details", "link", "show"]);
        serde_json::from_str(&run_tool(&mut command)?).map_err(|error| LabError::Tool {
            command: "ip -json -details link show".into(),
            reason: error.to_string(),
        })
    }
}

/// The kind of a device, such as `tun` or `wireguard`; empty if it has none or is not there.
pub fn kind(namespace: &Namespace, device: &str) -> Result<String, LabError> {
    let shown = ShownLink::all(namespace)?.into_iter().find(|link| link.ifname == device);
    Ok(shown.map(|link| link.linkinfo.info_kind).unwrap_or_default())
}

impl Tunnel {
    /// All of `namespace`, without the ends of the lab's own links, which an emulator makes of TAP
    /// devices.
    pub fn all(namespace: &Namespace) -> Result<Vec<Self>, LabError> {
        Ok(Self::of(ShownLink::all(namespace)?))
    }

    fn of(shown: Vec<ShownLink>) -> Vec<Self> {
        let is_tunnel = |link: &ShownLink| link.linkinfo.info_kind == "tun" && !is_end(&link.ifname);
        let tunnels = shown.into_iter().filter(is_tunnel);
        tunnels.map(|link| Self { name: link.ifname, queue: link.txqlen }).collect()
    }

    /// Gives it a transmit queue of this many packets; the kernel resizes the ring behind it too.
    pub fn set_queue(&self, namespace: &Namespace, packets: u32) -> Result<(), LabError> {
        namespace.ip(&["link", "set", &self.name, "txqueuelen", &packets.to_string()])
    }
}

/// The device through which `namespace` would send to `address`.
///
/// # Errors
/// [`LabError::Tool`], also when there is no route at all.
pub fn towards(namespace: &Namespace, address: IpAddr) -> Result<String, LabError> {
    let mut command = Command::new("ip");
    command.args(["-n", namespace.name(), "-json", "route", "get", &address.to_string()]);
    let text = run_tool(&mut command)?;
    let unreadable =
        |reason: String| LabError::Tool { command: format!("ip -json route get {address}"), reason };
    let routes: Vec<Route> = serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
    routes.into_iter().next().map(|route| route.dev).ok_or_else(|| unreadable("it showed no route".into()))
}

/// A route as `ip -json route get` shows it.
#[derive(Debug, Deserialize)]
struct Route {
    dev: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_is_read_and_its_head_is_not() {
        let line = "  tun0: 1000 10 1 2 0 0 0 0  2000 20 3 4 0 0 0 0";
        let (name, counters) = Counters::parse(line).unwrap();
        assert_eq!(name, "tun0");
        assert_eq!(counters.received, Traffic { bytes: 1000, packets: 10, errors: 1, dropped: 2 });
        assert_eq!(counters.sent, Traffic { bytes: 2000, packets: 20, errors: 3, dropped: 4 });
        assert_eq!((counters.sent.bytes_each(), Traffic::default().bytes_each()), (Some(100.0), None));
        assert_eq!(counters.received.and(counters.sent).packets, 30);
        assert_eq!(Counters::parse("Inter-|   Receive  |  Transmit"), None);
        assert_eq!(Counters::parse(" face |bytes    packets"), None);
        assert_eq!(Counters::parse("tun0: 1 2 3"), None);
    }

    #[test]
    fn a_device_is_read_with_the_addresses_that_it_has() {
        let text = r#"[{"ifname":"lo","mtu":65536},{"ifname":"tun0","mtu":1420,"x":1,"addr_info":
            [{"local":"10.0.0.1"},{"local":"fd00::1","scope":"global"},{}]}]"#;
        let shown: Vec<Shown> = serde_json::from_str(text).unwrap();
        let devices: Vec<Device> = shown.into_iter().map(Shown::into_device).collect();
        assert_eq!((devices[1].name.as_str(), devices[1].mtu), ("tun0", 1420));
        assert_eq!(devices[1].addresses, ["10.0.0.1".parse::<IpAddr>().unwrap(), "fd00::1".parse().unwrap()]);
        assert!(devices[0].addresses.is_empty());
    }

    #[test]
    fn tunnels_are_tun_and_tap_devices_that_are_no_links_of_the_lab() {
        let text = r#"[{"ifname":"lo","txqlen":1000},
            {"ifname":"tun0","txqlen":500,"linkinfo":{"info_kind":"tun","info_data":{"type":"tun"}}},
            {"ifname":"tap_lab","txqlen":1000,"linkinfo":{"info_kind":"tun","info_data":{"type":"tap"}}},
            {"ifname":"c1","txqlen":2000,"linkinfo":{"info_kind":"tun"}},
            {"ifname":"eth0","txqlen":2000,"linkinfo":{"info_kind":"tun"}},
            {"ifname":"lan","txqlen":1000,"linkinfo":{"info_kind":"veth"}}]"#;
        let found = Tunnel::of(serde_json::from_str(text).unwrap());
        let found: Vec<_> = found.iter().map(|tunnel| (tunnel.name.as_str(), tunnel.queue)).collect();
        assert_eq!(found, [("tun0", 500), ("tap_lab", 1000)]);
    }

    #[test]
    fn two_readings_differ_by_what_was_carried() {
        let (_, early) = Counters::parse("a: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0").unwrap();
        let (_, late) = Counters::parse("a: 15 3 0 1 0 0 0 0 20 2 7 0 0 0 0 0").unwrap();
        let carried = late.since(early);
        assert_eq!(carried.received, Traffic { bytes: 5, packets: 2, errors: 0, dropped: 1 });
        assert_eq!(carried.sent, Traffic { errors: 7, ..Traffic::default() });
        assert_eq!(
            early.since(late).received,
            Traffic::default(),
            "a device that was made anew counts nothing"
        );
    }
}
