//! Texts and lists that carry their limit in their type, so that an oversized one cannot exist.

use core::fmt;
use core::ops::Deref;
use core::str::FromStr;
use std::sync::Arc;

use minicbor::decode::{self, Decode, Decoder};
use minicbor::encode::{self, Encode, Encoder, Write};
use zeroize::Zeroizing;

/// Something is longer than the protocol allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("longer than the {max} {unit} that the protocol allows")]
pub struct TooLong {
    /// The limit.
    pub max: usize,
    /// The unit of the limit.
    pub unit: &'static str,
}

/// A text of at most `MAX` bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Text<const MAX: usize>(String);

impl<const MAX: usize> Text<MAX> {
    /// Takes `text` if it is short enough.
    ///
    /// # Errors
    /// If it has more than `MAX` bytes.
    pub fn new(text: impl Into<String>) -> Result<Self, TooLong> {
        let text = text.into();
        if text.len() > MAX { Err(TooLong { max: MAX, unit: "bytes" }) } else { Ok(Self(text)) }
    }

    /// Returns as much of `text` as fits: for texts that only a person reads.
    #[must_use]
    pub fn cut(text: &str) -> Self {
        let mut end = text.len().min(MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self(text[..end].to_owned())
    }
}

impl<const MAX: usize> Deref for Text<MAX> {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl<const MAX: usize> fmt::Display for Text<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl<C, const MAX: usize> Encode<C> for Text<MAX> {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        e.str(&self.0)?.ok()
    }
}

impl<'b, C, const MAX: usize> Decode<'b, C> for Text<MAX> {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        short_text::<MAX>(d).map(|text| Self(text.to_owned()))
    }
}

/// The limit is checked before anything is copied.
fn short_text<'b, const MAX: usize>(d: &mut Decoder<'b>) -> Result<&'b str, decode::Error> {
    let at = d.position();
    let text = d.str()?;
    if text.len() > MAX { Err(decode::Error::message("text too long").at(at)) } else { Ok(text) }
}

/// A secret text of at most `MAX` bytes: erased when dropped, never printed.
#[derive(Clone)]
pub struct SecretText<const MAX: usize>(Zeroizing<String>);

impl<const MAX: usize> SecretText<MAX> {
    /// Takes `text` if it is short enough.
    ///
    /// # Errors
    /// If it has more than `MAX` bytes.
    pub fn new(text: impl Into<String>) -> Result<Self, TooLong> {
        let text = Zeroizing::new(text.into());
        if text.len() > MAX { Err(TooLong { max: MAX, unit: "bytes" }) } else { Ok(Self(text)) }
    }

    /// The secret itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl<const MAX: usize> fmt::Debug for SecretText<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

impl<const MAX: usize> PartialEq for SecretText<MAX> {
    fn eq(&self, other: &Self) -> bool {
        use subtle::ConstantTimeEq;
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl<const MAX: usize> Eq for SecretText<MAX> {}

impl<C, const MAX: usize> Encode<C> for SecretText<MAX> {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        e.str(&self.0)?.ok()
    }
}

impl<'b, C, const MAX: usize> Decode<'b, C> for SecretText<MAX> {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        short_text::<MAX>(d).map(|text| Self(Zeroizing::new(text.to_owned())))
    }
}

/// A list of at most `MAX` items. Copies share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T, const MAX: usize>(Arc<[T]>);

impl<T, const MAX: usize> List<T, MAX> {
    /// Takes `items` if they are few enough.
    ///
    /// # Errors
    /// If there are more than `MAX`.
    pub fn new(items: Vec<T>) -> Result<Self, TooLong> {
        if items.len() > MAX { Err(TooLong { max: MAX, unit: "items" }) } else { Ok(Self(items.into())) }
    }

    /// Its first `count` items, or all if there are fewer.
    #[must_use]
    pub fn first(&self, count: usize) -> Self
    where
        T: Clone,
    {
        if self.len() <= count { self.clone() } else { Self(self[..count].into()) }
    }
}

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Arc::new([]))
    }
}

impl<T, const MAX: usize> Deref for List<T, MAX> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<C, T: Encode<C>, const MAX: usize> Encode<C> for List<T, MAX> {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, ctx: &mut C) -> Result<(), encode::Error<W::Error>> {
        e.array(self.0.len() as u64)?;
        self.0.iter().try_for_each(|item| item.encode(e, ctx))
    }
}

impl<'b, C, T: Decode<'b, C>, const MAX: usize> Decode<'b, C> for List<T, MAX> {
    fn decode(d: &mut Decoder<'b>, ctx: &mut C) -> Result<Self, decode::Error> {
        let at = d.position();
        let mut items = Vec::new();
        for item in d.array_iter_with(ctx)? {
            if items.len() == MAX {
                return Err(decode::Error::message("list too long").at(at));
            }
            items.push(item?);
        }
        Ok(Self(items.into()))
    }
}

/// A value that travels in its usual notation, such as a network in CIDR notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AsText<T>(pub T);

/// The longest such text: an IPv6 network with an embedded IPv4 address.
const MAX_NOTATION: usize = 49;

impl<C, T: fmt::Display> Encode<C> for AsText<T> {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        e.str(&self.0.to_string())?.ok()
    }
}

impl<'b, C, T: FromStr> Decode<'b, C> for AsText<T> {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        let at = d.position();
        let value = short_text::<MAX_NOTATION>(d)?.parse();
        value.map(Self).map_err(|_| decode::Error::message("not an address or network").at(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_kept_at_construction() {
        assert!(Text::<3>::new("abc").is_ok());
        assert_eq!(Text::<3>::new("abcd"), Err(TooLong { max: 3, unit: "bytes" }));
        assert!(SecretText::<3>::new("abcd").is_err());
        assert!(List::<u8, 2>::new(vec![1, 2]).is_ok());
        assert!(List::<u8, 2>::new(vec![1, 2, 3]).is_err());
    }

    #[test]
    fn cutting_keeps_characters_whole() {
        assert_eq!(&*Text::<3>::cut("aää"), "aä");
        assert_eq!(&*Text::<3>::cut("ab"), "ab");
    }

    #[test]
    fn secrets_are_not_printed() {
        let secret = SecretText::<64>::new("correct horse").unwrap();
        assert_eq!(format!("{secret:?} {secret:#?}"), "<secret> <secret>");
    }
}
