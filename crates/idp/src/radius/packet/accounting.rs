//! Packets of accounting (RFC 2866, RFC 2869): a request of a record, and whether a response is one
//! to it.
//!
//! INVARIANT: a response counts only if it has the request's number and is made with the shared
//! secret for exactly this request. Bytes in, bytes out, as in the module above.

use md5::{Digest as _, Md5};
use subtle::ConstantTimeEq as _;

use super::{
    ACCOUNTING_RESPONSE, CALLING_STATION_ID, CLASS, HEADER, NAS_IDENTIFIER, NAS_PORT_TYPE, NoReply,
    USER_NAME, VIRTUAL, attribute, attributes,
};
use vpnd_ipc::gateway::idp::{AccountedSession, AccountingEvent, AccountingRecord, Usage};

const ACCOUNTING_REQUEST: u8 = 4;

const FRAMED_IP_ADDRESS: u8 = 8;
const ACCT_STATUS_TYPE: u8 = 40;
const ACCT_DELAY_TIME: u8 = 41;
const ACCT_INPUT_OCTETS: u8 = 42;
const ACCT_OUTPUT_OCTETS: u8 = 43;
const ACCT_SESSION_ID: u8 = 44;
const ACCT_AUTHENTIC: u8 = 45;
const ACCT_SESSION_TIME: u8 = 46;
const ACCT_INPUT_PACKETS: u8 = 47;
const ACCT_OUTPUT_PACKETS: u8 = 48;
const ACCT_TERMINATE_CAUSE: u8 = 49;
const ACCT_INPUT_GIGAWORDS: u8 = 52;
const ACCT_OUTPUT_GIGAWORDS: u8 = 53;
const EVENT_TIMESTAMP: u8 = 55;
const FRAMED_IPV6_ADDRESS: u8 = 168;
/// The user was authenticated by RADIUS.
const BY_RADIUS: u32 = 1;

/// A record, as a server gets it.
pub struct AccountingRequest<'r> {
    pub id: u8,
    pub record: &'r AccountingRecord,
    /// Time since the event, seconds.
    pub delay_s: u32,
    pub nas_identifier: &'r str,
}

impl AccountingRequest<'_> {
    /// The packet.
    pub fn encode(&self, secret: &[u8]) -> Vec<u8> {
        let mut out = vec![ACCOUNTING_REQUEST, self.id, 0, 0];
        out.extend_from_slice(&[0; 16]);
        let status = match self.record.event {
            AccountingEvent::Start => 1,
            AccountingEvent::Stop(..) => 2,
            AccountingEvent::Interim(_) => 3,
            AccountingEvent::On => 7,
            AccountingEvent::Off => 8,
        };
        number(&mut out, ACCT_STATUS_TYPE, status);
        attribute(&mut out, NAS_IDENTIFIER, self.nas_identifier.as_bytes());
        // 1970 to 2106, as the attribute has it.
        number(&mut out, EVENT_TIMESTAMP, self.record.at_s as u32);
        number(&mut out, ACCT_DELAY_TIME, self.delay_s);
        match &self.record.session {
            Some(session) => of_session(&mut out, session),
            // A server may refuse a packet without one (RFC 2866 §5.5).
            None => attribute(&mut out, ACCT_SESSION_ID, b"0"),
        }
        match &self.record.event {
            AccountingEvent::Stop(usage, cause) => {
                of_usage(&mut out, usage);
                number(&mut out, ACCT_TERMINATE_CAUSE, *cause as u32);
            }
            AccountingEvent::Interim(usage) => of_usage(&mut out, usage),
            AccountingEvent::Start | AccountingEvent::On | AccountingEvent::Off => {}
        }
        let len = out.len() as u16;
        out[2..4].copy_from_slice(&len.to_be_bytes());
        let authenticator = Md5::new().chain_update(&out).chain_update(secret).finalize();
        out[4..HEADER].copy_from_slice(&authenticator);
        out
    }
}

/// Whether `packet` is a server's response to `request`.
pub fn check_response(request: &[u8], packet: &[u8], secret: &[u8]) -> Result<(), NoReply> {
    let (code, body) = made_for(request, packet, secret)?;
    attributes(body)?;
    if code == ACCOUNTING_RESPONSE { Ok(()) } else { Err(NoReply::Malformed) }
}

