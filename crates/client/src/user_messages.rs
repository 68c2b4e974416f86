//! The messages of the client service: with a user's command, and with the clients that it runs.
//!
//! | | |
//! |---|---|
//! | user → service | [`UserRequest`]; to that of captive portals [`OpenPage`] alone |
//! | service → user | [`ServiceReply`] |
//! | service → client | [`ToClient`], [`Begin`] first |
//! | client → service | [`FromClient`] |
//!
//! Invariants: fields of a user have bounds; the names in JSON are an interface, so they are added,
//! never renamed.

mod request;

use std::net::SocketAddr;

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
pub use request::{Down, FindGateway, Forget, List, Log, Request, Status};
use serde::Serialize;
use vpnd_ipc::messages::SecretBytes;
use vpnd_proto::control::{AsText, ChallengeText, SecretText, Text, UserName};

/// Default path of the service's socket.
pub const DEFAULT_SOCKET: &str = "/run/vpnd-client/socket";
/// Default path of the socket of the service for captive portals.
pub const DEFAULT_PORTAL_SOCKET: &str = "/run/vpnd-captive-portal/socket";
/// The longest time for which a captive portal's page is open, minutes.
pub const MAX_PORTAL_MINUTES: u8 = 5;
/// Default group of the users who may connect.
pub const DEFAULT_GROUP: &str = "vpnd-users";

/// The name of a profile, as a user gives it.
pub type ProfileName = Text<64>;
/// Text that a person has typed.
pub type Typed = SecretText<1024>;
/// The longest text of a profile that a user brings, bytes: certificate, key and authorities have a
/// tenth of that.
pub const MAX_PROFILE: usize = 64 << 10;
/// The text of a profile, which may have a key in it.
pub type ProfileText = SecretText<MAX_PROFILE>;

