//! Logins of clients in a browser.

use std::net::IpAddr;

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_proto::control::{LoginAt, Text};

use crate::gateway::refusal::Refused;

/// A client begins a login in a browser.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BrowserLogin {
    /// The device, proved by the client's TLS and signature.
    #[n(0)]
    pub device: ByteArray<16>,
    #[n(1)]
    pub source: IpAddr,
    /// The rest as the client has sent it.
    #[n(2)]
    pub port: u16,
    #[n(3)]
    pub state: ByteArray<32>,
    #[n(4)]
    pub challenge: ByteArray<32>,
    #[n(5)]
    pub name: Text<64>,
    #[cbor(n(6), default)]
    pub short_code: bool,
}

/// Where a login in a browser goes on.
#[derive(Debug, Encode, Decode)]
pub enum BrowserLoginReply {
    #[n(0)]
    At(#[n(0)] LoginAt),
    #[n(1)]
    Refused(#[n(0)] Refused),
}
