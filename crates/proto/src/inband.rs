//! Messages inside the data path (PROTOCOL §9): sealed like packets, never handed to a TUN device.

use crate::control::{FEATURE_BATCHES, FEATURE_PATH_SIZE};

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

/// Second byte of a probe that is answered by a batch.
const BATCH: u8 = 2;
/// Second byte of the report that batches are lost; the first is that of a path check.
const LOST: u8 = 1;
/// Datagrams of one burst in the test of batches (PROTOCOL §9.4).
pub const BATCH_LEN: u16 = 8;
/// The longest plaintext in that test: a batch fits into any buffer.
pub const BATCH_SIZE_MAX: u16 = 1_500;

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
        /// The largest datagram that the probe's sender has found the path to carry, if any.
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
    /// A probe that [`BATCH_LEN`] path replies answer, numbered from its own on, in one batch.
    BatchProbe {
        /// The number of the first reply.
        id: u16,
        /// Length of the plaintext, and of each reply's, in bytes.
        size: u16,
    },
    /// "Batches from you are lost on the way: send single datagrams."
    BatchesLost,
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
            [PROBE, BATCH, low, high, 0, 0, ..] => Some(Self::BatchProbe {
                id: u16::from_le_bytes([low, high]),
                size: u16::try_from(plaintext.len()).ok().filter(|size| *size <= BATCH_SIZE_MAX)?,
            }),
            [PATH_CHECK, LOST] => Some(Self::BatchesLost),
            _ => None,
        }
    }

    /// The feature that both ends need for it; 0 if none.
    #[must_use]
    pub const fn feature(&self) -> u32 {
        match self {
            Self::PathProbe { .. } | Self::PathReply { .. } | Self::PathCheck => FEATURE_PATH_SIZE,
            Self::BatchProbe { .. } | Self::BatchesLost => FEATURE_BATCHES,
            Self::Probe { .. } | Self::Reply { .. } => 0,
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
            Self::PathProbe { id, size, known } => {
                write_padded(out, [PROBE, BOTH_WAYS], id, size, known.unwrap_or(0))
            }
            Self::PathReply { id, size } => write_padded(out, [REPLY, BOTH_WAYS], id, size, size),
            Self::BatchProbe { id, size } => write_padded(out, [PROBE, BATCH], id, size, 0),
            Self::PathCheck => write_short(out, [PATH_CHECK, 0]),
            Self::BatchesLost => write_short(out, [PATH_CHECK, LOST]),
        }
    }
}

/// Writes a probe of the path or of a batch, or a reply to one, in `size` bytes.
fn write_padded(out: &mut [u8], kind: [u8; 2], id: u16, size: u16, value: u16) -> Option<usize> {
    let len = usize::from(size).max(PATH_PROBE_MIN);
    let out = out.get_mut(..len)?;
    out.fill(0);
    out[..2].copy_from_slice(&kind);
    out[2..4].copy_from_slice(&id.to_le_bytes());
    out[4..6].copy_from_slice(&value.to_le_bytes());
    Some(len)
}

fn write_short(out: &mut [u8], message: [u8; 2]) -> Option<usize> {
    out.get_mut(..2)?.copy_from_slice(&message);
    Some(2)
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
            Inband::BatchProbe { id: 0xA008, size: 40 },
            Inband::BatchesLost,
        ] {
            let len = message.write(&mut out).expect("there is room");
            assert_eq!(Inband::parse(&out[..len]), Some(message));
        }
    }

    #[test]
    fn unknown_and_cut_messages_are_refused() {
        let mut long = [0; BATCH_SIZE_MAX as usize + 1];
        long[..2].copy_from_slice(&[0x10, 2]);
        assert_eq!(Inband::parse(&long), None, "eight replies as long may not fit a buffer");
        assert!(Inband::parse(&long[..long.len() - 1]).is_some());
        for bytes in [&[0x10u8, 2, 0, 0, 0][..], &[0x10, 2, 0, 0, 0, 1], &[0x12, 1, 0], &[0x12, 2]] {
            assert_eq!(Inband::parse(bytes), None, "a message about batches");
        }
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
