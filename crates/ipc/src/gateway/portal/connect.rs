//! Logins of clients in a browser: the question whether a device may connect, and the answer.
//!
//! INVARIANT: the portal names neither the device nor the user: the first is that of the ticket, or
//! of a code that a person has typed, the second that of the visit.

use std::net::IpAddr;

use minicbor::{Decode, Encode};
use vpnd_proto::control::{Text, UserName};

use super::super::idp::Url;
use super::{Browser, Token};
use crate::gateway::auth::SourceName;

/// Which device asks for this browser's user.
#[derive(Debug, Encode, Decode)]
pub struct ConnectQuery {
    /// The ticket of the address that the client was given.
    #[n(0)]
    pub ticket: Token,
    #[n(1)]
    pub browser: Browser,
}

/// The question for the person.
#[derive(Debug, Encode, Decode)]
pub enum ConnectPage {
    /// Whether this device may connect as this user.
    #[n(0)]
    Ask {
        /// The client's own statement.
        #[n(0)]
        name: Text<64>,
        /// From where it asks.
        #[n(1)]
        from: IpAddr,
        /// The port of the client's machine where it waits; `None` if the person has typed its
        /// code.
        #[n(2)]
        port: Option<u16>,
        #[n(3)]
        user: UserName,
        #[n(4)]
        source: SourceName,
        /// When it has begun to ask, seconds ago.
        #[n(5)]
        age_s: u64,
        /// Whether the browser is in another network, as far as that can be told.
        #[n(6)]
        is_elsewhere: bool,
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
    /// Whether the person says that name and address are those on the device's screen.
    #[cbor(n(3), default)]
    pub compared: bool,
}

/// The outcome of the answer.
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
    /// The client gets it from the gateway.
    #[n(3)]
    Kept,
    /// A yes for a device by its code, which the person has not compared.
    #[n(4)]
    NotCompared,
    /// The user has answered many devices in a short time: this one gets an answer after this many
    /// seconds.
    #[n(5)]
    Wait(#[n(0)] u64),
}

/// The short code of a device, as a person has typed it; nothing to get the form.
#[derive(Debug, Encode, Decode)]
pub struct TypedCode {
    #[n(0)]
    pub browser: Browser,
    #[n(1)]
    pub code: Text<32>,
}

/// The result of a typed code.
#[derive(Debug, Encode, Decode)]
pub enum CodeEnd {
    /// There is such a device: the question about it has this ticket.
    #[n(0)]
    Found(#[n(0)] Token),
    /// A code may be typed.
    #[n(1)]
    Form,
    /// No device waits with that code.
    #[n(2)]
    Wrong,
    /// Too many codes were typed: none is looked at for this time, in seconds.
    #[n(3)]
    Wait(#[n(0)] u64),
    /// The browser has no visit, or one whose login is too old.
    #[n(4)]
    LogIn,
    /// This gateway gives no short codes.
    #[n(5)]
    Off,
}
