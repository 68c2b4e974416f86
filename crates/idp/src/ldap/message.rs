//! The messages of LDAP (RFC 4511) that a login needs: bind, search, StartTLS, and the replies to
//! them.
//!
//! INVARIANT: whatever a server sends is a message, or refused; nothing of it is followed,
//! referrals least of all. Bytes in, bytes out: no socket, no clock. This module must not know what
//! a login is.

use super::ber::{self, Bytes, ENUMERATED, INTEGER, Malformed, OCTET_STRING, Reader, SEQUENCE, SET};

/// The longest message of a server, bytes: an entry with thousands of groups.
pub const MAX_MESSAGE: usize = 1 << 20;
/// Values of an attribute that are kept: more than the groups that a user may have.
const MAX_VALUES: usize = 1_000;
const MAX_VALUE_BYTES: usize = 128 << 10;
/// The longest name of an entry.
const MAX_DN: usize = 4 << 10;
/// The explanation of a result, as far as it is looked at.
const MAX_TEXT_BYTES: usize = 1 << 10;
const MAX_TEXT: usize = 200;

/// StartTLS, the one extended operation (RFC 4511 §4.14).
const START_TLS: &[u8] = b"1.3.6.1.4.1.1466.20037";

const VERSION: u32 = 3;
const BIND_REQUEST: u8 = 0x60;
const BIND_RESPONSE: u8 = 0x61;
const SEARCH_REQUEST: u8 = 0x63;
const SEARCH_ENTRY: u8 = 0x64;
const SEARCH_DONE: u8 = 0x65;
const SEARCH_REFERENCE: u8 = 0x73;
const EXTENDED_REQUEST: u8 = 0x77;
const EXTENDED_RESPONSE: u8 = 0x78;
const SIMPLE: u8 = 0x80;
const REQUEST_NAME: u8 = 0x80;

/// A result's code (RFC 4511 appendix A).
pub const SUCCESS: u32 = 0;
pub(crate) const SIZE_LIMIT_EXCEEDED: u32 = 4;
pub(crate) const NO_SUCH_OBJECT: u32 = 32;
pub(crate) const INVALID_CREDENTIALS: u32 = 49;

/// Which entries a search is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Base,
    Subtree,
}

/// A search.
pub struct Search<'s> {
    pub base: &'s str,
    pub scope: Scope,
    /// Entries that the server may return.
    pub size_limit: u32,
    /// Time that the server may take, seconds.
    pub time_limit_s: u32,
    /// The filter as [`super::filter::Filter::encode`] makes it.
    pub filter: &'s [u8],
    pub attributes: &'s [&'s str],
}

/// A reply of a server.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Bind(Outcome),
    Entry(Entry),
    /// Somewhere else is more: not followed.
    Reference,
    Done(Outcome),
    Extended(Outcome),
    /// Anything else.
    Other,
}

/// The end of an operation.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub code: u32,
    /// The server's explanation, for the log.
    pub text: String,
}

/// An entry, as far as it was asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    pub dn: String,
    attributes: Vec<Attribute>,
}

/// The values of an attribute. Whatever the server sends, they take no more memory than its
/// message, and no more than the limits above.
#[derive(Debug, PartialEq, Eq)]
struct Attribute {
    name: String,
    /// One behind the other, as they came.
    values: Vec<u8>,
    count: usize,
    is_cut: bool,
}