/// The code and attributes of a packet that is made with the secret for exactly this request.
pub(crate) fn made_for<'p>(
    request: &[u8],
    packet: &'p [u8],
    secret: &[u8],
) -> Result<(u8, &'p [u8]), NoReply> {
    let Some(header) = packet.first_chunk::<HEADER>() else { return Err(NoReply::Malformed) };
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let packet = packet.get(..len).filter(|packet| packet.len() >= HEADER).ok_or(NoReply::Malformed)?;
    if header[1] != request[1] {
        return Err(NoReply::Id);
    }
    let body = &packet[HEADER..];
    let expected = Md5::new().chain_update(&header[..4]).chain_update(&request[4..HEADER]);
    let expected = expected.chain_update(body).chain_update(secret).finalize();
    if !bool::from(expected.as_slice().ct_eq(&header[4..])) {
        return Err(NoReply::Authenticator);
    }
    Ok((header[0], body))
}

fn of_session(out: &mut Vec<u8>, session: &AccountedSession) {
    let AccountedSession { id, user, station, ipv4, ipv6, classes } = session;
    attribute(out, ACCT_SESSION_ID, id.as_bytes());
    attribute(out, USER_NAME, user.as_bytes());
    number(out, ACCT_AUTHENTIC, BY_RADIUS);
    attribute(out, NAS_PORT_TYPE, &VIRTUAL);
    if let Some(station) = station {
        attribute(out, CALLING_STATION_ID, station.to_string().as_bytes());
    }
    if let Some(address) = ipv4 {
        attribute(out, FRAMED_IP_ADDRESS, &address.octets());
    }
    if let Some(address) = ipv6 {
        attribute(out, FRAMED_IPV6_ADDRESS, &address.octets());
    }
    for class in classes.iter() {
        attribute(out, CLASS, class);
    }
}

fn of_usage(out: &mut Vec<u8>, usage: &Usage) {
    let traffic = usage.traffic;
    number(out, ACCT_SESSION_TIME, u32::try_from(usage.time_s).unwrap_or(u32::MAX));
    // Input is from the user (RFC 2866 §5.3).
    octets(out, [ACCT_INPUT_OCTETS, ACCT_INPUT_GIGAWORDS], traffic.rx_bytes);
    octets(out, [ACCT_OUTPUT_OCTETS, ACCT_OUTPUT_GIGAWORDS], traffic.tx_bytes);
    // These have no upper half: they wrap as counters do.
    number(out, ACCT_INPUT_PACKETS, traffic.rx_packets as u32);
    number(out, ACCT_OUTPUT_PACKETS, traffic.tx_packets as u32);
}

fn octets(out: &mut Vec<u8>, [low, high]: [u8; 2], bytes: u64) {
    number(out, low, bytes as u32);
    if let gigawords @ 1.. = (bytes >> 32) as u32 {
        number(out, high, gigawords);
    }
}

