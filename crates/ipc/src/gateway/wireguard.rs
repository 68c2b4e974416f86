//! Requests of the worker about stock WireGuard clients: handshakes, which the auth process makes
//! with the static key, and devices.
//!
//! Invariants: no message has the static private key or a preshared key; the keys in one are those
//! of a single session. What a device has shown by its handshake is durable before it is answered.

use std::net::IpAddr;
use std::time::Duration;

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_proto::control::Text;
use vpnd_proto::plane::Endpoint;
use vpnd_wireguard::PublicKey;
use vpnd_wireguard::handshakes::{self, Request, Responded};
use vpnd_wireguard::message::{Initiation, Message, Response};
use vpnd_wireguard::noise::{NotAuthentic, SessionKeys};
use vpnd_wireguard::timestamp::Timestamp;
use zerocopy::IntoBytes as _;

use super::auth::Granted;
use super::refusal::Refused;

/// Changes of peers in one reply, at most; the worker asks again.
pub const MAX_PEER_CHANGES: usize = 512;

/// Make a step of a handshake.
#[derive(Debug, Encode, Decode)]
pub enum Handshake {
    /// Answer a first message.
    #[n(0)]
    Respond(#[n(0)] ByteArray<148>),
    /// Begin a handshake with this peer.
    #[n(1)]
    Initiate(#[n(0)] ByteArray<32>),
    /// End the handshake begun with this peer, whose response this is.
    #[n(2)]
    Finish(#[n(0)] ByteArray<32>, #[n(1)] ByteArray<92>),
}

/// The reply to a [`Handshake`].
#[derive(Debug, Encode, Decode)]
pub enum HandshakeReply {
    #[n(0)]
    Responded {
        #[n(0)]
        peer: ByteArray<32>,
        #[n(1)]
        timestamp: ByteArray<{ Timestamp::LEN }>,
        #[n(2)]
        response: ByteArray<92>,
        #[n(3)]
        keys: SessionKeys,
    },
    #[n(1)]
    Initiated {
        #[n(0)]
        message: ByteArray<148>,
        #[n(1)]
        timestamp: ByteArray<{ Timestamp::LEN }>,
    },
    #[n(2)]
    Finished(#[n(0)] SessionKeys),
    #[n(3)]
    Refused(#[n(0)] HandshakeRefusal),
}

/// Why no step of a handshake was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum HandshakeRefusal {
    #[n(0)]
    NotAuthentic,
    #[n(1)]
    UnknownKey(#[n(0)] ByteArray<32>),
    #[n(2)]
    Replayed(#[n(0)] ByteArray<32>),
    #[n(3)]
    TooOften(#[n(0)] ByteArray<32>),
    #[n(4)]
    NotBegun(#[n(0)] ByteArray<32>),
    /// More handshakes come than the auth process makes, or the store can't be written now.
    #[n(5)]
    Busy,
}

/// Let the device with this public key in: it has shown the key by a handshake.
#[derive(Debug, Encode, Decode)]
pub struct AdmitDevice {
    #[n(0)]
    pub peer: ByteArray<32>,
    /// Where its handshake came from.
    #[n(1)]
    pub outer: IpAddr,
}

/// The decision about a device.
#[derive(Debug, Encode, Decode)]
pub enum Admission {
    /// A session, to be kept as one that a login is entitled to.
    #[n(0)]
    Granted(#[n(0)] Box<DeviceGrant>),
    /// Its sessions are over until it is renewed, and there is no portal that it may reach: it is
    /// the user's device nevertheless.
    #[n(1)]
    Walled,
    #[n(2)]
    Refused(#[n(0)] Refused),
}

/// A session of a WireGuard device.
#[derive(Debug, Encode, Decode)]
pub struct DeviceGrant {
    #[n(0)]
    pub grant: Granted,
    /// The device's id.
    #[n(1)]
    pub device: ByteArray<16>,
    /// The name that an administrator has given the device; may be empty.
    #[n(2)]
    pub name: DeviceName,
    /// Whether its sessions are over: until it is renewed it reaches nothing but the portal.
    #[n(3)]
    pub is_walled: bool,
    /// [`Peer::renewed_s`] by which that was decided.
    #[n(4)]
    pub renewed_s: u64,
}

/// The name of a device.
pub type DeviceName = Text<64>;

/// The peers that have changed since the reply with this number; all of them after 0.
#[derive(Debug, Encode, Decode)]
pub struct PeersQuery(#[n(0)] pub u64);

/// The reply to [`PeersQuery`]; `None` if WireGuard is not enabled.
#[derive(Debug, Encode, Decode)]
pub struct PeerChanges {
    /// The gateway's own public key.
    #[n(0)]
    pub own: ByteArray<32>,
    /// The number to ask with the next time.
    #[n(1)]
    pub seen: u64,
    /// [`MAX_PEER_CHANGES`] at most: then ask again.
    #[n(2)]
    pub changed: Vec<PeerChange>,
}

/// In a fleet: the devices after this one that have talked last to one of these addresses,
/// [`MAX_PEER_CHANGES`] at most, by their keys.
#[derive(Debug, Encode, Decode)]
pub struct DevicesQuery {
    /// The gateway's, [`MAX_OWN_ADDRESSES`] at most.
    #[n(0)]
    pub addresses: Vec<IpAddr>,
    #[n(1)]
    pub after: Option<ByteArray<32>>,
}

/// Where a device was heard from last, and the gateway's address that it talks to.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DeviceAt {
    #[n(0)]
    pub key: ByteArray<32>,
    #[n(1)]
    pub outer: Endpoint,
}

/// Addresses of a machine that the parent names to the worker, at most.
pub const MAX_OWN_ADDRESSES: usize = 256;

/// A peer as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PeerChange {
    #[n(0)]
    pub key: ByteArray<32>,
    /// `None` if it is none any more.
    #[n(1)]
    pub peer: Option<Peer>,
}

/// The worker's data of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Peer {
    /// The id of the device that it is.
    #[n(0)]
    pub device: ByteArray<16>,
    /// Something is sent to it at least so often.
    #[n(1)]
    pub keepalive_s: Option<u16>,
    /// Where it was heard from last, by [`Write::Moved`](super::auth::Write::Moved), until its
    /// session ends.
    #[n(2)]
    pub outer: Option<Endpoint>,
    /// When it was renewed last, by which the worker knows that something has changed.
    #[n(3)]
    pub renewed_s: u64,
}

impl Peer {
    /// The interval of keepalives.
    #[must_use]
    pub fn keepalive(&self) -> Option<Duration> {
        self.keepalive_s.map(|seconds| Duration::from_secs(seconds.into()))
    }
}

impl From<&Request> for Handshake {
    fn from(request: &Request) -> Self {
        match request {
            Request::Respond(message) => Self::Respond(initiation_bytes(message)),
            Request::Initiate(key) => Self::Initiate(key.0.into()),
            Request::Finish(key, message) => Self::Finish(key.0.into(), response_bytes(message)),
        }
    }
}

impl Handshake {
    /// The request, if its message is one.
    #[must_use]
    pub fn parse(&self) -> Option<Request> {
        Some(match self {
            Self::Respond(message) => Request::Respond(initiation(message)?),
            Self::Initiate(key) => Request::Initiate(public(*key)),
            Self::Finish(key, message) => Request::Finish(public(*key), response(message)?),
        })
    }
}

impl From<handshakes::Reply> for HandshakeReply {
    fn from(reply: handshakes::Reply) -> Self {
        match reply {
            handshakes::Reply::Responded(responded) => {
                let Responded { peer, timestamp, response, keys } = *responded;
                Self::Responded {
                    peer: peer.0.into(),
                    timestamp: timestamp.to_bytes().into(),
                    response: response_bytes(&response),
                    keys,
                }
            }
            handshakes::Reply::Initiated(message, timestamp) => Self::Initiated {
                message: initiation_bytes(&message),
                timestamp: timestamp.to_bytes().into(),
            },
            handshakes::Reply::Finished(keys) => Self::Finished(keys),
            handshakes::Reply::Refused(refused) => Self::Refused(refused.into()),
        }
    }
}

impl HandshakeReply {
    /// The reply, if its parts are what they should be.
    #[must_use]
    pub fn parse(self) -> Option<handshakes::Reply> {
        Some(match self {
            Self::Responded { peer, timestamp, response: message, keys } => {
                handshakes::Reply::Responded(Box::new(Responded {
                    peer: public(peer),
                    timestamp: Timestamp::from_bytes(timestamp.into()),
                    response: response(&message)?,
                    keys,
                }))
            }
            Self::Initiated { message, timestamp } => {
                handshakes::Reply::Initiated(initiation(&message)?, Timestamp::from_bytes(timestamp.into()))
            }
            Self::Finished(keys) => handshakes::Reply::Finished(keys),
            Self::Refused(refusal) => handshakes::Reply::Refused(refusal.into()),
        })
    }
}

impl From<handshakes::Refused> for HandshakeRefusal {
    fn from(refused: handshakes::Refused) -> Self {
        match refused {
            handshakes::Refused::NotAuthentic(NotAuthentic) => Self::NotAuthentic,
            handshakes::Refused::UnknownKey(key) => Self::UnknownKey(key.0.into()),
            handshakes::Refused::Replayed(key) => Self::Replayed(key.0.into()),
            handshakes::Refused::TooOften(key) => Self::TooOften(key.0.into()),
            handshakes::Refused::NotBegun(key) => Self::NotBegun(key.0.into()),
            handshakes::Refused::Busy => Self::Busy,
        }
    }
}

impl From<HandshakeRefusal> for handshakes::Refused {
    fn from(refusal: HandshakeRefusal) -> Self {
        match refusal {
            HandshakeRefusal::NotAuthentic => Self::NotAuthentic(NotAuthentic),
            HandshakeRefusal::UnknownKey(key) => Self::UnknownKey(public(key)),
            HandshakeRefusal::Replayed(key) => Self::Replayed(public(key)),
            HandshakeRefusal::TooOften(key) => Self::TooOften(public(key)),
            HandshakeRefusal::NotBegun(key) => Self::NotBegun(public(key)),
            HandshakeRefusal::Busy => Self::Busy,
        }
    }
}

fn public(key: ByteArray<32>) -> PublicKey {
    PublicKey(key.into())
}

fn initiation_bytes(message: &Initiation) -> ByteArray<148> {
    let bytes: [u8; 148] = message.as_bytes().try_into().expect("a first message has 148 bytes");
    bytes.into()
}

fn response_bytes(message: &Response) -> ByteArray<92> {
    let bytes: [u8; 92] = message.as_bytes().try_into().expect("a second message has 92 bytes");
    bytes.into()
}

fn initiation(bytes: &ByteArray<148>) -> Option<Initiation> {
    match Message::parse(&bytes[..]) {
        Ok(Message::Initiation(message)) => Some(*message),
        _ => None,
    }
}

fn response(bytes: &ByteArray<92>) -> Option<Response> {
    match Message::parse(&bytes[..]) {
        Ok(Message::Response(message)) => Some(*message),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use vpnd_crypto::Secret;
    use vpnd_wireguard::Handshakes;
    use vpnd_wireguard::handshakes::{Known, Reply};
    use vpnd_wireguard::key::StaticKey;

    use super::*;

    fn passed<T: Encode<()> + for<'b> Decode<'b, ()>>(message: &T) -> T {
        minicbor::decode(&minicbor::to_vec(message).expect("a vector takes it")).expect("it was encoded")
    }

    /// One end of a handshake, asked through messages.
    fn ask(end: &mut Handshakes, request: &Request) -> Reply {
        let request = passed(&Handshake::from(request)).parse().expect("it was a request");
        let reply = end.handle(vpnd_proto::time::Time::ZERO, Duration::from_secs(1), &request);
        passed(&HandshakeReply::from(reply)).parse().expect("it was a reply")
    }

    #[test]
    fn a_handshake_passes_through_messages() {
        let key = |byte| StaticKey::new(Secret::new([byte; 32]));
        let random = |byte| -> vpnd_proto::session::Random { Box::new(move |bytes| bytes.fill(byte)) };
        let mut initiator = Handshakes::new(key(1), random(1));
        let mut responder = Handshakes::new(key(2), random(2));
        initiator.add(responder.public(), Known::default()).expect("a key");
        responder.add(initiator.public(), Known::default()).expect("a key");
        let (own, other) = (initiator.public(), responder.public());
        let Reply::Initiated(message, _) = ask(&mut initiator, &Request::Initiate(other)) else { panic!() };
        let Reply::Responded(responded) = ask(&mut responder, &Request::Respond(message)) else { panic!() };
        assert_eq!(responded.peer, own);
        let Reply::Finished(keys) = ask(&mut initiator, &Request::Finish(other, responded.response)) else {
            panic!()
        };
        assert_eq!(keys.send.expose(), responded.keys.receive.expose());
        assert_eq!(keys.receive.expose(), responded.keys.send.expose());
        let again = ask(&mut responder, &Request::Respond(message));
        assert!(matches!(again, Reply::Refused(handshakes::Refused::Replayed(key)) if key == own));
    }

    #[test]
    fn bytes_that_are_no_message_of_the_step_are_no_request() {
        assert!(Handshake::Respond([0; 148].into()).parse().is_none());
        assert!(Handshake::Finish([1; 32].into(), [2; 92].into()).parse().is_none());
    }
}
