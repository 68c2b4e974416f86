//! Any text as what people type at the portal: short codes, names of users, dates, addresses to
//! look up, and places in lists. Nothing panics, and what was read is what is written again.

use vpnd_config::user_name;
use vpnd_store::audit::query::Cursor;
use vpnd_store::audit::whois::Asked;
use vpnd_sys::date::{Expiry, Moment};

use crate::portal::read_code;

/// Checks one input.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(code) = read_code(&text) {
        assert_eq!(code.len(), 9, "{code}");
        assert_eq!(read_code(&code).as_ref(), Some(&code), "as it is shown");
        assert_eq!(read_code(&text.to_ascii_lowercase()).as_ref(), Some(&code), "in small letters");
        let letters: String = code.chars().filter(|letter| *letter != '-').collect();
        let mut typed = text.chars().map(|letter| letter.to_ascii_uppercase());
        assert!(letters.chars().all(|letter| typed.any(|other| other == letter)), "{text:?} is {code}");
    }
    if let Some(name) = user_name::canonical(&text) {
        assert_eq!(user_name::canonical(&name), Some(name.clone()), "{text:?}");
        assert!(!name.chars().any(char::is_control), "{name:?}");
    }
    if let Ok(expiry) = text.parse::<Expiry>() {
        assert_eq!(expiry.to_string().parse(), Ok(expiry), "{text:?}");
    }
    let _ = (text.parse::<Moment>(), text.parse::<Cursor>(), text.parse::<Asked>());
}
