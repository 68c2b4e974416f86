//! The attributes of an Access-Accept: those that count besides the groups, and those that do not,
//! each of which is named once in the log.
//!
//! INVARIANT: an attribute makes no session longer and gives no user more than the gateway does
//! without it; an address is a wish, which counts if the auth process finds it in the pool and
//! free. A server that sends more than is kept gets less back.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use vpnd_proto::control::{List, UserName};

use super::packet::{
    ACCT_INTERIM_INTERVAL, Attribute, CLASS, FRAMED_IP_ADDRESS, FRAMED_IPV6_ADDRESS, IDLE_TIMEOUT,
    MESSAGE_AUTHENTICATOR, SESSION_TIMEOUT, USER_NAME,
};
use vpnd_ipc::gateway::idp::{AcceptAttributes, Classes, MAX_CLASSES, SourceAddresses, SourceLimits};

/// Values of Framed-IP-Address that leave the choice to the user or to the gateway (RFC 2865 §5.8).
const ANY_ADDRESS: [[u8; 4]; 2] = [[255; 4], [255, 255, 255, 254]];
/// A proxy's own, which means nothing to others.
const PROXY_STATE: u8 = 33;

/// The attributes that were named as ignored.
#[derive(Default)]
pub(super) struct Ignored(Mutex<BTreeSet<u8>>);

impl Ignored {
    /// Names those that are ignored and have not been named yet. `groups` are kinds that have
    /// groups.
    pub(super) fn note(&self, source: &str, attributes: &[Attribute], groups: &[u8]) {
        let mut named = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kinds = attributes.iter().map(|attribute| attribute.kind);
        let new: BTreeSet<u8> =
            kinds.filter(|kind| !counts(*kind) && !groups.contains(kind) && !named.contains(kind)).collect();
        if new.is_empty() {
            return;
        }
        let names: Vec<_> = new.iter().map(|kind| name(*kind)).collect();
        tracing::warn!(
            source,
            attributes = names.join(", "),
            "the RADIUS server sends attributes that are ignored; docs/RADIUS.md lists those that count"
        );
        named.extend(new);
    }
}

/// Whether an attribute counts, or needs no attention.
const fn counts(kind: u8) -> bool {
    matches!(
        kind,
        USER_NAME
            | CLASS
            | SESSION_TIMEOUT
            | IDLE_TIMEOUT
            | PROXY_STATE
            | MESSAGE_AUTHENTICATOR
            | ACCT_INTERIM_INTERVAL
            | FRAMED_IP_ADDRESS
            | FRAMED_IPV6_ADDRESS
    )
}

/// Attributes that count besides the groups; `user` is the name of the login.
pub(super) fn attributes(user: &str, attributes: &[Attribute]) -> AcceptAttributes {
    let values = |kind| attributes.iter().filter(move |attribute| attribute.kind == kind);
    let number =
        |kind| values(kind).find_map(|value| value.value[..].try_into().ok()).map(u32::from_be_bytes);
    // A limit of 0 is how some servers write none.
    let limit = |kind| number(kind).filter(|limit| *limit > 0);
    let classes = values(CLASS).take(MAX_CLASSES).filter_map(|class| List::new(class.value.clone()).ok());
    let ipv4 = values(FRAMED_IP_ADDRESS).find_map(|value| <[u8; 4]>::try_from(&value.value[..]).ok());
    let ipv6 = values(FRAMED_IPV6_ADDRESS).find_map(|value| <[u8; 16]>::try_from(&value.value[..]).ok());
    let addresses = SourceAddresses {
        ipv4: ipv4.filter(|address| !ANY_ADDRESS.contains(address)).map(Ipv4Addr::from),
        ipv6: ipv6.map(Ipv6Addr::from),
    };
    let text = values(USER_NAME).find_map(|name| str::from_utf8(&name.value).ok());
    AcceptAttributes {
        classes: Classes::new(classes.collect()).unwrap_or_default(),
        interim_s: number(ACCT_INTERIM_INTERVAL),
        limits: SourceLimits { session_s: limit(SESSION_TIMEOUT), idle_s: limit(IDLE_TIMEOUT) },
        user: text.filter(|name| *name != user).and_then(|name| UserName::new(name).ok()),
        addresses,
    }
}

