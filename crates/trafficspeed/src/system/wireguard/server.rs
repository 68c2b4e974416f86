//! A server of WireGuard's protocol without clients: the measurement makes these, for less than
//! a stock client costs.

use std::net::{Ipv4Addr, SocketAddr};

use zeroize::Zeroizing;

use super::implementation::{
    BORINGTUN, GOTATUN, WIREGUARD_GO, WIREGUARD_GO_TAILSCALE, WIREGUARD_GO_TAILSCALE_PROCS1,
};
use super::{KeyPair, WireGuard};
use crate::interrupt::Interrupt;
use crate::lab::Lab;
use crate::system::vpnd::StockClients;
use crate::system::{Kind, Programs, Subject, System, SystemError, buffers};

/// Facts that one client has to know.
pub struct Client {
    /// Its private key.
    pub private: Zeroizing<[u8; 32]>,
    /// Its address inside.
    pub inner: Ipv4Addr,
}

/// A server that is up, as its clients know it.
pub struct Served {
    /// Its public key.
    pub key: [u8; 32],
    pub address: SocketAddr,
    /// Its address inside.
    pub far: Ipv4Addr,
    /// The longest inner packet.
    pub mtu: u32,
    pub clients: Vec<Client>,
}

/// A server of WireGuard's protocol.
pub trait Server: System {
    /// Brings the server alone up, for clients at these addresses.
    ///
    /// # Errors
    /// Any of [`SystemError`]; `down` is called in any case.
    fn serve(
        &mut self,
        lab: &Lab,
        clients: &[SocketAddr],
        interrupt: &Interrupt,
    ) -> Result<Served, SystemError>;

    /// Serves with the buffers that all systems have.
    ///
    /// # Errors
    /// Like [`Server::serve`].
    fn up_alone(
        &mut self,
        lab: &Lab,
        clients: &[SocketAddr],
        interrupt: &Interrupt,
    ) -> Result<Served, SystemError> {
        let served = self.serve(lab, clients, interrupt)?;
        if let Some(exception) = buffers::equalise(lab)? {
            self.facts().notes.push(exception);
        }
        Ok(served)
    }
}

/// The server of a system, not yet up.
///
/// # Errors
/// [`SystemError::Missing`] if it is no WireGuard server in user space.
pub fn server(subject: Subject, programs: &Programs) -> Result<Box<dyn Server>, SystemError> {
    let plain = |implementation| Ok(Box::new(WireGuard::new(implementation, programs)) as Box<dyn Server>);
    match subject.kind {
        Kind::Vpnd => Ok(Box::new(StockClients::without_clients(programs, subject))),
        Kind::WireguardGo => plain(&WIREGUARD_GO),
        Kind::WireguardGoTailscale => plain(&WIREGUARD_GO_TAILSCALE),
        Kind::WireguardGoTailscaleProcs1 => plain(&WIREGUARD_GO_TAILSCALE_PROCS1),
        Kind::Boringtun => plain(&BORINGTUN),
        Kind::Gotatun => plain(&GOTATUN),
        other => Err(SystemError::Missing(format!(
            "{} is no WireGuard server in user space; vpnd, wireguard-go, wireguard-go-tailscale, boringtun and gotatun are",
            other.name()
        ))),
    }
}

impl KeyPair {
    /// The half that only its host knows, for a host that is made elsewhere.
    fn into_private(self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(*self.private())
    }
}

impl Client {
    /// A client with a key pair.
    pub fn new(key: KeyPair, inner: Ipv4Addr) -> Self {
        Self { private: key.into_private(), inner }
    }
}
