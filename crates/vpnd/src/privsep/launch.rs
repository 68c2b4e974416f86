//! What the opener tells the other processes at their start and later, and what they tell it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use minicbor::bytes::{ByteArray, ByteVec};
use minicbor::{Decode, Encode};
use vpnd_proto::control::{AsText, Network, OneTimePassword, SecretText};
use zeroize::Zeroizing;

use crate::config::{Invalid, LogFormat, ServerConfig};
use crate::gateway::signing::KeyDescription;
use crate::logging::{self, LogError};
use crate::privsep::store::Answer;
use crate::profile::Profile;
use crate::sys::account::Identity;
use crate::sys::sandbox::{Protections, SandboxMode};
use crate::sys::sysctl;
use crate::sys::tun::TunOffloads;

/// The longest frame between the opener and a part, bytes: a configuration of full size and a certificate chain fit.
pub(crate) const MAX_FRAME: usize = 4 << 20;

/// Addresses of one name that are tried at most.
pub(crate) const MAX_ADDRESSES: usize = 16;

/// What every part must know to begin.
#[derive(Clone, Debug, Encode, Decode)]
pub(crate) struct Common {
    /// The log filter.
    #[n(0)]
    pub(crate) log_filter: String,
    /// Whether log lines are JSON objects.
    #[n(1)]
    pub(crate) log_json: bool,
    #[n(2)]
    pub(crate) sandbox: SandboxMode,
    /// Whom the part becomes.
    #[n(3)]
    pub(crate) identity: Option<Identity>,
}

impl Common {
    pub(crate) fn new(
        log_filter: &str,
        log_format: LogFormat,
        sandbox: SandboxMode,
        identity: Option<Identity>,
    ) -> Self {
        let log_json = log_format == LogFormat::Json;
        Self { log_filter: log_filter.to_owned(), log_json, sandbox, identity }
    }

    /// Begins to log as the opener does.
    pub(crate) fn log(&self) -> Result<(), LogError> {
        logging::init(&self.log_filter, if self.log_json { LogFormat::Json } else { LogFormat::Text })
    }
}

/// A gateway's configuration as it was read; parts parse it again, so that no second form of it exists.
#[derive(Clone, Debug, Encode, Decode)]
pub(crate) struct Configuration {
    #[n(0)]
    text: String,
    #[n(1)]
    file: String,
    #[n(2)]
    base: String,
    /// Whether the machine can't do what the file says of IPv6; openers of earlier versions don't say.
    #[n(3)]
    without_ipv6: Option<bool>,
}

impl Configuration {
    /// Reads the file at `path` and parses it, too. If IPv6 is switched off on this machine, and IPv4 is there to go on with,
    /// the configuration is one without IPv6.
    pub(crate) fn read(path: &Path) -> Result<(Self, ServerConfig), crate::config::ConfigError> {
        let text = crate::config::read_text(path)?;
        let base = crate::secret_file::parent(path);
        let config = ServerConfig::parse(&text, &path.display().to_string(), base)?;
        let tunnel = &config.tunnel;
        let without_ipv6 =
            tunnel.pool_v6.is_some() && tunnel.pool_v4.is_some() && !sysctl::has_ipv6(&tunnel.name);
        let config = if without_ipv6 { config.without_ipv6() } else { config };
        let (file, base) = (path.display().to_string(), base.to_string_lossy().into_owned());
        Ok((Self { text, file, base, without_ipv6: Some(without_ipv6) }, config))
    }

    /// Whether what the file says of IPv6 was left out.
    pub(crate) fn is_without_ipv6(&self) -> bool {
        self.without_ipv6 == Some(true)
    }

    pub(crate) fn parse(&self) -> Result<ServerConfig, Invalid> {
        let config = ServerConfig::parse(&self.text, &self.file, Path::new(&self.base))?;
        Ok(if self.is_without_ipv6() { config.without_ipv6() } else { config })
    }
}