fn number(out: &mut Vec<u8>, kind: u8, value: u32) {
    attribute(out, kind, &value.to_be_bytes());
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::tests::reply_to;
    use super::*;
    use vpnd_ipc::gateway::auth::Traffic;
    use vpnd_ipc::gateway::idp::TerminateCause;
    use vpnd_ipc::gateway::idp::testing::record;

    const SECRET: &[u8] = b"xyzzy5461";

    fn sent(event: AccountingEvent) -> Vec<(u8, Vec<u8>)> {
        let record = record(event);
        let request = AccountingRequest { id: 7, record: &record, delay_s: 90, nas_identifier: "vpnd" };
        let packet = request.encode(SECRET);
        let mut unsigned = packet.clone();
        unsigned[4..HEADER].fill(0);
        let expected = Md5::new().chain_update(&unsigned).chain_update(SECRET).finalize();
        assert_eq!(packet[4..HEADER], expected[..], "RFC 2866 §3");
        assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), packet.len());
        let found = attributes(&packet[HEADER..]).unwrap();
        found.into_iter().map(|attribute| (attribute.kind, attribute.value)).collect()
    }

    fn one(sent: &[(u8, Vec<u8>)], kind: u8) -> Option<u32> {
        let values: Vec<_> = sent.iter().filter(|(of, _)| *of == kind).collect();
        assert!(values.len() <= 1, "{kind} is there {} times", values.len());
        values.first().map(|(_, value)| u32::from_be_bytes(value[..].try_into().unwrap()))
    }

    #[test]
    fn a_record_of_an_end_has_all_of_its_use() {
        let traffic = Traffic {
            rx_packets: 5,
            rx_bytes: (3 << 32) + 17,
            tx_packets: (1 << 32) + 2,
            tx_bytes: u64::from(u32::MAX),
        };
        let usage = Usage { time_s: 3_600, traffic };
        let sent = sent(AccountingEvent::Stop(usage, TerminateCause::IdleTimeout));
        for (kind, value) in [
            (ACCT_STATUS_TYPE, Some(2)),
            (ACCT_DELAY_TIME, Some(90)),
            (EVENT_TIMESTAMP, Some(1_700_000_000)),
            (ACCT_SESSION_TIME, Some(3_600)),
            (ACCT_INPUT_OCTETS, Some(17)),
            (ACCT_INPUT_GIGAWORDS, Some(3)),
            (ACCT_OUTPUT_OCTETS, Some(u32::MAX)),
            (ACCT_OUTPUT_GIGAWORDS, None),
            (ACCT_INPUT_PACKETS, Some(5)),
            (ACCT_OUTPUT_PACKETS, Some(2)),
            (ACCT_TERMINATE_CAUSE, Some(4)),
            (FRAMED_IP_ADDRESS, Some(u32::from_be_bytes([10, 86, 0, 2]))),
        ] {
            assert_eq!(one(&sent, kind), value, "{kind}");
        }
        let classes: Vec<_> =
            sent.iter().filter(|(kind, _)| *kind == CLASS).map(|(_, value)| &value[..]).collect();
        assert_eq!(classes, [&[0, 255][..], b"two"], "as they came, in their order");
        for (kind, value) in [
            (ACCT_SESSION_ID, &b"0123456789abcdef"[..]),
            (USER_NAME, b"ann"),
            (CALLING_STATION_ID, b"192.0.2.1"),
            (NAS_IDENTIFIER, b"vpnd"),
        ] {
            assert!(sent.contains(&(kind, value.to_vec())), "{kind}");
        }
        assert!(sent.iter().any(|(kind, value)| *kind == FRAMED_IPV6_ADDRESS && value.len() == 16));
    }

    #[test]
    fn a_start_has_no_use_and_the_gateway_no_user() {
        let start = sent(AccountingEvent::Start);
        assert_eq!((one(&start, ACCT_STATUS_TYPE), one(&start, ACCT_SESSION_TIME)), (Some(1), None));
        let off = sent(AccountingEvent::Off);
        assert_eq!(one(&off, ACCT_STATUS_TYPE), Some(8));
        assert!(off.iter().all(|(kind, _)| *kind != USER_NAME));
    }

    /// A response of a server that has the secret.
    pub(crate) fn response_to(request: &[u8], code: u8, secret: &[u8]) -> Vec<u8> {
        reply_to(request, code, &[], secret, false)
    }

    #[test]
    fn a_response_counts_only_if_it_is_made_for_this_request() {
        let record = record(AccountingEvent::Start);
        let request = |id| AccountingRequest { id, record: &record, delay_s: 0, nas_identifier: "vpnd" };
        let (packet, other) = (request(7).encode(SECRET), request(8).encode(SECRET));
        let good = response_to(&packet, ACCOUNTING_RESPONSE, SECRET);
        let check = |response: &[u8]| check_response(&packet, response, SECRET);
        assert_eq!(check(&good), Ok(()));
        assert_eq!(check(&[&good[..], b"padding"].concat()), Ok(()));
        assert_eq!(
            check(&response_to(&packet, ACCOUNTING_RESPONSE, b"guessed")),
            Err(NoReply::Authenticator)
        );
        assert_eq!(check(&response_to(&other, ACCOUNTING_RESPONSE, SECRET)), Err(NoReply::Id));
        assert_eq!(check(&response_to(&packet, 2, SECRET)), Err(NoReply::Malformed), "no such response");
        let mut earlier = packet.clone();
        earlier[4..HEADER].fill(7);
        assert_eq!(check(&response_to(&earlier, ACCOUNTING_RESPONSE, SECRET)), Err(NoReply::Authenticator));
        for at in 0..good.len() {
            let mut changed = good.clone();
            changed[at] ^= 1;
            assert!(check(&changed).is_err() && check(&good[..at]).is_err(), "{at}");
        }
    }
}
