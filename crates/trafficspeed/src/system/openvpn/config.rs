//! OpenVPN's certificates and configuration files, as text.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use sha2::{Digest, Sha256};

use crate::lab::Lab;
use crate::lab::device::Device;
use crate::system::Cipher;
use crate::system::buffers::UDP_BYTES;

/// The TUN device of every host.
pub const DEVICE: &str = "tun0";
const PORT: u16 = 1194;

/// The parameters of one measured tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    pub cipher: Cipher,
    /// MTU of the TUN devices, where it is not OpenVPN's own choice.
    pub mtu: Option<u32>,
    /// Whether the kernel carries packets, where it has OpenVPN's data channel.
    pub dco: bool,
}

/// OpenVPN's own words for a cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CipherNames {
    /// For `data-ciphers`.
    pub cipher: &'static str,
    /// For `auth`; a cipher that authenticates itself ignores it.
    pub auth: &'static str,
}

/// OpenVPN's name of a cipher; `None` if the choice is its own.
pub fn words(cipher: Cipher) -> Option<CipherNames> {
    let (cipher, auth) = match cipher {
        Cipher::Auto => return None,
        Cipher::Aes128Gcm => ("AES-128-GCM", "SHA256"),
        Cipher::Aes256Gcm => ("AES-256-GCM", "SHA256"),
        Cipher::ChaCha20Poly1305 => ("CHACHA20-POLY1305", "SHA256"),
        Cipher::None => ("none", "none"),
        Cipher::AuthOnly => ("none", "SHA256"),
        Cipher::EncryptOnly => ("AES-256-CBC", "none"),
        Cipher::Aes256CbcHmacSha256 => ("AES-256-CBC", "SHA256"),
    };
    Some(CipherNames { cipher, auth })
}

/// A host's certificate, signed by itself, with its key.
pub struct TlsIdentity {
    pub name: String,
    certificate: String,
    key: String,
    fingerprint: String,
}

impl TlsIdentity {
    /// A new one for a host called `name`.
    pub fn random(name: &str) -> Self {
        let key = KeyPair::generate().expect("the library can make keys of its default kind");
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).expect("the key is of the library's own making");
        Self {
            name: name.to_owned(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            fingerprint: fingerprint(certificate.der()),
        }
    }
}

/// The form of `--peer-fingerprint`: SHA-256 of the DER form, bytes in hexadecimal with colons
/// between.
fn fingerprint(der: &[u8]) -> String {
    let bytes: Vec<String> = Sha256::digest(der).iter().map(|byte| format!("{byte:02X}")).collect();
    bytes.join(":")
}

/// The server's configuration file.
pub fn server(tunnel: Tunnel, own: &TlsIdentity, clients: &[TlsIdentity]) -> String {
    let fingerprints: Vec<&str> = clients.iter().map(|client| client.fingerprint.as_str()).collect();
    let (address, fingerprints) = (Lab::SERVICE_V4, fingerprints.join("\n"));
    // Between packets of the kernel's data channel the kernel routes.
    let forwards = if tunnel.dco { "" } else { "client-to-client\n" };
    format!(
        "mode server\n\
         tls-server\n\
         topology subnet\n\
         local {address}\n\
         lport {PORT}\n\
         server 10.87.0.0 255.255.0.0\n\
         server-ipv6 fd87::/64\n\
         {forwards}\
         dh none\n\
         {}\
         <peer-fingerprint>\n{fingerprints}\n</peer-fingerprint>\n",
        common(tunnel, own)
    )
}

/// A client's configuration file.
pub fn client(tunnel: Tunnel, own: &TlsIdentity, server: &TlsIdentity) -> String {
    let (address, fingerprint) = (Lab::SERVICE_V4, &server.fingerprint);
    format!(
        "client\n\
         nobind\n\
         remote {address} {PORT}\n\
         peer-fingerprint {fingerprint}\n\
         {}",
        common(tunnel, own)
    )
}

fn common(tunnel: Tunnel, own: &TlsIdentity) -> String {
    let TlsIdentity { certificate, key, .. } = own;
    let offload = if tunnel.dco { "" } else { "disable-dco\n" };
    let mut text = format!(
        "dev {DEVICE}\n\
         dev-type tun\n\
         proto udp\n\
         {offload}\
         sndbuf {UDP_BYTES}\n\
         rcvbuf {UDP_BYTES}\n\
         verb 3\n"
    );
    if let Some(CipherNames { cipher, auth }) = words(tunnel.cipher) {
        writeln!(text, "data-ciphers {cipher}\nauth {auth}").expect("writing to a string");
        if cipher == "none" {
            // Without a cipher it would make new keys every 64 MiB, as if that protected anything.
            writeln!(text, "cipher none\nreneg-bytes 0").expect("writing to a string");
        }
    }
    if let Some(mtu) = tunnel.mtu {
        writeln!(text, "tun-mtu {mtu}").expect("writing to a string");
    }
    write!(text, "<cert>\n{certificate}</cert>\n<key>\n{key}</key>\n").expect("writing to a string");
    text
}

