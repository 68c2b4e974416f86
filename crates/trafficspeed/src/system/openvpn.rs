//! OpenVPN: one server process that forwards between its clients, over UDP and TUN devices; or with
//! the kernel's data channel, where the kernel forwards.
//!
//! Both ends name each other by the fingerprints of their certificates, so there is no certificate
//! authority. What was negotiated is read from the clients' logs, never taken from the
//! configuration.

pub mod config;
pub mod log;

use std::path::Path;
use std::time::Duration;

use super::daemon::{Daemon, Daemons};
use super::folder::Folder;
use super::program::{Program, Programs, Source};
use super::{Cipher, ClientAddress, Profile, Subject, System, SystemError, SystemInfo, check_tun, kernel};
use crate::interrupt::Interrupt;
use crate::lab::Lab;
use crate::lab::device::{Device, kind};
use crate::lab::namespace::Namespace;
use config::{TlsIdentity, Tunnel};

/// Time that the server may take until it is ready.
const SERVER_TIMEOUT: Duration = Duration::from_secs(20);
/// Time that one client may take once all are started; a lost datagram costs seconds.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

static OPENVPN: Program = Program {
    name: "openvpn",
    version: &["--version"],
    places: &[],
    source: Source::Debian { packages: &["openvpn"] },
};

const CIPHERS: &[Cipher] = &[
    Cipher::Aes128Gcm,
    Cipher::Aes256Gcm,
    Cipher::ChaCha20Poly1305,
    Cipher::None,
    Cipher::AuthOnly,
    Cipher::EncryptOnly,
    Cipher::Aes256CbcHmacSha256,
];

/// OpenVPN with its default MTU, before it runs.
pub const PROFILE: Profile = Profile {
    label: "OpenVPN",
    ciphers: CIPHERS,
    programs: &[&OPENVPN],
    has_priority: false,
    adapter: |programs, Subject { cipher, .. }| {
        Box::new(OpenVpn::new(programs.clone(), Tunnel { cipher, mtu: None, dco: false }))
    },
};

/// OpenVPN with the large TUN packets that make it several times faster, before it runs.
pub const MTU9000_PROFILE: Profile = Profile {
    label: "OpenVPN, tun-mtu 9000",
    has_priority: false,
    adapter: |programs, Subject { cipher, .. }| {
        Box::new(OpenVpn::new(programs.clone(), Tunnel { cipher, mtu: Some(9000), dco: false }))
    },
    ..PROFILE
};

/// OpenVPN with the kernel's data channel, before it runs.
pub const DCO_PROFILE: Profile = Profile {
    label: "OpenVPN (kernel)",
    ciphers: &[Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305],
    adapter: |programs, Subject { cipher, .. }| {
        Box::new(OpenVpn::new(programs.clone(), Tunnel { cipher, mtu: None, dco: true }))
    },
    ..PROFILE
};

/// The kernel's part of [`DCO_PROFILE`], and the first version of OpenVPN that uses it.
const MODULES: &[&str] = &["ovpn"];
const FIRST_WITH_OVPN: (u32, u32) = (2, 7);

/// OpenVPN in a lab.
#[derive(Debug)]
pub struct OpenVpn {
    programs: Programs,
    tunnel: Tunnel,
    facts: SystemInfo,
    daemons: Daemons,
}

impl OpenVpn {
    fn new(programs: Programs, tunnel: Tunnel) -> Self {
        Self { programs, tunnel, facts: SystemInfo::default(), daemons: Daemons::default() }
    }

    fn start_gateway(
        &mut self,
        program: &Path,
        folder: &Folder,
        lab: &Lab,
        identities: (&TlsIdentity, &[TlsIdentity]),
        interrupt: &Interrupt,
    ) -> Result<(), SystemError> {
        let text = config::server(self.tunnel, identities.0, identities.1);
        let mut gateway = start("server", program, folder, lab.gateway(), &text)?;
        gateway.wait_until("did not become ready", SERVER_TIMEOUT, interrupt, |daemon| {
            Ok(log::is_complete(&daemon.output()).then_some(()))
        })?;
        self.daemons.gateway = Some(gateway);
        Ok(())
    }

