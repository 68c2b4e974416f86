//! `[audit]`: what is recorded of people, and for how long.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::document::{Log as Problems, Section};

/// A hundred years.
const MAX_DAYS: u64 = 36_500;

pub(super) fn audit(s: &mut Section<'_>, p: &mut Problems) -> AuditPolicy {
    let kinds = [
        ("full", OuterAddresses::Full),
        ("truncated", OuterAddresses::Truncated),
        ("none", OuterAddresses::None),
    ];
    let default = Retention::DEFAULT;
    let mut days = |s: &mut Section<'_>, key: &'static str, default: u32| {
        s.number(p, key, 0..=MAX_DAYS, default.into()) as u32
    };
    let retention = Retention {
        user_days: days(s, "user_days", default.user_days),
        device_days: days(s, "device_days", default.device_days),
        inner_days: days(s, "inner_days", default.inner_days),
        outer_days: days(s, "outer_days", default.outer_days),
        refused_days: days(s, "refused_days", default.refused_days),
        record_days: days(s, "record_days", default.record_days),
    };
    AuditPolicy {
        enabled: s.flag(p, "enabled", true),
        outer: s.choice(p, "outer_addresses", &kinds).unwrap_or_default(),
        retention,
        min_free: s.number(p, "min_free_mib", 0..=1 << 20, 64) << 20,
    }
}

/// The gateway's rules for its audit file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditPolicy {
    pub enabled: bool,
    pub outer: OuterAddresses,
    pub retention: Retention,
    /// Room on the disk that is left to the store, bytes.
    pub min_free: u64,
}

/// Which outer addresses are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OuterAddresses {
    /// Address and port.
    #[default]
    Full,
    /// The /24 of an IPv4 address, the /48 of an IPv6 address.
    Truncated,
    None,
}

impl OuterAddresses {
    /// The part of an address that is recorded.
    pub fn of_address(self, address: IpAddr) -> Option<String> {
        match (self, address.to_canonical()) {
            (Self::None, _) => None,
            (Self::Full, address) => Some(address.to_string()),
            (Self::Truncated, IpAddr::V4(v4)) => {
                let [a, b, c, _] = v4.octets();
                Some(format!("{a}.{b}.{c}.0/24"))
            }
            (Self::Truncated, IpAddr::V6(v6)) => {
                let [a, b, c, ..] = v6.segments();
                Some(format!("{}/48", Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0)))
            }
        }
    }

    /// The part of an address that is recorded.
    pub fn of_socket(self, outer: SocketAddr) -> Option<String> {
        match self {
            Self::Full => Some(SocketAddr::new(outer.ip().to_canonical(), outer.port()).to_string()),
            _ => self.of_address(outer.ip()),
        }
    }
}

/// Times for which records are kept, in days; 0 is without an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub user_days: u32,
    pub device_days: u32,
    pub inner_days: u32,
    pub outer_days: u32,
    /// Refused logins, whatever user they named.
    pub refused_days: u32,
    /// Anything.
    pub record_days: u32,
}

impl Retention {
    pub const DEFAULT: Self = Self {
        user_days: 180,
        device_days: 180,
        inner_days: 180,
        outer_days: 90,
        refused_days: 30,
        record_days: 730,
    };
}
