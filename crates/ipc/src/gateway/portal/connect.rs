//! Logins of clients in a browser: the question whether a device may connect, and the answer.
//!
//! INVARIANT: the portal names neither the device nor the user: the first is that of the ticket, the
//! second that of the visit.

use std::net::IpAddr;

use minicbor::{Decode, Encode};
use vpnd_proto::control::{Text, UserName};

use super::super::idp::Url;
use super::{Browser, Token};
use crate::gateway::auth::SourceName;

/// Which device asks for this browser's user.
#[derive(Debug, Encode, Decode)]
pub struct ConnectQuery {
    /// Of the address that the client was given.
    #[n(0)]
    pub ticket: Token,
    #[n(1)]
    pub browser: Browser,
}

/// What there is to ask.
#[derive(Debug, Encode, Decode)]
pub enum ConnectPage {
    /// Whether this device may connect as this user.
    #[n(0)]
    Ask {
        /// As the client says it.
        #[n(0)]
        name: Text<64>,
        /// From where it asks.
        #[n(1)]
        from: IpAddr,
        /// The port of its own machine where it waits.
        #[n(2)]
        port: u16,
        #[n(3)]
        user: UserName,
        #[n(4)]
        source: SourceName,
    },
    /// The browser has no visit, or one whose login is too old.
    #[n(1)]
    LogIn,
    /// The ticket is used, or too old.
    #[n(2)]
    Over,
}

/// The person's answer for the device.
#[derive(Debug, Encode, Decode)]
pub struct AnswerToClient {
    #[n(0)]
    pub ticket: Token,
    #[n(1)]
    pub browser: Browser,
    #[n(2)]
    pub allowed: bool,
}

/// What becomes of the answer.
#[derive(Debug, Encode, Decode)]
pub enum ConnectEnd {
    /// The browser takes it to the client at this address, which is on its own machine.
    #[n(0)]
    To {
        #[n(0)]
        url: Url,
        #[n(1)]
        port: u16,
    },
    /// The browser has no visit, or one whose login is too old.
    #[n(1)]
    LogIn,
    /// The ticket is used, or too old.
    #[n(2)]
    Over,
}
