//! The first look at a message of a handshake, where it is received: its form and its first MAC.
//!
//! The public key suffices for that: a sender who does not know it gets no message further. The
//! state machine of the peers checks the MAC again, for it trusts no caller.

use std::sync::atomic::{AtomicU64, Ordering};

use vpnd_shard::handshake_queue::Look;
use vpnd_wireguard::PublicKey;
use vpnd_wireguard::mac::{HandshakeMessage as _, Mac1Key};
use vpnd_wireguard::message::Message;

/// Lets messages pass that are for one key, and counts the others.
#[derive(Debug)]
pub(super) struct FirstLook {
    key: Mac1Key,
    malformed: AtomicU64,
    wrong_mac: AtomicU64,
}

impl FirstLook {
    /// For messages to the key `own`.
    pub(super) fn new(own: PublicKey) -> Self {
        Self { key: Mac1Key::new(own), malformed: AtomicU64::new(0), wrong_mac: AtomicU64::new(0) }
    }

    /// Looks at a message.
    pub(super) fn look(&self, datagram: &[u8]) -> Look {
        let is_for_us = match Message::parse(datagram) {
            Ok(Message::Initiation(message)) => message.is_for(&self.key),
            Ok(Message::Response(message)) => message.is_for(&self.key),
            Ok(Message::CookieReply(_)) => return Look::Unproved,
            Ok(Message::Transport(_)) | Err(_) => {
                self.malformed.fetch_add(1, Ordering::Relaxed);
                return Look::NotForUs;
            }
        };
        if is_for_us {
            return Look::ForUs;
        }
        self.wrong_mac.fetch_add(1, Ordering::Relaxed);
        Look::NotForUs
    }

    /// Messages that did not pass, as metrics name them.
    pub(super) fn counts(&self) -> [(&'static str, u64); 2] {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [("malformed", count(&self.malformed)), ("wrong_mac", count(&self.wrong_mac))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_knows_the_public_key_or_answers_with_a_cookie_passes() {
        let own = PublicKey([9; 32]);
        let first_look = FirstLook::new(own);
        let of_kind = |kind: u8, len: usize| [&[kind, 0, 0, 0][..], &vec![0; len - 4]].concat();
        let stamped = |key: PublicKey| {
            let bytes = of_kind(1, 148);
            let Ok(Message::Initiation(message)) = Message::parse(&bytes) else {
                panic!("148 bytes of type 1")
            };
            let mut message = *message;
            message.stamp(&Mac1Key::new(key), None);
            let (covered, mac1, mac2) = message.parts();
            [covered, mac1, mac2].concat()
        };
        assert_eq!(first_look.look(&stamped(own)), Look::ForUs);
        assert_eq!(first_look.look(&stamped(PublicKey([8; 32]))), Look::NotForUs);
        assert_eq!(first_look.look(&of_kind(2, 92)), Look::NotForUs);
        assert_eq!(first_look.look(&of_kind(3, 64)), Look::Unproved);
        for malformed in [of_kind(1, 147), of_kind(2, 93), of_kind(3, 63), of_kind(4, 64)] {
            assert_eq!(first_look.look(&malformed), Look::NotForUs);
        }
        assert_eq!(first_look.counts(), [("malformed", 4), ("wrong_mac", 2)]);
    }
}
