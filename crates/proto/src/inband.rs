//! Messages inside the data path (PROTOCOL §9): sealed like packets, never handed to a TUN device.

/// First byte of a probe.
const PROBE: u8 = 0x10;
/// First byte of the reply to one.
const REPLY: u8 = 0x11;
/// Bytes of a probe without padding.
pub const PROBE_MIN: usize = 4;
/// Bytes of a reply.
const REPLY_LEN: usize = 6;

/// An in-band message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inband {
    /// "Tell me that this arrived."
    Probe {
        /// Number that the reply repeats.
        id: u16,
        /// Length of the plaintext, padding included, in bytes.
        size: u16,
    },
    /// "It arrived."
    Reply {
        /// The probe's number.
        id: u16,
        /// Length of the probe's plaintext in bytes.
        size: u16,
    },
}

impl Inband {
    /// Reads a message; `None` if it is of an unknown kind or malformed.
    #[must_use]
    pub fn parse(plaintext: &[u8]) -> Option<Self> {
        match *plaintext {
            [PROBE, 0, low, high, ..] => Some(Self::Probe {
                id: u16::from_le_bytes([low, high]),
                size: u16::try_from(plaintext.len()).ok()?,
            }),
            [REPLY, 0, low, high, size_low, size_high] => Some(Self::Reply {
                id: u16::from_le_bytes([low, high]),
                size: u16::from_le_bytes([size_low, size_high]),
            }),
            _ => None,
        }
    }

    /// Writes the message and returns its length; `None` if `out` has no room for it.
    #[must_use]
    pub fn write(self, out: &mut [u8]) -> Option<usize> {
        match self {
            Self::Probe { id, size } => {
                let len = usize::from(size).max(PROBE_MIN);
                let out = out.get_mut(..len)?;
                out.fill(0);
                out[0] = PROBE;
                out[2..4].copy_from_slice(&id.to_le_bytes());
                Some(len)
            }
            Self::Reply { id, size } => {
                let out = out.get_mut(..REPLY_LEN)?;
                out[..2].copy_from_slice(&[REPLY, 0]);
                out[2..4].copy_from_slice(&id.to_le_bytes());
                out[4..6].copy_from_slice(&size.to_le_bytes());
                Some(REPLY_LEN)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire() {
        let mut out = [0xFF; 64];
        for message in [
            Inband::Probe { id: 0x1234, size: 40 },
            Inband::Probe { id: 0, size: 4 },
            Inband::Reply { id: 0xFFFF, size: 1400 },
        ] {
            let len = message.write(&mut out).expect("there is room");
            assert_eq!(Inband::parse(&out[..len]), Some(message));
        }
    }

    #[test]
    fn unknown_and_cut_messages_are_refused() {
        for bytes in [&[0x12u8, 0, 0, 0][..], &[0x10, 1, 0, 0], &[0x10, 0, 0], &[0x11, 0, 0, 0, 0], &[0x10]] {
            assert_eq!(Inband::parse(bytes), None);
        }
        assert_eq!(Inband::Probe { id: 1, size: 10 }.write(&mut [0; 9]), None);
        assert_eq!(Inband::Reply { id: 1, size: 10 }.write(&mut [0; 5]), None);
    }
}
