//! Messages of WireGuard's handshakes on their way to the control plane: from the socket of QUIC
//! where the kernel steers, and otherwise from the shards.
//!
//! INVARIANT: waiting messages are bounded in number and in length, and have a separate queue: a
//! flood of these messages costs other handshakes of WireGuard their place, and never a login of
//! QUIC.

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

/// The end at which messages go in.
#[derive(Clone, Debug)]
pub struct HandshakeQueue(mpsc::Sender<HandshakeDatagram>);

impl HandshakeQueue {
    /// A queue, and the end at which messages come out.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<HandshakeDatagram>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self(sender), receiver)
    }

    /// Takes a message; false if it was dropped, because it is too long or too many wait.
    pub fn push(&self, datagram: &[u8], from: Endpoint) -> bool {
        let mut bytes = [0; MAX_LEN];
        let Some(room) = bytes.get_mut(..datagram.len()) else { return false };
        room.copy_from_slice(datagram);
        self.0.try_send(HandshakeDatagram { from, len: datagram.len() as u8, bytes }).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_whole_and_too_many_or_too_long_ones_not_at_all() {
        let (queue, mut out) = HandshakeQueue::new();
        let from = Endpoint { remote: ([192, 0, 2, 1], 51_820).into(), local: None };
        assert!(!queue.push(&[1; MAX_LEN + 1], from));
        let taken =
            (0..2 * QUEUE).filter(|number| queue.push(&vec![1; number % (MAX_LEN + 1)], from)).count();
        assert_eq!(taken, QUEUE);
        for number in 0..QUEUE {
            let message = out.try_recv().expect("it was taken");
            assert_eq!((message.bytes(), message.from), (&vec![1; number % (MAX_LEN + 1)][..], from));
        }
        assert!(out.try_recv().is_err());
    }
}
