//! vpnd as the gateway of stock WireGuard clients: each is a device that `vpnd device add` has
//! made, and gets what that printed.
//!
//! The clients are the processes that the systems of plain WireGuard have, with the same MTU and
//! keepalive, so that the two differ in the gateway alone.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::{POOL_V4, PORT, PROFILE, VPND, Vpnd, user};
use crate::interrupt::Interrupt;
use crate::lab::device::Device;
use crate::lab::namespace::Namespace;
use crate::lab::{Lab, run_tool};
use crate::system::daemon::Daemon;
use crate::system::wireguard::implementation::{Implementation, WIREGUARD_GO, WIREGUARD_GO_TAILSCALE};
use crate::system::wireguard::server::{Client, Served, Server};
use crate::system::wireguard::uapi::{KeyPair, Peer};
use crate::system::wireguard::{CIPHERS, DEVICE, Host, KEEPALIVE_SECONDS, inner_mtu};
use crate::system::{Cipher, ClientAddress, Profile, Programs, Subject, System, SystemError, SystemInfo};

/// vpnd serving wireguard-go before it runs.
pub const WIREGUARD_GO_PROFILE: Profile = Profile {
    label: "vpnd serving wireguard-go",
    ciphers: CIPHERS,
    programs: &[&VPND, &WIREGUARD_GO.program],
    adapter: |programs, subject| Box::new(StockClients::new(programs, subject, Some(&WIREGUARD_GO))),
    ..PROFILE
};

/// vpnd serving Tailscale's fork of wireguard-go before it runs.
pub const WIREGUARD_GO_TAILSCALE_PROFILE: Profile = Profile {
    label: "vpnd serving wireguard-go-tailscale",
    programs: &[&VPND, &WIREGUARD_GO_TAILSCALE.program],
    adapter: |programs, subject| {
        Box::new(StockClients::new(programs, subject, Some(&WIREGUARD_GO_TAILSCALE)))
    },
    ..WIREGUARD_GO_PROFILE
};

/// A gateway with stock clients in a lab.
#[derive(Debug)]
pub struct StockClients {
    vpnd: Vpnd,
    /// The implementation of its clients, if it makes any.
    implementation: Option<&'static Implementation>,
    clients: Vec<Host>,
}

impl StockClients {
    fn new(programs: &Programs, subject: Subject, implementation: Option<&'static Implementation>) -> Self {
        // WireGuard has one suite, whose library is the same in all of a run.
        let suite = Some(Cipher::ChaCha20Poly1305.name().to_owned());
        let vpnd = Vpnd { suite, ..Vpnd::of(programs, subject) };
        Self { vpnd, implementation, clients: Vec::new() }
    }

    /// A gateway whose clients others make.
    pub fn without_clients(programs: &Programs, subject: Subject) -> Self {
        Self::new(programs, subject, None)
    }

    /// Starts the gateway for devices with the MTU that fits into the links; returns its program
    /// and that.
    fn start_gateway(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<(PathBuf, u32), SystemError> {
        let mtu = inner_mtu(lab)?;
        self.vpnd.wireguard = Some(mtu);
        let program = self.vpnd.start_gateway(lab, interrupt)?;
        let suite = Cipher::ChaCha20Poly1305.name();
        let library = self.vpnd.files().status(&program).and_then(|status| status.library_of(suite));
        let facts = &mut self.vpnd.facts;
        facts.mtu = Some(mtu);
        facts.cipher = library.map_or_else(|| suite.to_owned(), |library| format!("{suite} ({library})"));
        let route = "packets between clients are opened and sealed again in the gateway's process";
        facts.notes.push(route.to_owned());
        Ok((program, mtu))
    }

    /// Makes the device of client `number` at the gateway.
    fn add_device(&self, vpnd: &Path, number: usize) -> Result<DeviceFile, SystemError> {
        self.vpnd.add_user(&user(number))?;
        self.vpnd.add_device(vpnd, &user(number))
    }
}

impl System for StockClients {
    fn check(&self) -> Result<(), SystemError> {
        if let Some(implementation) = self.implementation {
            self.vpnd.programs.find(&implementation.program)?;
        }
        self.vpnd.check()
    }