    /// Waits until a client is connected and its device has both addresses; checks what it
    /// negotiated.
    fn finish_client(
        &mut self,
        number: usize,
        (namespace, gateway): (&Namespace, &Namespace),
        interrupt: &Interrupt,
    ) -> Result<ClientAddress, SystemError> {
        let client = &mut self.daemons.clients[number];
        let failure = "did not connect";
        let (channel, device) = client.wait_until(failure, CLIENT_TIMEOUT, interrupt, |daemon| {
            let said = daemon.output();
            let Some(channel) = log::channel(&said).filter(|_| log::is_complete(&said)) else {
                return Ok(None);
            };
            let devices = Device::all(namespace)?;
            let device = devices.into_iter().find(|device| device.name == config::DEVICE);
            Ok(device.and_then(|device| config::inner_addresses(&device)).map(|found| (channel, found)))
        })?;
        if let Some(wanted) = config::words(self.tunnel.cipher).filter(|wanted| !channel.is(wanted)) {
            let problem = format!("uses {channel}, not {} with {}", wanted.cipher, wanted.auth);
            return Err(client.failed(&problem));
        }
        if self.tunnel.dco {
            for namespace in [namespace, gateway] {
                let kind = kind(namespace, config::DEVICE)?;
                if kind != "ovpn" {
                    return Err(
                        client.failed(&format!("uses a device of kind {kind:?}, not of kind \"ovpn\""))
                    );
                }
            }
        }
        self.facts.cipher = channel.to_string();
        self.facts.mtu = Some(device.mtu);
        Ok(ClientAddress { v4: Some(device.v4), v6: Some(device.v6), device: config::DEVICE.to_owned() })
    }

    fn note(&mut self) {
        let mut notes = if self.tunnel.dco {
            vec![kernel::NOTE.to_owned()]
        } else {
            vec!["without kernel offload (DCO); the server process forwards between clients".to_owned()]
        };
        if let Some(mtu) = self.tunnel.mtu {
            notes.push(format!("tun-mtu {mtu}: datagrams larger than the link's MTU go in IP fragments"));
        }
        self.facts.notes = notes;
    }
}

fn start(
    name: &str,
    program: &Path,
    folder: &Folder,
    namespace: &Namespace,
    text: &str,
) -> Result<Daemon, SystemError> {
    let config = folder.write(&format!("{name}.conf"), text)?;
    let arguments = ["--config".as_ref(), config.as_os_str()];
    let log = folder.path(&format!("{name}.log"));
    Daemon::start(&format!("openvpn ({name})"), namespace, program, arguments, &log)
}

impl System for OpenVpn {
    fn check(&self) -> Result<(), SystemError> {
        if !self.tunnel.dco {
            self.programs.find(&OPENVPN)?;
            return check_tun();
        }
        kernel::check("OpenVPN's data channel offload", MODULES)?;
        let version = OPENVPN.version_of(&self.programs.find(&OPENVPN)?);
        // One that does not say its version is known by the device that it makes.
        if log::version(&version).is_none_or(|version| version >= FIRST_WITH_OVPN) {
            return Ok(());
        }
        let (major, minor) = FIRST_WITH_OVPN;
        Err(SystemError::Missing(format!(
            "OpenVPN {major}.{minor} is the first that uses this kernel's data channel, and here is {version}; name a newer one \
             with --program openvpn=PATH"
        )))
    }

    fn bring_up(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<Vec<ClientAddress>, SystemError> {
        let program = self.programs.find(&OPENVPN)?;
        if self.tunnel.dco {
            kernel::load(MODULES)?;
        }
        self.facts.version = OPENVPN.version_of(&program);
        let folder = Folder::make(lab, "openvpn")?;
        let server = TlsIdentity::random("server");
        let names = (1..=lab.clients().len()).map(|number| format!("client{number}"));
        let clients: Vec<TlsIdentity> = names.map(|name| TlsIdentity::random(&name)).collect();
        self.start_gateway(&program, &folder, lab, (&server, &clients), interrupt)?;
        for (identity, namespace) in clients.iter().zip(lab.clients()) {
            let text = config::client(self.tunnel, identity, &server);
            self.daemons.clients.push(start(&identity.name, &program, &folder, namespace, &text)?);
        }
        let addresses = lab
            .clients()
            .iter()
            .enumerate()
            .map(|(number, namespace)| self.finish_client(number, (namespace, lab.gateway()), interrupt))
            .collect::<Result<Vec<_>, _>>()?;
        self.note();
        Ok(addresses)
    }

    fn processes(&self) -> (Vec<u32>, Vec<u32>) {
        self.daemons.pids()
    }

    fn facts(&mut self) -> &mut SystemInfo {
        &mut self.facts
    }

    fn down(&mut self) {
        self.daemons.end();
    }
}
