//! The part of BER that LDAP uses (RFC 4511 §5.1): tags of one byte, definite lengths.
//!
//! INVARIANT: whatever the bytes, reading neither panics nor allocates; an element lies within the
//! one around it. Nothing is read recursively, so that depth costs nothing. This module must not
//! know what elements mean.

use zeroize::Zeroizing;

pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const ENUMERATED: u8 = 0x0A;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;

/// Bytes that are no BER, or none that LDAP permits here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server's message is not LDAP: {0}")]
pub struct Malformed(pub(super) &'static str);

/// Reads elements one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// The next element's tag and content; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u8, &'b [u8])>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let Some((header, len)) = header(self.0)? else { return Err(Malformed("a cut element")) };
        let end = header.checked_add(len).filter(|end| *end <= self.0.len());
        let end = end.ok_or(Malformed("an element longer than the one around it"))?;
        let (tag, content) = (self.0[0], &self.0[header..end]);
        self.0 = &self.0[end..];
        Ok(Some((tag, content)))
    }

    /// The elements that were read since it was as `before`.
    pub(super) fn since(&self, before: Self) -> &'b [u8] {
        &before.0[..before.0.len() - self.0.len()]
    }

    /// The content of the next element, which has this tag.
    pub(super) fn expect(&mut self, tag: u8) -> Result<&'b [u8], Malformed> {
        match self.next()? {
            Some((found, content)) if found == tag => Ok(content),
            _ => Err(Malformed("another element than was to come")),
        }
    }

    /// The next element, a number that is not negative.
    pub(super) fn number(&mut self, tag: u8) -> Result<u32, Malformed> {
        let content = self.expect(tag)?;
        match content {
            [first, ..] if content.len() <= 4 && *first < 0x80 => {
                Ok(content.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
            }
            _ => Err(Malformed("a number out of range")),
        }
    }
}

/// Length of the first element's header, and of its content. `None` if more bytes are needed.
fn header(bytes: &[u8]) -> Result<Option<(usize, usize)>, Malformed> {
    let Some(tag) = bytes.first() else { return Ok(None) };
    if tag & 0x1F == 0x1F {
        return Err(Malformed("a tag of several bytes"));
    }
    let Some(len) = bytes.get(1).copied() else { return Ok(None) };
    if len < 0x80 {
        return Ok(Some((2, usize::from(len))));
    }
    let count = usize::from(len & 0x7F);
    if count == 0 || count > 4 {
        return Err(Malformed("a length that LDAP does not permit"));
    }
    let Some(digits) = bytes.get(2..2 + count) else { return Ok(None) };
    Ok(Some((2 + count, digits.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)))))
}

/// Length of the first message in `bytes`, as soon as its header is there. It is `limit` at most.
pub(super) fn message_len(bytes: &[u8], limit: usize) -> Result<Option<usize>, Malformed> {
    if bytes.first().is_some_and(|tag| *tag != SEQUENCE) {
        return Err(Malformed("another element than a message"));
    }
    let Some((header, len)) = header(bytes)? else { return Ok(None) };
    let len = header.checked_add(len).filter(|len| *len <= limit);
    len.map(Some).ok_or(Malformed("a message that is too long"))
}

/// Bytes of a message under way out, some of which are a password.
pub(super) type Bytes = Zeroizing<Vec<u8>>;

/// Appends an element whose content `write` appends.
pub(super) fn element(out: &mut Bytes, tag: u8, write: impl FnOnce(&mut Bytes)) {
    let mut content = Bytes::default();
    write(&mut content);
    bytes(out, tag, &content);
}

/// Appends an element with this content.
pub(super) fn bytes(out: &mut Bytes, tag: u8, content: &[u8]) {
    out.push(tag);
    match u32::try_from(content.len()).expect("requests are short") {
        len @ 0..0x80 => out.push(len as u8),
        len => {
            out.push(0x84);
            out.extend_from_slice(&len.to_be_bytes());
        }
    }
    out.extend_from_slice(content);
}

/// Appends a number, which is not negative.
pub(super) fn number(out: &mut Bytes, tag: u8, value: u32) {
    let digits = value.to_be_bytes();
    let first = digits.iter().position(|byte| *byte != 0).unwrap_or(3);
    // A first bit that is set would be a sign.
    let sign: &[u8] = if digits[first] >= 0x80 { &[0] } else { &[] };
    bytes(out, tag, &[sign, &digits[first..]].concat());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let mut out = Bytes::default();
        element(&mut out, SEQUENCE, |out| {
            for value in [0, 1, 127, 128, 255, 256, 70_000, 0x7FFF_FFFF] {
                number(out, INTEGER, value);
            }
            bytes(out, OCTET_STRING, &[7; 300]);
        });
        assert_eq!(message_len(&out, 1 << 10), Ok(Some(out.len())));
        assert_eq!(message_len(&out[..3], 1 << 10), Ok(None));
        let mut outer = Reader::new(&out);
        let mut inner = Reader::new(outer.expect(SEQUENCE).unwrap());
        for value in [0, 1, 127, 128, 255, 256, 70_000, 0x7FFF_FFFF] {
            assert_eq!(inner.number(INTEGER), Ok(value));
        }
        assert_eq!(inner.expect(OCTET_STRING), Ok(&[7; 300][..]));
        assert_eq!((inner.next(), outer.next()), (Ok(None), Ok(None)));
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        for lie in [
            &[0x30, 0x84, 0xFF, 0xFF, 0xFF, 0xFF][..],
            &[0x30, 0x80, 0, 0],
            &[0x30, 0x85, 0, 0, 0, 0, 1],
            &[0x04, 0x01, 0x00],
            &[0x3F, 0x81, 0x01],
        ] {
            assert!(message_len(lie, 1 << 16).is_err(), "{lie:x?}");
        }
        assert!(Reader::new(&[0x04, 0x05, 1, 2]).next().is_err());
        assert!(Reader::new(&[0x04]).next().is_err());
        assert!(Reader::new(&[0x02, 0x01, 0xFF]).number(INTEGER).is_err(), "negative");
        assert!(Reader::new(&[0x02, 0x00]).number(INTEGER).is_err());
    }
}
