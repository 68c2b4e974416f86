//! Messages of WireGuard's handshakes on their way to the control plane: from the socket of QUIC
//! where the kernel steers, and otherwise from the shards.
//!
//! INVARIANT: waiting messages are bounded in number and in length, and have a separate queue: a
//! flood of these messages costs other handshakes of WireGuard their place, and never a login of
//! QUIC. Only those who know the gateway's public key can send such a flood: what does not show
//! that is dropped here. Cookie replies can't show it, and have half of the places.

use std::fmt;
use std::sync::Arc;

use tokio::sync::mpsc;
use vpnd_proto::plane::Endpoint;

/// Messages that wait at most. Peers send theirs again.
const QUEUE: usize = 512;
/// The longest message of a handshake, in bytes.
const MAX_LEN: usize = 148;

/// A message of a handshake.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeDatagram {
    /// Where it came from.
    pub from: Endpoint,
    len: u8,
    bytes: [u8; MAX_LEN],
}

impl HandshakeDatagram {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

/// Result of the first look at a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Its sender knows the gateway's public key.
    ForUs,
    /// It may be anyone's.
    Unproved,
    /// It is to be dropped, and has been counted.
    NotForUs,
}

/// Looks at a message before it takes a place.
pub type FirstLook = Arc<dyn Fn(&[u8]) -> Look + Send + Sync>;

/// The end at which messages go in.
#[derive(Clone)]
pub struct HandshakeQueue {
    sender: mpsc::Sender<HandshakeDatagram>,
    look: FirstLook,
}

impl HandshakeQueue {
    /// A queue, and the end at which messages come out.
    #[must_use]
    pub fn new(look: FirstLook) -> (Self, mpsc::Receiver<HandshakeDatagram>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self { sender, look }, receiver)
    }

    /// Takes a message that is for us; false if it was dropped, because it is too long or too many
    /// wait.
    pub fn push(&self, datagram: &[u8], from: Endpoint) -> bool {
        let needed = match (self.look)(datagram) {
            Look::ForUs => 1,
            Look::Unproved => QUEUE / 2 + 1,
            Look::NotForUs => return true,
        };
        let mut bytes = [0; MAX_LEN];
        let Some(room) = bytes.get_mut(..datagram.len()) else { return false };
        if self.sender.capacity() < needed {
            return false;
        }
        room.copy_from_slice(datagram);
        self.sender.try_send(HandshakeDatagram { from, len: datagram.len() as u8, bytes }).is_ok()
    }
}

impl fmt::Debug for HandshakeQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandshakeQueue").field("free", &self.sender.capacity()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use super::*;

    const FROM: Endpoint =
        Endpoint { remote: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 51_820), local: None };

    /// A queue that tells what a message is by its first byte.
    fn queue() -> (HandshakeQueue, mpsc::Receiver<HandshakeDatagram>) {
        HandshakeQueue::new(Arc::new(|datagram| match datagram.first() {
            Some(3) => Look::Unproved,
            Some(9) => Look::NotForUs,
            _ => Look::ForUs,
        }))
    }

    #[test]
    fn queued_handshakes_stay_whole_and_excess_ones_are_dropped() {
        let (queue, mut out) = queue();
        assert!(!queue.push(&[1; MAX_LEN + 1], FROM));
        let taken =
            (0..2 * QUEUE).filter(|number| queue.push(&vec![1; number % (MAX_LEN + 1)], FROM)).count();
        assert_eq!(taken, QUEUE);
        for number in 0..QUEUE {
            let message = out.try_recv().expect("it was taken");
            assert_eq!((message.bytes(), message.from), (&vec![1; number % (MAX_LEN + 1)][..], FROM));
        }
        assert!(out.try_recv().is_err());
    }

    #[test]
    fn who_does_not_know_the_public_key_takes_no_place() {
        let (queue, mut out) = queue();
        assert!((0..2 * QUEUE).all(|_| queue.push(&[9; 60], FROM)), "dropped, and counted elsewhere");
        assert!(out.try_recv().is_err());
        let taken = (0..2 * QUEUE).filter(|_| queue.push(&[3; 64], FROM)).count();
        assert_eq!(taken, QUEUE / 2);
        let taken = (0..2 * QUEUE).filter(|_| queue.push(&[1; 148], FROM)).count();
        assert_eq!(taken, QUEUE / 2, "the other half is for those who do");
    }
}
