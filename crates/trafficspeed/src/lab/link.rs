//! Connects the gateway with its clients: devices, addresses, routes, forwarding.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::emulator::{Carriage, Emulator};
use super::namespace::Namespace;
use super::{CLIENT_LINK, Lab, LabError, LinkSettings, run_tool};

/// Frames that wait for the emulator's thread at most, for each device.
const TAP_QUEUE: u32 = 2000;

/// Makes all links of a lab; what carries the frames of emulated ones is returned.
pub fn connect(
    gateway: &Namespace,
    clients: &[Namespace],
    settings: LinkSettings,
) -> Result<Option<Emulator>, LabError> {
    gateway.sysctl("net/ipv4/ip_forward", "1")?;
    gateway.sysctl("net/ipv6/conf/all/forwarding", "1")?;
    let (v4, v6) = (Lab::SERVICE_V4, Lab::SERVICE_V6);
    batch(gateway, &format!("addr add {v4}/32 dev lo\naddr add {v6}/128 dev lo nodad\n"))?;
    let emulator = settings.emulation.map(|emulation| {
        Emulator::new(emulation, Carriage::new(&emulation, settings.offload, clients.len()))
    });
    let mut emulator = emulator.transpose()?;
    for (client, number) in clients.iter().zip(1..) {
        quiet(client)?;
        make_devices(gateway, client, number, settings, emulator.as_mut())?;
        batch(gateway, &gateway_script(number))?;
        batch(client, &client_script(number))?;
    }
    Ok(emulator)
}

/// The gateway's device of the link to client `number`.
fn gateway_device(number: u32) -> String {
    format!("c{number}")
}

/// Whether a device of this name is an end of one of the lab's own links.
pub(super) fn is_end(device: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    device == CLIENT_LINK || device.strip_prefix('c').is_some_and(is_number)
}

/// Makes both ends of a link, without addresses.
fn make_devices(
    gateway: &Namespace,
    client: &Namespace,
    number: u32,
    settings: LinkSettings,
    emulator: Option<&mut Emulator>,
) -> Result<(), LabError> {
    let (device, mtu) = (gateway_device(number), settings.mtu);
    if let Some(emulator) = emulator {
        emulator.link((gateway, &device), (client, CLIENT_LINK))?;
        // A longer queue than usual: bursts of many streams are to be lost only where that was
        // asked for.
        let script = |device: &str| format!("link set {device} mtu {mtu} txqueuelen {TAP_QUEUE}\n");
        batch(gateway, &script(&device))?;
        return batch(client, &script(CLIENT_LINK));
    }
    let peer = client.name();
    batch(
        gateway,
        &format!("link add {device} mtu {mtu} type veth peer name {CLIENT_LINK} netns {peer} mtu {mtu}\n"),
    )?;
    if settings.sends_single_packets() {
        offload_off(gateway, &device)?;
        offload_off(client, CLIENT_LINK)?;
    }
    Ok(())
}

fn gateway_script(number: u32) -> String {
    let device = gateway_device(number);
    let (v4, v6) = (Lab::gateway_v4(number), Lab::gateway_v6(number));
    // A server that answers from a wildcard socket then answers from the address that its clients
    // called.
    let (service_v4, service_v6) = (Lab::SERVICE_V4, Lab::SERVICE_V6);
    let (net_v4, net_v6) = (Lab::client_v4(number), Lab::client_v6(number));
    format!(
        "addr add {v4}/24 dev {device}\n\
         addr add {v6}/64 dev {device} nodad\n\
         link set {device} up\n\
         route add {net_v4}/32 dev {device} src {service_v4}\n\
         route add {net_v6}/128 dev {device} src {service_v6}\n"
    )
}

fn client_script(number: u32) -> String {
    let (v4, v6) = (Lab::client_v4(number), Lab::client_v6(number));
    let (gateway_v4, gateway_v6) = (Lab::gateway_v4(number), Lab::gateway_v6(number));
    format!(
        "addr add {v4}/24 dev {CLIENT_LINK}\n\
         addr add {v6}/64 dev {CLIENT_LINK} nodad\n\
         link set {CLIENT_LINK} up\n\
         route add default via {gateway_v4}\n\
         route add ::/0 via {gateway_v6} dev {CLIENT_LINK}\n"
    )
}

/// A client takes no router advertisements, so that nothing but the script decides its routes.
pub(super) fn quiet(client: &Namespace) -> Result<(), LabError> {
    client.sysctl("net/ipv6/conf/default/accept_ra", "0")
}

/// Frames cross the link one by one as on a wire; the receiving end gathers them as a network
/// card's driver would.
pub(super) fn offload_off(namespace: &Namespace, device: &str) -> Result<(), LabError> {
    run_tool(Command::new("ip").args(["netns", "exec", namespace.name(), "ethtool", "-K", device]).args([
        "tso",
        "off",
        "gso",
        "off",
        "tx-udp-segmentation",
        "off",
        "gro",
        "on",
    ]))
    .map(drop)
}

/// Runs lines of `ip` commands in one process.
pub(super) fn batch(namespace: &Namespace, script: &str) -> Result<(), LabError> {
    let text = format!("ip -n {} -batch -", namespace.name());
    let failed = |reason: String| LabError::Tool { command: text.clone(), reason };
    let mut child = Command::new("ip")
        .args(["-n", namespace.name(), "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let mut input = child.stdin.take().expect("its standard input is piped");
    // A tool that has ended already says why on its standard error, which is read below.
    let _ = input.write_all(script.as_bytes());
    drop(input);
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_ends_and_tunnel_devices_are_distinguished() {
        assert!(is_end(CLIENT_LINK) && is_end(&gateway_device(1)) && is_end(&gateway_device(254)));
        for other in ["tun0", "wg0", "ipsec0", "vpn_lab", "tap_lab", "c", "campus0", "c1a"] {
            assert!(!is_end(other), "{other}");
        }
    }
}