/// The name of an attribute, as far as servers are known to send it to a VPN.
fn name(kind: u8) -> Cow<'static, str> {
    let name = match kind {
        6 => "Service-Type",
        7 => "Framed-Protocol",
        9 => "Framed-IP-Netmask",
        10 => "Framed-Routing",
        11 => "Filter-Id",
        12 => "Framed-MTU",
        13 => "Framed-Compression",
        18 => "Reply-Message",
        22 => "Framed-Route",
        24 => "State",
        26 => "Vendor-Specific",
        29 => "Termination-Action",
        62 => "Port-Limit",
        64 => "Tunnel-Type",
        65 => "Tunnel-Medium-Type",
        81 => "Tunnel-Private-Group-Id",
        88 => "Framed-Pool",
        96 => "Framed-Interface-Id",
        97 => "Framed-IPv6-Prefix",
        99 => "Framed-IPv6-Route",
        100 => "Framed-IPv6-Pool",
        other => return format!("attribute {other}").into(),
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: u8, value: &[u8]) -> Attribute {
        Attribute { kind, value: value.to_vec() }
    }

    #[test]
    fn limits_and_the_name_of_a_server_count() {
        let sent = [
            of(SESSION_TIMEOUT, &20_u32.to_be_bytes()),
            of(IDLE_TIMEOUT, &[0, 0, 1, 4]),
            of(USER_NAME, b"ann@uni.example"),
        ];
        let found = attributes("ann", &sent);
        assert_eq!(found.limits, SourceLimits { session_s: Some(20), idle_s: Some(260) });
        assert_eq!(found.user.as_deref(), Some("ann@uni.example"));
        let odd = [of(SESSION_TIMEOUT, &[0; 4]), of(IDLE_TIMEOUT, &[1; 3]), of(USER_NAME, &[0xFF])];
        assert_eq!(attributes("ann", &odd), AcceptAttributes::default());
        assert_eq!(attributes("ann", &[of(USER_NAME, b"ann")]).user, None);
    }

    #[test]
    fn addresses_are_taken_over_but_for_those_that_leave_the_choice_to_others() {
        let found = |v4: &[u8], v6: &[u8]| {
            attributes("ann", &[of(FRAMED_IP_ADDRESS, v4), of(FRAMED_IPV6_ADDRESS, v6)]).addresses
        };
        let v6: Ipv6Addr = "fd86::7".parse().unwrap();
        let addresses = SourceAddresses { ipv4: Some([10, 86, 0, 7].into()), ipv6: Some(v6) };
        assert_eq!(found(&[10, 86, 0, 7], &v6.octets()), addresses);
        for other in ANY_ADDRESS {
            assert_eq!(found(&other, &[0; 15]), SourceAddresses::default());
        }
    }

    #[test]
    fn what_is_ignored_is_named_once() {
        let ignored = Ignored::default();
        let named = || ignored.0.lock().unwrap().iter().copied().collect::<Vec<_>>();
        ignored.note("guests", &[of(11, b"staff"), of(CLASS, b"x"), of(USER_NAME, b"ann")], &[11]);
        assert!(named().is_empty());
        ignored.note("guests", &[of(9, &[10, 0, 0, 1]), of(26, b"x")], &[11]);
        ignored.note("guests", &[of(9, &[10, 0, 0, 2])], &[11]);
        assert_eq!(named(), [9, 26]);
        assert_eq!((name(9), name(200)), ("Framed-IP-Netmask".into(), "attribute 200".into()));
    }
}
