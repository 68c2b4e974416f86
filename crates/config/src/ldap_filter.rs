//! Filters of directory searches (RFC 4515) and names of entries (RFC 4514), each with a place for
//! what a person typed.
//!
//! INVARIANT: what is put into `{user}` or `{dn}` is a value and nothing else, whatever it holds: a
//! filter is parsed before, with the place in it, and values go into its binary form as bytes, so
//! that there is nothing to escape; in a name they are escaped. This module must not know of
//! connections.

use std::fmt::Write as _;
use std::str::FromStr;

/// How deep filters may nest.
const MAX_DEPTH: usize = 16;

const OCTET_STRING: u8 = 0x04;
const OR: u8 = 0xA1;
const EQUALITY: u8 = 0xA3;
const SUBSTRINGS_CHOICES: u8 = 0x30;

/// Values for the places of a filter or a name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Values<'v> {
    /// For `{user}`: the name that was typed, perhaps without its realm.
    pub user: &'v str,
    /// For `{dn}`: the name of the user's entry.
    pub dn: &'v str,
}

/// A filter, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(Node);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    /// `&` or `|`, by their tag.
    Set(u8, Vec<Node>),
    Not(Box<Node>),
    /// `=`, `>=`, `<=` or `~=`, by their tag.
    Compare(u8, String, Value),
    Present(String),
    /// `attribute=first*middle*last`; an absent first or last is empty.
    Substrings(String, Vec<Value>),
    /// `attribute:dn:rule:=value`.
    Extensible {
        attribute: String,
        rule: String,
        with_dn: bool,
        value: Value,
    },
}

/// A value with places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Value(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Bytes(Vec<u8>),
    User,
    Dn,
}

impl FromStr for Filter {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut rest = text;
        let node = node(&mut rest, MAX_DEPTH)?;
        if rest.is_empty() { Ok(Self(node)) } else { Err(()) }
    }
}

impl Filter {
    /// Whether a value for `{user}` is part of it.
    #[must_use]
    pub fn has_user(&self) -> bool {
        self.0.has(&Piece::User)
    }

    /// Whether a value for `{dn}` is part of it.
    #[must_use]
    pub fn has_dn(&self) -> bool {
        self.0.has(&Piece::Dn)
    }

    /// The attributes one of whose values is the user's name in an entry that it finds, as it has
    /// them.
    pub fn name_attributes(&self) -> impl Iterator<Item = &str> {
        let mut attributes = Vec::new();
        self.0.add_names(&mut attributes);
        attributes.into_iter()
    }

    /// The filter as a search request has it.
    #[must_use]
    pub fn encode(&self, values: Values<'_>) -> Vec<u8> {
        self.0.encode(values)
    }

    /// The filter for entries that it finds with any of these names as `{dn}`.
    #[must_use]
    pub fn encode_any(&self, user: &str, names: &[String]) -> Vec<u8> {
        let encode = |dn: &String| self.encode(Values { user, dn });
        match names {
            [name] => encode(name),
            names => element(OR, &names.iter().flat_map(encode).collect::<Vec<u8>>()),
        }
    }
}

/// One filter in parentheses from the beginning of `rest`.
fn node(rest: &mut &str, depth: usize) -> Result<Node, ()> {
    let depth = depth.checked_sub(1).ok_or(())?;
    *rest = rest.strip_prefix('(').ok_or(())?;
    let tag = match rest.as_bytes().first() {
        Some(b'&') => Some(0xA0),
        Some(b'|') => Some(OR),
        Some(b'!') => None,
        _ => {
            let end = rest.find(')').ok_or(())?;
            let (item, after) = rest.split_at(end);
            *rest = &after[1..];
            return self::item(item);
        }
    };
    *rest = &rest[1..];
    let mut nodes = Vec::new();
    while rest.starts_with('(') {
        nodes.push(node(rest, depth)?);
    }
    *rest = rest.strip_prefix(')').ok_or(())?;
    match tag {
        Some(tag) if !nodes.is_empty() => Ok(Node::Set(tag, nodes)),
        Some(_) => Err(()),
        None if nodes.len() == 1 => Ok(Node::Not(Box::new(nodes.remove(0)))),
        None => Err(()),
    }
}

fn item(text: &str) -> Result<Node, ()> {
    let (left, right) = text.split_once('=').ok_or(())?;
    if let Some(left) = left.strip_suffix(':') {
        return extensible(left, right);
    }
    let (attribute, tag) = match left.as_bytes().last() {
        Some(b'>') => (&left[..left.len() - 1], 0xA5),
        Some(b'<') => (&left[..left.len() - 1], 0xA6),
        Some(b'~') => (&left[..left.len() - 1], 0xA8),
        _ => (left, EQUALITY),
    };
    let attribute = name(attribute)?;
    if tag == EQUALITY && right == "*" {
        return Ok(Node::Present(attribute));
    }
    if tag == EQUALITY && right.contains('*') {
        let parts = right.split('*').map(value).collect::<Result<Vec<_>, ()>>()?;
        // A request has one at least (RFC 4511 §4.5.1).
        if parts.iter().all(|part| part.0.is_empty()) {
            return Err(());
        }
        return Ok(Node::Substrings(attribute, parts));
    }
    Ok(Node::Compare(tag, attribute, value(right)?))
}