/// A user's command to the service.
#[derive(Debug, Encode, Decode)]
pub enum UserRequest {
    #[n(0)]
    List,
    #[n(1)]
    Up(#[n(0)] Up),
    #[n(2)]
    Down(#[n(0)] Option<ProfileName>),
    #[n(3)]
    Status,
    #[n(4)]
    Log(#[n(0)] Option<ProfileName>),
    /// To [`Progress::Ask`]; nothing if no user can be asked.
    #[n(5)]
    Answer(#[n(0)] Option<Typed>),
    #[n(6)]
    Import(#[n(0)] Import),
    #[n(7)]
    Forget(#[n(0)] ProfileName),
    #[n(8)]
    Gateway(#[n(0)] ProfileName),
}

/// Add a profile: the user's own, or root's for all users.
#[derive(Debug, Encode, Decode)]
pub struct Import {
    #[n(0)]
    pub name: ProfileName,
    #[n(1)]
    pub text: ProfileText,
}

/// Open the page of a captive portal in a browser. [`Progress::Line`] comes once it is open, and
/// the reply when that is over; it ends with the connection.
#[derive(Debug, Encode, Decode)]
pub struct OpenPage {
    #[n(0)]
    pub minutes: u8,
    /// The user's screen (X11).
    #[n(1)]
    pub display: Text<16>,
    /// The words by which that recognises its user, as in `~/.Xauthority`; may be empty.
    #[n(2)]
    pub authority: SecretBytes,
}

impl OpenPage {
    /// # Errors
    /// If that can't be asked for; in words for the user.
    pub fn check(&self) -> anyhow::Result<()> {
        let is_time = (1..=MAX_PORTAL_MINUTES).contains(&self.minutes);
        anyhow::ensure!(is_time, "a login page is open for 1 to {MAX_PORTAL_MINUTES} minutes");
        let number = self.display.strip_prefix(':').unwrap_or_default();
        let is_local = number.split('.').all(|part| part.parse::<u16>().is_ok());
        anyhow::ensure!(is_local, "a browser opens on a screen of this machine alone (DISPLAY=:0)");
        Ok(())
    }
}

/// Connect by a profile. [`Progress`] comes until the reply shows the connected tunnel.
#[derive(Debug, Encode, Decode)]
pub struct Up {
    /// Without one: the only profile.
    #[n(0)]
    pub profile: Option<ProfileName>,
    #[n(1)]
    pub login: Login,
}

/// How a user wishes to log in.
#[derive(Clone, Debug, Default, Encode, Decode)]
pub struct Login {
    /// In place of the profile's name, or of a question for it.
    #[n(0)]
    pub name: Option<UserName>,
    /// In a browser, whatever the profile says.
    #[n(1)]
    pub browser: bool,
    /// Whether the user can open one on this machine.
    #[cbor(n(2), default)]
    pub has_screen: bool,
    /// The other end of the SSH session in which the user works on this machine. A wrong one only
    /// has the user's own request refused, or the user's own session cut off.
    #[n(3)]
    pub session: Option<AsText<SocketAddr>>,
}

/// Declares types of replies, each a variant of [`ServiceReply`].
macro_rules! replies {
    ($($(#[doc = $doc:literal])* $reply:ident($content:ty);)+) => {$(
        $(#[doc = $doc])*
        #[derive(Debug)]
        pub struct $reply(pub $content);

        impl From<$reply> for ServiceReply {
            fn from($reply(content): $reply) -> Self {
                Self::$reply(content)
            }
        }

        impl TryFrom<ServiceReply> for $reply {
            /// Another reply, such as a refusal.
            type Error = ServiceReply;

            fn try_from(reply: ServiceReply) -> Result<Self, ServiceReply> {
                match reply {
                    ServiceReply::$reply(content) => Ok(Self(content)),
                    other => Err(other),
                }
            }
        }
    )+};
}

replies! {
    Profiles(Vec<ListedProfile>);
    Tunnels(Vec<TunnelStatus>);
    Lines(Vec<String>);
    /// The text of a profile, without what is secret in it.
    Gateway(String);
}

/// A request is not carried out, for a reason in words for the user.
#[derive(Debug)]
pub struct Refused {
    pub why: String,
    /// Whether trying again is of no use until a person has done something.
    pub is_final: bool,
}

impl From<Refused> for ServiceReply {
    fn from(Refused { why, is_final }: Refused) -> Self {
        Self::Refused { why, is_final }
    }
}

/// A message before the reply to [`Up`] or [`OpenPage`].
#[derive(Debug)]
pub enum Progress {
    Line(String),
    /// Answered by [`UserRequest::Answer`].
    Ask(Ask),
    /// A page on which to log in.
    Browse(String),
}

impl From<Progress> for ServiceReply {
    fn from(progress: Progress) -> Self {
        match progress {
            Progress::Line(line) => Self::Line(line),
            Progress::Ask(ask) => Self::Ask(ask),
            Progress::Browse(url) => Self::Browse(url),
        }
    }
}

/// A message of the service, as it is on the socket.
#[derive(Debug, Encode, Decode)]
pub enum ServiceReply {
    #[n(0)]
    Refused {
        #[n(0)]
        why: String,
        #[n(1)]
        is_final: bool,
    },
    #[n(1)]
    Profiles(#[n(0)] Vec<ListedProfile>),
    #[n(2)]
    Tunnels(#[n(0)] Vec<TunnelStatus>),
    #[n(3)]
    Lines(#[n(0)] Vec<String>),
    #[n(4)]
    Line(#[n(0)] String),
    #[n(5)]
    Ask(#[n(0)] Ask),
    #[n(6)]
    Browse(#[n(0)] String),
    #[n(7)]
    Gateway(#[n(0)] String),
}

/// A profile of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct ListedProfile {
    #[n(0)]
    pub name: String,
    /// The gateway's name; `None` if the profile can't be used.
    #[n(1)]
    pub gateway: Option<String>,
    /// The reason why it can't be used.
    #[n(2)]
    pub problem: Option<String>,
    #[n(3)]
    pub used_by: Option<UsedBy>,
    /// Whether the user has brought it.
    #[cbor(n(4), default)]
    pub is_own: bool,
    /// The address of the gateway's web pages, if the profile names their port.
    #[n(5)]
    pub pages: Option<String>,
    /// Whether this machine logs in by it, and no user.
    #[cbor(n(6), default)]
    pub machine: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UsedBy {
    #[n(0)]
    You,
    #[n(1)]
    AnotherUser,
    /// By no user.
    #[n(2)]
    Machine,
}

/// A question for the person.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Ask {
    /// The name to log in with.
    #[n(0)]
    Name {
        #[n(0)]
        gateway: String,
    },
    #[n(1)]
    Password {
        #[n(0)]
        user: String,
        #[n(1)]
        gateway: String,
    },
    #[n(2)]
    Code,
    /// The answer to a challenge, whose text comes from a server behind the gateway.
    #[n(3)]
    Challenge {
        #[n(0)]
        text: ChallengeText,
        /// Whether the answer may be shown while it is typed.
        #[n(1)]
        is_shown: bool,
    },
}

/// The state of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TunnelState {
    /// The gateway does not answer yet, or does not answer now.
    #[n(0)]
    Connecting,
    #[n(1)]
    Connected,
    /// It has ended by itself.
    #[n(2)]
    Ended,
}

/// The transport of a tunnel's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    #[n(0)]
    Udp,
    #[n(1)]
    Tcp,
}

/// A tunnel of the machine, as its user sees it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct TunnelStatus {
    #[n(0)]
    pub profile: String,
    /// The number of the user who has started it.
    #[n(1)]
    pub uid: u32,
    #[n(2)]
    pub state: TunnelState,
    /// Since when, in seconds of Unix time.
    #[n(3)]
    pub since_s: u64,
    /// The last message, such as the reason of an end.
    #[n(4)]
    pub said: String,
    /// `None` unless it is connected, or as long as it does not answer.
    #[n(5)]
    pub details: Option<TunnelDetails>,
    /// Whether it is the machine's, and no user's.
    #[cbor(n(6), default)]
    pub machine: bool,
}

/// The settings in force of a connected tunnel, and its measurements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct TunnelDetails {
    #[n(0)]
    pub interface: String,
    /// The name that the gateway's certificate carries.
    #[n(1)]
    pub gateway: String,
    /// Its outer address, as far as that can be told.
    #[n(2)]
    pub gateway_address: Option<String>,
    #[n(3)]
    pub transport: Option<Transport>,
    #[n(4)]
    pub addresses: Vec<String>,
    #[n(5)]
    pub routes: Vec<String>,
    #[n(6)]
    pub dns: Vec<String>,
    #[n(7)]
    pub search: Vec<String>,
    /// Packets of this size go through the tunnel as they are.
    #[n(8)]
    pub mtu: Option<u16>,
    /// Round trip to the gateway, microseconds.
    #[n(9)]
    pub rtt_us: Option<u64>,
    /// Datagrams of the control channel's connection, and those of them that were lost.
    #[n(10)]
    pub control_sent: u64,
    #[n(11)]
    pub control_lost: u64,
    #[n(12)]
    pub rx_bytes: u64,
    #[n(13)]
    pub tx_bytes: u64,
    #[n(14)]
    pub rx_packets: u64,
    #[n(15)]
    pub tx_packets: u64,
    /// A line about new settings of the gateway that are not in force, while they are not.
    #[n(16)]
    pub refusal: Option<String>,
}

/// The first message to a client: what every user of the machine would see among its arguments.
#[derive(Debug, Encode, Decode)]
pub struct Begin {
    #[n(0)]
    pub login: Login,
    /// For whom it runs.
    #[n(1)]
    pub uid: u32,
    /// The path of the profile.
    #[n(2)]
    pub profile: ByteVec,
    /// The path of the directory of keys.
    #[n(3)]
    pub state_dir: ByteVec,
}

/// Service → client.
#[derive(Debug, Encode, Decode)]
pub enum ToClient {
    /// To [`FromClient::Ask`].
    #[n(0)]
    Answer(#[n(0)] Option<Typed>),
    /// Answered by [`FromClient::Details`].
    #[n(1)]
    Report,
    /// The user, or root, ends the tunnel.
    #[n(2)]
    End,
    /// The service ends in order.
    #[n(3)]
    Leave,
    /// Another tunnel takes the place of this one, which leaves a kill switch to it.
    #[n(4)]
    GiveWay,
    /// The command that waits for the tunnel is gone.
    #[n(5)]
    Abandon,
    /// To [`FromClient::Ready`]: the name of the interface to have.
    #[n(6)]
    Turn(#[n(0)] String),
}

/// Client → service.
#[derive(Debug, Encode, Decode)]
pub enum FromClient {
    /// A new state, in words.
    #[n(0)]
    State {
        #[n(0)]
        state: TunnelState,
        #[n(1)]
        said: String,
    },
    #[n(1)]
    Ask(#[n(0)] Ask),
    #[n(2)]
    Browse(#[n(0)] String),
    #[n(3)]
    Details(#[n(0)] Box<TunnelDetails>),
    /// For the user, in the state that there is.
    #[n(5)]
    Line(#[n(0)] String),
    /// The person has answered what can be asked without the gateway. It changes nothing of the
    /// machine before [`ToClient::Turn`].
    #[n(6)]
    Ready,
    /// Its last message: why it ends, if that is a failure.
    #[n(4)]
    Failed {
        #[n(0)]
        why: String,
        /// Whether trying again is of no use until a person has done something.
        #[n(1)]
        is_final: bool,
    },
}
