//! The messages between a gateway's parent and its children; those between the children are in
//! [`auth`], [`wireguard`], [`idp`] and [`portal`].
//!
//! | | first | then |
//! |---|---|---|
//! | parent → auth | [`AuthLaunch`] | [`ToAuth`] |
//! | auth → parent | [`Prepared`] | [`FromAuth`]; [`database::Dial`] on a separate channel |
//! | parent → idp | [`idp::IdpLaunch`] | |
//! | idp → parent | [`Prepared`] | [`idp::FromIdp`] |
//! | parent → portal | [`portal::PortalLaunch`] | [`portal::ToPortal`] |
//! | portal → parent | [`Prepared`] | [`portal::FromPortal`] |
//! | parent → acme | [`acme::AcmeLaunch`] | [`acme::ToAcme`] |
//! | acme → parent | [`Prepared`] | [`acme::FromAcme`] |
//! | parent → worker | [`WorkerLaunch`], [`Begin`] | [`ToWorker`] |
//! | worker → parent | [`Prepared`], [`Ready`] | [`FromWorker`] |
//!
//! [`Prepared`]: crate::messages::Prepared
//! [`Ready`]: crate::messages::Ready

pub mod acme;
pub mod auth;
pub mod database;
pub mod idp;
pub mod portal;
pub mod refusal;
pub mod wireguard;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

use crate::admin::status::Firewall;
use crate::messages::{Common, Devices, SecretBytes};
use crate::signing::KeyDescription;
use vpnd_config::endpoint::Endpoint;
use vpnd_config::in_force::Settings;
use vpnd_config::{Invalid, ServerConfig, local_ports};
use vpnd_sys::sandbox::Protections;
use vpnd_sys::sysctl;

/// Routes in one [`FromWorker::Hosts`] at most, added and removed.
pub const MAX_HOSTS: usize = 256;

/// Addresses in one [`FromWorker::Released`] at most.
pub const MAX_RELEASED: usize = 1_024;

/// A gateway's configuration as it was read; the other processes parse it again, so that no second
/// form of it exists.
#[derive(Clone, Debug, Encode, Decode)]
pub struct Configuration {
    #[n(0)]
    text: String,
    #[n(1)]
    file: String,
    #[n(2)]
    base: String,
    /// Whether IPv6 is off on this machine although the file configures it.
    #[n(3)]
    without_ipv6: bool,
    /// The machine's addresses, which processes without rights can't find.
    #[cbor(n(4), default)]
    addresses: Vec<IpAddr>,
}

impl Configuration {
    /// Reads the file at `path` and parses it, too. If IPv6 is switched off on this machine, and
    /// IPv4 is there to go on with, the configuration is one without IPv6.
    pub fn read(path: &Path) -> Result<(Self, ServerConfig), vpnd_config::ConfigError> {
        let text = vpnd_config::read_text(path)?;
        let base = vpnd_sys::secret_file::parent(path);
        let config = ServerConfig::parse(&text, &path.display().to_string(), base)?;
        let tunnel = &config.tunnel;
        let without_ipv6 =
            tunnel.pool_v6.is_some() && tunnel.pool_v4.is_some() && !sysctl::has_ipv6(&tunnel.name);
        let config = if without_ipv6 { config.without_ipv6() } else { config };
        let addresses = local_ports::reachable_addresses();
        let config = config.on_machine(&addresses);
        let (file, base) = (path.display().to_string(), base.to_string_lossy().into_owned());
        Ok((Self { text, file, base, without_ipv6, addresses }, config))
    }

    /// The settings of the file.
    pub fn settings(&self) -> Settings {
        Settings::of(&self.text)
    }

    /// Whether the file's settings for IPv6 were left out.
    pub fn is_without_ipv6(&self) -> bool {
        self.without_ipv6
    }