fn extensible(left: &str, right: &str) -> Result<Node, ()> {
    let mut parts = left.split(':');
    let attribute = name(parts.next().ok_or(())?)?;
    let mut rest: Vec<&str> = parts.collect();
    let with_dn = rest.first().is_some_and(|part| part.eq_ignore_ascii_case("dn"));
    if with_dn {
        rest.remove(0);
    }
    match rest[..] {
        [] => Ok(Node::Extensible { attribute, rule: String::new(), with_dn, value: value(right)? }),
        [rule] => Ok(Node::Extensible { attribute, rule: name(rule)?, with_dn, value: value(right)? }),
        _ => Err(()),
    }
}

/// An attribute's or a rule's name.
fn name(text: &str) -> Result<String, ()> {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b';');
    if !text.is_empty() && text.bytes().all(is_allowed) { Ok(text.to_owned()) } else { Err(()) }
}

fn value(text: &str) -> Result<Value, ()> {
    let mut pieces = Vec::new();
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let place = [("{user}", Piece::User), ("{dn}", Piece::Dn)];
        let place = place.into_iter().find_map(|(word, piece)| Some((rest.strip_prefix(word)?, piece)));
        if let Some((after, piece)) = place {
            pieces.push(Piece::Bytes(std::mem::take(&mut bytes)));
            pieces.push(piece);
            rest = after;
        } else if first == '\\' {
            let digits = rest.get(1..3).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
            let digits = digits.ok_or(())?;
            bytes.push(u8::from_str_radix(digits, 16).map_err(|_| ())?);
            rest = &rest[3..];
        } else if matches!(first, '(' | '{' | '}') {
            return Err(());
        } else {
            bytes.extend_from_slice(first.encode_utf8(&mut [0; 4]).as_bytes());
            rest = &rest[first.len_utf8()..];
        }
    }
    pieces.push(Piece::Bytes(bytes));
    pieces.retain(|piece| !matches!(piece, Piece::Bytes(bytes) if bytes.is_empty()));
    Ok(Value(pieces))
}

impl Node {
    fn has(&self, piece: &Piece) -> bool {
        match self {
            Self::Set(_, nodes) => nodes.iter().any(|node| node.has(piece)),
            Self::Not(node) => node.has(piece),
            Self::Compare(_, _, value) | Self::Extensible { value, .. } => value.0.contains(piece),
            Self::Present(_) => false,
            Self::Substrings(_, values) => values.iter().any(|value| value.0.contains(piece)),
        }
    }

    fn add_names<'n>(&'n self, attributes: &mut Vec<&'n str>) {
        match self {
            Self::Set(_, nodes) => nodes.iter().for_each(|node| node.add_names(attributes)),
            Self::Compare(EQUALITY, attribute, Value(pieces)) if pieces[..] == [Piece::User] => {
                attributes.push(attribute);
            }
            _ => {}
        }
    }

    fn encode(&self, values: Values<'_>) -> Vec<u8> {
        match self {
            Self::Set(tag, nodes) => {
                element(*tag, &nodes.iter().flat_map(|node| node.encode(values)).collect::<Vec<u8>>())
            }
            Self::Not(node) => element(0xA2, &node.encode(values)),
            Self::Compare(tag, attribute, value) => element(
                *tag,
                &[element(OCTET_STRING, attribute.as_bytes()), element(OCTET_STRING, &value.bytes(values))]
                    .concat(),
            ),
            Self::Present(attribute) => element(0x87, attribute.as_bytes()),
            Self::Substrings(attribute, parts) => {
                let last = parts.len() - 1;
                let choices = parts.iter().enumerate().map(|(at, part)| {
                    let tag = if at == 0 {
                        0x80
                    } else if at == last {
                        0x82
                    } else {
                        0x81
                    };
                    let bytes = part.bytes(values);
                    if bytes.is_empty() { Vec::new() } else { element(tag, &bytes) }
                });
                let choices: Vec<u8> = choices.flatten().collect();
                element(
                    0xA4,
                    &[element(OCTET_STRING, attribute.as_bytes()), element(SUBSTRINGS_CHOICES, &choices)]
                        .concat(),
                )
            }
            Self::Extensible { attribute, rule, with_dn, value } => {
                let rule = if rule.is_empty() { Vec::new() } else { element(0x81, rule.as_bytes()) };
                let with_dn = if *with_dn { element(0x84, &[0xFF]) } else { Vec::new() };
                let attribute = element(0x82, attribute.as_bytes());
                element(0xA9, &[rule, attribute, element(0x83, &value.bytes(values)), with_dn].concat())
            }
        }
    }
}

