//! The requests of a user's command, each with its reply.
//!
//! INVARIANT: on the socket all requests are one type and all replies another, but `requests!`
//! alone pairs them: an end that sends or expects another reply does not compile.

use minicbor::Encode;

use super::{
    Gateway, Import, Lines, OpenPage, ProfileName, Profiles, ServiceReply, Tunnels, Up, UserRequest,
};

/// A request that has one reply, unless it is refused.
pub trait Request: Into<Self::Message> {
    /// The requests of its socket.
    type Message: Encode<()>;
    type Reply: Into<ServiceReply> + TryFrom<ServiceReply, Error = ServiceReply>;
}

/// Declares the requests of a user's command: each as it is on the socket, and the type of its
/// reply.
macro_rules! requests {
    ($($request:ty: $pattern:pat => $message:expr, $reply:ty;)+) => {$(
        impl From<$request> for UserRequest {
            fn from($pattern: $request) -> Self {
                $message
            }
        }

        impl Request for $request {
            type Message = UserRequest;
            type Reply = $reply;
        }
    )+};
}

requests! {
    List: List => Self::List, Profiles;
    Up: up => Self::Up(up), Tunnels;
    Down: Down(profile) => Self::Down(profile), Lines;
    Status: Status => Self::Status, Tunnels;
    Log: Log(profile) => Self::Log(profile), Lines;
    Import: import => Self::Import(import), Lines;
    Forget: Forget(name) => Self::Forget(name), Lines;
    FindGateway: FindGateway(name) => Self::Gateway(name), Gateway;
}

impl Request for OpenPage {
    type Message = Self;
    type Reply = Lines;
}

/// The profiles that the user may use.
#[derive(Debug)]
pub struct List;

/// End the user's own tunnels, or this one.
#[derive(Debug)]
pub struct Down(pub Option<ProfileName>);

/// The tunnels of the user, or all for root.
#[derive(Debug)]
pub struct Status;

/// The messages about the user's tunnels, or this one.
#[derive(Debug)]
pub struct Log(pub Option<ProfileName>);

/// Remove a profile that was added by [`Import`].
#[derive(Debug)]
pub struct Forget(pub ProfileName);

/// Where the gateway of a profile is, and how it is recognised.
#[derive(Debug)]
pub struct FindGateway(pub ProfileName);