    pub fn parse(&self) -> Result<ServerConfig, Invalid> {
        let config = ServerConfig::parse(&self.text, &self.file, Path::new(&self.base))?;
        let config = config.on_machine(&self.addresses);
        Ok(if self.is_without_ipv6() { config.without_ipv6() } else { config })
    }
}

/// The gateway's certificate as the worker has it: the chain, and a description of the key, which
/// the auth process keeps.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GatewayCertificate {
    /// PEM, the gateway's own certificate first.
    #[n(0)]
    pub chain: ByteVec,
    #[n(1)]
    pub key: KeyDescription,
    /// When it should be replaced, seconds since 1970.
    #[n(2)]
    pub due_s: u64,
    /// When it expires, seconds since 1970.
    #[n(3)]
    pub expires_s: u64,
    /// Another certificate for the same key, if there is one.
    #[n(4)]
    pub pinned: Option<PinnedCertificate>,
}

/// The certificate for clients that pin the gateway's own authority, where all others get one of
/// another authority.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PinnedCertificate {
    /// PEM, the gateway's own certificate first.
    #[n(0)]
    pub chain: ByteVec,
    /// The authorities that such clients name (PEM).
    #[n(1)]
    pub ca: ByteVec,
}

/// The auth process's first message; with two descriptors: its ends of the channels to the worker,
/// for questions and for signatures; and with a third where the store is a database: its end of the
/// channel for [`database::Dial`].
#[derive(Debug, Encode, Decode)]
pub struct AuthLaunch {
    #[n(0)]
    pub common: Common,
    #[n(1)]
    pub configuration: Configuration,
    /// The gateway's TLS key, PEM. No other process is given it.
    #[n(2)]
    pub key: SecretBytes,
    /// Whether the gateway starts, rather than this process being its next one.
    #[n(3)]
    pub is_start: bool,
    /// Where clients find the gateway, if that is known.
    #[n(4)]
    pub endpoint: Option<ClientEndpoint>,
    /// There where the store is a database.
    #[n(5)]
    pub database: Option<database::DatabaseLaunch>,
    /// See [`ToAuth::ClientProfile`].
    #[cbor(n(6), default)]
    pub client_profile: Option<String>,
}

/// Where clients find the gateway.
#[derive(Clone, Debug, Encode, Decode)]
pub struct ClientEndpoint {
    /// With the port, as in a profile.
    #[n(0)]
    pub address: String,
    /// Outer addresses of the gateway.
    #[n(1)]
    pub outer: Vec<IpAddr>,
}

impl ClientEndpoint {
    pub fn parsed(self) -> Option<Endpoint> {
        Some(Endpoint { address: self.address.parse().ok()?, outer: self.outer })
    }
}

impl From<Endpoint> for ClientEndpoint {
    fn from(found: Endpoint) -> Self {
        Self { address: found.address.to_string(), outer: found.outer }
    }
}

/// The worker's first message; with descriptors: its ends of the channels to the auth process, for
/// questions and for signatures, the listening control socket, and the metrics' listener if there
/// is one. No secret of TLS is in it.
#[derive(Debug, Encode, Decode)]
pub struct WorkerLaunch {
    #[n(0)]
    pub common: Common,
    #[n(1)]
    pub configuration: Configuration,
    #[n(2)]
    pub insecure_lab: bool,
    #[n(3)]
    pub certificate: GatewayCertificate,
    #[n(5)]
    pub client_ca: Option<ByteVec>,
    #[n(6)]
    pub quic_secret: SecretBytes,
    /// The user who may use the control socket besides root.
    #[n(7)]
    pub owner: u32,
    /// The parent.
    #[n(8)]
    pub pid: u32,
    /// Protections of the auth process.
    #[n(9)]
    pub auth: Protections,
    /// The parent's version; an upgrade leaves the parent as it is.
    #[n(10)]
    pub parent_version: String,
    /// The file of revocation lists, as it was checked.
    #[n(11)]
    pub client_crl: Option<ByteVec>,
}

