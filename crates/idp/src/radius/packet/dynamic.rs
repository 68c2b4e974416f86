//! Packets of dynamic authorization (RFC 5176): a request of a server, checked, and the reply to
//! it.
//!
//! INVARIANT: whatever the bytes, decoding neither panics nor allocates beyond them; a request
//! counts only with a right Request Authenticator and one right Message-Authenticator. Bytes in,
//! bytes out, as in the module above.

use std::net::{Ipv4Addr, Ipv6Addr};

use md5::{Digest as _, Md5};
use subtle::ConstantTimeEq as _;
use vpnd_proto::control::{Text, UserName};

use super::{
    Attribute, CLASS, FILTER_ID, HEADER, MAX_PACKET, MESSAGE_AUTHENTICATOR, NAS_IDENTIFIER, NoReply,
    USER_NAME, attribute, attributes, signature,
};
use vpnd_ipc::gateway::idp::{ErrorCause, SessionAttributes};

const DISCONNECT_REQUEST: u8 = 40;
const COA_REQUEST: u8 = 43;

const NAS_IP_ADDRESS: u8 = 4;
const SERVICE_TYPE: u8 = 6;
const FRAMED_IP_ADDRESS: u8 = 8;
const REPLY_MESSAGE: u8 = 18;
const PROXY_STATE: u8 = 33;
const ACCT_SESSION_ID: u8 = 44;
const ACCT_TERMINATE_CAUSE: u8 = 49;
const EVENT_TIMESTAMP: u8 = 55;
const NAS_IPV6_ADDRESS: u8 = 95;
const ERROR_CAUSE: u8 = 101;
const FRAMED_IPV6_ADDRESS: u8 = 168;

/// A request that a server has made with the shared secret.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    header: [u8; HEADER],
    pub is_disconnect: bool,
    attributes: Vec<Attribute>,
}

/// A request, as far as it can be one.
#[derive(Debug, PartialEq, Eq)]
pub struct Demand {
    pub which: SessionAttributes,
    /// The values of the attributes that are groups.
    pub groups: Vec<Vec<u8>>,
}

impl Request {
    /// The request that the packet is, if it is made with the secret.
    pub fn decode(packet: &[u8], secret: &[u8]) -> Result<Self, NoReply> {
        let header = packet.first_chunk::<HEADER>().ok_or(NoReply::Malformed)?;
        let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let packet = packet.get(..len).filter(|packet| packet.len() >= HEADER).ok_or(NoReply::Malformed)?;
        let is_disconnect = match header[0] {
            DISCONNECT_REQUEST => true,
            COA_REQUEST => false,
            _ => return Err(NoReply::Malformed),
        };
        let body = &packet[HEADER..];
        let expected = Md5::new().chain_update(&header[..4]).chain_update([0; 16]);
        let expected = expected.chain_update(body).chain_update(secret).finalize();
        if !bool::from(expected.as_slice().ct_eq(&header[4..])) {
            return Err(NoReply::Authenticator);
        }
        let attributes = attributes(body)?;
        super::check_signature(&header[..4], &[0; 16], body, secret)?;
        Ok(Self { header: *header, is_disconnect, attributes })
    }

    /// Identifies a repeated request.
    pub fn authenticator(&self) -> [u8; 16] {
        let mut authenticator = [0; 16];
        authenticator.copy_from_slice(&self.header[4..]);
        authenticator
    }

    /// When the server says that it made the request, seconds since 1970.
    pub fn made_s(&self) -> Option<u64> {
        let value = self.one(EVENT_TIMESTAMP).ok()??;
        Some(u32::from_be_bytes(value.try_into().ok()?).into())
    }

    /// Its content, or why there is none.
    pub fn demand(&self, nas_identifier: &str, group_kinds: &[u8]) -> Result<Demand, ErrorCause> {
        self.check_attributes(nas_identifier, group_kinds)?;
        let text = |kind| {
            let value = self.one(kind)?;
            value.map(|value| str::from_utf8(value).map_err(|_| ErrorCause::InvalidValue)).transpose()
        };
        let invalid = |_| ErrorCause::InvalidValue;
        let octets = |value: &[u8]| <[u8; 4]>::try_from(value).map_err(|_| ErrorCause::InvalidValue);
        let long = |value: &[u8]| <[u8; 16]>::try_from(value).map_err(|_| ErrorCause::InvalidValue);
        let which = SessionAttributes {
            user: text(USER_NAME)?.map(UserName::new).transpose().map_err(invalid)?,
            id: text(ACCT_SESSION_ID)?.map(Text::new).transpose().map_err(invalid)?,
            ipv4: self.one(FRAMED_IP_ADDRESS)?.map(octets).transpose()?.map(Ipv4Addr::from),
            ipv6: self.one(FRAMED_IPV6_ADDRESS)?.map(long).transpose()?.map(Ipv6Addr::from),
        };
        if which == SessionAttributes::default() {
            return Err(ErrorCause::MissingAttribute);
        }
        let is_group = |attribute: &&Attribute| group_kinds.contains(&attribute.kind);
        let groups: Vec<_> =
            self.attributes.iter().filter(is_group).map(|group| group.value.clone()).collect();
        match (self.is_disconnect, groups.is_empty()) {
            (true, false) => Err(ErrorCause::UnsupportedAttribute),
            (false, true) => Err(ErrorCause::MissingAttribute),
            _ => Ok(Demand { which, groups }),
        }
    }