    fn bring_up(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<Vec<ClientAddress>, SystemError> {
        let implementation = self.implementation.expect("without clients it is only served");
        let client = self.vpnd.programs.find(&implementation.program)?;
        let (vpnd, _) = self.start_gateway(lab, interrupt)?;
        let (facts, served) = (&mut self.vpnd.facts, implementation.program.version_of(&client));
        facts.version = format!("{}, serving {served}", facts.version);
        facts.notes.extend(Some(implementation.note.to_owned()).filter(|note| !note.is_empty()));
        for namespace in lab.clients() {
            self.clients.push(Host::start(implementation, &client, lab, namespace)?);
        }
        let mut addresses = Vec::new();
        for (number, namespace) in (1..).zip(lab.clients()) {
            let device = self.add_device(&vpnd, number)?;
            let host = &mut self.clients[number - 1];
            host.wait_for_socket(interrupt)?;
            host.configure(&device.key, &[device.gateway()])?;
            device.give_addresses(namespace)?;
            addresses.push(device.client_address());
        }
        for host in &mut self.clients {
            host.wait_for_handshake(interrupt)?;
        }
        Ok(addresses)
    }

    fn processes(&self) -> (Vec<u32>, Vec<u32>) {
        let gateway = self.vpnd.gateway.iter().map(Daemon::pid).collect();
        (gateway, self.clients.iter().map(Host::pid).collect())
    }

    fn facts(&mut self) -> &mut SystemInfo {
        self.vpnd.facts()
    }

    fn down(&mut self) {
        for client in &mut self.clients {
            client.ask_to_end();
        }
        self.clients.clear();
        self.vpnd.down();
    }
}

impl Server for StockClients {
    fn serve(
        &mut self,
        lab: &Lab,
        clients: &[SocketAddr],
        interrupt: &Interrupt,
    ) -> Result<Served, SystemError> {
        let (vpnd, mtu) = self.start_gateway(lab, interrupt)?;
        let devices: Vec<DeviceFile> =
            (1..=clients.len()).map(|number| self.add_device(&vpnd, number)).collect::<Result<_, _>>()?;
        let key = devices.first().map_or([0; 32], |device| device.gateway);
        let address = SocketAddr::new(Lab::SERVICE_V4.into(), PORT);
        let client = |device: DeviceFile| {
            let inner = device.client_address().v4.unwrap_or(Ipv4Addr::UNSPECIFIED);
            Client::new(device.key, inner)
        };
        Ok(Served {
            key,
            address,
            far: Vpnd::inside(lab)?,
            mtu,
            clients: devices.into_iter().map(client).collect(),
        })
    }
}

impl Vpnd {
    /// Has it serve WireGuard devices, whose tunnels have this MTU.
    #[must_use]
    pub fn serving_devices(self, mtu: u32) -> Self {
        Self { wireguard: Some(mtu), ..self }
    }

    /// Its public key for WireGuard devices, as the file of one more device of `user` has it. Only
    /// while it is up.
    ///
    /// # Errors
    /// [`SystemError`] with what `vpnd device add` said.
    pub fn wireguard_key(&self, user: &str) -> Result<[u8; 32], SystemError> {
        Ok(self.add_device(&self.programs.find(&VPND)?, user)?.gateway)
    }

    /// Makes a device of `user`.
    fn add_device(&self, program: &Path, user: &str) -> Result<DeviceFile, SystemError> {
        let mut command = Command::new(program);
        command.args(["device", "add", "--wireguard", "--user", user, "--config"]);
        let printed = Zeroizing::new(run_tool(command.arg(self.files().config()))?);
        DeviceFile::parse(&printed).ok_or_else(|| SystemError::Start {
            failure: "`vpnd device add` printed no configuration that a client could use".into(),
            log: String::new(),
        })
    }

