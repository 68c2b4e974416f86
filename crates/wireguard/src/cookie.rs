//! Cookies: proofs that a sender receives at the address that it sends from (§5.3, §5.4.7).
//!
//! [`CookieMaker`] is a receiver under load: it keeps nothing for those who ask, since a cookie is
//! a MAC over their address *and port*, so that clients behind one NAT do not share one.
//! [`CookieJar`] is a sender that was asked for a proof.

use core::time::Duration;
use std::net::{IpAddr, SocketAddr};

use chacha20poly1305::aead::AeadInOut as _;
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305};
use vpnd_crypto::Secret;
use vpnd_proto::session::{Random, random_bytes};
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;

use crate::hash::{MAC_LEN, hash, mac};
use crate::key::PublicKey;
use crate::mac::{HandshakeMessage, Mac1Key};
use crate::message::CookieReply;

const LABEL: &[u8] = b"cookie--";
/// A secret makes cookies for this time; its cookies are accepted as long again.
const SECRET_LIFETIME: Duration = Duration::from_secs(120);
/// A sender shows a cookie for this time: less than a receiver accepts it.
const COOKIE_LIFETIME: Duration = Duration::from_secs(115);

/// A proof of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie(pub(crate) [u8; MAC_LEN]);

/// Seals cookies on their way, so that only who has seen the message that is answered can read
/// them.
struct Seal(XChaCha20Poly1305);

impl Seal {
    fn new(receiver: PublicKey) -> Self {
        Self(XChaCha20Poly1305::new(&hash(&[LABEL, &receiver.0]).into()))
    }
}

/// Gives cookies to those who ask.
pub struct CookieMaker {
    seal: Seal,
    current: Secret<32>,
    previous: Option<Secret<32>>,
    since: Time,
}

impl CookieMaker {
    /// For messages to `own`.
    #[must_use]
    pub fn new(now: Time, own: PublicKey, random: &mut Random) -> Self {
        let current = Secret::new(random_bytes(random));
        Self { seal: Seal::new(own), current, previous: None, since: now }
    }

    /// The answer to a message from `from` without a cookie.
    pub fn reply(
        &mut self,
        now: Time,
        from: SocketAddr,
        sender: Index,
        message: &impl HandshakeMessage,
        random: &mut Random,
    ) -> CookieReply {
        self.change_secret(now, random);
        let nonce = random_bytes::<24>(random);
        let mut sealed = [0; MAC_LEN + 16];
        let (text, tag) = sealed.split_at_mut(MAC_LEN);
        text.copy_from_slice(&cookie(&self.current, from).0);
        let (_, mac1, _) = message.parts();
        let sealed_tag = self.seal.0.encrypt_inout_detached(&nonce.into(), mac1, text.into());
        tag.copy_from_slice(&sealed_tag.expect("a cookie is far below the cipher's limit"));
        CookieReply::new(sender, nonce, sealed)
    }

    /// Whether the message shows a cookie that was given to `from` a short time ago.
    pub fn is_proof(
        &mut self,
        now: Time,
        from: SocketAddr,
        message: &impl HandshakeMessage,
        random: &mut Random,
    ) -> bool {
        self.change_secret(now, random);
        let secrets = [Some(&self.current), self.previous.as_ref()];
        secrets.into_iter().flatten().any(|secret| message.shows(&cookie(secret, from)))
    }

    fn change_secret(&mut self, now: Time, random: &mut Random) {
        let age = now.since(self.since);
        if age < SECRET_LIFETIME {
            return;
        }
        let old = core::mem::replace(&mut self.current, Secret::new(random_bytes(random)));
        self.previous = (age < 2 * SECRET_LIFETIME).then_some(old);
        self.since = now;
    }
}

impl std::fmt::Debug for CookieMaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CookieMaker").field("since", &self.since).finish_non_exhaustive()
    }
}

fn cookie(secret: &Secret<32>, from: SocketAddr) -> Cookie {
    let port = from.port().to_be_bytes();
    Cookie(match from.ip().to_canonical() {
        IpAddr::V4(ip) => mac(secret.expose(), &[&ip.octets(), &port]),
        IpAddr::V6(ip) => mac(secret.expose(), &[&ip.octets(), &port]),
    })
}

/// A sender's last message to a peer, and that peer's last cookie.
#[derive(Debug, Default)]
pub struct CookieJar {
    /// The first MAC of the last message, until it is answered: each message gets one cookie at
    /// most.
    last_mac1: Option<[u8; MAC_LEN]>,
    cookie: Option<(Cookie, Time)>,
}

impl CookieJar {
    /// Writes both MACs of a message to the owner of `key`.
    pub fn stamp(&mut self, now: Time, key: &Mac1Key, message: &mut impl HandshakeMessage) {
        let cookie = self.cookie.filter(|(_, since)| now.since(*since) < COOKIE_LIFETIME);
        message.stamp(key, cookie.as_ref().map(|(cookie, _)| cookie));
        self.last_mac1 = Some(*message.parts().1);
    }

    /// Keeps the cookie of a reply from `peer`, for the next message. False if the reply is not
    /// authentic or answers none.
    pub fn keep(&mut self, now: Time, peer: PublicKey, reply: &CookieReply) -> bool {
        let Some(mac1) = self.last_mac1 else { return false };
        let mut text = reply.sealed_cookie;
        let (text, tag) = text.split_at_mut(MAC_LEN);
        let tag: [u8; 16] = (&*tag).try_into().expect("a sealed cookie ends with a tag");
        let opened = Seal::new(peer).0.decrypt_inout_detached(
            &reply.nonce.into(),
            &mac1,
            (&mut *text).into(),
            &tag.into(),
        );
        if opened.is_err() {
            return false;
        }
        self.last_mac1 = None;
        self.cookie = (&*text).try_into().ok().map(|bytes| (Cookie(bytes), now));
        true
    }
}

#[cfg(test)]
mod tests;
