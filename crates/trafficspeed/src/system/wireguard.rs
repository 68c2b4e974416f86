//! WireGuard: one hub and its clients, the same for every implementation in user space, and for the
//! kernel's ([`kernel`]).
//!
//! Each host has one device. The gateway knows every client as a peer with its inner addresses; a
//! client knows the gateway alone, to which all inner addresses belong, so packets between clients
//! cross the gateway's device twice and its kernel routes them. Endpoints are named on both sides,
//! because one implementation does not learn them.
//!
//! Every implementation offers the same configuration protocol ([`uapi`]) at the same fixed place.
//! Each process sees a directory of the lab there, so two never meet, and a crash leaves no socket
//! on the machine.

pub mod implementation;
pub mod kernel;
pub mod server;
pub mod uapi;

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::daemon::Daemon;
use super::program::Programs;
use super::{Cipher, ClientAddress, System, SystemError, SystemInfo, check_tun};
use crate::interrupt::Interrupt;
use crate::lab::Lab;
use crate::lab::namespace::{Namespace, PrivateDirectory};
use implementation::Implementation;
use server::{Client, Served, Server};
use uapi::{KeyPair, Peer};

/// Where every implementation puts the socket of its configuration protocol.
const SOCKETS: (&str, &str) = ("/var/run", "wireguard");
pub(super) const DEVICE: &str = "wg0";
/// WireGuard has one cipher suite.
pub(super) const CIPHERS: &[Cipher] = &[Cipher::ChaCha20Poly1305];
const PORT: u16 = 51820;
/// The most that outer headers take, over IPv6; wg-quick subtracts as much.
const OVERHEAD: u32 = 80;
/// How often a client says that it is there; it also makes it begin the handshake.
pub(super) const KEEPALIVE_SECONDS: u16 = 25;
/// Time that a process may take until its socket is there.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that all handshakes together may take; one that is lost is repeated after 5 s.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// One implementation of WireGuard in a lab.
#[derive(Debug)]
pub struct WireGuard {
    implementation: &'static Implementation,
    programs: Programs,
    facts: SystemInfo,
    gateway: Option<Host>,
    clients: Vec<Host>,
}

/// One process with its configuration socket.
#[derive(Debug)]
pub(super) struct Host {
    daemon: Daemon,
    socket: PathBuf,
}

impl WireGuard {
    fn new(implementation: &'static Implementation, programs: &Programs) -> Self {
        let (programs, facts) = (programs.clone(), SystemInfo::default());
        Self { implementation, programs, facts, gateway: None, clients: Vec::new() }
    }

    fn fill_facts(&mut self, program: &Path, mtu: u32) {
        let version = self.implementation.program.version_of(program);
        let route = "packets between clients cross the gateway's device twice; its kernel routes them";
        let notes = [self.implementation.note, route].into_iter().filter(|note| !note.is_empty());
        self.facts = SystemInfo {
            version,
            cipher: "chacha20-poly1305".into(),
            mtu: Some(mtu),
            notes: notes.map(str::to_owned).collect(),
        };
    }
}

impl System for WireGuard {
    fn check(&self) -> Result<(), SystemError> {
        self.programs.find(&self.implementation.program)?;
        check_tun()
    }

