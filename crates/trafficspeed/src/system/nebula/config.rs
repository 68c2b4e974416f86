//! Nebula's configuration files, its certificates, and what its log says.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use crate::lab::Lab;
use crate::system::Cipher;

pub const DEVICE: &str = "nebula0";
const PORT: u16 = 4242;
/// The addresses by which clients know each other; outside of the mesh.
pub const CLIENTS_V4: &str = "10.87.0.0/16";
/// Their addresses over IPv6.
pub const CLIENTS_V6: &str = "fd87::/64";
/// Their second byte and first group, and those of addresses in the mesh.
const KNOWN_BY: (u8, u16) = (87, 0xfd87);
const MESH: (u8, u16) = (88, 0xfd88);
/// The gateway in the mesh.
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd88, 0, 0, 0, 0, 0, 0, 1);

/// One host of the mesh; clients count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    Gateway,
    Client(u32),
}

/// Settings that all hosts share.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub cipher: Cipher,
    pub mtu: u32,
    /// Queues of the device and sockets, each with two threads.
    pub routines: usize,
}

impl Settings {
    const fn word(self) -> &'static str {
        if matches!(self.cipher, Cipher::ChaCha20Poly1305) { "chachapoly" } else { "aes" }
    }

    /// Nebula has one cipher for all, which does not stand in its log.
    pub const fn cipher_name(self) -> &'static str {
        if matches!(self.cipher, Cipher::ChaCha20Poly1305) { "chacha20-poly1305" } else { "aes-256-gcm" }
    }
}

impl Host {
    pub fn name(self) -> String {
        match self {
            Self::Gateway => "gateway".to_owned(),
            Self::Client(number) => format!("client{number}"),
        }
    }

    /// Its addresses in the mesh.
    fn in_mesh(self) -> (Ipv4Addr, Ipv6Addr) {
        match self {
            Self::Gateway => (GATEWAY_V4, GATEWAY_V6),
            Self::Client(number) => in_networks(MESH, number),
        }
    }

    /// The addresses by which others know it.
    pub fn known_by(self) -> (Ipv4Addr, Ipv6Addr) {
        match self {
            Self::Gateway => in_networks(KNOWN_BY, 0),
            Self::Client(number) => in_networks(KNOWN_BY, number),
        }
    }

    /// The arguments of `nebula-cert` that make its key and certificate.
    pub fn certificate(self, directory: &Path) -> Vec<PathBuf> {
        let (v4, v6) = self.in_mesh();
        let routed = match self {
            Self::Gateway => format!("{CLIENTS_V4},{CLIENTS_V6}"),
            Self::Client(_) => {
                let (v4, v6) = self.known_by();
                format!("{v4}/32,{v6}/128")
            }
        };
        let file = |name: String| directory.join(name).display().to_string();
        let name = self.name();
        words(&[
            "sign",
            "-ca-crt",
            &file("ca.crt".into()),
            "-ca-key",
            &file("ca.key".into()),
            "-name",
            &name,
            "-networks",
            &format!("{v4}/16,{v6}/64"),
            "-unsafe-networks",
            &routed,
            "-out-crt",
            &file(format!("{name}.crt")),
            "-out-key",
            &file(format!("{name}.key")),
        ])
    }
}

/// The arguments of `nebula-cert` that make the authority. Version 2 of the format has IPv6.
pub fn authority(directory: &Path) -> Vec<PathBuf> {
    let file = |name: &str| directory.join(name).display().to_string();
    words(&[
        "ca",
        "-version",
        "2",
        "-name",
        "lab",
        "-duration",
        "24h",
        "-out-crt",
        &file("ca.crt"),
        "-out-key",
        &file("ca.key"),
    ])
}

fn words(words: &[&str]) -> Vec<PathBuf> {
    words.iter().map(PathBuf::from).collect()
}

/// Client `number` in two networks, of which these are the second byte and the first group.
fn in_networks((v4, v6): (u8, u16), number: u32) -> (Ipv4Addr, Ipv6Addr) {
    let [_, _, high, low] = number.to_be_bytes();
    (Ipv4Addr::new(10, v4, 1 + high, low), Ipv6Addr::new(v6, 0, 0, 0, 0, 0, 1, number as u16))
}

/// The gateway's file, for that many clients.
pub fn gateway(settings: Settings, directory: &Path, clients: u32) -> String {
    let routes = (1..=clients).map(Host::Client).flat_map(|client| {
        let (mesh, known) = (client.in_mesh(), client.known_by());
        [
            format!("    - {{ route: {}/32, via: {} }}\n", known.0, mesh.0),
            format!("    - {{ route: '{}/128', via: '{}' }}\n", known.1, mesh.1),
        ]
    });
    let lighthouse = "lighthouse: { am_lighthouse: true }\n";
    file(settings, directory, Host::Gateway, lighthouse, &routes.collect::<String>())
}