    /// The gateway's address in the tunnel.
    ///
    /// # Errors
    /// If it has none.
    pub fn inside(lab: &Lab) -> Result<Ipv4Addr, SystemError> {
        let devices = Device::all(lab.gateway())?;
        let is_inner = |address: &IpAddr| match address {
            IpAddr::V4(v4) if v4.octets()[..2] == POOL_V4 => Some(*v4),
            _ => None,
        };
        let found = devices.iter().flat_map(|device| &device.addresses).find_map(is_inner);
        found.ok_or_else(|| SystemError::Start {
            failure: "vpnd has no address in its tunnel".into(),
            log: String::new(),
        })
    }
}

/// A client's file as `vpnd device add` prints it.
struct DeviceFile {
    key: KeyPair,
    gateway: [u8; 32],
    endpoint: SocketAddr,
    addresses: Vec<IpAddr>,
    /// Networks that lead into the tunnel.
    allowed: Vec<String>,
    mtu: u32,
}

impl DeviceFile {
    /// `None` if a line is missing or not what it should be.
    fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            lines.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
        };
        let list = |key| value(key).map(|value| value.split(',').map(str::trim));
        let key = |name| STANDARD.decode(value(name)?).ok()?.try_into().ok();
        let address = |network: &str| network.split('/').next()?.parse().ok();
        Some(Self {
            key: KeyPair::from_private(Zeroizing::new(key("PrivateKey")?)),
            gateway: key("PublicKey")?,
            endpoint: value("Endpoint")?.parse().ok()?,
            addresses: list("Address")?.map(address).collect::<Option<_>>()?,
            allowed: list("AllowedIPs")?.map(str::to_owned).collect(),
            mtu: value("MTU")?.parse().ok()?,
        })
    }

    /// The gateway as this client knows it.
    fn gateway(&self) -> Peer {
        Peer {
            public: self.gateway,
            endpoint: self.endpoint,
            allowed: self.allowed.clone(),
            keepalive: Some(KEEPALIVE_SECONDS),
        }
    }

    /// Brings the client's device up as wg-quick does.
    fn give_addresses(&self, namespace: &Namespace) -> Result<(), SystemError> {
        namespace.add_addresses(DEVICE, &self.addresses)?;
        namespace.ip(&["link", "set", DEVICE, "mtu", &self.mtu.to_string(), "up"])?;
        for network in &self.allowed {
            namespace.ip(&["route", "add", network, "dev", DEVICE])?;
        }
        Ok(())
    }

    fn client_address(&self) -> ClientAddress {
        let v4 = self.addresses.iter().find_map(|address| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        });
        let v6 = self.addresses.iter().find_map(|address| match address {
            IpAddr::V6(v6) => Some(*v6),
            IpAddr::V4(_) => None,
        });
        ClientAddress { v4, v6, device: DEVICE.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_what_the_gateway_printed_for_it() {
        let key = |byte: u8| STANDARD.encode([byte; 32]);
        let text = format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.86.0.7/32, fd86::7/128\nMTU = 1420\n\n[Peer]\nPublicKey = {}\n\
             AllowedIPs = 10.86.0.0/16, fd86::/64\nEndpoint = 198.18.0.1:4433\n",
            key(1),
            key(2)
        );
        let device = DeviceFile::parse(&text).unwrap();
        let gateway = device.gateway();
        assert_eq!((device.key.private(), gateway.public, device.mtu), (&[1; 32], [2; 32], 1_420));
        assert_eq!(gateway.allowed, ["10.86.0.0/16", "fd86::/64"]);
        assert_eq!(gateway.endpoint.to_string(), "198.18.0.1:4433");
        let address = device.client_address();
        assert_eq!(address.v4.map(|v4| v4.to_string()).as_deref(), Some("10.86.0.7"));
        assert_eq!(address.v6.map(|v6| v6.to_string()).as_deref(), Some("fd86::7"));
        for missing in ["PrivateKey", "Address", "MTU", "PublicKey", "AllowedIPs", "Endpoint"] {
            assert!(DeviceFile::parse(&text.replace(missing, "Other")).is_none(), "{missing}");
        }
    }
}