    fn bring_up(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<Vec<ClientAddress>, SystemError> {
        let program = self.programs.find(&self.implementation.program)?;
        let start = |namespace| Host::start(self.implementation, &program, lab, namespace);
        self.gateway = Some(start(lab.gateway())?);
        for namespace in lab.clients() {
            self.clients.push(start(namespace)?);
        }
        for host in self.gateway.iter_mut().chain(&mut self.clients) {
            host.wait_for_socket(interrupt)?;
        }
        let mtu = inner_mtu(lab)?;
        self.fill_facts(&program, mtu);

        let keys: Vec<KeyPair> = lab.clients().iter().map(|_| KeyPair::random()).collect();
        let hub = KeyPair::random();
        let numbers = 1..=lab.clients().len() as u32;
        let gateway = self.gateway.as_mut().expect("it was just started");
        let peers: Vec<Peer> = keys.iter().zip(numbers.clone()).map(|(key, n)| client_peer(key, n)).collect();
        gateway.set_up(lab.gateway(), &hub, &peers, 0, mtu)?;
        for (((host, namespace), key), number) in
            self.clients.iter_mut().zip(lab.clients()).zip(&keys).zip(numbers.clone())
        {
            host.set_up(namespace, key, &[gateway_peer(&hub)], number, mtu)?;
        }
        for host in &mut self.clients {
            host.wait_for_handshake(interrupt)?;
        }
        Ok(numbers.map(client_address).collect())
    }

    fn processes(&self) -> (Vec<u32>, Vec<u32>) {
        (self.gateway.iter().map(Host::pid).collect(), self.clients.iter().map(Host::pid).collect())
    }

    fn facts(&mut self) -> &mut SystemInfo {
        &mut self.facts
    }

    fn down(&mut self) {
        for host in self.clients.iter_mut().chain(&mut self.gateway) {
            host.ask_to_end();
        }
        self.clients.clear();
        self.gateway = None;
    }
}

impl Server for WireGuard {
    fn serve(
        &mut self,
        lab: &Lab,
        clients: &[SocketAddr],
        interrupt: &Interrupt,
    ) -> Result<Served, SystemError> {
        let program = self.programs.find(&self.implementation.program)?;
        let mut gateway = Host::start(self.implementation, &program, lab, lab.gateway())?;
        gateway.wait_for_socket(interrupt)?;
        let gateway = self.gateway.insert(gateway);
        let (mtu, hub) = (inner_mtu(lab)?, KeyPair::random());
        let keys: Vec<KeyPair> = clients.iter().map(|_| KeyPair::random()).collect();
        let peer = |((key, endpoint), number): ((&KeyPair, &SocketAddr), u32)| Peer {
            endpoint: *endpoint,
            ..client_peer(key, number)
        };
        let peers: Vec<Peer> = keys.iter().zip(clients).zip(1..).map(peer).collect();
        gateway.set_up(lab.gateway(), &hub, &peers, 0, mtu)?;
        self.fill_facts(&program, mtu);
        let clients = keys.into_iter().zip(1..).map(|(key, number)| Client::new(key, inner_v4(number)));
        let address = SocketAddr::new(Lab::SERVICE_V4.into(), PORT);
        Ok(Served { key: hub.public, address, far: inner_v4(0), mtu, clients: clients.collect() })
    }
}

impl Host {
    pub(super) fn start(
        implementation: &Implementation,
        program: &Path,
        lab: &Lab,
        namespace: &Namespace,
    ) -> Result<Self, SystemError> {
        let own = lab.directory().join("wireguard").join(namespace.name());
        let seen_as = socket_directory()?;
        fs::create_dir_all(&own)
            .map_err(|source| SystemError::Io { action: format!("making {}", own.display()), source })?;
        let name = format!("{} in {}", implementation.program.name, namespace.name());
        let socket = own.join(format!("{DEVICE}.sock"));
        let log = lab.directory().join("wireguard").join(format!("{}.log", namespace.name()));
        let words = implementation.words(program, DEVICE, namespace == lab.gateway());
        let private = [PrivateDirectory { own, seen_as }];
        // It becomes the program: the process is the same.
        let daemon = Daemon::start_with(&private, &name, namespace, Path::new("/usr/bin/env"), words, &log)?;
        Ok(Self { daemon, socket })
    }

    pub(super) fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    pub(super) fn ask_to_end(&mut self) {
        self.daemon.ask_to_end();
    }

    pub(super) fn wait_for_socket(&mut self, interrupt: &Interrupt) -> Result<(), SystemError> {
        let failure = "does not answer at its configuration socket";
        self.wait_for_answer(failure, START_TIMEOUT, interrupt, |_| true)
    }

    /// Gives it its key, peers and addresses. `number` is the client's, 0 the gateway's.
    fn set_up(
        &mut self,
        namespace: &Namespace,
        key: &KeyPair,
        peers: &[Peer],
        number: u32,
        mtu: u32,
    ) -> Result<(), SystemError> {
        self.configure(key, peers)?;
        give_addresses(namespace, number, mtu)
    }

    /// Gives it its key and peers.
    pub(super) fn configure(&self, key: &KeyPair, peers: &[Peer]) -> Result<(), SystemError> {
        uapi::ask(&self.socket, &uapi::set(key, PORT, peers))
            .map_err(|error| self.daemon.failed(&format!("refuses its configuration: {error}")))?;
        Ok(())
    }

