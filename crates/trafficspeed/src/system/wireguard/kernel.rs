//! The kernel's WireGuard: the same hub and clients as in user space, set up by `wg` and `ip`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::uapi::{KeyPair, Peer};
use super::{CIPHERS, DEVICE, HANDSHAKE_TIMEOUT, PORT};
use crate::interrupt::Interrupt;
use crate::lab::namespace::Namespace;
use crate::lab::{Lab, run_tool};
use crate::system::folder::Folder;
use crate::system::program::{Program, Programs, Source};
use crate::system::{ClientAddress, Profile, System, SystemError, SystemInfo, kernel, pause};

static WG: Program = Program {
    name: "wg",
    version: &["--version"],
    places: &[],
    source: Source::Debian { packages: &["wireguard-tools"] },
};

const MODULES: &[&str] = &["wireguard"];

/// The kernel's WireGuard before it runs.
pub const PROFILE: Profile = Profile {
    label: "WireGuard (kernel)",
    ciphers: CIPHERS,
    programs: &[&WG],
    has_priority: false,
    adapter: |programs, _| Box::new(KernelWireGuard::new(programs)),
};

/// The kernel's WireGuard in a lab.
#[derive(Debug)]
struct KernelWireGuard {
    programs: Programs,
    facts: SystemInfo,
}

impl KernelWireGuard {
    fn new(programs: &Programs) -> Self {
        Self { programs: programs.clone(), facts: SystemInfo::default() }
    }
}

/// One host's device: its key and peers by `wg`, then its addresses.
struct Host<'a> {
    wg: &'a Path,
    folder: &'a Folder,
    namespace: &'a Namespace,
}

impl Host<'_> {
    fn set_up(&self, key: &KeyPair, peers: &[Peer], number: u32, mtu: u32) -> Result<(), SystemError> {
        let file = self.folder.write(&format!("{}.conf", self.namespace.name()), &config(key, peers))?;
        self.namespace.ip(&["link", "add", DEVICE, "type", "wireguard"])?;
        run_tool(self.command().args(["setconf", DEVICE]).arg(file))?;
        super::give_addresses(self.namespace, number, mtu)
    }

    fn command(&self) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.namespace.name()]).arg(self.wg);
        command
    }

    fn wait_for_handshake(&self, interrupt: &Interrupt) -> Result<(), SystemError> {
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        while !has_shaken_hands(&run_tool(self.command().args(["show", DEVICE, "latest-handshakes"]))?) {
            if Instant::now() > deadline {
                let failure = format!("{} made no handshake with the gateway", self.namespace.name());
                return Err(SystemError::Start { failure, log: String::new() });
            }
            pause(interrupt)?;
        }
        Ok(())
    }
}

/// A host's configuration as `wg setconf` takes it.
fn config(key: &KeyPair, peers: &[Peer]) -> Zeroizing<String> {
    // Room for everything, so that the text is not moved and the key does not stay where it was.
    let mut text = Zeroizing::new(String::with_capacity(256 + 512 * peers.len()));
    let private = Zeroizing::new(STANDARD.encode(key.private()));
    let mut line = |words: std::fmt::Arguments<'_>| text.write_fmt(words).expect("writing to a string");
    line(format_args!("[Interface]\nPrivateKey = {}\nListenPort = {PORT}\n", private.as_str()));
    for peer in peers {
        let (public, allowed) = (STANDARD.encode(peer.public), peer.allowed.join(", "));
        line(format_args!(
            "[Peer]\nPublicKey = {public}\nEndpoint = {}\nAllowedIPs = {allowed}\n",
            peer.endpoint
        ));
        if let Some(seconds) = peer.keepalive {
            line(format_args!("PersistentKeepalive = {seconds}\n"));
        }
    }
    text
}

/// Whether each peer of `wg show DEVICE latest-handshakes` has a time.
fn has_shaken_hands(shown: &str) -> bool {
    let times = || shown.lines().filter_map(|line| line.split_once('\t')).map(|(_, time)| time.trim());
    times().next().is_some() && times().all(|time| time != "0")
}

impl System for KernelWireGuard {
    fn check(&self) -> Result<(), SystemError> {
        kernel::check("the kernel's WireGuard", MODULES)?;
        self.programs.find(&WG).map(drop)
    }

    fn bring_up(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<Vec<ClientAddress>, SystemError> {
        let wg: PathBuf = self.programs.find(&WG)?;
        kernel::load(MODULES)?;
        let (folder, mtu) = (Folder::make(lab, "wireguard")?, super::inner_mtu(lab)?);
        let host = |namespace| Host { wg: &wg, folder: &folder, namespace };
        let hub = KeyPair::random();
        let keys: Vec<KeyPair> = lab.clients().iter().map(|_| KeyPair::random()).collect();
        let peers: Vec<Peer> = keys.iter().zip(1..).map(|(key, n)| super::client_peer(key, n)).collect();
        host(lab.gateway()).set_up(&hub, &peers, 0, mtu)?;
        for ((namespace, key), number) in lab.clients().iter().zip(&keys).zip(1..) {
            host(namespace).set_up(key, &[super::gateway_peer(&hub)], number, mtu)?;
        }
        for namespace in lab.clients() {
            host(namespace).wait_for_handshake(interrupt)?;
        }
        self.facts = SystemInfo {
            version: format!("Linux {}", kernel::release()),
            cipher: "chacha20-poly1305".into(),
            mtu: Some(mtu),
            notes: vec![kernel::NOTE.to_owned()],
        };
        Ok((1..=lab.clients().len() as u32).map(super::client_address).collect())
    }

    fn processes(&self) -> (Vec<u32>, Vec<u32>) {
        (Vec::new(), Vec::new())
    }

    fn facts(&mut self) -> &mut SystemInfo {
        &mut self.facts
    }

    fn down(&mut self) {
        // The devices end with the lab's namespaces.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_configured_in_the_words_of_wg() {
        let (own, hub) = (KeyPair::random(), KeyPair::random());
        let text = config(&own, &[super::super::gateway_peer(&hub)]);
        let (private, public) = (STANDARD.encode(own.private()), STANDARD.encode(hub.public));
        assert_eq!(
            text.as_str(),
            format!(
                "[Interface]\nPrivateKey = {private}\nListenPort = 51820\n[Peer]\nPublicKey = {public}\n\
                 Endpoint = 198.18.0.1:51820\nAllowedIPs = 10.87.0.0/16, fd87::/64\nPersistentKeepalive = 25\n"
            )
        );
    }

    #[test]
    fn a_handshake_has_a_time() {
        assert!(has_shaken_hands("abc=\t1764215155\n") && !has_shaken_hands("abc=\t0\n"));
        assert!(!has_shaken_hands("a=\t1764215155\nb=\t0\n") && !has_shaken_hands(""));
    }
}
