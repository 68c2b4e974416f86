//! Messages of a login through a browser (PROTOCOL §4.3).

use core::fmt;

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};

use super::{Software, Text};
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