    pub(super) fn wait_for_handshake(&mut self, interrupt: &Interrupt) -> Result<(), SystemError> {
        let failure = "made no handshake with the gateway";
        self.wait_for_answer(failure, HANDSHAKE_TIMEOUT, interrupt, |answer| uapi::all_shook_hands(answer, 1))
    }

    /// Asks for its state until the answer is as wanted.
    fn wait_for_answer(
        &mut self,
        failure: &str,
        timeout: Duration,
        interrupt: &Interrupt,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<(), SystemError> {
        let Self { daemon, socket } = self;
        daemon.wait_until(failure, timeout, interrupt, |_| {
            let answer = uapi::ask(socket, "get=1\n\n");
            Ok(answer.is_ok_and(|answer| is_wanted(&answer)).then_some(()))
        })
    }
}

/// Brings a host's device up. `number` is the client's, 0 the gateway's.
fn give_addresses(namespace: &Namespace, number: u32, mtu: u32) -> Result<(), SystemError> {
    let (v4, v6) = (inner_v4(number), inner_v6(number));
    namespace.ip(&["link", "set", DEVICE, "mtu", &mtu.to_string(), "up"])?;
    Ok(namespace.add_addresses(DEVICE, &[format!("{v4}/16"), format!("{v6}/64")])?)
}

/// The place of the sockets without symbolic links; on most machines /var/run is one.
fn socket_directory() -> Result<PathBuf, SystemError> {
    let (parent, name) = SOCKETS;
    let make = || {
        let directory = fs::canonicalize(parent)?.join(name);
        fs::create_dir_all(&directory)?;
        Ok(directory)
    };
    make().map_err(|source| SystemError::Io { action: format!("making {parent}/{name}"), source })
}

/// The MTU that fits into a link of the lab beside WireGuard's own headers.
pub(super) fn inner_mtu(lab: &Lab) -> Result<u32, SystemError> {
    Ok(lab.link_mtu()? - OVERHEAD)
}

/// The inner address of a client, from 1; the gateway is number 0.
fn inner_v4(number: u32) -> Ipv4Addr {
    let [_, _, high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, 87, 1 + high, low)
}

/// The inner address over IPv6.
fn inner_v6(number: u32) -> Ipv6Addr {
    Ipv6Addr::new(0xfd87, 0, 0, 0, 0, 0, 1, number as u16)
}

fn client_address(number: u32) -> ClientAddress {
    ClientAddress { v4: Some(inner_v4(number)), v6: Some(inner_v6(number)), device: DEVICE.to_owned() }
}

/// A client as the gateway knows it.
fn client_peer(key: &KeyPair, number: u32) -> Peer {
    Peer {
        public: key.public,
        endpoint: SocketAddr::new(Lab::client_v4(number).into(), PORT),
        allowed: vec![format!("{}/32", inner_v4(number)), format!("{}/128", inner_v6(number))],
        keepalive: None,
    }
}

/// The gateway as every client knows it.
fn gateway_peer(key: &KeyPair) -> Peer {
    Peer {
        public: key.public,
        endpoint: SocketAddr::new(Lab::SERVICE_V4.into(), PORT),
        allowed: vec!["10.87.0.0/16".to_owned(), "fd87::/64".to_owned()],
        keepalive: Some(KEEPALIVE_SECONDS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::MAX_CLIENTS;

    #[test]
    fn inner_addresses_are_all_different() {
        let mut seen: Vec<_> = (0..=MAX_CLIENTS).map(|n| (inner_v4(n), inner_v6(n))).collect();
        seen.sort();
        for pair in seen.windows(2) {
            assert!(pair[0].0 != pair[1].0 && pair[0].1 != pair[1].1, "{pair:?}");
        }
    }

    #[test]
    fn each_side_names_the_other_and_a_client_owns_its_addresses_only() {
        let key = KeyPair::random();
        let client = client_peer(&key, 7);
        assert_eq!(client.endpoint.to_string(), "198.18.7.2:51820");
        assert_eq!(client.allowed, ["10.87.1.7/32", "fd87::1:7/128"]);
        let gateway = gateway_peer(&key);
        assert_eq!(gateway.endpoint.to_string(), "198.18.0.1:51820");
        assert!(gateway.keepalive.is_some() && client.keepalive.is_none(), "clients begin");
    }
}