    /// Refuses what would be ignored otherwise: a server that receives an ACK must have all that
    /// it asked for.
    fn check_attributes(&self, nas_identifier: &str, group_kinds: &[u8]) -> Result<(), ErrorCause> {
        for Attribute { kind, value } in &self.attributes {
            match *kind {
                USER_NAME | FRAMED_IP_ADDRESS | FRAMED_IPV6_ADDRESS | ACCT_SESSION_ID | EVENT_TIMESTAMP
                | MESSAGE_AUTHENTICATOR | PROXY_STATE | REPLY_MESSAGE | ACCT_TERMINATE_CAUSE
                // Those that a server knows the gateway by are behind a translation of addresses,
                // maybe.
                | NAS_IP_ADDRESS | NAS_IPV6_ADDRESS => {}
                NAS_IDENTIFIER if value == nas_identifier.as_bytes() => {}
                NAS_IDENTIFIER => return Err(ErrorCause::NasIdentification),
                SERVICE_TYPE => return Err(ErrorCause::UnsupportedService),
                FILTER_ID | CLASS if group_kinds.contains(kind) => {}
                _ => return Err(ErrorCause::UnsupportedAttribute),
            }
        }
        Ok(())
    }

    /// The value of an attribute that is there once at most.
    fn one(&self, kind: u8) -> Result<Option<&[u8]>, ErrorCause> {
        let mut values = self.attributes.iter().filter(|attribute| attribute.kind == kind);
        let first = values.next().map(|attribute| attribute.value.as_slice());
        if values.next().is_some() { Err(ErrorCause::InvalidRequest) } else { Ok(first) }
    }

