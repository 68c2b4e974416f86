//! charon's settings and connections, as text.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use crate::lab::Lab;
use crate::system::Cipher;

/// The TUN device of kernel-libipsec.
pub const DEVICE: &str = "ipsec0";
/// The gateway's own inner addresses.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(10, 90, 0, 1);
/// The gateway over IPv6.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd90, 0, 0, 0, 0, 0, 0, 1);
const NETWORKS: &str = "10.90.0.0/16, fd90::/64";

/// The order decides whose code runs: OpenSSL's is the fastest for every algorithm here, and
/// kernel-libipsec must come before kernel-netlink, which then only manages addresses and routes.
const PLUGINS: &str = "random nonce openssl aesni aes sha1 sha2 hmac kdf gmp curve25519 chapoly kernel-libipsec kernel-netlink \
     socket-default vici";

/// The inner IPv4 address of a client, from 1.
pub fn client_v4(number: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 90, 1, number as u8)
}

/// The inner IPv6 address of a client, from 1.
pub fn client_v6(number: u32) -> Ipv6Addr {
    Ipv6Addr::new(0xfd90, 0, 0, 0, 0, 0, 1, number as u16)
}

/// Both inner addresses of a client.
pub fn client_addresses(number: u32) -> [IpAddr; 2] {
    [client_v4(number).into(), client_v6(number).into()]
}

/// How strongSwan writes a choice of algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal {
    pub asked: &'static str,
    /// In its list of associations.
    pub shown: &'static str,
}

/// The proposal for a cipher; `None` if the choice is strongSwan's own.
///
/// # Panics
/// For no integrity, without which there is no ESP (RFC 8221, section 4) and which the profile does
/// not offer.
pub fn proposal(cipher: Cipher) -> Option<Proposal> {
    let (asked, shown) = match cipher {
        Cipher::Auto => return None,
        Cipher::Aes128Gcm => ("aes128gcm16", "AES_GCM_16-128"),
        Cipher::Aes256Gcm => ("aes256gcm16", "AES_GCM_16-256"),
        Cipher::ChaCha20Poly1305 => ("chacha20poly1305", "CHACHA20_POLY1305"),
        Cipher::AuthOnly => ("null-sha256", "NULL/HMAC_SHA2_256_128"),
        Cipher::Aes256CbcHmacSha256 => ("aes256-sha256", "AES_CBC-256/HMAC_SHA2_256_128"),
        Cipher::None | Cipher::EncryptOnly => unreachable!("the profile offers no ESP without integrity"),
    };
    Some(Proposal { asked, shown })
}

/// charon's settings: strongswan.conf. Its log goes where its other output goes.
pub fn daemon(socket: &Path) -> String {
    let socket = socket.display();
    format!(
        "charon-systemd {{\n\
         load = {PLUGINS}\n\
         filelog {{ out {{ path = stderr\n default = 1\n flush_line = yes\n}} }}\n\
         journal {{ default = -1 }}\n\
         syslog {{ daemon {{ default = -1 }}\n auth {{ default = -1 }} }}\n\
         plugins {{ vici {{ socket = unix://{socket} }} }}\n\
         }}\n"
    )
}

/// The gateway's connections: one for each client, which gives it its addresses.
pub fn gateway(cipher: Cipher, secrets: &[[u64; 4]]) -> String {
    let (address, esp) = (Lab::SERVICE_V4, esp_line(cipher));
    let (mut connections, mut pools, mut keys) = (String::new(), String::new(), String::new());
    for (secret, n) in secrets.iter().zip(1..) {
        let (v4, v6) = (client_v4(n), client_v6(n));
        write!(
            connections,
            "client{n} {{\nversion = 2\nlocal_addrs = {address}\npools = v4-{n}, v6-{n}\n\
             local {{ auth = psk\n id = gateway }}\nremote {{ auth = psk\n id = client{n} }}\n\
             children {{ lab {{ local_ts = {NETWORKS}\n rekey_time = 0\n{esp} }} }}\n}}\n"
        )
        .expect("writing to a string");
        write!(pools, "v4-{n} {{ addrs = {v4}/32 }}\nv6-{n} {{ addrs = {v6}/128 }}\n")
            .expect("writing to a string");
        keys.push_str(&key(n, secret));
    }
    format!("connections {{\n{connections}}}\npools {{\n{pools}}}\nsecrets {{\n{keys}}}\n")
}

/// A client's connection, which begins at once.
pub fn client(cipher: Cipher, number: u32, secret: &[u64; 4]) -> String {
    let (address, esp, key) = (Lab::SERVICE_V4, esp_line(cipher), key(number, secret));
    format!(
        "connections {{ lab {{\nversion = 2\nremote_addrs = {address}\nvips = 0.0.0.0, ::\n\
         local {{ auth = psk\n id = client{number} }}\nremote {{ auth = psk\n id = gateway }}\n\
         children {{ lab {{ remote_ts = {NETWORKS}\n rekey_time = 0\n start_action = start\n{esp} }} }}\n\
         }} }}\nsecrets {{\n{key}}}\n"
    )
}

fn esp_line(cipher: Cipher) -> String {
    proposal(cipher).map(|proposal| format!("esp_proposals = {}\n", proposal.asked)).unwrap_or_default()
}

fn key(number: u32, secret: &[u64; 4]) -> String {
    let [a, b, c, d] = secret;
    format!("ike-{number} {{ id = client{number}\n secret = 0x{a:016x}{b:016x}{c:016x}{d:016x} }}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_client_hold_its_secret_and_no_others() {
        let secrets = [[1, 2, 3, 4], [5, 6, 7, 8]];
        let gateway = gateway(Cipher::Aes256Gcm, &secrets);
        let clients = [client(Cipher::Aes256Gcm, 1, &secrets[0]), client(Cipher::Aes256Gcm, 2, &secrets[1])];
        let words = ["0x0000000000000001", "0x0000000000000005"];
        for word in words {
            assert!(gateway.contains(word), "{gateway}");
        }
        assert!(clients[0].contains(words[0]) && !clients[0].contains(words[1]), "{}", clients[0]);
        assert!(clients[1].contains(words[1]) && clients[1].contains("id = client2"), "{}", clients[1]);
        assert!(gateway.contains("v4-2 { addrs = 10.90.1.2/32 }"), "{gateway}");
    }

    #[test]
    fn braces_balance_and_the_cipher_is_asked_for_on_both_ends() {
        let (plain, strict) =
            (gateway(Cipher::Auto, &[[0; 4]]), client(Cipher::ChaCha20Poly1305, 1, &[0; 4]));
        assert!(!plain.contains("esp_proposals") && strict.contains("esp_proposals = chacha20poly1305\n"));
        for text in [plain, strict, daemon(Path::new("/run/x/vici"))] {
            assert_eq!(text.matches('{').count(), text.matches('}').count(), "{text}");
        }
    }

    #[test]
    fn user_space_esp_precedes_the_kernels() {
        let text = daemon(Path::new("/run/x/vici"));
        assert!(text.find("kernel-libipsec").unwrap() < text.find("kernel-netlink").unwrap());
        assert!(text.contains("socket = unix:///run/x/vici"));
    }

    #[test]
    fn every_client_has_addresses_of_its_own_and_the_gateway_others() {
        let last = crate::lab::MAX_CLIENTS;
        assert_eq!(client_addresses(last).map(|a| a.to_string()), ["10.90.1.254", "fd90::1:fe"]);
        assert!((1..=last).all(|n| client_v4(n) != GATEWAY_V4 && client_v6(n) != GATEWAY_V6));
    }
}
