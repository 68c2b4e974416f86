//! States, policies, addresses and routes as lines of `ip -batch`.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use zeroize::Zeroizing;

use crate::lab::Lab;
use crate::system::{Cipher, ClientAddress};

/// The XFRM interface of every host.
pub const DEVICE: &str = "ipsec0";
/// Ties states and policies to the interface, and to nothing else.
pub const IF_ID: &str = "42";
const NETWORKS: [&str; 2] = ["10.92.0.0/16", "fd92::/64"];
const ANY: [&str; 2] = ["0.0.0.0/0", "::/0"];
/// Packets that may arrive late, as strongSwan has it with several queues.
const REPLAY_WINDOW: u32 = 1_024;

/// One transform of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Transform {
    protocol: &'static str,
    mode: &'static str,
    /// The algorithms as `ip xfrm` takes them: words before and after a key, and the key's bytes.
    algorithms: &'static [(&'static str, usize, &'static str)],
}

const GCM_128: &[(&str, usize, &str)] = &[("aead rfc4106(gcm(aes))", 20, "128")];
const GCM_256: &[(&str, usize, &str)] = &[("aead rfc4106(gcm(aes))", 36, "128")];
const CHACHA: &[(&str, usize, &str)] = &[("aead rfc7539esp(chacha20,poly1305)", 36, "128")];
const SHA: &[(&str, usize, &str)] = &[("auth-trunc hmac(sha256)", 32, "128")];
const CBC: &[(&str, usize, &str)] = &[("enc cbc(aes)", 32, "")];
const CBC_SHA: &[(&str, usize, &str)] = &[CBC[0], SHA[0]];

/// How packets are protected: transforms from the inner to the outer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection(&'static [Transform]);

const fn esp(algorithms: &'static [(&'static str, usize, &'static str)]) -> Transform {
    Transform { protocol: "esp", mode: "tunnel", algorithms }
}

impl Protection {
    /// ESP encrypts, AH authenticates all of it.
    pub const BOTH: Self =
        Self(&[esp(CBC), Transform { protocol: "ah", mode: "transport", algorithms: SHA }]);

    /// By one transform; `None` where there is no such.
    pub fn of(cipher: Cipher) -> Option<Self> {
        Some(Self(match cipher {
            Cipher::Aes128Gcm => const { &[esp(GCM_128)] },
            Cipher::Auto | Cipher::Aes256Gcm => const { &[esp(GCM_256)] },
            Cipher::ChaCha20Poly1305 => const { &[esp(CHACHA)] },
            Cipher::AuthOnly => &[Transform { protocol: "ah", mode: "tunnel", algorithms: SHA }],
            Cipher::EncryptOnly => const { &[esp(CBC)] },
            Cipher::Aes256CbcHmacSha256 => const { &[esp(CBC_SHA)] },
            Cipher::None => return None,
        }))
    }

    /// The most bytes that it adds to a packet over IPv4.
    pub fn overhead(&self) -> u32 {
        // 20 of IP, 8 of ESP, 16 of IV, up to 15 of padding and 2 of trailer, 16 of ICV; AH has 12
        // and an ICV.
        if self.0.len() == 1 { 80 } else { 112 }
    }

    /// In the kernel's words, for the report.
    pub fn words(&self) -> String {
        let algorithm = |(words, bytes, _): &(&str, usize, &str)| {
            let name = words.rsplit(' ').next().unwrap_or_default();
            // A nonce of 4 bytes belongs to the key of an AEAD.
            let bits = 8 * if words.starts_with("aead") { bytes - 4 } else { *bytes };
            format!("{name} {bits}")
        };
        let transform = |transform: &Transform| {
            let algorithms: Vec<String> = transform.algorithms.iter().map(algorithm).collect();
            format!("{} {}", transform.protocol.to_uppercase(), algorithms.join(" with "))
        };
        self.0.iter().map(transform).collect::<Vec<_>>().join(" in ")
    }
}

/// The bytes from which the keys between the gateway and one client are taken, for each way.
pub struct Keys([Zeroizing<[u8; 128]>; 2]);

impl Keys {
    pub fn random() -> Self {
        Self([Zeroizing::new(random()), Zeroizing::new(random())])
    }
}

fn random() -> [u8; 128] {
    let mut bytes = [0; 128];
    for part in bytes.chunks_mut(32) {
        part.copy_from_slice(&rand::random::<[u8; 32]>());
    }
    bytes
}

/// Where a client is reached, from 1; the gateway is number 0.
fn inner(number: u32) -> (Ipv4Addr, Ipv6Addr) {
    (Ipv4Addr::new(10, 92, 1, number as u8), Ipv6Addr::new(0xfd92, 0, 0, 0, 0, 0, 1, number as u16))
}

/// A client's addresses and device, from 1.
pub fn client_address(number: u32) -> ClientAddress {
    let (v4, v6) = inner(number);
    ClientAddress { v4: Some(v4), v6: Some(v6), device: DEVICE.to_owned() }
}

/// The way from one end to the other.
#[derive(Clone, Copy)]
struct Way {
    from: Ipv4Addr,
    to: Ipv4Addr,
    /// Tells the states of clients and ways apart.
    id: u32,
}

/// The way to client `number`, and the way from it.
fn ways(number: u32) -> [Way; 2] {
    let (gateway, client) = (Lab::SERVICE_V4, Lab::client_v4(number));
    let way = |from, to, which| Way { from, to, id: 0x1000 + 2 * number + which };
    [way(gateway, client, 0), way(client, gateway, 1)]
}

