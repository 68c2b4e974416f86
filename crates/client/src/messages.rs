//! The messages between a client's parent and its children.
//!
//! | | first | then |
//! |---|---|---|
//! | parent → worker | [`WorkerLaunch`], [`Begin`] | [`ToWorker`] |
//! | worker → parent | [`Prepared`], [`Ready`] | [`FromWorker`] |
//! | parent → look-up | [`LookupLaunch`] | |
//! | look-up → parent | [`FromLookup`] | |
//!
//! [`Prepared`]: vpnd_ipc::messages::Prepared
//! [`Ready`]: vpnd_ipc::messages::Ready

use std::net::{IpAddr, SocketAddr};

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_proto::control::{AsText, ChallengeAnswer, ChallengeText, Network, Renewal, SecretText, Text};
use vpnd_proto::plane::Activity;

use super::{Refusal, Unreached};
use vpnd_config::profile::{Profile, ServerAddress};
use vpnd_ipc::messages::{Common, Devices, SecretBytes};
use vpnd_ipc::request::{Reason, Request, encoded};

/// Addresses of one name that are tried at most.
pub const MAX_ADDRESSES: usize = 16;

/// The first message of a client's worker.
#[derive(Debug, Encode, Decode)]
pub struct WorkerLaunch {
    #[n(0)]
    pub common: Common,
    /// The profile's text; it may hold a private key.
    #[n(1)]
    pub profile: SecretBytes,
    /// The profile's name, for messages.
    #[n(2)]
    pub file: String,
    #[n(3)]
    pub password: SecretText<1024>,
    /// The public key of this device; the private one stays in the parent.
    #[n(4)]
    pub device: ByteArray<32>,
    #[n(5)]
    pub lanes: u32,
    #[n(6)]
    pub suite: Option<String>,
    #[n(7)]
    pub backend: Option<String>,
    #[n(8)]
    pub insecure_lab: bool,
    /// Time without a session after which the client ends.
    #[n(9)]
    pub give_up_s: Option<u32>,
    /// Whether outer datagrams show the DSCP of the packets inside.
    #[n(10)]
    pub copy_dscp: bool,
    /// The name to log in with.
    #[n(11)]
    pub user: String,
    /// The gateway's addresses: those of the profile, and what the gateway has said of them since.
    #[n(12)]
    pub servers: Vec<String>,
    /// Whether the user logs in in a browser.
    #[n(13)]
    pub browser: bool,
    /// The machine's name, for the page on which the user logs in.
    #[n(14)]
    pub machine: String,
    /// Whether the person is to get a short code for a browser elsewhere, if the gateway gives one.
    #[cbor(n(15), default)]
    pub short_code: bool,
    /// The weights of the first of its addresses, in their order.
    #[n(16)]
    pub weights: Vec<u32>,
}

impl WorkerLaunch {
    pub fn profile(&self) -> anyhow::Result<Profile> {
        let servers = self.servers.iter().map(|server| server.parse::<ServerAddress>());
        let servers =
            servers.collect::<Result<_, ()>>().map_err(|()| anyhow::anyhow!("an address is not valid"))?;
        Ok(Profile { servers, ..Profile::parse(std::str::from_utf8(&self.profile.0)?, &self.file)? })
    }

    /// The addresses of the profile with the weights that they had the last time.
    pub fn weights(&self, profile: &Profile) -> Vec<(ServerAddress, u32)> {
        profile.servers.iter().cloned().zip(self.weights.iter().copied()).collect()
    }
}

/// The first and only message of a process that looks up a name; with two sockets for each name
/// server that it asks by itself, a connected one for datagrams and one for a connection; or
/// without any.
#[derive(Debug, Encode, Decode)]
pub struct LookupLaunch {
    #[n(0)]
    pub common: Common,
    /// A name; or an IPv4 address, for the IPv6 addresses by which NAT64 serves it.
    #[n(1)]
    pub host: String,
}

