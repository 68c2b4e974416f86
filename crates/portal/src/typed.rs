//! Forms of the help desk as a person has typed them, to be filled in again after a refusal.
//!
//! INVARIANT: what a browser keeps through a login names a form of the desk and no address, so it
//! leads to pages of ours alone; and nothing is done before the person has sent the form again.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

/// Bytes of a cookie's value; browsers take 4,096 with its name and attributes (RFC 6265 section
/// 6.1).
const MAX_KEPT_BYTES: usize = 3_600;

/// A change, or a question.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Typed {
    pub(crate) user: String,
    pub(crate) reason: String,
    pub(crate) device: String,
    pub(crate) until: String,
    pub(crate) address: String,
    pub(crate) at: String,
    pub(crate) groups: String,
    pub(crate) sponsor: String,
    pub(crate) note: String,
}

/// A form that was sent, and not followed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Draft {
    /// The last part of the form's address.
    pub(crate) deed: String,
    pub(crate) typed: Typed,
}

impl Draft {
    pub(crate) fn new(deed: &str, typed: Typed) -> Self {
        Self { deed: deed.to_owned(), typed }
    }

    /// Whether the form is on the page of a user.
    pub(crate) fn is_of_user(&self) -> bool {
        !["add", "whois"].contains(&self.deed.as_str())
    }

    /// The fields as they were typed, if it is this form; else empty ones.
    pub(crate) fn of(&self, deed: &str) -> Typed {
        if self.deed == deed { self.typed.clone() } else { Typed::default() }
    }

    /// The value of its cookie. Without what was typed, if that is too long; `None` if it still is.
    pub(crate) fn kept(&self) -> Option<String> {
        let typed = Typed { user: self.typed.user.clone(), ..Typed::default() };
        let bare = Self { deed: self.deed.clone(), typed };
        let value = |draft| Some(URL_SAFE_NO_PAD.encode(serde_json::to_vec(draft).ok()?));
        [self, &bare].into_iter().filter_map(value).find(|value| value.len() <= MAX_KEPT_BYTES)
    }

    /// Reads the value of its cookie.
    pub(crate) fn read(value: &str) -> Option<Self> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(value).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_keeps_what_was_typed_as_far_as_a_browser_takes_it() {
        let typed = |user: &str, reason: &str| Typed {
            user: user.to_owned(),
            reason: reason.to_owned(),
            until: "2030-01-31".to_owned(),
            ..Typed::default()
        };
        let back = |draft: &Draft| draft.kept().map(|value| Draft::read(&value).expect("it is a draft"));
        let draft = Draft::new("extend", typed("jörg; Path=/", "call \"4711\", ärgerlich"));
        assert_eq!(back(&draft), Some(draft.clone()));
        let value = draft.kept().unwrap();
        assert!(value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{value}");
        let long = Draft::new("extend", typed("gus", &"x".repeat(4_000)));
        let bare = Typed { user: "gus".to_owned(), ..Typed::default() };
        assert_eq!(back(&long), Some(Draft::new("extend", bare)));
        assert_eq!(back(&Draft::new("extend", typed(&"x".repeat(4_000), ""))), None);
        for wrong in ["", "x", "!", "e30", "bnVsbA"] {
            assert_eq!(Draft::read(wrong), None, "{wrong}");
        }
    }
}