/// Bytes that are erased when they are dropped, and don't print.
#[derive(Clone)]
pub(crate) struct SecretBytes(pub(crate) Zeroizing<Vec<u8>>);

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes(<secret>)")
    }
}

impl<C> Encode<C> for SecretBytes {
    fn encode<W: minicbor::encode::Write>(
        &self,
        e: &mut minicbor::Encoder<W>,
        _: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.bytes(&self.0)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for SecretBytes {
    fn decode(d: &mut minicbor::Decoder<'b>, _: &mut C) -> Result<Self, minicbor::decode::Error> {
        Ok(Self(Zeroizing::new(d.bytes()?.to_vec())))
    }
}

/// The gateway's certificate as the worker has it: the chain, and a description of the key, which the auth process keeps.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct GatewayCertificate {
    /// PEM, the gateway's own certificate first.
    #[n(0)]
    pub(crate) chain: ByteVec,
    #[n(1)]
    pub(crate) key: KeyDescription,
    /// When it should be replaced, seconds since 1970.
    #[n(2)]
    pub(crate) due_s: u64,
    /// When it expires, seconds since 1970.
    #[n(3)]
    pub(crate) expires_s: u64,
}

/// The auth process's first message; with two descriptors: its ends of the channels to the worker, for questions and for
/// signatures.
#[derive(Debug, Encode, Decode)]
pub(crate) struct AuthLaunch {
    #[n(0)]
    pub(crate) common: Common,
    #[n(1)]
    pub(crate) configuration: Configuration,
    /// The gateway's TLS key, PEM. No other process is given it.
    #[n(2)]
    pub(crate) key: SecretBytes,
}

/// The worker's first message; with descriptors: its ends of the channels to the auth process, for questions and for
/// signatures, the listening control socket, and the metrics' listener if there is one. No secret of TLS is in it.
#[derive(Debug, Encode, Decode)]
pub(crate) struct WorkerLaunch {
    #[n(0)]
    pub(crate) common: Common,
    #[n(1)]
    pub(crate) configuration: Configuration,
    #[n(2)]
    pub(crate) insecure_lab: bool,
    #[n(3)]
    pub(crate) certificate: GatewayCertificate,
    #[n(5)]
    pub(crate) client_ca: Option<ByteVec>,
    #[n(6)]
    pub(crate) quic_secret: SecretBytes,
    /// The user who may use the control socket besides root.
    #[n(7)]
    pub(crate) owner: u32,
    /// The opener.
    #[n(8)]
    pub(crate) pid: u32,
    /// How the auth process is shut in.
    #[n(9)]
    pub(crate) auth: Protections,
    /// The opener's version; an upgrade leaves the opener as it is.
    #[n(10)]
    pub(crate) opener: Option<String>,
    /// The file of revocation lists, as it was checked.
    #[n(11)]
    pub(crate) client_crl: Option<ByteVec>,
}

/// The first message of a client's worker.
#[derive(Debug, Encode, Decode)]
pub(crate) struct ClientLaunch {
    #[n(0)]
    pub(crate) common: Common,
    /// The profile's text; it may hold a private key.
    #[n(1)]
    pub(crate) profile: SecretBytes,
    /// The profile's name, for messages.
    #[n(2)]
    pub(crate) file: String,
    #[n(3)]
    pub(crate) password: SecretText<1024>,
    /// The public key of this device; the private one stays in the opener.
    #[n(4)]
    pub(crate) device: ByteArray<32>,
    #[n(5)]
    pub(crate) lanes: u32,
    #[n(6)]
    pub(crate) suite: Option<String>,
    #[n(7)]
    pub(crate) backend: Option<String>,
    #[n(8)]
    pub(crate) insecure_lab: bool,
    /// How long it may be without a session before it ends.
    #[n(9)]
    pub(crate) give_up_s: Option<u32>,
    /// Whether outer datagrams show the DSCP of the packets inside.
    #[n(10)]
    pub(crate) copy_dscp: bool,
}

impl ClientLaunch {
    pub(crate) fn profile(&self) -> anyhow::Result<Profile> {
        Ok(Profile::parse(std::str::from_utf8(&self.profile.0)?, &self.file)?)
    }
}

/// The first and only message of a process that looks up a name.
#[derive(Debug, Encode, Decode)]
pub(crate) struct LookupLaunch {
    #[n(0)]
    pub(crate) common: Common,
    #[n(1)]
    pub(crate) host: String,
}

/// The data path's devices, which exist once everything else was checked. Descriptors: the TUN queues, as many sockets of
/// shards, and QUIC's socket.
#[derive(Clone, Debug, Encode, Decode)]
pub(crate) struct Devices {
    #[n(0)]
    pub(crate) shards: u32,
    #[n(1)]
    pub(crate) tun: Offloads,
    /// Why the kernel does not steer datagrams, if it does not. Then QUIC's socket is a second handle of the first shard's.
    #[n(2)]
    pub(crate) steering_refused: Option<String>,
}

/// Offloads of the TUN device in a message.
#[derive(Clone, Copy, Debug, Encode, Decode)]
pub(crate) struct Offloads {
    #[n(0)]
    checksum: bool,
    #[n(1)]
    tso4: bool,
    #[n(2)]
    tso6: bool,
    #[n(3)]
    tso_ecn: bool,
    #[n(4)]
    uso: bool,
}

impl From<TunOffloads> for Offloads {
    fn from(TunOffloads { checksum, tso4, tso6, tso_ecn, uso }: TunOffloads) -> Self {
        Self { checksum, tso4, tso6, tso_ecn, uso }
    }
}

impl From<Offloads> for TunOffloads {
    fn from(Offloads { checksum, tso4, tso6, tso_ecn, uso }: Offloads) -> Self {
        Self { checksum, tso4, tso6, tso_ecn, uso }
    }
}

/// What the opener tells the worker.
#[derive(Debug, Encode, Decode)]
pub(crate) enum ToWorker {
    /// Begin to carry packets.
    #[n(0)]
    Devices(#[n(0)] Devices),
    /// The configuration as it is now, or why it can't be used.
    #[n(1)]
    Configuration(#[n(0)] Reread),
    /// Tell the clients or the gateway, and end; with the reason, for the log, which earlier versions don't give.
    #[n(2)]
    Stop(#[n(0)] Option<String>),
    /// To a client's worker: what became of [`ToOpener::Ask`]; with the socket, if that was asked for.
    #[n(3)]
    Answer {
        #[n(0)]
        number: u64,
        #[n(1)]
        reply: Reply,
    },
    /// To a client's worker: the machine's network changed.
    #[n(4)]
    NetworkChanged,
    /// To a gateway's worker, with a channel to its successor: hand everything over, and end.
    #[n(5)]
    HandOver,
    /// Instead of [`ToWorker::Devices`], with a channel to the worker that runs: take over from it.
    #[n(6)]
    TakeOver,
    /// To a gateway's worker: what it has asked for by [`ToOpener::Upgrade`] did not come about, and why.
    #[n(7)]
    NotUpgraded(#[n(0)] String),
    /// To a gateway's worker: present this certificate from now on. The auth process signs for it already.
    #[n(8)]
    Certificate(#[n(0)] GatewayCertificate),
    /// To a gateway's worker: let no certificate in any more that these revocation lists name. Their file, which was checked.
    #[n(9)]
    Revoked(#[n(0)] ByteVec),
}

/// What the opener tells the auth process after its launch.
#[derive(Debug, Encode, Decode)]
pub(crate) enum ToAuth {
    /// Sign with this key, too (PEM). Answered by [`ToOpener::KeyTaken`].
    #[n(0)]
    Key(#[n(0)] SecretBytes),
}

/// What became of a question.
#[derive(Debug, Encode, Decode)]
pub(crate) enum Reply {
    #[n(0)]
    Done,
    #[n(1)]
    Failed(#[n(0)] String),
    /// What the person at the terminal has typed, if anything.
    #[n(2)]
    Code(#[n(0)] Option<OneTimePassword>),
    /// The device's signature.
    #[n(3)]
    Proof(#[n(0)] ByteArray<64>),
    /// At most [`MAX_ADDRESSES`].
    #[n(4)]
    Addresses(#[n(0)] Vec<AsText<IpAddr>>),
}

/// What a client's worker asks for.
#[derive(Debug, Encode, Decode)]
pub(crate) enum Ask {
    /// A UDP socket for the control channel to this address.
    #[n(0)]
    Socket(#[n(0)] AsText<SocketAddr>),
    /// Addresses, routes and DNS as the gateway says, as far as the user wants that.
    #[n(1)]
    Configure(#[n(0)] Network),
    /// The size of packets that the tunnel's device carries.
    #[n(2)]
    Mtu(#[n(0)] u16),
    /// A one-time code.
    #[n(3)]
    Code,
    /// The device's signature for the connection that has this binding, and for nothing else: the opener puts the context
    /// before it.
    #[n(4)]
    Prove(#[n(0)] ByteArray<32>),
    /// The addresses of a gateway, by its place in the profile.
    #[n(5)]
    Addresses(#[n(0)] u32),
    /// Whether the machine uses the tunnel's DNS servers, as configured, or its own: without a tunnel nothing answers there.
    #[n(6)]
    UseTunnelDns(#[n(0)] bool),
}

/// A configuration that was read again.
#[derive(Debug, Encode, Decode)]
pub(crate) enum Reread {
    #[n(0)]
    Good(#[n(0)] Configuration),
    #[n(1)]
    Bad(#[n(0)] String),
}

/// What a part tells the opener.
#[derive(Debug, Encode, Decode)]
pub(crate) enum ToOpener {
    /// It is shut in and has found no fault with what it was given.
    #[n(0)]
    Prepared(#[n(0)] Protections),
    /// It works.
    #[n(1)]
    Ready,
    /// It can't go on, and why.
    #[n(2)]
    Failed(#[n(0)] String),
    /// An administrator wants the configuration to be read again.
    #[n(3)]
    ReadConfiguration,
    /// A client's worker wants something done; it is answered with the same number.
    #[n(4)]
    Ask {
        #[n(0)]
        number: u64,
        #[n(1)]
        ask: Ask,
    },
    /// An administrator wants the daemon to be replaced by the program that is installed now.
    #[n(5)]
    Upgrade,
    /// It has handed over to its successor: what it carried is not its own any more.
    #[n(6)]
    HandedOver,
    /// It has not handed over and goes on, and why.
    #[n(7)]
    GoesOn(#[n(0)] String),
    /// The addresses of the name that was to be looked up, at most [`MAX_ADDRESSES`].
    #[n(8)]
    Found(#[n(0)] Vec<AsText<IpAddr>>),
    /// The auth process signs with the key that it was given.
    #[n(9)]
    KeyTaken,
    /// A client's worker was refused for good, and why: a person must do something.
    #[n(10)]
    Refused(#[n(0)] String),
    /// A client's worker had no session for as long as its user wanted to wait, and what was tried.
    #[n(11)]
    Unreached(#[n(0)] String),
    /// To a command: what the store says.
    #[n(12)]
    Stored(#[n(0)] Answer),
}

/// Borrows descriptors for sending.
pub(crate) fn borrowed(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(|descriptor| descriptor.as_fd()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_without_a_reason_is_one() {
        // From the opener of a version that gave none: the variant alone.
        let old = [0x82, 0x02, 0x80];
        assert!(matches!(minicbor::decode(&old), Ok(ToWorker::Stop(None))));
    }
}
