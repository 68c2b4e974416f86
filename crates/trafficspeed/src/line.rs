//! Lines over a pipe or a connection: bounded, and authenticated where a stranger could reach them.
//!
//! INVARIANT: no input makes a reader hold more than [`MAX_LINE_BYTES`] plus the authentication
//! code.

use std::io::{self, BufRead, Write};

use hmac::{Hmac, KeyInit, Mac};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::Sha256;
use zeroize::Zeroizing;

/// Longest line either side accepts, in bytes.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// Why a line could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side sent more than a line may hold.
    #[error("a line longer than {MAX_LINE_BYTES} bytes")]
    TooLong,
    /// The line's authentication code is wrong.
    #[error("a line that is not from the holder of the token")]
    NotAuthentic,
    /// The line is no message.
    #[error("a line that is no message: {0}")]
    Malformed(#[from] serde_json::Error),
}

pub struct LineWriter<W> {
    inner: W,
    key: Option<LineKey>,
}

impl<W: Write> LineWriter<W> {
    /// Lines to `inner`, authenticated if there is a key.
    pub fn new(inner: W, key: Option<LineKey>) -> Self {
        Self { inner, key }
    }

    /// Writes one message and flushes it.
    pub fn write(&mut self, message: &impl Serialize) -> Result<(), LineError> {
        let mut line = serde_json::to_vec(message)?;
        if line.len() > MAX_LINE_BYTES {
            return Err(LineError::TooLong);
        }
        if let Some(key) = &mut self.key {
            let code = key.code(&line);
            line.splice(0..0, code.into_bytes());
        }
        line.push(b'\n');
        self.inner.write_all(&line)?;
        self.inner.flush()?;
        Ok(())
    }
}

pub struct LineReader<R> {
    inner: R,
    key: Option<LineKey>,
}

impl<R: BufRead> LineReader<R> {
    /// Lines from `inner`, whose authentication is checked if there is a key.
    pub fn new(inner: R, key: Option<LineKey>) -> Self {
        Self { inner, key }
    }

    /// The next message; `None` when the other side has closed.
    ///
    /// # Errors
    /// Any of [`LineError`]; the connection is then of no more use.
    pub fn read<M: DeserializeOwned>(&mut self) -> Result<Option<M>, LineError> {
        let Some(line) = read_bounded(&mut self.inner, MAX_LINE_BYTES + LineKey::CODE_CHARS)? else {
            return Ok(None);
        };
        let body = match &mut self.key {
            None => &line[..],
            Some(key) => {
                let (code, body) =
                    line.split_at_checked(LineKey::CODE_CHARS).ok_or(LineError::NotAuthentic)?;
                if !key.verify(code, body) {
                    return Err(LineError::NotAuthentic);
                }
                body
            }
        };
        Ok(Some(serde_json::from_slice(body)?))
    }
}

/// The key of the lines of one direction of one connection.
pub struct LineKey {
    key: Zeroizing<[u8; 32]>,
    number: u64,
}

impl LineKey {
    /// Hexadecimal characters of a code.
    pub const CODE_CHARS: usize = 64;

    /// Starts with the first line.
    pub fn new(key: Zeroizing<[u8; 32]>) -> Self {
        Self { key, number: 0 }
    }

    /// The code of the next line.
    pub fn code(&mut self, line: &[u8]) -> String {
        hex(&self.mac(line).finalize().into_bytes())
    }

    /// Whether `code` is that of the next line; constant time in the code.
    pub fn verify(&mut self, code: &[u8], line: &[u8]) -> bool {
        let mac = self.mac(line);
        unhex(code).is_some_and(|code| mac.verify_slice(&code).is_ok())
    }

    fn mac(&mut self, line: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&*self.key).expect("HMAC takes keys of any length");
        mac.update(&self.number.to_be_bytes());
        mac.update(line);
        self.number += 1;
        mac
    }
}

/// One line without its end, or `None` at the end of the input.
pub fn read_bounded(input: &mut impl BufRead, limit: usize) -> Result<Option<Vec<u8>>, LineError> {
    let mut line = Vec::new();
    loop {
        let chunk = match input.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        if chunk.is_empty() {
            // A line without its end was cut off: the other side is gone.
            return Ok(None);
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(chunk.len());
        if line.len() + taken > limit {
            return Err(LineError::TooLong);
        }
        line.extend_from_slice(&chunk[..taken]);
        let used = end.map_or(chunk.len(), |at| at + 1);
        input.consume(used);
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

/// Bytes as lower-case hexadecimal text.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of hexadecimal text; `None` if it is not that.
pub fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let nibble = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(nibble(*high)? << 4 | nibble(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Command {
        Clock,
        Stop,
    }

    fn keys() -> (LineKey, LineKey) {
        (LineKey::new(Zeroizing::new([1; 32])), LineKey::new(Zeroizing::new([1; 32])))
    }

    #[test]
    fn messages_arrive_as_written_with_and_without_authentication() {
        let (write_key, read_key) = keys();
        for (wk, rk) in [(None, None), (Some(write_key), Some(read_key))] {
            let mut bytes = Vec::new();
            let mut writer = LineWriter::new(&mut bytes, wk);
            writer.write(&Command::Clock).unwrap();
            writer.write(&Command::Stop).unwrap();
            let mut reader = LineReader::new(&bytes[..], rk);
            assert_eq!(reader.read::<Command>().unwrap(), Some(Command::Clock));
            assert_eq!(reader.read::<Command>().unwrap(), Some(Command::Stop));
            assert_eq!(reader.read::<Command>().unwrap(), None);
        }
    }

    #[test]
    fn altered_repeated_and_unauthenticated_lines_are_refused() {
        let line = |key: LineKey| {
            let mut bytes = Vec::new();
            LineWriter::new(&mut bytes, Some(key)).write(&Command::Stop).unwrap();
            bytes
        };
        let (write_key, read_key) = keys();
        let good = line(write_key);

        let mut altered = good.clone();
        let at = altered.len() - 3;
        altered[at] ^= 1;
        let mut reader = LineReader::new(&altered[..], Some(keys().0));
        assert!(matches!(reader.read::<Command>(), Err(LineError::NotAuthentic)));

        let twice = [good.clone(), good].concat();
        let mut reader = LineReader::new(&twice[..], Some(read_key));
        assert!(reader.read::<Command>().is_ok());
        assert!(matches!(reader.read::<Command>(), Err(LineError::NotAuthentic)), "a replay");

        let mut reader = LineReader::new(&b"\"stop\"\n"[..], Some(keys().0));
        assert!(matches!(reader.read::<Command>(), Err(LineError::NotAuthentic)));
    }

    #[test]
    fn a_line_without_end_is_bounded_and_garbage_is_an_error() {
        let over = [vec![b'x'; MAX_LINE_BYTES + LineKey::CODE_CHARS + 1], vec![b'\n']].concat();
        assert!(matches!(LineReader::new(&over[..], None).read::<Command>(), Err(LineError::TooLong)));
        let endless = io::BufReader::new(io::repeat(b'x'));
        assert!(matches!(LineReader::new(endless, None).read::<Command>(), Err(LineError::TooLong)));
        let mut reader = LineReader::new(&b"{\"boom\":1}\n"[..], None);
        assert!(matches!(reader.read::<Command>(), Err(LineError::Malformed(_))));
    }
}
