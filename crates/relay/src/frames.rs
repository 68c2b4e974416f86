//! Datagrams in a stream: a length of two bytes, the first of which is the greater, and as many
//! bytes.

/// The longest datagram that a length can give.
pub const MAX_DATAGRAM: usize = u16::MAX as usize;
const LENGTH: usize = 2;
/// Room to begin with: most connections are idle.
const LEAST: usize = 4 << 10;
/// Room that stays while nothing waits in it: what one record of TLS fills.
const KEPT: usize = 32 << 10;
const MOST: usize = 2 * (LENGTH + MAX_DATAGRAM);

/// Appends a datagram in the form of the stream.
///
/// # Panics
/// If it is longer than [`MAX_DATAGRAM`].
pub fn put(stream: &mut Vec<u8>, datagram: &[u8]) {
    let len = u16::try_from(datagram.len()).expect("a datagram is no longer than 65,535 bytes");
    stream.extend_from_slice(&len.to_be_bytes());
    stream.extend_from_slice(datagram);
}

/// Bytes that were read of a stream and are no whole datagram yet. At most [`MOST`] bytes are kept.
pub(crate) struct Frames {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Frames {
    /// `before` was read already.
    pub(crate) fn new(before: &[u8]) -> Self {
        let mut buffer = before.to_vec();
        let end = buffer.len();
        buffer.resize(end.max(LEAST), 0);
        Self { buffer, start: 0, end }
    }

    /// The next whole datagram; empty ones are passed over.
    pub(crate) fn next(&mut self) -> Option<&[u8]> {
        loop {
            let (start, end) = self.first()?;
            self.start = end;
            if start < end {
                return Some(&self.buffer[start..end]);
            }
        }
    }

    /// Whether a datagram has begun.
    pub(crate) fn is_partial(&self) -> bool {
        self.start < self.end
    }

    /// Where more is read to; never empty once all whole datagrams were taken.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        let is_full = self.end == self.buffer.len();
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.end == 0 && self.buffer.len() > KEPT {
            self.buffer.truncate(KEPT);
            self.buffer.shrink_to_fit();
        }
        if is_full && self.buffer.len() < MOST {
            self.buffer.resize((2 * self.buffer.len()).min(MOST), 0);
        }
        &mut self.buffer[self.end..]
    }

    /// This many bytes were read to where there was space.
    pub(crate) fn filled(&mut self, read: usize) {
        self.end += read;
    }

    /// Where the first datagram is, if it is whole.
    fn first(&self) -> Option<(usize, usize)> {
        let (length, rest) = self.buffer[self.start..self.end].split_first_chunk::<LENGTH>()?;
        let len = usize::from(u16::from_be_bytes(*length));
        let start = self.start + LENGTH;
        (len <= rest.len()).then_some((start, start + len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_datagram_leaves_no_room_behind() {
        let mut stream = Vec::new();
        put(&mut stream, &[7; MAX_DATAGRAM]);
        let mut frames = Frames::new(&[]);
        let mut left = &stream[..];
        while !left.is_empty() {
            let space = frames.space();
            let len = space.len().min(left.len());
            space[..len].copy_from_slice(&left[..len]);
            frames.filled(len);
            left = &left[len..];
        }
        assert!(frames.buffer.len() > KEPT);
        assert_eq!(frames.next().map(<[u8]>::len), Some(MAX_DATAGRAM));
        assert!(!frames.space().is_empty() && frames.buffer.capacity() <= KEPT);
    }

    #[test]
    fn datagrams_survive_the_stream_in_any_pieces() {
        let lengths = [1, 2, 1_400, 0, 65_535, 3, 4_094, 4_095, 65_535, 65_534, 7];
        let datagrams: Vec<Vec<u8>> =
            lengths.iter().map(|len| (0..*len).map(|at| (at * 31 + len) as u8).collect()).collect();
        let mut stream = Vec::new();
        datagrams.iter().for_each(|datagram| put(&mut stream, datagram));
        let sent: Vec<&[u8]> = datagrams.iter().map(|d| &d[..]).filter(|d| !d.is_empty()).collect();
        for piece in [1, 2, 3, 1_401, 4_096, 16_384, 70_000, stream.len()] {
            let before = piece.min(5);
            let mut frames = Frames::new(&stream[..before]);
            let (mut left, mut out) = (&stream[before..], Vec::new());
            loop {
                while let Some(datagram) = frames.next() {
                    out.push(datagram.to_vec());
                }
                if left.is_empty() {
                    break;
                }
                let space = frames.space();
                let len = space.len().min(piece).min(left.len());
                assert!(len > 0);
                space[..len].copy_from_slice(&left[..len]);
                frames.filled(len);
                left = &left[len..];
                assert!(frames.buffer.len() <= MOST);
            }
            assert!(!frames.is_partial());
            assert_eq!(out, sent, "{piece}");
        }
    }
}