impl Value {
    fn bytes(&self, values: Values<'_>) -> Vec<u8> {
        let piece = |piece: &Piece| match piece {
            Piece::Bytes(bytes) => bytes.clone(),
            Piece::User => values.user.as_bytes().to_vec(),
            Piece::Dn => values.dn.as_bytes().to_vec(),
        };
        self.0.iter().flat_map(piece).collect()
    }
}

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let len = u32::try_from(content.len()).expect("filters are short");
    let mut out = vec![tag];
    if len < 0x80 {
        out.push(len as u8);
    } else {
        out.push(0x84);
        out.extend_from_slice(&len.to_be_bytes());
    }
    out.extend_from_slice(content);
    out
}

/// The name of an entry with a place for the user, such as `uid={user},ou=people,dc=example`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameTemplate(String);

impl FromStr for NameTemplate {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let without = text.replacen("{user}", "", 1);
        let is_valid = without.len() < text.len() && !without.contains(['{', '}']) && text.contains('=');
        if is_valid { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

impl NameTemplate {
    /// The attribute in the name of an entry that has the user's name.
    #[must_use]
    pub fn name_attribute(&self) -> Option<&str> {
        let (before, _) = self.0.split_once("={user}")?;
        before.rsplit([',', '+']).next().map(str::trim)
    }

    /// The name of this user's entry.
    #[must_use]
    pub fn entry_of(&self, user: &str) -> String {
        self.0.replacen("{user}", &escaped(user), 1)
    }
}

/// A value as it stands in a name (RFC 4514 §2.4): everything but letters, digits and a few others
/// is escaped.
fn escaped(value: &str) -> String {
    value.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'@') {
            out.push(char::from(byte));
        } else {
            write!(out, "\\{byte:02x}").expect("a string takes all that is written to it");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(filter: &str, user: &str) -> Vec<u8> {
        filter.parse::<Filter>().unwrap().encode(Values { user, dn: "cn=x" })
    }

    #[test]
    fn attributes_with_the_name_of_a_user_are_known() {
        let names = |filter: &str| {
            let filter = filter.parse::<Filter>().unwrap();
            filter.name_attributes().map(str::to_owned).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names("(uid={user})"), "uid");
        let filter =
            "(&(objectClass=person)(|(uid={user})(mail={user})(cn=x{user})(member={dn}))(!(alias={user})))";
        assert_eq!(names(filter), "uid mail");
        let template = "cn=vpn+uid={user},ou=people".parse::<NameTemplate>().unwrap();
        assert_eq!(template.name_attribute(), Some("uid"));
    }

    #[test]
    fn filters_are_encoded_as_the_standard_has_them() {
        let equal = [&[0xA3, 10, 4, 3][..], b"uid", &[4, 3], b"ann"].concat();
        assert_eq!(encoded("(uid=ann)", ""), equal);
        assert_eq!(encoded("(uid={user})", "ann"), equal);
        assert_eq!(encoded("(!(uid={user}))", "ann"), element(0xA2, &equal));
        assert_eq!(encoded("(&(uid=ann)(uid={user}))", "ann"), element(0xA0, &[&equal[..], &equal].concat()));
        assert_eq!(encoded("(uid=*)", ""), [&[0x87, 3][..], b"uid"].concat());
        assert_eq!(encoded("(uid=\\2a)", ""), encoded("(uid={user})", "*"));
        let parts = [&[0x80, 1][..], b"a", &[0x81, 1], b"b", &[0x82, 1], b"c"].concat();
        let parts = [element(4, b"cn"), element(0x30, &parts)].concat();
        assert_eq!(encoded("(cn=a*b*c)", ""), element(0xA4, &parts));
        let rule = encoded("(member:1.2.840.113556.1.4.1941:={dn})", "");
        let inner =
            [element(0x81, b"1.2.840.113556.1.4.1941"), element(0x82, b"member"), element(0x83, b"cn=x")];
        assert_eq!(rule, element(0xA9, &inner.concat()));
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        let deep = format!("{}(a=b){}", "(!".repeat(40), ")".repeat(40));
        for text in [
            "",
            "uid=ann",
            "(uid=ann",
            "(uid=ann))",
            "(&)",
            "(!(a=b)(c=d))",
            "(=x)",
            "(a b=x)",
            "(a=\\2)",
            "(a=\\+f)",
            "(a=**)",
            "(a={x})",
            &deep,
        ] {
            assert!(text.parse::<Filter>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_name_from_outside_stays_one_value() {
        // One equality match, whose value is all of it.
        for user in ["*)(uid=*", "*", "a)(|(uid=*", "\\2a", "ann\0"] {
            let expected = [element(4, b"uid"), element(4, user.as_bytes())].concat();
            assert_eq!(encoded("(uid={user})", user), element(0xA3, &expected));
        }
        let name: NameTemplate = "uid={user},ou=people".parse().unwrap();
        assert_eq!(name.entry_of("ann,ou=admins"), "uid=ann\\2cou\\3dadmins,ou=people");
        assert_eq!(name.entry_of("{user}+"), "uid=\\7buser\\7d\\2b,ou=people");
    }
}
