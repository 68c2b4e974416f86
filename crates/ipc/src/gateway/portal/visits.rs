//! Messages about the browsers in which the user who looks is logged in.
//!
//! INVARIANT: a visit is named by a number that is no secret: the token of another browser is in no
//! message.

use std::net::IpAddr;

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};

use super::Browser;

/// Visits of a user, at most.
pub const MAX_VISITS: usize = 8;

/// A program that shows pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Program {
    #[default]
    #[n(0)]
    Other,
    #[n(1)]
    Firefox,
    #[n(2)]
    Chrome,
    #[n(3)]
    Edge,
    #[n(4)]
    Safari,
}

/// A system on which it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum System {
    #[default]
    #[n(0)]
    Other,
    #[n(1)]
    Windows,
    #[n(2)]
    MacOs,
    #[n(3)]
    Linux,
    #[n(4)]
    Android,
    #[n(5)]
    Ios,
}

/// Which browser one says it is: for its user to recognise it, and for nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct BrowserKind {
    #[n(0)]
    pub program: Program,
    #[n(1)]
    pub system: System,
}

/// A visit of the user who looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OwnVisit {
    #[n(0)]
    pub number: ByteArray<16>,
    /// Whether it is that of the browser that asks.
    #[n(1)]
    pub is_this: bool,
    #[n(2)]
    pub kind: BrowserKind,
    /// Seconds since the login, and since it was used last.
    #[n(3)]
    pub age_s: u64,
    #[n(4)]
    pub unused_s: u64,
    /// From where it was used last.
    #[n(5)]
    pub from: IpAddr,
}

/// End this visit of the browser's user, or all but that of the browser.
#[derive(Debug, Encode, Decode)]
pub struct EndVisit {
    #[n(0)]
    pub browser: Browser,
    #[n(1)]
    pub visit: Option<ByteArray<16>>,
}