    /// The reply: that it is done, or why it is not.
    pub fn reply(&self, error: Option<ErrorCause>, secret: &[u8]) -> Vec<u8> {
        let code = self.header[0] + if error.is_none() { 1 } else { 2 };
        let mut out = vec![code, self.header[1], 0, 0];
        out.extend_from_slice(&self.header[4..]);
        attribute(&mut out, MESSAGE_AUTHENTICATOR, &[0; 16]);
        let states = || self.attributes.iter().filter(|attribute| attribute.kind == PROXY_STATE);
        let rest: usize = states().map(|state| state.value.len() + 2).sum();
        // With the longest states of proxies, which have to go back, there is no room for it.
        if let Some(error) = error.filter(|_| out.len() + 6 + rest <= MAX_PACKET) {
            attribute(&mut out, ERROR_CAUSE, &(error as u32).to_be_bytes());
        }
        for state in states() {
            attribute(&mut out, PROXY_STATE, &state.value);
        }
        let len = out.len() as u16;
        out[2..4].copy_from_slice(&len.to_be_bytes());
        let mac = signature(secret, &[&out]);
        out[HEADER + 2..HEADER + 18].copy_from_slice(&mac);
        let authenticator = Md5::new().chain_update(&out).chain_update(secret).finalize();
        out[4..HEADER].copy_from_slice(&authenticator);
        out
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::tests::made;
    use super::*;

    const SECRET: &[u8] = b"xyzzy5461";

    /// A request of a server that has the secret; `signed` says whether it has a
    /// Message-Authenticator.
    pub(crate) fn request(code: u8, attributes: &[(u8, &[u8])], secret: &[u8], signed: bool) -> Vec<u8> {
        let mut body = Vec::new();
        for (kind, value) in attributes {
            attribute(&mut body, *kind, value);
        }
        made([code, 9], [0; 16], &body, secret, signed)
    }

    /// A Disconnect-Request for this user that was made then.
    pub(crate) fn disconnect(user: &str, made_s: u32, secret: &[u8]) -> Vec<u8> {
        let made = made_s.to_be_bytes();
        request(DISCONNECT_REQUEST, &[(USER_NAME, user.as_bytes()), (EVENT_TIMESTAMP, &made)], secret, true)
    }

    fn error(packet: &[u8]) -> NoReply {
        Request::decode(packet, SECRET).map(drop).unwrap_err()
    }

    #[test]
    fn a_request_counts_only_if_it_is_made_and_signed_with_the_secret() {
        let ann: [(u8, &[u8]); 1] = [(USER_NAME, b"ann")];
        let good = request(DISCONNECT_REQUEST, &ann, SECRET, true);
        assert!(Request::decode(&good, SECRET).is_ok_and(|request| request.is_disconnect));
        assert_eq!(error(&request(DISCONNECT_REQUEST, &ann, b"guessed", true)), NoReply::Authenticator);
        assert_eq!(error(&request(DISCONNECT_REQUEST, &ann, SECRET, false)), NoReply::Unsigned);
        let forged: [(u8, &[u8]); 2] = [(USER_NAME, b"ann"), (MESSAGE_AUTHENTICATOR, &[7; 16])];
        assert_eq!(error(&request(DISCONNECT_REQUEST, &forged, SECRET, false)), NoReply::Signature);
        assert_eq!(
            error(&request(DISCONNECT_REQUEST, &forged, SECRET, true)),
            NoReply::Signature,
            "two of them"
        );
        for code in [1, 4, 41, 42, 44] {
            assert_eq!(error(&request(code, &ann, SECRET, true)), NoReply::Malformed, "{code}");
        }
        for at in 0..good.len() {
            let mut changed = good.clone();
            changed[at] ^= 1;
            assert!(Request::decode(&changed, SECRET).is_err(), "{at}");
            assert!(Request::decode(&good[..at], SECRET).is_err(), "{at}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_cause() {
        let demand = |code, attributes: &[(u8, &[u8])]| {
            let packet = request(code, attributes, SECRET, true);
            Request::decode(&packet, SECRET).unwrap().demand("vpnd", &[FILTER_ID])
        };
        let ann = (USER_NAME, &b"ann"[..]);
        let found =
            demand(DISCONNECT_REQUEST, &[ann, (FRAMED_IP_ADDRESS, &[10, 0, 0, 1]), (PROXY_STATE, b"x")]);
        assert_eq!(found.unwrap().which.ipv4, Some([10, 0, 0, 1].into()));
        let groups = demand(COA_REQUEST, &[ann, (FILTER_ID, b"staff"), (FILTER_ID, b"vpn")]).unwrap().groups;
        assert_eq!(groups, [b"staff".to_vec(), b"vpn".to_vec()]);
        let timeout = (27, &[0, 0, 0, 9][..]);
        for (code, attributes, cause) in [
            (DISCONNECT_REQUEST, &[][..], ErrorCause::MissingAttribute),
            (COA_REQUEST, &[ann], ErrorCause::MissingAttribute),
            (COA_REQUEST, &[ann, (FILTER_ID, b"a"), timeout], ErrorCause::UnsupportedAttribute),
            (COA_REQUEST, &[ann, (CLASS, b"a")], ErrorCause::UnsupportedAttribute),
            (DISCONNECT_REQUEST, &[ann, (FILTER_ID, b"a")], ErrorCause::UnsupportedAttribute),
            (DISCONNECT_REQUEST, &[ann, (NAS_IDENTIFIER, b"another")], ErrorCause::NasIdentification),
            (COA_REQUEST, &[ann, (SERVICE_TYPE, &[0, 0, 0, 17])], ErrorCause::UnsupportedService),
            (DISCONNECT_REQUEST, &[ann, ann], ErrorCause::InvalidRequest),
            (DISCONNECT_REQUEST, &[(FRAMED_IP_ADDRESS, &[10])], ErrorCause::InvalidValue),
            (DISCONNECT_REQUEST, &[(USER_NAME, &[0xff])], ErrorCause::InvalidValue),
        ] {
            assert_eq!(demand(code, attributes), Err(cause), "{code} {attributes:?}");
        }
    }

    #[test]
    fn a_reply_is_signed_and_repeats_what_a_proxy_needs() {
        let packet = request(
            COA_REQUEST,
            &[(USER_NAME, b"ann"), (PROXY_STATE, b"one"), (PROXY_STATE, b"two")],
            SECRET,
            true,
        );
        let request = Request::decode(&packet, SECRET).unwrap();
        let reply = request.reply(Some(ErrorCause::SessionNotFound), SECRET);
        assert_eq!(reply[..2], [45, 9]);
        let expected = Md5::new().chain_update(&reply[..4]).chain_update(&packet[4..HEADER]);
        let expected = expected.chain_update(&reply[HEADER..]).chain_update(SECRET).finalize();
        assert_eq!(reply[4..HEADER], expected[..]);
        let found: Vec<_> =
            attributes(&reply[HEADER..]).unwrap().into_iter().map(|a| (a.kind, a.value)).collect();
        assert_eq!(found[1], (ERROR_CAUSE, 503u32.to_be_bytes().to_vec()));
        assert_eq!(found[2..], [(PROXY_STATE, b"one".to_vec()), (PROXY_STATE, b"two".to_vec())]);
        assert_eq!(request.reply(None, SECRET)[0], 44);
        // The most states that fit: no reply is longer than a packet.
        let states = [(PROXY_STATE, &[7; 253][..]); 15];
        let packet =
            self::request(COA_REQUEST, &[&states[..], &[(PROXY_STATE, &[7; 231])]].concat(), SECRET, true);
        let longest = Request::decode(&packet, SECRET).unwrap();
        assert_eq!(
            (packet.len(), longest.reply(Some(ErrorCause::InvalidRequest), SECRET).len()),
            (4096, 4096)
        );
        assert!(
            super::super::check_signature(&reply[..4], &request.authenticator(), &reply[HEADER..], SECRET)
                .is_ok()
        );
    }
}
