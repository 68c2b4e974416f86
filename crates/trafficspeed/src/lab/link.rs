//! Connects the gateway with its clients: veth pairs, addresses, routes, forwarding.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::namespace::Namespace;
use super::{CLIENT_LINK, Lab, LabError, LinkSettings, run_tool};

/// Makes all links of a lab.
///
/// # Errors
/// [`LabError::Tool`], [`LabError::System`].
pub fn connect(gateway: &Namespace, clients: &[Namespace], settings: LinkSettings) -> Result<(), LabError> {
    gateway.sysctl("net/ipv4/ip_forward", "1")?;
    gateway.sysctl("net/ipv6/conf/all/forwarding", "1")?;
    let (v4, v6) = (Lab::SERVICE_V4, Lab::SERVICE_V6);
    batch(gateway, &format!("addr add {v4}/32 dev lo\naddr add {v6}/128 dev lo nodad\n"))?;
    for (client, number) in clients.iter().zip(1..) {
        quiet(client)?;
        batch(gateway, &gateway_script(client, number, settings.mtu))?;
        batch(client, &client_script(number))?;
        if !settings.offload {
            offload_off(gateway, &format!("c{number}"))?;
            offload_off(client, CLIENT_LINK)?;
        }
    }
    Ok(())
}

fn gateway_script(client: &Namespace, number: u32, mtu: u32) -> String {
    let mut script = String::new();
    let peer = client.name();
    let (v4, v6) = (Lab::gateway_v4(number), Lab::gateway_v6(number));
    writeln!(script, "link add c{number} mtu {mtu} type veth peer name {CLIENT_LINK} netns {peer} mtu {mtu}")
        .expect("writing to a string");
    writeln!(script, "addr add {v4}/24 dev c{number}").expect("writing to a string");
    writeln!(script, "addr add {v6}/64 dev c{number} nodad").expect("writing to a string");
    writeln!(script, "link set c{number} up").expect("writing to a string");
    // A server that answers from a wildcard socket then answers from the address that its clients called.
    let (service_v4, service_v6) = (Lab::SERVICE_V4, Lab::SERVICE_V6);
    let (net_v4, net_v6) = (Lab::client_v4(number), Lab::client_v6(number));
    writeln!(script, "route add {net_v4}/32 dev c{number} src {service_v4}").expect("writing to a string");
    writeln!(script, "route add {net_v6}/128 dev c{number} src {service_v6}").expect("writing to a string");
    script
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
fn quiet(client: &Namespace) -> Result<(), LabError> {
    client.sysctl("net/ipv6/conf/default/accept_ra", "0")
}

/// Frames cross the link one by one as on a wire; the receiving end gathers them as a network card's driver would.
fn offload_off(namespace: &Namespace, device: &str) -> Result<(), LabError> {
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
fn batch(namespace: &Namespace, script: &str) -> Result<(), LabError> {
    let text = format!("ip -n {} -batch -", namespace.name());
    let failed = |why: String| LabError::Tool { command: text.clone(), why };
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