/// A worker's second message, by which it gets its devices.
#[derive(Debug, Encode, Decode)]
pub enum Begin {
    /// With the devices' descriptors.
    #[n(0)]
    Devices(#[n(0)] Devices),
    /// With a channel to the worker that runs: take over from it.
    #[n(6)]
    TakeOver,
}

/// Parent → worker, once the worker is ready.
#[derive(Debug, Encode, Decode)]
pub enum ToWorker {
    /// The configuration as it is now, or why it can't be used: after
    /// [`FromWorker::ReadConfiguration`], and after SIGHUP.
    #[n(1)]
    Configuration(#[n(0)] ReloadedConfiguration),
    /// Inform the clients, and end; with the reason, for the log, if there is one.
    #[n(2)]
    Stop(#[n(0)] Option<String>),
    /// With a channel to the successor: hand everything over, and end.
    #[n(5)]
    HandOver,
    /// Reason why [`FromWorker::Upgrade`] failed.
    #[n(7)]
    NotUpgraded(#[n(0)] String),
    /// Present this certificate from now on. The auth process signs for it already.
    #[n(8)]
    Certificate(#[n(0)] GatewayCertificate),
    /// Let no certificate in any more that these revocation lists name. Their file, which was
    /// checked.
    #[n(9)]
    Revoked(#[n(0)] ByteVec),
    /// The answer to [`FromWorker::Released`].
    #[n(10)]
    Forgotten,
    /// The answer to [`FromWorker::Hosts`]: whether all of it is done. If not, some of it may be.
    #[n(14)]
    HostsSet(#[n(0)] bool),
    /// In a fleet: the machine has these addresses and no others, [`wireguard::MAX_OWN_ADDRESSES`]
    /// at most.
    #[n(15)]
    Addresses(#[n(0)] Vec<IpAddr>),
    /// The firewall's state: after [`FromWorker::ReportFirewall`], and whenever it is
    /// something else.
    #[n(11)]
    Firewall(#[n(0)] Firewall),
    /// Datagrams from the first address, of this machine, are those of a client at the second one
    /// from now on. Answered by [`FromWorker::RelayKnown`].
    #[n(12)]
    Relay {
        #[n(0)]
        here: SocketAddr,
        #[n(1)]
        client: SocketAddr,
    },
    /// The relay at this address is over, and has dropped this many datagrams.
    #[n(13)]
    RelayOver {
        #[n(0)]
        here: SocketAddr,
        #[n(1)]
        dropped: u64,
    },
}

/// A configuration that was read again.
#[derive(Debug, Encode, Decode)]
pub enum ReloadedConfiguration {
    #[n(0)]
    Good(#[n(0)] Configuration),
    #[n(1)]
    Bad(#[n(0)] String),
}

/// Worker → parent, once the worker is ready.
#[derive(Debug, Encode, Decode)]
pub enum FromWorker {
    /// The child failed, and why.
    #[n(2)]
    Failed(#[n(0)] String),
    /// An administrator's request to read the configuration again.
    #[n(3)]
    ReadConfiguration,
    /// An administrator's request to replace the daemon by the program that is installed now.
    #[n(5)]
    Upgrade,
    /// The sessions are the successor's now.
    #[n(6)]
    HandedOver,
    /// The hand-over failed, and why; the worker goes on.
    #[n(7)]
    HandoverFailed(#[n(0)] String),
    /// Inner addresses, [`MAX_RELEASED`] at most, whose sessions are over: have the kernel forget
    /// their connections. Answered by [`ToWorker::Forgotten`] once it has, or if it can't at all.
    #[n(8)]
    Released(#[n(0)] Vec<IpAddr>),
    /// Send [`ToWorker::Firewall`] from now on.
    #[n(9)]
    ReportFirewall,
    /// The answer to [`ToWorker::Relay`], with its first address.
    #[n(10)]
    RelayKnown(#[n(0)] SocketAddr),
    /// In a fleet: announce the inner addresses of sessions, or no longer. Answered by
    /// [`ToWorker::HostsSet`].
    #[n(11)]
    Hosts(#[n(0)] HostRouteChanges),
}

/// Routes to inner addresses, [`MAX_HOSTS`] at most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct HostRouteChanges {
    #[n(0)]
    pub added: Vec<HostRoute>,
    #[n(1)]
    pub removed: Vec<HostRoute>,
}

/// A route to an inner address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct HostRoute {
    #[n(0)]
    pub address: IpAddr,
    /// Lower for a session that has moved later.
    #[n(1)]
    pub metric: u32,
}

/// Parent → auth process.
#[derive(Debug, Encode, Decode)]
pub enum ToAuth {
    /// Sign with this key, too (PEM). Answered by [`FromAuth::KeyTaken`].
    #[n(0)]
    Key(#[n(0)] SecretBytes),
    /// With a channel to the idp process, which is there again or for the first time. Sent only
    /// where sources are configured.
    #[n(1)]
    Idp,
    /// Go by the access profiles of this configuration, which was checked. Answered by
    /// [`FromAuth::ConfigurationTaken`].
    #[n(8)]
    Configuration(#[n(0)] Configuration),
    /// The gateway stops, rather than this process alone.
    #[n(9)]
    Stop,
    /// With a channel to the portal, which is there again or for the first time.
    #[n(10)]
    Portal,
    /// Another auth process goes on in the place of this one, which ends with its channel.
    #[n(11)]
    Replaced,
    /// When the portal's certificate expires, seconds since 1970, for administrators; 0 where it
    /// has none.
    #[n(12)]
    PortalCertificate(#[n(0)] u64),
    /// The profile by which clients reach the gateway now, without a user, if there is one for
    /// everybody. It is no secret.
    #[n(13)]
    ClientProfile(#[n(0)] Option<String>),
    /// Where clients with a single address find the gateway now, if that is known.
    #[n(14)]
    Endpoint(#[n(0)] Option<ClientEndpoint>),
}

/// Auth process → parent, once it is prepared.
#[derive(Debug, Encode, Decode)]
pub enum FromAuth {
    /// The child failed, and why.
    #[n(2)]
    Failed(#[n(0)] String),
    /// It signs with the key that it was given.
    #[n(9)]
    KeyTaken,
    /// It goes by the configuration that it was given.
    #[n(18)]
    ConfigurationTaken,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_of_a_parent_that_knows_no_addresses_is_understood() {
        let of_0_1 = ("[tls]", "server.toml", "/etc/vpnd", true);
        let read: Configuration = minicbor::decode(&minicbor::to_vec(of_0_1).unwrap()).unwrap();
        assert!(read.is_without_ipv6() && read.addresses.is_empty());
    }

    #[test]
    fn an_upgrade_is_asked_for_by_the_numbers_of_0_1() {
        assert!(matches!(minicbor::decode(&[0x82, 0x06, 0x80]), Ok(Begin::TakeOver)));
        assert!(matches!(minicbor::decode(&[0x82, 0x05, 0x80]), Ok(ToWorker::HandOver)));
        let encoded = |message: FromWorker| minicbor::to_vec(message).unwrap();
        assert_eq!(encoded(FromWorker::ReadConfiguration), [0x82, 0x03, 0x80]);
        assert_eq!(encoded(FromWorker::Upgrade), [0x82, 0x05, 0x80]);
        assert_eq!(encoded(FromWorker::HandedOver), [0x82, 0x06, 0x80]);
        assert_eq!(minicbor::to_vec(FromAuth::KeyTaken).unwrap(), [0x82, 0x09, 0x80]);
        assert_eq!(minicbor::to_vec(crate::messages::Ready::Ready).unwrap(), [0x82, 0x01, 0x80]);
    }
}