impl Entry {
    /// The values of an attribute, whose name has no case. Options such as `;binary` or a range are
    /// no part of it.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let values = self.attribute(name).map_or(&[][..], |attribute| &attribute.values);
        let mut values = Reader::new(values);
        std::iter::from_fn(move || value(&mut values).ok().flatten())
    }

    /// Whether there are more values of this attribute than are here: the server has kept some back
    /// (`name;range=0-1499`, Active Directory's way), or they are beyond the limits.
    pub fn is_cut(&self, name: &str) -> bool {
        self.attribute(name).is_some_and(|attribute| attribute.is_cut)
    }

    /// Bytes of memory that it takes.
    pub(crate) fn len(&self) -> usize {
        let attributes = self.attributes.iter().map(|kept| kept.name.capacity() + kept.values.capacity());
        attributes.sum::<usize>() + self.dn.capacity() + size_of_val(&*self.attributes) + size_of::<Self>()
    }

    fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|kept| kept.name.eq_ignore_ascii_case(name))
    }

    /// Keeps values of an attribute that was asked for, as far as they fit.
    fn keep(&mut self, name: &str, is_part: bool, mut values: Reader<'_>) -> Result<(), Malformed> {
        let place = self.attributes.iter().position(|kept| kept.name.eq_ignore_ascii_case(name));
        let place = place.unwrap_or_else(|| {
            let (name, values) = (name.to_owned(), Vec::new());
            self.attributes.push(Attribute { name, values, count: 0, is_cut: false });
            self.attributes.len() - 1
        });
        let kept = &mut self.attributes[place];
        kept.is_cut |= is_part;
        loop {
            let from = values;
            if value(&mut values)?.is_none() {
                return Ok(());
            }
            let bytes = values.since(from);
            if kept.count < MAX_VALUES && kept.values.len() + bytes.len() <= MAX_VALUE_BYTES {
                kept.values.extend_from_slice(bytes);
                kept.count += 1;
            } else {
                kept.is_cut = true;
            }
        }
    }
}

/// A bind with name and password.
pub fn bind(id: u32, dn: &str, password: &str) -> Bytes {
    message(id, BIND_REQUEST, |out| {
        ber::number(out, INTEGER, VERSION);
        ber::bytes(out, OCTET_STRING, dn.as_bytes());
        ber::bytes(out, SIMPLE, password.as_bytes());
    })
}

pub fn search(id: u32, search: &Search<'_>) -> Bytes {
    message(id, SEARCH_REQUEST, |out| {
        ber::bytes(out, OCTET_STRING, search.base.as_bytes());
        let scope = match search.scope {
            Scope::Base => 0,
            Scope::Subtree => 2,
        };
        ber::number(out, ENUMERATED, scope);
        // Aliases are dereferenced nowhere: they lead to entries that the search is not about.
        ber::number(out, ENUMERATED, 0);
        ber::number(out, INTEGER, search.size_limit);
        ber::number(out, INTEGER, search.time_limit_s);
        ber::bytes(out, ber::BOOLEAN, &[0]);
        out.extend_from_slice(search.filter);
        ber::element(out, SEQUENCE, |out| {
            for name in search.attributes {
                ber::bytes(out, OCTET_STRING, name.as_bytes());
            }
        });
    })
}

pub fn start_tls(id: u32) -> Bytes {
    message(id, EXTENDED_REQUEST, |out| ber::bytes(out, REQUEST_NAME, START_TLS))
}

fn message(id: u32, tag: u8, write: impl FnOnce(&mut Bytes)) -> Bytes {
    let mut out = Bytes::default();
    ber::element(&mut out, SEQUENCE, |out| {
        ber::number(out, INTEGER, id);
        ber::element(out, tag, write);
    });
    out
}

/// Length of the first message in `bytes`; `None` as long as that can't be told.
pub fn len(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    ber::message_len(bytes, MAX_MESSAGE)
}

/// Decodes one whole message: its number and what it is. Of an entry only the attributes with these
/// names are kept.
pub fn decode(bytes: &[u8], names: &[&str]) -> Result<(u32, Reply), Malformed> {
    let mut outer = Reader::new(bytes);
    let mut inner = Reader::new(outer.expect(SEQUENCE)?);
    let id = inner.number(INTEGER)?;
    let (tag, content) = inner.next()?.ok_or(Malformed("a message without content"))?;
    let reply = match tag {
        BIND_RESPONSE => Reply::Bind(outcome(content)?),
        SEARCH_ENTRY => Reply::Entry(entry(content, names)?),
        SEARCH_DONE => Reply::Done(outcome(content)?),
        SEARCH_REFERENCE => Reply::Reference,
        EXTENDED_RESPONSE => Reply::Extended(outcome(content)?),
        _ => Reply::Other,
    };
    Ok((id, reply))
}