/// A client's file. Its routes to the others are set by hand: they name the source.
pub fn client(settings: Settings, directory: &Path, client: Host) -> String {
    let lighthouse = format!(
        "static_host_map: {{ '{GATEWAY_V4}': ['{}:{PORT}'] }}\nlighthouse: {{ hosts: ['{GATEWAY_V4}'] }}\n",
        Lab::SERVICE_V4
    );
    let routes = format!(
        "    - {{ route: {CLIENTS_V4}, via: {GATEWAY_V4}, install: false }}\n\
         \x20   - {{ route: '{CLIENTS_V6}', via: '{GATEWAY_V6}', install: false }}\n"
    );
    file(settings, directory, client, &lighthouse, &routes)
}

fn file(settings: Settings, directory: &Path, host: Host, lighthouse: &str, routes: &str) -> String {
    let (directory, name) = (directory.display(), host.name());
    let (cipher, mtu, routines) = (settings.word(), settings.mtu, settings.routines);
    format!(
        "pki: {{ ca: {directory}/ca.crt, cert: {directory}/{name}.crt, key: {directory}/{name}.key }}\n\
         {lighthouse}\
         listen: {{ host: 0.0.0.0, port: {PORT} }}\n\
         cipher: {cipher}\n\
         routines: {routines}\n\
         firewall:\n\
         \x20 default_local_cidr_any: true\n\
         \x20 outbound: [{{ port: any, proto: any, host: any }}]\n\
         \x20 inbound: [{{ port: any, proto: any, host: any }}]\n\
         tun:\n\
         \x20 dev: {DEVICE}\n\
         \x20 mtu: {mtu}\n\
         \x20 unsafe_routes:\n\
         {routes}"
    )
}

/// Whether a host has its device and its socket.
pub fn is_ready(log: &str) -> bool {
    log.contains("Nebula interface is active")
}

/// Whether a client has a session with the gateway, the only host that it can know then.
pub fn has_session(log: &str) -> bool {
    is_ready(log) && log.contains("Handshake message received")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings { cipher: Cipher::Auto, mtu: 1440, routines: 1 };

    #[test]
    fn a_client_knows_the_gateway_alone_and_the_gateway_each_client() {
        let directory = Path::new("/lab");
        let client = client(SETTINGS, directory, Host::Client(7));
        assert!(client.contains("'10.88.0.1': ['198.18.0.1:4242']"), "{client}");
        assert!(client.contains("route: 10.87.0.0/16, via: 10.88.0.1, install: false"), "{client}");
        assert!(!client.contains("10.88.1."), "{client}");
        let gateway = gateway(SETTINGS, directory, 300);
        assert!(gateway.contains("route: 10.87.1.7/32, via: 10.88.1.7 "), "{gateway}");
        assert!(gateway.contains("route: 'fd87::1:12c/128', via: 'fd88::1:12c' "), "{gateway}");
        assert!(gateway.contains("route: 10.87.2.44/32, via: 10.88.2.44 "), "{gateway}");
    }

    #[test]
    fn the_gateway_may_route_all_clients_and_a_client_itself() {
        let unsafe_networks = |host: Host| {
            let arguments = host.certificate(Path::new("/lab"));
            let at = arguments.iter().position(|word| word == Path::new("-unsafe-networks"));
            arguments[at.expect("it has some") + 1].display().to_string()
        };
        assert_eq!(unsafe_networks(Host::Gateway), "10.87.0.0/16,fd87::/64");
        assert_eq!(unsafe_networks(Host::Client(2)), "10.87.1.2/32,fd87::1:2/128");
    }

    #[test]
    fn a_session_is_known_by_the_gateways_answer() {
        let ready = "level=INFO msg=\"Nebula interface is active\" interface=nebula0\n";
        let sent = "level=INFO msg=\"Handshake message sent\" vpnAddrs=[10.88.0.1]\n";
        let received = "level=INFO msg=\"Handshake message received\" vpnAddrs=[10.88.0.1]\n";
        assert!(is_ready(ready) && !has_session(&[ready, sent].concat()));
        assert!(has_session(&[ready, sent, received].concat()));
    }

    #[test]
    fn its_two_ciphers_have_their_words() {
        let with = |cipher| client(Settings { cipher, ..SETTINGS }, Path::new("/lab"), Host::Client(1));
        assert!(
            with(Cipher::Auto).contains("cipher: aes\n") && with(Cipher::Aes256Gcm).contains("cipher: aes\n")
        );
        assert!(with(Cipher::ChaCha20Poly1305).contains("cipher: chachapoly\n"));
    }
}