/// A worker's second message, by which it gets its devices.
#[derive(Debug, Encode, Decode)]
pub enum Begin {
    /// With the devices' descriptors.
    #[n(0)]
    Devices(#[n(0)] Devices),
}

/// Parent → worker, once the worker is ready.
#[derive(Debug, Encode, Decode)]
pub enum ToWorker {
    /// Inform the gateway, and end; with the reason, for the log.
    #[n(2)]
    Stop(#[n(0)] Option<String>),
    /// To [`FromWorker::Request`]; with the socket, if that was requested.
    #[n(3)]
    Reply {
        #[n(0)]
        number: u64,
        #[n(1)]
        reply: SecretBytes,
    },
    #[n(4)]
    NetworkChanged,
    /// Followed by the request [`Measured`].
    #[n(5)]
    Measure,
}

impl ToWorker {
    /// The reply to the request `R` with this number.
    pub fn reply<R>(number: u64, reply: Result<R::Reply, String>) -> Self
    where
        R: Request<Message = ParentRequest>,
    {
        Self::Reply { number, reply: encoded(&reply.map_err(|why| Reason::cut(&why))) }
    }

    /// The reply to any request that is refused.
    pub fn refusal(number: u64, why: &str) -> Self {
        Self::Reply { number, reply: encoded::<()>(&Err(Reason::cut(why))) }
    }
}

/// Worker → parent, once the worker is ready.
#[derive(Debug, Encode, Decode)]
pub enum FromWorker {
    /// The child failed, and why.
    #[n(2)]
    Failed(#[n(0)] String),
    /// Answered with the same number.
    #[n(4)]
    Request {
        #[n(0)]
        number: u64,
        #[n(1)]
        request: ParentRequest,
    },
    /// The gateway refuses it for good, and why: a person must do something.
    #[n(10)]
    Refused(#[n(0)] String),
    /// No session within the time that its user set, with the addresses that were tried.
    #[n(11)]
    Unreached(#[n(0)] String),
}

impl From<&anyhow::Error> for FromWorker {
    /// Its last message.
    fn from(error: &anyhow::Error) -> Self {
        let reason = vpnd_sys::text::format_chain(error);
        if error.is::<Refusal>() {
            Self::Refused(reason)
        } else if error.is::<Unreached>() {
            Self::Unreached(reason)
        } else {
            Self::Failed(reason)
        }
    }
}

/// Look-up → parent.
#[derive(Debug, Encode, Decode)]
pub enum FromLookup {
    /// The child failed, and why.
    #[n(2)]
    Failed(#[n(0)] String),
    /// The addresses of the name, at most [`MAX_ADDRESSES`].
    #[n(8)]
    Found(#[n(0)] Vec<AsText<IpAddr>>),
}

/// A question for the person at the terminal: a one-time code, or the answer to a challenge. The
/// reply is what was typed, if anything.
#[derive(Debug, Encode, Decode)]
pub enum Question {
    /// A one-time code.
    #[n(0)]
    Code,
    /// The answer to a challenge, whose text comes from a server behind the gateway.
    #[n(1)]
    Challenge {
        #[n(0)]
        text: ChallengeText,
        /// Whether the answer may be shown while it is typed.
        #[n(1)]
        is_shown: bool,
    },
}

vpnd_ipc::requests! {
    /// An operation that the worker has no privilege for.
    pub ParentRequest {
        Socket = 0, OpenSocket => ();
        Configure = 1, Configure => Configured;
        Mtu = 2, SetMtu => ();
        Ask = 3, Question => Option<ChallengeAnswer>;
        Prove = 4, Prove => ByteArray<64>;
        Addresses = 5, LookUp => Vec<AsText<IpAddr>>;
        UseTunnelDns = 6, UseTunnelDns => ();
        Renew = 7, Renew => ();
        Stream = 8, OpenStream => ();
        OverTcp = 9, OverTcp => ();
        Listen = 10, ListenForBrowser => u16;
        Browse = 11, Browse => ();
        Measured = 12, Measured => ();
        Tell = 13, Tell => ();
        Reopen = 14, Reopen => Vec<u16>;
    }
}

/// A UDP socket for the control channel to this address. It comes with the reply.
#[derive(Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct OpenSocket(#[n(0)] pub AsText<SocketAddr>);

/// A TCP connection to this address of the gateway, which has only just begun, and a UDP socket of
/// this machine alone. Both come with the reply.
#[derive(Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct OpenStream(#[n(0)] pub AsText<SocketAddr>);

/// Whether the tunnel goes over TCP, for people.
#[derive(Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct OverTcp(#[n(0)] pub bool);

/// Open the sockets of these lanes (a bit for each) at other ports. The reply is the ports of all
/// lanes.
#[derive(Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct Reopen(#[n(0)] pub u16);

/// Addresses, routes and DNS from the gateway, as far as the user permits.
#[derive(Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct Configure(#[n(0)] pub Network);

/// The reply to [`Configure`], unless the settings are refused for now.
#[derive(Debug, Encode, Decode)]
pub enum Configured {
    #[n(0)]
    InForce,
    /// A person must decide, for this reason: the settings are refused until the client's next
    /// start.
    #[n(1)]
    Undecided(#[n(0)] String),
}

/// The size of packets that the tunnel's device carries.
#[derive(Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct SetMtu(#[n(0)] pub u16);

/// The device's signature for the connection that has this binding, and for nothing else: the
/// parent puts the context before it.
#[derive(Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct Prove(#[n(0)] pub ByteArray<32>);

/// In the place of a gateway's: the profile's proxy.
pub const THE_PROXY: u32 = u32::MAX;

/// The addresses of a gateway, by its place in the list of [`crate::servers`]; at most
/// [`MAX_ADDRESSES`].
#[derive(Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct LookUp(#[n(0)] pub u32);

/// Whether the machine uses the tunnel's DNS servers, as configured, or its own: without a tunnel
/// nothing answers there.
#[derive(Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct UseTunnelDns(#[n(0)] pub bool);

/// A TCP socket of the loopback interface that listens for the browser. It comes with the reply,
/// which is its port.
#[derive(Debug, Encode, Decode)]
pub struct ListenForBrowser;

/// Show this page to the person, and open it if that is possible.
#[derive(Debug, Encode, Decode)]
pub struct Browse {
    #[n(0)]
    pub url: Text<1024>,
    #[n(1)]
    pub way: BrowserWay,
}

/// How the answer of a person in a browser gets to the client.
#[derive(Debug, Encode, Decode)]
pub enum BrowserWay {
    /// The browser comes back to this port of the machine.
    #[n(0)]
    Port {
        #[n(0)]
        port: u16,
        /// Whether the gateway gives no short code, for which it was asked.
        #[n(1)]
        lacks_code: bool,
    },
    /// By the gateway, for a browser elsewhere, in which the person types this code.
    #[n(1)]
    Code {
        #[n(0)]
        code: Text<16>,
        /// The address of this machine, as the page names it.
        #[n(1)]
        from: AsText<IpAddr>,
        /// Time that is left, in seconds.
        #[n(2)]
        time_s: u16,
    },
}

/// Tell the user what a server behind the gateway says: to confirm the login elsewhere.
#[derive(Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct Tell(#[n(0)] pub ChallengeText);

/// The state of the connection to the gateway, for the user.
#[derive(Clone, Debug, Default, Encode, Decode)]
pub struct Measured {
    /// The gateway's outer address, as far as that can be told.
    #[n(0)]
    pub gateway: Option<AsText<SocketAddr>>,
    /// Whether the tunnel goes over TCP.
    #[n(1)]
    pub over_tcp: bool,
    #[n(2)]
    pub rtt_us: Option<u64>,
    /// Datagrams of the control channel's connection.
    #[n(3)]
    pub control_sent: u64,
    #[n(4)]
    pub control_lost: u64,
    /// Traffic through the tunnel.
    #[n(5)]
    pub carried: Activity,
}

/// Keep these addresses of the gateway, as far as the user permits.
#[derive(Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct Renew(#[n(0)] pub Renewal);
