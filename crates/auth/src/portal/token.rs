//! Browsers' tokens, and what is kept by them.
//!
//! Invariants: of tokens only hashes are kept; a token is good from one IPv4 and one IPv6 network,
//! those of its login and of its first use by the other family, and used from elsewhere it is good
//! no longer.
//!
//! A browser with both families takes the faster one for each connection, so a token has to be good
//! from both. A thief elsewhere can be the first to use the other family; that costs nothing that a
//! thief in the victim's own network has not, and needs a victim with one family only.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use vpnd_ipc::gateway::portal::Token;
use vpnd_ipc::gateway::portal::visits::BrowserKind;
use vpnd_proto::admission::Source;
use vpnd_proto::time::Time;

pub(super) type TokenHash = [u8; 32];

pub(super) type ByToken<T> = HashMap<TokenHash, Kept<T>>;

/// Names a visit to its user and to what came of it, and is no secret.
pub(super) type VisitNumber = [u8; 16];

/// The state of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<T> {
    Here(T),
    /// It came from another network, and is good no longer.
    Elsewhere(T),
    /// Its time was over.
    Over(T),
    Nothing,
}

impl<T> Found<T> {
    pub(super) fn map<U>(self, map: impl FnOnce(T) -> U) -> Found<U> {
        match self {
            Self::Here(found) => Found::Here(map(found)),
            Self::Elsewhere(found) => Found::Elsewhere(map(found)),
            Self::Over(found) => Found::Over(map(found)),
            Self::Nothing => Found::Nothing,
        }
    }
}

/// The meaning of a token, and from where it is good.
#[derive(Clone, Copy)]
pub(super) struct Kept<T> {
    pub(super) content: T,
    /// By family.
    pub(super) networks: [Option<Source>; 2],
    pub(super) began: Time,
    /// Its age at that time, if it began at another gateway.
    pub(super) before: Duration,
    pub(super) used: Time,
    pub(super) number: VisitNumber,
    pub(super) from: IpAddr,
    pub(super) kind: BrowserKind,
}

impl<T: Copy> Kept<T> {
    pub(super) fn new(content: T, address: IpAddr, now: Time) -> Self {
        let (networks, number, kind) = ([None; 2], rand::random(), BrowserKind::default());
        let (began, before) = (now, Duration::ZERO);
        let mut kept = Self { content, networks, began, before, used: now, number, from: address, kind };
        kept.is_from(address);
        kept
    }

    /// Whether it is used from its network of this family, which is this one if it has none yet.
    fn is_from(&mut self, address: IpAddr) -> bool {
        // An IPv4 address or an IPv6 /64.
        let host = Source::from(address);
        let own = &mut self.networks[usize::from(address.to_canonical().is_ipv6())];
        *own.get_or_insert(host) == host
    }

    pub(super) fn age(&self, now: Time) -> Duration {
        now.since(self.began) + self.before
    }
}

pub(super) fn hash(token: &Token) -> TokenHash {
    Sha256::digest(*token.0).into()
}

/// Keeps this by a token that only its browser knows.
pub(super) fn add<T>(all: &mut ByToken<T>, kept: Kept<T>) -> Token {
    let token = Token(rand::random::<[u8; 32]>().into());
    all.insert(hash(&token), kept);
    token
}

/// Finds what a token stands for that is shown from this address; it goes unless it is good.
pub(super) fn find<T: Copy>(
    all: &mut ByToken<T>,
    token: &Token,
    address: IpAddr,
    is_on: impl Fn(&Kept<T>) -> bool,
) -> Found<T> {
    let hash = hash(token);
    let Some(kept) = all.get_mut(&hash) else { return Found::Nothing };
    let content = kept.content;
    let found = match (is_on(kept), kept.is_from(address)) {
        (true, true) => return Found::Here(content),
        (true, false) => Found::Elsewhere(content),
        (false, _) => Found::Over(content),
    };
    all.remove(&hash);
    found
}
