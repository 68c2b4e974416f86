//! Commands for `vpncmd`, line by line as one would type them, and its answers.

use std::fmt::Write as _;

use crate::lab::Lab;

/// The clients' virtual Ethernet device; SoftEther puts `vpn_` before the name that it is given.
pub const DEVICE: &str = "vpn_lab";
/// How vpncmd reaches the server.
pub const SERVER_TARGET: [&str; 2] = ["127.0.0.1:443", "/SERVER"];
/// How vpncmd reaches a client.
pub const CLIENT_TARGET: [&str; 2] = ["127.0.0.1", "/CLIENT"];
/// The gateway's TAP device, joined to the hub; SoftEther puts `tap_` before the name that it is
/// given.
pub const BRIDGE_DEVICE: &str = "tap_lab";
/// Makes that device.
pub const BRIDGE: &str = "BridgeCreate LAB /DEVICE:lab /TAP:yes\n";
/// Asks for nothing; that it is answered shows that the program is up.
pub const ABOUT: &str = "About\n";
/// Asks a client for its connection.
pub const STATUS: &str = "AccountStatusGet lab\n";
/// Parallel TCP connections of one client; SoftEther advises 8 for fast lines.
pub const CONNECTIONS: u32 = 8;
const PORT: u16 = 443;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Over parallel TCP connections with TLS.
    Tcp,
    /// Over UDP once it is found to work, with the TCP connections in reserve.
    Udp,
}

impl Transport {
    /// A remark for readers of the figures.
    pub fn note(self) -> &'static str {
        match self {
            Self::Tcp => "8 TCP connections for each client; the virtual hub switches between clients",
            Self::Udp => "UDP acceleration; the virtual hub switches between clients",
        }
    }
}

/// Makes the hub and its users.
pub fn hub(secrets: &[[u64; 2]]) -> String {
    let mut text = "HubCreate LAB /PASSWORD:none\nHub LAB\n".to_owned();
    for (secret, n) in secrets.iter().zip(1..) {
        let password = password(secret);
        write!(
            text,
            "UserCreate client{n} /GROUP:none /REALNAME:none /NOTE:none\n\
             UserPasswordSet client{n} /PASSWORD:{password}\n"
        )
        .expect("writing to a string");
    }
    text
}

/// Makes a client's device and connects it.
pub fn client(number: u32, secret: &[u64; 2], transport: Transport, encrypt: bool) -> String {
    let (server, password) = (Lab::SERVICE_V4, password(secret));
    let disable_udp = if transport == Transport::Tcp { "yes" } else { "no" };
    let encryption = if encrypt { "AccountEncryptEnable" } else { "AccountEncryptDisable" };
    // Without /DISABLEUDP the whole command does nothing and reports success.
    format!(
        "NicCreate lab\n\
         AccountCreate lab /SERVER:{server}:{PORT} /HUB:LAB /USERNAME:client{number} /NICNAME:lab\n\
         AccountPasswordSet lab /PASSWORD:{password} /TYPE:standard\n\
         AccountDetailSet lab /MAXTCP:{CONNECTIONS} /INTERVAL:1 /TTL:0 /HALF:no /BRIDGE:no /MONITOR:no /NOTRACK:no \
         /NOQOS:no /DISABLEUDP:{disable_udp}\n\
         {encryption} lab\n\
         AccountConnect lab\n"
    )
}

fn password(secret: &[u64; 2]) -> String {
    format!("{:016x}{:016x}", secret[0], secret[1])
}

/// Whether a command failed; vpncmd goes on after one and tells by its exit code about the last
/// only.
pub fn is_refused(said: &str) -> bool {
    said.contains("Error occurred.") || said.contains("Command not found.")
}

/// The version that vpncmd says, which comes from the same source as the others.
pub fn version(said: &str) -> Option<&str> {
    said.lines().map(str::trim).find(|line| line.starts_with("Version "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_client_get_its_password_and_no_other() {
        let secrets = [[1, 2], [3, 4]];
        let hub = hub(&secrets);
        let clients = [1, 2].map(|n| client(n, &secrets[n as usize - 1], Transport::Tcp, true));
        let words = ["00000000000000010000000000000002", "00000000000000030000000000000004"];
        assert!(hub.contains(&format!("client1 /PASSWORD:{}", words[0])), "{hub}");
        assert!(hub.contains(&format!("client2 /PASSWORD:{}", words[1])), "{hub}");
        assert!(clients[0].contains(words[0]) && !clients[0].contains(words[1]));
        assert!(clients[1].contains(words[1]) && clients[1].contains("/USERNAME:client2 "));
    }

    #[test]
    fn the_bridge_is_to_the_hub_and_makes_the_device_that_is_waited_for() {
        assert!(hub(&[]).starts_with("HubCreate LAB ") && BRIDGE.starts_with("BridgeCreate LAB "));
        let device = BRIDGE_DEVICE.strip_prefix("tap_").expect("SoftEther's own prefix");
        assert!(BRIDGE.contains(&format!("/DEVICE:{device} /TAP:yes")));
    }

    #[test]
    fn transport_and_encryption_are_what_was_asked_for() {
        let tcp = client(1, &[0; 2], Transport::Tcp, true);
        assert!(tcp.contains("/DISABLEUDP:yes") && tcp.contains("AccountEncryptEnable lab"), "{tcp}");
        let udp = client(1, &[0; 2], Transport::Udp, false);
        assert!(udp.contains("/DISABLEUDP:no") && udp.contains("AccountEncryptDisable lab"), "{udp}");
        assert!(Transport::Tcp.note().contains(&CONNECTIONS.to_string()));
    }

    #[test]
    fn one_failed_command_among_many_is_noticed() {
        let good = "Hub command\nThe command completed successfully.\n";
        assert!(!is_refused(good));
        assert!(is_refused(&format!("Error occurred. (Error code: 29)\nObject not found.\n{good}")));
        assert!(is_refused(&format!("\"Foo\": Command not found. \n{good}")));
    }

    #[test]
    fn the_version_is_in_the_programs_own_words() {
        let said =
            "vpncmd command - SoftEther VPN\nDeveloper Edition\nVersion 5.01 Build 9674   (English)\nX\n";
        assert_eq!(version(said), Some("Version 5.01 Build 9674   (English)"));
        assert_eq!(version("Edition"), None);
    }
}
