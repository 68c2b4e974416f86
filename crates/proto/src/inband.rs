//! Messages inside the data path (PROTOCOL §9): sealed like packets, never handed to a TUN device.

/// First byte of a probe.
const PROBE: u8 = 0x10;
/// First byte of the reply to one.
const REPLY: u8 = 0x11;
/// Bytes of a probe without padding.
pub const PROBE_MIN: usize = 4;
/// Bytes of a reply without padding.
const REPLY_LEN: usize = 6;
/// Bytes of a probe of the path without padding.
pub const PATH_PROBE_MIN: usize = 6;
/// First byte of the request for a probe of the path.
const PATH_CHECK: u8 = 0x12;
/// Second byte of a probe of the path, and of the reply to one: both are padded.
const BOTH_WAYS: u8 = 1;

/// An in-band message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inband {
    /// A request for a reply.
    Probe {
        /// Number that the reply repeats.
        id: u16,
        /// Length of the plaintext, padding included, in bytes.
        size: u16,
    },
    /// The reply to a probe.
    Reply {
        /// The probe's number.
        id: u16,
        /// Length of the probe's plaintext in bytes.
        size: u16,
    },
    /// A probe whose reply is as long as itself, so that it asks for both directions of the path.
    PathProbe {
        /// Number that the reply repeats.
        id: u16,
        /// Length of the plaintext, padding included, in bytes.
        size: u16,
        /// The largest datagram that the sender of the probe has found the path to carry, if it has
        /// found one.
        known: Option<u16>,
    },
    /// The reply to one.
    PathReply {
        /// The probe's number.
        id: u16,
        /// Length of the probe's plaintext, and of this one, in bytes.
        size: u16,
    },
    /// "Large datagrams go to you: probe the path."
    PathCheck,
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
            [PROBE, BOTH_WAYS, low, high, known_low, known_high, ..] => Some(Self::PathProbe {
                id: u16::from_le_bytes([low, high]),
                size: u16::try_from(plaintext.len()).ok()?,
                known: Some(u16::from_le_bytes([known_low, known_high])).filter(|known| *known != 0),
            }),
            [REPLY, BOTH_WAYS, low, high, size_low, size_high, ..] => {
                let size = u16::from_le_bytes([size_low, size_high]);
                // One that was cut on its way would show a larger size than the path carries.
                (usize::from(size) == plaintext.len())
                    .then_some(Self::PathReply { id: u16::from_le_bytes([low, high]), size })
            }
            [PATH_CHECK, 0] => Some(Self::PathCheck),
            _ => None,
        }
    }

    /// Whether it is only for peers with the feature path-size (PROTOCOL §9.2).
    #[must_use]
    pub const fn is_about_path(&self) -> bool {
        match self {
            Self::PathProbe { .. } | Self::PathReply { .. } | Self::PathCheck => true,
            Self::Probe { .. } | Self::Reply { .. } => false,
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
            Self::PathProbe { id, size, known } => write_padded(out, PROBE, id, size, known.unwrap_or(0)),
            Self::PathReply { id, size } => write_padded(out, REPLY, id, size, size),
            Self::PathCheck => {
                out.get_mut(..2)?.copy_from_slice(&[PATH_CHECK, 0]);
                Some(2)
            }
        }
    }
}

/// Writes a probe of the path, or the reply to one, in `size` bytes.
fn write_padded(out: &mut [u8], kind: u8, id: u16, size: u16, value: u16) -> Option<usize> {
    let len = usize::from(size).max(PATH_PROBE_MIN);
    let out = out.get_mut(..len)?;
    out.fill(0);
    out[..2].copy_from_slice(&[kind, BOTH_WAYS]);
    out[2..4].copy_from_slice(&id.to_le_bytes());
    out[4..6].copy_from_slice(&value.to_le_bytes());
    Some(len)
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
            Inband::PathProbe { id: 7, size: 40, known: Some(1392) },
            Inband::PathProbe { id: 7, size: 6, known: None },
            Inband::PathReply { id: 7, size: 40 },
            Inband::PathCheck,
        ] {
            let len = message.write(&mut out).expect("there is room");
            assert_eq!(Inband::parse(&out[..len]), Some(message));
        }
    }

    #[test]
    fn unknown_and_cut_messages_are_refused() {
        for bytes in [&[0x13u8, 0, 0, 0][..], &[0x10, 1, 0, 0], &[0x10, 0, 0], &[0x11, 0, 0, 0, 0], &[0x10]] {
            assert_eq!(Inband::parse(bytes), None);
        }
        for bytes in [&[0x10u8, 1, 0, 0, 0][..], &[0x11, 1, 0, 0, 7, 0], &[0x12, 0, 0], &[0x12]] {
            assert_eq!(Inband::parse(bytes), None, "a message about the path");
        }
        assert_eq!(Inband::PathProbe { id: 1, size: 10, known: None }.write(&mut [0; 9]), None);
        assert_eq!(Inband::Probe { id: 1, size: 10 }.write(&mut [0; 9]), None);
        assert_eq!(Inband::Reply { id: 1, size: 10 }.write(&mut [0; 5]), None);
    }
}