/// A client's device with the addresses that the server gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inner {
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
    pub mtu: u32,
}

/// The inner addresses of a client's device once it has both.
pub fn inner_addresses(device: &Device) -> Option<Inner> {
    let v4 = device.addresses.iter().find_map(|address| match address {
        IpAddr::V4(v4) => Some(*v4),
        IpAddr::V6(_) => None,
    });
    let v6 = device.addresses.iter().find_map(|address| match address {
        IpAddr::V6(v6) if !v6.is_unicast_link_local() => Some(*v6),
        _ => None,
    });
    Some(Inner { v4: v4?, v6: v6?, mtu: device.mtu })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunnel(cipher: Cipher, mtu: Option<u32>) -> Tunnel {
        Tunnel { cipher, mtu, dco: false }
    }

    #[test]
    fn each_end_knows_the_others_fingerprint_and_only_its_own_key() {
        let (server_id, clients) =
            (TlsIdentity::random("server"), [TlsIdentity::random("a"), TlsIdentity::random("b")]);
        let text = server(tunnel(Cipher::Auto, None), &server_id, &clients);
        for client in &clients {
            assert!(text.contains(&client.fingerprint) && !text.contains(&client.key));
        }
        assert!(text.contains("client-to-client\n") && text.contains(&server_id.key));
        let text = client(tunnel(Cipher::Auto, None), &clients[0], &server_id);
        assert!(text.contains(&format!("peer-fingerprint {}\n", server_id.fingerprint)));
        assert!(text.contains(&clients[0].key) && !text.contains(&server_id.key));
        assert!(!text.contains("data-ciphers") && !text.contains("tun-mtu"), "its own choice: {text}");
        let in_kernel = Tunnel { dco: true, ..tunnel(Cipher::Auto, None) };
        let text = server(in_kernel, &server_id, &clients);
        assert!(!text.contains("client-to-client") && !text.contains("disable-dco"), "{text}");
    }

    #[test]
    fn a_fingerprint_is_the_hash_of_the_certificate_in_hexadecimal() {
        // FIPS 180-4's example message.
        assert!(fingerprint(b"abc").starts_with("BA:78:16:BF:8F:01:CF:EA:"));
        assert_eq!(fingerprint(b"abc").len(), 32 * 3 - 1);
    }

    #[test]
    fn ciphers_and_mtu_are_the_same_on_both_ends() {
        let (a, b) = (TlsIdentity::random("a"), TlsIdentity::random("b"));
        for (cipher, lines) in [
            (Cipher::Aes128Gcm, "data-ciphers AES-128-GCM\n"),
            (Cipher::None, "data-ciphers none\nauth none\ncipher none\nreneg-bytes 0\n"),
            (Cipher::AuthOnly, "data-ciphers none\nauth SHA256\ncipher none\nreneg-bytes 0\n"),
            (Cipher::EncryptOnly, "data-ciphers AES-256-CBC\nauth none\n"),
            (Cipher::Aes256CbcHmacSha256, "data-ciphers AES-256-CBC\nauth SHA256\n"),
        ] {
            let tunnel = tunnel(cipher, Some(9000));
            for text in [server(tunnel, &a, &[]), client(tunnel, &b, &a)] {
                assert!(text.contains(lines) && text.contains("tun-mtu 9000\n"), "{text}");
            }
        }
    }

    #[test]
    fn a_device_counts_once_it_has_both_addresses() {
        let device = |addresses: &[&str]| Device {
            name: DEVICE.into(),
            mtu: 1500,
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        };
        assert_eq!(inner_addresses(&device(&["10.87.0.2", "fe80::1"])), None);
        assert_eq!(inner_addresses(&device(&["fd87::1000"])), None);
        let inner = inner_addresses(&device(&["10.87.0.2", "fe80::1", "fd87::1000"])).unwrap();
        assert_eq!((inner.v4.to_string(), inner.v6.to_string()), ("10.87.0.2".into(), "fd87::1000".into()));
    }
}