fn outcome(content: &[u8]) -> Result<Outcome, Malformed> {
    let mut reader = Reader::new(content);
    let code = reader.number(ENUMERATED)?;
    reader.expect(OCTET_STRING)?;
    let text = reader.expect(OCTET_STRING)?;
    let text = String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT_BYTES)]);
    // Whatever follows, a referral for one, is not looked at.
    Ok(Outcome { code, text: text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect() })
}

fn entry(content: &[u8], names: &[&str]) -> Result<Entry, Malformed> {
    let mut reader = Reader::new(content);
    let dn = text(reader.expect(OCTET_STRING)?)?;
    if dn.len() > MAX_DN {
        return Err(Malformed("a name of an entry that is too long"));
    }
    let mut list = Reader::new(reader.expect(SEQUENCE)?);
    let mut entry = Entry { dn: dn.to_owned(), attributes: Vec::new() };
    while let Some((found, mut values)) = attribute(&mut list)? {
        let mut parts = found.split(';');
        let found = parts.next().unwrap_or_default();
        let is_range = |option: &str| option.to_ascii_lowercase().starts_with("range=");
        let is_part = parts.any(|option| is_range(option) && !option.ends_with('*'));
        match names.iter().find(|name| name.eq_ignore_ascii_case(found)) {
            Some(name) => entry.keep(name, is_part, values)?,
            None => while value(&mut values)?.is_some() {},
        }
    }
    entry.attributes.iter_mut().for_each(|kept| kept.values.shrink_to_fit());
    Ok(entry)
}

/// The next attribute: its name and its values.
fn attribute<'b>(list: &mut Reader<'b>) -> Result<Option<(&'b str, Reader<'b>)>, Malformed> {
    let Some((tag, content)) = list.next()? else { return Ok(None) };
    if tag != SEQUENCE {
        return Err(Malformed("a malformed attribute"));
    }
    let mut attribute = Reader::new(content);
    let name = text(attribute.expect(OCTET_STRING)?)?;
    Ok(Some((name, Reader::new(attribute.expect(SET)?))))
}

fn value<'b>(values: &mut Reader<'b>) -> Result<Option<&'b [u8]>, Malformed> {
    match values.next()? {
        Some((OCTET_STRING, value)) => Ok(Some(value)),
        Some(_) => Err(Malformed("a malformed value")),
        None => Ok(None),
    }
}

fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    str::from_utf8(bytes).map_err(|_| Malformed("a name that is no UTF-8"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn requests_are_those_of_the_standard() {
        // RFC 4511 §4.2: version 3, name, simple authentication.
        let expected = [
            &[0x30, 0x0F, 0x02, 0x01, 0x05, 0x60, 0x0A, 0x02, 0x01, 0x03, 0x04, 0x01][..],
            b"a",
            &[0x80, 0x02],
            b"pw",
        ];
        assert_eq!(*bind(5, "a", "pw"), expected.concat());
        assert_eq!(start_tls(1)[..9], [0x30, 0x1D, 0x02, 0x01, 0x01, 0x77, 0x18, 0x80, 0x16]);
    }

    #[test]
    fn replies_are_decoded_and_referrals_are_none() {
        let bind = [0x30, 12, 2, 1, 1, 0x61, 7, 0x0A, 1, 49, 4, 0, 4, 0];
        let wrong = Outcome { code: INVALID_CREDENTIALS, text: String::new() };
        assert_eq!(decode(&bind, &[]), Ok((1, Reply::Bind(wrong))));
        let mut out = Bytes::default();
        ber::element(&mut out, SEQUENCE, |out| {
            ber::number(out, INTEGER, 7);
            ber::element(out, SEARCH_ENTRY, |out| {
                ber::bytes(out, OCTET_STRING, b"uid=ann");
                ber::element(out, SEQUENCE, |out| {
                    ber::element(out, SEQUENCE, |out| {
                        ber::bytes(out, OCTET_STRING, b"memberOf;range=0-1");
                        ber::element(out, SET, |out| {
                            ber::bytes(out, OCTET_STRING, b"cn=a");
                            ber::bytes(out, OCTET_STRING, b"cn=b");
                        });
                    });
                });
            });
        });
        let Ok((7, Reply::Entry(entry))) = decode(&out, &["memberOf"]) else { panic!("an entry") };
        assert_eq!(entry.values("MEMBEROF").collect::<Vec<_>>(), [b"cn=a", b"cn=b"]);
        assert!(entry.is_cut("memberOf") && !entry.is_cut("member"));
        for cut in 0..out.len() {
            assert!(decode(&out[..cut], &["memberOf"]).is_err(), "{cut}");
        }
    }

    /// A search's entry with this number of values of an attribute.
    pub(in super::super) fn entry_with(name: &str, value: &[u8], count: usize) -> Bytes {
        let mut out = Bytes::default();
        ber::element(&mut out, SEQUENCE, |out| {
            ber::number(out, INTEGER, 1);
            ber::element(out, SEARCH_ENTRY, |out| {
                ber::bytes(out, OCTET_STRING, b"uid=ann");
                ber::element(out, SEQUENCE, |out| {
                    ber::element(out, SEQUENCE, |out| {
                        ber::bytes(out, OCTET_STRING, name.as_bytes());
                        ber::element(out, SET, |out| {
                            (0..count).for_each(|_| ber::bytes(out, OCTET_STRING, value));
                        });
                    });
                });
            });
        });
        out
    }

    #[test]
    fn of_an_entry_is_kept_what_was_asked_for_within_limits() {
        let kept = |name: &str, value: &[u8], count| {
            let decoded = decode(&entry_with(name, value, count), &["uid", "memberOf"]);
            let Ok((1, Reply::Entry(entry))) = decoded else { panic!("an entry") };
            (entry.values("memberOf").count(), entry.is_cut("memberOf"), entry.len())
        };
        let (count, is_cut, len) = kept("memberOf", b"", MAX_VALUES);
        assert!((count, is_cut) == (MAX_VALUES, false) && len < 4 * MAX_VALUES, "{len}");
        let (count, is_cut, len) = kept("memberof;x", b"", 500_000);
        assert!((count, is_cut) == (MAX_VALUES, true) && len < 4 * MAX_VALUES, "{len}");
        let (count, is_cut, len) = kept("memberOf", &[b'a'; 1_000], 1_000);
        assert!(is_cut && count == MAX_VALUE_BYTES / 1_006 && len < MAX_VALUE_BYTES + 500, "{count}, {len}");
        let (count, is_cut, len) = kept("jpegPhoto", &[b'a'; 500_000], 2);
        assert!((count, is_cut) == (0, false) && len < 500, "nobody has asked for it: {len}");
        let long = [b"cn=", &[b'a'; MAX_DN][..]].concat();
        let mut out = Bytes::default();
        ber::element(&mut out, SEQUENCE, |out| {
            ber::number(out, INTEGER, 1);
            ber::element(out, SEARCH_ENTRY, |out| {
                ber::bytes(out, OCTET_STRING, &long);
                ber::bytes(out, SEQUENCE, b"");
            });
        });
        assert!(decode(&out, &[]).is_err(), "its own name is too long");
    }

    #[test]
    fn a_name_that_is_no_text_is_refused() {
        let entry = [0x30, 11, 2, 1, 1, 0x64, 6, 4, 2, 0xFF, 0xFE, 0x30, 0];
        assert!(decode(&entry, &[]).is_err());
    }
}