/// The gateway's lines.
pub fn gateway(protection: &Protection, keys: &[Keys]) -> Zeroizing<String> {
    // Room for everything, so that the text is not moved and no key stays where it was.
    let mut text = Zeroizing::new(String::with_capacity(1_024 + 4_096 * keys.len()));
    own_addresses(&mut text, 0);
    for (keys, number) in keys.iter().zip(1..) {
        let [to, from] = ways(number);
        states(&mut text, protection, number, keys);
        let (v4, v6) = inner(number);
        for (own, any) in [format!("{v4}/32"), format!("{v6}/128")].iter().zip(ANY) {
            policy(&mut text, protection, "out", (any, own), to);
            policy(&mut text, protection, "in", (own, any), from);
            policy(&mut text, protection, "fwd", (own, any), from);
        }
    }
    text
}

/// A client's lines.
pub fn client(protection: &Protection, number: u32, keys: &Keys) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(8_192));
    own_addresses(&mut text, number);
    states(&mut text, protection, number, keys);
    let [to, from] = ways(number);
    for (network, any) in NETWORKS.iter().zip(ANY) {
        policy(&mut text, protection, "out", (any, network), from);
        policy(&mut text, protection, "in", (network, any), to);
        policy(&mut text, protection, "fwd", (network, any), to);
    }
    text
}

fn own_addresses(text: &mut String, number: u32) {
    let (v4, v6) = inner(number);
    write!(text, "addr add {v4}/16 dev {DEVICE}\naddr add {v6}/64 dev {DEVICE} nodad\n")
        .expect("writing to a string");
}

fn states(text: &mut String, protection: &Protection, number: u32, keys: &Keys) {
    for (Way { from, to, id }, key) in ways(number).into_iter().zip(&keys.0) {
        let mut key = key.as_slice();
        for Transform { protocol, mode, algorithms } in protection.0 {
            write!(
                text,
                "xfrm state add src {from} dst {to} proto {protocol} spi {id:#x} reqid {id} mode {mode} if_id {IF_ID} \
                 replay-window {REPLAY_WINDOW} flag esn af-unspec"
            )
            .expect("writing to a string");
            for (before, bytes, after) in *algorithms {
                let (own, rest) = key.split_at(*bytes);
                key = rest;
                write!(text, " {before} 0x").expect("writing to a string");
                for byte in own {
                    write!(text, "{byte:02x}").expect("writing to a string");
                }
                write!(text, " {after}").expect("writing to a string");
            }
            text.push('\n');
        }
    }
}

fn policy(text: &mut String, protection: &Protection, direction: &str, (from, to): (&str, &str), way: Way) {
    write!(text, "xfrm policy add src {from} dst {to} dir {direction} if_id {IF_ID}")
        .expect("writing to a string");
    for Transform { protocol, mode, .. } in protection.0 {
        let Way { from, to, id } = way;
        // In transport mode the ends are those of the packet that the tunnel made.
        write!(text, " tmpl src {from} dst {to} proto {protocol} reqid {id} mode {mode}")
            .expect("writing to a string");
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYED: &[Cipher] = &[
        Cipher::Auto,
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::ChaCha20Poly1305,
        Cipher::AuthOnly,
        Cipher::EncryptOnly,
        Cipher::Aes256CbcHmacSha256,
    ];

    fn lines<'a>(text: &'a str, beginning: &str) -> Vec<&'a str> {
        text.lines().filter(|line| line.starts_with(beginning)).collect()
    }

    #[test]
    fn both_ends_have_the_same_states_and_no_client_has_anothers() {
        let keys = [Keys::random(), Keys::random()];
        for protection in KEYED.iter().filter_map(|cipher| Protection::of(*cipher)).chain([Protection::BOTH])
        {
            let all = gateway(&protection, &keys);
            let all = lines(&all, "xfrm state");
            assert_eq!(all.len(), 4 * protection.0.len());
            let (one, two) = (client(&protection, 1, &keys[0]), client(&protection, 2, &keys[1]));
            let (one, two) = (lines(&one, "xfrm state"), lines(&two, "xfrm state"));
            assert_eq!(all, [one.clone(), two.clone()].concat());
            assert!(one.iter().all(|line| !two.contains(line)) && one[0] != one[1]);
        }
    }

    #[test]
    fn every_direction_of_both_ip_versions_has_a_policy_with_each_transform() {
        let keys = Keys::random();
        let text = client(&Protection::BOTH, 7, &keys);
        let policies = lines(&text, "xfrm policy");
        assert_eq!(policies.len(), 6);
        assert_eq!(
            policies[0],
            "xfrm policy add src 0.0.0.0/0 dst 10.92.0.0/16 dir out if_id 42 \
             tmpl src 198.18.7.2 dst 198.18.0.1 proto esp reqid 4111 mode tunnel \
             tmpl src 198.18.7.2 dst 198.18.0.1 proto ah reqid 4111 mode transport"
        );
    }

    #[test]
    fn algorithms_are_named_with_the_bits_of_their_keys() {
        let words = |cipher| Protection::of(cipher).unwrap().words();
        assert_eq!(words(Cipher::Aes128Gcm), "ESP rfc4106(gcm(aes)) 128");
        assert_eq!(words(Cipher::Aes256CbcHmacSha256), "ESP cbc(aes) 256 with hmac(sha256) 256");
        assert_eq!(words(Cipher::AuthOnly), "AH hmac(sha256) 256");
        assert_eq!(Protection::BOTH.words(), "ESP cbc(aes) 256 in AH hmac(sha256) 256");
        assert_eq!(Protection::of(Cipher::None), None);
    }
}
