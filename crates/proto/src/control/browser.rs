//! Messages of a login through a browser (PROTOCOL §4.3).

use core::fmt;
use core::net::IpAddr;

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};

use super::{AsText, Software, Text};
use crate::device::DeviceProof;

/// A login through a browser begins (message 5).
///
/// INVARIANT: the way back is a port of the client's machine and no address: no attacker can
/// have a grant sent elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct LoginStart {
    /// The device that is to log in, proved on this connection.
    #[n(0)]
    pub device: DeviceProof,
    /// The TCP port of 127.0.0.1 at which the client waits for the grant.
    #[n(1)]
    pub port: u16,
    /// Random, and comes back with the grant.
    #[n(2)]
    pub state: ByteArray<32>,
    /// SHA-256 of the verifier (RFC 7636, S256).
    #[n(3)]
    pub challenge: ByteArray<32>,
    /// The machine's name, for the person who logs in.
    #[n(4)]
    pub name: Text<64>,
    /// The client's software.
    #[n(5)]
    pub software: Option<Software>,
    /// Whether the client asks for a short code, because its machine has no browser.
    #[n(6)]
    #[cbor(default)]
    pub short_code: bool,
}

/// The page where a login goes on (message 26).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct LoginAt {
    /// Its address: `https`.
    #[n(0)]
    pub url: Text<1024>,
    /// Time that is left for it, in seconds.
    #[n(1)]
    pub time_s: u16,
    /// The code to type on that page, if the client has asked for one and gets one.
    #[n(2)]
    pub code: Option<ShortCode>,
}

/// A login that a person grants on another device (RFC 8628 section 3.2).
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct ShortCode {
    /// The code for the person to type (`user_code`).
    #[n(0)]
    pub code: Text<16>,
    /// The grant that the client shows until the person has answered (`device_code`).
    #[n(1)]
    pub grant: ByteArray<32>,
    /// The client's address, as the page names it.
    #[n(2)]
    pub from: AsText<IpAddr>,
    /// Seconds from one attempt to the next, at least (`interval`).
    #[n(3)]
    pub interval_s: u16,
}

impl fmt::Debug for ShortCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShortCode(<secret>)")
    }
}

/// A grant, and what shows that the client has asked for it.
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Grant {
    /// The grant that the browser brought.
    #[n(0)]
    pub grant: ByteArray<32>,
    /// The verifier of the challenge that the login began with.
    #[n(1)]
    pub verifier: ByteArray<32>,
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grant(<secret>)")
    }
}
