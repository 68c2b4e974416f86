//! A WireGuard client's configuration, in the format of wg-quick(8), which the apps read too.
//!
//! INVARIANT: there is no `ListenPort`, with which two clients behind one NAT would be in each
//! other's way.

use std::fmt::Write as _;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use vpnd_wireguard::PublicKey;
use zeroize::Zeroizing;

use vpnd_config::endpoint::Endpoint;
use vpnd_config::{AccessProfile, Tunnel};

/// Everything that a client's file has.
pub struct Configuration<'c> {
    /// `None` if only the device has it.
    pub private: Option<&'c Zeroizing<[u8; 32]>>,
    pub public: PublicKey,
    pub preshared: Option<&'c Zeroizing<[u8; 32]>>,
    pub gateway: PublicKey,
    pub addresses: &'c [IpAddr],
    pub endpoint: &'c Endpoint,
    pub profile: &'c AccessProfile,
    pub tunnel: &'c Tunnel,
}

impl Configuration<'_> {
    /// The file's text.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        // Grown in one step, so that no copy of a key stays behind in memory.
        let mut text = Zeroizing::new(String::with_capacity(64 << 10));
        let key = |bytes: &Zeroizing<[u8; 32]>| Zeroizing::new(STANDARD.encode(**bytes));
        let mut line = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("a string takes it");
        line(format_args!("[Interface]"));
        match self.private {
            Some(private) => line(format_args!("PrivateKey = {}", *key(private))),
            None => line(format_args!("# PrivateKey = the private key of {}", self.public)),
        }
        line(format_args!("Address = {}", list(self.addresses.iter().copied().map(IpNet::from))));
        let push = &self.profile.push;
        if !push.dns.is_empty() {
            let search = push.search.iter().map(ToString::to_string);
            line(format_args!("DNS = {}", list(push.dns.iter().map(ToString::to_string).chain(search))));
        }
        line(format_args!("MTU = {}", self.profile.wireguard.mtu));
        line(format_args!(""));
        line(format_args!("[Peer]"));
        line(format_args!("PublicKey = {}", self.gateway));
        if let Some(preshared) = self.preshared {
            line(format_args!("PresharedKey = {}", *key(preshared)));
        }
        let allowed = push.allowed_networks(self.tunnel, &self.endpoint.outer);
        line(format_args!("AllowedIPs = {}", list(allowed)));
        line(format_args!("Endpoint = {}", self.endpoint.address));
        if let Some(keepalive) = self.profile.wireguard.keepalive {
            line(format_args!("PersistentKeepalive = {}", keepalive.as_secs()));
        }
        text
    }
}

fn list(items: impl IntoIterator<Item = impl ToString>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}
