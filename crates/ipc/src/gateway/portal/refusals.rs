//! Counts of what the portal has refused.
//!
//! INVARIANT: the names are those of this table, so a portal that was taken over makes no others.

use minicbor::{Decode, Encode};

/// Refusals of the portal itself since its last message, without a question to the auth process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct PortalRefusals {
    /// Connections beyond the rate of their network.
    #[n(0)]
    pub rate: u64,
    /// Connections for which there was no place, or that have lost theirs to another network.
    #[n(1)]
    pub place: u64,
    /// Forms that were not sent from a page of ours.
    #[n(2)]
    pub form: u64,
    /// Logins while too many were under way.
    #[n(3)]
    pub login: u64,
    /// Requests beyond the rate of their network.
    #[n(4)]
    pub request: u64,
}

impl PortalRefusals {
    /// Each by its name.
    pub fn named(self) -> [(&'static str, u64); 5] {
        let Self { rate, place, form, login, request } = self;
        [
            ("connection_rate", rate),
            ("connection_place", place),
            ("form", form),
            ("login_at_once", login),
            ("request_rate", request),
        ]
    }
}
