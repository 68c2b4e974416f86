//! Any bytes as what a directory sends, and any text as what a person typed: nothing panics, what
//! is read lies within what came, whatever comes behind a message is no part of it, and a value
//! stays one value in requests and in names of entries.
//!
//! Input: messages, one behind the other; the same bytes are tried as a value of an attribute, as a
//! name and password, and as a filter of the configuration.

use std::sync::LazyLock;

use vpnd_config::ldap_filter::{Filter, NameTemplate, Values};
use vpnd_idp::ldap::message::{self, MAX_MESSAGE, Reply, Scope, Search};
use vpnd_idp::ldap::{group_name, subject_text};

/// Characters of a server's explanation, at most.
const MAX_TEXT: usize = 200;

static FILTER: LazyLock<Filter> = LazyLock::new(|| "(uid={user})".parse().expect("it is a filter"));
static TEMPLATE: LazyLock<NameTemplate> =
    LazyLock::new(|| "uid={user},dc=uni".parse().expect("it is the name of an entry"));

/// Names of attributes that entries may have.
const NAMES: [&str; 3] = ["memberOf", "uid", "entryUUID"];

/// Checks one input.
pub fn run(data: &[u8]) {
    check_message(data);
    let mut rest = data;
    while let Ok(Some(len)) = message::len(rest) {
        assert!((2..=MAX_MESSAGE).contains(&len));
        let Some((first, behind)) = rest.split_at_checked(len) else { break };
        check_message(first);
        assert_eq!(
            message::decode(first, &NAMES),
            message::decode(rest, &NAMES),
            "what is behind a message changes it"
        );
        assert!(message::decode(&first[..len - 1], &NAMES).is_err(), "a cut message");
        rest = behind;
    }
    check_values(data);
    if let Ok(text) = str::from_utf8(data) {
        check_typed(text);
        check_filter(text);
    }
}

fn check_message(bytes: &[u8]) {
    let Ok((_, reply)) = message::decode(bytes, &NAMES) else { return };
    match reply {
        Reply::Bind(outcome) | Reply::Done(outcome) | Reply::Extended(outcome) => {
            assert!(outcome.text.chars().count() <= MAX_TEXT && !outcome.text.chars().any(char::is_control));
        }
        Reply::Entry(entry) => {
            let values = NAMES.into_iter().flat_map(|name| entry.values(name));
            let len = values.map(<[u8]>::len).sum::<usize>() + entry.dn.len();
            assert!(len < bytes.len(), "more than came");
            let _ = (entry.is_cut("memberOf"), format!("{entry:?}"));
        }
        Reply::Reference | Reply::Other => {}
    }
}

/// A group's name is printable, and a subject is another one for each value.
fn check_values(value: &[u8]) {
    if let Some(name) = group_name(value) {
        assert!(!name.is_empty() && !name.chars().any(char::is_control));
    }
    let subject = subject_text(value);
    assert!(subject.bytes().all(|byte| byte.is_ascii_graphic()));
    let back = match subject.strip_prefix("hex:") {
        Some(digits) => digits.as_bytes().chunks(2).map(byte).collect(),
        None => subject.into_bytes(),
    };
    assert_eq!(back, value, "another value has the same subject");
}

fn byte(digits: &[u8]) -> u8 {
    let digits = str::from_utf8(digits).expect("it is ASCII");
    u8::from_str_radix(digits, 16).expect("two digits")
}

/// A filter of the configuration is one element, whatever is put into its places, and as many parts
/// of it as without them.
fn check_filter(text: &str) {
    let Ok(filter) = text.parse::<Filter>() else { return };
    let shape = |values| {
        let encoded = filter.encode(values);
        let shape = shape(&encoded, 0);
        shape.unwrap_or_else(|| panic!("{encoded:x?} of {text}"))
    };
    let plain = shape(Values { user: "ann", dn: "cn=ann" });
    assert_eq!(
        shape(Values { user: ")(uid=*", dn: "\\2a*\0" }),
        plain,
        "a value has become more than a value"
    );
}

/// The tags of an element, one behind the other; `None` if it is not exactly one, or holds an empty
/// list.
fn shape(bytes: &[u8], depth: usize) -> Option<Vec<u8>> {
    let (tag, content, rest) = element(bytes)?;
    let mut tags = vec![tag];
    // Lists: the choices of filters that hold elements, and the pieces of a value with '*'.
    if tag & 0x20 != 0 {
        assert!(depth <= 2 * 16, "deeper than is permitted");
        let mut content = content;
        if content.is_empty() {
            return None;
        }
        while !content.is_empty() {
            let (_, _, rest) = element(content)?;
            tags.extend(shape(&content[..content.len() - rest.len()], depth + 1)?);
            content = rest;
        }
    }
    rest.is_empty().then_some(tags)
}

/// The tag and content of the first element, and what is behind it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, len], rest) = bytes.split_first_chunk()?;
    let (len, rest) = match len {
        0x84 => {
            let (len, rest) = rest.split_first_chunk()?;
            (u32::from_be_bytes(*len) as usize, rest)
        }
        short => (usize::from(short), rest),
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

/// A person's input is one value, whatever it holds.
fn check_typed(text: &str) {
    let name = TEMPLATE.entry_of(text);
    // The text may hold characters that no group's name may; if it does not, it comes back.
    if let Some(back) = group_name(name.as_bytes()) {
        assert_eq!(back, text);
    }
    let filter = FILTER.encode(Values { user: text, dn: "" });
    let behind = filter.strip_suffix(text.as_bytes()).expect("the value is the last of this filter");
    let attributes = ["memberOf"];
    let search = Search {
        base: &name,
        scope: Scope::Subtree,
        size_limit: 2,
        time_limit_s: 1,
        filter: &filter,
        attributes: &attributes,
    };
    for request in [message::bind(7, &name, text), message::search(7, &search), message::start_tls(7)] {
        if request.len() <= MAX_MESSAGE {
            assert_eq!(message::len(&request), Ok(Some(request.len())));
        }
        assert_eq!(message::decode(&request, &NAMES), Ok((7, Reply::Other)));
    }
    // Equality, the attribute, and the value's own length in front of it.
    assert_eq!((filter[0], behind.ends_with(&length(text.len()))), (0xA3, true));
}

/// The length of a string as requests have it.
fn length(len: usize) -> Vec<u8> {
    match u8::try_from(len) {
        Ok(len @ 0..0x80) => vec![0x04, len],
        _ => [&[0x04, 0x84][..], &(len as u32).to_be_bytes()].concat(),
    }
}
